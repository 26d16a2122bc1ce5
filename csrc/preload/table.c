#include "table.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "session.h"

enum { SHARD_BITS = 6, SHARDS = 1 << SHARD_BITS, FIRST_ROOM = 64 };

struct shard {
    pthread_mutex_t lock;
    struct hr_entry *entries; /* NULL: none yet */
    size_t room;              /* a power of two */
    size_t count;
} __attribute__((aligned(64)));

static struct shard shards[SHARDS] = {
    [0 ... SHARDS - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER},
};

/* ---- One shard --------------------------------------------------------------------- */

/* Pointers are multiples of large powers of two, handles are small numbers: all bits count. */
static uint64_t hash(enum hr_space space, uint64_t key)
{
    uint64_t mixed = (key ^ (uint64_t)space << 56) * UINT64_C(0x9e3779b97f4a7c15);
    mixed = (mixed ^ mixed >> 32) * UINT64_C(0xd6e8feb86659fd93);
    return mixed ^ mixed >> 32;
}

static struct shard *shard_of(uint64_t hashed)
{
    return &shards[hashed >> (64 - SHARD_BITS)];
}

/* The place of a thing, or the free one for it; the table has room. */
static size_t find_place(const struct hr_entry *entries, size_t room, enum hr_space space,
                         uint64_t key)
{
    size_t at = hash(space, key) & (room - 1);
    while (entries[at].space != HR_NOTHING &&
           (entries[at].key != key || entries[at].space != space))
        at = (at + 1) & (room - 1);
    return at;
}

static bool make_room(struct shard *shard)
{
    if (shard->count * 4 < shard->room * 3)
        return true;
    size_t room = shard->room == 0 ? FIRST_ROOM : shard->room * 2;
    struct hr_entry *entries = calloc(room, sizeof *entries);
    if (entries == NULL)
        return false;
    for (size_t at = 0; at < shard->room; at++) {
        const struct hr_entry *entry = &shard->entries[at];
        if (entry->space != HR_NOTHING)
            entries[find_place(entries, room, entry->space, entry->key)] = *entry;
    }
    free(shard->entries);
    shard->entries = entries;
    shard->room = room;
    return true;
}

/* Close the gap, so that a search may end at the first place that is empty. */
static void remove_at(struct shard *shard, size_t gap)
{
    const size_t mask = shard->room - 1;
    struct hr_entry *entries = shard->entries;
    for (size_t at = (gap + 1) & mask; entries[at].space != HR_NOTHING; at = (at + 1) & mask) {
        size_t home = hash(entries[at].space, entries[at].key) & mask;
        if (((at - home) & mask) >= ((at - gap) & mask)) {
            entries[gap] = entries[at];
            gap = at;
        }
    }
    entries[gap].space = HR_NOTHING;
    shard->count--;
}

/* ---- The table --------------------------------------------------------------------- */

bool hr_table_put(const struct hr_entry *entry, struct hr_entry *displaced)
{
    struct shard *shard = shard_of(hash(entry->space, entry->key));
    pthread_mutex_lock(&shard->lock);
    bool has_room = make_room(shard);
    displaced->space = HR_NOTHING;
    if (has_room) {
        size_t at = find_place(shard->entries, shard->room, entry->space, entry->key);
        *displaced = shard->entries[at];
        shard->count += displaced->space == HR_NOTHING;
        shard->entries[at] = *entry;
    }
    pthread_mutex_unlock(&shard->lock);
    return has_room;
}

static bool look_up(enum hr_space space, uint64_t key, bool remove, struct hr_entry *out)
{
    struct shard *shard = shard_of(hash(space, key));
    bool found = false;
    if (__builtin_expect(hr_session_state() == HR_SESSION_FORKED, 0))
        return false;
    pthread_mutex_lock(&shard->lock);
    if (shard->count != 0) {
        size_t at = find_place(shard->entries, shard->room, space, key);
        *out = shard->entries[at];
        found = out->space != HR_NOTHING;
        if (found && remove)
            remove_at(shard, at);
    }
    pthread_mutex_unlock(&shard->lock);
    return found;
}

bool hr_table_take(enum hr_space space, uint64_t key, struct hr_entry *out)
{
    return look_up(space, key, true, out);
}

bool hr_table_find(enum hr_space space, uint64_t key, struct hr_entry *out)
{
    return look_up(space, key, false, out);
}

/* Remove the next chosen thing of the shard, from `place` on. */
static bool take_next(struct shard *shard, size_t *place, hr_entry_choice *wanted, uint32_t owner,
                      struct hr_entry *out)
{
    bool found = false;
    pthread_mutex_lock(&shard->lock);
    for (; !found && *place < shard->room; *place += !found) {
        const struct hr_entry *entry = &shard->entries[*place];
        found = entry->space != HR_NOTHING && wanted(entry, owner);
        if (found) {
            *out = *entry;
            remove_at(shard, *place);
        }
    }
    pthread_mutex_unlock(&shard->lock);
    return found;
}

void hr_table_sweep(hr_entry_choice *wanted, uint32_t owner, hr_entry_use *use)
{
    struct hr_entry entry;
    for (int at = 0; at < SHARDS; at++) {
        size_t place = 0;
        while (take_next(&shards[at], &place, wanted, owner, &entry))
            use(&entry);
    }
}
