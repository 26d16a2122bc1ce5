/*
 * libhamiregion's C core: HAMi's shared region, read and edited in place.
 *
 * CONCEPT
 *
 * HAMi shares one GPU among containers.  In each container its library,
 * libvgpu.so, maps one small file, the *shared region*: the limits, a table of
 * 1,024 process slots with what each process uses, and a semaphore.  This core
 * maps the same file beside it.  It never allocates on a hot path, never calls
 * libc's semaphores, never prints, never exits, and never waits without a
 * deadline.
 *
 *   hr_open()      map a region, after proof that it is one
 *   hr_snapshot()  one consistent picture of it, without its lock
 *   hr_read_set()  the same for many regions; hr_columns() turns that into columns
 *   hr_get()       one live value
 *   hr_edit()      one limit or several, all or nothing
 *   hr_close()     unmap; waits for calls in progress in other threads
 *   hr_free()      release the handle itself
 *
 * Five layouts exist.  All functions work on the offset table of
 * the one that hr_open() identified.
 *
 * Everything in a region is written by the container and is therefore hostile:
 * counts and indices are checked at each use, also after a successful open.
 *
 * CAVEATS
 *
 * - Errors.  Functions return a negative HR_E... code on failure, and HR_OK or,
 *   where it says so, a count or a layout otherwise.  What exactly was wrong is
 *   in the struct hr_error that the caller passes.
 * - Threads.  A handle may be used by several threads at once.  hr_close() lets
 *   calls in progress end; later ones get HR_ECLOSED.  hr_free() must come
 *   last, when no thread can call with the handle any more.
 * - Fork.  A handle does not survive fork(): the child gets HR_EFORKED and has
 *   to open the file itself.  hr_close() and hr_free() work in the child.
 * - Truncation.  Anybody in the container can shorten the file under our
 *   mapping, and the kernel answers with SIGBUS.  Accesses run inside a guard
 *   (internal.h) that turns it into HR_ESTALE.  The guard installs a SIGBUS
 *   handler on the first hr_open() and hands every signal that is not ours to
 *   the handler that was there before.
 * - Replacement.  A container that restarts may replace the file.  The old
 *   mapping then shows old data for ever; hr_is_stale() tells.
 * - POSIX record locks.  Closing any descriptor of a file drops the process's
 *   POSIX locks on it.  hr_open(), hr_attach(), the first hr_lock(), and whatever judges
 *   a lock or a slot close descriptors of the region.  A process that has libvgpu.so loaded itself
 * would drop the lock that libvgpu takes while it starts: it opens regions with HR_KEEP, and no
 * others.
 */

/*
 * The five layouts of HAMi's shared region.
 *
 * Every function of this core works on one `struct hr_layout`: a row of offsets
 * (layout_rows.h).  A sixth layout is one more row.
 */

/*
 * The region's semaphore: taking it, telling who has it, breaking it with proof.
 * Layouts `unversioned` and `unversioned-no-util` are refused: HR_EREADONLY, HR_REASON_LAYOUT.
 *
 * docs/protocol.md is the manual, and proves it.  In short: libvgpu guards the slot table with
 * an unnamed process-shared POSIX semaphore and signs in owner_pid.  Its bytes belong to the
 * container's libc, so no function of ours touches it: the value is the low half of its first
 * word, and a futex.  We never register as waiters, so a process that dies while it waits
 * leaves nothing behind.
 *
 * owner_pid and that word are neighbours, and one 16-byte compare-and-swap changes both:
 *
 *   take       (0, value above 0)        -> (our signature, 0)
 *   give back  (our signature, any)      -> (0, 1), then FUTEX_WAKE
 *   take over  (a dead signature, any)   -> (our signature, 0)
 *
 * Recovery holds the *host lock*, an open file's lock on HR_HOST_LOCK_BYTE.
 *
 * A process that is attached, or is just attaching, signs with its pid in the lower half of the
 * word.  The upper half, which libvgpu ignores, has HR_ATTACHED_OWNER and the time of attaching.
 * The process keeps the byte HR_PID_BYTE + its pid locked (slots.h).  Without that byte the upper
 * half is 0, and /proc is the proof.  Any other handle signs with numbers, HR_FOREIGN_OWNER + n,
 * above any pid.  It draws a random multiple of HR_TURNS, locks the bytes from HR_NUMBER_BYTE + n
 * on for as long as it is open, and counts through these HR_TURNS numbers, one each time.  A
 * process that can lock the byte of a signature knows that its writer is dead, and while it has it
 * locked, no other can use it.  Numbers from HR_FOREIGN_END on prove nothing: the file may have
 * another inode.
 *
 * CAVEATS
 *
 * - A number is no live pid in the container.  A waiter of libvgpu that has waited
 *   for 9 to 10 s takes the lock from the holder that is signed with a number then, however
 *   short that has held it.  Hold it for microseconds.  A lock that was lost is reported when it
 *   is given back (HR_ELOST).  A pid is never taken away.
 * - Not re-entrant: a second hr_lock() by the thread that holds it is HR_EBUSY.
 * - Lock order: the handle's gate (threads), the host lock, the semaphore.
 */

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
 *   hr_note(), hr_ask_process(), hr_reap_by() and others  without reading /proc
 *
 * All of these fail with HR_EREADONLY (HR_REASON_LAYOUT) in `unversioned` and
 * `unversioned-no-util`.
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

