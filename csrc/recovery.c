#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "slots.h"
#include "testpoint.h"

#ifdef HR_TESTPOINTS
#define OWNERLESS_NS hr_testpoint_ownerless_ns
#else
#define OWNERLESS_NS HR_OWNERLESS_NS
#endif

/* ---- The holder ------------------------------------------------------------- */

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
    *call->out = (struct hr_lock_state){.value = hr_sem_value(words.sem),
                                        .waiters = (uint32_t)(words.sem >> 32),
                                        .postinit = hr_postinit_value(region),
                                        .is_ours = hr_is_number(words.owner),
                                        .is_damaged = is_damaged(words),
                                        .owner_pid = hr_owner_pid(words.owner),
                                        .signature = words.owner};
    return HR_OK;
}

static int read_state(hr_region *region, struct hr_lock_state *out)
{
    struct state_call call = {.region = region, .out = out};
    return hr_run_entered(region, state_work, &call);
}

static bool is_signed_with_pid(const struct hr_lock_state *state)
{
    return state->owner_pid != 0 && state->owner_pid < HR_FOREIGN_OWNER;
}

/* Search for the owner alone, or for all processes that map the region. */
static int search(hr_region *region, const struct hr_source *source, bool without_own_handle,
                  const struct hr_lock_state *state, bool only_owner, struct hr_mappers *out)
{
    const struct hr_evidence *evidence = source->evidence;
    *out = (struct hr_mappers){.cut_short = true};
    /* Another holder than the one that was noted is not known. */
    if (evidence != NULL && (evidence->words.owner != state->signature ||
                             hr_sem_value(evidence->words.sem) != state->value))
        return HR_OK;
    const struct hr_slot_pids owner = {
        .pids = {(int32_t)state->owner_pid}, .count = 1, .any_level = true};
    struct hr_search search = {.proc = source->proc,
                               .evidence = evidence,
                               .only = only_owner ? &owner : NULL,
                               .deadline_ns = hr_deadline_ns(HR_OWNER_NS),
                               .without_own_handle = without_own_handle};
    return hr_find_mappers(region, &search, out);
}

/*
 * Outside the guard: it opens files.  `kept` keeps the owner's byte where that could be locked, so
 * that no process draws that number until it is given back.
 */
static enum hr_liveness ask_owner_byte(const hr_region *region, const struct hr_lock_state *state,
                                       struct hr_byte_lock *kept)
{
    const off_t byte = hr_owner_byte(region, state->signature);
    if (byte == 0)
        return HR_LIVENESS_UNKNOWN;
    const int code = hr_lock_bytes(region, F_RDLCK, byte, 1, kept);
    return code == HR_EBUSY ? HR_ALIVE : code == HR_OK ? HR_DEAD : HR_LIVENESS_UNKNOWN;
}

/* The byte is the proof, whatever /proc shows: another process may have that pid. */
static void judge_owner(const struct hr_mappers *mappers, enum hr_liveness by_byte,
                        struct hr_lock_state *state)
{
    state->owner_liveness = state->signature == 0 ? HR_DEAD : HR_LIVENESS_UNKNOWN;
    if (is_signed_with_pid(state))
        state->owner_liveness =
            hr_liveness_of(mappers, (int32_t)state->owner_pid, true, &state->owner_pid_here);
    if (by_byte != HR_LIVENESS_UNKNOWN)
        state->owner_liveness = by_byte;
    if (by_byte == HR_DEAD)
        state->owner_pid_here = 0;
}

/* Whether the lock is signed with the pid of this process alone, which uses the region by another
 * handle: a search of /proc may have begun before that. */
static bool is_own_pid(const hr_region *region, const struct hr_lock_state *state)
{
    return hr_owner_byte(region, state->signature) == 0 && state->owner_pid == (uint64_t)getpid() &&
           hr_is_used_by_process(region, true);
}

/* An owner that lets go meanwhile is alive, whatever was found of it afterwards. */
static int judge_state(hr_region *region, const struct hr_source *source, struct hr_lock_state *out)
{
    struct hr_lock_state after;
    struct hr_mappers mappers = {.list = NULL};
    struct hr_byte_lock kept = {NULL};
    int code = read_state(region, out);
    if (code == HR_OK && is_signed_with_pid(out))
        code = search(region, source, false, out, true, &mappers);
    if (code == HR_OK)
        judge_owner(&mappers, ask_owner_byte(region, out, &kept), out);
    hr_unlock_bytes(region, &kept);
    hr_free_mappers(&mappers);
    if (code == HR_OK)
        code = read_state(region, &after);
    if (code != HR_OK || out->owner_pid == 0)
        return code;
    if (after.signature != out->signature || after.value != out->value || is_own_pid(region, out))
        out->owner_liveness = HR_ALIVE;
    return HR_OK;
}

