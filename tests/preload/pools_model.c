/*
 * What pools are charged for, by a driver and a region that are a few numbers here: `pools_model`.
 * It ends the program if one is wrong.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../csrc/preload/books.h"
#include "../../csrc/preload/charges.h"
#include "../../csrc/preload/cuda_functions.h"
#include "../../csrc/preload/forks.h"
#include "../../csrc/preload/pools.h"
#include "../../csrc/preload/session.h"
#include "../../csrc/preload/threads.h"

#define MUST_SHOW                                                                                  \
    "charged are %llu and %llu", (unsigned long long)charged[0], (unsigned long long)charged[1]
#include "must.h"

enum { ROWS = 2 };
static uint64_t charged[ROWS], limits[ROWS];

/* ---- Locks ---------------------------------------------------------------------------- */

static int locks; /* that are held; a program of one thread waits for none */

int pthread_mutex_lock(pthread_mutex_t *mutex)
{
    (void)mutex;
    locks++;
    return 0;
}

int pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    (void)mutex;
    MUST(locks-- > 0);
    return 0;
}

/* ---- The region ----------------------------------------------------------------------- */

CUresult hr_take_bytes(int row, enum hr_kind kind, uint64_t bytes)
{
    MUST(row >= 0 && row < ROWS && kind == HR_DATA && bytes != 0);
    if (charged[row] + bytes > limits[row])
        return CUDA_ERROR_OUT_OF_MEMORY;
    charged[row] += bytes;
    return CUDA_SUCCESS;
}

void hr_count_bytes(int row, enum hr_kind kind, uint64_t bytes)
{
    MUST(row >= 0 && row < ROWS && kind == HR_DATA);
    charged[row] += bytes;
}

void hr_give_back_bytes(int row, enum hr_kind kind, uint64_t bytes)
{
    MUST(bytes == 0 || (row >= 0 && row < ROWS && kind == HR_DATA && bytes <= charged[row]));
    if (bytes != 0)
        charged[row] -= bytes;
}

int hr_row_of_device(CUdevice device)
{
    return device >= 0 && device < ROWS ? device : HR_NO_ROW;
}

CUdevice hr_device_of_row(int row)
{
    return row < ROWS ? row : -1;
}

/* ---- The driver ----------------------------------------------------------------------- */

struct CUmemPoolHandle_st {
    uint64_t held, used;
    unsigned asked, trimmed;
    bool is_silent;
};
static struct CUmemPoolHandle_st defaults[ROWS], others[300];
static uint64_t held_by_graphs[ROWS];
static int relaxed;

int hr_relax_capture(void)
{
    relaxed++;
    return 7;
}

void hr_restore_capture(int mode)
{
    MUST(mode == 7);
    relaxed--;
}

static CUresult count_devices(int *out)
{
    *out = ROWS;
    return CUDA_SUCCESS;
}

static CUresult get_default(CUmemoryPool *out, CUdevice device)
{
    *out = &defaults[device];
    return CUDA_SUCCESS;
}