/*
 * The core limiter: how HAMi holds a container to its share of a GPU's cores.
 *
 * CONCEPT
 *
 * A token bucket per device.  A launch of n blocks takes n tokens and may bring
 * the bucket below zero; the next launch then waits until it is refilled.  Every
 * 120 ms a tick compares the utilisation measured with the SM limit, moves the
 * share up or down, and pours the share into the bucket.  The arithmetic is
 * libvgpu's, integer divisions included, so that a program that is held by this
 * limiter runs as it would in a container.
 *
 * CAVEATS
 *
 * - Nothing ticks by itself: the limiter's owner calls hr_limiter_tick() every
 *   HR_LIMITER_PERIOD_NS.  Without ticks an empty bucket stays empty.
 * - Launches are not served in order: the first to wake takes the tokens.
 * - Threads.  All functions but hr_limiter_free() may run at once on one limiter.
 * - Fork.  The child has a copy that goes its own way; with a region its ticks
 *   report HR_EFORKED and the last limit that was read stays in force.
 * - The region has to outlive the limiter; closing it is allowed.
 */
#ifndef HR_REGION_H
#define HR_REGION_H

#include "api.h"

/* An offset that a layout does not have. */
#define HR_ABSENT UINT32_MAX

/* Where the parts of a snapshot lie.  `device` is below span, `index` below process_count. */
static inline size_t hr_snapshot_process_bytes(const struct hr_snapshot *snapshot)
{
    return sizeof(struct hr_process) + snapshot->span * sizeof(struct hr_usage);
}

static inline size_t hr_snapshot_bytes(const struct hr_snapshot *snapshot)
{
    return sizeof(struct hr_snapshot) + snapshot->span * sizeof(struct hr_device) +
           (size_t)snapshot->process_count * hr_snapshot_process_bytes(snapshot);
}

static inline const struct hr_device *hr_snapshot_device(const struct hr_snapshot *snapshot,
                                                         uint32_t device)
{
    return (const struct hr_device *)(const void *)(snapshot + 1) + device;
}

static inline const struct hr_process *hr_snapshot_process(const struct hr_snapshot *snapshot,
                                                           uint32_t index)
{
    const char *first = (const char *)hr_snapshot_device(snapshot, snapshot->span);
    return (const struct hr_process *)(const void *)(first +
                                                     index * hr_snapshot_process_bytes(snapshot));
}

static inline const struct hr_usage *hr_snapshot_usage(const struct hr_snapshot *snapshot,
                                                       uint32_t index, uint32_t device)
{
    return (const struct hr_usage *)(const void *)(hr_snapshot_process(snapshot, index) + 1) +
           device;
}

/* The largest snapshot there is: 1,024 processes x 16 devices. */
#define HR_SNAPSHOT_MAX_BYTES                                                                      \
    (sizeof(struct hr_snapshot) + HR_DEVICES * sizeof(struct hr_device) +                          \
     HR_SLOTS * (sizeof(struct hr_process) + HR_DEVICES * sizeof(struct hr_usage)))

/* Both limits of every device, and the three values of the whole region. */
#define HR_EDITS_MAX (2 * HR_DEVICES + 3)

#endif
