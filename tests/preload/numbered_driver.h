/*
 * A driver and a region that are a few numbers, for models of what is charged: `there` is what the
 * driver has given out on each device, `charged` what the region counts on each row.  A program of
 * one file includes it; it links none of session.c, charges.c, context_memory.c and watcher.c.
 */
#ifndef NUMBERED_DRIVER_H
#define NUMBERED_DRIVER_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../csrc/preload/charges.h"
#include "../../csrc/preload/complaints.h"
#include "../../csrc/preload/context_memory.h"
#include "../../csrc/preload/context_table.h"
#include "../../csrc/preload/cuda_functions.h"
#include "../../csrc/preload/forks.h"
#include "../../csrc/preload/own_pid.h"
#include "../../csrc/preload/session.h"
#include "../../csrc/preload/threads.h"
#include "../../csrc/preload/watcher.h"

#define MUST_SHOW                                                                                  \
    "%s; charged are %llu and %llu, there %llu and %llu", subject, (unsigned long long)charged[0], \
        (unsigned long long)charged[1], (unsigned long long)there[1], (unsigned long long)there[0]
#include "must.h"

/* The rows are not in the order of the devices, and the last device has none. */
enum { DEVICES = 3, ROWS = 2, NO_ROW_DEVICE = 2 };

static uint64_t charged[ROWS], limits[ROWS], there[DEVICES];
static const char *subject = ""; /* what is tried */

/* ---- The region ----------------------------------------------------------------------- */

_Atomic unsigned hr_holds;
static bool is_refused; /* there is no region, and the policy refuses */
static int changes[ROWS], attached, complaints, waits, calls;

enum hr_session_state hr_attach_session(void)
{
    attached++;
    return is_refused ? HR_SESSION_REFUSED : HR_SESSION_ATTACHED;
}

int hr_row_of_device(CUdevice device)
{
    return device == 0 || device == 1 ? 1 - device : HR_NO_ROW;
}

CUdevice hr_device_of_row(int row)
{
    return row == 0 || row == 1 ? 1 - row : -1;
}

CUresult hr_take_bytes(int row, enum hr_kind kind, uint64_t bytes)
{
    if (row == HR_NO_ROW)
        return CUDA_SUCCESS;
    MUST(row >= 0 && row < ROWS && kind == HR_DATA);
    if (bytes > limits[row] || charged[row] > limits[row] - bytes)
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
    if (row == HR_NO_ROW || bytes == 0)
        return;
    MUST(row >= 0 && row < ROWS && kind == HR_DATA && bytes <= charged[row]);
    charged[row] -= bytes;
}

void hr_begin_change(int row)
{
    if (row >= 0)
        changes[row]++;
}

void hr_end_change(int row)
{
    if (row >= 0)
        changes[row]--;
    MUST(row < 0 || changes[row] >= 0);
}

void hr_wait_while_suspended(void)
{
    waits++;
    hr_holds = 0;
}

void hr_complain(const char *format, ...)
{
    (void)format;
    complaints++;
}

/* ---- Threads and captures ------------------------------------------------------------- */

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

/* ---- The driver's memory -------------------------------------------------------------- */

/* A context is its own address; of a primary one, the device's. */
struct CUctx_st {
    CUdevice device;
    bool is_alive;
    int users; /* of a primary one */
};
static struct CUctx_st primaries[DEVICES], others[300];
static CUcontext current;

struct CUmemPoolHandle_st {
    CUdevice device;
    uint64_t held;
};
static struct CUmemPoolHandle_st defaults[DEVICES], own_pool;

struct block {
    uint64_t key; /* 0: free */
    uint64_t bytes;
    CUdevice device;
    CUcontext context; /* it ends with this one; NULL: it does not */
    CUmemoryPool pool;
};
enum { MOST_BLOCKS = 4096 };
static struct block blocks[MOST_BLOCKS];
static uint64_t last_key = 4096, next_key; /* 0: another one than all before */
static CUresult next_result;               /* what the next call gives that makes or ends one */
static bool is_uncounted;                  /* what is made now is not to be counted */
static bool is_padded;                     /* it takes more than can be known before */

static CUresult take_result(void)
{
    CUresult result = next_result;
    calls++;
    next_result = CUDA_SUCCESS;
    return result;
}

/* Give out memory: it has been charged, and the call is known to be one that changes the row. */
static CUresult give_out(uint64_t *key, uint64_t bytes, CUdevice device, CUcontext context)
{
    int row = hr_row_of_device(device);
    CUresult result = take_result();
    if (row >= 0 && !is_uncounted)
        MUST(changes[row] == 1 && (is_padded || charged[row] >= there[device] + bytes));
    if (result != CUDA_SUCCESS)
        return result;
    for (int at = 0; at < MOST_BLOCKS; at++) {
        if (blocks[at].key != 0)
            continue;
        *key = next_key != 0 ? next_key : (last_key += 4096);
        blocks[at] = (struct block){*key, bytes, device, context, NULL};
        there[device] += bytes;
        next_key = 0;
        return CUDA_SUCCESS;
    }
    MUST(false);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static struct block *find_block(uint64_t key)
{
    for (int at = 0; at < MOST_BLOCKS; at++) {
        if (blocks[at].key == key)
            return &blocks[at];
    }
    return NULL;
}

static void drop(struct block *block)
{
    there[block->device] -= block->bytes;
    if (block->pool != NULL)
        block->pool->held -= block->bytes;
    block->key = 0;
}

/* What the driver says is gone already, is. */
static CUresult take_back(uint64_t key)
{
    struct block *block = find_block(key);
    CUresult result = take_result();
    if (block == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_ERROR_NOT_INITIALIZED)
        drop(block);
    return result;
}

static CUresult get_current(CUcontext *out)
{
    *out = current;
    return CUDA_SUCCESS;
}

static CUresult get_device(CUdevice *out)
{
    *out = current != NULL ? current->device : 99;
    return current != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

/* What every check begins with: nothing is known of what was before. */
static void begin(void)
{
    void (*const files[])(enum hr_fork) = {hr_fork_books, hr_fork_pools, hr_fork_physical,
                                           hr_fork_context_table};
    MUST(relaxed == 0 && changes[0] == 0 && changes[1] == 0);
    for (size_t file = 0; file < sizeof files / sizeof *files; file++) {
        files[file](HR_BEFORE_FORK);
        files[file](HR_IN_CHILD);
    }
    memset(blocks, 0, sizeof blocks);
    memset(charged, 0, sizeof charged);
    memset(there, 0, sizeof there);
    memset(primaries, 0, sizeof primaries);
    memset(others, 0, sizeof others);
    for (int device = 0; device < DEVICES; device++) {
        defaults[device] = (struct CUmemPoolHandle_st){.device = device};
        primaries[device].device = device;
    }
    own_pool = (struct CUmemPoolHandle_st){.device = 0};
    limits[0] = limits[1] = UINT64_C(1) << 40;
    hr_holds = 0;
    is_refused = false;
    current = NULL;
    next_result = CUDA_SUCCESS;
    next_key = 0;
    is_uncounted = is_padded = false;
    waits = complaints = calls = attached = 0;
}

/* The region counts what the driver has given out, and no call is going on. */
#define MUST_AGREE()                                                                               \
    MUST(charged[1] == there[0] && charged[0] == there[1] && changes[0] == 0 && changes[1] == 0 && \
         relaxed == 0)

#endif
