#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "lock_word.h"
#include "mappers.h"
#include "testpoint.h"

#ifdef HR_TESTPOINTS
#define OWNERLESS_NS hr_testpoint_ownerless_ns
#else
#define OWNERLESS_NS HR_OWNERLESS_NS
#endif

/* ---- Who holds it ----------------------------------------------------------- */

struct state_call {
    const hr_region *region;
    struct hr_lock_state *out;
};

/* What no protocol leaves for longer than a moment. */
static bool is_damaged(struct hr_lock_words words)
{
    return hr_sem_value(words.sem) > (words.owner == 0 ? 1 : 0);
}

static int state_work(void *argument)
{
    struct state_call *call = argument;
    const hr_region *region = call->region;
    struct hr_lock_state *out = call->out;
    int code = hr_check_header(region);
    if (code != HR_OK)
        return code;
    /* Two loads: a lock that changes hands can look damaged, but not at every look. */
    const int looks = 50;
    const struct timespec nap = {.tv_nsec = 20000};
    struct hr_lock_words words = hr_load_lock(region);
    for (int look = 1; look < looks && is_damaged(words); look++) {
        nanosleep(&nap, NULL);
        words = hr_load_lock(region);
    }
    out->value = hr_sem_value(words.sem);
    out->waiters = (uint32_t)(words.sem >> 32);
    out->owner_pid = words.owner;
    out->is_ours = hr_is_number(words.owner);
    out->is_damaged = is_damaged(words);
    out->postinit = 1;
    if (region->layout->sem_postinit != HR_ABSENT)
        out->postinit = hr_sem_value(
            hr_load_u64(region->base + region->layout->sem_postinit, memory_order_acquire));
    return HR_OK;
}

/*
 * Keeps the number's byte where it could be locked, so that nobody draws that number
 * until `kept` is given back.
 */
static enum hr_liveness life_of_number(const hr_region *region, uint64_t owner,
                                       struct hr_byte_lock *kept)
{
    int code = hr_lock_bytes(region, F_RDLCK, hr_number_byte(owner), 1, kept);
    if (code != HR_OK)
        return code == HR_EBUSY ? HR_ALIVE : HR_LIVENESS_UNKNOWN;
    return hr_may_have_two_inodes(region) ? HR_LIVENESS_UNKNOWN : HR_DEAD;
}

static int judge_owner(hr_region *region, const char *proc, struct hr_lock_state *out)
{
    if (out->owner_pid == 0)
        return HR_OK;
    if (out->is_ours) {
        struct hr_byte_lock kept;
        out->owner_liveness = life_of_number(region, out->owner_pid, &kept);
        hr_unlock_bytes(region, &kept);
        return HR_OK;
    }
    if (out->owner_pid >= HR_FOREIGN_OWNER) {
        out->owner_liveness = HR_LIVENESS_UNKNOWN;
        return HR_OK;
    }
    struct hr_mappers mappers;
    const struct hr_slot_pids owner = {
        .pids = {(int32_t)out->owner_pid}, .count = 1, .any_level = true};
    int code = hr_find_mappers(region, proc, HR_WITH_OWN_HANDLE, &owner,
                               hr_deadline_ns(HR_SEARCH_NS), &mappers);
    if (code != HR_OK)
        return code;
    out->owner_liveness =
        hr_liveness_of_owner(&mappers, (int32_t)out->owner_pid, &out->owner_pid_here);
    hr_free_mappers(&mappers);
    return HR_OK;
}