static CUresult get_attribute(CUmemoryPool pool, int attribute, void *value)
{
    MUST(relaxed == 1);
    pool->asked++;
    *(uint64_t *)value = attribute == CU_MEMPOOL_ATTR_USED_MEM_CURRENT ? pool->used : pool->held;
    return pool->is_silent ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult get_graph_attribute(CUdevice device, int attribute, void *value)
{
    MUST(relaxed == 1 && attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
    *(uint64_t *)value = held_by_graphs[device];
    return CUDA_SUCCESS;
}

static CUresult trim(CUmemoryPool pool, size_t keep)
{
    MUST(relaxed == 1 && keep == 0);
    pool->trimmed++;
    pool->held = pool->used;
    return CUDA_SUCCESS;
}

static CUresult trim_graphs(CUdevice device)
{
    MUST(relaxed == 1);
    held_by_graphs[device] = 0;
    return CUDA_SUCCESS;
}

struct hr_cuda_functions hr_cuda = {
    .cuDeviceGetCount = count_devices,
    .cuDeviceGetDefaultMemPool = get_default,
    .cuMemPoolGetAttribute = get_attribute,
    .cuDeviceGetGraphMemAttribute = get_graph_attribute,
    .cuMemPoolTrimTo = trim,
    .cuDeviceGraphMemTrim = trim_graphs,
};

/* Pools of nothing, and what pools grow by is not known. */
static void begin(void)
{
    MUST(relaxed == 0 && locks == 0);
    hr_fork_pools(HR_BEFORE_FORK);
    hr_fork_pools(HR_IN_CHILD);
    memset(defaults, 0, sizeof defaults);
    memset(others, 0, sizeof others);
    memset(held_by_graphs, 0, sizeof held_by_graphs);
    memset(charged, 0, sizeof charged);
    limits[0] = limits[1] = 1000000;
}

/* A new figure of what pools hold, by which they are known to grow. */
static void show_held(int number, CUmemoryPool pool, uint64_t held)
{
    pool->held = held;
    hr_settle_pool(number);
}

/* ---- Checks --------------------------------------------------------------------------- */

/* This first, as what was learnt of the driver stays: it allocates by the byte, as far as was seen.
 * Of what is asked for, no more is refused than that. */
static void check_pieces(void)
{
    begin();
    limits[0] = 250;
    int number = hr_enter_pool(&others[0], 0);
    MUST(hr_promise(number, 60) == CUDA_SUCCESS && charged[0] == 60);
    show_held(number, &others[0], 100);
    MUST(charged[0] == 100);
    MUST(hr_promise(number, 40) == CUDA_SUCCESS && charged[0] == 100);
    /* By pieces of 100, as far as was seen. */
    MUST(hr_promise(number, 1) == CUDA_SUCCESS && charged[0] == 200);
    /* A third one does not fit; but few figures may show a multiple of what it is. */
    MUST(hr_promise(number, 120) == CUDA_SUCCESS && charged[0] == 221);
    hr_take_back_promise(number, 120);
    hr_settle_pool(number);
    MUST(charged[0] == 200);
    show_held(number, &others[0], 300);
    show_held(number, &others[0], 250);
    MUST(charged[0] == 250);
    hr_take_back_promise(number, 101);
    show_held(number, &others[0], 0);
    MUST(charged[0] == 0);
    /* By pieces of 50: now that is known. */
    show_held(number, &others[0], 200);
    MUST(charged[0] == 200);
    others[0].used = 200;
    MUST(hr_promise(number, 201) == CUDA_SUCCESS && charged[0] == 250);
    MUST(hr_promise(number, 49) == CUDA_SUCCESS && charged[0] == 250);
    MUST(hr_promise(number, 1) == CUDA_ERROR_OUT_OF_MEMORY && charged[0] == 250);
    limits[0] = 299;
    MUST(hr_promise(number, 1) == CUDA_ERROR_OUT_OF_MEMORY && charged[0] == 250);
    limits[0] = 300;
    MUST(hr_promise(number, 1) == CUDA_SUCCESS && charged[0] == 300);
}

static void check_growth(void)
{
    begin();
    /* By single bytes, from here on. */
    int number = hr_enter_pool(&others[0], 0);
    show_held(number, &others[0], 251);
    show_held(number, &others[0], 0);
    MUST(charged[0] == 0);
    MUST(hr_promise(number, 100) == CUDA_SUCCESS && charged[0] == 100);
    hr_settle_pool(number);
    MUST(charged[0] == 100);
    show_held(number, &others[0], 130);
    MUST(charged[0] == 130);
    MUST(hr_promise(number, 30) == CUDA_SUCCESS && charged[0] == 130);
    MUST(hr_promise(number, 5) == CUDA_SUCCESS && charged[0] == 135);
    hr_take_back_promise(number, 135);
    MUST(charged[0] == 135);
    hr_settle_pool(number);
    MUST(charged[0] == 130);
    /* A pool that does not say what it holds is left as it was. */
    others[0].is_silent = true;
    show_held(number, &others[0], 5);
    MUST(charged[0] == 130);
    others[0].is_silent = false;
    show_held(number, &others[0], 0);
    MUST(charged[0] == 0);
    /* What is there counts whatever the limit; what may be refused does not. */
    limits[0] = 10;
    others[0].held = 50;
    MUST(hr_admit_pool(number) == CUDA_ERROR_OUT_OF_MEMORY && charged[0] == 0);
    hr_settle_pool(number);
    MUST(charged[0] == 50 && hr_admit_pool(number) == CUDA_SUCCESS);
    limits[0] = 60;
    others[0].held = 60;
    MUST(hr_admit_pool(number) == CUDA_SUCCESS && charged[0] == 60);
}

/* Before one is refused, what the pools of the row only keep is given back. */
static void check_trimming(void)
{
    begin();
    int first = hr_enter_pool(&others[0], 0), second = hr_enter_pool(&others[1], 0);
    int elsewhere = hr_enter_pool(&others[2], 1);
    others[0].used = 40;
    MUST(hr_promise(first, 40) == CUDA_SUCCESS);
    show_held(first, &others[0], 90);
    show_held(elsewhere, &others[2], 500);
    MUST(charged[0] == 90 && charged[1] == 500);
    limits[0] = 100;
    MUST(hr_promise(second, 60) == CUDA_SUCCESS && charged[0] == 100);
    MUST(others[0].trimmed == 1 && others[1].trimmed == 0 && others[2].trimmed == 0);
    MUST(hr_promise(second, 1) == CUDA_ERROR_OUT_OF_MEMORY && charged[0] == 100);
    /* Nothing was to be had: the driver was not troubled. */
    MUST(others[0].trimmed == 1 && others[1].trimmed == 0);
    MUST(hr_trim_pools(0) && hr_trim_pools(1) && others[2].trimmed == 1 && charged[1] == 0);
    begin();
    MUST(!hr_trim_pools(0));
    hr_enter_pool(&others[0], 1);
    MUST(!hr_trim_pools(0) && hr_trim_pools(1));
}

static void check_places(void)
{
    begin();
    int number = hr_enter_pool(&others[0], 0);
    MUST(number >= 0 && hr_enter_pool(&others[0], 0) == number);
    MUST(hr_row_of_pool(number) == 0 && hr_row_of_pool(-1) == HR_NO_ROW);
    /* A device's own pool is that device's, whichever stream uses it. */
    MUST(hr_row_of_pool(hr_enter_pool(&defaults[1], 0)) == 1);
    MUST(hr_row_of_pool(hr_enter_pool(&defaults[0], 1)) == 0);
    MUST(hr_row_of_pool(hr_enter_pool(&others[1], 1)) == 1);
    hr_enter_host_pool(&others[2]);
    MUST(hr_row_of_pool(hr_enter_pool(&others[2], 0)) == HR_NO_ROW);
    /* Each device has its graphs' memory. */
    int graphs = hr_enter_pool(NULL, 0);
    MUST(hr_enter_pool(NULL, 1) != graphs && hr_enter_pool(NULL, 0) == graphs);
    MUST(hr_end_pool(NULL) == -1 && hr_end_pool(&others[9]) == -1);
    begin();
    for (int at = 0; at < 256; at++)
        MUST(hr_enter_pool(&others[at], 0) >= 0);
    MUST(hr_enter_pool(&others[256], 0) == -1);
    number = hr_end_pool(&others[77]);
    MUST(hr_enter_pool(&others[256], 0) == -1);
    hr_settle_pool(number);
    MUST(hr_enter_pool(&others[256], 0) == number);
}

static void check_ends(void)
{
    begin();
    int number = hr_enter_pool(&others[0], 0);
    MUST(hr_promise(number, 40) == CUDA_SUCCESS);
    show_held(number, &others[0], 100);
    MUST(charged[0] == 100 && hr_end_pool(&others[0]) == number);
    /* It is not asked any more: it holds what is in use. */
    unsigned asked = others[0].asked;
    hr_settle_pool(number);
    MUST(charged[0] == 40 && others[0].asked == asked);
    hr_empty_pools(0);
    MUST(hr_trim_pools(0) && others[0].asked == asked && others[0].trimmed == 0);
    /* Another one may have its handle. */
    int other = hr_enter_pool(&others[0], 1);
    MUST(other != number && hr_row_of_pool(other) == 1);
    hr_take_back_promise(number, 40);
    hr_settle_pool(number);
    MUST(charged[0] == 0 && hr_enter_pool(&others[1], 1) == number);
    /* The driver did not destroy it. */
    begin();
    number = hr_enter_pool(&others[0], 0);
    show_held(number, &others[0], 70);
    MUST(hr_end_pool(&others[0]) == number);
    hr_undo_end_of_pool(number);
    MUST(hr_enter_pool(&others[0], 0) == number && charged[0] == 70);
    show_held(number, &others[0], 80);
    MUST(charged[0] == 80);
}

static void enter_allocation(uint64_t key, int pool, uint64_t bytes)
{
    struct hr_entry displaced,
        entry = {
            .key = key, .bytes = bytes, .owner = (uint32_t)pool, .space = HR_POINTER, .in_pool = 1};
    MUST(hr_promise(pool, bytes) == CUDA_SUCCESS && hr_enter_book(&entry, &displaced));
}

/* A context has ended, and with it what its device's pools had given out, if they say so. */
static void check_emptying(void)
{
    struct hr_entry entry;
    begin();
    int first = hr_enter_pool(&others[0], 0), second = hr_enter_pool(&others[1], 0);
    int elsewhere = hr_enter_pool(&others[2], 1);
    enter_allocation(1, first, 30);
    enter_allocation(2, first, 30);
    enter_allocation(3, second, 40);
    enter_allocation(4, elsewhere, 50);
    others[1].used = others[1].held = 40;
    hr_empty_pools(0);
    MUST(charged[0] == 40 && charged[1] == 50);
    MUST(!hr_find_in_books(HR_POINTER, 1, &entry) && !hr_find_in_books(HR_POINTER, 2, &entry));
    MUST(hr_find_in_books(HR_POINTER, 3, &entry) && hr_find_in_books(HR_POINTER, 4, &entry));
    others[1].used = others[1].held = 0;
    hr_empty_pools(0);
    MUST(charged[0] == 0 && charged[1] == 50);
    hr_empty_pools(1);
    MUST(charged[1] == 0);
}

/* Nobody has asked for the memory of graphs: it is there. */
static void check_graphs(void)
{
    begin();
    MUST(!hr_settle_pools() && charged[0] == 0);
    /* Where graphs hold nothing, there is nothing to trim. */
    MUST(!hr_trim_pools(0) && !hr_trim_pools(1));
    held_by_graphs[0] = 32;
    MUST(hr_settle_pools() && charged[0] == 32);
    held_by_graphs[0] = 0;
    held_by_graphs[1] = 64;
    MUST(hr_settle_pools() && charged[0] == 0 && charged[1] == 64);
    int number = hr_enter_pool(NULL, 1);
    MUST(hr_promise(number, 64) == CUDA_SUCCESS && charged[1] == 64);
    /* By pieces of their own. */
    MUST(hr_promise(number, 1) == CUDA_SUCCESS && charged[1] == 96);
    hr_take_back_promise(number, 1);
    hr_settle_pool(number);
    MUST(charged[1] == 64);
    /* All of it is in use: nothing is to be given back soon. */
    MUST(!hr_settle_pools());
    hr_take_back_promise(number, 64);
    MUST(hr_settle_pools());
    MUST(hr_trim_pools(1) && charged[1] == 0 && held_by_graphs[1] == 0);
    MUST(!hr_settle_pools());
}

int main(void)
{
    check_pieces();
    check_growth();
    check_trimming();
    check_places();
    check_ends();
    check_emptying();
    check_graphs();
    begin();
    return 0;
}
