#define _GNU_SOURCE
#include <unistd.h>

#include "marks.h"
#include "table_view.h"
#include "testpoint.h"

struct reap_call {
    hr_region *region;
    const struct hr_mappers *before;   /* by a scan of all slots' pids, before the lock */
    const struct hr_mappers *mappers;  /* by the one that judges; NULL: no suspects */
    struct hr_judged_marks *marks;     /* by the bytes of the file, before the scans */
    struct hr_slot_pids *suspects;     /* dead by the former, and looked for by the latter */
    struct hr_strangers strangers;     /* none of whom any slot is */
    struct hr_slot_pids names;         /* that stand anywhere in the table, before the scans */
    struct hr_nameless_slots nameless; /* below proc_num */
    bool has_others;                   /* somebody else may live */
    bool has_marked;                   /* a slot is a dead process's by its mark */
    bool has_work;                     /* a suspect's slot is not empty */
    const int32_t *pids;
    uint32_t pid_count;
    uint32_t dry_run;
    struct hr_reap *out;
    int32_t found;
};

static bool is_asked_for(const struct reap_call *call, int32_t pid)
{
    bool asked = call->pid_count == 0;
    for (uint32_t i = 0; i < call->pid_count && !asked; i++)
        asked = call->pids[i] == pid;
    return asked;
}

static void report(struct reap_call *call, int32_t pid, uint32_t what, uint64_t bytes)
{
    if (call->found < HR_SLOTS)
        call->out[call->found++] = (struct hr_reap){.pid = pid, .what = what, .bytes = bytes};
}

/* What the bytes prove of a slot; unknown where it has no mark, or that tells nothing. */
static enum hr_liveness judge_by_mark(const struct reap_call *call, int32_t index)
{
    uint64_t mark = hr_slot_mark(call->region, hr_slot(call->region, (uint32_t)index));
    return mark == 0 ? HR_LIVENESS_UNKNOWN : hr_liveness_of_mark(call->marks, mark);
}

static int32_t pid_of(const struct reap_call *call, int32_t index)
{
    return hr_slot_pid(call->region, hr_slot(call->region, (uint32_t)index));
}

/* ---- The dead ------------------------------------------------------------------------ */

static int note_names(void *argument)
{
    struct reap_call *call = argument;
    int32_t count;
    int code = hr_checked_proc_num(call->region, &count);
    for (int32_t index = 0; code == HR_OK && index < HR_SLOTS; index++) {
        int32_t pid = pid_of(call, index);
        if (judge_by_mark(call, index) != HR_LIVENESS_UNKNOWN)
            continue;
        if (pid != 0)
            call->names.pids[call->names.count++] = pid;
        else if (index < count)
            hr_note_nameless(call->region, index, &call->nameless);
    }
    return code;
}

/* The slot must be as it was before the processes were looked for of which it may be. */
static bool is_nobodys(const struct reap_call *call, int32_t index)
{
    if (hr_may_be_ending(call->region, call->before))
        return false;
    unsigned char *slot = hr_slot(call->region, (uint32_t)index);
    for (int32_t i = 0; i < call->nameless.count; i++) {
        const struct hr_nameless *known = &call->nameless.list[i];
        if (known->index == index)
            return known->seqlock == hr_seqlock_of(call->region, index) &&
                   known->bytes == hr_slot_bytes(call->region, slot);
    }
    return false;
}

static enum hr_liveness judge(const struct reap_call *call, int32_t index)
{
    int32_t pid = pid_of(call, index);
    uint64_t mark = hr_slot_mark(call->region, hr_slot(call->region, (uint32_t)index));
    enum hr_liveness by_mark = hr_liveness_of_mark(call->marks, mark);
    if (mark != 0 && (by_mark != HR_LIVENESS_UNKNOWN || !hr_is_judged(call->marks, mark)))
        return by_mark; /* what has come since is nobody to judge by /proc */
    if (pid == 0)
        return is_nobodys(call, index) ? HR_DEAD : HR_LIVENESS_UNKNOWN;
    if (call->mappers != NULL && hr_names_slot(call->suspects, pid))
        return hr_liveness_of_slot(call->mappers, pid);
    /* A newcomer, or one that was no suspect: nothing is done to it. */
    return hr_liveness_of_slot(call->before, pid) == HR_ALIVE ? HR_ALIVE : HR_LIVENESS_UNKNOWN;
}

/*
 * How many slots remain when the dead at the end go.  That is for a table of which nobody
 * else lives: when it refuses an allocation libvgpu looks for the dead, and removes them,
 * beside the lock.  If proc_num went below a slot that it has just found dead, it would
 * lower it once more and move a live process's slot to where nothing counts.
 */
static int32_t find_end(const struct reap_call *call, int32_t count)
{
    int32_t end = 0, own = call->region->own.pid;
    for (int32_t index = 0; index < HR_SLOTS; index++) {
        int32_t pid = pid_of(call, index);
        bool is_own = own != 0 && pid == own;
        if (index >= count ? pid != 0 && !is_own && judge_by_mark(call, index) != HR_DEAD &&
                                 hr_liveness_of_slot(call->before, pid) != HR_DEAD
                           : !is_own && judge(call, index) != HR_DEAD)
            return count;
        if (index < count && (is_own || !is_asked_for(call, pid)))
            end = index + 1;
    }
    return end;
}

