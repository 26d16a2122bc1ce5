/*
 * What /proc/<pid>/stat tells of many processes: whether they are who they were, and whether they
 * have done anything since.
 *
 * The kernel takes no lock of a process's address space for it: no process can make this wait.
 * Threads: no state of its own.
 */
#ifndef HR_PROCESS_STATS_H
#define HR_PROCESS_STATS_H

#include <stdint.h>

struct hr_process_stat {
    uint64_t start_time_ticks; /* after boot; with the pid, its identity */
    uint64_t address_space_bytes;
    uint64_t stack; /* where it begins; 0 where this process may not know */
    uint64_t minor_faults;
    uint64_t major_faults;
    int64_t error; /* 0, or why there is none of this: the number of the error */
};

/*
 * Read the stat of each of `count` processes.  `proc` is a descriptor of /proc, `out` has room for
 * as many.  What is no line of stat has the error EBADMSG.
 */
void hr_read_process_stats(int proc, const uint32_t *pids, uint32_t count,
                           struct hr_process_stat *out);
/* When one of them has started, in clock ticks after boot; 0: not known. */
uint64_t hr_read_start_time(int proc, uint32_t pid);

#endif
