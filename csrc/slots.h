/*
 * Process slots: being a process of the region, and writing for others.
 *
 * CONCEPT
 *
 * A process of the region has one slot below proc_num, named by its pid in the
 * container's namespace.  Slot numbers are no identity: libvgpu moves slots.
 *
 *   hr_attach(), hr_charge(), hr_release(), hr_detach()   for ourselves
 *   hr_edit_slot(), hr_reap(), hr_repair_slots()          from outside
 *
 * All of these fail with HR_EREADONLY (HR_REASON_LAYOUT) in `unversioned` and `unversioned-no-util`.
 *
 * Up to HAMi 2.8.0 (layouts without a seqlock) everything happens under the
 * semaphore, and each process looks for its slot each time.  From 2.8.1 on processes remember
 * where their slot is and account in it without the semaphore.  The version in a file is its
 * creator's: both may share one that says 1.1.  So this library moves no slot, in no layout.  A
 * slot that goes is emptied where it is, under the pid that it had, and taken again by a later
 * process.
 *
 * A slot is filled before proc_num admits it, and emptied before proc_num leaves it
 * out.  A kill between any two stores leaves, at worst, something that counts too much: a dead
 * process until it is reaped, or a frozen copy until the next repair.  docs/protocol.md tells all
 * of it.
 */
#ifndef HR_SLOTS_H
#define HR_SLOTS_H

#include "lock.h"

/*
 * Take a slot for this process, under the lock.  A slot that has its pid already
 * is a dead predecessor's, or its own of before; it is emptied and taken.  Else an emptied one
 * is used again, where that is worth a look at /proc, or one at the end is taken, beyond all
 * in which a live process may be writing.  One attachment per handle, and one handle
 * per process and region: HR_EATTACHED; with detail.reason HR_REASON_FOREIGN_MAPPING another
 * library in this process, libvgpu, has the region mapped; with HR_REASON_SAME_PID a live process
 * of another pid namespace has this one's pid there.  A ticket (lock.h), if not NULL, owns
 * the attachment: it detaches when it ends, if that is the one.
 *
 * HR_EFULL, HR_ETIMEOUT and the rest of hr_lock().
 */
int hr_attach(hr_region *region, struct hr_ticket *ticket, uint64_t timeout_ns);
void hr_end_attachment(struct hr_ticket *ticket);

/* Empty the slot, and remove it if it is the last one.  HR_EDETACHED: not attached. */
int hr_detach(hr_region *region, uint64_t timeout_ns);

enum hr_kind { HR_CONTEXT, HR_MODULE, HR_DATA };

/*
 * Count `bytes` of one kind on one device, if the sum over all slots stays within
 * the limit, which is read each time.  HR_EMEMORYLIMIT (detail: device, found =
 * used bytes, limit, wanted).
 */
int hr_charge(hr_region *region, uint32_t device, uint32_t kind, uint64_t bytes,
              uint64_t timeout_ns);

/* Count what is there already, and cannot be refused any more: as hr_charge(), whatever the limit.
 */
int hr_count(hr_region *region, uint32_t device, uint32_t kind, uint64_t bytes,
             uint64_t timeout_ns);

/* Give back.  HR_EINVAL (detail.found = what is charged): more than was charged. */
int hr_release(hr_region *region, uint32_t device, uint32_t kind, uint64_t bytes,
               uint64_t timeout_ns);

enum hr_slot_value {
    HR_SLOT_HOST_PID,
    HR_SLOT_STATUS,
    HR_SLOT_MONITOR_USED, /* bytes; with a device */
    HR_SLOT_SM,           /* percent; with a device; HR_EINVAL where the layout has none */
    HR_SLOT_ENC,
    HR_SLOT_DEC
};

struct hr_slot_edit {
    uint32_t value; /* enum hr_slot_value */
    uint32_t device;
    uint64_t to;
    uint64_t before; /* filled in */
};

/*
 * Store values in the slot of `pid`, found afresh under the lock.  HR_ENOPROCESS.
 * With `dry_run` nothing is stored.
 */
int hr_edit_slot(hr_region *region, int32_t pid, struct hr_slot_edit *edits, uint32_t count,
                 uint32_t dry_run, uint64_t timeout_ns);

enum hr_reaped {
    HR_REAP_REMOVED = 1, /* the slot is gone: no process of the region lives behind it */
    HR_REAP_EMPTIED,     /* the slot is empty and stands where it was */
    HR_REAP_ALIVE,       /* left alone: the process lives */
    HR_REAP_UNKNOWN,     /* left alone: /proc does not show enough to tell */
    HR_REAP_CUT_SHORT    /* left alone: the search of /proc was cut short */
};

struct hr_reap {
    int32_t pid;
    uint32_t what;  /* enum hr_reaped */
    uint64_t bytes; /* that its slot counted, over all devices */
};

