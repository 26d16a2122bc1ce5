/*
 * The contexts that the library knows, by a driver that has one current: `context_table_model`.  It
 * ends the program if something is wrong.
 */
#include <string.h>

#include "../../csrc/preload/context_table.h"
#include "../../csrc/preload/cuda_functions.h"
#include "../../csrc/preload/forks.h"
#include "../../csrc/preload/session.h"

#define MUST_SHOW "device %d, row %d, owner %u", known.device, known.row, known.owner
#include "must.h"

/* ---- The driver and the region ---------------------------------------------------------- */

struct CUctx_st {
    CUdevice device;
};
static struct CUctx_st contexts[257];
static CUcontext current;
static bool is_device_unknown;
static int streams_asked;
static struct hr_context known;

static CUresult get_current(CUcontext *out)
{
    *out = current;
    return CUDA_SUCCESS;
}

static CUresult get_device(CUdevice *out)
{
    *out = is_device_unknown ? 99 : current->device;
    return is_device_unknown ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

static CUresult get_stream_context(CUstream stream, CUcontext *out)
{
    streams_asked++;
    *out = (uintptr_t)stream == 3 ? NULL : (CUcontext)stream;
    return (uintptr_t)stream == 4 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

struct hr_cuda_functions hr_cuda = {
    .cuCtxGetCurrent = get_current,
    .cuCtxGetDevice = get_device,
    .cuStreamGetCtx = get_stream_context,
};

int hr_row_of_device(CUdevice device)
{
    return device == 0 || device == 1 ? 1 - device : HR_NO_ROW;
}

/* Nothing is known of what was before. */
static void start(void)
{
    hr_fork_context_table(HR_BEFORE_FORK);
    hr_fork_context_table(HR_IN_CHILD);
    current = NULL;
}

/* ---- Checks ----------------------------------------------------------------------------- */

static void check_table(void)
{
    struct hr_context again;
    start();
    MUST(!hr_find_context(&contexts[0], &known) && !hr_current_context(&known));
    /* One that was made in a way that is not known is known from its first use on. */
    contexts[0] = (struct CUctx_st){.device = 1};
    current = &contexts[0];
    is_device_unknown = true;
    MUST(!hr_current_context(&known) && !hr_find_context(&contexts[0], &known));
    is_device_unknown = false;
    MUST(hr_current_context(&known) && known.device == 1 && known.row == 0 && known.owner != 0);
    MUST(hr_current_context(&again) && again.owner == known.owner);
    /* A stream's context, if it has one that is known; the default streams have none. */
    hr_add_context(&contexts[1], 0, 77);
    contexts[1].device = 0;
    const CUstream of_other = (CUstream)&contexts[1];
    MUST(hr_stream_context(of_other, &again) && again.owner == 77 && again.device == 0);
    for (uintptr_t number = 0; number <= 4; number++) {
        streams_asked = 0;
        MUST(hr_stream_context((CUstream)number, &again) && again.owner == known.owner);
        MUST(streams_asked == (number > 2));
    }
    MUST(hr_stream_context((CUstream)&contexts[2], &again) && again.owner == known.owner);
    /* Made again under the same address, it is another one. */
    hr_add_context(&contexts[1], 1, 78);
    MUST(hr_find_context(&contexts[1], &again) && again.owner == 78 && again.device == 1);
    hr_remove_context(&contexts[1]);
    MUST(!hr_find_context(&contexts[1], &again) && hr_find_context(&contexts[0], &again));
    /* A primary one has the number of its life. */
    hr_add_context(&contexts[4], 2, 0);
    MUST(hr_find_context(&contexts[4], &again) && (again.owner & HR_PRIMARY_OWNER) != 0);
    const uint32_t life = again.owner;
    MUST(hr_end_life(2) == life);
    MUST(hr_find_context(&contexts[4], &again) && hr_is_ended(life, life) &&
         !hr_is_ended(again.owner, life));
    /* A device of which there is no such number has no lives, and no row. */
    for (int device = -1; device <= 64; device += 65) {
        hr_add_context(&contexts[3], device, 0);
        MUST(hr_find_context(&contexts[3], &again) && again.owner == 0 && again.row == HR_NO_ROW);
    }
    /* Places are used again, and one more than there are is not known. */
    start();
    for (int at = 0; at < 256; at++)
        hr_add_context(&contexts[at], 0, (uint32_t)at + 1);
    for (int at = 0; at < 256; at++)
        MUST(hr_find_context(&contexts[at], &known) && known.owner == (uint32_t)at + 1);
    hr_add_context(&contexts[256], 0, 999);
    MUST(!hr_find_context(&contexts[256], &known));
    hr_remove_context(&contexts[100]);
    hr_add_context(&contexts[256], 0, 999);
    MUST(hr_find_context(&contexts[256], &known) && known.owner == 999);
    for (int at = 0; at < 256; at++)
        MUST(hr_find_context(&contexts[at], &known) == (at != 100));
}

static void check_owners(void)
{
    uint32_t first = hr_new_owner(), second = hr_new_owner();
    MUST(first != second && first != 0 && ((first | second) & HR_PRIMARY_OWNER) == 0);
    MUST(hr_is_ended(first, first) && !hr_is_ended(first, second) && !hr_is_ended(second, first));
    uint32_t life = hr_end_life(5), next = hr_end_life(5), elsewhere = hr_end_life(6);
    MUST((life & HR_PRIMARY_OWNER) != 0 && next == life + 1);
    MUST(hr_is_ended(life, life) && hr_is_ended(life, next) && !hr_is_ended(next, life));
    MUST(!hr_is_ended(elsewhere, next) && !hr_is_ended(next, elsewhere));
    MUST(!hr_is_ended(first, next) && !hr_is_ended(next, first));
    MUST(hr_end_life(-1) == 0 && hr_end_life(64) == 0 && hr_end_life(63) != 0);
    /* Numbers of lives come round. */
    const uint32_t of_device = HR_PRIMARY_OWNER | 5u << 24;
    MUST(hr_is_ended(of_device | 0xffffff, of_device) &&
         !hr_is_ended(of_device, of_device | 0xffffff));
    MUST(hr_is_ended(of_device, of_device | 0x7fffff) &&
         !hr_is_ended(of_device, of_device | 0x800000));
}

int main(void)
{
    check_table();
    check_owners();
}
