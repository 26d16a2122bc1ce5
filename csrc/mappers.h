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

#include "lock.h"
#include "process_files.h"

/* The pids that stand in slots, each of another process. */
struct hr_slot_pids {
    int32_t pids[HR_SLOTS];
    int32_t count;
};

int hr_read_slot_pids(const hr_region *region, struct hr_slot_pids *out);
bool hr_names_slot(const struct hr_slot_pids *slots, int32_t pid);

/*
 * Scan `proc` (NULL = "/proc") for processes that map the region.  Who has the
 * gate and not the lock asks without its own handle: that uses nothing then.  With
 * `only`, those are enough of which the pid in their own namespace is among them:
 * maps are dear, and a container can make its processes' as long as it likes.  From the
 * deadline on no more maps are read, and whose are left counts as unreadable.
 */
enum hr_own_handle { HR_WITH_OWN_HANDLE, HR_WITHOUT_OWN_HANDLE };
int hr_find_mappers(hr_region *region, const char *proc, enum hr_own_handle own,
                    const struct hr_slot_pids *only, uint64_t deadline_ns, struct hr_mappers *out);
void hr_free_mappers(struct hr_mappers *mappers);

/* hr_find_mappers() of everybody and with this process's handles, for who has not entered. */
int hr_look_for_mappers(hr_region *region, const char *proc, struct hr_mappers *out);

/* Whose pids stand in the slots: those of this /proc's namespace, or of one below. */
struct hr_namespace_view {
    const hr_region *region;
    const struct hr_mappers *mappers;
    bool own;   /* some slot's process is seen here under the pid in its slot */
    bool inner; /* some slot's process has that pid only in an inner namespace */
};

/* Fill in `own` and `inner`, by the mappers that are known. */
void hr_judge_slots(struct hr_namespace_view *view, const struct hr_slot_pids *slots);
void hr_judge_slot(struct hr_namespace_view *view, int32_t pid);

/* Whether that /proc, a directory, is the one of the first namespace. */
bool hr_sees_everybody(int proc);

/*
 * Whether the process lives that has `pid` in one of its namespaces, or, for the
 * pid of a slot, in its innermost one.  `here` gets its pid in this /proc, or 0.
 */
enum hr_life hr_life_of_owner(const struct hr_mappers *mappers, int32_t pid, int32_t *here);
enum hr_life hr_life_of_slot(const struct hr_mappers *mappers, int32_t pid);

#endif
