/*
 * A thread of this process that looks around once a second, from its first context on: whether the
 * process is suspended, whether a neighbour has died, and whether the driver has taken more memory
 * than it was asked for.
 */
#ifndef HR_WATCHER_H
#define HR_WATCHER_H

/* Start it, if it does not run yet in this process. */
void hr_start_watcher(void);

#endif