/*
 * Free the slots of dead processes: those of `pids`, or with count 0 all.  Seqlocks
 * that the dead left odd are made even.  `out` takes HR_SLOTS entries; returns
 * their number.  Explicit pids that live or cannot be judged are reported; so is
 * HR_ENOPROCESS for one without a slot, before anything is done.
 *
 * /proc is searched before the lock, for 2 s of the processor's time at most, and once more under
 * it, for 0.5 s.  What counts and could not be judged because that was not enough is reported as
 * HR_REAP_CUT_SHORT, whether it was asked for or not: no such entry, and nobody was left out for
 * want of time.  The search for the owners of slots with pid 0 goes on where the call before was
 * cut short, by any handle of this process for that file, for ten minutes: after some calls it has
 * seen everybody.
 */
int hr_reap(hr_region *region, const char *proc, const int32_t *pids, uint32_t count,
            uint32_t dry_run, uint64_t timeout_ns, struct hr_reap *out);

/* A process that is known to be none of the region's, whatever its pids are. */
struct hr_stranger {
    uint64_t start_time_ticks; /* after boot, field 22 of its stat: with the pid, its identity */
    uint32_t pid;              /* in the /proc that is searched */
};

/*
 * The same beside `strangers`, sorted by pid: processes that need not be asked for their maps,
 * because the caller knows them to be of other containers.  Without them a neighbour with many
 * mappings and the pid of a slot decides what a call costs, and what it can tell.
 */
int hr_reap_without(hr_region *region, const char *proc, const struct hr_stranger *strangers,
                    uint32_t stranger_count, const int32_t *pids, uint32_t count, uint32_t dry_run,
                    uint64_t timeout_ns, struct hr_reap *out);

/*
 * Judge the slots of many regions by one look at /proc.  hr_reap() reads /proc for its region
 * alone, and under its lock; this is for a node, and changes nothing.
 *
 * List the processes first, after all slots have been read: a process that came later than the list
 * is not in it, and its slot would count as dead.  A list keeps a descriptor of that /proc, 176
 * bytes for each process, and 1.5 KiB for each whose maps were read.  Calls with one list exclude
 * each other.
 *
 * `cpu_ns` is what a call may cost of the processor's time; it takes up to twenty times as long
 * where others want the processor too.  What is not reached with it makes slots unknown.
 *
 * `strangers` are as for hr_reap_without().
 *
 * hr_list_processes(): HR_ESYSTEM.
 * hr_judge_slots(), hr_judge_slots_without(): `lives` gets an enum hr_liveness for each of `count`
 * pids, HR_SLOTS at most, by the rules by which hr_reap() frees slots.  HR_ESYSTEM, HR_ESTALE,
 * HR_ECORRUPT, HR_EINVAL.
 */
struct hr_process_list;
int hr_list_processes(const char *proc, uint64_t cpu_ns, struct hr_process_list **out);
int hr_judge_slots(hr_region *region, struct hr_process_list *list, const int32_t *pids,
                   uint32_t count, uint64_t cpu_ns, uint32_t *lives);
int hr_judge_slots_without(hr_region *region, struct hr_process_list *list,
                           const struct hr_stranger *strangers, uint32_t stranger_count,
                           const int32_t *pids, uint32_t count, uint64_t cpu_ns, uint32_t *lives);
void hr_free_process_list(struct hr_process_list *list);

enum hr_slot_repaired {
    HR_REPAIR_DONE = 1, /* the process counts once, in its own slot */
    HR_REPAIR_LEFT,     /* it may not, and there is no proof of which slot is its own */
    HR_REPAIR_CUT_SHORT /* the search of /proc was cut short before that could be told */
};

struct hr_slot_repair {
    int32_t pid;
    uint32_t what; /* enum hr_slot_repaired */
};

/*
 * Put right what moves have torn apart: a live process that writes in a slot at or above
 * proc_num, which counts no more, while its copy below is frozen.  Proof is a slot that is
 * seen moving within 20 ms.  proc_num is raised to take it in, then copies below it
 * are emptied where they are; so is a copy that an interrupted repair has left.  Nothing
 * is taken in at or above a slot of which nothing can be proved.  `out` takes HR_SLOTS
 * entries; returns their number.  A dry run through a region that was opened for
 * reading takes no lock.
 *
 * A slot with pid 0 that counts something may stand in the way.  The search for its owner goes on
 * where a call of hr_reap() or of this function was cut short; until it has ended, what waits for
 * it is reported as HR_REPAIR_CUT_SHORT.
 */
int hr_repair_slots(hr_region *region, const char *proc, uint32_t dry_run, uint64_t timeout_ns,
                    struct hr_slot_repair *out);

#endif
