#define _GNU_SOURCE
#include "search_round.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "process_stats.h"

/* More regions at once than so many begin anew each time. */
enum { KEPT_ROUNDS = 16 };
/* A process list is not as long. */
#define MOST_KNOWN 65536
#define LONGEST_NS 600000000000u

struct known {
    uint32_t pid;
    bool comes_last;
    uint64_t start; /* 0: not ruled out */
};

struct hr_round {
    char *path;                          /* that led to the region */
    uint64_t device_id, inode, born_ns;  /* of the region */
    uint64_t proc_device_id, proc_inode; /* of the /proc that is searched */
    uint64_t began_ns;
    struct hr_nameless_slots slots; /* that stand, in each of its calls, as when it began */
    struct known *known;            /* the first `sorted` by pid, then those of this call */
    uint32_t sorted, count;
};

/* Each is taken by swapping NULL for it: no lock, which a forked child could inherit. */
static _Atomic(struct hr_round *) kept_rounds[KEPT_ROUNDS];

static void free_round(struct hr_round *round)
{
    if (round != NULL) {
        free(round->known);
        free(round->path);
    }
    free(round);
}

/* ---- Slots ------------------------------------------------------------------------- */

bool hr_is_in_use(const hr_region *region, int32_t index)
{
    return hr_slot_bytes(region, hr_slot(region, (uint32_t)index)) != 0 ||
           (hr_seqlock_of(region, index) & 1) != 0;
}

void hr_note_nameless(const hr_region *region, int32_t index, struct hr_nameless_slots *slots)
{
    unsigned char *slot = hr_slot(region, (uint32_t)index);
    slots->list[slots->count++] = (struct hr_nameless){.index = index,
                                                       .seqlock = hr_seqlock_of(region, index),
                                                       .bytes = hr_slot_bytes(region, slot)};
}

/* ---- Keeping ----------------------------------------------------------------------- */

static void keep(struct hr_round *round)
{
    for (int i = 0; i < KEPT_ROUNDS; i++) {
        struct hr_round *none = NULL;
        if (atomic_compare_exchange_strong(&kept_rounds[i], &none, round))
            return;
    }
    free_round(round);
}

static bool is_of_file(const struct hr_round *round, const hr_region *region)
{
    return round->device_id == region->device_id && round->inode == region->inode &&
           round->born_ns == region->born_ns;
}

static bool is_of_proc(const struct hr_round *round, const struct stat *proc)
{
    return round->proc_device_id == proc->st_dev && round->proc_inode == proc->st_ino;
}

/* A container that makes its file anew again and again shall not take all the places. */
static bool is_of_former_file(const struct hr_round *round, const hr_region *region)
{
    return strcmp(round->path, region->path) == 0 && !is_of_file(round, region);
}

static struct hr_round *find_kept(const hr_region *region, const struct stat *proc)
{
    const uint64_t now = hr_clock_ns(CLOCK_MONOTONIC);
    struct hr_round *found = NULL;
    for (int i = 0; i < KEPT_ROUNDS; i++) {
        struct hr_round *round = atomic_exchange(&kept_rounds[i], NULL);
        if (round == NULL)
            continue;
        if (now - round->began_ns > LONGEST_NS || is_of_former_file(round, region))
            free_round(round);
        else if (found == NULL && is_of_file(round, region) && is_of_proc(round, proc))
            found = round;
        else
            keep(round);
    }
    return found;
}

static bool stands_in(const struct hr_nameless_slots *slots, const struct hr_nameless *slot)
{
    for (int32_t i = 0; i < slots->count; i++) {
        const struct hr_nameless *other = &slots->list[i];
        if (other->index == slot->index)
            return other->seqlock == slot->seqlock && other->bytes == slot->bytes;
    }
    return false;
}

static void keep_common(struct hr_nameless_slots *slots, const struct hr_nameless_slots *others)
{
    int32_t count = 0;
    for (int32_t i = 0; i < slots->count; i++) {
        if (stands_in(others, &slots->list[i]))
            slots->list[count++] = slots->list[i];
    }
    slots->count = count;
}

struct hr_round *hr_take_round(const hr_region *region, const char *proc,
                               const struct hr_nameless_slots *standing,
                               struct hr_nameless_slots *asked)
{
    struct stat status;
    if (stat(proc == NULL ? "/proc" : proc, &status) != 0)
        return NULL;
    struct hr_round *round = find_kept(region, &status);
    /* For good: what a process takes it may leave once more with the same bytes, and the process
     * may have been ruled out before. */
    if (round != NULL)
        keep_common(&round->slots, standing);
    if (round != NULL && round->slots.count > 0) {
        keep_common(asked, &round->slots);
        return round;
    }
    free_round(round);
    round = calloc(1, sizeof *round);
    if (round == NULL)
        return NULL;
    *round = (struct hr_round){.path = strdup(region->path),
                               .device_id = region->device_id,
                               .inode = region->inode,
                               .born_ns = region->born_ns,
                               .proc_device_id = status.st_dev,
                               .proc_inode = status.st_ino,
                               .began_ns = hr_clock_ns(CLOCK_MONOTONIC),
                               .slots = *standing};
    if (round->path != NULL)
        return round;
    free_round(round);
    return NULL;
}

static int compare_pids(const void *one, const void *other)
{
    const struct known *a = one, *b = other;
    return (a->pid > b->pid) - (a->pid < b->pid);
}

void hr_end_round(struct hr_round *round, bool goes_on)
{
    if (round == NULL || !goes_on) {
        free_round(round);
        return;
    }
    if (round->count > 0)
        qsort(round->known, round->count, sizeof *round->known, compare_pids);
    round->sorted = round->count;
    keep(round);
}

/* ---- Processes --------------------------------------------------------------------- */

static struct known *find_known(const struct hr_round *round, uint32_t pid)
{
    const struct known wanted = {.pid = pid};
    return round->sorted == 0
               ? NULL
               : bsearch(&wanted, round->known, round->sorted, sizeof wanted, compare_pids);
}

bool hr_is_ruled_out(const struct hr_round *round, int proc, uint32_t pid)
{
    const struct known *known = find_known(round, pid);
    return known != NULL && known->start != 0 && known->start == hr_read_start_time(proc, pid);
}

bool hr_comes_last(const struct hr_round *round, uint32_t pid)
{
    const struct known *known = find_known(round, pid);
    return known != NULL && known->comes_last;
}

void hr_note_seen(struct hr_round *round, uint32_t pid, uint64_t start, enum hr_seen seen)
{
    if (seen != HR_MAPS_NOT && seen != HR_NO_TIME)
        return;
    struct known *known = find_known(round, pid);
    if (known == NULL) {
        struct known *longer =
            round->count == MOST_KNOWN ? NULL : hr_grow(round->known, round->count, sizeof *longer);
        if (longer == NULL) /* looked at again by the next call */
            return;
        round->known = longer;
        known = &round->known[round->count++];
    }
    *known = (struct known){
        .pid = pid, .comes_last = seen == HR_NO_TIME, .start = seen == HR_MAPS_NOT ? start : 0};
}
