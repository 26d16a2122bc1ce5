#include <string.h>
#include <time.h>

#include "identify.h"
#include "reading.h"

/*
 * How a consistent picture is made without the lock.
 *
 * Copy everything, look whether the semaphore is free, then look at everything a
 * second time.  A word that has the same value at both looks had it all the time
 * in between (or changed twice in well under a microsecond); if that holds for
 * all words, the copy is what the region held at the moment of the look at the
 * semaphore.  Was that free, nobody was in the middle of moving a slot or, in
 * the layouts without seqlocks, of an accounting change.  The look at the
 * semaphore has to be the one in the middle: a holder that comes after a look
 * before the copy can store half of a slot, sleep through both looks at the
 * values, and be gone again before a look after them.
 *
 * The seqlock must be even and unchanged from before the first to after the
 * second look.  It does not replace the second look at the values: two threads
 * of one process inside it at once make it even again.
 *
 * A slot that was not clean is tried again by itself.  A region that was not is
 * read again as a whole, a few times.
 */
#define ROUNDS 3
#define SLOT_TRIES 16

static bool time_is_up(struct hr_reading *reading)
{
    uint64_t now = hr_clock_ns(CLOCK_MONOTONIC);
    if (reading->deadline_ns == 0)
        reading->deadline_ns = now + HR_SNAPSHOT_BUDGET_NS;
    return now >= reading->deadline_ns;
}

/*
 * The fence keeps the first look at the values before this one; acquire keeps the
 * second look behind it, and pairs with the release of whoever posted.
 */
static uint64_t semaphore_between_looks(const hr_region *region)
{
    atomic_thread_fence(memory_order_acquire);
    return hr_load_u64(region->base + region->layout->sem, memory_order_acquire);
}

static uint64_t owner_pid(const hr_region *region)
{
    return hr_load_u64(region->base + region->layout->owner_pid, memory_order_relaxed);
}

static bool is_free(uint64_t semaphore)
{
    return (uint32_t)semaphore != 0;
}

/* Wait for the holder to leave, unless an earlier snapshot has already waited for this one. */
static bool wait_until_free(struct hr_reading *reading)
{
    hr_region *region = reading->region;
    while (!is_free(semaphore_between_looks(region))) {
        /* +1: an ownerless lock must differ from "nothing stuck". */
        uint64_t owner = owner_pid(region) + 1;
        if (atomic_load_explicit(&region->stuck_semaphore_owner, memory_order_relaxed) == owner)
            return false;
        if (time_is_up(reading)) {
            atomic_store_explicit(&region->stuck_semaphore_owner, owner, memory_order_relaxed);
            return false;
        }
        hr_pause();
    }
    if (atomic_load_explicit(&region->stuck_semaphore_owner, memory_order_relaxed) != 0)
        atomic_store_explicit(&region->stuck_semaphore_owner, 0, memory_order_relaxed);
    return true;
}

/* Acquire, so that the values are read after it. */
static uint64_t seqlock_of(const struct hr_layout *layout, const unsigned char *slot)
{
    const uint32_t offset = layout->slot_seqlock;
    return offset == HR_ABSENT ? 0 : hr_load_u64(slot + offset, memory_order_acquire);
}

/*
 * Nine cells `step` apart.  Reached from three of them, because each multiple of a
 * step that is not constant costs a register, and there are not that many.
 */
struct cells {
    uint64_t *low, *middle, *high;
    size_t one, two;
};

static inline struct cells cells_at(uint64_t *first, size_t step)
{
    return (struct cells){first, first + 3 * step, first + 6 * step, step, 2 * step};
}

static inline void next_cells(struct cells *cells, size_t distance)
{
    cells->low += distance;
    cells->middle += distance;
    cells->high += distance;
}

