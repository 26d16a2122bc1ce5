#define _GNU_SOURCE
#include "fuzz_writers.h"

#include <fcntl.h>

#include "fuzz_changes.h"
#include "fuzz_limiter.h"
#include "slots.h"

static struct {
    bool has_lock; /* by hr_lock() */
    bool is_attached;
    bool other_has_lock; /* the host lock, by another writer of this library */
    int other_fd;
    bool has_written;
    uint64_t charged[HR_DEVICES][3];
} state = {.other_fd = -1};

/* ---- What every call has to leave alone ------------------------------------------------- */

/* Any call that goes for the lock. */
#define LOCK_CODES HR_ETIMEOUT, HR_EBUSY, HR_ELOST, HR_EREADONLY, HR_ESTALE, HR_ECORRUPT, HR_ESYSTEM

static bool is_own(int32_t pid)
{
    return pid == getpid();
}

static bool is_foreign(uint64_t owner)
{
    return owner >= HR_FOREIGN_OWNER && owner <= INT32_MAX;
}

static bool any_slot(uint32_t slot, uint32_t offset)
{
    (void)slot;
    (void)offset;
    return true;
}

static bool own_slot(uint32_t slot, uint32_t offset)
{
    const struct view before = was(), after = now();
    (void)offset;
    return is_own(pid_at(&before, slot)) || is_own(pid_at(&after, slot));
}

/* The lock is as it was, or has been taken from nobody alive and given back. */
static void require_lock_given_back(void)
{
    const struct view before = was(), after = now();
    const uint64_t owner = owner_of(&before), sem = sem_of(&before);
    if (changes_are_disturbed() || (owner_of(&after) == owner && sem_of(&after) == sem))
        return;
    const bool was_free = (uint32_t)sem > 0;
    REQUIRE(!state.has_lock);
    REQUIRE(was_free || (is_foreign(owner) && !state.other_has_lock));
    REQUIRE(owner_of(&after) == 0 && sem_of(&after) >> 32 == sem >> 32);
    REQUIRE((uint32_t)sem_of(&after) == 1 || sem_of(&after) == sem);
}

static void require_count_in_range(void)
{
    const struct view before = was(), after = now();
    if (count_of(&before) >= 0 && count_of(&before) <= HR_SLOTS)
        REQUIRE(count_of(&after) >= 0 && count_of(&after) <= HR_SLOTS);
    else
        REQUIRE(count_of(&after) == count_of(&before));
}

/* Another slot of the process, in which it was seen at work, counts and is as it was. */
static bool works_elsewhere(uint32_t slot, int32_t pid)
{
    const struct view before = was(), after = now();
    for (int32_t other = 0; other < count_of(&after) && other < HR_SLOTS; other++)
        if (other != (int32_t)slot && pid_at(&before, (uint32_t)other) == pid &&
            changes_moved((uint32_t)other) && !is_slot_changed((uint32_t)other))
            return true;
    return false;
}

/*
 * Whoever lives, or may live, keeps its slot and is counted; but a copy that its process
 * has left for another slot may go.
 */
static void require_the_living_kept(bool may_clear_copies)
{
    const struct view before = was(), after = now();
    for (uint32_t slot = 0; slot < HR_SLOTS; slot++) {
        if (!is_slot_used(slot))
            continue;
        const int32_t pid = pid_at(&before, slot);
        if (pid <= 0 || is_own(pid))
            continue;
        const enum hr_life life = system_life(pid, true);
        const bool was_counted = (int32_t)slot < count_of(&before);
        const bool is_kept =
            !is_slot_changed(slot) && (!was_counted || (int32_t)slot < count_of(&after));
        if (life == HR_DEAD || is_kept)
            continue;
        REQUIRE(life == HR_ALIVE && may_clear_copies && works_elsewhere(slot, pid));
    }
}

static void begin(void)
{
    state.has_written = true;
    system_set_region(run.file, run.region);
    system_note_attached(state.is_attached);
    changes_begin();
}

/* ---- The lock ------------------------------------------------------------------------------ */

