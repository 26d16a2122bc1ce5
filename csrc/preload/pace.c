#include "pace.h"

#include <string.h>

/* A GPU that was busy for less than this in a window shows a figure of 0 or 1 percent. */
#define RESOLUTION_S 0.005

/* How long a measurement counts. */
#define MEMORY_S 2.0

/* Per second: how fast an error is made good.  The figures lag by a third of a second. */
#define CORRECTION 1.0

/* How much of the limit can be lent beyond it to a program that fell short. */
#define LENT 0.1
/* Of a GPU that is nearly all a program's, nobody else is done harm with more. */
#define LENT_ALONE 0.4

/* All figures together at that height: the GPU has as much queued as it can do, and what was
 * launched last has not begun.  Nothing more is launched until that has changed. */
#define SATURATED 0.97
#define SATURATED_ABOVE 0.03

/* A figure for a GPU that was never idle.  That of each further process that shares it is a mean of
 * samples, both in whole percent, and so up to two below the truth.  With more than ten processes
 * a GPU that is never idle cannot be told from one that is by their figures. */
#define FULL_PERCENT 100
#define ROUNDED_OFF 2
#define MOST_ROUNDED_OFF 18

/* Under a limit of nearly all: for longer the GPU is never idle only if it has work queued.  Then
 * so much of its share is launched until the queue is done: a stop would last until the figures
 * tell of its end, half a second later. */
#define LONGEST_FULL_S 1.0
#define WHILE_QUEUED 0.7

/* A limit that differs by so much from the one before is another one; and how long nothing is
 * launched where it is lower. */
#define TURN_PERCENT 5
#define PAUSE_S 0.2

static double smaller(double a, double b)
{
    return a < b ? a : b;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static void add_point(struct hr_pace *pace, double now_s, double launched)
{
    if (pace->count == HR_PACE_POINTS) {
        memmove(pace->points, pace->points + 1, sizeof pace->points - sizeof pace->points[0]);
        pace->count--;
    }
    pace->points[pace->count].at_s = now_s;
    pace->points[pace->count].launched = launched;
    pace->count++;
}

/* How many units had been launched then. */
static double launched_at(const struct hr_pace *pace, double at_s)
{
    uint32_t after = 0;
    while (after < pace->count && pace->points[after].at_s < at_s)
        after++;
    if (after == 0)
        return pace->points[0].launched;
    if (after == pace->count)
        return pace->points[after - 1].launched;
    double before_s = pace->points[after - 1].at_s, span_s = pace->points[after].at_s - before_s;
    double before = pace->points[after - 1].launched;
    return before + (pace->points[after].launched - before) * (at_s - before_s) / span_s;
}

/* The GPU has never been idle, as far as the figures tell.  Under a lower limit the error keeps the
 * queue short, and what is rounded off may be as much as the limit leaves free. */
static bool is_full(const struct hr_pace_view *view)
{
    double rounded_off = 0;
    if (view->limit / 100.0 > SATURATED)
        rounded_off = smaller(ROUNDED_OFF * (view->users - 1.0), MOST_ROUNDED_OFF);
    return view->all + rounded_off >= FULL_PERCENT;
}

/* Most of what the cost is reckoned from was seen. */
static bool is_measured(const struct hr_pace *pace)
{
    return pace->busy_s > 4 * pace->unseen_s;
}

static void measure_cost(struct hr_pace *pace, const struct hr_pace_view *view, double period_s)
{
    double end_s = view->now_s - HR_PACE_LAG_S;
    double units = launched_at(pace, end_s) - launched_at(pace, end_s - HR_PACE_WINDOW_S);
    double busy_s = view->own / 100.0 * HR_PACE_WINDOW_S;
    /* Of a GPU that has never been idle nobody knows whether it has done what was launched, or has
     * it queued: then a unit costs no less than it did. */
    if (is_full(view) && is_measured(pace))
        units = smaller(units, busy_s * pace->units / pace->busy_s);
    double unseen_s = units > 0 ? RESOLUTION_S : 0;
    double kept = 1 / (1 + period_s / MEMORY_S);
    pace->busy_s = pace->busy_s * kept + busy_s + unseen_s;
    pace->unseen_s = pace->unseen_s * kept + unseen_s;
    pace->units = pace->units * kept + units;
}

static void sum_error(struct hr_pace *pace, const struct hr_pace_view *view, double period_s)
{
    double limit = view->limit / 100.0, excess = view->all / 100.0 - limit;
    if (excess > 0 && pace->error_s < 0)
        pace->error_s /= 2;
    if (excess > 0 || (view->has_waited && is_measured(pace)))
        pace->error_s += excess * period_s;
    else if (!view->has_waited)
        /* The program does not want more: what it leaves unused is not saved for later. */
        pace->error_s *= 1 - smaller(2 * period_s, 1);
    /* One process alone may take what others leave. */
    double others = limit - limit / view->users;
    double lent = limit > SATURATED ? LENT_ALONE : LENT * limit;
    pace->error_s = larger(pace->error_s, -(others + lent) / CORRECTION);
    pace->error_s = smaller(pace->error_s, (limit + 0.5) / CORRECTION);
}

void hr_start_pace(struct hr_pace *pace, double now_s)
{
    *pace = (struct hr_pace){.count = 0};
    add_point(pace, now_s, 0);
}

static void note_limit(struct hr_pace *pace, const struct hr_pace_view *view)
{
    uint32_t before = pace->limit == 0 ? view->limit : pace->limit;
    bool is_lower = view->limit + TURN_PERCENT <= before;
    pace->limit = view->limit;
    if (!is_lower && view->limit < before + TURN_PERCENT)
        return;
    pace->error_s = 0;
    pace->paused_until_s = is_lower ? view->now_s + PAUSE_S : 0;
    pace->settled_s = view->now_s + PAUSE_S + HR_PACE_WINDOW_S + HR_PACE_LAG_S;
}

double hr_step_pace(struct hr_pace *pace, const struct hr_pace_view *view)
{
    double limit = view->limit / 100.0, all = view->all / 100.0;
    double period_s = view->now_s - pace->points[pace->count - 1].at_s;
    if (period_s <= 0)
        period_s = 1e-6;
    add_point(pace, view->now_s, view->launched);
    measure_cost(pace, view, period_s);
    note_limit(pace, view);
    bool is_settled = view->now_s >= pace->settled_s;
    if (is_settled)
        sum_error(pace, view, period_s);
    bool is_saturated = is_settled && all >= larger(SATURATED, limit + SATURATED_ABOVE);
    pace->full_s = is_full(view) ? pace->full_s + period_s : 0;
    if (pace->units <= 0 || is_saturated || view->now_s < pace->paused_until_s)
        return 0;
    double even = limit / view->users;
    double share = larger(even - CORRECTION * pace->error_s, 0);
    if (pace->full_s > LONGEST_FULL_S)
        share = WHILE_QUEUED * smaller(share, even);
    return share * pace->units / pace->busy_s;
}
