#include "fuzz_changes.h"

static struct {
    struct {
        struct poke poke;
        uint32_t naps;
    } planned[MEANWHILE_MAX];
    uint32_t planned_count;
    bool is_disturbed;
    uint32_t moved_count;
    uint32_t moved[MEANWHILE_MAX];
} others;

struct view was(void)
{
    return (struct view){&hr_layouts[run.open_as], run.file->shadow, run.version};
}

struct view now(void)
{
    return as_opened();
}

int32_t count_of(const struct view *view)
{
    return get32(view, view->layout->proc_num);
}

int32_t pid_at(const struct view *view, uint32_t slot)
{
    return get32(view, slot_at(view, slot) + view->layout->slot_pid);
}

uint64_t owner_of(const struct view *view)
{
    return get64(view, view->layout->owner_pid);
}

uint64_t sem_of(const struct view *view)
{
    return get64(view, view->layout->sem);
}

uint64_t total_at(const struct view *view, uint32_t slot, uint32_t device)
{
    const struct hr_layout *layout = view->layout;
    return get64(view, slot_at(view, slot) + layout->slot_used +
                           (size_t)device * layout->slot_used_stride + 32);
}

uint64_t bytes_at(const struct view *view, uint32_t slot)
{
    uint64_t sum = 0;
    for (uint32_t device = 0; device < HR_DEVICES; device++) {
        const uint64_t total = total_at(view, slot, device);
        sum = sum + total < sum ? UINT64_MAX : sum + total;
    }
    return sum;
}

uint64_t seqlock_at(const struct view *view, uint32_t slot)
{
    const uint32_t seqlock = seqlock_offset(view->layout);
    return seqlock == HR_ABSENT ? 0 : get64(view, slot_at(view, slot) + seqlock);
}

bool is_slot_used(uint32_t slot)
{
    const struct view view = now();
    const size_t at = slot_at(&view, slot);
    return file_tracks(run.file, at) || file_tracks(run.file, at + view.layout->slot_stride - 1);
}

bool is_slot_changed(uint32_t slot)
{
    const struct view before = was(), after = now();
    const size_t at = slot_at(&after, slot);
    return memcmp(before.bytes + at, after.bytes + at, after.layout->slot_stride) != 0;
}

/* ---- Others ------------------------------------------------------------------------ */

static void store(const struct poke *poke)
{
    const struct view view = was();
    const size_t behind = poke->offset - view.layout->procs;
    const uint32_t slot = (uint32_t)(behind / view.layout->slot_stride);
    const bool in_slot = poke->offset >= view.layout->procs && slot < HR_SLOTS;
    const uint64_t before = in_slot ? seqlock_at(&view, slot) : 0;
    file_poke(run.file, poke->offset, poke->value, poke->bytes);
    others.is_disturbed = true;
    if (in_slot && seqlock_at(&view, slot) != before)
        others.moved[others.moved_count++] = slot;
}

static bool act(void)
{
    if (others.planned_count == 0 || others.planned[0].naps-- > 0)
        return false;
    const struct poke poke = others.planned[0].poke;
    others.planned_count--;
    memmove(others.planned, others.planned + 1, others.planned_count * sizeof others.planned[0]);
    if (poke.bytes != 0 && is_whole())
        store(&poke);
    return poke.bytes == 0;
}

void changes_reset(void)
{
    memset(&others, 0, sizeof others);
    system_call_in_naps(act);
}

void changes_plan(const struct poke *poke, uint32_t naps)
{
    if (others.planned_count == MEANWHILE_MAX)
        return;
    others.planned[others.planned_count].poke = *poke;
    others.planned[others.planned_count++].naps = naps;
}

bool changes_are_disturbed(void)
{
    return others.is_disturbed;
}

bool changes_moved(uint32_t slot)
{
    for (uint32_t i = 0; i < others.moved_count; i++)
        if (others.moved[i] == slot)
            return true;
    return false;
}

/* ---- The core ---------------------------------------------------------------------- */

void changes_begin(void)
{
    others.is_disturbed = false;
    others.moved_count = 0;
    file_accept(run.file);
}

struct permission {
    uint32_t may;
    may_change_slot *slot;
};

static bool is_in(size_t offset, uint32_t field, uint32_t bytes)
{
    return field != HR_ABSENT && offset >= field && offset < (size_t)field + bytes;
}

static void require_permission(void *argument, size_t offset)
{
    const struct permission *permission = argument;
    const struct hr_layout *layout = &hr_layouts[run.open_as];
    bool may = false;
    if (is_in(offset, layout->owner_pid, 8) || is_in(offset, layout->sem, 8))
        may = (permission->may & MAY_LOCK) != 0;
    else if (is_in(offset, layout->sem_postinit, 8))
        may = (permission->may & MAY_POSTINIT) != 0;
    else if (is_in(offset, layout->proc_num, 4))
        may = (permission->may & MAY_COUNT) != 0;
    else if (is_in(offset, layout->procs, HR_SLOTS * layout->slot_stride) &&
             permission->slot != NULL) {
        const uint32_t behind = (uint32_t)offset - layout->procs;
        may = permission->slot(behind / layout->slot_stride, behind % layout->slot_stride);
    }
    if (may)
        return;
    fprintf(stderr, "the core has stored at offset %zu of layout %s\n", offset, layout->name);
    abort();
}

bool changes_require(uint32_t may, may_change_slot *slot)
{
    if (!is_whole())
        return false;
    const struct view before = was(), after = now();
    /* What has become another file is left alone, but for a lock that is held. */
    if (!oracle_good_header(&before) && !others.is_disturbed) {
        may &= MAY_LOCK;
        slot = NULL;
    }
    const int32_t counts[] = {count_of(&before), count_of(&after)};
    /* A call may name and empty slots up to the higher number, and one more. */
    for (int i = 0; i < 2 && slot != NULL; i++)
        if (counts[i] >= 0 && counts[i] <= HR_SLOTS)
            file_track(run.file, before.layout->procs,
                       (size_t)(counts[i] + (counts[i] < HR_SLOTS)) * before.layout->slot_stride);
    struct permission permission = {.may = may, .slot = slot};
    file_compare(run.file, MAX_FILE, require_permission, &permission);
    return true;
}

bool changes_require_none(void)
{
    return changes_require(0, NULL);
}
