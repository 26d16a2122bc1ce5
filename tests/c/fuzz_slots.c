#include "region.h"

#include "fuzz_evidence.h"

/* ---- Our own slot ------------------------------------------------------------------ */

static void attach(uint64_t timeout_ns)
{
    begin_call();
    const int code = hr_attach(run.region, timeout_ns, &call_error);
    if (code != HR_OK)
        REQUIRE_ONE_OF(code, HR_EATTACHED, HR_EFULL, LOCK_CODES);
    if (require_refused(code))
        return;
    const bool is_new = code == HR_OK;
    REQUIRE(!is_new || (run.writable && !writers.is_attached && !writers.has_lock));
    if (is_new)
        memset(writers.charged, 0, sizeof writers.charged);
    writers.is_attached = writers.is_attached || is_new;
    if (!is_new && code != HR_ELOST) {
        if (changes_require(MAY_LOCK, NULL))
            require_lock_given_back();
        return;
    }
    if (!changes_require(MAY_LOCK | MAY_COUNT, any_slot))
        return;
    require_others_kept(LEEWAY_NEWCOMER);
    const struct view before = was(), after = now();
    REQUIRE(count_of(&after) >= count_of(&before));
    bool is_there = !is_new;
    for (uint32_t slot = 0; (int32_t)slot < count_of(&after) && !is_there; slot++)
        is_there = is_own(pid_at(&after, slot)) && bytes_at(&after, slot) == 0 &&
                   get32(&after, slot_at(&after, slot) + after.layout->slot_status) == 1;
    REQUIRE(is_there);
}

static void detach(uint64_t timeout_ns)
{
    begin_call();
    const int code = hr_detach(run.region, 0, timeout_ns, &call_error);
    if (code != HR_OK)
        REQUIRE_ONE_OF(code, HR_EDETACHED, LOCK_CODES);
    REQUIRE(code != HR_OK || writers.is_attached);
    if (code != HR_ETIMEOUT && code != HR_EBUSY && code != HR_ESYSTEM && code != HR_EREADONLY)
        writers.is_attached = false;
    if (!changes_require(MAY_LOCK | MAY_COUNT, own_slot))
        return;
    require_others_kept(LEEWAY_NONE);
    const struct view before = was(), after = now();
    REQUIRE(count_of(&after) <= count_of(&before));
    for (uint32_t slot = 0; code == HR_OK && (int32_t)slot < count_of(&after); slot++)
        REQUIRE(!is_own(pid_at(&after, slot)) || bytes_at(&after, slot) == 0);
}

static uint64_t sum_of(const struct view *view, uint32_t device)
{
    uint64_t sum = 0;
    for (uint32_t slot = 0; (int32_t)slot < count_of(view); slot++) {
        sum += total_at(view, slot, device);
    }
    return sum;
}

/* Our slot counts what it did and `delta`, or what our own books say. */
static bool is_accounted(uint32_t slot, uint32_t device, uint32_t kind, uint64_t delta)
{
    const struct view before = was(), after = now();
    const size_t used = slot_at(&after, slot) + after.layout->slot_used +
                        (size_t)device * after.layout->slot_used_stride;
    const uint64_t *books = writers.charged[device];
    const uint64_t counted = get64(&after, used + kind * 8), total = get64(&after, used + 32);
    return is_own(pid_at(&after, slot)) &&
           ((counted == get64(&before, used + kind * 8) + delta &&
             total == get64(&before, used + 32) + delta) ||
            (counted == books[kind] && total == books[0] + books[1] + books[2]));
}

static void account(bool charging, uint32_t device, uint32_t kind, uint64_t bytes,
                    uint64_t timeout_ns)
{
    begin_call();
    const int code = charging
                         ? hr_charge(run.region, device, kind, bytes, 0, timeout_ns, &call_error)
                         : hr_release(run.region, device, kind, bytes, timeout_ns, &call_error);
    if (code != HR_OK)
        REQUIRE_ONE_OF(code, HR_EDETACHED, HR_EINVAL, HR_EMEMORYLIMIT, HR_EFULL, LOCK_CODES);
    const bool exists = device < HR_DEVICES && kind < 3;
    const bool is_written = code == HR_OK || code == HR_ELOST;
    REQUIRE(!is_written || (exists && writers.is_attached));
    REQUIRE(code != HR_EMEMORYLIMIT || charging);
    const uint64_t delta = charging ? bytes : 0 - bytes;
    if (code == HR_OK) {
        REQUIRE(charging || bytes <= writers.charged[device][kind]);
        writers.charged[device][kind] += delta;
    }
    if (!changes_require(MAY_LOCK | MAY_COUNT, any_slot))
        return;
    require_others_kept(LEEWAY_NEWCOMER);
    if (code != HR_OK || changes_are_disturbed())
        return;
    const struct view after = now();
    bool is_there = false;
    for (uint32_t slot = 0; (int32_t)slot < count_of(&after) && !is_there; slot++)
        is_there = is_accounted(slot, device, kind, delta);
    REQUIRE(is_there);
    const uint64_t limit = get64(&after, after.layout->limit + device * 8);
    REQUIRE(!charging || limit == 0 || sum_of(&after, device) <= limit);
}

