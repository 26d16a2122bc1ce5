/*
 * Marks of slots: the kernel's proof that a process of this library lives.  Internal to the core.
 *
 * An attached process keeps a byte of the file locked, HR_SLOT_BYTE + n, by a page that no child
 * inherits (byte_lock.h), and has the number n in its slot: its mark.  Whoever can lock that byte
 * knows that the process is dead: without /proc, with hidepid, from any pid namespace.  libvgpu
 * moves slots, and the mark goes with them; so the byte belongs to the process, never to a slot's
 * index.  docs/protocol.md tells all of it, and docs/models/marks.pml proves it.
 *
 * A mark is two words where no libvgpu keeps anything: which number, of which pid; and which file
 * the byte is locked in, as one may have two inodes.  It holds only while a flag stands in the
 * slot's seqlock.  A process of libvgpu that takes the slot makes one of the two 0: up to 2.8.0 all
 * of the usage record, from 2.8.1 on the seqlock.
 *
 * No mark: layouts without such words, a slot of libvgpu's or of an earlier build, and a process
 * that could not lock a byte.  Those are judged by /proc.
 */
#ifndef HR_MARKS_H
#define HR_MARKS_H

#include "byte_lock.h"
#include "slot_table.h"

/* Where the byte of a mark lies. */
off_t hr_mark_byte(uint64_t mark);

/* 0, or the slot's mark, if it is of this very file and of the process whose pid stands there. */
uint64_t hr_slot_mark(const hr_region *region, const unsigned char *slot);
/* Under the lock, in a slot that is empty; 0: none. */
void hr_store_mark(const hr_region *region, unsigned char *slot, uint64_t mark);

/*
 * Draw a number for a process with this pid, and lock its byte.  Outside the guard: it opens the
 * file.  Where that cannot be, the mark is 0: being attached does not depend on it.
 */
void hr_draw_mark(hr_region *region, int32_t pid, uint64_t *mark, struct hr_byte_lock *byte);

/*
 * What the bytes tell of the marks that stand in a table.  While it is not forgotten, no process
 * can get the number of one that is dead.
 */
struct hr_judged_marks {
    uint32_t count;
    struct {
        uint64_t mark;
        enum hr_liveness liveness;
    } list[HR_SLOTS];
    struct hr_byte_lock kept;
};

/* Of all slots, or those of one pid.  Outside the guard; also where the region cannot be read or
 * its file not be opened: then nothing is known. */
void hr_judge_marks(hr_region *region, int32_t pid, struct hr_judged_marks *out);
void hr_forget_marks(const hr_region *region, struct hr_judged_marks *marks);

enum hr_liveness hr_liveness_of_mark(const struct hr_judged_marks *marks, uint64_t mark);
bool hr_is_judged(const struct hr_judged_marks *marks, uint64_t mark);

#endif
