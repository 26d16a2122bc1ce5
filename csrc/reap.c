#define _GNU_SOURCE
#include <string.h>
#include <time.h>

#include "slots.h"
#include "testpoint.h"

/* So many slots are emptied at a time, while allocations of the container wait for the lock. */
enum { BATCH = 64 };

struct reap_call {
    hr_region *region;
    struct hr_deaths deaths;
    const int32_t *pids;
    uint32_t pid_count;
    bool is_dry_run;
    struct hr_slot_result *out;
    int32_t found;
    /* The slots to be emptied, how many they are, and the first that was not looked at yet. */
    bool is_due[HR_SLOTS];
    int32_t due, next;
    bool has_stuck;       /* among those that are due */
    bool is_full_of_dead; /* so that the table is to be cut */
};

/* ---- Judging ------------------------------------------------------------------------- */

static bool is_asked_for(const struct reap_call *call, int32_t pid)
{
    bool asked = call->pid_count == 0;
    for (uint32_t i = 0; i < call->pid_count && !asked; i++)
        asked = call->pids[i] == pid;
    return asked;
}

static struct hr_slot_result *report(struct reap_call *call, const struct hr_seen_slot *slot,
                                     enum hr_slot_outcome what)
{
    struct hr_slot_result *result = &call->out[call->found++];
    *result = (struct hr_slot_result){.pid = slot->pid, .what = what, .bytes = slot->bytes};
    return result;
}

/* Slots that were asked for; of others, those that another search might free. */
static void report_left(struct reap_call *call, const struct hr_seen_slot *slot,
                        enum hr_liveness life, bool is_used)
{
    int32_t process = 0;
    enum hr_slot_outcome why = life == HR_ALIVE
                                   ? HR_SLOT_ALIVE
                                   : hr_why_unknown(&call->deaths.mappers, slot->pid, &process);
    const bool is_known_why = why == HR_SLOT_CUT_SHORT || why == HR_SLOT_TOO_LONG;
    if (call->pid_count > 0 || (is_known_why && is_used && slot->pid != HR_NOBODY))
        report(call, slot, why)->process = process;
}

static void judge_slot(struct reap_call *call, int32_t index)
{
    hr_region *region = call->region;
    const struct hr_seen_slot now = hr_look_at_slot(region, index);
    const enum hr_liveness life = hr_judge_slot(&call->deaths, index);
    const bool is_used = hr_slot_is_used(region, index) || now.pid == 0;
    call->is_full_of_dead = call->is_full_of_dead && life == HR_DEAD;
    if (!is_asked_for(call, now.pid))
        return;
    if (life != HR_DEAD) {
        report_left(call, &now, life, is_used);
    } else if (is_used || call->deaths.is_ended[index]) {
        call->is_due[index] = true;
        call->due++;
        call->has_stuck = call->has_stuck || (now.seqlock & 1) != 0;
        if (call->is_dry_run)
            report(call, &now, HR_SLOT_DONE);
    }
}

static int judge_work(void *argument)
{
    struct reap_call *call = argument;
    int32_t count;
    int code = hr_checked_table(call->region, &count);
    for (uint32_t i = 0; code == HR_OK && i < call->pid_count; i++) {
        if (hr_find_slot(call->region, call->pids[i], count) < 0)
            code = hr_no_process(call->pids[i]);
    }
    if (code != HR_OK)
        return code;
    call->found = call->due = call->next = 0;
    call->has_stuck = false;
    memset(call->is_due, 0, sizeof call->is_due);
    /* A process of libvgpu that starts ends if the table is full, before it looks for the dead. */
    call->is_full_of_dead = count == HR_SLOTS && call->pid_count == 0;
    for (int32_t index = 0; index < count; index++)
        judge_slot(call, index);
    return HR_OK;
}

static int judge(struct reap_call *call)
{
    int code = hr_gather_deaths(&call->deaths, hr_deadline_ns(HR_PROC_NS));
    return code == HR_OK ? hr_run_entered(call->region, judge_work, call) : code;
}

/* ---- Under the lock -------------------------------------------------------------------- */

static void empty_due(struct reap_call *call, int32_t index)
{
    hr_region *region = call->region;
    struct hr_seen_slot *before = &call->deaths.seen[index];
    if (!hr_is_as_seen(region, before, index)) {
        const struct hr_seen_slot now = hr_look_at_slot(region, index);
        report_left(call, &now, HR_LIVENESS_UNKNOWN, true);
        return;
    }
    report(call, before, HR_SLOT_DONE);
    hr_empty_slot(region, index);
    /* The next newcomer of libvgpu up to 2.8.0 would loop for ever over pid 0.  And one of ours
     * cannot always see that the pid is dead where the bytes have proved it. */
    if (before->pid == 0 || before->mark != 0)
        hr_set_slot_pid(region, index, HR_NOBODY);
    HR_POINT(REMOVE_USAGE_CLEARED);
    *before = hr_look_at_slot(region, index);
}

