#define _GNU_SOURCE
#include "pools.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "books.h"
#include "charges.h"
#include "cuda_functions.h"
#include "forks.h"
#include "session.h"
#include "threads.h"

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
    uint64_t promised; /* bytes that allocations have, or are about to have */
    uint64_t charged;  /* bytes in the region, */
    uint64_t pending;  /* and about to be */
    uint64_t turns;    /* how often somebody was about to ask how much it holds, */
    uint64_t settled;  /* and the turn whose answer was the last to be counted */
    uint32_t askers;   /* threads in which the driver works on its handle for us */
};
static struct pool pools[MOST_POOLS];
static _Atomic int pools_used; /* how many places were ever taken */
static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t asked = PTHREAD_COND_INITIALIZER; /* some pool has no askers any more */

/* Held while what is pending may still be refused: nobody else counts on it.  Taken before
 * `changing`. */
static pthread_mutex_t charging = PTHREAD_MUTEX_INITIALIZER;

void hr_fork_pools(enum hr_fork at)
{
    if (at == HR_BEFORE_FORK) {
        pthread_mutex_lock(&changing);
        return;
    }
    if (at == HR_IN_CHILD) {
        /* A charge may be in progress in another thread: what it leaves is not the child's. */
        pthread_mutex_init(&charging, NULL);
        memset(pools, 0, sizeof pools);
        pthread_cond_init(&asked, NULL);
    }
    pthread_mutex_unlock(&changing);
}

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

