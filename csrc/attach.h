/*
 * Being a process of the region: its slot, and our own books about it.  Internal to the core.
 */
#ifndef HR_ATTACH_H
#define HR_ATTACH_H

#include "marks.h"
#include "table_view.h"

enum { HR_KINDS = 3 };

/* Our own books: we are the only writer of our slot, so they are the truth about it. */
struct hr_attachment {
    uint32_t index;
    bool is_appended; /* no slot of an earlier process, which libvgpu may be about to remove */
    uint64_t mark;    /* of our slot; 0: none */
    struct hr_byte_lock byte; /* on its byte, for as long as we are attached */
    uint64_t charged[HR_DEVICES][HR_KINDS];
};

/* What is known beside the table: NULL where nobody has looked. */
struct hr_evidence {
    const struct hr_table_view *view;
    const struct hr_judged_marks *marks; /* of the slots with our pid */
};

/* hr_take_slot() and hr_regain_slot() return these when they lack evidence and did nothing. */
#define HR_NEEDS_VIEW 1
#define HR_NEEDS_MARKS 2

/* Run the work under the lock; again, with the evidence that it wants, which it finds there. */
int hr_run_with_evidence(hr_region *region, struct hr_evidence *evidence, hr_guarded_work *work,
                         void *argument, uint64_t timeout_ns);

/*
 * Take a slot for `pid`, under the lock: the one that has its pid, else an emptied one, else the
 * next one.  HR_EATTACHED where a live process of another pid namespace has a slot with that pid.
 */
int hr_take_slot(hr_region *region, const struct hr_evidence *evidence, int32_t pid,
                 struct hr_attachment *attachment);

/* Our slot, if it still is where we remember it, else NULL. */
unsigned char *hr_remembered_slot(const hr_region *region);
/* Under the lock: find our slot anew, or take one, and write our books into it. */
int hr_regain_slot(hr_region *region, const struct hr_evidence *evidence);

/* For hr_close(): give this process's slot back.  HR_ETIMEOUT where the lock cannot be had: the
 * slot stays (detail.found = owner_pid, detail.wanted = the bytes that it counts). */
int hr_leave_region(hr_region *region, uint64_t deadline_ns);

#endif
