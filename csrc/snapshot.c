#include <string.h>
#include <time.h>

#include "byte_lock.h"
#include "identify.h"
#include "layout_rows.h"
#include "reading.h"

/*
 * How a consistent picture is made without the lock.
 *
 * Copy everything, look whether somebody is inside the lock, then look at
 * everything a second time.  A word that has the same value at both looks had it
 * all the time in between (or changed twice in well under a microsecond); if that
 * holds for all words, the copy is what the region held at the moment of the look
 * at the lock.  Was nobody inside, nobody was in the middle of moving a slot or,
 * in the layouts without seqlocks, of an accounting change.  The look at the lock
 * has to be the one in the middle: a holder that comes after a look before the
 * copy can store half of a slot, sleep through both looks at the values, and be
 * gone again before a look after them.
 *
 * The seqlock must be even and unchanged from before the first to after the
 * second look.  It does not replace the second look at the values: two threads
 * of one process inside it at once make it even again.
 *
 * What was disturbed is passed through again, after longer and longer pauses: each
 * look takes the line of a counter away from the process that is counting.  Where
 * there are seqlocks, which never come back to a value, only the slots that were
 * disturbed are copied again, and all are looked at a second time: the fewer words
 * lie between the two looks at a busy slot, the likelier it rests meanwhile.
 *
 * What cannot settle is not waited for twice: a lock that stays taken and a seqlock
 * that stays odd are remembered by the handle.
 */

/* Counts and uuids that are out of range may be about to be mended, but rarely are. */
#define LOOKS_AT_DAMAGE 3

#define SHORTEST_PAUSE_NS 125

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Constants: whatever takes a layout and is inlined is compiled for each of them. */
static const struct hr_layout rows[HR_LAYOUTS] = HR_LAYOUT_ROWS;

/* Wait a little, the longer the more often.  False if the budget is spent. */
static bool pause_before(struct hr_reading *reading, unsigned look)
{
    uint64_t now = hr_clock_ns(CLOCK_MONOTONIC);
    if (reading->deadline_ns == 0)
        reading->deadline_ns = now + HR_SNAPSHOT_BUDGET_NS;
    const uint64_t end = now + (SHORTEST_PAUSE_NS << (look < 6 ? look : 6));
    while (now < end && now < reading->deadline_ns) {
        hr_pause();
        now = hr_clock_ns(CLOCK_MONOTONIC);
    }
    return now < reading->deadline_ns;
}

/* ---- What nobody can wait for ------------------------------------------------ */

/* In the handle, as a number; 0: nothing.  Only a hint, hence relaxed: another snapshot may
 * wait once too often, or not at all. */
static bool is_known_stuck(hr_region *region, uint64_t state)
{
    return atomic_load_explicit(&region->stuck, memory_order_relaxed) == state;
}

/* An odd factor loses nothing; which one does not matter.  Never 0. */
static uint64_t with_stuck(uint64_t state, uint64_t index, uint64_t value)
{
    return ((state ^ index ^ value << 10) * UINT64_C(0x9e3779b97f4a7c15)) | 1;
}

/* ---- The lock ---------------------------------------------------------------- */

/*
 * The semaphore is 1 while it is free.  At 0 somebody is inside.  Above 1, which
 * libvgpu up to 2.7.1 brings about by itself, it excludes nobody, and an owner
 * beside a free semaphore is a holder that came in while it was.
 */
ALWAYS_INLINE bool nobody_is_inside(uint64_t semaphore, uint64_t owner_pid)
{
    return (uint32_t)semaphore == 1 && owner_pid == 0;
}

/*
 * The fence keeps the first look at the values before this one; acquire keeps the
 * second look behind it, and pairs with the release of the post.
 */
ALWAYS_INLINE uint64_t semaphore_between_looks(const struct hr_layout *layout,
                                               const hr_region *region)
{
    atomic_thread_fence(memory_order_acquire);
    return hr_load_u64(region->base + layout->sem, memory_order_acquire);
}

/* ---- Slots ------------------------------------------------------------------- */

ALWAYS_INLINE uint64_t look(const unsigned char *at)
{
    return hr_load_u64(at, memory_order_relaxed);
}

ALWAYS_INLINE int32_t look_at_32(const unsigned char *at)
{
    return hr_load_i32(at, memory_order_relaxed);
}

/* Acquire, so that the values are read after it. */
ALWAYS_INLINE uint64_t seqlock_of(const struct hr_layout *layout, const unsigned char *slot)
{
    const uint32_t offset = layout->slot_seqlock;
    return offset == HR_ABSENT ? 0 : hr_load_u64(slot + offset, memory_order_acquire);
}