static void cut_table(const struct reap_call *call)
{
    const hr_region *region = call->region;
    for (int32_t index = 0; index < HR_SLOTS; index++) {
        if (!hr_is_as_seen(region, &call->deaths.seen[index], index))
            return;
    }
    if (!hr_lock_is_kept(region) || !hr_swap_proc_num(region, HR_SLOTS, 0))
        return;
    HR_POINT(REMOVE_COUNT_STORED);
    /* Above proc_num a pid that lives again would look like an orphan. */
    for (int32_t index = 0; index < HR_SLOTS && hr_lock_is_kept(region); index++)
        hr_set_slot_pid(region, index, 0);
}

static int empty_work(void *argument)
{
    struct reap_call *call = argument;
    int32_t count, emptied = 0;
    int code = hr_checked_table(call->region, &count);
    for (; code == HR_OK && call->next < count && emptied < BATCH; call->next++) {
        if (!call->is_due[call->next])
            continue;
        /* A process that was stopped while it had the lock may have lost it. */
        if (!hr_lock_is_kept(call->region))
            return hr_fail_code(HR_ELOST);
        empty_due(call, call->next);
        emptied++;
    }
    if (code != HR_OK || call->next < count)
        return code;
    if (call->is_full_of_dead)
        cut_table(call);
    call->next = HR_SLOTS;
    return HR_OK;
}

/* The lock is given back after each batch. */
static int empty_in_batches(struct reap_call *call, uint64_t timeout_ns)
{
    int code;
    do
        code = hr_run_locked(call->region, empty_work, call, timeout_ns);
    while (code == HR_OK && call->next < HR_SLOTS);
    /* The next call empties the others. */
    return code == HR_OK || (code == HR_ETIMEOUT && call->next > 0) ? call->found : code;
}

/* ---- Both ------------------------------------------------------------------------------ */

/*
 * From HAMi-core of September 2026 on a holder waits for the seqlocks that it reads: it gives the
 * lock back once those that the dead have left odd are even.
 */
static int empty_beside_owner(struct reap_call *call, uint64_t timeout_ns)
{
    const uint64_t first_ns = 1000000, deadline_ns = hr_deadline_ns(timeout_ns);
    int code = empty_in_batches(call, timeout_ns < first_ns ? timeout_ns : first_ns);
    if (code != HR_ETIMEOUT)
        return code;
    code = hr_even_up_beside_owner(&call->deaths);
    /* Others have had the lock since. */
    if (code == HR_OK)
        code = judge(call);
    if (code != HR_OK)
        return code;
    const uint64_t now_ns = hr_clock_ns(CLOCK_MONOTONIC);
    return empty_in_batches(call, deadline_ns > now_ns ? deadline_ns - now_ns : 0);
}

static int reap_entered(struct reap_call *call, uint64_t timeout_ns)
{
    int code = judge(call);
    if (code != HR_OK)
        return code;
    /* The lock is not taken if there is nothing to do. */
    if (call->is_dry_run || (call->due == 0 && !call->is_full_of_dead))
        return call->found;
    return call->has_stuck ? empty_beside_owner(call, timeout_ns)
                           : empty_in_batches(call, timeout_ns);
}

static int reap(hr_region *region, const struct hr_search *search, const int32_t *pids,
                uint32_t pid_count, uint32_t dry_run, uint64_t timeout_ns,
                struct hr_slot_result *out, struct hr_error *error)
{
    struct reap_call call = {.region = region,
                             .deaths = {.region = region, .search = *search},
                             .pids = pids,
                             .pid_count = pid_count,
                             .is_dry_run = dry_run != 0,
                             .out = out};
    int code = hr_enter_to_lock(region);
    if (code != HR_OK)
        return hr_report(error, code);
    code = reap_entered(&call, timeout_ns);
    hr_free_mappers(&call.deaths.mappers);
    return hr_report(error, hr_leave_after(region, code));
}

int hr_reap(hr_region *region, const char *proc, const int32_t *pids, uint32_t pid_count,
            uint32_t dry_run, uint64_t timeout_ns, struct hr_slot_result *out,
            struct hr_error *error)
{
    const struct hr_search search = {.proc = proc};
    return reap(region, &search, pids, pid_count, dry_run, timeout_ns, out, error);
}

int hr_reap_by(hr_evidence *evidence, const int32_t *pids, uint32_t pid_count, uint32_t dry_run,
               uint64_t timeout_ns, struct hr_slot_result *out, struct hr_error *error)
{
    const struct hr_search search = {.evidence = evidence};
    return reap(evidence->region, &search, pids, pid_count, dry_run, timeout_ns, out, error);
}
