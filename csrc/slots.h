/*
 * Process slots: being a process of the region, and writing for others.
 *
 * CONCEPT
 *
 * A process of the region has one slot below proc_num, named by its pid in the
 * container's namespace.  Slot numbers are no identity: slots move.
 *
 *   hr_attach(), hr_charge(), hr_release(), hr_detach()   for ourselves
 *   hr_set_slot_value(), hr_reap(), hr_repair_slots()     from outside
 *
 * TWO GENERATIONS
 *
 * Up to HAMi 2.8.0 (layouts without a seqlock) everything happens under the
 * semaphore, and each process looks for its slot each time: a slot is removed by
 * moving the last one into the hole.
 *
 * From 2.8.1 on (layouts with a seqlock) processes remember where their slot is
 * and account in it without the semaphore.  Nothing may be moved under a live
 * process then: dead slots are cut off the end, and others are emptied where they
 * are.  libvgpu itself breaks this rule when it removes two dead slots at once.
 * A process of ours notices and puts it right from its own books; for others
 * there is hr_repair_slots().
 *
 * ORDER OF STORES
 *
 * A slot is filled before proc_num admits it.  A slot that goes is emptied first,
 * then overwritten, then the count is lowered.  So a kill between any two stores
 * leaves, at worst, a dead process that is still counted, until it is reaped, or
 * a last slot that stands twice, which the next holder of the lock finishes.
 */
#ifndef HR_SLOTS_H
#define HR_SLOTS_H

#include "lock.h"

/*
 * Take a slot for this process, under the lock.  A slot that has its pid already
 * is a dead predecessor's; it is emptied and taken.  One attachment per handle,
 * and one handle per process and region: HR_EATTACHED.  With detail.why
 * HR_WHY_FOREIGN_MAPPING another library in this process, libvgpu, has the region mapped.
 *
 * HR_EFULL, HR_ETIMEOUT and the rest of hr_lock().
 */
int hr_attach(hr_region *region, uint64_t timeout_ns);

/* Empty and remove the slot.  HR_EDETACHED: not attached. */
int hr_detach(hr_region *region, uint64_t timeout_ns);

enum hr_kind { HR_CONTEXT, HR_MODULE, HR_DATA };

/*
 * Count `bytes` of one kind on one device, if the sum over all slots stays within
 * the limit, which is read each time.  HR_EMEMORYLIMIT (detail: device, found =
 * used bytes, limit, wanted).
 */
int hr_charge(hr_region *region, uint32_t device, uint32_t kind, uint64_t bytes,
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
    HR_REAP_REMOVED = 1, /* the slot is gone */
    HR_REAP_EMPTIED,     /* the slot is empty and stands where it was */
    HR_REAP_ALIVE,       /* left alone: the process lives */
    HR_REAP_UNKNOWN      /* left alone: /proc does not show enough to tell */
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
 */
int hr_reap(hr_region *region, const char *proc, const int32_t *pids, uint32_t count,
            uint32_t dry_run, uint64_t timeout_ns, struct hr_reap *out);

/*
 * Judge the slots of many regions by one look at /proc.  hr_reap() reads /proc for its region
 * alone, and under its lock; this is for a node, and changes nothing.
 *
 * List the processes first, after all slots have been read: a process that came later than the list
 * is not in it, and its slot would count as dead.  A list keeps a descriptor of that /proc, 160
 * bytes for each process, and 1.5 KiB for each whose maps were read.  Calls with one list exclude
 * each other.
 *
 * hr_list_processes(): what is not reached in time makes slots unknown.  HR_ESYSTEM.
 * hr_judge_slots(): `lives` gets an enum hr_life for each of `count` pids, HR_SLOTS at most, by the
 * rules by which hr_reap() frees slots.  HR_ESYSTEM, HR_ESTALE, HR_ECORRUPT, HR_EINVAL.
 */
struct hr_process_list;
int hr_list_processes(const char *proc, uint64_t timeout_ns, struct hr_process_list **out);
int hr_judge_slots(hr_region *region, struct hr_process_list *list, const int32_t *pids,
                   uint32_t count, uint64_t timeout_ns, uint32_t *lives);
void hr_free_process_list(struct hr_process_list *list);

/*
 * Put right what moves have torn apart (layouts with a seqlock): a live process
 * that writes in a slot at or above proc_num.  proc_num is raised to take the slot
 * in, and the frozen copy below is emptied where it is.  `pids` takes HR_SLOTS
 * entries, the processes concerned; returns their number.  A dry run through a
 * region that was opened for reading takes no lock.
 */
int hr_repair_slots(hr_region *region, const char *proc, uint32_t dry_run, uint64_t timeout_ns,
                    int32_t *pids);

#endif