static void lock(uint64_t timeout_ns)
{
    begin();
    const int code = hr_lock(run.region, timeout_ns);
    if (code != HR_OK)
        REQUIRE_ONE_OF(code, LOCK_CODES);
    REQUIRE((code == HR_EBUSY) == (state.has_lock && run.writable));
    REQUIRE(code != HR_OK || run.writable);
    if (changes_require(MAY_LOCK | MAY_COUNT, NULL) && code == HR_OK && !changes_are_disturbed()) {
        const struct view before = was(), after = now();
        const uint64_t sem = sem_of(&before);
        REQUIRE((uint32_t)sem > 0 || (is_foreign(owner_of(&before)) && !state.other_has_lock));
        REQUIRE(owner_of(&after) != 0 && sem_of(&after) >> 32 == sem >> 32);
        REQUIRE((uint32_t)sem_of(&after) == 0 || (uint32_t)sem_of(&after) < (uint32_t)sem);
    } else if (is_whole() && code != HR_OK) {
        require_lock_given_back();
    }
    state.has_lock = state.has_lock || code == HR_OK;
}

static void unlock(void)
{
    begin();
    const int code = hr_unlock(run.region);
    if (code != HR_OK)
        REQUIRE_ONE_OF(code, HR_EBUSY, HR_ELOST, HR_ESTALE);
    REQUIRE((code == HR_EBUSY) == !state.has_lock);
    state.has_lock = false;
    if (code != HR_OK) {
        changes_require_none();
    } else if (changes_require(MAY_LOCK, NULL)) {
        const struct view before = was(), after = now();
        const uint32_t value = (uint32_t)sem_of(&after);
        REQUIRE(owner_of(&after) == 0);
        REQUIRE(value == 1 || value == (uint32_t)sem_of(&before) + 1);
    }
}

static void lock_state(void)
{
    struct hr_lock_state found;
    begin();
    const int code = hr_get_lock_state(run.region, system_proc(), &found);
    if (code != HR_OK)
        REQUIRE_ONE_OF(code, HR_ESTALE, HR_ESYSTEM, HR_ECORRUPT);
    if (!changes_require_none() || code != HR_OK)
        return;
    const struct view view = now();
    const uint64_t owner = owner_of(&view);
    REQUIRE(found.value == (uint32_t)sem_of(&view) && found.waiters == sem_of(&view) >> 32);
    REQUIRE(found.owner_pid == owner && found.owner_life <= HR_LIFE_UNKNOWN);
    if (owner == 0)
        REQUIRE(found.owner_life == HR_DEAD);
    else if (owner < HR_FOREIGN_OWNER && !is_own((int32_t)owner) && system_proc_flags() == 0)
        REQUIRE(found.owner_life == (uint32_t)system_life((int32_t)owner, false));
}

/* What nobody holds has been given back; what somebody may hold has not. */
static void require_recovered(int code, uint64_t watch_ns)
{
    const struct view before = was(), after = now();
    const uint64_t owner = owner_of(&before);
    const uint32_t value = (uint32_t)sem_of(&before), value_now = (uint32_t)sem_of(&after);
    const bool is_free = owner_of(&after) == 0 && value_now == 1;
    const bool is_same = owner_of(&after) == owner && value_now == value;
    const bool may_be_own = state.has_lock || state.is_attached || owner == (uint64_t)getpid();
    REQUIRE(is_free || is_same || (owner_of(&after) == owner && value > 1 && value_now <= 1));
    REQUIRE(code < 0 || value_now <= 1 || owner != 0);
    if (state.has_lock)
        REQUIRE(is_same);
    if (may_be_own || state.other_has_lock)
        return;
    const bool is_pid = owner != 0 && owner < HR_FOREIGN_OWNER;
    if (is_pid && value == 0 && system_life((int32_t)owner, false) != HR_DEAD)
        REQUIRE(is_same && code == HR_ENOTRECOVERABLE);
    if (is_pid && value == 0 && system_life((int32_t)owner, false) == HR_DEAD && system_is_plain())
        REQUIRE(is_free && code == HR_RECOVERED_OWNER);
    if (owner == 0 && value == 0 && (system_is_empty() || watch_ns >= HR_OWNERLESS_NS))
        REQUIRE(is_free && code == HR_RECOVERED_OWNERLESS);
    if (owner == 0 && value == 0 && !system_is_empty() && watch_ns < HR_OWNERLESS_NS &&
        system_is_plain())
        REQUIRE(is_same && code == HR_ENOTRECOVERABLE);
}