/* Whether the search ended before a slot could be judged that may be a dead process's. */
static bool is_cut_short(const struct reap_call *call, int32_t index)
{
    int32_t pid = pid_of(call, index);
    bool was_cut = call->before->cut_short || (call->mappers != NULL && call->mappers->cut_short);
    return was_cut && pid != HR_NOBODY && judge(call, index) == HR_LIVENESS_UNKNOWN &&
           !hr_slot_is_empty(call->region, hr_slot(call->region, (uint32_t)index));
}

static void report_cut_short(struct reap_call *call, int32_t index)
{
    unsigned char *slot = hr_slot(call->region, (uint32_t)index);
    report(call, pid_of(call, index), HR_REAP_CUT_SHORT, hr_slot_bytes(call->region, slot));
}

/* ---- Emptying and removing ----------------------------------------------------------- */

static void reap_slot(struct reap_call *call, int32_t index, int32_t end)
{
    hr_region *region = call->region;
    unsigned char *slot = hr_slot(region, (uint32_t)index);
    int32_t pid = hr_slot_pid(region, slot);
    if (!is_asked_for(call, pid))
        return;
    enum hr_liveness life = judge(call, index);
    if (life != HR_DEAD) {
        if (is_cut_short(call, index))
            report_cut_short(call, index);
        else if (call->pid_count > 0)
            report(call, pid, life == HR_ALIVE ? HR_REAP_ALIVE : HR_REAP_UNKNOWN, 0);
        return;
    }
    /* What this process left when it detached; it lives, whatever the list says. */
    bool is_empty = hr_slot_is_empty(region, slot);
    if (is_empty && pid == getpid())
        return;
    if (is_empty && pid != 0 && index < end)
        return;
    bool by_mark = judge_by_mark(call, index) == HR_DEAD;
    report(call, pid, index < end ? HR_REAP_EMPTIED : HR_REAP_REMOVED, hr_slot_bytes(region, slot));
    if (call->dry_run)
        return;
    hr_empty_slot(region, slot);
    /* The next newcomer of libvgpu up to 2.8.0 would loop for ever over pid 0. */
    /* A newcomer may not see that a name is nobody's, where the bytes have proved it. */
    if (pid == 0 || by_mark)
        hr_set_slot_pid(region, slot, HR_NOBODY);
    HR_POINT(REMOVE_USAGE_CLEARED);
}

static void remove_end(struct reap_call *call, int32_t count, int32_t end)
{
    hr_region *region = call->region;
    if (!hr_swap_proc_num(region, count, end)) {
        /* Somebody has come to life: what was emptied stands where it was. */
        for (int32_t i = 0; i < call->found; i++) {
            if (call->out[i].what == HR_REAP_REMOVED)
                call->out[i].what = HR_REAP_EMPTIED;
        }
        return;
    }
    HR_POINT(REMOVE_COUNT_STORED);
    /* Above proc_num a pid that lives again would look like an orphan. */
    for (int32_t index = end; index < count; index++)
        hr_set_slot_pid(region, hr_slot(region, (uint32_t)index), 0);
}

static int reap_work(void *argument)
{
    struct reap_call *call = argument;
    const hr_region *region = call->region;
    int32_t count;
    int code = hr_check_header(region);
    if (code == HR_OK)
        code = hr_checked_proc_num(region, &count);
    if (code != HR_OK)
        return code;
    for (uint32_t i = 0; i < call->pid_count; i++) {
        if (hr_find_slot(region, call->pids[i], count) < 0)
            return hr_no_process(call->pids[i]);
    }
    int32_t end = find_end(call, count);
    for (int32_t index = 0; index < count; index++) {
        /* A process that was stopped while it had the lock may have lost it. */
        if (!call->dry_run && !hr_lock_is_kept(region))
            return hr_fail_code(HR_ELOST);
        reap_slot(call, index, end);
    }
    if (end < count && !call->dry_run)
        remove_end(call, count, end);
    return call->found;
}

static int report_all_cut_short(void *argument)
{
    struct reap_call *call = argument;
    int32_t count;
    int code = hr_checked_proc_num(call->region, &count);
    for (int32_t index = 0; code == HR_OK && index < count; index++) {
        if (is_cut_short(call, index))
            report_cut_short(call, index);
    }
    return code == HR_OK ? call->found : code;
}