/* State, then judgement; again where the lock has changed hands in between. */
static int judge_state(hr_region *region, const char *proc, struct hr_lock_state *out)
{
    const int tries = 3;
    struct hr_lock_state after;
    for (int try = 0; try < tries; try++) {
        memset(out, 0, sizeof *out);
        memset(&after, 0, sizeof after);
        uint32_t uses = atomic_load_explicit(&hr_uses, memory_order_seq_cst);
        struct state_call before_call = {.region = region, .out = out};
        struct state_call after_call = {.region = region, .out = &after};
        int code = hr_run_entered(region, state_work, &before_call);
        if (code == HR_OK)
            code = judge_owner(region, proc, out);
        if (code == HR_OK)
            code = hr_run_entered(region, state_work, &after_call);
        if (code != HR_OK)
            return code;
        bool is_own = out->owner_pid == (uint64_t)getpid();
        bool used_meanwhile = uses != atomic_load_explicit(&hr_uses, memory_order_seq_cst);
        if (after.owner_pid == out->owner_pid && after.value == out->value &&
            !(is_own && used_meanwhile))
            return HR_OK;
    }
    /* Who lets go is alive, whatever was found of it afterwards. */
    if (out->owner_pid != 0)
        out->owner_liveness = HR_ALIVE;
    return HR_OK;
}

int hr_get_lock_state(hr_region *region, const char *proc, struct hr_lock_state *out)
{
    int code = hr_enter(region);
    if (code != HR_OK)
        return code;
    code = judge_state(region, proc, out);
    hr_leave(region);
    return code;
}

/* ---- Recovery --------------------------------------------------------------- */

struct recovery {
    hr_region *region;
    struct hr_recovery *progress; /* the caller's; its owner and value are what was judged */
    const struct hr_mappers *mappers;
    uint32_t uses; /* hr_uses of before the scan */
    uint64_t watch_ns;
    /* While these are locked, nobody draws the number that was judged, or any number. */
    struct hr_byte_lock judged_byte, all_bytes;
    enum hr_liveness life; /* of the owner */
    int32_t here;
    bool alone;
};

static int not_recoverable(int reason, const struct recovery *recovery, uint64_t owner)
{
    struct hr_detail detail = {.code = HR_ENOTRECOVERABLE,
                               .reason = reason,
                               .device = -1,
                               .layout = HR_LAYOUTS,
                               .found = owner,
                               .wanted = (uint64_t)recovery->here};
    return hr_fail(&detail);
}

static bool is_as_judged(const struct recovery *recovery, struct hr_lock_words words)
{
    return words.owner == recovery->progress->owner_pid &&
           hr_sem_value(words.sem) == recovery->progress->value;
}

/* Nobody uses the file, for certain: this process neither, by another handle. */
static bool is_mapped_by_nobody(const struct hr_mappers *mappers)
{
    return mappers->complete && !mappers->filtered && mappers->count == 0;
}

/* Outside the guard: everything that opens files. */
static void judge_for_recovery(struct recovery *recovery)
{
    hr_region *region = recovery->region;
    uint64_t owner = recovery->progress->owner_pid;
    const struct hr_mappers *mappers = recovery->mappers;
    if (hr_is_number(owner)) {
        recovery->life = life_of_number(region, owner, &recovery->judged_byte);
        /* Where locks do not tell, no other process that maps the file can be its writer. */
        if (recovery->life == HR_LIVENESS_UNKNOWN && is_mapped_by_nobody(mappers))
            recovery->life = HR_DEAD;
        return;
    }
    if (owner != 0 && owner < HR_FOREIGN_OWNER) {
        recovery->life = hr_liveness_of_owner(mappers, (int32_t)owner, &recovery->here);
        return;
    }
    recovery->alone = is_mapped_by_nobody(mappers) &&
                      hr_lock_foreign_bytes(region, &recovery->all_bytes) == HR_OK;
    /* Signed by another scheme, or with what is no signature at all. */
    if (owner != 0)
        recovery->life = recovery->alone ? HR_DEAD : HR_LIVENESS_UNKNOWN;
}

enum watched { CHANGED, STOOD, TOO_SHORT, INTERRUPTED };

/* Whether the words stay as they were judged until `watched_ns` has come to `long_enough`; waiters
 * may come and go. */
