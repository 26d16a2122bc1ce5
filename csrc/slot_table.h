/*
 * The slot table: finding, naming, emptying, moving and freeing slots.  Internal to
 * the core; all that stores is called under the region's lock, but for what a
 * process does in its own slot.
 */
#ifndef HR_SLOT_TABLE_H
#define HR_SLOT_TABLE_H

#include "fields.h"
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

/* Finish a removal whose process died after the move and before the count.  Under the lock. */
int hr_finish_removal(const hr_region *region);

#endif
