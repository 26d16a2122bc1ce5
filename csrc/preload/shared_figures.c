#define _GNU_SOURCE
#include "shared_figures.h"

#include <stddef.h>
#include <time.h>

#include "../internal.h"

#define MS_NS 1000000u

/* Behind what the structures of a file's creator and of its users are apart, and behind the mark of
 * soft limits. */
enum { BEHIND = 64, LINE = 64 };

/* Each is one word, so that nobody reads a half of it: when, in ms, in the upper 32 bits; 24 bits
 * of a value; and a mark, by which a word of zeros is none. */
struct shared {
    uint64_t figure, claim;
};
enum { MARK = 0x9d, MARK_BITS = 8, VALUE_MASK = 0xffffff };

/* A process may have looked at the clock a little later than the one that reads what it told. */
enum { MOST_AHEAD_MS = 500 };

static uint32_t shared_at(const hr_region *region)
{
    return (region->layout->size + BEHIND + LINE - 1) / LINE * LINE;
}

/* All relaxed: no other memory is published through these words, each of them is right by itself.
 */
struct access {
    unsigned char *at;
    uint64_t value, expected;
};

static int load(void *argument)
{
    struct access *access = argument;
    access->value = hr_load_u64(access->at, memory_order_relaxed);
    return HR_OK;
}

static int store(void *argument)
{
    const struct access *access = argument;
    hr_store_u64(access->at, access->value, memory_order_relaxed);
    return HR_OK;
}

static int swap(void *argument)
{
    struct access *access = argument;
    return hr_swap_u64(access->at, &access->expected, access->value) ? HR_OK : HR_EBUSY;
}

static bool run(hr_region *region, hr_guarded_work *work, size_t word, struct access *access)
{
    const size_t words = sizeof(struct shared) / sizeof(uint64_t) * HR_FIGURES * HR_DEVICES;
    const size_t bytes = shared_at(region) + words * sizeof(uint64_t);
    if (!region->writable || hr_enter(region) != HR_OK)
        return false;
    access->at = region->base + shared_at(region) + word;
    int code = hr_guard_run(region->base, bytes, work, access);
    hr_leave(region);
    return code == HR_OK;
}

static size_t word_of(int row, enum hr_figure figure)
{
    return ((size_t)row * HR_FIGURES + figure) * sizeof(struct shared);
}

static uint64_t make_word(uint64_t at_ms, uint32_t value)
{
    return at_ms << 32 | (uint64_t)(value & VALUE_MASK) << MARK_BITS | MARK;
}

/* How long ago that was, of which 32 bits are kept; below 0 where it is just ahead.  What lies
 * further ahead is long past. */
static int64_t age_ms(uint64_t now_ms, uint64_t word)
{
    uint32_t age = (uint32_t)now_ms - (uint32_t)(word >> 32);
    return age > UINT32_MAX - MOST_AHEAD_MS ? (int64_t)age - UINT32_MAX - 1 : (int64_t)age;
}

static bool is_young(uint64_t now_ms, uint64_t word, uint64_t oldest_ns)
{
    return (word & ((1u << MARK_BITS) - 1)) == MARK &&
           age_ms(now_ms, word) < (int64_t)(oldest_ns / MS_NS);
}

static uint64_t clock_ms(void)
{
    return hr_clock_ns(CLOCK_MONOTONIC) / MS_NS;
}

void hr_share_figure(hr_region *region, int row, enum hr_figure figure, uint32_t value)
{
    struct access access = {.value = make_word(clock_ms(), value)};
    run(region, store, word_of(row, figure) + offsetof(struct shared, figure), &access);
}

bool hr_find_figure(hr_region *region, int row, enum hr_figure figure, uint64_t oldest_ns,
                    uint32_t *out)
{
    struct access access = {.value = 0};
    if (!run(region, load, word_of(row, figure) + offsetof(struct shared, figure), &access))
        return false;
    *out = (uint32_t)(access.value >> MARK_BITS) & VALUE_MASK;
    return is_young(clock_ms(), access.value, oldest_ns);
}

bool hr_claim_figure(hr_region *region, int row, enum hr_figure figure, uint64_t period_ns)
{
    const size_t word = word_of(row, figure) + offsetof(struct shared, claim);
    struct access access = {.value = 0};
    if (!run(region, load, word, &access))
        return false;
    const uint64_t now_ms = clock_ms();
    if (is_young(now_ms, access.value, period_ns))
        return false;
    access.expected = access.value;
    access.value = make_word(now_ms, 0);
    return run(region, swap, word, &access);
}