#define ALWAYS_INLINE static inline __attribute__((always_inline))
#define TOTAL(cells) (cells).low[0]
#define CONTEXT(cells) (cells).low[(cells).one]
#define MODULE(cells) (cells).low[(cells).two]
#define DATA(cells) (cells).middle[0]
#define OFFSET(cells) (cells).middle[(cells).one]
#define MONITOR(cells) (cells).middle[(cells).two]
#define SM(cells) (cells).high[0]
#define ENC(cells) (cells).high[(cells).one]
#define DEC(cells) (cells).high[(cells).two]

static inline uint64_t look(const unsigned char *at)
{
    return hr_load_u64(at, memory_order_relaxed);
}

/* The word at `at`, which is also or-ed to what has been seen so far. */
static inline uint64_t look_and_note(const unsigned char *at, uint64_t *seen)
{
    const uint64_t word = look(at);
    *seen |= word;
    return word;
}

/*
 * The first look, at the slots from `first` to before `end`.
 *
 * `step` and `has_util` are constants where this is called, which leaves the loop
 * enough registers.
 */
ALWAYS_INLINE void copy_slots(struct hr_reading *reading, uint32_t first, uint32_t end, size_t step,
                              bool has_util)
{
    const struct hr_layout *layout = reading->region->layout;
    const struct hr_device_offsets *const devices = reading->offsets;
    const struct hr_device_offsets *const devices_end = devices + reading->device_count;
    const size_t device_figures = reading->device_figures, slot_stride = layout->slot_stride;
    const size_t process_figures = reading->process_figures, process_step = reading->process_step;
    const unsigned char *slot = hr_slot(reading->region, first);
    unsigned char *copy = reading->processes + first * process_step;
    uint64_t *figures = reading->figures + first * process_figures;
    uint64_t *seqlock = reading->seqlocks + first;
    uint64_t any = 0;
    for (uint32_t i = first; i < end; i++) {
        struct hr_process *process = (struct hr_process *)(void *)copy;
        *seqlock++ = seqlock_of(layout, slot);
        process->pid = hr_load_i32(slot + layout->slot_pid, memory_order_relaxed);
        process->host_pid = hr_load_i32(slot + layout->slot_hostpid, memory_order_relaxed);
        process->status = hr_load_i32(slot + layout->slot_status, memory_order_relaxed);

        struct cells to = cells_at(figures, step);
        for (const struct hr_device_offsets *device = devices; device < devices_end; device++) {
            const unsigned char *used = slot + device->used;
            CONTEXT(to) = look_and_note(used, &any);
            MODULE(to) = look_and_note(used + 8, &any);
            DATA(to) = look_and_note(used + 16, &any);
            OFFSET(to) = look_and_note(used + 24, &any);
            TOTAL(to) = look_and_note(used + 32, &any);
            MONITOR(to) = look_and_note(slot + device->monitor, &any);
            if (has_util) {
                const unsigned char *util = slot + device->util;
                DEC(to) = look_and_note(util, &any);
                ENC(to) = look_and_note(util + 8, &any);
                SM(to) = look_and_note(util + 16, &any);
            } else {
                DEC(to) = ENC(to) = SM(to) = 0;
            }
            next_cells(&to, device_figures);
        }
        slot += slot_stride;
        copy += process_step;
        figures += process_figures;
    }
    reading->any_figure |= any;
}

/*
 * The second look, at the same slots; each process is marked settled that still
 * is what was copied.  Returns whether all are.
 */
