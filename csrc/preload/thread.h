/*
 * The one thread of this library in a program: from the session's attachment on it reads the
 * limits, sets the rate of launches, reconciles pools, measures contexts, and looks after
 * neighbours that have died.
 */
#ifndef HR_THREAD_H
#define HR_THREAD_H

/* Start it, if this process is attached and it does not run yet. */
void hr_start_thread(void);

/* A launch waits for its row: begin the next pass at once. */
void hr_hurry_thread(void);

#endif