static enum watched watch(struct recovery *recovery, uint64_t *watched_ns, uint64_t long_enough,
                          bool (*is_same)(const struct recovery *))
{
    uint64_t start = hr_clock_ns(CLOCK_MONOTONIC);
    /* Whoever was not looked at for that long may be another one. */
    if (start - recovery->progress->interrupted_ns > HR_UNWATCHED_NS)
        *watched_ns = 0;
    uint64_t before = *watched_ns;
    const struct timespec nap = {.tv_nsec = 1000000};
    for (;;) {
        if (!is_same(recovery) || hr_is_closing(recovery->region)) {
            *watched_ns = 0;
            return CHANGED;
        }
        if (*watched_ns >= long_enough)
            return STOOD;
        if (*watched_ns >= recovery->watch_ns)
            return TOO_SHORT;
        /* What passes in a signal's handler has not been watched. */
        bool interrupted = nanosleep(&nap, NULL) != 0;
        *watched_ns = before + (hr_clock_ns(CLOCK_MONOTONIC) - start);
        if (interrupted) {
            recovery->progress->interrupted_ns = hr_clock_ns(CLOCK_MONOTONIC);
            return INTERRUPTED;
        }
    }
}

static bool stands_still(const struct recovery *recovery)
{
    return is_as_judged(recovery, hr_load_lock(recovery->region));
}

/* Who came after the scan and has taken the semaphore signs within a moment. */
static bool is_newcomer_seen(struct recovery *recovery)
{
    uint64_t deadline = hr_deadline_ns(HR_NEWCOMER_NS);
    unsigned naps = 0;
    do {
        if (!stands_still(recovery))
            return true;
    } while (hr_nap(deadline, &naps));
    return false;
}

/* Sign in the place of a holder that is gone: from here on the lock is ours. */
static int sign_instead(struct recovery *recovery, int what)
{
    hr_region *region = recovery->region;
    struct hr_lock_words now = hr_load_lock(region);
    if (!is_as_judged(recovery, now) ||
        !hr_swap_lock(region, now, hr_lock_with(now, region->lock.signature, 0)))
        return not_recoverable(HR_REASON_BUSY, recovery, now.owner);
    HR_POINT(RECOVER_OWNER_TAKEN);
    hr_note_taken(region);
    recovery->progress->done |= (uint32_t)what;
    return HR_OK;
}

/* The owner is inside, so 0 is right, and its post makes that 1; or nobody is, and 1 is. */
static int set_value(struct recovery *recovery)
{
    hr_region *region = recovery->region;
    struct hr_lock_words now = hr_load_lock(region);
    uint32_t right = now.owner == 0 ? 1 : 0;
    if (!is_as_judged(recovery, now) ||
        !hr_swap_lock(region, now, hr_lock_with(now, now.owner, right)))
        return not_recoverable(HR_REASON_BUSY, recovery, now.owner);
    HR_POINT(RECOVER_VALUE_STORED);
    if (right == 1)
        hr_sem_wake(hr_sem_at(region));
    struct hr_lock_words after = hr_load_lock(region);
    if (right == 0 && !hr_lock_is_paired(region) && after.owner == 0 &&
        hr_sem_value(after.sem) == 0 &&
        hr_swap_lock(region, after, hr_lock_with(after, region->lock.signature, 0))) {
        hr_note_taken(region); /* the owner had just left: that was a free lock */
        return HR_OK;
    }
    recovery->progress->done |= HR_RECOVERED_VALUE;
    return HR_OK;
}

static int recover_unsigned(struct recovery *recovery)
{
    struct hr_recovery *progress = recovery->progress;
    if (recovery->alone && !is_newcomer_seen(recovery))
        return sign_instead(recovery, HR_RECOVERED_OWNERLESS);
    switch (watch(recovery, &progress->watched_ns, OWNERLESS_NS, stands_still)) {
    case STOOD:
        return sign_instead(recovery, HR_RECOVERED_OWNERLESS);
    case INTERRUPTED:
        return hr_fail_code(HR_EINTERRUPTED);
    default:
        return not_recoverable(HR_REASON_BUSY, recovery, 0);
    }
}