/* ---- Other processes' slots -------------------------------------------------------- */

enum { MAX_EDITS = 4, MAX_PIDS = 4 };

/* The value in a copy of a slot, and storing it there. */
static uint64_t edited(uint8_t *slot, const struct hr_slot_edit *edit, bool store)
{
    const struct hr_layout *layout = &hr_layouts[run.open_as];
    const size_t at = edit->value == HR_SLOT_HOST_PID ? layout->slot_hostpid
                      : edit->value == HR_SLOT_STATUS ? layout->slot_status
                      : edit->value == HR_SLOT_MONITOR_USED
                          ? layout->slot_monitorused + edit->device * 8
                          : layout->slot_util + edit->device * layout->slot_util_stride +
                                (HR_SLOT_DEC - edit->value) * 8;
    const bool is_narrow = edit->value <= HR_SLOT_STATUS;
    uint64_t wide;
    int32_t narrow;
    memcpy(&wide, slot + at, 8);
    memcpy(&narrow, slot + at, 4);
    if (store)
        memcpy(slot + at, &edit->to, is_narrow ? 4 : 8);
    return is_narrow ? (uint64_t)(int64_t)narrow : wide;
}

static bool is_edited(uint32_t slot, const struct hr_slot_edit *edits, uint32_t count, bool dry_run)
{
    const struct view before = was(), after = now();
    uint8_t copy[2048];
    const uint32_t stride = before.layout->slot_stride;
    memcpy(copy, before.bytes + slot_at(&before, slot), stride);
    for (uint32_t i = 0; i < count; i++)
        if (edited(copy, &edits[i], !dry_run) != edits[i].before)
            return false;
    return memcmp(copy, after.bytes + slot_at(&after, slot), stride) == 0;
}

static void edit_slot(struct input *input)
{
    const int32_t pid = (int32_t)take_value(input);
    const uint8_t shape = take8(input), count = shape / 2 % (MAX_EDITS + 1);
    const bool dry_run = shape % 2 != 0;
    struct hr_slot_edit edits[MAX_EDITS];
    for (uint32_t i = 0; i < count; i++) {
        edits[i].value = take8(input) % (HR_SLOT_DEC + 2);
        edits[i].device = take8(input) % (HR_DEVICES + 1);
        edits[i].to = take_value(input);
    }
    begin_call();
    const int code = hr_edit_slot(run.region, pid, edits, count, dry_run, 0, &call_error);
    if (code != HR_OK)
        REQUIRE_ONE_OF(code, HR_ENOPROCESS, HR_EINVAL, LOCK_CODES);
    const bool is_done = code == HR_OK || code == HR_ELOST;
    if (!changes_require(MAY_LOCK | MAY_COUNT, is_done && !dry_run ? any_slot : NULL))
        return;
    require_lock_given_back();
    require_count_in_range();
    const struct view view = was();
    uint32_t changed = 0;
    bool is_right = code != HR_OK;
    for (uint32_t slot = 0; slot < HR_SLOTS; slot++) {
        if (!is_slot_used(slot))
            continue;
        changed += is_slot_changed(slot);
        is_right = is_right || (pid_at(&view, slot) == pid && (int32_t)slot < count_of(&view) &&
                                is_edited(slot, edits, count, dry_run));
    }
    REQUIRE(changed <= 1 && is_right);
}

static void require_the_dead_reaped(void)
{
    const struct view after = now();
    for (uint32_t slot = 0; (int32_t)slot < count_of(&after); slot++) {
        const int32_t pid = pid_at(&after, slot);
        if (pid <= 0 || is_own(pid) || system_life(pid, true) != HR_DEAD)
            continue;
        const uint32_t seqlock = after.layout->slot_seqlock;
        REQUIRE(bytes_at(&after, slot) == 0);
        REQUIRE(seqlock == HR_ABSENT || get64(&after, slot_at(&after, slot) + seqlock) % 2 == 0);
    }
}

