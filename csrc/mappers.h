/*
 * Which processes map a region, and what their pids are in each namespace.
 *
 * A pid in a region is one of the container's namespace and may have been used
 * again.  What counts as proof: /proc/<pid>/maps shows this very file, and
 * NSpid in /proc/<pid>/status has the number.  A process with the right number
 * that does not map the file is another one.
 */
#ifndef HR_MAPPERS_H
#define HR_MAPPERS_H

#include <stdbool.h>

#include "lock.h"

/* Namespaces nest 32 deep at most. */
#define HR_PID_LEVELS 32

struct hr_mapper {
    int32_t pids[HR_PID_LEVELS]; /* from this /proc's namespace to the innermost */
    uint32_t levels;
};

struct hr_mappers {
    struct hr_mapper *list; /* without this process */
    uint32_t count;
    /* Processes whose maps were refused: with this many, absence proves nothing about them. */
    struct hr_mapper *unreadable;
    uint32_t unreadable_count;
    bool initial; /* the /proc of the first pid namespace, which has everybody */
    /* Whether every process of the region can be seen: the first namespace, or theirs. */
    bool complete;
};

/* Scan `proc` (NULL = "/proc") for processes that map the region. */
int hr_find_mappers(hr_region *region, const char *proc, struct hr_mappers *out);
void hr_free_mappers(struct hr_mappers *mappers);

/*
 * Whether a process with `pid` in one of its namespaces maps the region; the
 * calling process counts as `self_pid` if that is not 0.  `here` gets its pid in
 * this /proc, 0 if there is none.
 */
enum hr_life hr_life_of(const struct hr_mappers *mappers, int32_t pid, int32_t self_pid,
                        int32_t *here);

/*
 * Whether this process has its pids in the namespace of the region's processes:
 * it is in a later pid namespace itself, or the processes with slots that can be
 * seen are all seen under the pids in their slots.
 */
bool hr_shares_namespace(hr_region *region);

#endif
