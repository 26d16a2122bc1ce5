/*
 * Which processes map a region, and what their pids are in each namespace.
 *
 * A pid in a region is one of the container's namespace and may have been used
 * again.  What counts as proof: /proc/<pid>/maps shows this very file mapped for
 * writing, and NSpid in /proc/<pid>/status has the number.  A process with the right number
 * that does not map the file is another one.
 */
#ifndef HR_MAPPERS_H
#define HR_MAPPERS_H

#include <stdbool.h>

#include "lock.h"

/* Namespaces nest 32 deep at most, below the first one. */
#define HR_PID_LEVELS 33

struct hr_mapper {
    int32_t pids[HR_PID_LEVELS]; /* from this /proc's namespace to the innermost */
    uint32_t levels;
    bool has_libvgpu; /* looked for in a later namespace, of processes of its own */
};

struct hr_mappers {
    /* Without this process, unless it uses the region itself: by another handle that has
     * the lock, or as a process of the region.  Looking is no use. */
    struct hr_mapper *list;
    uint32_t count;
    /* Processes whose maps were refused: with this many, absence proves nothing about them. */
    struct hr_mapper *unreadable; /* or too long */
    uint32_t unreadable_count;
    bool initial; /* the /proc of the first pid namespace, which has everybody */
    bool blind;   /* some processes are hidden from us (hidepid, or no privilege) */
    /*
     * Whether every process of the region can be seen: this is the first namespace,
     * or that of processes with slots.  In the latter case a process that started in
     * a namespace around it would be missed, as libvgpu misses it too; on the host
     * nothing is.
     */
    bool complete;
};

/*
 * Scan `proc` (NULL = "/proc") for processes that map the region.  Who has the
 * gate and not the lock asks without its own handle: that uses nothing then.  With
 * `only`, those are enough of which the pid in their own namespace is among them:
 * maps are dear, and a container can make its processes' as long as it likes.  From the
 * deadline on no more maps are read, and whose are left counts as unreadable.
 */
enum hr_own_handle { HR_WITH_OWN_HANDLE, HR_WITHOUT_OWN_HANDLE };
#define HR_NO_DEADLINE UINT64_MAX
struct hr_slot_pids;
int hr_find_mappers(hr_region *region, const char *proc, enum hr_own_handle own,
                    const struct hr_slot_pids *only, uint64_t deadline_ns, struct hr_mappers *out);
void hr_free_mappers(struct hr_mappers *mappers);

/* Whether that /proc, a directory, is the one of the first namespace. */
bool hr_sees_everybody(int proc);

/*
 * Whether the process lives that has `pid` in one of its namespaces, or, for the
 * pid of a slot, in its innermost one.  `here` gets its pid in this /proc, or 0.
 */
enum hr_life hr_life_of_owner(const struct hr_mappers *mappers, int32_t pid, int32_t *here);
enum hr_life hr_life_of_slot(const struct hr_mappers *mappers, int32_t pid);

/* The host pid of the process that has `pid` in its own namespace; 0 where several have, or it is
 * not known. */
int32_t hr_host_pid_of_slot(const struct hr_mappers *mappers, int32_t pid);

/*
 * Whether this process has its pids in the namespace of the region's processes:
 * some with slots are seen here, and all of those under the pids in their slots.
 */
bool hr_shares_namespace(hr_region *region);

#endif