static int recover_work(void *argument)
{
    struct recovery *recovery = argument;
    struct hr_recovery *progress = recovery->progress;
    uint64_t owner = progress->owner_pid;
    bool used_meanwhile = recovery->uses != atomic_load_explicit(&hr_uses, memory_order_seq_cst);
    if (!stands_still(recovery) || (owner == (uint64_t)getpid() && used_meanwhile))
        return not_recoverable(HR_REASON_BUSY, recovery, hr_owner_of(recovery->region));
    if (owner == 0)
        return progress->value == 0 ? recover_unsigned(recovery) : set_value(recovery);
    if (recovery->life == HR_DEAD) {
        if (recovery->alone && is_newcomer_seen(recovery))
            return not_recoverable(HR_REASON_BUSY, recovery, owner);
        int value = progress->value == 0 ? 0 : HR_RECOVERED_VALUE;
        return sign_instead(recovery, HR_RECOVERED_OWNER | value);
    }
    if (recovery->life == HR_ALIVE && progress->value > 0)
        return set_value(recovery);
    return not_recoverable(recovery->life == HR_ALIVE ? HR_REASON_ALIVE : HR_REASON_UNKNOWN,
                           recovery, owner);
}

static int recover_main(struct recovery *recovery)
{
    hr_region *region = recovery->region;
    judge_for_recovery(recovery);
    int code = hr_run_entered(region, recover_work, recovery);
    if (region->lock.held) {
        int dropped = hr_give_back(region);
        code = code == HR_OK ? dropped : code;
    }
    hr_unlock_bytes(region, &recovery->judged_byte);
    hr_unlock_bytes(region, &recovery->all_bytes);
    return code;
}

/* ---- The second semaphore ----------------------------------------------------- */

static unsigned char *postinit_at(const hr_region *region)
{
    return region->base + region->layout->sem_postinit;
}

static bool is_postinit_taken(const struct recovery *recovery)
{
    return hr_sem_value(hr_load_u64(postinit_at(recovery->region), memory_order_acquire)) == 0;
}

static int postinit_work(void *argument)
{
    struct recovery *recovery = argument;
    struct hr_recovery *progress = recovery->progress;
    unsigned char *sem = postinit_at(recovery->region);
    const uint32_t judged = hr_sem_value(hr_load_u64(sem, memory_order_acquire));
    if (judged == 1)
        return HR_OK;
    if (judged == 0 && !is_mapped_by_nobody(recovery->mappers)) {
        enum watched watched =
            watch(recovery, &progress->postinit_watched_ns, HR_POSTINIT_NS, is_postinit_taken);
        if (watched == INTERRUPTED)
            return hr_fail_code(HR_EINTERRUPTED);
        if (watched == CHANGED)
            return HR_OK;
        if (watched == TOO_SHORT)
            return progress->done != 0 ? HR_OK : not_recoverable(HR_REASON_BUSY, recovery, 0);
    }
    /* Waiters may have come and gone since; the value must be the one that was judged. */
    uint64_t word;
    do {
        word = hr_load_u64(sem, memory_order_acquire);
        if (hr_sem_value(word) != judged)
            return HR_OK;
    } while (!hr_swap_u64(sem, &word, (word & ~(uint64_t)UINT32_MAX) | 1));
    HR_POINT(RECOVER_VALUE_STORED);
    hr_sem_wake(sem);
    progress->done |= HR_RECOVERED_POSTINIT;
    return HR_OK;
}

/* ---- Both --------------------------------------------------------------------- */

static bool is_lock_wrong(const struct hr_lock_state *state)
{
    return state->value != 1 || state->owner_pid != 0;
}

