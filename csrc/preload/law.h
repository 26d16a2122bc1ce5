/*
 * The control law: how much a process may launch per second, so that all processes of its region
 * together keep a GPU busy for their share of the time.
 *
 * Work is counted in units (multiprocessors and blocks of each kernel), of which nothing is known
 * but that each takes about the same time.  Each new sample of NVML corrects two estimates:
 *
 * - The cost of a unit: the busy time of this process by the units that it launched meanwhile, over
 *   the last seconds.
 * - The error: how long the region was busy above or below its limit.  It corrects the rate, so
 *   that the mean is right if the cost is not.
 *
 * Figures are whole percents.  What is rounded off the figures of many processes shows in that of
 * the device, which is believed up to one percent a process.
 *
 * A pure function of the samples, so that models of a GPU can run it (tests/preload/law_model.c).
 */
#ifndef HR_LAW_H
#define HR_LAW_H

#include <stdbool.h>

struct hr_law {
    double at_s;          /* of the last step */
    double busy_s, units; /* of this process, weighted by age */
    double error_s;       /* GPU time taken above the limit; negative: below */
    double rate, grown_s; /* the last rate that was not 0, and when it last grew */
};

/* One sample.  Shares are parts of the time, 0 to 1; all times are of one clock. */
struct hr_law_view {
    double now_s, from_s, to_s; /* the sample is of what happened between the last two */
    double limit;               /* share */
    double own, all;            /* shares that NVML shows for this process, and for the region */
    double device;              /* of the whole GPU, less other processes' shares */
    double users;               /* processes of the region that worked of late, this one included */
    double units;               /* launched by this process in the sample's window */
    bool has_waited;            /* a launch waited since the last step */
};

void hr_start_law(struct hr_law *law, double now_s);

/* Units per second from now on; 0: nothing, or, while hr_law.units is 0, one launch until the next
 * sample. */
double hr_step_law(struct hr_law *law, const struct hr_law_view *view);

#endif