ALWAYS_INLINE const unsigned char *slot_at(const struct hr_layout *layout, const hr_region *region,
                                           size_t index)
{
    return region->base + layout->procs + index * layout->slot_stride;
}

static struct hr_process *process_at(const struct hr_reading *reading, size_t index)
{
    return (struct hr_process *)(void *)(reading->processes + index * reading->process_bytes);
}

/* The figures of struct hr_usage in their order. */
enum { FIGURES = sizeof(struct hr_usage) / sizeof(uint64_t) };
#define EACH_FIGURE _Pragma("GCC unroll 16") for (unsigned figure = 0; figure < FIGURES; figure++)

ALWAYS_INLINE uint64_t look_at_figure(const struct hr_layout *layout, const unsigned char *slot,
                                      size_t device, size_t figure)
{
    const unsigned char *used = slot + layout->slot_used + device * layout->slot_used_stride;
    const unsigned char *util = slot + layout->slot_util + device * layout->slot_util_stride;
    if (figure < 5) /* the total stands behind its kinds and the offset */
        return look(used + (figure == 0 ? 4 : figure - 1) * 8);
    if (figure == 5)
        return look(slot + layout->slot_monitorused + device * 8);
    return layout->slot_util == HR_ABSENT ? 0 : look(util + (8 - figure) * 8);
}

/*
 * Not 0 if the total is not the sum of its kinds.  libvgpu adds to both inside the
 * seqlock, and two threads that are killed in there leave it even.
 */
ALWAYS_INLINE uint64_t torn_total(const struct hr_usage *usage)
{
    return usage->total ^ (usage->context + usage->module + usage->data);
}

/* The first look at a slot. */
ALWAYS_INLINE void copy_slot(const struct hr_layout *layout, struct hr_reading *reading, size_t i)
{
    const size_t span = reading->head->span;
    const unsigned char *slot = slot_at(layout, reading->region, i);
    struct hr_process *process = process_at(reading, i);
    struct hr_usage *to = (struct hr_usage *)(process + 1);
    reading->seqlocks[i] = seqlock_of(layout, slot);
    process->pid = look_at_32(slot + layout->slot_pid);
    process->host_pid = look_at_32(slot + layout->slot_hostpid);
    process->status = look_at_32(slot + layout->slot_status);
    process->settled = 0;
    uint64_t torn = 0;
    for (size_t device = 0; device < span; device++) {
        struct hr_usage usage;
        EACH_FIGURE
        (&usage.total)[figure] = look_at_figure(layout, slot, device, figure);
        torn |= torn_total(&usage);
        to[device] = usage;
    }
    reading->any_torn |= torn;
}

/* The second look at it; it is marked settled if it still is what was copied. */
ALWAYS_INLINE bool look_again(const struct hr_layout *layout, struct hr_reading *reading, size_t i)
{
    const size_t span = reading->head->span;
    const unsigned char *slot = slot_at(layout, reading->region, i);
    struct hr_process *process = process_at(reading, i);
    const struct hr_usage *copy = (const struct hr_usage *)(process + 1);
    uint64_t changed = 0;
    for (size_t device = 0; device < span; device++)
        EACH_FIGURE
    changed |= look_at_figure(layout, slot, device, figure) ^ (&copy[device].total)[figure];
    /* The fence: the seqlock is read after the values. */
    atomic_thread_fence(memory_order_acquire);
    const uint64_t seqlock = reading->seqlocks[i];
    changed |= (uint32_t)((look_at_32(slot + layout->slot_pid) ^ process->pid) |
                          (look_at_32(slot + layout->slot_hostpid) ^ process->host_pid) |
                          (look_at_32(slot + layout->slot_status) ^ process->status));
    changed |= (seqlock & 1) | (seqlock_of(layout, slot) ^ seqlock);
    process->settled = changed == 0;
    return changed == 0;
}

/* ---- Head and devices -------------------------------------------------------- */

ALWAYS_INLINE void copy_head(const struct hr_layout *layout, const hr_region *region,
                             struct hr_snapshot *head)
{
    const unsigned char *base = region->base;
    head->owner_pid = look(base + layout->owner_pid);
    head->last_kernel_time =
        layout->last_kernel_time == HR_ABSENT ? 0 : look(base + layout->last_kernel_time);
    head->priority = look_at_32(base + layout->priority);
    head->utilization_switch = look_at_32(base + layout->utilization_switch);
    head->recent_kernel = look_at_32(base + layout->recent_kernel);
}