static void reap(hr_evidence *by, struct input *input)
{
    static struct hr_slot_result out[HR_SLOTS];
    const uint8_t shape = take8(input), count = shape / 2 % (MAX_PIDS + 1);
    const bool dry_run = shape % 2 != 0;
    int32_t pids[MAX_PIDS];
    for (uint32_t i = 0; i < count; i++)
        pids[i] = (int32_t)take_value(input);
    const uint64_t timeout_ns = take_ms(input);
    begin_call();
    const int code =
        by == NULL
            ? hr_reap(run.region, system_proc(), pids, count, dry_run, timeout_ns, out, &call_error)
            : hr_reap_by(by, pids, count, dry_run, timeout_ns, out, &call_error);
    if (code < 0)
        REQUIRE_ONE_OF(code, HR_ENOPROCESS, LOCK_CODES);
    if (require_refused(code))
        return;
    REQUIRE(code <= HR_SLOTS && (code < 0 || run.writable));
    for (int i = 0; i < code; i++) {
        REQUIRE(out[i].what >= HR_SLOT_DONE &&
                (out[i].what <= HR_SLOT_UNKNOWN ||
                 (out[i].what == HR_SLOT_CUT_SHORT && (out[i].pid == 0 || by != NULL))));
        const bool is_gone = out[i].what == HR_SLOT_DONE;
        REQUIRE(!is_gone || out[i].pid == 0 || is_own(out[i].pid) ||
                system_life(out[i].pid, true) == HR_DEAD);
    }
    if (dry_run ? !changes_require(MAY_LOCK, NULL)
                : !changes_require(MAY_LOCK | MAY_COUNT, any_slot))
        return;
    require_others_kept(LEEWAY_NONE);
    if (by != NULL && !changes_are_disturbed())
        evidence_require_as_noted();
    const struct view before = was(), after = now();
    /* Only a full table of dead processes is cut. */
    const bool may_cut = !dry_run && count == 0 && count_of(&before) == HR_SLOTS;
    REQUIRE(count_of(&after) == count_of(&before) || (may_cut && count_of(&after) == 0));
    if (code >= 0 && !dry_run && count == 0 && system_is_plain() && !changes_are_disturbed() &&
        (by == NULL || evidence_must_prove()))
        require_the_dead_reaped();
}

/* Of a process that is said to be put right, one slot counts something at most. */
static void require_counted_once(int32_t pid)
{
    const struct view after = now();
    uint32_t counting = 0;
    for (uint32_t slot = 0; (int32_t)slot < count_of(&after); slot++)
        counting += pid_at(&after, slot) == pid && bytes_at(&after, slot) != 0;
    REQUIRE(counting <= 1);
}

static void repair(hr_evidence *by, bool dry_run, uint64_t timeout_ns)
{
    static struct hr_slot_result out[HR_SLOTS];
    begin_call();
    const int code = by == NULL ? hr_repair_slots(run.region, system_proc(), dry_run, timeout_ns,
                                                  out, &call_error)
                                : hr_repair_slots_by(by, dry_run, timeout_ns, out, &call_error);
    if (code < 0)
        REQUIRE_ONE_OF(code, LOCK_CODES);
    if (require_refused(code))
        return;
    REQUIRE(code <= HR_SLOTS && (code < 0 || dry_run || run.writable));
    for (int i = 0; i < code; i++) {
        REQUIRE(out[i].what >= HR_SLOT_DONE && out[i].what <= HR_SLOT_CUT_SHORT);
        REQUIRE(out[i].pid > 0);
        /* Evidence may not have come to a process: then it is not judged. */
        REQUIRE((by != NULL && out[i].what == HR_SLOT_CUT_SHORT) || is_own(out[i].pid) ||
                system_life(out[i].pid, true) == HR_ALIVE);
    }
    if (dry_run ? !changes_require(MAY_LOCK, NULL)
                : !changes_require(MAY_LOCK | MAY_COUNT, any_slot))
        return;
    require_others_kept(LEEWAY_COPIES);
    const struct view before = was(), after = now();
    REQUIRE(count_of(&after) >= count_of(&before));
    for (int i = 0; i < code && !dry_run; i++)
        if (out[i].what == HR_SLOT_DONE)
            require_counted_once(out[i].pid);
}

static void do_repair(hr_evidence *by, struct input *input)
{
    const bool dry_run = take8(input) % 2 != 0;
    repair(by, dry_run, take_ms(input));
}

static void do_account(bool charging, struct input *input)
{
    const uint32_t device = take8(input) % (HR_DEVICES + 1), kind = take8(input) % 4;
    const uint64_t bytes = take_value(input);
    account(charging, device, kind, bytes, take_ms(input));
}

bool slot_step(uint8_t step, struct input *input)
{
    if (step < FUZZ_ATTACH || step > FUZZ_REPAIR)
        return false;
    if (run.region == NULL)
        return true;
    switch (step) {
    case FUZZ_ATTACH:
    case FUZZ_DETACH: {
        const uint64_t timeout_ns = take_ms(input);
        if (step == FUZZ_ATTACH)
            attach(timeout_ns);
        else
            detach(timeout_ns);
        break;
    }
    case FUZZ_CHARGE:
    case FUZZ_RELEASE:
        do_account(step == FUZZ_CHARGE, input);
        break;
    case FUZZ_EDIT_SLOT:
        edit_slot(input);
        break;
    case FUZZ_REAP:
        reap(NULL, input);
        break;
    default:
        do_repair(NULL, input);
    }
    return true;
}

void slot_step_by(bool is_first, struct input *input)
{
    if (is_first)
        reap(evidence_noted(), input);
    else
        do_repair(evidence_noted(), input);
}
