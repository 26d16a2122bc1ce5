
#include <string.h>
#include <time.h>

#include "slots.h"
#include "testpoint.h"

/* Long enough to see a process at work, short enough to wait for. */
#define WATCH_NS 20000000
/*
 * So long is a view kept while the lock is waited for.  Its processes were read up to HR_PROC_NS
 * before that; a process that came since shows in the slot that it has taken or writes to.
 */
#define FRESH_NS 250000000

/*
 * Below as many slots, finding one to use again costs a newcomer more than it saves
 * all that add up the table.
 */
enum { REUSED_FROM = 64 };

/* ---- Looking ----------------------------------------------------------------------- */

static int note_slots(void *argument)
{
    struct hr_table_view *view = argument;
    for (int32_t index = 0; index < HR_SLOTS; index++) {
        view->seen[index] = hr_look_at_slot(view->region, index);
        if (view->seen[index].pid != 0)
            view->names.pids[view->names.count++] = view->seen[index].pid;
        else
            view->has_pidless = view->has_pidless || hr_is_in_use(view->region, index);
    }
    return HR_OK;
}

/* A slot that has got another name since the processes were looked for is of somebody who was not:
 * motion_of() finds it unclear. */
static int begin_watch(void *argument)
{
    struct hr_table_view *view = argument;
    for (int32_t index = 0; index < HR_SLOTS; index++) {
        if (view->seen[index].pid != 0)
            view->seen[index].seqlock = hr_seqlock_of(view->region, index);
    }
    return HR_OK;
}

static int note(const struct hr_evidence *evidence, struct hr_table_view *view)
{
    if (evidence == NULL)
        return hr_run(view->region, note_slots, view);
    view->names = evidence->wanted;
    view->has_pidless = evidence->has_pidless;
    memcpy(view->seen, evidence->seen, sizeof view->seen);
    return HR_OK;
}

static int look(hr_region *region, const struct hr_source *source, struct hr_table_view *view)
{
    memset(view, 0, sizeof *view);
    view->region = region;
    int code = note(source->evidence, view);
    /* A process that has stored pid 0 has no name to be found by: all of them are looked at. */
    if (code == HR_OK)
        code = hr_look_for_mappers(region, source, view->has_pidless ? NULL : &view->names,
                                   &view->mappers);
    if (code == HR_OK)
        code = hr_run(region, begin_watch, view);
    if (code != HR_OK)
        hr_free_mappers(&view->mappers);
    uint64_t deadline = hr_deadline_ns(WATCH_NS);
    unsigned naps = 0;
    while (code == HR_OK && hr_nap(deadline, &naps))
        ;
    return code;
}

int hr_run_viewed(hr_region *region, const struct hr_source *source, struct hr_table_view *view,
                  hr_guarded_work *judge, hr_guarded_work *work, void *argument,
                  uint64_t timeout_ns)
{
    uint64_t deadline = hr_deadline_ns(timeout_ns);
    uint64_t left = timeout_ns;
    for (;;) {
        int code = look(region, source, view);
        if (code != HR_OK)
            return code;
        code = judge == NULL ? HR_NEEDS_LOCK : hr_run(region, judge, argument);
        if (code == HR_NEEDS_LOCK)
            code = hr_run_locked(region, work, argument, left < FRESH_NS ? left : FRESH_NS);
        hr_free_mappers(&view->mappers);
        uint64_t now = hr_clock_ns(CLOCK_MONOTONIC);
        if (code != HR_ETIMEOUT || now >= deadline)
            return code;
        left = deadline - now;
    }
}

/* ---- Judging ----------------------------------------------------------------------- */

/* In the order of what says more about the other slots of a process. */
enum motion {
    STANDS_STILL,
    MOVES,  /* the process that it names has accounted there */
    UNCLEAR /* taken, copied or mended meanwhile: no evidence */
};

static enum motion motion_of(const hr_region *region, const struct hr_table_view *view,
                             int32_t index)
{
    uint64_t before = view->seen[index].seqlock, now = hr_seqlock_of(region, index);
    if (hr_slot_pid(region, index) != view->seen[index].pid)
        return UNCLEAR;
    if (now == before)
        return STANDS_STILL;
    /* One more may be a repair that has made it even; less is a newcomer or a copy. */
    return now > before + 1 ? MOVES : UNCLEAR;
}

static uint32_t count_listed(const struct hr_table_view *view, int32_t pid)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < view->mappers.count; i++)
        found += hr_innermost_pid(&view->mappers.list[i]) == pid;
    return found;
}

