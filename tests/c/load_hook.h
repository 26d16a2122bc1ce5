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
#include <time.h>

void before_load(void);
int hooked_clock_gettime(clockid_t clock, struct timespec *now);

#define clock_gettime hooked_clock_gettime

#undef atomic_load_explicit
#ifdef __clang__
#define atomic_load_explicit(at, order) (before_load(), __c11_atomic_load(at, order))
#else
#define atomic_load_explicit(at, order) (before_load(), __atomic_load_n(at, order))
#endif

#endif
