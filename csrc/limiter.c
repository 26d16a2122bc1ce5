
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "internal.h"

/*
 * `total` doubles whenever a full bucket is not enough; it stops here, so that
 * tokens + share stays within int64.
 */
#define MAX_TOTAL (INT64_C(1) << 61)

#define UNLIMITED 100u

struct hr_limiter {
    uint32_t sm_count;
    uint32_t max_threads_per_sm;
    uint32_t device;
    hr_region *region; /* NULL: `limit` and `on` never change */

    _Atomic int64_t tokens; /* blocks: launches subtract, the tick adds */
    /* Blocks.  Only the tick that holds `ticking` writes them. */
    _Atomic int64_t share, total;
    /* Percent, 1 to 100 (UNLIMITED), and the utilization_switch: written by the tick. */
    _Atomic uint32_t limit;
    _Atomic bool on;
    atomic_flag ticking; /* one tick at a time: share and total are read, judged and written */
};

static uint32_t normal_limit(uint64_t limit)
{
    return limit == 0 || limit > UNLIMITED ? UNLIMITED : (uint32_t)limit;
}

static int read_region(hr_limiter *limiter)
{
    uint64_t limit, on;
    if (!limiter->region)
        return HR_OK;
    int code = hr_get(limiter->region, HR_SM, limiter->device, &limit, NULL);
    if (code == HR_OK)
        code = hr_get(limiter->region, HR_SWITCH, 0, &on, NULL);
    if (code != HR_OK)
        return code;
    limiter->limit = normal_limit(limit);
    limiter->on = on != 0;
    return HR_OK;
}

int hr_limiter_new(uint32_t sm_count, uint32_t max_threads_per_sm, uint32_t sm_limit,
                   hr_region *region, uint32_t device, hr_limiter **out, struct hr_error *error)
{
    *out = NULL;
    if (sm_count == 0 || sm_count > HR_LIMITER_MAX_SM_COUNT || max_threads_per_sm == 0 ||
        max_threads_per_sm > HR_LIMITER_MAX_THREADS_PER_SM || device >= HR_DEVICES)
        return hr_report(error, hr_fail_code(HR_EINVAL));

    hr_limiter *limiter = calloc(1, sizeof *limiter);
    if (!limiter)
        return hr_report(error, hr_fail_errno(HR_ESYSTEM, ENOMEM));
    limiter->sm_count = sm_count;
    limiter->max_threads_per_sm = max_threads_per_sm;
    limiter->device = device;
    limiter->region = region;
    /* 32 blocks for each thread that the device can hold. */
    limiter->total = (int64_t)max_threads_per_sm * sm_count * 32;
    limiter->limit = normal_limit(sm_limit);
    limiter->on = true;
    atomic_flag_clear(&limiter->ticking);

    int code = read_region(limiter);
    if (code != HR_OK) {
        free(limiter);
        return hr_report(error, code);
    }
    *out = limiter;
    return HR_OK;
}

void hr_limiter_free(hr_limiter *limiter)
{
    free(limiter);
}

int hr_limiter_take(hr_limiter *limiter, int64_t blocks)
{
    if (limiter->limit == UNLIMITED || !limiter->on)
        return 1;
    int64_t tokens = limiter->tokens;
    do {
        if (tokens < 0)
            return 0;
        /* From 0 at least, so the result is -INT64_MAX at least. */
    } while (!atomic_compare_exchange_weak(&limiter->tokens, &tokens, tokens - blocks));
    return 1;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The largest product is 2^16 * 2^16 * 2^16 * 100, the largest result 2^51. */
static int64_t increment(const hr_limiter *limiter, int64_t limit, int64_t util)
{
    int64_t diff = util > limit ? util - limit : limit - util;
    if (diff < 5)
        diff = 5;
    int64_t inc =
        (int64_t)limiter->sm_count * limiter->sm_count * limiter->max_threads_per_sm * diff / 2560;
    if (diff > limit / 2)
        inc = inc * diff * 2 / (limit + 1);
    return inc;
}

static void step(hr_limiter *limiter, int32_t util)
{
    int64_t limit = limiter->limit, share = limiter->share, total = limiter->total;
    if (limit == UNLIMITED || util < 0 || util > 100)
        return;
    if (share == total && limiter->tokens < 0 && total <= MAX_TOTAL / 2) {
        total *= 2;
        share = total;
    }
    int64_t inc = increment(limiter, limit, util);
    if (util <= limit)
        share = smaller(total, share + inc);
    else
        share = share > inc ? share - inc : 0;
    limiter->total = total;
    limiter->share = share;

    /* tokens <= total and share <= total, and total <= 2^61. */
    int64_t tokens = limiter->tokens;
    while (!atomic_compare_exchange_weak(&limiter->tokens, &tokens, smaller(total, tokens + share)))
        ;
}

int hr_limiter_tick(hr_limiter *limiter, int32_t util_percent, struct hr_error *error)
{
    if (atomic_flag_test_and_set(&limiter->ticking))
        return hr_report(error, hr_fail_code(HR_EBUSY));
    int code = read_region(limiter);
    step(limiter, util_percent);
    atomic_flag_clear(&limiter->ticking);
    return hr_report(error, code);
}

void hr_limiter_read(const hr_limiter *limiter, struct hr_limiter_state *out)
{
    *out = (struct hr_limiter_state){limiter->share, limiter->tokens, limiter->total};
}
