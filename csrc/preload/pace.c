#include "pace.h"

#include <string.h>

/* A GPU that was busy for less than this in a window shows a figure of 0 or 1 percent. */
#define RESOLUTION_S 0.005

/* What is not seen is not believed to have cost more than that part of what was due: else a share
 * below the resolution would shrink with each step, down to nothing. */
#define UNSEEN_PART 0.8
#define UNSEEN_PART_IN_CROWD 0.5

/* How long a measurement counts; and among many processes, each of which works now and then. */
#define MEMORY_S 2.0
#define CROWD_MEMORY_S 8.0

/* For so long a process among many that has shown nothing yet is believed to have done no more than
 * half of what may be its own, so that it comes to what the others have. */
#define EXPLORED_S 15.0

/* Per second: how fast an error is made good.  The figures lag by a third of a second.  All
 * processes see the same error: where they are more than that, each makes a part of it good. */
#define CORRECTION 1.0
#define MOST_CORRECTIONS 3

/* The sums that many processes keep drift apart, unless they are forgotten in time. */
#define FORGOTTEN_S 5.0

/* How much of the limit can be lent beyond it to a program that fell short. */
#define LENT 0.1
/* Of a GPU that is nearly all a program's, nobody else is done harm with more. */
#define LENT_ALONE 0.4

/* All figures together at that height: the GPU has as much queued as it can do, and what was
 * launched last has not begun.  Nothing more is launched until that has changed. */
#define SATURATED 0.97
#define SATURATED_ABOVE 0.03

/* No figure is an average of more. */
#define LONGEST_WINDOW_S 1.0

/* A figure for a GPU that was never idle.  That of each further process that shares it is a mean of
 * samples, both in whole percent, and so up to two below the truth.  With more than ten processes
 * a GPU that is never idle cannot be told from one that is by their figures, but by its own. */
#define FULL_PERCENT 100
#define ROUNDED_OFF 2
#define MOST_ROUNDED_OFF 18
#define ROUNDED_OFF_DEVICE 1

/* Under a limit of nearly all: for longer the GPU is never idle only if it has work queued.  Then
 * so much of its share is launched until the queue is done: a stop would last until the figures
 * tell of its end, half a second later. */
#define LONGEST_FULL_S 1.0
#define WHILE_QUEUED 0.7

/* A limit that differs by so much from the one before is another one; and how long nothing is
 * launched where it is lower. */
#define TURN_PERCENT 5
#define PAUSE_S 0.2

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
    if (view->has_device)
        rounded_off = ROUNDED_OFF_DEVICE;
    else if (view->limit / 100.0 > SATURATED)
        rounded_off = hr_smaller(ROUNDED_OFF * (view->users - 1.0), MOST_ROUNDED_OFF);
    return view->all + rounded_off >= FULL_PERCENT;
}

/* Most of what the cost is reckoned from was seen. */
static bool is_measured(const struct hr_pace *pace)
{
    return pace->busy_s > 4 * pace->unseen_s;
}

static double even_share(const struct hr_pace_view *view)
{
    return view->limit / 100.0 / view->users;
}

/* Where samples are rare, figures are averages of a longer time, and come later. */
static double window_s(const struct hr_pace_view *view)
{
    double samples_s = view->has_device ? hr_smaller(3 * view->sample_s, LONGEST_WINDOW_S) : 0;
    return hr_larger(samples_s, HR_PACE_WINDOW_S);
}

static double lag_s(const struct hr_pace_view *view)
{
    double later_s = view->has_device ? hr_larger(view->sample_s - HR_PACE_LAG_S, 0) / 2 : 0;
    return HR_PACE_LAG_S + later_s;
}

/* How fast this process makes an error good that all have made. */
static double correction(const struct hr_pace_view *view)
{
    double usual_s = HR_PACE_WINDOW_S / 2 + HR_PACE_LAG_S;
    double slower = hr_smaller(usual_s / (window_s(view) / 2 + lag_s(view)), 1);
    return CORRECTION * slower * hr_smaller(MOST_CORRECTIONS / view->users, 1);
}

/* Among many, a process shows something now and then only.  But what comes first is the least
 * exact, and what was never seen is found out the sooner for it. */
static double memory_s(const struct hr_pace *pace, const struct hr_pace_view *view)
{
    double age_s = view->now_s - pace->begun_s;
    if (!view->has_device || !pace->has_shown)
        return MEMORY_S;
    return hr_larger(hr_smaller(age_s, CROWD_MEMORY_S), MEMORY_S);
}

/* What the GPU did for this process in the window, as far as that was seen. */
static double busy_s(struct hr_pace *pace, const struct hr_pace_view *view, double units)
{
    double missing = view->missing;
    pace->has_shown = pace->has_shown || view->own > 0;
    if (!pace->has_shown && missing > 0 && view->now_s < pace->begun_s + EXPLORED_S)
        missing /= 2;
    /* What is missing is of processes that work. */
    if (view->own <= 0 && units <= 0)
        return 0;
    return hr_larger(view->own + missing, 0) / 100.0 * window_s(view);
}

