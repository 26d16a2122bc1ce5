#include "soft_limit.h"

/* Both together at that height: there is nothing left, or there is. */
#define NOTHING_LEFT 97
#define SOMETHING_LEFT 94

/* Per second: of the limit, what is added; of the excess, what is taken off. */
#define ADDED 0.15
#define TAKEN_OFF 0.5

/* A process that shows less works for nobody: a desktop, or one that waits. */
#define WORKING 3

static double share(struct hr_soft_limit *soft, const struct hr_soft_view *view)
{
    double period_s = view->now_s - soft->stepped_s;
    uint32_t total = view->own + view->soft;
    if (!soft->is_shared || period_s < 0)
        return 0;
    if (total >= NOTHING_LEFT)
        return period_s * TAKEN_OFF < 1 ? soft->excess * (1 - period_s * TAKEN_OFF) : 0;
    if (total < SOMETHING_LEFT)
        return soft->excess + ADDED * view->limit * period_s;
    return soft->excess;
}

void hr_start_soft_limit(struct hr_soft_limit *soft, double now_s)
{
    *soft = (struct hr_soft_limit){.stepped_s = now_s};
}

uint32_t hr_step_soft_limit(struct hr_soft_limit *soft, const struct hr_soft_view *view)
{
    const uint32_t most = view->limit > HR_SOFT_MOST ? view->limit : HR_SOFT_MOST;
    bool is_shared = !view->is_disturbed && view->soft >= WORKING;
    soft->excess = is_shared ? share(soft, view) : 0;
    if (soft->excess > most - view->limit)
        soft->excess = most - view->limit;
    soft->is_shared = is_shared;
    soft->stepped_s = view->now_s;
    if (is_shared || view->is_disturbed)
        return view->limit + (uint32_t)(soft->excess + 0.5);
    return most;
}
