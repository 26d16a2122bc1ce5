/*
 * Which processes map a region, and what their pids are in each namespace.
 *
 * A pid in a region is one of the container's namespace and may have been used
 * again.  What counts as proof: /proc/<pid>/maps shows this very file mapped for
 * writing, and NSpid in /proc/<pid>/status has the number.  A process with the right number
 * that does not map the file is another one.
 *
 * Reading maps is expensive, and a container decides how long those of its processes are: so the
 * pid is compared first, and each search has a budget.  What a search has not reached with it is
 * unknown, and the search says that it was cut short.
 */
#ifndef HR_MAPPERS_H
#define HR_MAPPERS_H

#include "region.h"
#include "process_files.h"
#include "search_round.h"

/* What a search of /proc may cost of the processor's time, where nobody waits for the region's lock
 * meanwhile; and one for the lock's owner, while other recoveries wait. */
#define HR_SEARCH_CPU_NS 2000000000u
#define HR_OWNER_CPU_NS 1000000000u

struct hr_mappers {
    /*
     * The processes that map the region for writing, or may: the absence of a pid proves nothing
     * where one is unsure.  This process is among them if it uses the region itself: it has the
     * lock by another handle, it is attached, or another library in it maps the file.  Merely
     * reading the file does not count.
     */
    struct hr_mapper *list;
    uint32_t count;
    bool has_unsure;
    bool has_other_inode; /* one maps a file with the same inode number on another device */
    bool filtered;        /* only processes with certain pids were looked for */
    bool initial;         /* the /proc of the first pid namespace, which has everybody */
    bool incomplete; /* some processes are hidden (hidepid, no privilege), or it was cut short */
    bool cut_short;  /* the budget was spent before everybody was looked at who matters */
    /*
     * Whether every process of the region can be seen: this is the first namespace,
     * or that of processes with slots.  In the latter case a process that started in
     * a namespace around it would be missed, as libvgpu misses it too; on the host
     * nothing is.
     */
    bool complete;
};

/* Pids of a container's namespace, each of another process. */
struct hr_slot_pids {
    int32_t pids[HR_SLOTS];
    int32_t count;
    bool any_level; /* a process also matches by its pid in a namespace around its own */
};

int hr_read_slot_pids(const hr_region *region, struct hr_slot_pids *out);
bool hr_names_slot(const struct hr_slot_pids *slots, int32_t pid);

/* Processes that are not looked at, by pid. */
struct hr_strangers {
    const struct hr_stranger *list;
    uint32_t count;
};

/*
 * Search `proc` (NULL = "/proc") for processes that map the region; `only` names the pids that
 * matter, NULL = all.  `strangers` are left out, NULL = nobody is.  A caller that has the gate and
 * not the lock searches without its own handle, which uses nothing then.  HR_OK or HR_ESYSTEM.
 */
enum hr_own_handle { HR_WITH_OWN_HANDLE, HR_WITHOUT_OWN_HANDLE };
int hr_find_mappers(hr_region *region, const char *proc, enum hr_own_handle own,
                    const struct hr_slot_pids *only, const struct hr_strangers *strangers,
                    const struct hr_budget *budget, struct hr_mappers *out);
/*
 * The same search for all processes, but for those that the round has ruled out.  Those with one of
 * these pids in their innermost namespace are looked at in each call.
 */
int hr_find_mappers_in_round(hr_region *region, const char *proc, const struct hr_slot_pids *names,
                             const struct hr_strangers *strangers, const struct hr_budget *budget,
                             struct hr_round *round, struct hr_mappers *out);
void hr_free_mappers(struct hr_mappers *mappers);

/* Enter, search with HR_SEARCH_CPU_NS, leave. */
int hr_look_for_mappers(hr_region *region, const char *proc, const struct hr_slot_pids *only,
                        struct hr_mappers *out);

/* Whether the processes with these pids in their innermost namespace live, by a list that serves
 * many regions (region.h). */
int hr_search_slots(hr_region *region, struct hr_process_list *list,
                    const struct hr_strangers *strangers, const struct hr_slot_pids *asked,
                    const struct hr_budget *budget, uint32_t *lives);

/*
 * Whether the region's file may have a second inode, through which other processes map the same
 * memory: it lies on an overlay, in the upper directory of one, or a process maps what may be the
 * other inode.  For that is all there is to see of an overlay from a bind mount of its upper
 * directory, or from a mount namespace without it.  Locks on bytes of the one inode do not exclude
 * those on the other.  Searches /proc, so it is for rare questions.
 */
bool hr_may_have_two_inodes(hr_region *region);

/*
 * Whether the process lives that has `pid` in one of its namespaces, or, for the
 * pid of a slot, in its innermost one.  `here` gets its pid in this /proc, or 0.
 */
enum hr_liveness hr_liveness_of_owner(const struct hr_mappers *mappers, int32_t pid, int32_t *here);
enum hr_liveness hr_liveness_of_slot(const struct hr_mappers *mappers, int32_t pid);

#endif
