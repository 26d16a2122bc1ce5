/*
 * Each way to allocate, with a driver and a region that grant, refuse and fail: what the region
 * counts is what the driver has given out.  `allocations_model` ends the program where it is not.
 */
#include <stdlib.h>

/* Where the books find no memory to grow. */
static int has_no_memory;
static void *allocate_or_not(size_t count, size_t size)
{
    return has_no_memory ? NULL : calloc(count, size);
}
#define calloc allocate_or_not
#include "../../csrc/preload/books.c"
#undef calloc

#include "numbered_memory.h"

/* ---- Ways to allocate ----------------------------------------------------------------- */

static CUdevice chosen; /* the device of what is not the current context's */

static CUresult make_linear(uint64_t *out)
{
    CUdeviceptr pointer = 0;
    CUresult result = cuMemAlloc_v2(&pointer, SIZE);
    *out = pointer;
    return result;
}

static CUresult make_managed(uint64_t *out)
{
    CUdeviceptr pointer = 0;
    CUresult result = cuMemAllocManaged(&pointer, SIZE, 1);
    *out = pointer;
    return result;
}

static CUresult make_pitch(uint64_t *out)
{
    CUdeviceptr pointer = 0;
    size_t pitch;
    CUresult result = cuMemAllocPitch_v2(&pointer, &pitch, WIDTH, HEIGHT, 4);
    *out = pointer;
    return result;
}

static CUresult make_array(uint64_t *out)
{
    const CUDA_ARRAY_DESCRIPTOR array = {96, 32, 0x20, 1};
    CUarray made = NULL;
    CUresult result = cuArrayCreate_v2(&made, &array);
    *out = (uintptr_t)made;
    return result;
}

static CUresult make_array3d(uint64_t *out)
{
    const CUDA_ARRAY3D_DESCRIPTOR array = {96, 32, 0, 0x20, 1, 0};
    CUarray made = NULL;
    CUresult result = cuArray3DCreate_v2(&made, &array);
    *out = (uintptr_t)made;
    return result;
}

static CUresult make_mipmapped(uint64_t *out)
{
    const CUDA_ARRAY3D_DESCRIPTOR array = {96, 32, 0, 0x20, 1, 0};
    CUmipmappedArray made = NULL;
    CUresult result = cuMipmappedArrayCreate(&made, &array, 2);
    *out = (uintptr_t)made;
    return result;
}

static CUresult make_physical(uint64_t *out)
{
    CUmemGenericAllocationHandle handle = 0;
    const CUmemAllocationProp properties = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = chosen}};
    CUresult result = cuMemCreate(&handle, SIZE, &properties, 0);
    *out = handle;
    return result;
}

#define MAKE_ASYNC(name, call)                                                                     \
    static CUresult name(uint64_t *out)                                                            \
    {                                                                                              \
        CUdeviceptr pointer = 0;                                                                   \
        CUresult result = call;                                                                    \
        *out = pointer;                                                                            \
        return result;                                                                             \
    }
MAKE_ASYNC(make_async, cuMemAllocAsync(&pointer, SIZE, NULL))
MAKE_ASYNC(make_async_ptsz, cuMemAllocAsync_ptsz(&pointer, SIZE, NULL))
MAKE_ASYNC(make_from_pool, cuMemAllocFromPoolAsync(&pointer, SIZE, &defaults[chosen], NULL))
MAKE_ASYNC(make_from_pool_ptsz,
           cuMemAllocFromPoolAsync_ptsz(&pointer, SIZE, &defaults[chosen], NULL))

static CUresult end_linear(uint64_t key)
{
    return cuMemFree_v2(key);
}

static CUresult end_async(uint64_t key)
{
    return cuMemFreeAsync(key, NULL);
}

static CUresult end_async_ptsz(uint64_t key)
{
    return cuMemFreeAsync_ptsz(key, NULL);
}

static CUresult end_array(uint64_t key)
{
    return cuArrayDestroy((CUarray)(uintptr_t)key);
}

static CUresult end_mipmapped(uint64_t key)
{
    return cuMipmappedArrayDestroy((CUmipmappedArray)(uintptr_t)key);
}

static CUresult end_physical(uint64_t key)
{
    return cuMemRelease(key);
}

