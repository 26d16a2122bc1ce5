/*
 * The pace of launches: how much work a process may launch per second so that the region's
 * processes together keep a GPU busy for their share of the time.
 *
 * Work is counted in units of which nothing is known but that each takes about the same time.  Two
 * things are estimated from the figures that the region shows, every tenth of a second:
 *
 * - What a unit costs: the time that the GPU was busy for this process, divided by the units that
 *   it launched in the same span of time.  As long as too little was measured to tell, the estimate
 *   is the highest that the figures allow, so that a program begins with single launches and
 *   reaches its pace within two seconds.
 * - The error: how far all processes together were above or below the limit, summed over time.
 *   It corrects the pace, so that what was taken too much is given back, and the mean is right
 *   even where the estimate is not.
 *
 * The figures are averages of the past HR_PACE_WINDOW_S and come late; HR_PACE_LAG_S is by how
 * much.
 *
 * They are whole percents, which is too little for many processes on a device: crowd.h completes
 * them from the figure of the device, as far as there is one.  Then a process with a share below
 * one percent holds to it, and the sum is that of all.
 */
#ifndef HR_PACE_H
#define HR_PACE_H

#include <stdbool.h>
#include <stdint.h>

#define HR_PACE_WINDOW_S 0.5
#define HR_PACE_LAG_S 0.2

enum { HR_PACE_POINTS = 32 };

struct hr_pace {
    /* When how many units had been launched in all: the last points in time, oldest first. */
    struct {
        double at_s, launched;
    } points[HR_PACE_POINTS];
    uint32_t count;

    /* Busy seconds, and the units launched meanwhile, over the last seconds, weighted by their
     * age; `unseen_s` is the part of the busy seconds that is only not excluded by the figures. */
    double busy_s, units, unseen_s;

    double error_s; /* seconds of GPU time taken above the share, negative = below */

    double begun_s;
    double rate;    /* what the last step returned */
    bool has_shown; /* a figure of this process was not 0 */
    bool is_known;  /* what a unit costs was measured while the GPU had nothing queued */

    double full_s; /* for how long the figures have shown a GPU that is never idle */

    uint32_t limit; /* percent, at the last step; 0 = there was none */
    /* Until then nothing is launched; until then the figures are those of another limit. */
    double paused_until_s, settled_s;
};

/* What is known at one moment. */
struct hr_pace_view {
    double now_s;
    double launched; /* units launched in all so far */
    uint32_t limit;  /* percent, 1 to 99 */
    double own, all; /* percent of the time that the GPU was busy for this process, for all */
    double users;    /* processes for which it was busy, this one included */
    bool has_waited; /* a launch had to wait since the last step */

    /* What hr_complete_view() adds. */
    bool is_crowded; /* so many processes that it matters what is rounded off their figures */
    bool has_device; /* and `all` is completed from the figure of the device; then also: */
    double device;   /* that figure's last value, less what is not of the region; percent */
    double missing;  /* percent of the time beyond `own`, if this process has worked at all */
    double sample_s; /* how often NVML takes samples, as far as that is known */
};

static inline double hr_smaller(double a, double b)
{
    return a < b ? a : b;
}

static inline double hr_larger(double a, double b)
{
    return a > b ? a : b;
}

/* Nothing has been launched yet. */
void hr_start_pace(struct hr_pace *pace, double now_s);

/*
 * One step, every tenth of a second or so.  Returns units per second.
 *
 * When another limit holds than before, what was taken under that one is no error.  After a lower
 * one nothing is launched for a moment: somebody else may have come, with whom what is queued
 * shares the GPU by now.
 */
double hr_step_pace(struct hr_pace *pace, const struct hr_pace_view *view);

#endif