static void recover(uint64_t watch_ns)
{
    begin();
    const int code = hr_recover_lock(run.region, system_proc(), watch_ns);
    if (code < 0)
        REQUIRE_ONE_OF(code, HR_ENOTRECOVERABLE, HR_EINTERRUPTED, LOCK_CODES);
    else
        REQUIRE(code < 32 && run.writable);
    if (changes_require(MAY_LOCK | MAY_POSTINIT | MAY_COUNT, NULL) && run.writable &&
        !changes_are_disturbed() && oracle_good_header(&(struct view){now().layout, now().bytes})) {
        const struct view view = was();
        const uint32_t postinit = view.layout->sem_postinit;
        const bool is_usual = postinit == HR_ABSENT || get32(&view, postinit) == 1;
        if (is_usual && count_of(&view) >= 0 && count_of(&view) <= HR_SLOTS && code != HR_ESYSTEM)
            require_recovered(code, watch_ns);
    }
}

static void other_lock(void)
{
    if (state.other_fd < 0)
        state.other_fd = open(run.file->path, O_RDWR | O_CLOEXEC);
    REQUIRE(state.other_fd >= 0);
    struct flock range = {.l_type = state.other_has_lock ? F_UNLCK : F_WRLCK,
                          .l_whence = SEEK_SET,
                          .l_start = HR_HOST_LOCK_BYTE,
                          .l_len = 1};
    if (fcntl(state.other_fd, F_OFD_SETLK, &range) == 0)
        state.other_has_lock = !state.other_has_lock;
}

/* ---- Our own slot ------------------------------------------------------------------------------
 */

static void attach(uint64_t timeout_ns)
{
    begin();
    const int code = hr_attach(run.region, timeout_ns);
    if (code != HR_OK)
        REQUIRE_ONE_OF(code, HR_EATTACHED, HR_EFULL, LOCK_CODES);
    const bool is_new = code == HR_OK;
    REQUIRE(!is_new || (run.writable && !state.is_attached && !state.has_lock));
    if (is_new)
        memset(state.charged, 0, sizeof state.charged);
    state.is_attached = state.is_attached || is_new;
    if (!is_new && code != HR_ELOST) {
        if (changes_require(MAY_LOCK, NULL))
            require_lock_given_back();
        return;
    }
    if (!changes_require(MAY_LOCK | MAY_COUNT, any_slot))
        return;
    require_lock_given_back();
    require_count_in_range();
    require_the_living_kept(true);
    const struct view before = was(), after = now();
    REQUIRE(count_of(&after) >= count_of(&before));
    bool is_there = !is_new;
    for (uint32_t slot = 0; (int32_t)slot < count_of(&after) && !is_there; slot++)
        is_there = is_own(pid_at(&after, slot)) && bytes_at(&after, slot) == 0 &&
                   get32(&after, slot_at(&after, slot) + after.layout->slot_status) == 1;
    REQUIRE(is_there);
}

static void require_detached(void)
{
    require_count_in_range();
    require_the_living_kept(false);
    const struct view before = was(), after = now();
    REQUIRE(count_of(&after) <= count_of(&before));
}

static void detach(uint64_t timeout_ns)
{
    begin();
    const int code = hr_detach(run.region, timeout_ns);
    if (code != HR_OK)
        REQUIRE_ONE_OF(code, HR_EDETACHED, LOCK_CODES);
    REQUIRE(code != HR_OK || state.is_attached);
    if (code != HR_ETIMEOUT && code != HR_EBUSY && code != HR_ESYSTEM && code != HR_EREADONLY)
        state.is_attached = false;
    if (!changes_require(MAY_LOCK | MAY_COUNT, own_slot))
        return;
    require_lock_given_back();
    require_detached();
    const struct view after = now();
    for (uint32_t slot = 0; code == HR_OK && (int32_t)slot < count_of(&after); slot++)
        REQUIRE(!is_own(pid_at(&after, slot)) || bytes_at(&after, slot) == 0);
}

static uint64_t sum_of(const struct view *view, uint32_t device)
{
    uint64_t sum = 0;
    for (uint32_t slot = 0; (int32_t)slot < count_of(view); slot++) {
        const uint64_t total = total_at(view, slot, device);
        sum = sum + total < sum ? UINT64_MAX : sum + total;
    }
    return sum;
}

/* Our slot counts what it did and `delta`, or what our own books say. */
static bool is_accounted(uint32_t slot, uint32_t device, uint32_t kind, uint64_t delta)
{
    const struct view before = was(), after = now();
    const size_t used = slot_at(&after, slot) + after.layout->slot_used +
                        (size_t)device * after.layout->slot_used_stride;
    const uint64_t *books = state.charged[device];
    const uint64_t counted = get64(&after, used + kind * 8), total = get64(&after, used + 32);
    return is_own(pid_at(&after, slot)) &&
           ((counted == get64(&before, used + kind * 8) + delta &&
             total == get64(&before, used + 32) + delta) ||
            (counted == books[kind] && total == books[0] + books[1] + books[2]));
}

