/*
 * The slot table: finding, naming, emptying, moving and freeing slots.  Internal to
 * the core; all that stores is called under the region's lock, but for what a
 * process does in its own slot.
 */
#ifndef HR_SLOT_TABLE_H
#define HR_SLOT_TABLE_H

#include "handle.h"
#include "mappers.h"
#include "slots.h"

/* In a `used` record: three kinds from its start, the offset, then the total. */
enum { HR_TOTAL_OFFSET = 32 };

/* HAMi 2.8.1 and later: processes remember their slot and account in it without the lock. */
bool hr_has_seqlock(const hr_region *region);

int32_t hr_slot_pid(const hr_region *region, const unsigned char *slot);
void hr_set_slot_pid(const hr_region *region, unsigned char *slot, int32_t pid);
void hr_set_proc_num(const hr_region *region, int32_t count);
unsigned char *hr_slot_used(const hr_region *region, unsigned char *slot, uint32_t device);

/*
 * The index of the pid's slot below `count`, or -1.  A pid can stand twice.  After an
 * unfinished removal under the older rule, the lower slot is the one that its process
 * finds.  After hr_repair_slots() under the newer rule, the lower one is the emptied copy.
 */
int32_t hr_find_slot(const hr_region *region, int32_t pid, int32_t count);
int hr_no_process(int32_t pid);

/* Everything but the name and the seqlock, which is made even. */
void hr_empty_slot(const hr_region *region, unsigned char *slot);
bool hr_slot_is_empty(const hr_region *region, unsigned char *slot);
uint64_t hr_slot_bytes(const hr_region *region, unsigned char *slot);

/*
 * Up to 2.8.0: the last slot goes into the hole.  The hole is empty and keeps the
 * dead name while it is filled, so a kill leaves the dead process counted; once
 * it has the other's name, that one stands twice, and hr_finish_removal() ends it.
 */
void hr_move_last_into(const hr_region *region, int32_t hole, int32_t count);

/* Remove the slot, or empty it where it is.  Returns enum hr_reaped. */
uint32_t hr_free_slot(const hr_region *region, int32_t index, int32_t *count);

/* hr_find_mappers() with this process's handles, for who has not entered. */
int hr_look_for_mappers(hr_region *region, const char *proc, struct hr_mappers *out);

/* Enter, take the lock, run the work inside the fault guard, give the lock back, leave. */
typedef int hr_take_lock(hr_region *region, uint64_t deadline_ns);
int hr_run_under(hr_take_lock *take, hr_region *region, hr_guarded_work *work, void *argument,
                 uint64_t timeout_ns);
int hr_run_locked(hr_region *region, hr_guarded_work *work, void *argument, uint64_t timeout_ns);

/*
 * Whether a live process may be writing at proc_num, where a newcomer would go, is
 * judged over a short while: hr_watch_seqlocks() begins before the lock,
 * hr_step_over_orphans() ends under it.
 */
struct hr_seqlock_watch {
    uint64_t seqlocks[HR_SLOTS];
};
int hr_watch_seqlocks(hr_region *region, struct hr_seqlock_watch *watch);
int hr_step_over_orphans(hr_region *region, const struct hr_mappers *mappers,
                         const struct hr_seqlock_watch *watch);

#endif
