#define _GNU_SOURCE
#include <unistd.h>

#include "orphans.h"
#include "testpoint.h"

struct repair_call {
    hr_region *region;
    const struct hr_mappers *mappers;
    uint32_t dry_run;
    int32_t *pids;
    int32_t found;
    const struct hr_seqlock_watch *watch;
};

/* Long enough to see a process at work, short enough for who waits for it. */
#define WATCH_NS 20000000

static uint64_t seqlock_of(const hr_region *region, int32_t index)
{
    return hr_load_u64(hr_slot(region, (uint32_t)index) + region->layout->slot_seqlock,
                       memory_order_acquire);
}

struct watch_call {
    const hr_region *region;
    struct hr_seqlock_watch *watch;
};

static int watch_work(void *argument)
{
    struct watch_call *call = argument;
    for (int32_t index = 0; index < HR_SLOTS; index++)
        call->watch->seqlocks[index] = seqlock_of(call->region, index);
    return HR_OK;
}

int hr_watch_seqlocks(hr_region *region, struct hr_seqlock_watch *watch)
{
    if (!hr_has_seqlock(region))
        return HR_OK;
    struct watch_call call = {.region = region, .watch = watch};
    int code = hr_run(region, watch_work, &call);
    uint64_t deadline = hr_deadline_ns(WATCH_NS);
    unsigned naps = 0;
    while (code == HR_OK && hr_nap(deadline, &naps))
        ;
    return code;
}

static bool moves(const struct repair_call *call, int32_t index)
{
    return seqlock_of(call->region, index) != call->watch->seqlocks[index];
}

static int32_t host_pid_of(const hr_region *region, int32_t index)
{
    return hr_load_i32(hr_slot(region, (uint32_t)index) + region->layout->slot_hostpid,
                       memory_order_relaxed);
}

static bool hold_the_same(const hr_region *region, int32_t one, int32_t other)
{
    uint64_t changed = 0;
    for (uint32_t offset = 0; offset + 8 <= region->layout->slot_stride; offset += 8)
        changed |= hr_load_u64(hr_slot(region, (uint32_t)one) + offset, memory_order_relaxed) ^
                   hr_load_u64(hr_slot(region, (uint32_t)other) + offset, memory_order_relaxed);
    return changed == 0;
}

/*
 * Whether the slot at `copy` was left behind when its process's slot at `index` was
 * moved there.  The tail also keeps slots of earlier processes, and a container that starts
 * again gives its processes the same pids, often with the same figures.  So the process
 * must be seen writing at `index`, or be named there by its host pid, which it has alone.
 * Then the copy has that host pid, or none yet, and a seqlock that stands still, while the
 * one above only goes on from there.
 */
static bool is_frozen_copy(const struct repair_call *call, int32_t copy, int32_t index, int32_t pid)
{
    const hr_region *region = call->region;
    if (moves(call, copy))
        return false;
    if (moves(call, index))
        return true;
    int32_t named = host_pid_of(region, index), below = host_pid_of(region, copy);
    int32_t now = hr_host_pid_of_slot(call->mappers, pid);
    /* Drivers that answer with the container's own pids name every life of it the same. */
    if (named == 0 || (now != 0 ? named != now : named == pid))
        return false;
    if (below != named)
        return below == 0 && named == now;
    uint64_t frozen = seqlock_of(region, copy), going_on = seqlock_of(region, index);
    if (hold_the_same(region, copy, index))
        return true;
    /* Emptied already by a repair that was killed: a slot in use has a status. */
    bool emptied = hr_slot_is_empty(region, hr_slot(region, (uint32_t)copy)) && going_on >= frozen;
    return emptied || going_on > frozen;
}

/*
 * Whether a process that has no slot below has its own at `index`.  It may as well have
 * none at all: a worker that was forked, while an earlier life of the container left
 * this pid in the tail.  So it has to be seen writing, or named by its host pid.  One
 * that holds nothing is not missed: libvgpu clears what a process used when it ends.
 */
static bool is_only_slot(const struct repair_call *call, int32_t index, int32_t pid)
{
    unsigned char *slot = hr_slot(call->region, (uint32_t)index);
    int32_t named = host_pid_of(call->region, index);
    return hr_slot_bytes(call->region, slot) != 0 &&
           (moves(call, index) || (named != 0 && named == hr_host_pid_of_slot(call->mappers, pid)));
}

/* Whether the slot is certainly of an earlier process with that pid. */
static bool is_anothers(const struct repair_call *call, int32_t index, int32_t pid)
{
    int32_t named = host_pid_of(call->region, index);
    int32_t now = hr_host_pid_of_slot(call->mappers, pid);
    return named != 0 && now != 0 && named != now && !moves(call, index);
}

/* Whether a live process writes at `index`, at or above `count`; `copy` is its slot below, or -1.
 */
static bool is_orphan(const struct repair_call *call, int32_t index, int32_t count, int32_t *copy)
{
    const hr_region *region = call->region;
    int32_t pid = hr_slot_pid(region, hr_slot(region, (uint32_t)index));
    /* Our own process puts itself right, from its books. */
    if (pid <= 0 || pid == region->attached_pid || hr_life_of_slot(call->mappers, pid) != HR_ALIVE)
        return false;
    *copy = hr_find_slot(region, pid, count);
    if (*copy >= 0)
        return is_frozen_copy(call, *copy, index, pid);
    return is_only_slot(call, index, pid);
}

