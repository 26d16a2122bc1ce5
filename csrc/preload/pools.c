#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "hooks.h"
#include "memory.h"
#include "session.h"

enum { MOST_POOLS = 256, ASKED_S = 1 };

/* ---- The table of pools -------------------------------------------------------------- */

/*
 * All under `changing`, which is never held while the driver or the core is called.  The number of
 * a pool is its place, which is used again once nothing of it is left.
 */
struct pool {
    CUmemoryPool handle; /* NULL: the device's graph memory */
    bool is_used;
    bool is_destroyed; /* by the program; what it holds stays until the last of it is freed */
    CUdevice device;
    int row;
    uint64_t promised;   /* bytes that allocations have, or are about to have */
    uint64_t charged;    /* bytes in the region */
    uint64_t generation; /* how often a thread was about to ask for its size, */
    uint64_t reconciled; /* and the generation of the newest answer that was counted */
    uint32_t askers;     /* threads in which the driver works on its handle for us */
};
static struct pool pools[MOST_POOLS];
static _Atomic int pools_used; /* how many places were ever taken */
static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t asked = PTHREAD_COND_INITIALIZER; /* some pool has no askers any more */

/* Held while a charge is increased: what may still be refused covers no other allocation.  Taken
 * before `changing`. */
static pthread_mutex_t charging = PTHREAD_MUTEX_INITIALIZER;

/* Under `changing`. */
static int find_pool(CUmemoryPool handle, CUdevice graphs_of)
{
    for (int at = 0; at < pools_used; at++) {
        if (pools[at].is_used && !pools[at].is_destroyed && pools[at].handle == handle &&
            (handle != NULL || pools[at].device == graphs_of))
            return at;
    }
    return -1;
}

static int number_of_pool(CUmemoryPool handle, CUdevice graphs_of)
{
    pthread_mutex_lock(&changing);
    int number = find_pool(handle, graphs_of);
    pthread_mutex_unlock(&changing);
    return number;
}

static int add_pool(CUmemoryPool handle, CUdevice device)
{
    int row = hr_row_of_device(device);
    pthread_mutex_lock(&changing);
    int number = find_pool(handle, device);
    for (int at = 0; number < 0 && at < MOST_POOLS; at++) {
        if (pools[at].is_used || pools[at].askers != 0)
            continue;
        pools[at] = (struct pool){.handle = handle, .is_used = true, .device = device, .row = row};
        number = at;
        if (at >= pools_used)
            pools_used = at + 1;
    }
    pthread_mutex_unlock(&changing);
    return number;
}

static CUresult read_attribute(CUmemoryPool handle, int attribute, uint64_t *value)
{
    int mode = hr_relax_capture();
    CUresult result = HR_CUDA(cuMemPoolGetAttribute)(handle, attribute, value);
    hr_restore_capture(mode);
    return result;
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
    if (read_attribute(handle, CU_MEMPOOL_ATTR_LOCATION_TYPE, &type) == CUDA_SUCCESS &&
        read_attribute(handle, CU_MEMPOOL_ATTR_LOCATION_ID, &id) == CUDA_SUCCESS)
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
    int number = number_of_pool(handle, likely);
    return number >= 0 ? number : add_pool(handle, device_of_pool(handle, likely));
}

/* A place keeps its row as long as anything of its pool is left. */
int hr_row_of_pool(int number)
{
    return number < 0 ? HR_NO_ROW : pools[number].row;
}

/* Under `changing`. */
static void leave_place_if_empty(struct pool *pool)
{
    if (pool->is_destroyed && pool->promised == 0 && pool->charged == 0)
        pool->is_used = false;
}

/* ---- Charging ------------------------------------------------------------------------ */

/* The driver's pools grow by pieces of this size.  Guess, see tests/gpu: a smaller one would let a
 * pool pass the limit until it is asked for its size. */
#define PIECE (32ull << 20)

