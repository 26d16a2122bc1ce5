#define _GNU_SOURCE
#include "fake.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ALIGNMENT 512u
#define CHUNK (1ull << 30)
#define SMALL (1ull << 20)
#define CLASSES 48

/* Where addresses come from: small ones from chunks of address space, large ones from the system.
 * Memory that is never written takes nothing of the machine's. */
struct hole {
    struct hole *next;
    void *address;
};
static struct hole *holes[CLASSES];
static char *chunk, *chunk_end;

static struct block **table; /* by address; all of this under fake.mutex */
static size_t table_size, block_count;

/* ---- the device's memory ---- */

CUresult charge(int device, uint64_t bytes)
{
    unsigned gpu = fake.gpus[device];
    state_lock(fake.state);
    struct gpu *here = &fake.state->gpus[gpu];
    uint64_t used = state_used(fake.state, gpu);
    if (bytes > fake.state->memory_bytes - used) {
        state_reap(fake.state);
        used = state_used(fake.state, gpu);
    }
    CUresult code = CUDA_ERROR_OUT_OF_MEMORY;
    if (bytes <= fake.state->memory_bytes - used) {
        code = CUDA_SUCCESS;
        fake.self->used[gpu] += bytes;
        if (here->used_high < used + bytes)
            here->used_high = used + bytes;
    }
    state_unlock(fake.state);
    return code;
}

void discharge(int device, uint64_t bytes)
{
    state_lock(fake.state);
    fake.self->used[fake.gpus[device]] -= bytes;
    state_unlock(fake.state);
}

API CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    CUcontext context;
    CUresult code = current_context(&context);
    if (code != CUDA_SUCCESS)
        return code;
    state_lock(fake.state);
    state_reap(fake.state);
    uint64_t used = state_used(fake.state, fake.gpus[context->device]);
    state_unlock(fake.state);
    if (free_bytes != NULL)
        *free_bytes = fake.state->memory_bytes - used;
    if (total != NULL)
        *total = fake.state->memory_bytes;
    return CUDA_SUCCESS;
}

/* ---- addresses ---- */

/* Four classes for each power of two, so that at most a fifth is lost. */
static unsigned class_of(uint64_t *size)
{
    uint64_t units = (*size + ALIGNMENT - 1) / ALIGNMENT;
    unsigned shift = 0;
    while ((units + (1u << shift) - 1) >> shift > 8)
        shift++;
    units = (units + (1u << shift) - 1) >> shift;
    *size = (units << shift) * ALIGNMENT;
    return shift * 4 + (unsigned)units - (shift > 0 ? 4 : 0);
}

