/*
 * The processes of a region, as /proc shows them (proc.h): what a search takes from a handle, in
 * numbers.  Internal to the core.
 */
#ifndef HR_MAPPERS_H
#define HR_MAPPERS_H

#include "fields.h"
#include "proc.h"

/* For the lock's owner, while other recoveries wait. */
#define HR_OWNER_NS 1000000000u

/*
 * How the region's file is called in the maps of all processes: our own mapping tells.  A process
 * that has dropped its privileges may not read its own maps; then stat's numbers have to do.
 * `by_another` gets whether this process also maps the file for writing by something else than
 * our handles: it has libvgpu loaded.  Where it is NULL, maps are read once for each handle.
 * HR_ESYSTEM where maps cannot be read now, for want of a descriptor or of memory.
 */
int hr_own_mapping(hr_region *region, struct hr_file_id *out, bool *by_another);

int hr_read_slot_pids(const hr_region *region, struct hr_slot_pids *out);

/*
 * Search `proc` (NULL = "/proc") for processes that map the region; `only` names the pids that
 * matter, NULL = all.  `excluded` are processes whose maps are not read.  This process counts if it
 * uses the region itself: it has the lock by another handle, it is attached, or another library in
 * it maps the file.  A caller that has the gate and not the lock searches without its own handle.
 * HR_OK or HR_ESYSTEM.
 */
enum hr_own_handle { HR_WITH_OWN_HANDLE, HR_WITHOUT_OWN_HANDLE };
struct hr_strangers {
    const struct hr_stranger *list;
    uint32_t count;
};
int hr_find_mappers(hr_region *region, const char *proc, enum hr_own_handle own,
                    const struct hr_slot_pids *only, const struct hr_strangers *excluded,
                    uint64_t limit_ns, struct hr_mappers *out);

/* Enter, search with HR_PROC_NS, leave. */
int hr_look_for_mappers(hr_region *region, const char *proc, const struct hr_slot_pids *only,
                        struct hr_mappers *out);

/*
 * Whether the region's file may have a second inode, through which other processes map the same
 * memory: it lies on an overlay, in the upper directory of one, or a process maps what may be the
 * other inode.  For that is all there is to see of an overlay from a bind mount of its upper
 * directory, or from a mount namespace without it.  Locks on bytes of the one inode do not exclude
 * those on the other.  Searches /proc, so it is for rare questions.
 */
bool hr_may_have_two_inodes(hr_region *region);
/* As far as names and this mount namespace tell.  True where that cannot be told. */
bool hr_lies_on_overlay(const hr_region *region);

#endif