static int enter_pool(CUmemoryPool handle, CUdevice device, int row)
{
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

static int number_of_pool(CUmemoryPool handle, CUdevice graphs_of)
{
    pthread_mutex_lock(&changing);
    int number = find_pool(handle, graphs_of);
    pthread_mutex_unlock(&changing);
    return number;
}

/* A pool that nobody has made is some device's own: not always the device whose stream uses it. */
static CUdevice device_of_pool(CUmemoryPool handle, CUdevice likely)
{
    int devices;
    CUmemoryPool own;
    if (handle == NULL || HR_CUDA(cuDeviceGetCount)(&devices) != CUDA_SUCCESS)
        return likely;
    for (CUdevice device = 0; device < devices; device++) {
        if (HR_CUDA(cuDeviceGetDefaultMemPool)(&own, device) == CUDA_SUCCESS && own == handle)
            return device;
    }
    return likely;
}

int hr_enter_pool(CUmemoryPool handle, CUdevice device)
{
    int number = number_of_pool(handle, device);
    if (number >= 0)
        return number;
    device = device_of_pool(handle, device);
    return enter_pool(handle, device, hr_row_of_device(device));
}

void hr_enter_host_pool(CUmemoryPool handle)
{
    enter_pool(handle, -1, HR_NO_ROW);
}

/* A place keeps its row as long as anything of its pool is left. */
int hr_row_of_pool(int number)
{
    pthread_mutex_lock(&changing);
    int row = number < 0 ? HR_NO_ROW : pools[number].row;
    pthread_mutex_unlock(&changing);
    return row;
}

/* Under `changing`. */
static void leave_place_if_empty(struct pool *pool)
{
    if (pool->is_destroyed && pool->promised == 0 && pool->charged == 0 && pool->pending == 0)
        pool->is_used = false;
}

/* ---- How pools grow ------------------------------------------------------------------ */

/* A driver's pools grow by pieces.  How large those are is learnt from what pools have held: all of
 * that is a multiple of it.  What few figures show may be a multiple itself. */
#define LARGEST_PIECE (32ull << 20)
enum { FEW_FIGURES = 4 };

/* All under `changing`. */
struct piece {
    uint64_t bytes; /* divides all that was seen; 0: nothing was */
    uint64_t last;
    uint32_t figures; /* how many different ones */
};
static struct piece piece_of_pools, piece_of_graphs;

static struct piece *piece_of(const struct pool *pool)
{
    return pool->handle == NULL ? &piece_of_graphs : &piece_of_pools;
}

static void learn_piece(struct piece *piece, uint64_t held)
{
    uint64_t divisor = piece->bytes;
    if (held == 0 || held == piece->last)
        return;
    for (uint64_t rest = held; rest != 0;) {
        uint64_t next = divisor % rest;
        divisor = rest;
        rest = next;
    }
    piece->bytes = divisor;
    piece->last = held;
    piece->figures++;
}

/* What a pool holds that has what was promised. */
static uint64_t promised_pieces(const struct pool *pool)
{
    uint64_t bytes = piece_of(pool)->bytes, promised = pool->promised;
    uint64_t each = bytes < LARGEST_PIECE ? bytes : LARGEST_PIECE;
    return each == 0 || pool->is_destroyed ? promised : (promised + each - 1) / each * each;
}

/* ---- Charging ------------------------------------------------------------------------ */

/* What was entered as pending is charged; another thread counts on it meanwhile. */
static CUresult charge_pending(struct pool *pool, int row, uint64_t bytes, bool may_refuse)
{
    CUresult result = CUDA_SUCCESS;
    if (bytes == 0)
        return CUDA_SUCCESS;
    if (may_refuse)
        result = hr_take_bytes(row, HR_DATA, bytes);
    else
        hr_count_bytes(row, HR_DATA, bytes);
    pthread_mutex_lock(&changing);
    pool->pending -= bytes;
    if (result == CUDA_SUCCESS)
        pool->charged += bytes;
    pthread_mutex_unlock(&changing);
    return result;
}

/* Before the driver is asked: once the pool has grown it is too late. */
static CUresult promise(int number, uint64_t bytes, bool in_pieces)
{
    struct pool *pool = &pools[number];
    pthread_mutex_lock(&charging);
    pthread_mutex_lock(&changing);
    pool->promised += bytes;
    uint64_t covered = pool->charged + pool->pending, more = 0;
    if (pool->promised > covered)
        more = (in_pieces ? promised_pieces(pool) : pool->promised) - covered;
    int row = pool->row;
    pool->pending += more;
    pthread_mutex_unlock(&changing);
    CUresult result = charge_pending(pool, row, more, true);
    if (result != CUDA_SUCCESS)
        hr_take_back_promise(number, bytes);
    pthread_mutex_unlock(&charging);
    return result;
}

static bool is_piece_known(int number)
{
    pthread_mutex_lock(&changing);
    bool is_known = piece_of(&pools[number])->figures >= FEW_FIGURES;
    pthread_mutex_unlock(&changing);
    return is_known;
}

CUresult hr_promise(int number, uint64_t bytes)
{
    CUresult result = promise(number, bytes, true);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && hr_trim_pools(hr_row_of_pool(number)))
        result = promise(number, bytes, true);
    /* By what the driver then does it is known; where that is too much, it is undone. */
    if (result == CUDA_ERROR_OUT_OF_MEMORY && !is_piece_known(number))
        result = promise(number, bytes, false);
    return result;
}

void hr_take_back_promise(int number, uint64_t bytes)
{
    pthread_mutex_lock(&changing);
    pools[number].promised -= bytes;
    pthread_mutex_unlock(&changing);
}

/*
 * The handle of a pool that was destroyed may be a pointer to nowhere: so the driver is asked about
 * one between these two only, and hr_end_pool() waits for those who ask.
 */
