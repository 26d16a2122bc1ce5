/*
 * Access to shared words of a mapped region.
 *
 * The mapping has no C objects of our own making, so the words are reached by
 * address and width.  layout.c asserts that these widths are lock-free.  Every
 * caller names its memory order; where an order pairs with another one, the
 * comment stands at the call.
 */
#ifndef HR_ATOMICS_H
#define HR_ATOMICS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

static inline uint64_t hr_load_u64(const unsigned char *at, memory_order order)
{
    return atomic_load_explicit((const _Atomic uint64_t *)(const void *)at, order);
}

static inline int32_t hr_load_i32(const unsigned char *at, memory_order order)
{
    return atomic_load_explicit((const _Atomic int32_t *)(const void *)at, order);
}

static inline void hr_store_u64(unsigned char *at, uint64_t value, memory_order order)
{
    atomic_store_explicit((_Atomic uint64_t *)(void *)at, value, order);
}

static inline void hr_store_i32(unsigned char *at, int32_t value, memory_order order)
{
    atomic_store_explicit((_Atomic int32_t *)(void *)at, value, order);
}

static inline uint64_t hr_add_u64(unsigned char *at, uint64_t value, memory_order order)
{
    return atomic_fetch_add_explicit((_Atomic uint64_t *)(void *)at, value, order);
}

/* `expected` takes what was found when this fails. */
static inline bool hr_swap_u64(unsigned char *at, uint64_t *expected, uint64_t desired)
{
    return atomic_compare_exchange_strong_explicit((_Atomic uint64_t *)(void *)at, expected,
                                                   desired, memory_order_acq_rel,
                                                   memory_order_acquire);
}

static inline bool hr_swap_i32(unsigned char *at, int32_t *expected, int32_t desired)
{
    return atomic_compare_exchange_strong_explicit((_Atomic int32_t *)(void *)at, expected, desired,
                                                   memory_order_acq_rel, memory_order_acquire);
}

static inline void hr_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