static void *take_address(uint64_t size)
{
    if (size > SMALL) {
        void *address = mmap(NULL, size, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        return address == MAP_FAILED ? NULL : address;
    }
    unsigned class = class_of(&size);
    struct hole *hole = holes[class];
    if (hole != NULL) {
        void *address = hole->address;
        holes[class] = hole->next;
        free(hole);
        return address;
    }
    if ((uint64_t)(chunk_end - chunk) < size) {
        chunk = mmap(NULL, CHUNK, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (chunk == MAP_FAILED) {
            chunk = chunk_end = NULL;
            return NULL;
        }
        chunk_end = chunk + CHUNK;
    }
    void *address = chunk;
    chunk += size;
    return address;
}

static void give_address(CUdeviceptr address, uint64_t size)
{
    if (size > SMALL) {
        munmap((void *)address, size);
        return;
    }
    struct hole *hole = malloc(sizeof *hole);
    unsigned class = class_of(&size);
    *hole = (struct hole){holes[class], (void *)address};
    holes[class] = hole;
}

/* ---- blocks ---- */

static struct block **place_of(CUdeviceptr address)
{
    uint64_t mixed = (address / ALIGNMENT) * 0x9e3779b97f4a7c15u;
    return &table[(mixed >> 32) & (table_size - 1)];
}

static void grow(void)
{
    struct block **old = table;
    size_t old_size = table_size;
    table_size = old_size == 0 ? 1024 : old_size * 2;
    table = calloc(table_size, sizeof *table);
    for (size_t number = 0; number < old_size; number++)
        for (struct block *block = old[number], *next; block != NULL; block = next) {
            next = block->next;
            struct block **place = place_of(block->address);
            block->next = *place;
            *place = block;
        }
    free(old);
}

CUresult add_block(struct block wanted, CUdeviceptr *out)
{
    struct block *block = malloc(sizeof *block);
    *block = wanted;
    pthread_mutex_lock(&fake.mutex);
    if (block->address == 0)
        block->address = (CUdeviceptr)take_address(wanted.size);
    if (block->address == 0) {
        pthread_mutex_unlock(&fake.mutex);
        free(block);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (block_count++ == table_size)
        grow();
    struct block **place = place_of(block->address);
    block->next = *place;
    *place = block;
    *out = block->address;
    pthread_mutex_unlock(&fake.mutex);
    return CUDA_SUCCESS;
}

/* Return a block to its pool or its device, and only then make its address available again. */
static void settle(struct block *block)
{
    if (block->charged > 0)
        discharge(block->device, block->charged);
    if (block->pool != NULL)
        pool_give_back(block->pool, block->size);
    pthread_mutex_lock(&fake.mutex);
    give_address(block->address, block->size);
    pthread_mutex_unlock(&fake.mutex);
    free(block);
}

static bool find_block(CUdeviceptr address, struct block *out)
{
    bool found = false;
    pthread_mutex_lock(&fake.mutex);
    struct block *first = table_size == 0 ? NULL : *place_of(address);
    for (struct block *block = first; block != NULL && !found; block = block->next)
        if ((found = block->address == address))
            *out = *block;
    pthread_mutex_unlock(&fake.mutex);
    return found;
}

CUresult free_block(CUdeviceptr address)
{
    struct block *block = NULL;
    pthread_mutex_lock(&fake.mutex);
    struct block **place = table_size == 0 ? NULL : place_of(address);
    while (place != NULL && *place != NULL && (*place)->address != address)
        place = &(*place)->next;
    if (place != NULL && *place != NULL) {
        block = *place;
        *place = block->next;
        block_count--;
    }
    pthread_mutex_unlock(&fake.mutex);
    if (block == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    settle(block);
    return CUDA_SUCCESS;
}

void free_blocks_of(CUcontext context)
{
    struct block *gone = NULL;
    pthread_mutex_lock(&fake.mutex);
    for (size_t number = 0; number < table_size; number++)
        for (struct block **place = &table[number]; *place != NULL;) {
            struct block *block = *place;
            if (block->context != context) {
                place = &block->next;
                continue;
            }
            *place = block->next;
            block->next = gone;
            gone = block;
            block_count--;
        }
    pthread_mutex_unlock(&fake.mutex);
    while (gone != NULL) {
        struct block *next = gone->next;
        settle(gone);
        gone = next;
    }
}

/* ---- linear memory ---- */

static CUresult allocate(CUdeviceptr *out, uint64_t size)
{
    CUcontext context;
    CUresult code = current_context(&context);
    if (code != CUDA_SUCCESS)
        return code;
    if (out == NULL || size == 0)
        return CUDA_ERROR_INVALID_VALUE;
    code = charge(context->device, size);
    if (code != CUDA_SUCCESS)
        return code;
    struct block block = {
        .size = size, .charged = size, .device = context->device, .context = context};
    code = add_block(block, out);
    if (code != CUDA_SUCCESS)
        discharge(context->device, size);
    return code;
}

API CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t size)
{
    return allocate(out, size);
}

API CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height,
                                unsigned element)
{
    (void)element;
    const size_t multiple = 512;
    size_t row = (width + multiple - 1) / multiple * multiple;
    CUresult code = allocate(out, row * height);
    if (code == CUDA_SUCCESS)
        *pitch = row;
    return code;
}

/* Managed memory takes of the device when a kernel touches it, which none does here. */
API CUresult cuMemAllocManaged(CUdeviceptr *out, size_t size, unsigned flags)
{
    CUcontext context;
    CUresult code = current_context(&context);
    if (code != CUDA_SUCCESS)
        return code;
    if (out == NULL || size == 0 || flags == 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct block block = {.size = size, .device = context->device, .context = context};
    return add_block(block, out);
}

API CUresult cuMemFree_v2(CUdeviceptr address)
{
    CUresult code = check_initialised();
    if (code != CUDA_SUCCESS || address == 0)
        return code;
    return graph_free(address) ? CUDA_SUCCESS : free_block(address);
}

/* ---- the host's memory ---- */

API CUresult cuMemHostAlloc(void **out, size_t size, unsigned flags)
{
    (void)flags;
    CUcontext context;
    CUresult code = current_context(&context);
    if (code != CUDA_SUCCESS)
        return code;
    struct block block = {.size = size, .device = context->device, .context = context};
    CUdeviceptr address;
    code = add_block(block, &address);
    if (code == CUDA_SUCCESS)
        *out = (void *)address;
    return code;
}

API CUresult cuMemAllocHost_v2(void **out, size_t size)
{
    return cuMemHostAlloc(out, size, 0);
}

API CUresult cuMemFreeHost(void *address)
{
    CUresult code = check_initialised();
    return code == CUDA_SUCCESS ? free_block((CUdeviceptr)address) : code;
}

API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *address, unsigned flags)
{
    (void)flags;
    *out = (CUdeviceptr)address;
    return check_initialised();
}

API CUresult cuMemHostRegister_v2(void *address, size_t size, unsigned flags)
{
    (void)address, (void)size, (void)flags;
    return check_initialised();
}

API CUresult cuMemHostUnregister(void *address)
{
    (void)address;
    return check_initialised();
}

/* ---- memory of another process ---- */

/* The fake handle is a size: nothing reads what another process has written. */
API CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr address)
{
    struct block block;
    if (!find_block(address, &block))
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(out, &block.size, sizeof block.size);
    return check_initialised();
}

API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, CUipcMemHandle handle, unsigned flags)
{
    (void)flags;
    CUcontext context;
    CUresult code = current_context(&context);
    if (code != CUDA_SUCCESS)
        return code;
    struct block block = {.device = context->device, .context = context};
    memcpy(&block.size, &handle, sizeof block.size);
    return add_block(block, out);
}

API CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
    return free_block(address);
}
