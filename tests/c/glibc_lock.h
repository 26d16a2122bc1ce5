/*
 * The region's lock as libvgpu takes it: glibc's own semaphore in the shared bytes,
 * and the owner's pid beside it.
 */
#ifndef GLIBC_LOCK_H
#define GLIBC_LOCK_H

#include <errno.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

struct glibc_lock {
    sem_t *sem;
    _Atomic uint64_t *owner;
};

static inline struct glibc_lock glibc_lock_in(void *base, uint32_t sem, uint32_t owner_pid)
{
    unsigned char *bytes = base;
    return (struct glibc_lock){.sem = (sem_t *)(void *)(bytes + sem),
                               .owner = (_Atomic uint64_t *)(void *)(bytes + owner_pid)};
}

/* 0, or an errno. */
static inline int glibc_lock_take(const struct glibc_lock *lock, time_t timeout_s)
{
    struct timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += timeout_s;
    int error;
    do
        error = sem_timedwait(lock->sem, &deadline) == 0 ? 0 : errno;
    while (error == EINTR);
    if (error == 0)
        atomic_store_explicit(lock->owner, (uint64_t)getpid(), memory_order_relaxed);
    return error;
}

static inline void glibc_lock_drop(const struct glibc_lock *lock)
{
    atomic_store_explicit(lock->owner, 0, memory_order_relaxed);
    sem_post(lock->sem);
}

#endif
