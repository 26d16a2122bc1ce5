#define _GNU_SOURCE
#include <time.h>

#include "slots.h"
#include "testpoint.h"

struct reap_call {
    hr_region *region;
    struct hr_deaths deaths;
    const int32_t *pids;
    uint32_t pid_count;
    bool is_dry_run;
    struct hr_slot_result *out;
    int32_t found;
    bool has_dead, has_stuck;
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

static void reap_slot(struct reap_call *call, int32_t index)
{
    hr_region *region = call->region;
    const struct hr_seen_slot now = hr_look_at_slot(region, index);
    if (!is_asked_for(call, now.pid))
        return;
    enum hr_liveness life = hr_judge_slot(&call->deaths, index);
    const bool is_used = hr_slot_is_used(region, index) || now.pid == 0;
    if (life != HR_DEAD) {
        report_left(call, &now, life, is_used);
        return;
    }
    if (!is_used)
        return;
    report(call, &now, HR_SLOT_DONE);
    call->has_dead = true;
    call->has_stuck = call->has_stuck || (now.seqlock & 1) != 0;
    if (call->is_dry_run)
        return;
    hr_empty_slot(region, index);
    /* The next newcomer of libvgpu up to 2.8.0 would loop for ever over pid 0.  And one of ours
     * cannot always see that the pid is dead where the bytes have proved it. */
    if (now.pid == 0 || now.mark != 0)
        hr_set_slot_pid(region, index, HR_NOBODY);
    HR_POINT(REMOVE_USAGE_CLEARED);
}

/* A process of libvgpu that starts ends if the table is full, before it looks for the dead. */
static bool is_full_of_dead(const struct reap_call *call, int32_t count)
{
    bool is_full = count == HR_SLOTS && call->pid_count == 0;
    for (int32_t index = 0; is_full && index < count; index++)
        is_full = hr_judge_slot(&call->deaths, index) == HR_DEAD;
    return is_full;
}

static void cut_table(const hr_region *region)
{
    if (!hr_swap_proc_num(region, HR_SLOTS, 0))
        return;
    HR_POINT(REMOVE_COUNT_STORED);
    /* Above proc_num a pid that lives again would look like an orphan. */
    for (int32_t index = 0; index < HR_SLOTS && hr_lock_is_kept(region); index++)
        hr_set_slot_pid(region, index, 0);
}

static int reap_work(void *argument)
{
    struct reap_call *call = argument;
    const hr_region *region = call->region;
    int32_t count = 0;
    call->found = 0;
    int code = hr_checked_table(region, &count);
    for (uint32_t i = 0; code == HR_OK && i < call->pid_count; i++) {
        if (hr_find_slot(region, call->pids[i], count) < 0)
            code = hr_no_process(call->pids[i]);
    }
    const bool is_full = code == HR_OK && is_full_of_dead(call, count);
    for (int32_t index = 0; code == HR_OK && index < count; index++) {
        /* A process that was stopped while it had the lock may have lost it. */
        if (!call->is_dry_run && !hr_lock_is_kept(region))
            code = hr_fail_code(HR_ELOST);
        else
            reap_slot(call, index);
    }
    call->has_dead = call->has_dead || is_full;
    if (code == HR_OK && is_full && !call->is_dry_run && hr_lock_is_kept(region))
        cut_table(region);
    return code == HR_OK ? call->found : code;
}

/*
 * From HAMi-core of September 2026 on a holder waits for the seqlocks that it reads: it gives the
 * lock back once those that the dead have left odd are even.
 */
static int reap_beside_owner(struct reap_call *call, uint64_t timeout_ns)
{
    const uint64_t first_ns = 20000000, deadline_ns = hr_deadline_ns(timeout_ns);
    int code =
        hr_run_locked(call->region, reap_work, call, timeout_ns < first_ns ? timeout_ns : first_ns);
    if (code != HR_ETIMEOUT)
        return code;
    code = hr_even_up_beside_owner(&call->deaths);
    if (code != HR_OK)
        return code;
    const uint64_t now_ns = hr_clock_ns(CLOCK_MONOTONIC);
    return hr_run_locked(call->region, reap_work, call,
                         deadline_ns > now_ns ? deadline_ns - now_ns : 0);
}

static int reap_entered(struct reap_call *call, bool is_dry_run, uint64_t timeout_ns)
{
    int code = hr_gather_deaths(&call->deaths, hr_deadline_ns(HR_PROC_NS));
    if (code != HR_OK)
        return code;
    /* The lock is not taken if there is nothing to do. */
    call->is_dry_run = true;
    code = hr_run_entered(call->region, reap_work, call);
    if (code < 0 || is_dry_run || !call->has_dead)
        return code;
    call->is_dry_run = false;
    return call->has_stuck ? reap_beside_owner(call, timeout_ns)
                           : hr_run_locked(call->region, reap_work, call, timeout_ns);
}

int hr_reap(hr_region *region, const char *proc, const struct hr_stranger *strangers,
            uint32_t stranger_count, const int32_t *pids, uint32_t pid_count, uint32_t dry_run,
            uint64_t timeout_ns, struct hr_slot_result *out, struct hr_error *error)
{
    struct reap_call call = {.region = region,
                             .deaths = {.region = region,
                                        .search = {.proc = proc,
                                                   .excluded = strangers,
                                                   .excluded_count = stranger_count}},
                             .pids = pids,
                             .pid_count = pid_count,
                             .out = out};
    int code = hr_enter_to_lock(region);
    if (code != HR_OK)
        return hr_report(error, code);
    code = reap_entered(&call, dry_run != 0, timeout_ns);
    hr_free_mappers(&call.deaths.mappers);
    return hr_report(error, hr_leave_after(region, code));
}
