#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>

#include "hooks.h"
#include "memory.h"
#include "session.h"

enum { MOST_POOLS = 256 };

/* ---- The table of pools -------------------------------------------------------------- */

/* The number of a pool is its place, which is used again once nothing of it is left. */
struct pool {
    CUmemoryPool handle; /* NULL: the device's graph memory */
    bool is_used;
    bool is_destroyed; /* by the program; what it holds stays until the last of it is freed */
    CUdevice device;
    int row;
    uint64_t promised; /* bytes that allocations have, or are about to have */
    uint64_t charged;  /* bytes in the region */
};
static struct pool pools[MOST_POOLS];
static _Atomic int pools_used; /* how many places were ever taken */

/*
 * Over all of them, also while the driver works on a pool's handle for us and while a charge is
 * changed: so answers are counted in their order, no handle is used that the program has destroyed,
 * and a charge that may still be refused covers no other allocation.  Not held while the driver
 * allocates or frees.
 */
static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER;

/* To ask the driver.  A thread that was cancelled there would keep the lock; and see
 * hr_relax_capture(). */
struct asking {
    int cancel_state, capture_mode;
};

static struct asking begin_asking(void)
{
    struct asking before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before.cancel_state);
    pthread_mutex_lock(&changing);
    before.capture_mode = hr_relax_capture();
    return before;
}

static void end_asking(struct asking before)
{
    hr_restore_capture(before.capture_mode);
    pthread_mutex_unlock(&changing);
    pthread_setcancelstate(before.cancel_state, NULL);
}

/* All static functions from here on are called under `changing`. */
static int find_pool(CUmemoryPool handle, CUdevice graphs_of)
{
    for (int at = 0; at < pools_used; at++) {
        if (pools[at].is_used && !pools[at].is_destroyed && pools[at].handle == handle &&
            (handle != NULL || pools[at].device == graphs_of))
            return at;
    }
    return -1;
}

static int add_pool(CUmemoryPool handle, CUdevice device)
{
    for (int at = 0; at < MOST_POOLS; at++) {
        if (pools[at].is_used)
            continue;
        pools[at] = (struct pool){
            .handle = handle, .is_used = true, .device = device, .row = hr_row_of_device(device)};
        if (at >= pools_used)
            pools_used = at + 1;
        return at;
    }
    return -1;
}

/* Drivers before CUDA 13 do not say where a pool is; a pool that no program has made is the default
 * one of some device, not always of that whose stream uses it. */
static CUdevice device_of_pool(CUmemoryPool handle, CUdevice likely)
{
    int devices;
    CUmemoryPool own;
    uint64_t type = 0, id = 0;
    if (handle == NULL)
        return likely;
    if (HR_CUDA(cuMemPoolGetAttribute)(handle, CU_MEMPOOL_ATTR_LOCATION_TYPE, &type) ==
            CUDA_SUCCESS &&
        HR_CUDA(cuMemPoolGetAttribute)(handle, CU_MEMPOOL_ATTR_LOCATION_ID, &id) == CUDA_SUCCESS)
        return hr_device_of_location((int)type, (int)id);
    if (HR_CUDA(cuDeviceGetCount)(&devices) != CUDA_SUCCESS)
        return likely;
    for (CUdevice device = 0; device < devices; device++) {
        if (HR_CUDA(cuDeviceGetDefaultMemPool)(&own, device) == CUDA_SUCCESS && own == handle)
            return device;
    }
    return likely;
}

int hr_enter_pool(CUmemoryPool handle, CUdevice likely)
{
    pthread_mutex_lock(&changing);
    int number = find_pool(handle, likely);
    pthread_mutex_unlock(&changing);
    if (number >= 0)
        return number;
    struct asking before = begin_asking();
    CUdevice device = device_of_pool(handle, likely);
    number = find_pool(handle, device);
    if (number < 0)
        number = add_pool(handle, device);
    end_asking(before);
    return number;
}

/* A place keeps its row as long as anything of its pool is left. */
int hr_row_of_pool(int number)
{
    return number < 0 ? HR_NO_ROW : pools[number].row;
}

/* ---- Charging ------------------------------------------------------------------------ */

/* The driver's pools grow by pieces of this size.  Guess, see tests/gpu: a smaller one would let a
 * pool pass the limit until it is asked for its size. */
#define PIECE (32ull << 20)

/* The size of a pool that has what was promised. */
static uint64_t promised_size(const struct pool *pool)
{
    bool grows_by_pieces = pool->handle != NULL && !pool->is_destroyed;
    if (!grows_by_pieces || pool->promised > UINT64_MAX - PIECE)
        return pool->promised;
    return (pool->promised + PIECE - 1) / PIECE * PIECE;
}

static CUresult set_charge(struct pool *pool, uint64_t bytes, bool may_refuse)
{
    CUresult result = CUDA_SUCCESS;
    if (bytes < pool->charged)
        hr_give_back_memory(pool->row, pool->charged - bytes);
    else if (bytes > pool->charged && may_refuse)
        result = hr_charge_memory(pool->row, bytes - pool->charged);
    else if (bytes > pool->charged)
        hr_count_memory(pool->row, bytes - pool->charged);
    if (result == CUDA_SUCCESS)
        pool->charged = bytes;
    return result;
}