enum kind { OF_CONTEXT, OF_DEVICE, OF_POOL };
static const struct way {
    const char *name;
    CUresult (*make)(uint64_t *out);
    CUresult (*end)(uint64_t key);
    uint64_t bytes;
    enum kind kind;
    CUstream stream; /* that a default one means */
} ways[] = {
    {"linear", make_linear, end_linear, SIZE, OF_CONTEXT, NULL},
    {"managed", make_managed, end_linear, SIZE, OF_CONTEXT, NULL},
    {"linear, freed async", make_linear, end_async, SIZE, OF_CONTEXT, NULL},
    {"rows", make_pitch, end_linear, 1024 * HEIGHT, OF_CONTEXT, NULL},
    {"array", make_array, end_array, SIZE, OF_CONTEXT, NULL},
    {"3D array", make_array3d, end_array, SIZE, OF_CONTEXT, NULL},
    {"mipmapped array", make_mipmapped, end_mipmapped, SIZE / 4 * 5, OF_CONTEXT, NULL},
    {"physical", make_physical, end_physical, SIZE, OF_DEVICE, NULL},
    {"async", make_async, end_async, SIZE, OF_POOL, NULL},
    {"async, freed at once", make_async, end_linear, SIZE, OF_POOL, NULL},
    {"async, ptsz", make_async_ptsz, end_async_ptsz, SIZE, OF_POOL, CU_STREAM_PER_THREAD},
    {"from a pool", make_from_pool, end_async, SIZE, OF_POOL, NULL},
    {"from a pool, ptsz", make_from_pool_ptsz, end_async_ptsz, SIZE, OF_POOL, CU_STREAM_PER_THREAD},
};
enum { WAYS = sizeof ways / sizeof *ways };

static void begin_on(CUdevice device)
{
    begin();
    has_no_memory = false;
    is_capturing = false;
    row_pitch = 1024;
    kept = 0;
    memset(held_by_graphs, 0, sizeof held_by_graphs);
    chosen = device;
    current = &primaries[device];
    current->is_alive = true;
    hr_add_context(current, device, 0);
}

/* ---- Checks --------------------------------------------------------------------------- */

static void check_counting(const struct way *way)
{
    uint64_t first = 0, second = 0;
    for (CUdevice device = 0; device < DEVICES; device++) {
        begin_on(device);
        MUST(way->make(&first) == CUDA_SUCCESS && there[device] == way->bytes && calls == 1);
        if (device == NO_ROW_DEVICE) {
            MUST(charged[0] == 0 && charged[1] == 0);
            MUST(way->end(first) == CUDA_SUCCESS && there[device] == 0 && charged[0] == 0);
            continue;
        }
        MUST_AGREE();
        MUST(way->make(&second) == CUDA_SUCCESS && charged[1 - device] == 2 * way->bytes);
        MUST_AGREE();
        /* A driver that refuses for now still has it. */
        next_result = CUDA_ERROR_NOT_INITIALIZED;
        MUST(way->end(first) == CUDA_ERROR_NOT_INITIALIZED && there[device] == 2 * way->bytes);
        MUST_AGREE();
        MUST(way->end(first) == CUDA_SUCCESS && there[device] == way->bytes);
        MUST_AGREE();
        /* What was freed already is not ours any more. */
        MUST(way->end(first) == CUDA_ERROR_INVALID_VALUE);
        MUST_AGREE();
        MUST(way->end(second) == CUDA_SUCCESS && there[device] == 0);
        MUST_AGREE();
    }
    MUST(complaints == 0 && waits == 0);
}

/* It went away with something that the library knows nothing of. */
static void check_gone(const struct way *way)
{
    static const CUresult gone[] = {CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_CONTEXT_IS_DESTROYED};
    uint64_t key = 0;
    for (size_t at = 0; way->end != end_physical && at < sizeof gone / sizeof *gone; at++) {
        begin_on(0);
        MUST(way->make(&key) == CUDA_SUCCESS);
        next_result = gone[at];
        MUST(way->end(key) == gone[at] && there[0] == 0);
        MUST_AGREE();
    }
}

