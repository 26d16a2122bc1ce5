#include "slots.h"
#include "testpoint.h"

struct repair_call {
    hr_region *region;
    struct hr_table_view view;
    uint32_t dry_run;
    struct hr_slot_repair *out;
    int32_t found;
};

static void report(struct repair_call *call, int32_t pid, uint32_t what)
{
    for (int32_t i = 0; i < call->found; i++) {
        if (call->out[i].pid == pid && call->out[i].what == what)
            return;
    }
    if (call->found < HR_SLOTS)
        call->out[call->found++] = (struct hr_slot_repair){.pid = pid, .what = what};
}

static int32_t pid_of(const struct repair_call *call, int32_t index)
{
    return hr_slot_pid(call->region, hr_slot(call->region, (uint32_t)index));
}

/* Whether something would be wrong now if an undecided slot were its process's own: a copy of it
 * that stands still counts something else. */
static bool may_be_missed(const struct repair_call *call, int32_t index, int32_t count)
{
    hr_region *region = call->region;
    int32_t pid = pid_of(call, index);
    /* Our own process puts itself right, from its books. */
    if (pid <= 0 || pid == region->own.pid ||
        hr_liveness_of_slot(&call->view.mappers, pid) != HR_ALIVE)
        return false;
    int32_t copy = hr_find_slot(region, pid, count);
    uint64_t bytes = hr_slot_bytes(region, hr_slot(region, (uint32_t)index));
    if (copy < 0)
        return bytes != 0;
    return hr_seqlock_of(region, index) > hr_seqlock_of(region, copy) &&
           bytes != hr_slot_bytes(region, hr_slot(region, (uint32_t)copy));
}

/* What was not judged may be once the search has ended. */
static void report_left(struct repair_call *call, int32_t pid)
{
    report(call, pid, call->view.mappers.cut_short ? HR_REPAIR_CUT_SHORT : HR_REPAIR_LEFT);
}

/* Whether the search ended before the process could be found. */
static bool is_cut_short(const struct repair_call *call, int32_t pid)
{
    return call->view.mappers.cut_short && pid > 0 && pid != HR_NOBODY &&
           hr_liveness_of_slot(&call->view.mappers, pid) == HR_LIVENESS_UNKNOWN;
}

/*
 * How far the table can be extended: to behind the last slot that a live process was seen
 * working in, before the first that is undecided.
 */
static int32_t find_end(struct repair_call *call, int32_t count)
{
    int32_t end = count;
    bool barred = false;
    for (int32_t index = count; index < HR_SLOTS; index++) {
        enum hr_slot_use use = hr_judge_use(call->region, &call->view, index, count);
        const bool is_missed =
            use == HR_USE_UNDECIDED &&
            (is_cut_short(call, pid_of(call, index)) || may_be_missed(call, index, count));
        barred = barred || use == HR_USE_UNDECIDED;
        if (is_missed || (use == HR_USE_AT_WORK && barred))
            report_left(call, pid_of(call, index));
        if (use == HR_USE_AT_WORK && !barred) {
            report(call, pid_of(call, index), HR_REPAIR_DONE);
            end = index + 1;
        }
    }
    return end;
}

/*
 * What lies between is nobody's.  It is emptied before it counts, and a live process that
 * works elsewhere loses its name there: one up to 2.8.0 would account in both.
 */
static void empty_between(const struct repair_call *call, int32_t count, int32_t end)
{
    hr_region *region = call->region;
    /* All of them first: a slot that loses its name looks as if somebody had taken it, and puts the
     * others of its process in doubt. */
    enum hr_slot_use uses[HR_SLOTS];
    for (int32_t index = count; index < end; index++)
        uses[index] = hr_judge_use(region, &call->view, index, count);
    for (int32_t index = count; index < end; index++) {
        if (uses[index] == HR_USE_AT_WORK || uses[index] == HR_USE_BLANK)
            continue;
        unsigned char *slot = hr_slot(region, (uint32_t)index);
        hr_empty_slot(region, slot);
        if (uses[index] == HR_USE_STALE || hr_slot_pid(region, slot) <= 0)
            hr_set_slot_pid(region, slot, HR_NOBODY);
    }
}

/* Several slots below `end` that name one live process, and more than one of them counts. */
static void mend_double(struct repair_call *call, int32_t pid, int32_t count, int32_t end)
{
    hr_region *region = call->region;
    int32_t counting = 0, moving = 0, unclear = 0, at_work = -1;
    for (int32_t index = 0; index < end; index++) {
        unsigned char *slot = hr_slot(region, (uint32_t)index);
        if (hr_slot_pid(region, slot) != pid)
            continue;
        enum hr_motion motion = hr_motion_of(region, &call->view, index);
        /* What was stale between has been emptied, or would be. */
        if (index >= count && motion != HR_MOVES)
            continue;
        counting += hr_slot_bytes(region, slot) != 0;
        unclear += motion == HR_MOTION_UNCLEAR;
        if (motion == HR_MOVES) {
            moving++;
            at_work = index;
        }
    }
    if (moving == 1 && unclear == 0) {
        if (hr_clear_frozen_copies(region, &call->view, at_work, count, call->dry_run) != 0)
            report(call, pid, HR_REPAIR_DONE);
    } else if (counting > 1) {
        report_left(call, pid);
    }
}

static int repair_work(void *argument)
{
    struct repair_call *call = argument;
    hr_region *region = call->region;
    int32_t count;
    call->found = 0;
    int code = hr_check_header(region);
    if (code == HR_OK)
        code = hr_checked_proc_num(region, &count);
    if (code != HR_OK)
        return code;
    int32_t end = find_end(call, count);
    if (end > count && !call->dry_run) {
        empty_between(call, count, end);
        /* First this: killed here, a process counts twice until the next repair, never not at
         * all.  libvgpu may have lowered the number meanwhile; then all is judged anew. */
        if (!hr_swap_proc_num(region, count, end))
            return hr_fail_code(HR_ETIMEOUT);
        HR_POINT(REPAIR_COUNT_STORED);
    }
    for (int32_t index = 0; index < end; index++) {
        int32_t pid = pid_of(call, index);
        bool is_first = pid > 0 && hr_find_slot(region, pid, index) < 0;
        if (is_first && hr_lives_once(&call->view, pid))
            mend_double(call, pid, count, end);
        else if (is_first && is_cut_short(call, pid) && hr_find_slot(region, pid, end) != index)
            report_left(call, pid);
    }
    return call->found;
}

int hr_repair_slots(hr_region *region, const char *proc, uint32_t dry_run, uint64_t timeout_ns,
                    struct hr_slot_repair *out, struct hr_error *error)
{
    struct repair_call call = {.region = region, .dry_run = dry_run, .out = out};
    int code = hr_check_lockable(region);
    if (code != HR_OK)
        return hr_report(error, code);
    /* A read-only handle can look, and looking needs no lock: at worst it sees a move. */
    bool is_locked = !dry_run || region->writable;
    return hr_report(
        error, hr_run_viewed(region, proc, &call.view, repair_work, &call, is_locked, timeout_ns));
}
