/* Locks: on bytes of the file, and the region's own; and the processes that map the region. */
#ifndef HR_LOCK_H
#define HR_LOCK_H

#include "internal.h"
#include "proc.h"

#include <sys/types.h>

/* ---- Locks on bytes ---------------------------------------------------------------------- */

/*
 * Locks on bytes of a region's file.
 *
 * They are locks of an open file (F_OFD_SETLK), which the kernel releases when the last
 * reference to that open file is gone.  The reference is a one-page mapping that no child
 * inherits (MADV_DONTFORK), and nothing else: the descriptor is closed at once.  So neither
 * a child with a memory of its own (fork(), clone() without CLONE_VM) nor exec() keeps the
 * lock of a dead process, and a program that closes all descriptors does not lose its
 * locks.  The page cannot be accessed and does not count as mapping the region for writing.
 *
 * Caveat: a child that shares the memory (CLONE_VM, as vfork() has it until it executes)
 * keeps the lock of a killed holder for as long as it lives.
 */

/* HR_EREADONLY (HR_REASON_KEPT) if the file must not be opened again. */
int hr_check_reopenable(const hr_region *region);

/*
 * A descriptor of the region's file, by its path.  HR_ESTALE where that leads to another file by
 * now, HR_EACCESS, HR_ESYSTEM.  Closing it drops what POSIX locks the process has on the file.
 */
int hr_open_again(const hr_region *region, uint32_t flags);

/* Where the lock of the handle lies that signs so. */
static inline off_t hr_number_byte(uint64_t signature)
{
    return HR_NUMBER_BYTE + (off_t)(signature - HR_FOREIGN_OWNER);
}

/* Signed with a number. */
static inline bool hr_is_number(uint64_t owner)
{
    return owner >= HR_FOREIGN_OWNER && owner < HR_NUMBERS_END;
}

/* The signature of an attached process that keeps the byte of its pid locked.  `life` is another
 * one in each process that gets the pid. */
static inline uint64_t hr_attached_signature(int32_t pid, uint32_t life)
{
    return (uint64_t)(HR_ATTACHED_OWNER | life) << 32 | (uint32_t)pid;
}

/* Milliseconds of the mark (slots.h): no two processes have one pid within one. */
static inline uint64_t hr_marked_signature(int32_t pid, uint64_t mark)
{
    return hr_attached_signature(pid, (uint32_t)(mark >> 20) & INT32_MAX);
}

static inline bool hr_is_attached_owner(uint64_t owner)
{
    return (owner >> 32 & HR_ATTACHED_OWNER) != 0 && (uint32_t)owner - 1 < HR_PIDS;
}

/* What libvgpu sees of a signature: a pid, or a number; anything else unchanged. */
static inline uint64_t hr_owner_pid(uint64_t owner)
{
    return hr_is_attached_owner(owner) ? (uint32_t)owner : owner;
}

/*
 * The byte whose lock proves that the signature's writer lives; 0: there is none, or it may be
 * locked in another inode of the same file.
 */
static inline off_t hr_owner_byte(const hr_region *region, uint64_t owner)
{
    if (!region->has_own_pages)
        return 0;
    if (owner >= HR_FOREIGN_OWNER && owner < HR_FOREIGN_END)
        return hr_number_byte(owner);
    return hr_is_attached_owner(owner) ? HR_PID_BYTE + (off_t)(uint32_t)owner : 0;
}

/*
 * Under the gate, without the lock: signed by a former process with our pid.  That one is dead, as
 * the byte of the pid is locked by us.
 */
static inline bool hr_is_predecessor(const hr_region *region, uint64_t owner)
{
    return hr_is_attached_owner(owner) && hr_is_attached_owner(region->lock.signature) &&
           (uint32_t)owner == (uint32_t)region->lock.signature;
}

/*
 * Lock a range for others' writing (F_WRLCK), or against such a lock (F_RDLCK: of these
 * there may be several).  HR_EBUSY without a detail: somebody has a lock in the way.
 * HR_ESTALE where the region's path leads to another file by now, HR_EACCESS, HR_ESYSTEM.
 */
int hr_lock_bytes(const hr_region *region, short type, off_t start, off_t length,
                  struct hr_byte_lock *out);

/* Which of these bytes are locked for writing, by any open file. */
int hr_ask_bytes(const hr_region *region, const off_t *bytes, uint32_t count, bool *is_locked);

/* May be called again, and of a lock that was never taken. */
void hr_unlock_bytes(const hr_region *region, struct hr_byte_lock *lock);

/* ---- The region's lock ------------------------------------------------------------------- */

/*
 * The words of the region's lock, and the steps that taking, giving back and
 * recovering are made of.
 */

static inline unsigned char *hr_sem_at(const hr_region *region)
{
    return region->base + region->layout->sem;
}

