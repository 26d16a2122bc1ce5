/*
 * When a process has started.  Threads: no state of its own.
 */
#ifndef HR_PROCESS_STATS_H
#define HR_PROCESS_STATS_H

#include <stdint.h>

/* In clock ticks after boot; with the pid, the identity of a process.  0: not known.  `proc` is a
 * descriptor of /proc. */
uint64_t hr_read_start_time(int proc, uint32_t pid);

#endif
