#include "law.h"

/* Guesses are to be checked by what tests/gpu measures on a real GPU. */

/* How long a measurement counts.  Guess: longer than NVML's slowest samples (1 s), shorter than a
 * phase of a program. */
#define MEMORY_S 2.0
/* A figure is a whole percent: so much of the work of each process may be rounded off. */
#define ROUNDED_OFF 0.01
/* Busy time that shows as nothing, at most: half a percent; and of a small share not all, or it
 * would shrink with each step. */
#define UNSEEN 0.005
#define UNSEEN_PART 0.8
/* How fast an error is forgotten by a program that does not want more.  Guess. */
#define FORGET_S 1.0
/* Limits of the error: a fifth of the limit is made up for later, and at most half a second beyond
 * a whole stop is given back.  Guesses. */
#define LEAST_ERROR 0.2
#define MOST_ERROR 0.5
/* Growth in one step; a step can be wrong, as the figures are of the past.  Guess. */
#define GROWTH 4.0
/* Between two steps no more time than this is taken to have passed: a process may be stopped. */
#define LONGEST_STEP_S 2.0

static double smaller(double a, double b)
{
    return a < b ? a : b;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

void hr_start_law(struct hr_law *law, double now_s)
{
    *law = (struct hr_law){.at_s = now_s, .grown_s = now_s};
}

static void measure_cost(struct hr_law *law, const struct hr_law_view *view, double step_s,
                         double own)
{
    double kept = 1 / (1 + step_s / MEMORY_S);
    /* What is rounded off is the work of processes that have launched something. */
    double busy = view->own > 0 || view->units > 0 ? own : 0;
    law->busy_s = law->busy_s * kept + busy * (view->to_s - view->from_s);
    law->units = law->units * kept + view->units;
}

static void sum_error(struct hr_law *law, const struct hr_law_view *view, double step_s, double all,
                      double own)
{
    if (view->has_waited)
        law->error_s += step_s * (all - view->limit + own - all / view->users);
    else if (all > view->limit)
        law->error_s += step_s * (all - view->limit);
    else
        law->error_s *= 1 - smaller(step_s / FORGET_S, 1);
    law->error_s = larger(law->error_s, -LEAST_ERROR * view->limit);
    law->error_s = smaller(law->error_s, view->limit + MOST_ERROR);
}

double hr_step_law(struct hr_law *law, const struct hr_law_view *view)
{
    double step_s = smaller(larger(view->now_s - law->at_s, 0), LONGEST_STEP_S);
    double even = view->limit / view->users;
    double all =
        smaller(smaller(larger(view->all, view->device), view->all + ROUNDED_OFF * view->users), 1);
    double own = view->own + (all - view->all) / view->users;
    if (view->units > 0)
        own = larger(own, smaller(UNSEEN, UNSEEN_PART * even));
    law->at_s = view->now_s;
    measure_cost(law, view, step_s, own);
    sum_error(law, view, step_s, all, own);
    if (law->units <= 0 || law->busy_s <= 0)
        return 0;
    double rate = larger(even - law->error_s, 0) * law->units / law->busy_s;
    if (rate <= 0)
        return 0;
    law->rate = larger(law->rate, law->units / MEMORY_S);
    bool may_grow = view->from_s >= law->grown_s;
    rate = smaller(rate, may_grow ? GROWTH * law->rate : law->rate);
    if (rate > law->rate)
        law->grown_s = view->now_s;
    law->rate = rate;
    return rate;
}