static CUresult promise(struct pool *pool, uint64_t bytes, bool *has_grown)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&changing);
    *has_grown = bytes > pool->charged || pool->promised > pool->charged - bytes;
    pool->promised += bytes;
    if (*has_grown && promised_size(pool) > pool->charged)
        result = set_charge(pool, promised_size(pool), true);
    if (result != CUDA_SUCCESS)
        pool->promised -= bytes;
    pthread_mutex_unlock(&changing);
    return result;
}

CUresult hr_promise(int number, uint64_t bytes, bool *has_grown)
{
    struct pool *pool = &pools[number];
    CUresult result = promise(pool, bytes, has_grown);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && hr_trim_pools(pool->row))
        result = promise(pool, bytes, has_grown);
    return hr_count_refusal(result);
}

static CUresult read_held(const struct pool *pool, uint64_t *held)
{
    if (pool->handle != NULL)
        return HR_CUDA(cuMemPoolGetAttribute)(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
                                              held);
    return HR_CUDA(cuDeviceGetGraphMemAttribute)(pool->device,
                                                 CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, held);
}

static CUresult reconcile(struct pool *pool, bool may_refuse)
{
    uint64_t held = 0;
    /* A pool that was destroyed cannot be asked: it holds what is in use. */
    if (!pool->is_used || pool->row < 0 ||
        (!pool->is_destroyed && read_held(pool, &held) != CUDA_SUCCESS))
        return CUDA_SUCCESS;
    /* What others have been promised since they may be taking just now. */
    uint64_t promised = promised_size(pool);
    CUresult result = set_charge(pool, held > promised ? held : promised, may_refuse);
    if (pool->is_destroyed && pool->charged == 0)
        pool->is_used = false;
    return result;
}

static CUresult ask_pool(int number, bool may_refuse)
{
    struct asking before = begin_asking();
    CUresult result = reconcile(&pools[number], may_refuse);
    end_asking(before);
    return result;
}

CUresult hr_admit_pool(int number)
{
    CUresult result = ask_pool(number, true);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && hr_trim_pools(pools[number].row))
        result = ask_pool(number, true);
    return hr_count_refusal(result);
}

void hr_reconcile_pool(int number)
{
    ask_pool(number, false);
}

void hr_take_back_promise(int number, uint64_t bytes)
{
    pthread_mutex_lock(&changing);
    pools[number].promised -= bytes;
    if (pools[number].is_destroyed)
        reconcile(&pools[number], false);
    pthread_mutex_unlock(&changing);
}

void hr_reconcile_pools(void)
{
    for (int row = 0; row < HR_DEVICES; row++) {
        const struct pool graphs = {.device = hr_device_of_row(row)};
        uint64_t held = 0;
        struct asking before = begin_asking();
        /* Graph memory is there without a call of ours. */
        if (graphs.device >= 0 && find_pool(NULL, graphs.device) < 0 &&
            read_held(&graphs, &held) == CUDA_SUCCESS && held != 0)
            add_pool(NULL, graphs.device);
        end_asking(before);
    }
    for (int number = 0; number < pools_used; number++)
        hr_reconcile_pool(number);
}

/* ---- Trimming and ending -------------------------------------------------------------- */

static void trim(struct pool *pool)
{
    if (pool->handle == NULL)
        HR_CUDA(cuDeviceGraphMemTrim)(pool->device);
    else if (!pool->is_destroyed)
        HR_CUDA(cuMemPoolTrimTo)(pool->handle, 0);
    reconcile(pool, false);
}

bool hr_trim_pools(int row)
{
    bool is_any = false;
    for (int number = 0; number < pools_used; number++) {
        struct pool *pool = &pools[number];
        struct asking before = begin_asking();
        if (pool->is_used && pool->row == row) {
            is_any = true;
            if (pool->charged > pool->promised)
                trim(pool);
        }
        end_asking(before);
    }
    return is_any;
}

static bool is_in_pool(const struct hr_entry *entry, uint32_t pool)
{
    return entry->in_pool && entry->owner == pool;
}

void hr_empty_pools(CUdevice device)
{
    for (uint32_t number = 0; (int)number < pools_used; number++) {
        const struct pool *pool = &pools[number];
        struct asking before = begin_asking();
        bool is_there = pool->is_used && pool->device == device;
        uint64_t used = 1;
        if (is_there && pool->handle != NULL && !pool->is_destroyed && pool->promised != 0)
            HR_CUDA(cuMemPoolGetAttribute)(pool->handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used);
        end_asking(before);
        if (used == 0)
            hr_table_sweep(is_in_pool, number, hr_give_back_entry);
        if (is_there)
            hr_reconcile_pool((int)number);
    }
}

CUresult hr_destroy_pool(CUmemoryPool handle)
{
    if (handle == NULL || hr_session_region() == NULL)
        return HR_CUDA(cuMemPoolDestroy)(handle);
    struct asking before = begin_asking();
    int number = find_pool(handle, -1);
    /* The program's own call has its part in a capture. */
    hr_restore_capture(before.capture_mode);
    CUresult result = HR_CUDA(cuMemPoolDestroy)(handle);
    hr_relax_capture();
    if (result == CUDA_SUCCESS && number >= 0) {
        pools[number].is_destroyed = true;
        reconcile(&pools[number], false);
    }
    end_asking(before);
    return result;
}
