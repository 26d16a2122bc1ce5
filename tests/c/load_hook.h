/*
 * Forced into the core's sources by the build of some tests: each of its atomic loads
 * calls back first, so that a writer can act between any two of them, and the time is
 * the test's, so that a test that is preempted is not taken for one that waited.
 */
#ifndef LOAD_HOOK_H
#define LOAD_HOOK_H

/* As the sources say it themselves, but they come too late for the header that follows. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

void before_load(void);
int hooked_clock_gettime(clockid_t clock, struct timespec *now);

/* Or how many loads the guard has would depend on how long ago the processor was here. */
static inline uint64_t hooked_ticks(void)
{
    struct timespec now;
    hooked_clock_gettime(CLOCK_MONOTONIC, &now);
    return ((uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec) * 3;
}

#define clock_gettime hooked_clock_gettime
#define __builtin_ia32_rdtsc() hooked_ticks()

#undef atomic_load_explicit
#ifdef __clang__
#define atomic_load_explicit(at, order) (before_load(), __c11_atomic_load(at, order))
#else
#define atomic_load_explicit(at, order) (before_load(), __atomic_load_n(at, order))
#endif

#endif