static void check_refusals(const struct way *way)
{
    static const CUresult results[] = {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_INVALID_VALUE};
    uint64_t key = 0;
    for (CUdevice device = 0; device < DEVICES; device++) {
        for (int at = 0; at < 2; at++) {
            /* By the driver. */
            begin_on(device);
            next_result = results[at];
            MUST(way->make(&key) == results[at] && calls == 1 && there[device] == 0);
            MUST_AGREE();
        }
        if (device == NO_ROW_DEVICE)
            continue;
        /* By the region: the driver is not asked. */
        begin_on(device);
        limits[1 - device] = way->bytes - 1;
        MUST(way->make(&key) == CUDA_ERROR_OUT_OF_MEMORY && calls == 0);
        MUST_AGREE();
        limits[1 - device] = way->bytes;
        MUST(way->make(&key) == CUDA_SUCCESS);
        MUST_AGREE();
        MUST(way->make(&key) == CUDA_ERROR_OUT_OF_MEMORY && calls == 1);
        MUST_AGREE();
    }
    begin_on(0);
    is_refused = true;
    MUST(way->make(&key) == CUDA_ERROR_NOT_PERMITTED && calls == 0);
    MUST_AGREE();
    /* A pool that keeps what nobody uses gives it up first. */
    begin_on(0);
    MUST(make_async(&key) == CUDA_SUCCESS);
    kept = 8 * SIZE;
    defaults[0].held += kept;
    there[0] += kept;
    hr_settle_pools();
    MUST_AGREE();
    limits[1] = 9 * SIZE;
    MUST(way->make(&key) == CUDA_SUCCESS && there[0] == (uint64_t)SIZE + way->bytes + kept);
    MUST_AGREE();
}

static void check_circumstances(const struct way *way)
{
    uint64_t key = 0;
    begin_on(0);
    hr_holds = HR_HOLD_SUSPENDED | HR_HOLD_LIMITED;
    MUST(way->make(&key) == CUDA_SUCCESS && waits == 1);
    hr_holds = ~(unsigned)HR_HOLD_SUSPENDED;
    MUST(way->make(&key) == CUDA_SUCCESS && waits == 1 && attached >= 2);
    MUST_AGREE();
    if (way->kind == OF_CONTEXT || way->make == make_async || way->make == make_async_ptsz) {
        /* Without a context the driver says so, or gives what nobody counts. */
        begin_on(0);
        current = NULL;
        is_uncounted = true;
        MUST(way->make(&key) == CUDA_SUCCESS && charged[1] == 0 && calls == 1 && changes[1] == 0);
    }
    if (way->kind == OF_POOL) {
        /* What is captured is a node of a graph; and which stream that is. */
        begin_on(0);
        MUST(way->make(&key) == CUDA_SUCCESS && asked_stream == NULL);
        is_capturing = is_uncounted = true;
        limits[1] = SIZE;
        MUST(way->make(&key) == CUDA_SUCCESS && charged[1] == SIZE && changes[1] == 0);
        is_capturing = is_uncounted = false;
        MUST(way->make(&key) == CUDA_ERROR_OUT_OF_MEMORY && asked_stream == way->stream);
    }
    /* There is no memory to note it: the program has it, and it is not counted. */
    begin_on(0);
    has_no_memory = true;
    MUST(way->make(&key) == CUDA_SUCCESS && complaints == 1 && changes[1] == 0);
    MUST(charged[1] == (way->kind == OF_POOL ? way->bytes : 0));
    has_no_memory = false;
    /* The driver freed one unseen, and gives its number again. */
    begin_on(0);
    MUST(way->make(&key) == CUDA_SUCCESS);
    drop(find_block(key));
    next_key = key;
    MUST(way->make(&key) == CUDA_SUCCESS && there[0] == way->bytes);
    MUST_AGREE();
    MUST(way->end(key) == CUDA_SUCCESS && there[0] == 0);
    MUST_AGREE();
}

