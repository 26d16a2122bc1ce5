/*
 * Forced into the core's sources by test_interleaving's build: each of its atomic
 * loads calls back first, so that a writer can act between any two of them.
 */
#ifndef LOAD_HOOK_H
#define LOAD_HOOK_H

/* As the sources say it themselves, but they come too late for the header that follows. */
#define _GNU_SOURCE
#include <stdatomic.h>

void before_load(void);

#undef atomic_load_explicit
#ifdef __clang__
#define atomic_load_explicit(at, order) (before_load(), __c11_atomic_load(at, order))
#else
#define atomic_load_explicit(at, order) (before_load(), __atomic_load_n(at, order))
#endif

#endif