static int get_lock_state(hr_region *region, const struct hr_source *source,
                          struct hr_lock_state *out, struct hr_error *error)
{
    int code = hr_enter(region);
    if (code != HR_OK)
        return hr_report(error, code);
    /* Whether a byte has to be asked for depends on the owner of the moment. */
    code = hr_check_reopenable(region);
    if (code == HR_OK)
        code = judge_state(region, source, out);
    return hr_report(error, hr_leave_after(region, code));
}

int hr_get_lock_state(hr_region *region, const char *proc, struct hr_lock_state *out,
                      struct hr_error *error)
{
    const struct hr_source source = {.proc = proc};
    return get_lock_state(region, &source, out, error);
}

int hr_get_lock_state_by(hr_evidence *evidence, struct hr_lock_state *out, struct hr_error *error)
{
    const struct hr_source source = {.evidence = evidence};
    return get_lock_state(evidence->region, &source, out, error);
}

/* ---- Recovery --------------------------------------------------------------- */

struct recovery {
    hr_region *region;
    const struct hr_source *source;
    struct hr_recovery *progress; /* the caller's; its owner and value are what was judged */
    struct hr_lock_state state;
    struct hr_mappers mappers; /* empty and not complete if there was no need to search */
    uint64_t watch_ns;
    enum hr_liveness by_byte;
    /* While it is locked, no process draws the number that was judged. */
    struct hr_byte_lock judged_byte;
    bool alone;
    int step; /* HR_RECOVERED_*: what signing in the holder's place is; 0: it is not to be done */
    struct hr_deaths deaths;
};

static int not_recoverable(int reason, const struct recovery *recovery, uint64_t owner)
{
    return HR_FAIL(HR_ENOTRECOVERABLE, .reason = reason, .found = hr_owner_pid(owner),
                   .wanted = (uint64_t)recovery->state.owner_pid_here);
}

static int not_known(const struct recovery *recovery, uint64_t owner)
{
    int32_t process;
    enum hr_slot_outcome why = hr_why_unknown(&recovery->mappers, 0, &process);
    if (why == HR_SLOT_TOO_LONG)
        return HR_FAIL(HR_ENOTRECOVERABLE, .reason = HR_REASON_TOO_LONG,
                       .found = hr_owner_pid(owner), .wanted = (uint64_t)process);
    return not_recoverable(why == HR_SLOT_CUT_SHORT ? HR_REASON_CUT_SHORT : HR_REASON_UNKNOWN,
                           recovery, owner);
}

static bool is_as_judged(const struct recovery *recovery, struct hr_lock_words words)
{
    return words.owner == recovery->state.signature &&
           hr_sem_value(words.sem) == recovery->state.value;
}

/* Proved: no process uses the file, nor does this one by another handle. */
static bool is_mapped_by_nobody(const struct recovery *recovery)
{
    const struct hr_mappers *mappers = &recovery->mappers;
    return mappers->complete && !mappers->filtered && mappers->count == 0;
}

static void judge_for_recovery(struct recovery *recovery)
{
    struct hr_lock_state *state = &recovery->state;
    judge_owner(&recovery->mappers, recovery->by_byte, state);
    const bool is_alone = is_mapped_by_nobody(recovery);
    recovery->alone = is_alone && !state->is_ours && !is_signed_with_pid(state);
    /* Signed by another scheme, or with what is no signature at all; or locks do not tell, and no
     * process that maps the file can be the number's writer. */
    if (state->owner_liveness == HR_LIVENESS_UNKNOWN && is_alone)
        state->owner_liveness = HR_DEAD;
}

/*
 * Whether the words stay as they were judged until `watched_ns` has come to `long_enough`; waiters
 * may come and go.  HR_OK, HR_EINTERRUPTED, or HR_ENOTRECOVERABLE: they have changed, or it would
 * be longer than the caller watches.
 */
static int watch(struct recovery *recovery, uint64_t *watched_ns, uint64_t long_enough,
                 bool (*is_same)(const struct recovery *))
{
    uint64_t start = hr_clock_ns(CLOCK_MONOTONIC);
    /* A holder that was not looked at for that long may be another one. */
    if (start - recovery->progress->interrupted_ns > HR_UNWATCHED_NS)
        *watched_ns = 0;
    uint64_t before = *watched_ns;
    const struct timespec nap = {.tv_nsec = 1000000};
    for (;;) {
        if (!is_same(recovery) || hr_is_closing(recovery->region)) {
            *watched_ns = 0;
            return not_recoverable(HR_REASON_BUSY, recovery, hr_owner_of(recovery->region));
        }
        if (*watched_ns >= long_enough)
            return HR_OK;
        if (*watched_ns >= recovery->watch_ns)
            return not_recoverable(HR_REASON_UNWATCHED, recovery, 0);
        /* What passes in a signal's handler has not been watched. */
        bool interrupted = nanosleep(&nap, NULL) != 0;
        *watched_ns = before + (hr_clock_ns(CLOCK_MONOTONIC) - start);
        if (interrupted) {
            recovery->progress->interrupted_ns = hr_clock_ns(CLOCK_MONOTONIC);
            return hr_fail_code(HR_EINTERRUPTED);
        }
    }
}