/* The text at `from`, word by word; whether it is a uuid or empty. */
ALWAYS_INLINE bool copy_uuid(unsigned char *to, const unsigned char *from)
{
    struct hr_uuid_check check = {0};
#pragma GCC unroll 12
    for (uint32_t word = 0; word < HR_UUID_WORDS; word++) {
        uint64_t text = look(from + word * 8);
        memcpy(to + word * 8, &text, sizeof text);
        hr_uuid_check_word(&check, word, text);
    }
    return hr_uuid_has_usual_form(&check) || hr_uuid_is_plausible(to);
}

ALWAYS_INLINE void copy_devices(const struct hr_layout *layout, struct hr_reading *reading)
{
    const unsigned char *base = reading->region->base;
    const size_t span = reading->head->span;
    struct hr_device *to = reading->devices;
    reading->bad_uuid = HR_DEVICES;
    for (size_t device = 0; device < span; device++, to++) {
        to->limit = look(base + layout->limit + device * 8);
        to->sm_limit = look(base + layout->sm_limit + device * 8);
        if (!copy_uuid((unsigned char *)to->uuid, base + layout->uuids + device * HR_UUID_BYTES) &&
            reading->bad_uuid == HR_DEVICES)
            reading->bad_uuid = (uint32_t)device;
    }
}

ALWAYS_INLINE uint64_t look_at_words_again(const struct hr_device *copy, const unsigned char *from,
                                           uint32_t first, uint32_t end)
{
    uint64_t changed = 0;
#pragma GCC unroll 6
    for (uint32_t word = first; word < end; word++) {
        uint64_t text;
        memcpy(&text, copy->uuid + word * 8, sizeof text);
        changed |= look(from + word * 8) ^ text;
    }
    return changed;
}

/*
 * Also where nothing else tells that it changed: libvgpu writes uuids beside the lock.  Nearly all
 * are 40 bytes long.  A word of zeros behind these ends the text, whatever comes after it.
 */
ALWAYS_INLINE uint64_t look_at_uuid_again(const struct hr_device *copy, const unsigned char *from)
{
    enum { HALF = HR_UUID_WORDS / 2 };
    uint64_t last;
    memcpy(&last, copy->uuid + (HALF - 1) * 8, sizeof last);
    uint64_t changed = look_at_words_again(copy, from, 0, HALF);
    if (__builtin_expect(last != 0, 0))
        changed |= look_at_words_again(copy, from, HALF, HR_UUID_WORDS);
    return changed;
}

ALWAYS_INLINE bool head_is_unchanged(const struct hr_layout *layout,
                                     const struct hr_reading *reading)
{
    const hr_region *region = reading->region;
    const struct hr_snapshot *head = reading->head;
    struct hr_snapshot again;
    copy_head(layout, region, &again);
    uint64_t changed = again.owner_pid ^ head->owner_pid;
    changed |= again.last_kernel_time ^ head->last_kernel_time;
    changed |= (uint32_t)(again.priority ^ head->priority);
    changed |= (uint32_t)(again.utilization_switch ^ head->utilization_switch);
    changed |= (uint32_t)(again.recent_kernel ^ head->recent_kernel);
    changed |= look(region->base + layout->device_num) ^ head->device_num;
    const size_t span = head->span;
    for (size_t device = 0; device < span; device++) {
        changed |= look(region->base + layout->limit + device * 8) ^ reading->devices[device].limit;
        changed |=
            look(region->base + layout->sm_limit + device * 8) ^ reading->devices[device].sm_limit;
        changed |= look_at_uuid_again(&reading->devices[device],
                                      region->base + layout->uuids + device * HR_UUID_BYTES);
    }
    return changed == 0;
}

/* ---- One region -------------------------------------------------------------- */

static int no_space(uint64_t wanted)
{
    struct hr_detail detail = {
        .code = HR_ENOSPACE, .device = -1, .layout = HR_LAYOUTS, .wanted = wanted};
    return hr_fail(&detail);
}

/* While the container has not said which devices it has: those that have left traces. */
static uint32_t undeclared_devices(const hr_region *region, int32_t proc_num, uint32_t count)
{
    uint32_t found = hr_undeclared_uuids(region, count);
    for (int32_t i = 0; i < proc_num; i++)
        found |= hr_undeclared_usage(region, hr_slot(region, (uint32_t)i), count);
    return found;
}

