
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

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

    /*
     * Blocks.  Launches subtract, the tick adds, both by compare-and-swap.
     * Relaxed is enough here and below: no other memory is published through
     * these words, each of them is right by itself.
     */
    _Atomic int64_t tokens;

    /* Blocks.  Only the tick that holds `ticking` writes them. */
    _Atomic int64_t share;
    _Atomic int64_t total;

    /* Percent, 1 to 100 (UNLIMITED); written by the tick, read by launches. */
    _Atomic uint32_t limit;
    _Atomic bool on; /* the utilization_switch; as `limit` */

    /*
     * One tick at a time: share and total are read, judged and written.  Acquire
     * when it is taken pairs with release when it is given back.
     */
    atomic_flag ticking;
};

static int64_t load(const _Atomic int64_t *word)
{
    return atomic_load_explicit(word, memory_order_relaxed);
}

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
    atomic_store_explicit(&limiter->limit, normal_limit(limit), memory_order_relaxed);
    atomic_store_explicit(&limiter->on, on != 0, memory_order_relaxed);
    return HR_OK;
}

int hr_limiter_new(uint32_t sm_count, uint32_t max_threads_per_sm, uint32_t sm_limit,
                   hr_region *region, uint32_t device, hr_limiter **out, struct hr_error *error)
{
    *out = NULL;
    if (sm_count == 0 || sm_count > HR_LIMITER_MAX_SM_COUNT || max_threads_per_sm == 0 ||
        max_threads_per_sm > HR_LIMITER_MAX_THREADS_PER_SM || device >= HR_DEVICES)
        return hr_report(error, hr_fail_code(HR_EINVAL));

    hr_limiter *limiter = malloc(sizeof *limiter);
    if (!limiter)
        return hr_report(error, hr_fail_errno(HR_ESYSTEM, ENOMEM));
    limiter->sm_count = sm_count;
    limiter->max_threads_per_sm = max_threads_per_sm;
    limiter->device = device;
    limiter->region = region;
    atomic_init(&limiter->tokens, 0);
    atomic_init(&limiter->share, 0);
    /* 32 blocks for each thread that the device can hold. */
    atomic_init(&limiter->total, (int64_t)max_threads_per_sm * sm_count * 32);
    atomic_init(&limiter->limit, normal_limit(sm_limit));
    atomic_init(&limiter->on, true);
    atomic_flag_clear_explicit(&limiter->ticking, memory_order_relaxed);

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

static bool limits_launches(const hr_limiter *limiter)
{
    return atomic_load_explicit(&limiter->limit, memory_order_relaxed) != UNLIMITED &&
           atomic_load_explicit(&limiter->on, memory_order_relaxed);
}

/* Subtract once the bucket is not below zero; false: it is. */
static bool try_take(hr_limiter *limiter, int64_t blocks)
{
    int64_t tokens = load(&limiter->tokens);
    do {
        if (tokens < 0)
            return false;
        /* From 0 at least, so the result is -INT64_MAX at least. */
    } while (!atomic_compare_exchange_weak_explicit(&limiter->tokens, &tokens, tokens - blocks,
                                                    memory_order_relaxed, memory_order_relaxed));
    return true;
}

int hr_limiter_acquire(hr_limiter *limiter, int64_t blocks, int64_t timeout_ns,
                       struct hr_error *error)
{
    if (blocks < 0 || timeout_ns < 0)
        return hr_report(error, hr_fail_code(HR_EINVAL));
    if (!limits_launches(limiter) || try_take(limiter, blocks))
        return HR_OK;
    const uint64_t deadline = hr_deadline_ns((uint64_t)timeout_ns);
    for (uint64_t now; (now = hr_clock_ns(CLOCK_MONOTONIC)) < deadline;) {
        const uint64_t left = deadline - now;
        const struct timespec nap = {
            .tv_nsec = (long)(left < HR_LIMITER_NAP_NS ? left : HR_LIMITER_NAP_NS)};
        nanosleep(&nap, NULL); /* a signal may end it early; the bucket is looked at anyway */
        if (!limits_launches(limiter) || try_take(limiter, blocks))
            return HR_OK;
    }
    return hr_report(error, hr_fail_code(HR_ETIMEOUT));
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
    int64_t limit = atomic_load_explicit(&limiter->limit, memory_order_relaxed);
    if (limit == UNLIMITED || util < 0 || util > 100)
        return;

    int64_t share = load(&limiter->share), total = load(&limiter->total);
    if (share == total && load(&limiter->tokens) < 0 && total <= MAX_TOTAL / 2) {
        total *= 2;
        share = total;
    }
    int64_t inc = increment(limiter, limit, util);
    if (util <= limit)
        share = smaller(total, share + inc);
    else
        share = share > inc ? share - inc : 0;
    atomic_store_explicit(&limiter->total, total, memory_order_relaxed);
    atomic_store_explicit(&limiter->share, share, memory_order_relaxed);

    /* tokens <= total and share <= total, and total <= 2^61. */
    int64_t tokens = load(&limiter->tokens);
    while (!atomic_compare_exchange_weak_explicit(&limiter->tokens, &tokens,
                                                  smaller(total, tokens + share),
                                                  memory_order_relaxed, memory_order_relaxed)) {
    }
}

int hr_limiter_tick(hr_limiter *limiter, int32_t util_percent, struct hr_error *error)
{
    if (atomic_flag_test_and_set_explicit(&limiter->ticking, memory_order_acquire))
        return hr_report(error, hr_fail_code(HR_EBUSY));
    int code = read_region(limiter);
    step(limiter, util_percent);
    atomic_flag_clear_explicit(&limiter->ticking, memory_order_release);
    return hr_report(error, code);
}

int64_t hr_limiter_share(const hr_limiter *limiter)
{
    return load(&limiter->share);
}

int64_t hr_limiter_tokens(const hr_limiter *limiter)
{
    return load(&limiter->tokens);
}

int64_t hr_limiter_total(const hr_limiter *limiter)
{
    return load(&limiter->total);
}