ALWAYS_INLINE bool look_again(struct hr_reading *reading, uint32_t first, uint32_t end, size_t step,
                              bool has_util)
{
    const struct hr_layout *layout = reading->region->layout;
    const struct hr_device_offsets *const devices = reading->offsets;
    const struct hr_device_offsets *const devices_end = devices + reading->device_count;
    const size_t device_figures = reading->device_figures, slot_stride = layout->slot_stride;
    const size_t process_figures = reading->process_figures, process_step = reading->process_step;
    const unsigned char *slot = hr_slot(reading->region, first);
    unsigned char *copied = reading->processes + first * process_step;
    const uint64_t *figures = reading->figures + first * process_figures;
    const uint64_t *seqlock = reading->seqlocks + first;
    uint64_t any_changed = 0;
    for (uint32_t i = first; i < end; i++) {
        struct hr_process *process = (struct hr_process *)(void *)copied;
        uint64_t changed =
            (uint32_t)((hr_load_i32(slot + layout->slot_pid, memory_order_relaxed) ^ process->pid) |
                       (hr_load_i32(slot + layout->slot_hostpid, memory_order_relaxed) ^
                        process->host_pid) |
                       (hr_load_i32(slot + layout->slot_status, memory_order_relaxed) ^
                        process->status));

        struct cells copy = cells_at((uint64_t *)figures, step);
        for (const struct hr_device_offsets *device = devices; device < devices_end; device++) {
            const unsigned char *used = slot + device->used;
            changed |= look(used) ^ CONTEXT(copy);
            changed |= look(used + 8) ^ MODULE(copy);
            changed |= look(used + 16) ^ DATA(copy);
            changed |= look(used + 24) ^ OFFSET(copy);
            changed |= look(used + 32) ^ TOTAL(copy);
            changed |= look(slot + device->monitor) ^ MONITOR(copy);
            if (has_util) {
                const unsigned char *util = slot + device->util;
                changed |= look(util) ^ DEC(copy);
                changed |= look(util + 8) ^ ENC(copy);
                changed |= look(util + 16) ^ SM(copy);
            }
            next_cells(&copy, device_figures);
        }
        /* The fence: the seqlock is read after the values. */
        atomic_thread_fence(memory_order_acquire);
        changed |= (*seqlock & 1) | (seqlock_of(layout, slot) ^ *seqlock);
        seqlock++;
        process->settled = changed == 0;
        any_changed |= changed;
        slot += slot_stride;
        copied += process_step;
        figures += process_figures;
    }
    return any_changed == 0;
}

static void first_look(struct hr_reading *reading, uint32_t first, uint32_t end)
{
    const bool has_util = reading->region->layout->slot_util != HR_ABSENT;
    if (!has_util)
        copy_slots(reading, first, end, reading->figure_step, false);
    else if (reading->figure_step == 1)
        copy_slots(reading, first, end, 1, true);
    else
        copy_slots(reading, first, end, reading->figure_step, true);
}

static bool second_look(struct hr_reading *reading, uint32_t first, uint32_t end)
{
    const bool has_util = reading->region->layout->slot_util != HR_ABSENT;
    if (!has_util)
        return look_again(reading, first, end, reading->figure_step, false);
    if (reading->figure_step == 1)
        return look_again(reading, first, end, 1, true);
    return look_again(reading, first, end, reading->figure_step, true);
}

static bool proc_num_is(const hr_region *region, int32_t count)
{
    return hr_load_i32(region->base + region->layout->proc_num, memory_order_acquire) == count;
}

/* Try one slot again by itself.  Its process must still be the same one. */
static bool settle_slot(struct hr_reading *reading, uint32_t index)
{
    hr_region *region = reading->region;
    const struct hr_process *process = hr_copy_of_process(reading, index);
    int32_t pid = process->pid;
    for (unsigned try = 0; try < SLOT_TRIES; try++) {
        const uint64_t seqlock = seqlock_of(region->layout, hr_slot(region, index));
        if ((seqlock & 1) != 0) {
            if (atomic_load_explicit(&region->stuck_seqlock, memory_order_relaxed) == seqlock)
                return false;
            hr_pause();
            continue;
        }
        first_look(reading, index, index + 1);
        if (process->pid != pid)
            return false;
        bool undisturbed = is_free(semaphore_between_looks(region)) &&
                           proc_num_is(region, reading->head->proc_num);
        if (undisturbed && second_look(reading, index, index + 1))
            return true;
        hr_pause();
    }
    return false;
}