/* With gate and host lock held. */
static int recover_held(hr_region *region, const char *proc, uint64_t watch_ns,
                        struct hr_recovery *progress)
{
    uint32_t uses = atomic_load_explicit(&hr_uses, memory_order_seq_cst);
    struct hr_lock_state state = {0};
    struct state_call look = {.region = region, .out = &state};
    int code = hr_run_entered(region, state_work, &look);
    if (code != HR_OK || (!is_lock_wrong(&state) && state.postinit == 1))
        return code;
    if (state.value != progress->value || state.owner_pid != progress->owner_pid)
        progress->watched_ns = 0;
    progress->value = state.value;
    progress->owner_pid = state.owner_pid;
    struct hr_mappers mappers;
    /* Of a lock that is signed with a pid only the owner has to be found. */
    const struct hr_slot_pids owner = {
        .pids = {(int32_t)state.owner_pid}, .count = 1, .any_level = true};
    bool is_pid = state.owner_pid != 0 && state.owner_pid < HR_FOREIGN_OWNER;
    code = hr_find_mappers(region, proc, HR_WITHOUT_OWN_HANDLE,
                           is_pid && state.postinit == 1 ? &owner : NULL,
                           hr_deadline_ns(HR_SEARCH_NS), &mappers);
    if (code != HR_OK)
        return code;
    struct recovery recovery = {.region = region,
                                .progress = progress,
                                .mappers = &mappers,
                                .uses = uses,
                                .watch_ns = watch_ns};
    if (is_lock_wrong(&state))
        code = recover_main(&recovery);
    if (code == HR_OK && region->layout->sem_postinit != HR_ABSENT)
        code = hr_run_entered(region, postinit_work, &recovery);
    hr_free_mappers(&mappers);
    return code;
}

/*
 * Up to 2.8.0 a waiter that finds the owner dead repairs that under lockf over the
 * struct.  The same range, locked by us as well, keeps the two recoveries apart:
 * locks of open files and of processes exclude each other.
 */
static int recover_apart_from_libvgpu(hr_region *region, const char *proc, uint64_t watch_ns,
                                      uint64_t deadline_ns, struct hr_recovery *progress)
{
    if (region->layout->slot_seqlock != HR_ABSENT)
        return recover_held(region, proc, watch_ns, progress);
    struct hr_byte_lock range;
    int code = hr_await_bytes(region, 0, (off_t)region->layout->size, deadline_ns, &range);
    if (code != HR_OK)
        return code;
    code = recover_held(region, proc, watch_ns, progress);
    hr_unlock_bytes(region, &range);
    return code;
}

/* Another writer of this library, or another thread, is at it: say who holds the lock. */
static int held_meanwhile(hr_region *region, const char *proc)
{
    struct hr_lock_state state = {0};
    struct state_call look = {.region = region, .out = &state};
    int code = hr_run_entered(region, state_work, &look);
    if (code == HR_OK)
        code = judge_owner(region, proc, &state);
    if (code != HR_OK)
        return code;
    bool alive = state.owner_pid != 0 && state.owner_liveness == HR_ALIVE;
    struct recovery none = {.here = state.owner_pid_here};
    return not_recoverable(alive ? HR_REASON_ALIVE : HR_REASON_BUSY, &none, state.owner_pid);
}

int hr_recover_lock(hr_region *region, const char *proc, uint64_t watch_ns,
                    struct hr_recovery *progress)
{
    if (!region->writable)
        return hr_fail_code(HR_EREADONLY);
    int code = hr_enter(region);
    if (code != HR_OK)
        return code;
    const uint64_t patience_ns = 500000000;
    uint64_t deadline = hr_deadline_ns(patience_ns);
    code = hr_gate_enter(region, deadline);
    if (code == HR_OK) {
        struct hr_byte_lock host = {NULL};
        code = hr_choose_signature(region, deadline);
        if (code == HR_OK)
            code = hr_await_bytes(region, HR_HOST_LOCK_BYTE, 1, deadline, &host);
        if (code == HR_OK) {
            HR_POINT(RECOVER_HOST_TAKEN);
            code = recover_apart_from_libvgpu(region, proc, watch_ns, deadline, progress);
        }
        hr_unlock_bytes(region, &host);
        hr_gate_leave(region);
    }
    if (code == HR_ETIMEOUT)
        code = held_meanwhile(region, proc);
    hr_leave(region);
    return code;
}
