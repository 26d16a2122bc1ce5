/*
 * A soft SM limit ("burst"): how much of a GPU the processes of a region may use now, when they may
 * use what nobody else does.
 *
 * - While a process works that keeps to no soft limit itself, or has just come or just worked: the
 *   limit, as a hard one.
 * - While only processes under soft limits of other regions work: more, as long as the GPU has time
 *   to spare, and less again when it has none.  What is added is in proportion to the limit and
 * what is taken off in proportion to the excess, so that regions end up with shares of what is left
 * in the proportion of their limits, though none of them knows those of the others.
 * - Alone: nearly all of it.  Not quite all, so that no work queues up that the GPU would still
 * have to do for this region when somebody else comes.
 */
#ifndef HR_SOFT_LIMIT_H
#define HR_SOFT_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

#define HR_SOFT_MOST 98u /* percent; also what a pace can hold */

struct hr_soft_limit {
    double stepped_s;
    double excess;  /* percent beyond the limit, while others with a soft limit work */
    bool is_shared; /* with others that have a soft limit */
};

/* What is known of a GPU at one moment; the figures are those of the newest samples. */
struct hr_soft_view {
    double now_s;
    uint32_t limit;    /* percent, 1 to 99 */
    bool is_disturbed; /* somebody works without a soft limit, or may be about to; or who works
                          cannot be told */
    uint32_t own;      /* percent of the time for which it was busy for the region, */
    uint32_t soft;     /* and for others with a soft limit of their own */
};

void hr_start_soft_limit(struct hr_soft_limit *soft, double now_s);

/* One step, every tenth of a second or so.  Returns percent. */
uint32_t hr_step_soft_limit(struct hr_soft_limit *soft, const struct hr_soft_view *view);

#endif