static void copy_head(const hr_region *region, struct hr_snapshot *head)
{
    const struct hr_layout *layout = region->layout;
    const unsigned char *base = region->base;
    head->owner_pid = owner_pid(region);
    head->last_kernel_time =
        layout->last_kernel_time == HR_ABSENT
            ? 0
            : hr_load_u64(base + layout->last_kernel_time, memory_order_relaxed);
    head->priority = hr_load_i32(base + layout->priority, memory_order_relaxed);
    head->utilization_switch = hr_load_i32(base + layout->utilization_switch, memory_order_relaxed);
    head->recent_kernel = hr_load_i32(base + layout->recent_kernel, memory_order_relaxed);
}

/* The text at `from`, word by word; whether it is a uuid or empty. */
static inline bool copy_uuid(unsigned char *to, const unsigned char *from)
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

static void copy_devices(struct hr_reading *reading)
{
    const struct hr_layout *layout = reading->region->layout;
    const unsigned char *base = reading->region->base;
    reading->bad_uuid = HR_DEVICES;
    for (uint32_t i = 0; i < reading->device_count; i++) {
        const uint32_t device = reading->listed[i];
        uint64_t *to = reading->limits + i * reading->device_limits;
        to[0] = look(base + layout->limit + device * 8);
        to[reading->limit_step] = look(base + layout->sm_limit + device * 8);
        if (!copy_uuid(reading->uuids + i * reading->uuid_step,
                       base + layout->uuids + device * HR_UUID_BYTES) &&
            reading->bad_uuid == HR_DEVICES)
            reading->bad_uuid = device;
    }
}

static uint64_t saturating_sum(const uint64_t *figure, uint32_t count, size_t step)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++, figure += step)
        sum = hr_add_saturating(sum, *figure);
    return sum;
}

/* Of the copies, so that a device's sums are those of the processes beside them. */
ALWAYS_INLINE void sum_device(const struct hr_reading *reading, const uint64_t *first,
                              uint64_t *sums, size_t step)
{
    const size_t process_figures = reading->process_figures;
    const uint32_t count = (uint32_t)reading->head->proc_num;
    /* 1,024 figures below 2^53 cannot pass 2^64: then plain additions will do. */
    if (reading->any_figure >> 53 != 0) {
        for (uint32_t figure = 0; figure < HR_FIGURES; figure++)
            sums[figure * reading->limit_step] =
                saturating_sum(first + figure * step, count, process_figures);
        return;
    }
    struct hr_usage sum = {0};
    struct cells from = cells_at((uint64_t *)first, step);
    for (uint32_t i = 0; i < count; i++) {
        sum.total += TOTAL(from);
        sum.context += CONTEXT(from);
        sum.module += MODULE(from);
        sum.data += DATA(from);
        sum.offset += OFFSET(from);
        sum.monitor += MONITOR(from);
        sum.sm += SM(from);
        sum.enc += ENC(from);
        sum.dec += DEC(from);
        next_cells(&from, process_figures);
    }
    struct cells to = cells_at(sums, reading->limit_step);
    TOTAL(to) = sum.total;
    CONTEXT(to) = sum.context;
    MODULE(to) = sum.module;
    DATA(to) = sum.data;
    OFFSET(to) = sum.offset;
    MONITOR(to) = sum.monitor;
    SM(to) = sum.sm;
    ENC(to) = sum.enc;
    DEC(to) = sum.dec;
}

static void sum_usages(const struct hr_reading *reading)
{
    for (uint32_t i = 0; i < reading->device_count; i++) {
        const uint64_t *first = reading->figures + i * reading->device_figures;
        uint64_t *sums = reading->limits + i * reading->device_limits + 2 * reading->limit_step;
        if (reading->figure_step == 1)
            sum_device(reading, first, sums, 1);
        else
            sum_device(reading, first, sums, reading->figure_step);
    }
}