static void account(bool charging, uint32_t device, uint32_t kind, uint64_t bytes,
                    uint64_t timeout_ns)
{
    begin();
    const int code = charging ? hr_charge(run.region, device, kind, bytes, timeout_ns)
                              : hr_release(run.region, device, kind, bytes, timeout_ns);
    if (code != HR_OK)
        REQUIRE_ONE_OF(code, HR_EDETACHED, HR_EINVAL, HR_EMEMORYLIMIT, HR_EFULL, LOCK_CODES);
    const bool exists = device < HR_DEVICES && kind < 3;
    const bool is_written = code == HR_OK || code == HR_ELOST;
    REQUIRE(!is_written || (exists && state.is_attached));
    REQUIRE(code != HR_EMEMORYLIMIT || charging);
    const uint64_t delta = charging ? bytes : 0 - bytes;
    if (code == HR_OK) {
        REQUIRE(charging || bytes <= state.charged[device][kind]);
        state.charged[device][kind] += delta;
    }
    if (!changes_require(MAY_LOCK | MAY_COUNT, any_slot))
        return;
    require_lock_given_back();
    require_count_in_range();
    require_the_living_kept(true);
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

void writers_close(void)
{
    begin();
    hr_close(run.region);
    const bool had_lock = state.has_lock;
    state.has_lock = state.is_attached = false;
    if (!changes_require(MAY_LOCK | MAY_COUNT, own_slot))
        return;
    if (!had_lock)
        require_lock_given_back();
    require_detached();
}

/* ---- Other processes' slots --------------------------------------------------------------------
 */

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
    begin();
    const int code = hr_edit_slot(run.region, pid, edits, count, dry_run, 0);
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

static void reap(struct input *input)
{
    static struct hr_reap out[HR_SLOTS];
    const uint8_t shape = take8(input), count = shape / 2 % (MAX_PIDS + 1);
    const bool dry_run = shape % 2 != 0;
    int32_t pids[MAX_PIDS];
    for (uint32_t i = 0; i < count; i++)
        pids[i] = (int32_t)take_value(input);
    const uint64_t timeout_ns = take_ms(input);
    begin();
    const int code = hr_reap(run.region, system_proc(), pids, count, dry_run, timeout_ns, out);
    if (code < 0)
        REQUIRE_ONE_OF(code, HR_ENOPROCESS, LOCK_CODES);
    REQUIRE(code <= HR_SLOTS && (code < 0 || run.writable));
    for (int i = 0; i < code; i++) {
        REQUIRE(out[i].what >= HR_REAP_REMOVED && out[i].what <= HR_REAP_UNKNOWN);
        const bool is_gone = out[i].what <= HR_REAP_EMPTIED;
        REQUIRE(!is_gone || out[i].pid == 0 || is_own(out[i].pid) ||
                system_life(out[i].pid, true) == HR_DEAD);
    }
    if (dry_run ? !changes_require(MAY_LOCK | MAY_COUNT, NULL)
                : !changes_require(MAY_LOCK | MAY_COUNT, any_slot))
        return;
    require_lock_given_back();
    require_count_in_range();
    require_the_living_kept(false);
    const struct view before = was(), after = now();
    REQUIRE(count_of(&after) <= count_of(&before));
    if (code >= 0 && !dry_run && count == 0 && system_is_plain() && !changes_are_disturbed())
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

static void repair(bool dry_run, uint64_t timeout_ns)
{
    static int32_t pids[HR_SLOTS];
    begin();
    const int code = hr_repair_slots(run.region, system_proc(), dry_run, timeout_ns, pids);
    if (code < 0)
        REQUIRE_ONE_OF(code, LOCK_CODES);
    REQUIRE(code <= HR_SLOTS && (code < 0 || dry_run || run.writable));
    for (int i = 0; i < code; i++)
        REQUIRE(pids[i] > 0 && system_life(pids[i], true) == HR_ALIVE);
    if (dry_run ? !changes_require(MAY_LOCK | MAY_COUNT, NULL)
                : !changes_require(MAY_LOCK | MAY_COUNT, any_slot))
        return;
    require_lock_given_back();
    require_count_in_range();
    require_the_living_kept(true);
    const struct view before = was(), after = now();
    REQUIRE(count_of(&after) >= count_of(&before));
    for (int i = 0; i < code && !dry_run; i++)
        require_counted_once(pids[i]);
}

/* ---- Steps
 * ------------------------------------------------------------------------------------------ */

static void plan(struct input *input)
{
    const uint8_t naps = take8(input);
    const struct poke poke = take_poke(input);
    changes_plan(&poke, naps);
}

static void set_process(struct input *input)
{
    struct process process = {0};
    const uint32_t index = take8(input) % SYSTEM_PIDS;
    process.maps = take8(input) % FUZZ_MAPS_KINDS;
    process.levels = 1 + take8(input) % SYSTEM_LEVELS;
    for (uint32_t level = 1; level < process.levels; level++)
        process.pids[level] = (int32_t)(take_value(input) & INT32_MAX);
    if (process.maps == FUZZ_MAPS_NAME) {
        const uint32_t length = take8(input) % SYSTEM_TEXT;
        for (uint32_t i = 0; i < length; i++) {
            const uint8_t letter = take8(input);
            /* As the kernel prints it. */
            process.text[i] = letter == 0 || letter == '\n' ? '\\' : (char)letter;
        }
    }
    system_set_process(index, &process);
}

static void set_slot(struct input *input)
{
    const struct hr_layout *layout = run.file->view.layout;
    const uint32_t slot = take16(input) % HR_SLOTS;
    const size_t at = slot_at(&run.file->view, slot);
    file_poke(run.file, at + layout->slot_pid, take_value(input), 4);
    file_poke(run.file, at + layout->slot_hostpid, take_value(input), 4);
    const uint64_t total = take_value(input);
    file_poke(run.file, at + layout->slot_used, total, 8);
    file_poke(run.file, at + layout->slot_used + 32, total, 8);
    file_poke(run.file, at + layout->slot_status, 1, 4);
}

static void do_account(bool charging, struct input *input)
{
    const uint32_t device = take8(input) % (HR_DEVICES + 1), kind = take8(input) % 4;
    const uint64_t bytes = take_value(input);
    account(charging, device, kind, bytes, take_ms(input));
}

static bool machine_step(uint8_t step, struct input *input)
{
    switch (step) {
    case FUZZ_SLOT:
        set_slot(input);
        return true;
    case FUZZ_MEANWHILE:
        plan(input);
        return true;
    case FUZZ_PROC:
        system_set_proc(take8(input) & FUZZ_PROC_EVERYTHING);
        return true;
    case FUZZ_PROCESS:
        system_set_region(run.file, run.region);
        set_process(input);
        return true;
    case FUZZ_OTHER_LOCK:
        other_lock();
        return true;
    default:
        return false;
    }
}

static bool region_step(uint8_t step, struct input *input)
{
    switch (step) {
    case FUZZ_LOCK:
        lock(take_ms(input));
        return true;
    case FUZZ_UNLOCK:
        unlock();
        return true;
    case FUZZ_LOCK_STATE:
        lock_state();
        return true;
    case FUZZ_RECOVER:
        recover(take8(input) * UINT64_C(1000000000));
        return true;
    case FUZZ_ATTACH:
        attach(take_ms(input));
        return true;
    case FUZZ_DETACH:
        detach(take_ms(input));
        return true;
    case FUZZ_CHARGE:
    case FUZZ_RELEASE:
        do_account(step == FUZZ_CHARGE, input);
        return true;
    case FUZZ_EDIT_SLOT:
        edit_slot(input);
        return true;
    case FUZZ_REAP:
        reap(input);
        return true;
    case FUZZ_REPAIR: {
        const bool dry_run = take8(input) % 2 != 0;
        repair(dry_run, take_ms(input));
        return true;
    }
    default:
        return false;
    }
}

bool writers_step(uint8_t step, struct input *input)
{
    if (machine_step(step, input) || limiter_step(step, input))
        return true;
    if (step < FUZZ_LOCK || step > FUZZ_REPAIR)
        return false;
    if (run.region != NULL)
        region_step(step, input);
    return true;
}

void writers_begin(void)
{
    changes_reset();
    state.has_written = false;
}

void writers_end(void)
{
    if (state.has_written)
        file_require_rest(run.file);
    if (state.other_fd >= 0)
        close(state.other_fd);
    state.other_fd = -1;
    state.other_has_lock = false;
    system_reset();
}
