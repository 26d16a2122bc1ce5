/*
 * The slot table: finding, naming, emptying and counting slots.  Internal to the
 * core; all that stores is called under the region's lock, but for what a process does
 * in its own slot.
 *
 * No slot is ever moved, in no layout: the version in a file is its creator's, and a
 * process of HAMi 2.8.1 or later, which remembers the address of its slot, may
 * use a file that says 1.1.
 */
#ifndef HR_SLOT_TABLE_H
#define HR_SLOT_TABLE_H

#include "fields.h"
#include "region.h"

/*
 * The name of a slot that belongs to nobody.  A pid of 0 among the slots in use hangs the
 * next newcomer of libvgpu up to 2.8.0; no process ever has this one (pid_max is 2^22 at
 * most), so that all generations take the slot for a dead process's.
 */
#define HR_NOBODY INT32_MAX

/* The file's own generation accounts beside the lock, inside the slot's seqlock. */
bool hr_has_seqlock(const hr_region *region);

/*
 * The word of a slot that a process which remembers it counts in, or HR_ABSENT.  The slots
 * of layouts 1.1 and 1.2 are the same but for this word, which is unused in the former:
 * in a slot of a process up to 2.8.0 it stays 0, while a newer one that works on such a
 * file counts in it.
 */
uint32_t hr_seqlock_offset(const hr_region *region);
/*
 * A bit of that word that nobody counts to.  It stands in the slots of this library's processes
 * that have a mark (marks.h); libvgpu's processes make the word 0 when they take a slot.
 */
#define HR_MARK_FLAG (UINT64_C(1) << 62)
bool hr_is_flagged(const hr_region *region, const unsigned char *slot);
/* Under the lock: set it, and make the seqlock even. */
void hr_flag_seqlock(const hr_region *region, unsigned char *slot);
/* The seqlock without the flag, or 0 where there is none. */
uint64_t hr_seqlock_of(const hr_region *region, int32_t index);

int32_t hr_slot_pid(const hr_region *region, const unsigned char *slot);
void hr_set_slot_pid(const hr_region *region, unsigned char *slot, int32_t pid);

/*
 * proc_num from what was judged to what it shall be.  Never a plain store: when it refuses
 * an allocation, libvgpu removes slots without the lock, and lowers proc_num meanwhile.
 */
bool hr_swap_proc_num(const hr_region *region, int32_t judged, int32_t count);

/*
 * The index of the pid's slot below `count`, or -1.  A pid can stand twice: libvgpu copies
 * slots downwards, and the original is the highest.
 */
int32_t hr_find_slot(const hr_region *region, int32_t pid, int32_t count);
int hr_no_process(int32_t pid);

/* Left odd by a death, or by a move in the middle of an accounting, every reader of libvgpu would
 * spin on it for ever. */
void hr_make_seqlock_even(const hr_region *region, unsigned char *slot);
/* All but the pid and the seqlock, which is made even. */
void hr_empty_slot(const hr_region *region, unsigned char *slot);
/* Only what counts: a copy that a live process has left keeps its status, which old versions of
 * libvgpu read there. */
void hr_clear_usage(const hr_region *region, unsigned char *slot);
bool hr_slot_is_empty(const hr_region *region, unsigned char *slot);
uint64_t hr_slot_bytes(const hr_region *region, unsigned char *slot);

/* A slot with pid 0, as it was before /proc was searched. */
struct hr_nameless {
    int32_t index;
    uint64_t seqlock, bytes;
};

struct hr_nameless_slots {
    int32_t count;
    struct hr_nameless list[HR_SLOTS];
};

/* Whether a slot with pid 0 counts something, or is being accounted in. */
bool hr_is_in_use(const hr_region *region, int32_t index);
void hr_note_nameless(const hr_region *region, int32_t index, struct hr_nameless_slots *slots);

#endif