static bool stands_still(const struct recovery *recovery)
{
    return is_as_judged(recovery, hr_load_lock(recovery->region));
}

/* A process that has taken the semaphore since then signs within a moment. */
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
static int sign_instead(void *argument)
{
    struct recovery *recovery = argument;
    hr_region *region = recovery->region;
    const bool is_taken = recovery->state.owner_pid == 0 && is_newcomer_seen(recovery);
    struct hr_lock_words now = hr_load_lock(region);
    if (is_taken || !is_as_judged(recovery, now) ||
        !hr_swap_lock(region, now, hr_lock_with(now, region->lock.signature, 0)))
        return not_recoverable(HR_REASON_BUSY, recovery, now.owner);
    HR_POINT(RECOVER_OWNER_TAKEN);
    hr_note_taken(region);
    recovery->progress->done |= (uint32_t)recovery->step;
    /* Before a waiter comes in, and waits for them while it has the lock. */
    hr_even_up(&recovery->deaths);
    return HR_OK;
}

/* The owner is inside, so 0 is right, and its post makes that 1; or no process is, and 1 is. */
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
    recovery->progress->done |= HR_RECOVERED_VALUE;
    return HR_OK;
}

static int recover_work(void *argument)
{
    struct recovery *recovery = argument;
    uint64_t owner = recovery->state.owner_pid;
    uint32_t value = recovery->state.value, liveness = recovery->state.owner_liveness;
    if (!stands_still(recovery) || is_own_pid(recovery->region, &recovery->state))
        return not_recoverable(HR_REASON_BUSY, recovery, hr_owner_of(recovery->region));
    if (value > 0 && (owner == 0 || liveness == HR_ALIVE))
        return set_value(recovery);
    if (liveness == HR_ALIVE)
        return not_recoverable(HR_REASON_ALIVE, recovery, owner);
    if (liveness != HR_DEAD)
        return not_known(recovery, owner);
    int code = HR_OK;
    if (!recovery->alone && owner == 0)
        code = watch(recovery, &recovery->progress->watched_ns, OWNERLESS_NS, stands_still);
    if (code != HR_OK)
        return code;
    recovery->step = owner == 0   ? HR_RECOVERED_OWNERLESS
                     : value == 0 ? HR_RECOVERED_OWNER
                                  : HR_RECOVERED_OWNER | HR_RECOVERED_VALUE;
    return HR_OK;
}

static int recover_main(struct recovery *recovery)
{
    hr_region *region = recovery->region;
    judge_for_recovery(recovery);
    int code = hr_run_entered(region, recover_work, recovery);
    if (code == HR_OK && recovery->step != 0) {
        recovery->deaths = (struct hr_deaths){.region = region,
                                              .search = {.proc = recovery->source->proc,
                                                         .evidence = recovery->source->evidence,
                                                         .without_own_handle = true},
                                              .only_odd = true};
        code = hr_gather_deaths(&recovery->deaths, hr_deadline_ns(HR_OWNER_NS));
        if (code == HR_OK)
            code = hr_run_entered(region, sign_instead, recovery);
        hr_free_mappers(&recovery->deaths.mappers);
    }
    if (region->lock.held) {
        int dropped = hr_give_back(region);
        code = code == HR_OK ? dropped : code;
    }
    return code;
}

/* ---- The second semaphore ----------------------------------------------------- */

static bool is_postinit_taken(const struct recovery *recovery)
{
    return hr_postinit_value(recovery->region) == 0;
}