static double unseen_s(const struct hr_pace_view *view, double units, double seen_s)
{
    double part = view->is_crowded ? UNSEEN_PART_IN_CROWD : UNSEEN_PART;
    if (units <= 0 || (view->has_device && seen_s > 0))
        return 0;
    return hr_smaller(RESOLUTION_S, part * even_share(view) * window_s(view));
}

static void measure_cost(struct hr_pace *pace, const struct hr_pace_view *view, double period_s)
{
    double end_s = view->now_s - lag_s(view);
    double units = launched_at(pace, end_s) - launched_at(pace, end_s - window_s(view));
    double seen = busy_s(pace, view, units);
    /* Of a GPU that has never been idle nobody knows whether it has done what was launched, or has
     * it queued: then a unit costs no less than it did. */
    if (is_full(view) && is_measured(pace))
        units = hr_smaller(units, seen * pace->units / pace->busy_s);
    double unseen = unseen_s(view, units, seen);
    double kept = 1 / (1 + period_s / memory_s(pace, view));
    pace->busy_s = pace->busy_s * kept + seen + unseen;
    pace->unseen_s = pace->unseen_s * kept + unseen;
    pace->units = pace->units * kept + units;
}

static void sum_error(struct hr_pace *pace, const struct hr_pace_view *view, double period_s)
{
    double limit = view->limit / 100.0, excess = view->all / 100.0 - limit;
    if (excess > 0 && pace->error_s < 0 && !view->is_crowded)
        pace->error_s /= 2;
    /* What the device shows is so for a process too that has shown nothing itself. */
    bool is_certain = is_measured(pace) || (view->has_device && !pace->has_shown);
    if (excess > 0 || (view->has_waited && is_certain))
        pace->error_s += excess * period_s;
    else if (!view->has_waited)
        /* The program does not want more: what it leaves unused is not saved for later. */
        pace->error_s *= 1 - hr_smaller(2 * period_s, 1);
    if (view->is_crowded)
        pace->error_s *= 1 - hr_smaller(period_s / FORGOTTEN_S, 1);
    /* One process alone may take what others leave. */
    double others = limit - limit / view->users;
    double lent = limit > SATURATED ? LENT_ALONE : LENT * limit;
    pace->error_s = hr_larger(pace->error_s, -(others + lent) / correction(view));
    pace->error_s = hr_smaller(pace->error_s, (limit + 0.5) / CORRECTION);
}

void hr_start_pace(struct hr_pace *pace, double now_s)
{
    *pace = (struct hr_pace){.begun_s = now_s};
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

static void note_idle_gpu(struct hr_pace *pace, const struct hr_pace_view *view)
{
    double seen_from_s = pace->begun_s + window_s(view) + lag_s(view);
    if (view->now_s > seen_from_s && !is_full(view) && is_measured(pace))
        pace->is_known = true;
}

/* Until a unit's cost was measured while the GPU had nothing queued, it may be far too low. */
static bool must_wait_for_queue(const struct hr_pace *pace, const struct hr_pace_view *view)
{
    return view->has_device && !pace->is_known && view->device + ROUNDED_OFF_DEVICE >= FULL_PERCENT;
}

static double step(struct hr_pace *pace, const struct hr_pace_view *view)
{
    double limit = view->limit / 100.0, all = view->all / 100.0;
    double period_s = view->now_s - pace->points[pace->count - 1].at_s;
    if (period_s <= 0)
        period_s = 1e-6;
    add_point(pace, view->now_s, view->launched);
    measure_cost(pace, view, period_s);
    note_idle_gpu(pace, view);
    note_limit(pace, view);
    bool is_settled = view->now_s >= pace->settled_s;
    if (is_settled)
        sum_error(pace, view, period_s);
    bool is_saturated = is_settled && all >= hr_larger(SATURATED, limit + SATURATED_ABOVE);
    pace->full_s = is_full(view) ? pace->full_s + period_s : 0;
    if (pace->units <= 0 || is_saturated || view->now_s < pace->paused_until_s ||
        must_wait_for_queue(pace, view))
        return 0;
    double even = even_share(view);
    double share = hr_larger(even - correction(view) * pace->error_s, 0);
    if (pace->full_s > LONGEST_FULL_S)
        share = WHILE_QUEUED * hr_smaller(share, even);
    /* The queue of many is long. */
    if (pace->full_s > LONGEST_FULL_S && view->is_crowded)
        share *= LONGEST_FULL_S / pace->full_s;
    return share * pace->units / pace->busy_s;
}

double hr_step_pace(struct hr_pace *pace, const struct hr_pace_view *view)
{
    pace->rate = step(pace, view);
    return pace->rate;
}