/* Whether no live process can be writing at `index`, at or above `count`. */
static bool is_of_nobody_alive(const struct repair_call *call, int32_t index, int32_t count)
{
    int32_t pid = hr_slot_pid(call->region, hr_slot(call->region, (uint32_t)index));
    if (pid <= 0)
        return true;
    if (pid == call->region->attached_pid)
        return false;
    enum hr_life life = hr_life_of_slot(call->mappers, pid);
    if (life != HR_ALIVE)
        return life == HR_DEAD;
    int32_t copy = hr_find_slot(call->region, pid, count);
    return (copy >= 0 && moves(call, copy)) || is_anothers(call, index, pid);
}

/*
 * Up to 2.8.0: a removal that was never finished leaves the last process twice.  Its
 * process finds the lower slot first, so the higher one is frozen.
 */
static int drop_doubles(struct repair_call *call, int32_t count)
{
    hr_region *region = call->region;
    for (int32_t index = count - 1; index > 0; index--) {
        int32_t pid = hr_slot_pid(region, hr_slot(region, (uint32_t)index));
        if (pid == 0 || hr_find_slot(region, pid, index) < 0)
            continue;
        call->pids[call->found++] = pid;
        if (!call->dry_run)
            hr_move_last_into(region, index, count--);
    }
    return call->found;
}

static int repair_work(void *argument)
{
    struct repair_call *call = argument;
    hr_region *region = call->region;
    int32_t count, copy, highest = -1;
    int code = hr_check_header(region);
    if (code == HR_OK)
        code = hr_checked_proc_num(region, &count);
    if (code != HR_OK)
        return code;
    if (!hr_has_seqlock(region))
        return drop_doubles(call, count);
    for (int32_t index = count; index < HR_SLOTS; index++) {
        if (is_orphan(call, index, count, &copy)) {
            highest = index;
            call->pids[call->found++] = hr_slot_pid(region, hr_slot(region, (uint32_t)index));
        }
    }
    if (highest < 0 || call->dry_run)
        return call->found;
    /* Copies first: until proc_num is raised a kill leaves the process uncounted, not doubled. */
    for (int32_t index = count; index <= highest; index++) {
        /* Stale slots between orphans would be taken in as well.  Where one may be its
         * process's own it counts: too much rather than too little. */
        if (!is_orphan(call, index, count, &copy))
            copy = is_of_nobody_alive(call, index, count) ? index : -1;
        if (copy >= 0) {
            hr_empty_slot(region, hr_slot(region, (uint32_t)copy));
            HR_POINT(REPAIR_COPY_CLEARED);
        }
    }
    hr_set_proc_num(region, highest + 1);
    HR_POINT(REPAIR_COUNT_STORED);
    return call->found;
}

int hr_repair_slots(hr_region *region, const char *proc, uint32_t dry_run, uint64_t timeout_ns,
                    int32_t *pids)
{
    struct hr_mappers mappers;
    int code = hr_look_for_mappers(region, proc, &mappers);
    if (code != HR_OK)
        return code;
    struct hr_seqlock_watch watch;
    struct repair_call call = {
        .region = region, .mappers = &mappers, .watch = &watch, .dry_run = dry_run, .pids = pids};
    code = hr_watch_seqlocks(region, &watch);
    /* Who may not write can look, and who only looks needs no lock: at worst it sees a move. */
    if (code == HR_OK && dry_run && !region->writable)
        code = hr_run(region, repair_work, &call);
    else if (code == HR_OK)
        code = hr_run_locked(region, repair_work, &call, timeout_ns);
    hr_free_mappers(&mappers);
    return code;
}

/*
 * A live process may be writing where the newcomer would go.  Where that is certain
 * its frozen copy is emptied.  Where it is in doubt nothing is: the slot counts
 * beside the other one, too much rather than too little.  Only a slot whose process
 * is at work in another one, or that names another process, is free to take.
 */
int hr_step_over_orphans(hr_region *region, const struct hr_mappers *mappers,
                         const struct hr_seqlock_watch *watch)
{
    const struct repair_call call = {.region = region, .mappers = mappers, .watch = watch};
    int32_t count;
    int code = hr_checked_proc_num(region, &count);
    if (code != HR_OK)
        return code;
    for (int32_t index = count; index < HR_SLOTS; index++) {
        int32_t pid = hr_slot_pid(region, hr_slot(region, (uint32_t)index));
        if (pid <= 0 || pid == getpid() || hr_life_of_slot(mappers, pid) != HR_ALIVE)
            break;
        int32_t copy = hr_find_slot(region, pid, count);
        if (is_of_nobody_alive(&call, index, count))
            break;
        if (copy >= 0 && is_frozen_copy(&call, copy, index, pid))
            hr_empty_slot(region, hr_slot(region, (uint32_t)copy));
        hr_set_proc_num(region, index + 1);
    }
    return HR_OK;
}
