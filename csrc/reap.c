#define _GNU_SOURCE
#include <unistd.h>

#include "lock_word.h"
#include "mappers.h"
#include "slot_table.h"

struct reap_call {
    hr_region *region;
    const struct hr_mappers *before;  /* by a scan of all slots' pids, before the lock */
    const struct hr_mappers *mappers; /* by the one that judges */
    struct hr_slot_pids *suspects;    /* dead by the former, and looked for by the latter */
    bool nameless;                    /* some slot has pid 0 */
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

static enum hr_life judge(const struct reap_call *call, int32_t pid)
{
    /* No process has pid 0: such a slot stalls older generations, and belongs to nobody. */
    if (pid == 0)
        return HR_DEAD;
    if (hr_names_slot(call->suspects, pid))
        return hr_life_of_slot(call->mappers, pid);
    /* A newcomer, or one that was no suspect: nothing is done to it. */
    return hr_life_of_slot(call->before, pid) == HR_ALIVE ? HR_ALIVE : HR_LIFE_UNKNOWN;
}

static void reap_slot(struct reap_call *call, int32_t index, int32_t *count)
{
    hr_region *region = call->region;
    unsigned char *slot = hr_slot(region, (uint32_t)index);
    int32_t pid = hr_slot_pid(region, slot);
    if (!is_asked_for(call, pid))
        return;
    enum hr_life life = judge(call, pid);
    if (life != HR_DEAD) {
        if (call->pid_count > 0)
            report(call, pid, life == HR_ALIVE ? HR_REAP_ALIVE : HR_REAP_UNKNOWN, 0);
        return;
    }
    /* What this process left when it detached; it lives, whatever the list says. */
    if (pid == getpid() && hr_slot_is_empty(region, slot))
        return;
    bool removable = !hr_has_seqlock(region) || index == *count - 1;
    if (!removable && hr_slot_is_empty(region, slot))
        return;
    uint64_t bytes = hr_slot_bytes(region, slot);
    uint32_t what = removable ? HR_REAP_REMOVED : HR_REAP_EMPTIED;
    if (call->dry_run && removable && hr_has_seqlock(region))
        (*count)--; /* the next one down becomes the last */
    if (!call->dry_run)
        what = hr_free_slot(region, index, count);
    report(call, pid, what, bytes);
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
    /* From the end: what is moved into a hole has been looked at already. */
    for (int32_t index = count - 1; index >= 0; index--) {
        /* Who was stopped while it had the lock may have lost it. */
        if (!call->dry_run && !hr_lock_is_kept(region))
            return hr_fail_code(HR_ELOST);
        reap_slot(call, index, &count);
    }
    return call->found;
}

static int list_suspects(void *argument)
{
    struct reap_call *call = argument;
    int32_t count;
    int code = hr_check_header(call->region);
    if (code == HR_OK)
        code = hr_checked_proc_num(call->region, &count);
    for (int32_t index = 0; code == HR_OK && index < count; index++) {
        int32_t pid = hr_slot_pid(call->region, hr_slot(call->region, (uint32_t)index));
        call->nameless = call->nameless || pid == 0;
        if (pid != 0 && is_asked_for(call, pid) && hr_life_of_slot(call->before, pid) == HR_DEAD)
            call->suspects->pids[call->suspects->count++] = pid;
    }
    return code;
}

/*
 * Others wait for the lock while /proc is searched under it.  A neighbour whose pid in
 * its own container is that of a dead process here must be looked at, and it decides how
 * long that takes.  So the search is tried without the lock: whom it does not come
 * to in time is no suspect.  What is left takes about as long again, and gets twice the time.
 */
#define TRIAL_NS 250000000
#define SEARCH_NS 500000000

static int drop_long_searches(struct reap_call *call, const char *proc)
{
    struct hr_slot_pids *suspects = call->suspects;
    struct hr_mappers mappers;
    int code = hr_find_mappers(call->region, proc, HR_WITH_OWN_HANDLE, suspects,
                               hr_deadline_ns(TRIAL_NS), &mappers);
    if (code != HR_OK)
        return code;
    int32_t kept = 0;
    for (int32_t i = 0; i < suspects->count; i++) {
        if (hr_life_of_slot(&mappers, suspects->pids[i]) == HR_DEAD)
            suspects->pids[kept++] = suspects->pids[i];
    }
    suspects->count = kept;
    hr_free_mappers(&mappers);
    return HR_OK;
}

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
        region->attachment != NULL ? HR_WITH_OWN_HANDLE : HR_WITHOUT_OWN_HANDLE;
    struct hr_slot_pids slots;
    const struct hr_slot_pids *only = call->suspects;
    if (!call->before->initial) {
        code = hr_read_slot_pids(region, &slots);
        only = &slots;
    }
    if (code == HR_OK)
        code = hr_find_mappers(region, proc, own, only, hr_deadline_ns(SEARCH_NS), &mappers);
    if (code == HR_OK) {
        call->mappers = &mappers;
        code = hr_guard_run(region->base, region->mapped_bytes, reap_work, call);
        hr_free_mappers(&mappers);
    }
    int dropped = hr_lock_drop(region);
    return code >= 0 && dropped != HR_OK ? dropped : code;
}

static int reap_beside(struct reap_call *call, const char *proc, uint64_t timeout_ns)
{
    int code = hr_guard_run(call->region->base, call->region->mapped_bytes, list_suspects, call);
    if (code == HR_OK && call->before->initial && call->suspects->count > 0)
        code = drop_long_searches(call, proc);
    bool idle = call->suspects->count == 0 && !call->nameless && call->pid_count == 0;
    if (code != HR_OK || idle)
        return code;
    return reap_under_lock(call, proc, timeout_ns);
}

int hr_reap(hr_region *region, const char *proc, const int32_t *pids, uint32_t pid_count,
            uint32_t dry_run, uint64_t timeout_ns, struct hr_reap *out)
{
    if (!region->writable)
        return hr_fail_code(HR_EREADONLY);
    struct hr_mappers before;
    struct hr_slot_pids slots, suspects = {.count = 0};
    struct reap_call call = {.region = region,
                             .before = &before,
                             .suspects = &suspects,
                             .pids = pids,
                             .pid_count = pid_count,
                             .dry_run = dry_run,
                             .out = out};
    int code = hr_enter(region);
    if (code != HR_OK)
        return code;
    code = hr_read_slot_pids(region, &slots);
    if (code == HR_OK)
        code = hr_find_mappers(region, proc, HR_WITH_OWN_HANDLE, &slots, HR_NO_DEADLINE, &before);
    if (code == HR_OK) {
        code = reap_beside(&call, proc, timeout_ns);
        hr_free_mappers(&before);
    }
    hr_leave(region);
    return code;
}