/* Counts, listed devices and span: what decides how much is copied, and where to. */
ALWAYS_INLINE int measure(struct hr_reading *reading)
{
    const hr_region *region = reading->region;
    uint32_t device_num;
    int32_t proc_num;
    int code = hr_checked_device_num(region, &device_num);
    if (code == HR_OK)
        code = hr_checked_proc_num(region, &proc_num);
    if (code != HR_OK)
        return code;
    const uint32_t count = hr_counted_devices(region, device_num);
    uint32_t shown = (1u << count) - 1;
    if (device_num == 0)
        shown |= undeclared_devices(region, proc_num, count);
    const uint32_t span = 32 - (uint32_t)__builtin_clz(shown);

    struct hr_snapshot *head = reading->head;
    reading->process_bytes = sizeof(struct hr_process) + span * sizeof(struct hr_usage);
    reading->wanted =
        sizeof *head + span * sizeof(struct hr_device) + (size_t)proc_num * reading->process_bytes;
    if (reading->wanted > reading->bytes)
        return no_space(reading->wanted);
    if (head->proc_num != proc_num || head->span != span)
        reading->is_whole_next = true;
    reading->devices = (struct hr_device *)(head + 1);
    reading->processes = (unsigned char *)(reading->devices + span);
    head->device_num = device_num;
    head->proc_num = proc_num;
    head->shown = shown;
    head->span = span;
    return HR_OK;
}

/* What a pass has found. */
enum outcome { SETTLED, MOVING, STUCK };

/* Note which slots are left, and which writers cannot be waited for: `reading->stuck`. */
static enum outcome list_disturbed(struct hr_reading *reading, bool others_moved)
{
    bool moving = others_moved;
    reading->disturbed_count = 0;
    for (size_t i = 0; i < (size_t)reading->head->proc_num; i++) {
        if (process_at(reading, i)->settled)
            continue;
        reading->disturbed[reading->disturbed_count++] = (uint16_t)i;
        if ((reading->seqlocks[i] & 1) != 0)
            reading->stuck = with_stuck(reading->stuck, i, reading->seqlocks[i]);
        else
            moving = true;
    }
    return moving ? MOVING : STUCK;
}

/*
 * Both looks, with the one at the lock between them.  With `is_whole` every slot is copied;
 * else those that the last pass has found disturbed.
 */
ALWAYS_INLINE enum outcome pass(const struct hr_layout *layout, struct hr_reading *reading,
                                bool is_whole)
{
    const hr_region *region = reading->region;
    struct hr_snapshot *head = reading->head;
    const size_t count = (size_t)head->proc_num;
    copy_head(layout, region, head);
    copy_devices(layout, reading);
    if (is_whole) {
        reading->any_torn = 0;
        for (size_t i = 0; i < count; i++)
            copy_slot(layout, reading, i);
    }
    /* Twice: the first brings the lines here, so that the second takes little time. */
    for (size_t i = 0; !is_whole && i < 2 * reading->disturbed_count; i++)
        copy_slot(layout, reading, reading->disturbed[i / 2]);

    reading->stuck = 0;
    reading->is_whole_next = true;
    head->semaphore = semaphore_between_looks(layout, region);
    if (!nobody_is_inside(head->semaphore, head->owner_pid)) {
        /* Waiters come and go; only the value counts. */
        reading->stuck = with_stuck(0, head->owner_pid, (uint32_t)head->semaphore);
        return STUCK;
    }
    /* After the semaphore: a slot is filled before proc_num is raised to take it in, so the
     * second look finds it changed. */
    if (hr_load_i32(region->base + layout->proc_num, memory_order_acquire) != head->proc_num)
        return MOVING;

    bool same = true;
    if (is_whole) {
        for (size_t i = 0; i < count; i++)
            same &= look_again(layout, reading, i);
    } else {
        /* The busy ones first: each has to rest only from its copy until now. */
        for (size_t i = 0; i < reading->disturbed_count; i++)
            same &= look_again(layout, reading, reading->disturbed[i]);
        for (size_t i = 0, next = 0; i < count; i++) {
            if (next < reading->disturbed_count && reading->disturbed[next] == i)
                next++;
            else
                same &= look_again(layout, reading, i);
        }
    }
    const bool others_same = head_is_unchanged(layout, reading) && reading->bad_uuid == HR_DEVICES;
    if (same && others_same)
        return SETTLED;
    reading->is_whole_next = layout->slot_seqlock == HR_ABSENT;
    return list_disturbed(reading, !others_same);
}

static __attribute__((noinline)) enum outcome pass_again(struct hr_reading *reading)
{
    return pass(reading->region->layout, reading, reading->is_whole_next);
}

