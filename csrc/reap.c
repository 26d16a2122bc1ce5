#define _GNU_SOURCE
#include "slots.h"
#include "testpoint.h"

/*
 * The proof of a death is gathered before the lock: the bytes of the pids, then a search of /proc,
 * which may take long.  A process that takes a dead one's pid and slot meanwhile changes the slot:
 * libvgpu makes all of it 0, this library stores another mark.  So under the lock only a slot that
 * is as it was before the search is emptied, and one that counts nothing stays as it is.  Not seen
 * is a newcomer of libvgpu's that has made the same figures, pids, status and seqlock again within
 * the 2 s of the search.
 */

struct reap_call {
    hr_region *region;
    struct hr_search search;
    const int32_t *pids;
    uint32_t pid_count;
    bool is_dry_run;
    struct hr_slot_result *out;
    int32_t found;
    bool has_dead;
    int32_t slots; /* below proc_num, before the search */
    struct hr_mappers mappers;
    struct hr_slot_pids names; /* to be searched for */
    struct hr_seen_slot seen[HR_SLOTS];
    enum hr_liveness by_byte[HR_SLOTS];
};

/* ---- Before the lock ----------------------------------------------------------------- */

static int note_slots(void *argument)
{
    struct reap_call *call = argument;
    int code = hr_checked_table(call->region, &call->slots);
    for (int32_t index = 0; code == HR_OK && index < call->slots; index++) {
        call->seen[index] = hr_look_at_slot(call->region, index);
        call->by_byte[index] = HR_LIVENESS_UNKNOWN;
    }
    return code;
}

/* If the file cannot be opened, nothing is known. */
static void ask_bytes(struct reap_call *call)
{
    off_t bytes[HR_SLOTS];
    int32_t of[HR_SLOTS];
    bool is_locked[HR_SLOTS];
    uint32_t count = 0;
    for (int32_t index = 0; call->region->has_own_pages && index < call->slots; index++) {
        if (call->seen[index].mark == 0)
            continue;
        of[count] = index;
        bytes[count++] = HR_PID_BYTE + call->seen[index].pid;
    }
    if (count == 0 || hr_ask_bytes(call->region, bytes, count, is_locked) != HR_OK)
        return;
    for (uint32_t i = 0; i < count; i++)
        call->by_byte[of[i]] = is_locked[i] ? HR_ALIVE : HR_DEAD;
}

static int search(struct reap_call *call)
{
    struct hr_slot_pids *names = &call->names;
    bool has_pidless = false;
    for (int32_t index = 0; index < call->slots; index++) {
        const int32_t pid = call->seen[index].pid;
        if (pid != 0 && call->by_byte[index] == HR_LIVENESS_UNKNOWN)
            names->pids[names->count++] = pid;
        has_pidless = has_pidless || pid == 0;
    }
    if (names->count == 0 && !has_pidless)
        return HR_OK;
    /* A process that has stored pid 0 has no name to be found by: all are searched. */
    call->search.only = has_pidless ? NULL : names;
    call->search.deadline_ns = hr_deadline_ns(HR_PROC_NS);
    return hr_find_mappers(call->region, &call->search, &call->mappers);
}

/* ---- Judging ------------------------------------------------------------------------- */

static enum hr_liveness judge(const struct reap_call *call, int32_t index)
{
    const struct hr_seen_slot *before = &call->seen[index];
    /* It is a newcomer's, which was not searched for, or may be by now. */
    if (index >= call->slots || !hr_is_as_seen(call->region, before, index))
        return HR_LIVENESS_UNKNOWN;
    if (call->by_byte[index] != HR_LIVENESS_UNKNOWN)
        return call->by_byte[index];
    if (before->pid != 0)
        return hr_liveness_of_slot(&call->mappers, before->pid);
    return hr_may_be_ending(call->region, &call->mappers) ? HR_LIVENESS_UNKNOWN : HR_DEAD;
}

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
    enum hr_slot_outcome why =
        life == HR_ALIVE ? HR_SLOT_ALIVE : hr_why_unknown(&call->mappers, slot->pid, &process);
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
    enum hr_liveness life = judge(call, index);
    const bool is_used = hr_slot_is_used(region, index) || now.pid == 0;
    if (life != HR_DEAD) {
        report_left(call, &now, life, is_used);
        return;
    }
    if (!is_used)
        return;
    report(call, &now, HR_SLOT_DONE);
    call->has_dead = true;
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
        is_full = judge(call, index) == HR_DEAD;
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

static int reap_entered(struct reap_call *call, bool is_dry_run, uint64_t timeout_ns)
{
    int code = hr_run_entered(call->region, note_slots, call);
    if (code != HR_OK)
        return code;
    ask_bytes(call);
    code = search(call);
    if (code != HR_OK)
        return code;
    /* The lock is not taken if there is nothing to do. */
    call->is_dry_run = true;
    code = hr_run_entered(call->region, reap_work, call);
    if (code < 0 || is_dry_run || !call->has_dead)
        return code;
    call->is_dry_run = false;
    return hr_run_locked(call->region, reap_work, call, timeout_ns);
}

int hr_reap(hr_region *region, const char *proc, const struct hr_stranger *strangers,
            uint32_t stranger_count, const int32_t *pids, uint32_t pid_count, uint32_t dry_run,
            uint64_t timeout_ns, struct hr_slot_result *out, struct hr_error *error)
{
    struct reap_call call = {
        .region = region,
        .search = {.proc = proc, .excluded = strangers, .excluded_count = stranger_count},
        .pids = pids,
        .pid_count = pid_count,
        .out = out};
    int code = hr_enter_to_lock(region);
    if (code != HR_OK)
        return hr_report(error, code);
    code = reap_entered(&call, dry_run != 0, timeout_ns);
    hr_free_mappers(&call.mappers);
    return hr_report(error, hr_leave_after(region, code));
}