bool hr_lives_once(const struct hr_table_view *view, int32_t pid)
{
    return count_listed(view, pid) == 1 && hr_liveness_of_slot(&view->mappers, pid) == HR_ALIVE;
}

/*
 * From 2.8.1 on a process that ends by itself stores pid 0 first, and other threads and
 * destructors still give memory back there.  It is over once each process of libvgpu
 * that lives has its name in some slot.
 */
bool hr_may_be_ending(const hr_region *region, const struct hr_mappers *mappers)
{
    for (uint32_t i = 0; i < mappers->count; i++) {
        const struct hr_mapper *mapper = &mappers->list[i];
        if (mapper->has_libvgpu && hr_find_slot(region, hr_innermost_pid(mapper), HR_SLOTS) < 0)
            return true;
    }
    return !mappers->complete || mappers->filtered || mappers->has_unsure;
}

static bool is_nobodys(const hr_region *region, const struct hr_table_view *view, int32_t index)
{
    const int32_t pid = hr_slot_pid(region, index);
    if (pid != 0)
        return pid < 0 || pid == HR_NOBODY || hr_liveness_of_slot(&view->mappers, pid) == HR_DEAD;
    /* With an odd seqlock it is giving back the last of its memory. */
    if (!hr_is_in_use(region, index))
        return true;
    return hr_is_as_seen(region, &view->seen[index], index) &&
           !hr_may_be_ending(region, &view->mappers);
}

/* How the other slots that name the process of this one behave. */
static enum motion motion_of_others(const hr_region *region, const struct hr_table_view *view,
                                    int32_t index, int32_t pid)
{
    enum motion found = STANDS_STILL;
    for (int32_t other = 0; other < HR_SLOTS; other++) {
        if (other == index || (hr_slot_pid(region, other) != pid && view->seen[other].pid != pid))
            continue;
        enum motion motion = motion_of(region, view, other);
        found = motion > found ? motion : found;
    }
    return found;
}

/*
 * Whether bytes alone show that the process does not work in a slot of `pid` behind the
 * last one that counts.
 */
static bool is_stale_by_bytes(const hr_region *region, int32_t index, int32_t count, int32_t pid)
{
    uint64_t seqlock = hr_seqlock_of(region, index);
    /* Written by a process up to 2.8.0, which looks for its slot each time, and only among those
     * that count; a newer one counts in the seqlock whatever it stores. */
    if (seqlock == 0 && hr_slot_bytes(region, index) != 0)
        return true;
    /* A copy never has a higher seqlock than what it was copied from.  With several of them
     * one may be an earlier process's. */
    int32_t below = hr_find_slot(region, pid, count);
    return below >= 0 && hr_find_slot(region, pid, below) < 0 &&
           hr_seqlock_of(region, below) > seqlock + 1;
}

enum hr_slot_use hr_judge_use(const hr_region *region, const struct hr_table_view *view,
                              int32_t index, int32_t count)
{
    int32_t pid = hr_slot_pid(region, index);
    enum motion motion = motion_of(region, view, index);
    if (motion == UNCLEAR)
        return HR_USE_UNDECIDED;
    if (is_nobodys(region, view, index))
        return motion == STANDS_STILL ? HR_USE_NONE : HR_USE_UNDECIDED;
    if (pid <= 0 || !hr_lives_once(view, pid))
        return HR_USE_UNDECIDED;
    enum motion others = motion_of_others(region, view, index, pid);
    if (others == UNCLEAR || (others == MOVES && motion == MOVES))
        return HR_USE_UNDECIDED;
    if (motion == MOVES)
        return HR_USE_AT_WORK;
    if (others == MOVES || is_stale_by_bytes(region, index, count, pid))
        return HR_USE_NONE;
    bool is_blank = hr_has_seqlock(region) && hr_seqlock_of(region, index) == 0;
    return is_blank ? HR_USE_BLANK : HR_USE_UNDECIDED;
}

int32_t hr_clear_frozen_copies(const hr_region *region, const struct hr_table_view *view,
                               int32_t at_work, int32_t end, bool dry_run)
{
    /* The pid that was judged: its process may have ended since, and have stored 0. */
    int32_t pid = view->seen[at_work].pid, found = 0;
    for (int32_t index = 0; index < end; index++) {
        if (index == at_work || hr_slot_pid(region, index) != pid ||
            hr_slot_bytes(region, index) == 0 || motion_of(region, view, index) != STANDS_STILL)
            continue;
        found++;
        if (!dry_run) {
            hr_clear_usage(region, index);
            HR_POINT(REPAIR_COPY_CLEARED);
        }
    }
    return found;
}