static struct pool start_asking(struct pool *pool)
{
    pthread_mutex_lock(&changing);
    pool->askers++;
    pool->turns++;
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

static CUresult read_graph_memory(CUdevice device, uint64_t *held)
{
    int mode = hr_relax_capture();
    CUresult result =
        HR_CUDA(cuDeviceGetGraphMemAttribute)(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, held);
    hr_restore_capture(mode);
    return result;
}

static CUresult read_attribute(CUmemoryPool handle, int attribute, uint64_t *value)
{
    int mode = hr_relax_capture();
    CUresult result = HR_CUDA(cuMemPoolGetAttribute)(handle, attribute, value);
    hr_restore_capture(mode);
    return result;
}

static CUresult read_held(const struct pool *pool, uint64_t *held)
{
    return pool->handle == NULL
               ? read_graph_memory(pool->device, held)
               : read_attribute(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, held);
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

/* Several threads may settle one pool at once.  Turns are numbered: the thread with the highest
 * number asked the driver last, after the allocations of all earlier turns, so only its answer
 * is used. */
static CUresult settle(int number, bool may_refuse)
{
    struct pool *pool = &pools[number];
    struct pool seen = start_asking(pool);
    uint64_t held = 0, more = 0, less = 0;
    /* A pool that was destroyed cannot be asked: it holds what is in use. */
    bool is_known = seen.is_used && seen.row >= 0 &&
                    (seen.is_destroyed || read_held(&seen, &held) == CUDA_SUCCESS);
    if (may_refuse)
        pthread_mutex_lock(&charging);
    pthread_mutex_lock(&changing);
    stop_asking(pool);
    if (is_known && !seen.is_destroyed)
        learn_piece(piece_of(pool), held);
    if (is_known && seen.turns > pool->settled) {
        /* What others have been promised since they may be taking just now. */
        uint64_t pieces = promised_pieces(pool), wanted = held > pieces ? held : pieces;
        uint64_t covered = pool->charged + pool->pending;
        pool->settled = seen.turns;
        more = wanted > covered ? wanted - covered : 0;
        less = wanted < pool->charged ? pool->charged - wanted : 0;
        pool->pending += more;
        pool->charged -= less;
        leave_place_if_empty(pool);
    }
    pthread_mutex_unlock(&changing);
    hr_give_back_bytes(seen.row, HR_DATA, less);
    CUresult result = charge_pending(pool, seen.row, more, may_refuse);
    if (may_refuse)
        pthread_mutex_unlock(&charging);
    return result;
}

void hr_settle_pool(int number)
{
    settle(number, false);
}

CUresult hr_admit_pool(int number)
{
    return settle(number, true);
}

static void end_asking(int number)
{
    pthread_mutex_lock(&changing);
    stop_asking(&pools[number]);
    pthread_mutex_unlock(&changing);
}

static struct pool look_at(int number)
{
    pthread_mutex_lock(&changing);
    struct pool seen = pools[number];
    pthread_mutex_unlock(&changing);
    return seen;
}

bool hr_settle_pools(void)
{
    bool has_more = false;
    for (int row = 0; row < HR_DEVICES; row++) {
        CUdevice device = hr_device_of_row(row);
        uint64_t held = 0;
        /* Graph memory is there without anybody having asked for it here. */
        if (device >= 0 && read_graph_memory(device, &held) == CUDA_SUCCESS && held != 0)
            hr_enter_pool(NULL, device);
    }
    for (int number = 0; number < pools_used; number++) {
        hr_settle_pool(number);
        struct pool seen = look_at(number);
        has_more = has_more || (seen.is_used && seen.charged > seen.promised);
    }
    return has_more;
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
            hr_settle_pool(number);
        is_any = is_any || is_here;
    }
    return is_any;
}

static bool is_in_pool(const struct hr_entry *entry, void *argument)
{
    return entry->in_pool && entry->owner == *(const uint32_t *)argument;
}

static void strike_out(const struct hr_entry *entry, void *argument)
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
            hr_sweep_books(is_in_pool, strike_out, &number);
        if (is_there)
            hr_settle_pool((int)number);
    }
}

int hr_end_pool(CUmemoryPool handle)
{
    struct timespec deadline;
    pthread_mutex_lock(&changing);
    int number = handle == NULL ? -1 : find_pool(handle, -1);
    if (number >= 0)
        pools[number].is_destroyed = true;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += ASKED_S;
    /* Nobody begins to ask any more.  A thread that was cancelled as it asked never stops. */
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