static bool head_is_unchanged(const struct hr_reading *reading)
{
    const hr_region *region = reading->region;
    const struct hr_snapshot *head = reading->head;
    struct hr_snapshot again;
    copy_head(region, &again);
    uint64_t changed = again.owner_pid ^ head->owner_pid;
    changed |= again.last_kernel_time ^ head->last_kernel_time;
    changed |= (uint32_t)(again.priority ^ head->priority);
    changed |= (uint32_t)(again.utilization_switch ^ head->utilization_switch);
    changed |= (uint32_t)(again.recent_kernel ^ head->recent_kernel);
    const unsigned char *limit = region->base + region->layout->limit;
    const unsigned char *sm_limit = region->base + region->layout->sm_limit;
    for (uint32_t i = 0; i < reading->device_count; i++) {
        const uint64_t *copy = reading->limits + i * reading->device_limits;
        changed |= look(limit + reading->listed[i] * 8u) ^ copy[0];
        changed |= look(sm_limit + reading->listed[i] * 8u) ^ copy[reading->limit_step];
    }
    return changed == 0;
}

int hr_no_space(uint64_t wanted)
{
    struct hr_detail detail = {
        .code = HR_ENOSPACE, .device = -1, .layout = HR_LAYOUTS, .wanted = wanted};
    return hr_fail(&detail);
}

/* Counts, listed devices and span: what decides how much is copied. */
static int measure(struct hr_reading *reading)
{
    hr_region *region = reading->region;
    struct hr_snapshot *head = reading->head;
    uint32_t device_num;
    int code = hr_checked_device_num(region, &device_num);
    if (code == HR_OK)
        code = hr_checked_proc_num(region, &head->proc_num);
    if (code != HR_OK)
        return code;
    uint32_t count = hr_counted_devices(region, device_num);
    if (reading->thorough || device_num == 0) {
        reading->far |= hr_undeclared_uuids(region, count);
        for (int32_t i = 0; i < head->proc_num; i++)
            reading->far |= hr_undeclared_usage(region, hr_slot(region, (uint32_t)i), count);
    }
    head->device_num = device_num;
    head->shown = ((1u << count) - 1) | reading->far;
    head->span = 32 - (uint32_t)__builtin_clz(head->shown);
    code = reading->place(reading);
    if (code != HR_OK)
        return code;
    const struct hr_layout *layout = region->layout;
    for (uint32_t i = 0; i < reading->device_count; i++) {
        const uint32_t device = reading->listed[i];
        reading->offsets[i].used = layout->slot_used + device * layout->slot_used_stride;
        reading->offsets[i].monitor = layout->slot_monitorused + device * 8;
        reading->offsets[i].util = layout->slot_util + device * layout->slot_util_stride;
    }
    return HR_OK;
}

static void remember_stuck_seqlock(struct hr_reading *reading, uint32_t index)
{
    uint64_t seqlock = seqlock_of(reading->region->layout, hr_slot(reading->region, index));
    if ((seqlock & 1) != 0)
        atomic_store_explicit(&reading->region->stuck_seqlock, seqlock, memory_order_relaxed);
}

/* One round: HR_OK with head->settled and each process's; or a code. */
static int read_round(struct hr_reading *reading)
{
    hr_region *region = reading->region;
    struct hr_snapshot *head = reading->head;
    int code = hr_check_header(region);
    if (code != HR_OK)
        return code;
    bool no_holder = wait_until_free(reading);
    code = measure(reading);
    if (code != HR_OK)
        return code;
    copy_head(region, head);
    copy_devices(reading);
    reading->any_figure = 0;
    uint32_t count = (uint32_t)head->proc_num;
    first_look(reading, 0, count);

    head->semaphore = semaphore_between_looks(region);
    /* proc_num after the semaphore: who adds a slot fills it before proc_num is raised,
     * so the second look finds the slot changed. */
    bool undisturbed = no_holder && is_free(head->semaphore) && proc_num_is(region, head->proc_num);
    bool all = second_look(reading, 0, count);
    all = head_is_unchanged(reading) && all;
    head->settled = undisturbed && all && reading->bad_uuid == HR_DEVICES;
    if (head->settled)
        return HR_OK;

    for (uint32_t i = 0; i < count; i++) {
        struct hr_process *process = hr_copy_of_process(reading, i);
        if (!(undisturbed && process->settled))
            process->settled = settle_slot(reading, i);
        if (!process->settled)
            remember_stuck_seqlock(reading, i);
    }
    return HR_OK;
}

