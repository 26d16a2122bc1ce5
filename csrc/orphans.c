#include "slots.h"
#include "testpoint.h"

struct repair_call {
    hr_region *region;
    struct hr_table_view view;
    uint32_t dry_run;
    struct hr_slot_result *out;
    int32_t found;
    /* All are judged before the first store: a slot that gets another name looks as if somebody had
     * taken it, and puts the others of its process in doubt. */
    enum hr_slot_use uses[HR_SLOTS];
};

/* What was found first of a process is said. */
static void report(struct repair_call *call, int32_t pid, uint32_t what, int32_t process)
{
    for (int32_t i = 0; i < call->found; i++) {
        if (call->out[i].pid == pid)
            return;
    }
    if (call->found < HR_SLOTS) /* the container may store other pids meanwhile */
        call->out[call->found++] =
            (struct hr_slot_result){.pid = pid, .what = what, .process = process};
}

/* What was not judged may be once the search has ended. */
static void report_left(struct repair_call *call, int32_t pid)
{
    int32_t process;
    uint32_t why = hr_why_unknown(&call->view.mappers, pid, &process);
    report(call, pid, why, process);
}

/* Whether one process has the pid, or may have it and was not read to its end.  Our own puts itself
 * right, from its books. */
static bool may_live(const struct repair_call *call, int32_t pid)
{
    const struct hr_mappers *mappers = &call->view.mappers;
    int32_t process;
    if (pid <= 0 || pid == HR_NOBODY || pid == call->region->own.pid)
        return false;
    return hr_lives_once(&call->view, pid) ||
           (hr_liveness_of_slot(mappers, pid) == HR_LIVENESS_UNKNOWN &&
            hr_why_unknown(mappers, pid, &process) != HR_SLOT_UNKNOWN);
}

/* Whether something would be wrong now if an undecided slot were its process's own: a copy of it
 * that stands still counts something else. */
static bool may_be_missed(const struct repair_call *call, int32_t index, int32_t count)
{
    hr_region *region = call->region;
    int32_t pid = hr_slot_pid(call->region, index);
    int32_t copy = hr_find_slot(region, pid, count);
    if (!may_live(call, pid))
        return false;
    if (copy < 0)
        return hr_slot_bytes(call->region, index) != 0;
    return hr_seqlock_of(region, index) > hr_seqlock_of(region, copy) &&
           hr_slot_bytes(call->region, index) != hr_slot_bytes(call->region, copy);
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
        const enum hr_slot_use use = call->uses[index];
        barred = barred || use == HR_USE_UNDECIDED;
        if (use == HR_USE_AT_WORK && !barred) {
            report(call, hr_slot_pid(call->region, index), HR_SLOT_DONE, 0);
            end = index + 1;
        } else if (use == HR_USE_AT_WORK ||
                   (use == HR_USE_UNDECIDED && may_be_missed(call, index, count))) {
            report_left(call, hr_slot_pid(call->region, index));
        }
    }
    return end;
}

/*
 * The slots between belong to no process.  They are emptied before they count, and lose their name:
 * a live process up to 2.8.0 that works elsewhere would account in both.
 */
static void empty_between(const struct repair_call *call, int32_t count, int32_t end)
{
    for (int32_t index = count; index < end; index++) {
        if (call->uses[index] != HR_USE_NONE)
            continue;
        hr_empty_slot(call->region, index);
        hr_set_slot_pid(call->region, index, HR_NOBODY);
    }
}

/* Whether another slot counts for the process of this one, too. */
static bool counts_twice(const struct repair_call *call, int32_t index)
{
    bool is_twice = false;
    for (int32_t other = 0; other < index && !is_twice; other++)
        is_twice = hr_slot_pid(call->region, other) == hr_slot_pid(call->region, index) &&
                   hr_slot_bytes(call->region, other) != 0;
    return is_twice && hr_slot_bytes(call->region, index) != 0;
}

static int run(struct repair_call *call, bool is_dry_run)
{
    hr_region *region = call->region;
    int32_t count;
    call->found = 0;
    int code = hr_checked_table(region, &count);
    if (code != HR_OK)
        return code;
    for (int32_t index = 0; index < HR_SLOTS; index++)
        call->uses[index] = hr_judge_use(region, &call->view, index, count);
    int32_t end = find_end(call, count);
    if (end > count && !is_dry_run) {
        empty_between(call, count, end);
        /* First this: killed here, a process counts twice until the next repair, never not at
         * all.  libvgpu may have lowered the number meanwhile; then all is judged anew. */
        if (!hr_swap_proc_num(region, count, end))
            return hr_fail_code(HR_ETIMEOUT);
        HR_POINT(REPAIR_COUNT_STORED);
    }
    for (int32_t index = 0; index < end; index++) {
        if (call->uses[index] == HR_USE_AT_WORK &&
            hr_clear_frozen_copies(region, &call->view, index, count, is_dry_run) != 0)
            report(call, call->view.seen[index].pid, HR_SLOT_DONE, 0);
    }
    for (int32_t index = 0; index < count; index++) {
        const int32_t pid = hr_slot_pid(call->region, index);
        if (may_live(call, pid) && counts_twice(call, index))
            report_left(call, pid);
    }
    return call->found;
}

static bool has_found_moved(const struct repair_call *call)
{
    bool has_found = false;
    for (int32_t i = 0; i < call->found && !has_found; i++)
        has_found = call->out[i].what == HR_SLOT_DONE;
    return has_found;
}

/* Without the lock: at worst it sees a move. */
static int judge_work(void *argument)
{
    struct repair_call *call = argument;
    const int code = run(call, true);
    return code >= 0 && !call->dry_run && has_found_moved(call) ? HR_NEEDS_LOCK : code;
}

static int repair_work(void *argument)
{
    return run(argument, false);
}

static int repair_slots(hr_region *region, const struct hr_source *source, uint32_t dry_run,
                        uint64_t timeout_ns, struct hr_slot_result *out, struct hr_error *error)
{
    struct repair_call call = {.region = region, .dry_run = dry_run, .out = out};
    int code = hr_check_lockable(region);
    if (code == HR_OK && !dry_run && !region->writable)
        code = hr_fail_code(HR_EREADONLY);
    if (code == HR_OK)
        code =
            hr_run_viewed(region, source, &call.view, judge_work, repair_work, &call, timeout_ns);
    return hr_report(error, code);
}

int hr_repair_slots(hr_region *region, const char *proc, uint32_t dry_run, uint64_t timeout_ns,
                    struct hr_slot_result *out, struct hr_error *error)
{
    const struct hr_source source = {.proc = proc};
    return repair_slots(region, &source, dry_run, timeout_ns, out, error);
}

int hr_repair_slots_by(hr_evidence *evidence, uint32_t dry_run, uint64_t timeout_ns,
                       struct hr_slot_result *out, struct hr_error *error)
{
    const struct hr_source source = {.evidence = evidence};
    return repair_slots(evidence->region, &source, dry_run, timeout_ns, out, error);
}