/* The size of a pool that has what was promised.  Under `changing`. */
static uint64_t promised_size(const struct pool *pool)
{
    bool grows_by_pieces = pool->handle != NULL && !pool->is_destroyed;
    if (!grows_by_pieces || pool->promised > UINT64_MAX - PIECE)
        return pool->promised;
    return (pool->promised + PIECE - 1) / PIECE * PIECE;
}

static CUresult promise_more(struct pool *pool, uint64_t bytes)
{
    pthread_mutex_lock(&charging);
    pthread_mutex_lock(&changing);
    pool->promised += bytes;
    uint64_t wanted = promised_size(pool);
    uint64_t more = wanted > pool->charged ? wanted - pool->charged : 0;
    pthread_mutex_unlock(&changing);
    CUresult result = more == 0 ? CUDA_SUCCESS : hr_charge_memory(pool->row, more);
    pthread_mutex_lock(&changing);
    if (result == CUDA_SUCCESS)
        pool->charged += more;
    else
        pool->promised -= bytes;
    pthread_mutex_unlock(&changing);
    pthread_mutex_unlock(&charging);
    return result;
}

CUresult hr_promise(int number, uint64_t bytes, bool *has_grown)
{
    struct pool *pool = &pools[number];
    pthread_mutex_lock(&changing);
    *has_grown = bytes > pool->charged || pool->promised > pool->charged - bytes;
    if (!*has_grown)
        pool->promised += bytes;
    pthread_mutex_unlock(&changing);
    if (!*has_grown)
        return CUDA_SUCCESS;
    CUresult result = promise_more(pool, bytes);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && hr_trim_pools(pool->row))
        result = promise_more(pool, bytes);
    return hr_count_refusal(result);
}

void hr_take_back_promise(int number, uint64_t bytes)
{
    pthread_mutex_lock(&changing);
    pools[number].promised -= bytes;
    bool is_destroyed = pools[number].is_destroyed;
    pthread_mutex_unlock(&changing);
    if (is_destroyed)
        hr_reconcile_pool(number);
}

/*
 * The handle of a pool that was destroyed may be a pointer to nowhere: so the driver is asked about
 * one between these two only, and hr_end_pool() waits for those who ask.
 */
static struct pool start_asking(struct pool *pool)
{
    pthread_mutex_lock(&changing);
    pool->askers++;
    pool->generation++;
    struct pool seen = *pool;
    pthread_mutex_unlock(&changing);
    return seen;
}

/* Under `changing`. */
static void stop_asking(struct pool *pool)
{
    if (--pool->askers == 0)
        pthread_cond_broadcast(&asked);
}

static CUresult read_held(const struct pool *pool, uint64_t *held)
{
    if (pool->handle != NULL)
        return read_attribute(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, held);
    int mode = hr_relax_capture();
    CUresult result = HR_CUDA(cuDeviceGetGraphMemAttribute)(
        pool->device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, held);
    hr_restore_capture(mode);
    return result;
}

static void trim(const struct pool *pool)
{
    int mode = hr_relax_capture();
    if (pool->handle == NULL)
        HR_CUDA(cuDeviceGraphMemTrim)(pool->device);
    else if (!pool->is_destroyed)
        HR_CUDA(cuMemPoolTrimTo)(pool->handle, 0);
    hr_restore_capture(mode);
}

/* Several threads may reconcile one pool at once.  The thread with the highest generation asked the
 * driver last, after the allocations of all earlier ones, so only its answer is used. */