int hr_read_consistently(void *argument)
{
    struct hr_reading *reading = argument;
    struct hr_snapshot *head = reading->head;
    head->taken_at_ns = reading->taken_at_ns;
    int code = HR_OK;
    for (unsigned round = 0; round < ROUNDS; round++) {
        code = read_round(reading);
        if (code == HR_OK && head->settled)
            break;
        /* A count that is out of range may be about to be mended, a wrong magic is not. */
        if (code != HR_OK && code != HR_ECORRUPT)
            return code;
        if (time_is_up(reading))
            break;
    }
    if (code != HR_OK)
        return code;
    sum_usages(reading);
    if (reading->bad_uuid == HR_DEVICES)
        return HR_OK;
    struct hr_detail detail = {.code = HR_ECORRUPT,
                               .why = HR_WHY_UUID,
                               .device = (int32_t)reading->bad_uuid,
                               .layout = reading->region->layout->id,
                               .file_size = reading->region->layout->size};
    return hr_fail(&detail);
}

/* ---- One region, as rows ----------------------------------------------------- */

_Static_assert(sizeof(struct hr_usage) == HR_FIGURES * sizeof(uint64_t) &&
                   offsetof(struct hr_usage, offset) == 4 * sizeof(uint64_t) &&
                   offsetof(struct hr_usage, dec) == 8 * sizeof(uint64_t) &&
                   offsetof(struct hr_device, sums) == 2 * sizeof(uint64_t) &&
                   offsetof(struct hr_device, uuid) == HR_DEVICE_FIGURES * sizeof(uint64_t),
               "struct hr_usage and hr_device have their figures in the order of the columns");

struct snapshot_call {
    struct hr_reading reading; /* first, so that place_rows() finds the rest */
    size_t bytes;              /* room behind the head, itself included */
};

static int place_rows(struct hr_reading *reading)
{
    const struct snapshot_call *call = (const struct snapshot_call *)(const void *)reading;
    struct hr_snapshot *head = reading->head;
    const uint32_t span = head->span;
    const size_t process_bytes = sizeof(struct hr_process) + span * sizeof(struct hr_usage);
    const size_t devices_end = sizeof *head + span * sizeof(struct hr_device);
    const size_t wanted = devices_end + (size_t)head->proc_num * process_bytes;
    if (wanted > call->bytes)
        return hr_no_space(wanted);
    reading->device_count = span;
    for (uint32_t device = 0; device < span; device++)
        reading->listed[device] = (uint8_t)device;
    struct hr_device *devices = (struct hr_device *)(head + 1);
    reading->limits = &devices->limit;
    reading->limit_step = 1;
    reading->device_limits = sizeof *devices / sizeof(uint64_t);
    reading->uuids = (unsigned char *)devices->uuid;
    reading->uuid_step = sizeof(struct hr_device);
    reading->processes = (unsigned char *)head + devices_end;
    reading->process_step = process_bytes;
    reading->figures = (uint64_t *)(void *)(reading->processes + sizeof(struct hr_process));
    reading->figure_step = 1;
    reading->device_figures = HR_FIGURES;
    reading->process_figures = process_bytes / sizeof(uint64_t);
    return HR_OK;
}

int hr_snapshot(hr_region *region, void *buffer, size_t bytes)
{
    if (bytes < sizeof(struct hr_snapshot))
        return hr_no_space(sizeof(struct hr_snapshot));
    struct snapshot_call call;
    call.bytes = bytes;
    call.reading.region = region;
    call.reading.head = buffer;
    call.reading.place = place_rows;
    call.reading.thorough = true;
    call.reading.far = 0;
    call.reading.deadline_ns = 0;
    call.reading.taken_at_ns = hr_clock_ns(CLOCK_REALTIME);
    return hr_run(region, hr_read_consistently, &call.reading);
}