static void check_pitch(void)
{
    uint64_t key = 0;
    for (row_pitch = 256; row_pitch <= 4096; row_pitch *= 2) {
        size_t pitch = row_pitch;
        begin_on(0);
        row_pitch = pitch;
        is_padded = true;
        limits[1] = pitch < 1024 ? 1024 * HEIGHT : pitch * HEIGHT;
        MUST(make_pitch(&key) == CUDA_SUCCESS && there[0] == pitch * HEIGHT);
        MUST_AGREE();
        MUST(end_linear(key) == CUDA_SUCCESS && there[0] == 0);
        MUST_AGREE();
        limits[1]--;
        MUST(make_pitch(&key) == CUDA_ERROR_OUT_OF_MEMORY && there[0] == 0);
        MUST_AGREE();
    }
    begin_on(0);
    CUdeviceptr pointer;
    size_t pitch;
    /* More than there can be, in one direction or both. */
    MUST(cuMemAllocPitch_v2(&pointer, &pitch, SIZE_MAX, 1, 4) == CUDA_ERROR_OUT_OF_MEMORY);
    MUST(cuMemAllocPitch_v2(&pointer, &pitch, SIZE_MAX - 511, 1, 4) == CUDA_ERROR_OUT_OF_MEMORY);
    MUST(cuMemAllocPitch_v2(&pointer, &pitch, 1ull << 40, 1ull << 30, 4) ==
         CUDA_ERROR_OUT_OF_MEMORY);
    MUST(calls == 0);
    MUST_AGREE();
}

/* The driver lets go of another handle of the same memory. */
static void find_or_make(uint64_t key)
{
    if (find_block(key) == NULL)
        blocks[0] = (struct block){.key = key};
}

/* Physical memory stays until its last handle is released and its last mapping is gone. */
static void check_mappings(void)
{
    const CUdeviceptr at = UINT64_C(1) << 33;
    CUmemGenericAllocationHandle again;
    uint64_t handle, other;
    begin_on(0);
    MUST(make_physical(&handle) == CUDA_SUCCESS && make_physical(&other) == CUDA_SUCCESS);
    const uint64_t size = SIZE, both = 2 * size;
#define MUST_COUNT(bytes) MUST(charged[1] == (bytes) && changes[1] == 0)
    MUST(cuMemMap(at, size, 0, handle, 0) == CUDA_SUCCESS);
    MUST(cuMemMap(at + size, size, 0, other, 0) == CUDA_SUCCESS);
    MUST(cuMemMap(at + 2 * size, size, 0, handle, 0) == CUDA_SUCCESS);
    MUST(cuMemRelease(handle) == CUDA_SUCCESS && cuMemRelease(other) == CUDA_SUCCESS);
    MUST_COUNT(both);
    /* A driver that does not unmap has it still; and what it has not mapped is no mapping. */
    next_result = CUDA_ERROR_INVALID_VALUE;
    MUST(cuMemUnmap(at, 3 * size) == CUDA_ERROR_INVALID_VALUE);
    MUST_COUNT(both);
    /* Several at once, one behind the other, and no more than was asked for. */
    MUST(cuMemUnmap(at, 2 * size) == CUDA_SUCCESS);
    MUST_COUNT(size);
    MUST(cuMemUnmap(at + 2 * size, size) == CUDA_SUCCESS);
    MUST_COUNT(0);
    begin_on(0);
    MUST(make_physical(&handle) == CUDA_SUCCESS && make_physical(&other) == CUDA_SUCCESS);
    next_result = CUDA_ERROR_INVALID_VALUE;
    MUST(cuMemMap(at, size, 0, handle, 0) == CUDA_ERROR_INVALID_VALUE);
    MUST(cuMemRelease(handle) == CUDA_SUCCESS);
    MUST_COUNT(size);
    /* Mapped where the driver has taken another mapping back unseen. */
    MUST(make_physical(&handle) == CUDA_SUCCESS);
    MUST(cuMemMap(at, size, 0, handle, 0) == CUDA_SUCCESS && cuMemRelease(handle) == CUDA_SUCCESS);
    MUST_COUNT(both);
    MUST(cuMemMap(at, size, 0, other, 0) == CUDA_SUCCESS);
    MUST_COUNT(size);
    MUST(cuMemRelease(other) == CUDA_SUCCESS);
    MUST_COUNT(size);
    /* A handle by an address in it, which then is released once more. */
    physical_address = other;
    MUST(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(at + size - 1)) == CUDA_SUCCESS);
    MUST(again == other && cuMemUnmap(at, size) == CUDA_SUCCESS);
    MUST_COUNT(size);
    MUST(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)at) == CUDA_SUCCESS);
    next_result = CUDA_ERROR_INVALID_VALUE;
    MUST(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)at) == CUDA_ERROR_INVALID_VALUE);
    find_or_make(other);
    next_result = CUDA_ERROR_NOT_INITIALIZED;
    MUST(cuMemRelease(other) == CUDA_ERROR_NOT_INITIALIZED);
    find_or_make(other);
    MUST(cuMemRelease(other) == CUDA_SUCCESS);
    MUST_COUNT(size);
    find_or_make(other);
    MUST(cuMemRelease(other) == CUDA_SUCCESS);
    MUST_COUNT(0);
    /* An address that is in no mapping, one that is none of ours, and one past the end. */
    begin_on(0);
    MUST(make_physical(&handle) == CUDA_SUCCESS);
    MUST(cuMemMap(at, size, 0, handle, 0) == CUDA_SUCCESS && cuMemRelease(handle) == CUDA_SUCCESS);
    physical_address = 77;
    MUST(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(at + size)) == CUDA_SUCCESS);
    MUST(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(at - 1)) == CUDA_SUCCESS);
    MUST(cuMemUnmap(at, size) == CUDA_SUCCESS);
    MUST_COUNT(0);
    /* What was imported from another process is that one's. */
    MUST(cuMemMap(at, size, 0, 4711, 0) == CUDA_SUCCESS && cuMemUnmap(at, size) == CUDA_SUCCESS);
    MUST_COUNT(0);
}

