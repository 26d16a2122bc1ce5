/*
 * The core limiter: how HAMi holds a container to its share of a GPU's cores.
 *
 * CONCEPT
 *
 * A token bucket per device.  A launch of n blocks takes n tokens and may bring
 * the bucket below zero; the next launch then waits until it is refilled.  Every
 * 120 ms a tick compares the utilisation measured with the SM limit, moves the
 * share up or down, and pours the share into the bucket.  The arithmetic is
 * libvgpu's, integer divisions included, so that a program that is held by this
 * limiter runs as it would in a container.
 *
 * CAVEATS
 *
 * - Nothing ticks by itself: the limiter's owner calls hr_limiter_tick() every
 *   HR_LIMITER_PERIOD_NS.  Without ticks a launch waits for its whole timeout.
 * - Launches are not served in order: the first to wake takes the tokens.
 * - Threads.  All functions but hr_limiter_free() may run at once on one limiter.
 *   The three getters read one number each, not a common picture.
 * - Fork.  The child has a copy that goes its own way; with a region its ticks
 *   report HR_EFORKED and the last limit that was read stays in force.
 * - The region has to outlive the limiter; closing it is allowed.
 */
#ifndef HR_LIMITER_H
#define HR_LIMITER_H

#include <stdint.h>

#include "region.h"

#define HR_LIMITER_PERIOD_NS 120000000u /* between two ticks */
#define HR_LIMITER_NAP_NS 10000000u     /* between two looks at an empty bucket */

/* Bounds that keep all sums within int64; the largest GPUs have 2^8 and 2^11. */
#define HR_LIMITER_MAX_SM_COUNT 65536u
#define HR_LIMITER_MAX_THREADS_PER_SM 65536u

typedef struct hr_limiter hr_limiter;

/*
 * Make a limiter for one device: tokens 0, share 0.  `sm_limit` is in percent, 0
 * or >= 100 = unlimited.
 *
 * With a `region` its SM limit of `device` and its utilization_switch rule
 * instead, read here and at each tick.  NULL: no region, the switch is on.
 *
 * HR_EINVAL: a count is 0 or above its bound, or `device` is no device.
 * HR_ESYSTEM: no memory.  Any error of hr_read_value().
 */
int hr_limiter_new(uint32_t sm_count, uint32_t max_threads_per_sm, uint32_t sm_limit,
                   hr_region *region, uint32_t device, hr_limiter **out);

/* The last call on a limiter, when no thread is inside another.  Takes NULL. */
void hr_limiter_free(hr_limiter *limiter);

/*
 * Take `blocks` tokens.  Waits, in naps of HR_LIMITER_NAP_NS, while the bucket
 * is below zero; goes through at once, and takes nothing, where nothing is
 * limited.  A limit that is lifted by a tick also ends the wait.  With
 * `timeout_ns` 0 it looks once.
 *
 * HR_ETIMEOUT: the bucket stayed below zero; nothing was taken.
 * HR_EINVAL: `blocks` or `timeout_ns` is negative.
 */
int hr_limiter_acquire(hr_limiter *limiter, int64_t blocks, int64_t timeout_ns);

/*
 * One step of HR_LIMITER_PERIOD_NS.  `util_percent` is the sum over the
 * container's processes; outside 0..100 it says nothing and the bucket stays as
 * it is.  It also stays while the limit is 0 or >= 100.  While only the
 * switch is off it is refilled, as in libvgpu, so that switching on does not
 * begin with an old debt.
 *
 * An error of hr_read_value() is returned after the step was made with the limit and
 * the switch read last: a launch that waits must not wait for ever because its
 * region went away.
 *
 * HR_EBUSY: another thread has been inside a tick for a second; nothing was done.
 */
int hr_limiter_tick(hr_limiter *limiter, int32_t util_percent);

/* Blocks per tick; blocks available now, negative = debt; the most there can be. */
int64_t hr_limiter_share(const hr_limiter *limiter);
int64_t hr_limiter_tokens(const hr_limiter *limiter);
int64_t hr_limiter_total(const hr_limiter *limiter);

#endif