static CUresult reconcile(int number, bool may_refuse)
{
    struct pool *pool = &pools[number];
    struct pool seen = start_asking(pool);
    uint64_t held = 0, more = 0, less = 0;
    /* A pool that was destroyed cannot be asked: it holds what is in use. */
    bool is_known = seen.is_used && seen.row >= 0 &&
                    (seen.is_destroyed || read_held(&seen, &held) == CUDA_SUCCESS);
    pthread_mutex_lock(&charging);
    pthread_mutex_lock(&changing);
    stop_asking(pool);
    if (is_known && seen.generation > pool->reconciled) {
        /* What others have been promised since they may be taking just now. */
        uint64_t promised = promised_size(pool), wanted = held > promised ? held : promised;
        pool->reconciled = seen.generation;
        more = wanted > pool->charged ? wanted - pool->charged : 0;
        less = wanted < pool->charged ? pool->charged - wanted : 0;
        pool->charged -= less;
        leave_place_if_empty(pool);
    }
    pthread_mutex_unlock(&changing);
    CUresult result = CUDA_SUCCESS;
    if (less != 0)
        hr_give_back_memory(seen.row, less);
    if (more != 0 && may_refuse)
        result = hr_charge_memory(seen.row, more);
    else if (more != 0)
        hr_count_memory(seen.row, more);
    if (more != 0 && result == CUDA_SUCCESS) {
        pthread_mutex_lock(&changing);
        pool->charged += more;
        pthread_mutex_unlock(&changing);
    }
    pthread_mutex_unlock(&charging);
    return result;
}

void hr_reconcile_pool(int number)
{
    reconcile(number, false);
}

CUresult hr_admit_pool(int number)
{
    return reconcile(number, true);
}

static void end_asking(int number)
{
    pthread_mutex_lock(&changing);
    stop_asking(&pools[number]);
    pthread_mutex_unlock(&changing);
}

void hr_reconcile_pools(void)
{
    for (int row = 0; row < HR_DEVICES; row++) {
        const struct pool graphs = {.device = hr_device_of_row(row)};
        uint64_t held = 0;
        /* Graph memory is there without a call of ours. */
        if (graphs.device >= 0 && read_held(&graphs, &held) == CUDA_SUCCESS && held != 0)
            hr_enter_pool(NULL, graphs.device);
    }
    for (int number = 0; number < pools_used; number++)
        hr_reconcile_pool(number);
}

/* ---- Trimming and ending -------------------------------------------------------------- */

bool hr_trim_pools(int row)
{
    bool is_any = false;
    for (int number = 0; number < pools_used; number++) {
        struct pool seen = start_asking(&pools[number]);
        bool is_here = seen.is_used && seen.row == row;
        bool is_wanted = is_here && seen.charged > seen.promised;
        if (is_wanted)
            trim(&seen);
        end_asking(number);
        if (is_wanted)
            hr_reconcile_pool(number);
        is_any = is_any || is_here;
    }
    return is_any;
}

static bool is_in_pool(const struct hr_entry *entry, void *argument)
{
    return entry->in_pool && entry->owner == *(const uint32_t *)argument;
}

static void take_back(const struct hr_entry *entry, void *argument)
{
    (void)argument;
    hr_take_back_promise((int)entry->owner, entry->bytes);
}

void hr_empty_pools(CUdevice device)
{
    for (uint32_t number = 0; (int)number < pools_used; number++) {
        struct pool seen = start_asking(&pools[number]);
        bool is_there = seen.is_used && seen.device == device;
        uint64_t used = 1;
        if (is_there && seen.handle != NULL && !seen.is_destroyed && seen.promised != 0)
            read_attribute(seen.handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used);
        end_asking((int)number);
        if (used == 0)
            hr_table_sweep(is_in_pool, take_back, &number);
        if (is_there)
            hr_reconcile_pool((int)number);
    }
}

int hr_end_pool(CUmemoryPool handle)
{
    struct timespec deadline;
    if (handle == NULL || hr_session_state() == HR_SESSION_FORKED)
        return -1;
    pthread_mutex_lock(&changing);
    int number = find_pool(handle, -1);
    if (number >= 0)
        pools[number].is_destroyed = true;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += ASKED_S;
    /* No thread begins to ask any more.  One that was cancelled as it asked never stops. */
    while (number >= 0 && pools[number].askers != 0 &&
           pthread_cond_timedwait(&asked, &changing, &deadline) == 0)
        ;
    pthread_mutex_unlock(&changing);
    return number;
}

void hr_undo_end_of_pool(int number)
{
    pthread_mutex_lock(&changing);
    pools[number].is_destroyed = false;
    pthread_mutex_unlock(&changing);
}