/*
 * Of the copies, so that a device's sums are those of the processes beside them.  Modulo 2^64, as
 * libvgpu adds: a process that frees memory in a slot that has become another's makes that one's
 * figure wrap around, and only sums that wrap too are what is used.
 */
static void sum_up(const struct hr_reading *reading)
{
    const size_t span = reading->head->span, count = (size_t)reading->head->proc_num;
    for (size_t device = 0; device < span; device++) {
        struct hr_usage sums = {0};
        uint64_t *sum = &sums.total;
        for (size_t i = 0; i < count; i++) {
            const struct hr_usage *usages = (const struct hr_usage *)(process_at(reading, i) + 1);
            const uint64_t *more = &usages[device].total;
            EACH_FIGURE
            sum[figure] += more[figure];
        }
        reading->devices[device].sums = sums;
    }
}

/* Without a seqlock accounting is under the semaphore, which shows a death inside. */
static void unsettle_torn(struct hr_reading *reading)
{
    struct hr_snapshot *head = reading->head;
    for (size_t i = 0; i < (size_t)head->proc_num; i++) {
        struct hr_process *process = process_at(reading, i);
        const struct hr_usage *usages = (const struct hr_usage *)(process + 1);
        uint64_t torn = 0;
        for (size_t device = 0; device < head->span; device++)
            torn |= torn_total(&usages[device]);
        if (torn != 0)
            process->settled = head->settled = 0;
    }
}

ALWAYS_INLINE int read_as(const struct hr_layout *layout, struct hr_reading *reading)
{
    hr_region *region = reading->region;
    struct hr_snapshot *head = reading->head;
    enum outcome outcome = MOVING;
    int code;
    reading->is_whole_next = true;
    for (unsigned look = 0;; look++) {
        code = hr_check_header(region);
        if (code != HR_OK)
            return code;
        code = measure(reading);
        if (code == HR_OK)
            outcome = look == 0 ? pass(layout, reading, true) : pass_again(reading);
        else if (code != HR_ECORRUPT)
            return code;
        const bool is_damaged = code != HR_OK || reading->bad_uuid != HR_DEVICES;
        if (is_damaged ? look + 1 == LOOKS_AT_DAMAGE
                       : outcome == SETTLED ||
                             (outcome == STUCK && is_known_stuck(region, reading->stuck)))
            break;
        if (!pause_before(reading, look))
            break;
    }
    if (code != HR_OK)
        return code;
    if (!is_known_stuck(region, reading->stuck))
        atomic_store_explicit(&region->stuck, reading->stuck, memory_order_relaxed);
    head->code = HR_OK;
    head->layout = layout->id;
    head->taken_at_ns = reading->taken_at_ns;
    head->settled = outcome == SETTLED;
    head->owner_pid = hr_owner_pid(head->owner_pid);
    if (layout->slot_seqlock != HR_ABSENT && reading->any_torn != 0)
        unsettle_torn(reading);
    sum_up(reading);
    if (reading->bad_uuid == HR_DEVICES)
        return HR_OK;
    struct hr_detail detail = {.code = HR_ECORRUPT,
                               .reason = HR_REASON_UUID,
                               .device = (int32_t)reading->bad_uuid,
                               .layout = layout->id,
                               .file_size = layout->size};
    return hr_fail(&detail);
}

int hr_read_consistently(void *argument)
{
    struct hr_reading *reading = argument;
    switch ((enum hr_layout_id)reading->region->layout->id) {
    case HR_UNVERSIONED_NO_UTIL:
        return read_as(&rows[HR_UNVERSIONED_NO_UTIL], reading);
    case HR_UNVERSIONED:
        return read_as(&rows[HR_UNVERSIONED], reading);
    case HR_V1_1:
        return read_as(&rows[HR_V1_1], reading);
    case HR_V1_1_POSTINIT:
        return read_as(&rows[HR_V1_1_POSTINIT], reading);
    case HR_V1_2:
        return read_as(&rows[HR_V1_2], reading);
    case HR_LAYOUTS:
        break;
    }
    return hr_fail_code(HR_EINVAL);
}

int hr_snapshot(hr_region *region, void *buffer, size_t bytes)
{
    struct hr_reading reading;
    reading.region = region;
    reading.head = buffer;
    reading.bytes = bytes;
    reading.deadline_ns = 0;
    reading.taken_at_ns = hr_clock_ns(CLOCK_REALTIME);
    return hr_run(region, hr_read_consistently, &reading);
}
