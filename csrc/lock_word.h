/*
 * The words of the region's lock, and the steps that taking, giving back and
 * recovering are made of.  Internal to the core; lock.h is the manual.
 */
#ifndef HR_LOCK_WORD_H
#define HR_LOCK_WORD_H

#include <sys/types.h>

#include "fields.h"
#include "lock.h"

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

static inline bool hr_is_foreign(uint64_t owner)
{
    return owner >= HR_FOREIGN_OWNER && owner <= INT32_MAX;
}

/*
 * Gate, host lock and semaphore, for calls that have entered.  Between the two a
 * call may store what only a holder may.  `deadline_ns` is on the monotonic clock.
 */
int hr_lock_take(hr_region *region, uint64_t deadline_ns);
/*
 * Take the lock without the host lock where the semaphore is free and the signature is a
 * pid that everybody in the container can judge: for accounting, which is frequent.
 */
int hr_lock_take_quickly(hr_region *region, uint64_t deadline_ns);
int hr_lock_drop(hr_region *region);
/* For hr_close(): give back what this handle still holds. */
void hr_lock_abandon(hr_region *region);

/* Enter, take the lock, run the work inside the fault guard, give the lock back, leave. */
typedef int hr_take_lock(hr_region *region, uint64_t deadline_ns);
int hr_run_under(hr_take_lock *take, hr_region *region, hr_guarded_work *work, void *argument,
                 uint64_t timeout_ns);
int hr_run_locked(hr_region *region, hr_guarded_work *work, void *argument, uint64_t timeout_ns);

/* The gate alone, against the handle's other threads. */
int hr_gate_enter(hr_region *region, uint64_t deadline_ns);
void hr_gate_leave(hr_region *region);

/* Unique while the thread lives. */
uintptr_t hr_thread_id(void);

/* Always after a post: old glibc counts its waiters where new glibc has other bits. */
void hr_sem_wake(unsigned char *sem);

/* Under the gate: what this handle signs with. */
void hr_decide_signature(hr_region *region);

/*
 * Whether the signature in owner_pid proves its holder dead, to one who has the
 * host lock: every live writer of this library that signs so would have that.
 */
bool hr_is_signed_by_dead_writer(const hr_region *region, uint64_t owner);

/* Locks of the open file: the host lock's byte, or another range. */
int hr_set_range_lock(int fd, short type, off_t start, off_t length);
int hr_take_range(hr_region *region, off_t start, off_t length, uint64_t deadline_ns);
int hr_take_host_lock(hr_region *region, uint64_t deadline_ns);
void hr_drop_host_lock(hr_region *region);

/* Inside the guard: clear owner_pid if it still is ours, and only then post.  HR_ELOST. */
int hr_drop_semaphore_work(void *region);

#endif
