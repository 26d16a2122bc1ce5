/*
 * The regulator: the thread that keeps launches within the SM limits.  Ten times a second it reads
 * the limits, measures if this process is the sampler, and sets the pace of each limited row, or
 * ticks its limiter where libvgpu takes part in the region.
 */
#ifndef HR_REGULATOR_H
#define HR_REGULATOR_H

/* Start it, if it does not run yet in this process: the first launch under a limit does. */
void hr_start_regulator(void);

/* In a forked child, which has no such thread. */
void hr_forget_regulator(void);

#endif