/* ---- Places for a newcomer --------------------------------------------------------- */

/* No process has accounted there since it was taken. */
static bool is_blank(const hr_region *region, int32_t index)
{
    return hr_seqlock_of(region, index) == 0 && hr_slot_bytes(region, index) == 0;
}

/*
 * In a file of 1.1 a slot behind the last one mostly names a live process, as each removal of
 * libvgpu leaves it, and has a seqlock of 0.  Up to 2.8.0 that process does not come back to
 * it.  A newer one does, and looks the same until it accounts for the first time: then neither
 * the slot nor a copy of it counts anything.
 */
static bool may_be_unused_yet(const hr_region *region, int32_t index, int32_t count)
{
    if (hr_has_seqlock(region) || !is_blank(region, index))
        return false;
    int32_t named = hr_slot_pid(region, index);
    bool is_unused = true;
    for (int32_t copy = 0; copy < count && is_unused; copy++)
        is_unused = hr_slot_pid(region, copy) != named || is_blank(region, copy);
    return is_unused;
}

/* Whether a slot from the last one's end, `count`, on can be taken without a search of /proc. */
static bool is_end_free(const hr_region *region, int32_t index, int32_t count, int32_t pid)
{
    if (index == HR_SLOTS)
        return false;
    int32_t named = hr_slot_pid(region, index);
    if (named == pid || (named == 0 && hr_slot_bytes(region, index) == 0))
        return true;
    return !hr_has_seqlock(region) && hr_seqlock_of(region, index) == 0 &&
           !may_be_unused_yet(region, index, count);
}

bool hr_needs_view(const hr_region *region, int32_t count, int32_t pid)
{
    bool needs = !is_end_free(region, count, count, pid);
    for (int32_t index = 0; !needs && count >= REUSED_FROM && index < count; index++)
        needs = hr_is_emptied(region, index);
    return needs;
}

/* No process is seen that has its pid, which libvgpu takes for dead as well, and none writes there.
 * One that has ended by itself stores pid 0 and may still be giving memory back. */
static bool is_unseen(const hr_region *region, const struct hr_table_view *view, int32_t index)
{
    const int32_t pid = hr_slot_pid(region, index);
    return pid > 0 && (pid == HR_NOBODY || !view->mappers.incomplete) &&
           count_listed(view, pid) == 0 && motion_of(region, view, index) == STANDS_STILL;
}

int32_t hr_find_room(const hr_region *region, const struct hr_table_view *view, int32_t count,
                     int32_t pid)
{
    for (int32_t index = 0; index < count; index++) {
        if (hr_is_emptied(region, index) && is_unseen(region, view, index))
            return index;
    }
    for (int32_t index = count; index < HR_SLOTS; index++) {
        if (is_end_free(region, index, count, pid) || is_unseen(region, view, index) ||
            hr_judge_use(region, view, index, count) == HR_USE_NONE)
            return index;
    }
    return HR_SLOTS;
}

/*
 * Of a process up to 2.8.0, which would account in each of its slots, and of a newer one, which
 * goes on in this one, alike: the copies are nobody's.  The host pid may stand in the copy only.
 */
static void give_up_blank_copies(const hr_region *region, int32_t index)
{
    unsigned char *slot = hr_slot(region, (uint32_t)index);
    const uint32_t hostpid = region->layout->slot_hostpid;
    for (int32_t copy = 0; copy < index; copy++) {
        unsigned char *other = hr_slot(region, (uint32_t)copy);
        if (hr_slot_pid(region, copy) != hr_slot_pid(region, index) || !is_blank(region, copy))
            continue;
        int32_t found = hr_load_i32(other + hostpid, memory_order_relaxed);
        if (found != 0 && hr_load_i32(slot + hostpid, memory_order_relaxed) == 0)
            hr_store_i32(slot + hostpid, found, memory_order_relaxed);
        hr_empty_slot(region, copy);
        hr_set_slot_pid(region, copy, HR_NOBODY);
    }
}

void hr_settle_stepped_over(const hr_region *region, const struct hr_table_view *view,
                            int32_t count, int32_t end)
{
    /* The last first: what libvgpu has moved twice is the highest. */
    for (int32_t index = end - 1; index >= count; index--) {
        if (hr_lives_once(view, hr_slot_pid(region, index)) &&
            may_be_unused_yet(region, index, index))
            give_up_blank_copies(region, index);
        else if (hr_judge_use(region, view, index, count) == HR_USE_AT_WORK)
            hr_clear_frozen_copies(region, view, index, count, false);
    }
}
