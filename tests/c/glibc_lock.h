/*
 * The region's lock as libvgpu takes it: glibc's own semaphore in the shared bytes,
 * and the owner's pid beside it.
 *
 * Containers with a glibc before 2.21 have the older semaphore: the value in 32 bits,
 * a flag, and a count of waiters in the next 8 bytes.  No such glibc is to be had any
 * more, so its steps are taken here by hand.
 */
#ifndef GLIBC_LOCK_H
#define GLIBC_LOCK_H

#include <errno.h>
#include <linux/futex.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct old_semaphore {
    _Atomic uint32_t value;
    uint32_t flag;
    _Atomic uint64_t waiters;
};

struct glibc_lock {
    sem_t *sem;
    struct old_semaphore *old; /* the same bytes */
    _Atomic uint64_t *owner;
    bool is_old;
};

static inline struct glibc_lock glibc_lock_in(void *base, uint32_t sem, uint32_t owner_pid,
                                              bool is_old)
{
    unsigned char *bytes = base;
    return (struct glibc_lock){.sem = (sem_t *)(void *)(bytes + sem),
                               .old = (struct old_semaphore *)(void *)(bytes + sem),
                               .owner = (_Atomic uint64_t *)(void *)(bytes + owner_pid),
                               .is_old = is_old};
}

static inline int glibc_lock_init(const struct glibc_lock *lock)
{
    if (!lock->is_old)
        return sem_init(lock->sem, 1, 1);
    atomic_store(&lock->old->value, 1);
    lock->old->flag = 0; /* not private */
    atomic_store(&lock->old->waiters, 0);
    return 0;
}

static inline bool old_semaphore_try(struct old_semaphore *sem)
{
    uint32_t value = atomic_load(&sem->value);
    while (value > 0) {
        if (atomic_compare_exchange_weak(&sem->value, &value, value - 1))
            return true;
    }
    return false;
}

static inline int old_semaphore_wait(struct old_semaphore *sem, const struct timespec *deadline)
{
    if (old_semaphore_try(sem))
        return 0;
    int error = 0;
    atomic_fetch_add(&sem->waiters, 1);
    while (error == 0 && !old_semaphore_try(sem)) {
        long slept = syscall(SYS_futex, &sem->value, FUTEX_WAIT_BITSET | FUTEX_CLOCK_REALTIME, 0,
                             deadline, NULL, FUTEX_BITSET_MATCH_ANY);
        if (slept != 0 && errno != EAGAIN)
            error = errno;
    }
    atomic_fetch_sub(&sem->waiters, 1);
    return error;
}

static inline void old_semaphore_post(struct old_semaphore *sem)
{
    atomic_fetch_add(&sem->value, 1);
    if (atomic_load(&sem->waiters) > 0)
        syscall(SYS_futex, &sem->value, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* 0, or an errno. */
static inline int glibc_lock_take(const struct glibc_lock *lock, time_t timeout_s)
{
    struct timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += timeout_s;
    int error;
    do {
        if (lock->is_old)
            error = old_semaphore_wait(lock->old, &deadline);
        else
            error = sem_timedwait(lock->sem, &deadline) == 0 ? 0 : errno;
    } while (error == EINTR);
    if (error == 0)
        atomic_store_explicit(lock->owner, (uint64_t)getpid(), memory_order_relaxed);
    return error;
}

static inline void glibc_lock_drop(const struct glibc_lock *lock)
{
    atomic_store_explicit(lock->owner, 0, memory_order_relaxed);
    if (lock->is_old)
        old_semaphore_post(lock->old);
    else
        sem_post(lock->sem);
}

static inline uint64_t glibc_lock_waiters(const struct glibc_lock *lock)
{
    if (lock->is_old)
        return atomic_load(&lock->old->waiters);
    return atomic_load((_Atomic uint64_t *)(void *)lock->sem) >> 32;
}

#endif
