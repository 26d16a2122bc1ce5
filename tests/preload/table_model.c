/*
 * The table of allocations against a plain list: `table_model SEED`. Exit status 1
 * if they differ.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../csrc/preload/session.h"
#include "../../csrc/preload/table.h"

/* The table asks whether the process was forked. */
enum hr_session_state hr_session_state(void)
{
    return HR_SESSION_ATTACHED;
}

enum { KEYS = 4096, STEPS = 400000, OWNERS = 7 };

/* By space and by number; bytes 0: not there. */
static struct hr_entry model[HR_MAPPING + 1][KEYS];
static uint64_t swept;

static uint64_t next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Numbers as the driver gives them: multiples of 512, and small ones. */
static uint64_t key_of(unsigned number)
{
    return number % 2 == 0 ? UINT64_C(0x7f0000000000) + (uint64_t)number * 512 : number;
}

static unsigned number_of(uint64_t key)
{
    return key < KEYS ? (unsigned)key : (unsigned)((key - UINT64_C(0x7f0000000000)) / 512);
}

static void fail(const char *what)
{
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static void check_same(const struct hr_entry *found, bool is_found, const struct hr_entry *expected)
{
    if (is_found != (expected->bytes != 0))
        fail("something is there that should not be, or is not there");
    if (is_found && memcmp(found, expected, sizeof *found) != 0)
        fail("it is another entry");
}

static bool is_of_owner(const struct hr_entry *entry, void *argument)
{
    return entry->owner == *(const uint32_t *)argument;
}

static void strike_out(const struct hr_entry *entry, void *argument)
{
    struct hr_entry *expected = &model[entry->space][number_of(entry->key)];
    (void)argument;
    check_same(entry, true, expected);
    expected->bytes = 0;
    swept++;
}

static void sweep(uint32_t owner)
{
    uint64_t expected = 0;
    for (unsigned space = HR_POINTER; space <= HR_MAPPING; space++)
        for (unsigned number = 0; number < KEYS; number++)
            expected += model[space][number].bytes != 0 && model[space][number].owner == owner;
    swept = 0;
    hr_table_sweep(is_of_owner, strike_out, &owner);
    if (swept != expected)
        fail("a sweep has not found all of an owner's");
}

int main(int count, char **arguments)
{
    uint64_t state = count == 2 ? strtoull(arguments[1], NULL, 0) * 2 + 1 : 1;
    for (long step = 0; step < STEPS; step++) {
        uint64_t drawn = next(&state);
        enum hr_space space = HR_POINTER + (drawn >> 8) % HR_MAPPING;
        unsigned number = (drawn >> 16) % KEYS;
        struct hr_entry *expected = &model[space][number], found;
        if (drawn % 64 < 34) {
            struct hr_entry entry = {.key = key_of(number),
                                     .bytes = drawn >> 40 | 1,
                                     .owner = (drawn >> 32) % OWNERS,
                                     .row = (int16_t)((drawn >> 36) % 16),
                                     .space = (uint8_t)space};
            if (!hr_table_put(&entry, &found))
                fail("there is no memory");
            check_same(&found, found.space != HR_NOTHING, expected);
            *expected = entry;
        } else if (drawn % 64 < 63) {
            bool is_found = hr_table_take(space, key_of(number), &found);
            check_same(&found, is_found, expected);
            expected->bytes = 0;
        } else if (drawn % 8192 == 63) {
            sweep((drawn >> 32) % OWNERS);
        } else {
            check_same(&found, hr_table_find(space, key_of(number), &found), expected);
        }
    }
    return 0;
}
