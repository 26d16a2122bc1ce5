/* The threads that this library has in a program, and its calls of the driver in others. */
#ifndef HR_THREADS_H
#define HR_THREADS_H

#include <stdbool.h>

/* Start one that nobody waits for, and in which no signal that was sent to the program is handled.
 * False: it could not be started. */
bool hr_start_thread(void *(*work)(void *));

/*
 * While any thread of the program captures a stream, the driver refuses what is not safe in a
 * capture, and ends the capture.  What this library asks between these two has no part in it.
 */
int hr_relax_capture(void);
void hr_restore_capture(int mode);

#endif
