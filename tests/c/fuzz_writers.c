#include "fuzz_evidence.h"

#include "lock.h"
#include "region.h"

struct writers writers = {.other_fd = -1};

/* ---- What every call has to leave alone ---------------------------------------------- */

bool is_dead_number(uint64_t owner)
{
    return hr_is_attached_owner(owner) ||
           (hr_is_number(owner) && owner < HR_FOREIGN_END && owner != writers.other_number);
}

bool is_lock(const struct view *view, uint64_t owner, uint32_t value)
{
    return owner_of(view) == owner && (uint32_t)sem_of(view) == value;
}

bool was_to_be_had(void)
{
    const struct view before = was();
    const uint64_t owner = owner_of(&before);
    return !writers.has_lock &&
           (owner == 0 ? (uint32_t)sem_of(&before) > 0 : is_dead_number(owner));
}

bool require_refused(int code)
{
    if (run.open_as >= HR_V1_1)
        return false;
    REQUIRE(code == HR_EREADONLY && call_error.reason == HR_REASON_LAYOUT);
    changes_require_none();
    return true;
}

bool any_slot(uint32_t slot, uint32_t offset)
{
    (void)slot;
    (void)offset;
    return true;
}

bool own_slot(uint32_t slot, uint32_t offset)
{
    const struct view before = was(), after = now();
    (void)offset;
    return is_own(pid_at(&before, slot)) || is_own(pid_at(&after, slot));
}

void require_lock_given_back(void)
{
    const struct view before = was(), after = now();
    if (changes_are_disturbed())
        return;
    REQUIRE(sem_of(&after) >> 32 == sem_of(&before) >> 32);
    if (!is_lock(&after, owner_of(&before), (uint32_t)sem_of(&before)))
        REQUIRE(was_to_be_had() && is_lock(&after, 0, 1));
}

void require_count_in_range(void)
{
    const struct view before = was(), after = now();
    if (count_of(&before) >= 0 && count_of(&before) <= HR_SLOTS)
        REQUIRE(count_of(&after) >= 0 && count_of(&after) <= HR_SLOTS);
    else
        REQUIRE(count_of(&after) == count_of(&before));
}

/* Another slot of the process, in which it was seen at work, is as it was; and it counts, if the
 * one in question did. */
static bool works_elsewhere(uint32_t slot, int32_t pid)
{
    const struct view before = was(), after = now();
    const bool was_counted = (int32_t)slot < count_of(&before);
    const int32_t end = was_counted ? count_of(&after) : HR_SLOTS;
    for (int32_t other = 0; other < end && other < HR_SLOTS; other++)
        if (other != (int32_t)slot && pid_at(&before, (uint32_t)other) == pid &&
            changes_moved((uint32_t)other) && !is_slot_changed((uint32_t)other))
            return true;
    return false;
}

/* The only slot of this pid that counts, or HR_SLOTS. */
static uint32_t only_counted(const struct view *view, int32_t pid)
{
    uint32_t found = HR_SLOTS, count = 0;
    for (uint32_t slot = 0; (int32_t)slot < count_of(view) && slot < HR_SLOTS; slot++) {
        if (pid_at(view, slot) != pid)
            continue;
        found = slot;
        count++;
    }
    return count == 1 ? found : HR_SLOTS;
}

/*
 * A slot above proc_num in which no process can be at work: one that remembers its slot counts in
 * the seqlock whatever it stores, and a copy of it below never has a higher one; another process
 * writes nothing there.
 */
static bool is_nobodys_tail(uint32_t slot)
{
    const struct view before = was();
    if ((int32_t)slot < count_of(&before))
        return false;
    const uint64_t seqlock = seqlock_at(&before, slot);
    if (seqlock == 0 && (before.layout->slot_seqlock == HR_ABSENT || bytes_at(&before, slot) != 0))
        return true;
    const uint32_t below = only_counted(&before, pid_at(&before, slot));
    return below < HR_SLOTS && seqlock_at(&before, below) > seqlock + 1;
}

static bool is_emptied(uint32_t slot)
{
    const struct view before = was();
    return bytes_at(&before, slot) == 0 &&
           get32(&before, slot_at(&before, slot) + before.layout->slot_status) == 0;
}

void require_the_living_kept(enum leeway leeway)
{
    const struct view before = was(), after = now();
    for (uint32_t slot = 0; slot < HR_SLOTS; slot++) {
        if (!is_slot_used(slot))
            continue;
        const int32_t pid = pid_at(&before, slot);
        if (pid <= 0 || is_own(pid))
            continue;
        const enum hr_liveness life = system_life(pid, true);
        const bool was_counted = (int32_t)slot < count_of(&before);
        const bool is_kept =
            !is_slot_changed(slot) && (!was_counted || (int32_t)slot < count_of(&after));
        if (life == HR_DEAD || is_kept || is_nobodys_tail(slot))
            continue;
        if (leeway == LEEWAY_NEWCOMER && (!was_counted || is_emptied(slot)) && !system_lists(pid))
            continue;
        REQUIRE(life == HR_ALIVE && leeway != LEEWAY_NONE && works_elsewhere(slot, pid));
    }
}

void require_others_kept(enum leeway leeway)
{
    require_lock_given_back();
    require_count_in_range();
    require_the_living_kept(leeway);
}

void begin_call(void)
{
    writers.have_written = true;
    system_set_region(run.file, run.region);
    system_note_attached(writers.is_attached);
    changes_begin();
}

/* ---- Steps ------------------------------------------------------------------------- */

static void plan(struct input *input)
{
    const uint8_t naps = take8(input);
    struct poke poke = {.bytes = 0};
    if (input->at < input->end && *input->at == FUZZ_SIGNAL)
        take8(input);
    else
        poke = take_poke(input);
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
    if (seqlock_offset(layout) != HR_ABSENT)
        file_poke(run.file, at + seqlock_offset(layout), 2, 8);
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
        evidence_machine_changes();
        system_set_proc(take8(input) & FUZZ_PROC_EVERYTHING);
        return true;
    case FUZZ_PROCESS:
        evidence_machine_changes();
        system_set_region(run.file, run.region);
        set_process(input);
        return true;
    default:
        return false;
    }
}

bool writers_step(uint8_t step, struct input *input)
{
    return evidence_step(step, input) || machine_step(step, input) || lock_step(step, input) ||
           slot_step(step, input);
}

void writers_close(void)
{
    begin_call();
    evidence_drop();
    hr_close(run.region, &call_error);
    const bool had_lock = writers.has_lock;
    writers.has_lock = writers.is_attached = false;
    if (!changes_require(MAY_LOCK | MAY_COUNT, own_slot))
        return;
    if (!had_lock)
        require_lock_given_back();
    require_count_in_range();
    require_the_living_kept(LEEWAY_NONE);
}

void writers_begin(void)
{
    changes_reset();
    writers.have_written = false;
}

void writers_end(void)
{
    if (writers.have_written)
        file_require_rest(run.file);
    if (writers.other_fd >= 0)
        close(writers.other_fd);
    writers.other_fd = -1;
    writers.other_has_host = false;
    writers.other_number = 0;
    evidence_drop();
    system_reset();
}