static int postinit_work(void *argument)
{
    struct recovery *recovery = argument;
    struct hr_recovery *progress = recovery->progress;
    unsigned char *sem = hr_postinit_at(recovery->region);
    const uint32_t judged = hr_postinit_value(recovery->region);
    if (judged == 1)
        return HR_OK;
    if (judged == 0 && !is_mapped_by_nobody(recovery)) {
        int code =
            watch(recovery, &progress->postinit_watched_ns, HR_POSTINIT_NS, is_postinit_taken);
        if (code == HR_ENOTRECOVERABLE && (progress->done != 0 || !is_postinit_taken(recovery)))
            return HR_OK;
        if (code != HR_OK)
            return code;
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

/* A signal has interrupted a watch of what still is there: the search before it found a process
 * that may have the lock. */
static bool is_watch_running(const struct hr_recovery *progress, const struct hr_lock_state *state)
{
    const bool is_same = state->value == progress->value && state->signature == progress->signature;
    const uint64_t watched_ns =
        is_lock_wrong(state) ? progress->watched_ns : progress->postinit_watched_ns;
    return is_same && watched_ns != 0 &&
           hr_clock_ns(CLOCK_MONOTONIC) - progress->interrupted_ns <= HR_UNWATCHED_NS;
}

/* All processes, or of a lock that is signed with a pid only the owner.  None, where it is known
 * without them what is to be done. */
static int search_for_recovery(struct recovery *recovery)
{
    const struct hr_lock_state *state = &recovery->state;
    const bool is_known =
        recovery->by_byte == HR_DEAD || (state->signature == 0 && state->value > 0);
    if ((is_known && state->postinit == 1) || is_watch_running(recovery->progress, state))
        return HR_OK;
    const bool only_owner = is_signed_with_pid(state) && state->postinit == 1;
    return search(recovery->region, recovery->source, true, state, only_owner, &recovery->mappers);
}

/* With gate and host lock held. */
static int recover_held(hr_region *region, const struct hr_source *source, uint64_t watch_ns,
                        struct hr_recovery *progress)
{
    struct recovery recovery = {
        .region = region,
        .source = source,
        .progress = progress,
        .watch_ns = watch_ns,
    };
    const struct hr_lock_state *state = &recovery.state;
    int code = read_state(region, &recovery.state);
    if (code != HR_OK || (!is_lock_wrong(state) && state->postinit == 1))
        return code;
    recovery.by_byte = hr_is_predecessor(region, state->signature)
                           ? HR_DEAD
                           : ask_owner_byte(region, state, &recovery.judged_byte);
    code = search_for_recovery(&recovery);
    if (state->value != progress->value || state->signature != progress->signature)
        progress->watched_ns = 0;
    progress->value = state->value;
    progress->signature = state->signature;
    if (code == HR_OK && is_lock_wrong(state))
        code = recover_main(&recovery);
    hr_unlock_bytes(region, &recovery.judged_byte);
    if (code == HR_OK && region->layout->sem_postinit != HR_ABSENT)
        code = hr_run_entered(region, postinit_work, &recovery);
    hr_free_mappers(&recovery.mappers);
    return code;
}

/* Another thread holds the lock by this handle, or another recovery is at it. */
static int fail_busy(void *argument)
{
    const hr_region *region = argument;
    return HR_FAIL(HR_ENOTRECOVERABLE,
                   .reason = region->lock.held ? HR_REASON_ALIVE : HR_REASON_RECOVERING,
                   .found = hr_owner_pid(hr_owner_of(region)));
}

static int recover_lock(hr_region *region, const struct hr_source *source, uint64_t watch_ns,
                        struct hr_recovery *progress, struct hr_error *error)
{
    int code = hr_enter_to_lock(region);
    if (code != HR_OK)
        return hr_report(error, code);
    const uint64_t patience_ns = 500000000;
    uint64_t deadline = hr_deadline_ns(patience_ns);
    code = hr_gate_enter(region, deadline);
    if (code == HR_OK) {
        struct hr_byte_lock host = {NULL}, range = {NULL};
        code = hr_choose_signature(region, deadline);
        if (code == HR_OK)
            code = hr_await_bytes(region, HR_HOST_LOCK_BYTE, 1, deadline, &host);
        if (code == HR_OK)
            HR_POINT(RECOVER_HOST_TAKEN);
        /* Up to 2.8.0 a waiter that finds the owner dead repairs that under lockf over the struct.
         * The same range, locked by us as well, keeps the two recoveries apart: locks of open files
         * and of processes exclude each other. */
        if (code == HR_OK && region->layout->slot_seqlock == HR_ABSENT)
            code = hr_await_bytes(region, 0, (off_t)region->layout->size, deadline, &range);
        if (code == HR_OK)
            code = recover_held(region, source, watch_ns, progress);
        hr_unlock_bytes(region, &range);
        hr_unlock_bytes(region, &host);
        hr_gate_leave(region);
    }
    if (code == HR_ETIMEOUT)
        code = hr_run_entered(region, fail_busy, region);
    return hr_report(error, hr_leave_after(region, code));
}

int hr_recover_lock(hr_region *region, const char *proc, uint64_t watch_ns,
                    struct hr_recovery *progress, struct hr_error *error)
{
    const struct hr_source source = {.proc = proc};
    return recover_lock(region, &source, watch_ns, progress, error);
}

int hr_recover_lock_by(hr_evidence *evidence, uint64_t watch_ns, struct hr_recovery *progress,
                       struct hr_error *error)
{
    const struct hr_source source = {.evidence = evidence};
    return recover_lock(evidence->region, &source, watch_ns, progress, error);
}
