/*
 * The words of the region's lock, and the steps that taking, giving back and
 * recovering are made of.  Internal to the core; region.h is the manual.
 */
#ifndef HR_LOCK_WORD_H
#define HR_LOCK_WORD_H

#include "byte_lock.h"
#include "fields.h"
#include "region.h"

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

/* Both words, read one after the other: only a swap proves that they stood so together. */
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

/* Inside the guard.  False: something else stands there, and nothing was changed. */
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
/* The same; the clock is read only where another thread is inside. */
int hr_gate_enter_within(hr_region *region, uint64_t timeout_ns);
void hr_gate_leave(hr_region *region);

/* Unique while the thread lives. */
uintptr_t hr_thread_id(void);

/* Always after a post: old glibc counts its waiters where new glibc has other bits. */
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

#endif