static int list_suspects(void *argument)
{
    struct reap_call *call = argument;
    int32_t count;
    int code = hr_check_header(call->region);
    if (code == HR_OK)
        code = hr_checked_proc_num(call->region, &count);
    for (int32_t index = 0; code == HR_OK && index < count; index++) {
        int32_t pid = pid_of(call, index);
        enum hr_liveness by_mark = judge_by_mark(call, index);
        if (by_mark == HR_DEAD) {
            call->has_work = call->has_work || is_asked_for(call, pid);
            call->has_marked = true;
        }
        if (pid == 0 || by_mark == HR_DEAD)
            continue;
        if (by_mark == HR_ALIVE || hr_liveness_of_slot(call->before, pid) != HR_DEAD) {
            call->has_others = call->has_others || pid != call->region->own.pid;
        } else if (is_asked_for(call, pid)) {
            call->suspects->pids[call->suspects->count++] = pid;
            if (!hr_slot_is_empty(call->region, hr_slot(call->region, (uint32_t)index)))
                call->has_work = true;
        }
    }
    return code;
}

/* A neighbour whose pid in its own container is that of a dead process here decides how long its
 * maps take to read, and others wait for the lock meanwhile. */
#define SEARCH_NS 500000000

/*
 * The scan that judges is made under the lock: who has a slot by then has mapped the
 * file before, so nobody who comes at the same moment is taken for dead.  In the first
 * namespace it looks for the suspects alone; a later one is proved by those who live.
 */
static int reap_under_lock(struct reap_call *call, const char *proc, uint64_t timeout_ns)
{
    hr_region *region = call->region;
    struct hr_mappers mappers;
    int code = hr_lock_take(region, hr_deadline_ns(timeout_ns));
    if (code != HR_OK)
        return code;
    /* Having the lock in order to reap makes this process no process of the region. */
    enum hr_own_handle own =
        region->own.attachment != NULL ? HR_WITH_OWN_HANDLE : HR_WITHOUT_OWN_HANDLE;
    struct hr_slot_pids slots;
    const struct hr_slot_pids *only = call->suspects;
    if (!call->before->initial) {
        code = hr_read_slot_pids(region, &slots);
        only = &slots;
    }
    bool searches = call->suspects->count > 0;
    if (code == HR_OK && searches)
        code = hr_find_mappers(region, proc, own, only, &call->strangers, SEARCH_NS, &mappers);
    if (code == HR_OK) {
        call->mappers = searches ? &mappers : NULL;
        code = hr_run_entered(region, reap_work, call);
    }
    if (call->mappers != NULL)
        hr_free_mappers(&mappers);
    return hr_lock_drop_after(region, code);
}

static int reap_beside(struct reap_call *call, const char *proc, uint64_t timeout_ns)
{
    int code = hr_run_entered(call->region, list_suspects, call);
    /* Emptied slots are suspects too, which go where nobody else lives. */
    bool has_work =
        call->nameless.count > 0 || call->pid_count > 0 ||
        ((call->suspects->count > 0 || call->has_marked) && (call->has_work || !call->has_others));
    if (code == HR_OK && has_work)
        return reap_under_lock(call, proc, timeout_ns);
    return code == HR_OK ? hr_run_entered(call->region, report_all_cut_short, call) : code;
}

/* Who may live, before the lock: nobody waits meanwhile. */
static int search_before(struct reap_call *call, const char *proc, struct hr_mappers *before)
{
    *before = (struct hr_mappers){.list = NULL};
    /* Where the bytes tell of all slots, /proc is not searched. */
    if (call->nameless.count == 0 && call->names.count == 0)
        return HR_OK;
    /* A process that has stored pid 0 has no name to be found by: all are searched. */
    const struct hr_slot_pids *only = call->nameless.count > 0 ? NULL : &call->names;
    return hr_find_mappers(call->region, proc, HR_WITH_OWN_HANDLE, only, &call->strangers,
                           HR_PROC_NS, before);
}

int hr_reap_without(hr_region *region, const char *proc, const struct hr_stranger *strangers,
                    uint32_t stranger_count, const int32_t *pids, uint32_t pid_count,
                    uint32_t dry_run, uint64_t timeout_ns, struct hr_reap *out,
                    struct hr_error *error)
{
    struct hr_mappers before;
    struct hr_slot_pids suspects = {.count = 0};
    struct hr_judged_marks marks;
    struct reap_call call = {.region = region,
                             .before = &before,
                             .suspects = &suspects,
                             .marks = &marks,
                             .strangers = {.list = strangers, .count = stranger_count},
                             .pids = pids,
                             .pid_count = pid_count,
                             .dry_run = dry_run,
                             .out = out};
    int code = hr_enter_to_lock(region);
    if (code != HR_OK)
        return hr_report(error, code);
    hr_judge_marks(region, 0, &marks);
    code = hr_run_entered(region, note_names, &call);
    if (code == HR_OK)
        code = search_before(&call, proc, &before);
    if (code == HR_OK) {
        code = reap_beside(&call, proc, timeout_ns);
        hr_free_mappers(&before);
    }
    hr_forget_marks(region, &marks);
    hr_leave(region);
    return hr_report(error, code);
}

int hr_reap(hr_region *region, const char *proc, const int32_t *pids, uint32_t pid_count,
            uint32_t dry_run, uint64_t timeout_ns, struct hr_reap *out, struct hr_error *error)
{
    return hr_report(error, hr_reap_without(region, proc, NULL, 0, pids, pid_count, dry_run,
                                            timeout_ns, out, NULL));
}
