/* The threads that this library has in a program. */
#ifndef HR_THREADS_H
#define HR_THREADS_H

#include <stdbool.h>

/* Start one that nobody waits for, and in which no signal that was sent to the program is handled.
 * False: it could not be started. */
bool hr_start_thread(void *(*work)(void *));

#endif