static const struct {
    int type;
    CUdevice device;
    int row;
} pool_cases[] = {{CU_MEM_LOCATION_TYPE_DEVICE, 0, 1},
                  {CU_MEM_LOCATION_TYPE_DEVICE, 1, 0},
                  {CU_MEM_LOCATION_TYPE_DEVICE, NO_ROW_DEVICE, HR_NO_ROW},
                  {2, 0, HR_NO_ROW},
                  {3, 0, HR_NO_ROW}};

/* A pool is where it was made, and the host's is nobody's, whichever stream uses it. */
static void check_pools(void)
{
    for (size_t at = 0; at < sizeof pool_cases / sizeof *pool_cases; at++) {
        const CUmemPoolProps properties = {
            .location = {.type = pool_cases[at].type, .id = pool_cases[at].device}};
        int row = pool_cases[at].row;
        CUmemoryPool pool = NULL;
        CUdeviceptr pointer;
        begin_on(0);
        next_result = CUDA_ERROR_INVALID_VALUE;
        MUST(cuMemPoolCreate(&pool, &properties) == CUDA_ERROR_INVALID_VALUE && pool == NULL);
        MUST(cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS && pool == &own_pool);
        own_pool.device = pool_cases[at].device;
        is_uncounted = row < 0;
        MUST(cuMemAllocFromPoolAsync(&pointer, SIZE, pool, NULL) == CUDA_SUCCESS);
        MUST(charged[1] == (row == 1 ? SIZE : 0) && charged[0] == (row == 0 ? SIZE : 0));
        /* A driver that does not destroy it has it still. */
        next_result = CUDA_ERROR_INVALID_VALUE;
        MUST(cuMemPoolDestroy(pool) == CUDA_ERROR_INVALID_VALUE);
        MUST(cuMemAllocFromPoolAsync(&pointer, SIZE, pool, NULL) == CUDA_SUCCESS);
        MUST(charged[1] == (row == 1 ? 2 * SIZE : 0) && charged[0] == (row == 0 ? 2 * SIZE : 0));
        MUST(cuMemFreeAsync(pointer, NULL) == CUDA_SUCCESS);
        MUST(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
        MUST(charged[1] == (row == 1 ? SIZE : 0) && charged[0] == (row == 0 ? SIZE : 0));
    }
    /* What a pool only keeps is given back as it is trimmed, by whichever call. */
    begin_on(0);
    uint64_t key;
    MUST(make_async(&key) == CUDA_SUCCESS);
    kept = SIZE;
    defaults[0].held += kept;
    there[0] += kept;
    hr_settle_pools();
    MUST(charged[1] == 2 * SIZE);
    MUST(cuMemPoolTrimTo(&defaults[0], 0) == CUDA_SUCCESS && charged[1] == SIZE);
    MUST_AGREE();
    held_by_graphs[0] = SIZE;
    there[0] += SIZE;
    hr_settle_pools();
    MUST(charged[1] == 2 * SIZE);
    MUST(cuDeviceGraphMemTrim(0) == CUDA_SUCCESS && charged[1] == SIZE);
    MUST_AGREE();
}

static void check_graphs(void)
{
    CUgraphExec exec = (CUgraphExec)(uintptr_t)5;
    const CUstream elsewhere = (CUstream)(uintptr_t)101;
    MUST(hr_memory_of_node(NULL) == SIZE && hr_memory_of_node((CUgraphNode)exec) == 0);
    begin_on(0);
    MUST(hr_launch_with_memory(launch_graph, SIZE, exec, NULL) == CUDA_SUCCESS);
    MUST(charged[1] == 2 * SIZE && held_by_graphs[0] == 2 * SIZE);
    MUST_AGREE();
    next_result = CUDA_ERROR_INVALID_VALUE;
    MUST(hr_launch_with_memory(launch_graph, SIZE, exec, NULL) == CUDA_ERROR_INVALID_VALUE);
    MUST_AGREE();
    /* What the graphs hold is used again. */
    limits[1] = 2 * SIZE;
    MUST(hr_launch_with_memory(launch_graph, 2 * SIZE, exec, NULL) == CUDA_SUCCESS);
    MUST_AGREE();
    calls = 0;
    MUST(hr_launch_with_memory(launch_graph, 3 * SIZE, exec, NULL) == CUDA_ERROR_OUT_OF_MEMORY);
    is_refused = true;
    MUST(hr_launch_with_memory(launch_graph, SIZE, exec, NULL) == CUDA_ERROR_NOT_PERMITTED);
    is_refused = false;
    MUST(calls == 0);
    MUST_AGREE();
    /* On the device of the stream, and on one that has no row. */
    primaries[1].is_alive = true;
    hr_add_context(&primaries[1], 1, 0);
    MUST(hr_launch_with_memory(launch_graph, SIZE, exec, elsewhere) == CUDA_SUCCESS);
    MUST(charged[0] == 2 * SIZE);
    MUST_AGREE();
    begin_on(NO_ROW_DEVICE);
    MUST(hr_launch_with_memory(launch_graph, SIZE, exec, NULL) == CUDA_SUCCESS && calls == 1);
    MUST(charged[0] == 0 && charged[1] == 0);
}

/* Anything in any order. */
static void check_histories(unsigned seed)
{
    enum { MOST = 40 };
    struct {
        const struct way *way;
        uint64_t key;
    } held[MOST] = {0};
    begin_on(0);
    primaries[1].is_alive = true;
    hr_add_context(&primaries[1], 1, 0);
    srand(seed);
    for (int step = 0; step < 3000; step++) {
        int at = rand() % MOST;
        current = &primaries[chosen = rand() % 2];
        limits[0] = limits[1] = (uint64_t)(1 + rand() % 30) * SIZE;
        next_result = rand() % 4 == 0 ? CUDA_ERROR_NOT_INITIALIZED : CUDA_SUCCESS;
        subject = held[at].way != NULL ? held[at].way->name : "a history";
        if (held[at].way == NULL) {
            const struct way *way = &ways[rand() % WAYS];
            if (way->make(&held[at].key) == CUDA_SUCCESS)
                held[at].way = way;
        } else if (held[at].way->end(held[at].key) == CUDA_SUCCESS) {
            held[at].way = NULL;
        }
        next_result = CUDA_SUCCESS;
        MUST_AGREE();
    }
}

int main(void)
{
    for (const struct way *way = ways; way < ways + WAYS; way++) {
        subject = way->name;
        check_counting(way);
        check_gone(way);
        check_refusals(way);
        check_circumstances(way);
    }
    subject = "padding";
    check_pitch();
    subject = "mappings";
    check_mappings();
    subject = "pools";
    check_pools();
    subject = "graphs";
    check_graphs();
    for (unsigned seed = 1; seed <= 20; seed++)
        check_histories(seed);
    begin();
    return 0;
}