static inline unsigned char *hr_owner_at(const hr_region *region)
{
    return region->base + region->layout->owner_pid;
}

static inline uint64_t hr_owner_of(const hr_region *region)
{
    return hr_load_u64(hr_owner_at(region), memory_order_acquire);
}

static inline uint32_t hr_sem_value(uint64_t word)
{
    return (uint32_t)word;
}

static inline unsigned char *hr_postinit_at(const hr_region *region)
{
    return region->base + region->layout->sem_postinit;
}

/* 1 where the layout has none. */
static inline uint32_t hr_postinit_value(const hr_region *region)
{
    if (region->layout->sem_postinit == HR_ABSENT)
        return 1;
    return hr_sem_value(hr_load_u64(hr_postinit_at(region), memory_order_acquire));
}

/* Both words, read one after the other: only a swap proves that both held at one moment. */
struct hr_lock_words {
    uint64_t owner;
    uint64_t sem; /* value and waiters */
};

struct hr_lock_words hr_load_lock(const hr_region *region);

/* The waiters as they are, another value. */
static inline struct hr_lock_words hr_lock_with(struct hr_lock_words words, uint64_t owner,
                                                uint32_t value)
{
    return (struct hr_lock_words){.owner = owner,
                                  .sem = (words.sem & ~(uint64_t)UINT32_MAX) | value};
}

/* HR_EREADONLY (HR_REASON_LAYOUT) in the two oldest layouts, where no single swap changes both
 * words. */
int hr_check_lockable(const hr_region *region);
/* For a call that takes the lock: hr_check_lockable(), then hr_enter_to_write(). */
int hr_enter_to_lock(hr_region *region);

/* Inside the guard.  False: the words differ from `from`, and nothing was changed. */
bool hr_swap_lock(hr_region *region, struct hr_lock_words from, struct hr_lock_words to);

/* For calls that have entered.  Between the two a call may store what only a holder may.
 * `deadline_ns` is on the monotonic clock. */
int hr_lock_take(hr_region *region, uint64_t deadline_ns);
int hr_lock_drop(hr_region *region);
/* Give it back after work that ended with `code`, and return what the call returns: a failure of
 * the work keeps its detail. */
int hr_lock_drop_after(hr_region *region, int code);
/* Whether the lock that this handle has taken is still its own; inside the guard. */
static inline bool hr_lock_is_kept(const hr_region *region)
{
    return hr_owner_of(region) == region->lock.signature;
}

/* Enter, take the lock, run the work inside the fault guard, give the lock back, leave. */
int hr_run_locked(hr_region *region, hr_guarded_work *work, void *argument, uint64_t timeout_ns);

/* The gate alone, against the handle's other threads. */
int hr_gate_enter(hr_region *region, uint64_t deadline_ns);
void hr_gate_leave(hr_region *region);

/* Unique while the thread lives. */
uintptr_t hr_thread_id(void);

/* After a post.  Waiters of this library poll besides, at least each millisecond. */
void hr_sem_wake(unsigned char *sem);

/* Under the gate: what this handle signs with next, in lock.signature. */
int hr_choose_signature(hr_region *region, uint64_t deadline_ns);

/* After a swap that has signed for this handle. */
void hr_note_taken(hr_region *region);

/* Wait for a lock on bytes: HR_ETIMEOUT after the deadline. */
int hr_await_bytes(hr_region *region, off_t start, off_t length, uint64_t deadline_ns,
                   struct hr_byte_lock *out);

/* Under the gate: give back what this handle has taken.  HR_ELOST. */
int hr_give_back(hr_region *region);

/* ---- Processes --------------------------------------------------------------------------- */

/*
 * The processes of a region, as /proc shows them (proc.h): what a search takes from a handle, in
 * numbers.
 */

/* For the lock's owner, while other recoveries wait. */
#define HR_OWNER_NS 1000000000u

/*
 * How the region's file is called in the maps of all processes: our own mapping tells.  A process
 * that has dropped its privileges may not read its own maps; then stat's numbers have to do.
 * `by_another` gets whether this process also maps the file for writing by something else than
 * our handles: it has libvgpu loaded.  Where it is NULL, maps are read once for each handle.
 * HR_ESYSTEM where maps cannot be read now, for want of a descriptor or of memory.
 */
int hr_own_mapping(hr_region *region, bool *by_another);

int hr_read_slot_pids(const hr_region *region, struct hr_slot_pids *out);

/* Fill in the region's part of `search`: its file, the pids of its slots, and whether this process
 * counts.  It does if it uses the region itself: it has the lock by another handle, it is attached,
 * or another library in it maps the file.  HR_OK or HR_ESYSTEM. */
int hr_prepare_search(hr_region *region, struct hr_search *search);

#endif
