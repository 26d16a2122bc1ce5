#include <string.h>
#include <time.h>

#include "layout_rows.h"
#include "slots.h"

/*
 * How a consistent copy is made without the lock.
 *
 * Read all values, check the lock, read all values again.  If both reads agree, the copy is what
 * the region held when the lock was checked (unless a value changed and changed back within a
 * microsecond).  If the lock was free at that moment, no slot was being moved and, in layouts
 * without seqlocks, no accounting update was in progress.  The check has to be between the reads:
 * a holder that came after an earlier check could store half of a slot, sleep through both reads,
 * and be gone again before a later check.
 *
 * A slot's seqlock must be even and unchanged from before the first to after the second read.  It
 * does not replace the second read: two threads of one process inside it make it even again.
 *
 * If something changed, everything is read again after a pause, until the budget is spent.  Each
 * pause is longer: each read takes the cache line of a counter away from the process that counts.
 */

#define SHORTEST_PAUSE_NS 125

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Constants: what takes a layout and is inlined is compiled for each of them. */
static const struct hr_layout rows[HR_LAYOUTS] = HR_LAYOUT_ROWS;

/* Wait a little, longer each time.  False if the budget is spent. */
static bool pause_before(struct hr_reading *reading, unsigned attempt)
{
    uint64_t now = hr_clock_ns(CLOCK_MONOTONIC);
    if (reading->deadline_ns == 0)
        reading->deadline_ns = now + HR_SNAPSHOT_BUDGET_NS;
    const uint64_t end = now + (SHORTEST_PAUSE_NS << (attempt < 6 ? attempt : 6));
    while (now < end && now < reading->deadline_ns) {
        hr_pause();
        now = hr_clock_ns(CLOCK_MONOTONIC);
    }
    return now < reading->deadline_ns;
}

ALWAYS_INLINE uint64_t load_u64(const unsigned char *at)
{
    return hr_load_u64(at, memory_order_relaxed);
}

ALWAYS_INLINE int32_t load_i32(const unsigned char *at)
{
    return hr_load_i32(at, memory_order_relaxed);
}

/* ---- Slots ------------------------------------------------------------------- */

static struct hr_process *process_at(const struct hr_reading *reading, size_t index)
{
    return (struct hr_process *)(void *)(reading->processes + index * reading->process_bytes);
}

ALWAYS_INLINE const unsigned char *slot_at(const struct hr_layout *layout, const hr_region *region,
                                           size_t index)
{
    return region->base + layout->procs + index * layout->slot_stride;
}

ALWAYS_INLINE struct hr_usage load_usage(const struct hr_layout *layout, const unsigned char *slot,
                                         size_t device)
{
    const unsigned char *used = slot + layout->slot_used + device * layout->slot_used_stride;
    const bool has_util = layout->slot_util != HR_ABSENT;
    const unsigned char *util = slot + layout->slot_util + device * layout->slot_util_stride;
    return (struct hr_usage){
        .context = load_u64(used),
        .module = load_u64(used + 8),
        .data = load_u64(used + 16),
        .offset = load_u64(used + 24),
        .total = load_u64(used + 32),
        .monitor = load_u64(slot + layout->slot_monitorused + device * 8),
        .dec = has_util ? load_u64(util) : 0,
        .enc = has_util ? load_u64(util + 8) : 0,
        .sm = has_util ? load_u64(util + 16) : 0,
    };
}

/* Acquire, so that the values are read after it. */
ALWAYS_INLINE uint64_t load_seqlock(const struct hr_layout *layout, const unsigned char *slot)
{
    const uint32_t offset = layout->slot_seqlock;
    return offset == HR_ABSENT ? 0 : hr_load_u64(slot + offset, memory_order_acquire);
}

/* The figures of struct hr_usage in their order. */
enum { FIGURES = sizeof(struct hr_usage) / sizeof(uint64_t) };
#define EACH_FIGURE _Pragma("GCC unroll 16") for (unsigned figure = 0; figure < FIGURES; figure++)

ALWAYS_INLINE void read_slot(const struct hr_layout *layout, struct hr_reading *reading, size_t i)
{
    const size_t span = reading->head->span;
    const unsigned char *slot = slot_at(layout, reading->region, i);
    struct hr_process *process = process_at(reading, i);
    struct hr_usage *usages = (struct hr_usage *)(process + 1);
    reading->seqlocks[i] = load_seqlock(layout, slot);
    process->pid = load_i32(slot + layout->slot_pid);
    process->host_pid = load_i32(slot + layout->slot_hostpid);
    process->status = load_i32(slot + layout->slot_status);
    process->settled = 0;
    process->slot = (uint16_t)i;
    for (size_t device = 0; device < span; device++)
        usages[device] = load_usage(layout, slot, device);
}

/*
 * The second read; the slot is settled if it still is what was copied.  With a seqlock its total
 * must also be the sum of its kinds: libvgpu adds to both inside the seqlock, and two threads that
 * are killed in there leave it even.
 */
ALWAYS_INLINE bool slot_is_unchanged(const struct hr_layout *layout,
                                     const struct hr_reading *reading, size_t i)
{
    const size_t span = reading->head->span;
    const unsigned char *slot = slot_at(layout, reading->region, i);
    struct hr_process *process = process_at(reading, i);
    const struct hr_usage *copies = (const struct hr_usage *)(process + 1);
    uint64_t changed = 0;
    for (size_t device = 0; device < span; device++) {
        const struct hr_usage again = load_usage(layout, slot, device);
        const uint64_t *now = (const uint64_t *)&again;
        const uint64_t *before = (const uint64_t *)&copies[device];
        EACH_FIGURE
        changed |= now[figure] ^ before[figure];
        if (layout->slot_seqlock != HR_ABSENT)
            changed |= again.total ^ (again.context + again.module + again.data);
    }
    changed |= (uint32_t)((load_i32(slot + layout->slot_pid) ^ process->pid) |
                          (load_i32(slot + layout->slot_hostpid) ^ process->host_pid) |
                          (load_i32(slot + layout->slot_status) ^ process->status));
    /* The fence: the seqlock is read after the values. */
    atomic_thread_fence(memory_order_acquire);
    const uint64_t seqlock = reading->seqlocks[i];
    changed |= (seqlock & 1) | (load_seqlock(layout, slot) ^ seqlock);
    process->settled = changed == 0;
    return changed == 0;
}

/* ---- Head and devices -------------------------------------------------------- */

ALWAYS_INLINE void read_head(const struct hr_layout *layout, const unsigned char *base,
                             struct hr_snapshot *head)
{
    const bool has_time = layout->last_kernel_time != HR_ABSENT;
    head->owner_pid = load_u64(base + layout->owner_pid);
    head->last_kernel_time = has_time ? load_u64(base + layout->last_kernel_time) : 0;
    head->priority = load_i32(base + layout->priority);
    head->utilization_switch = load_i32(base + layout->utilization_switch);
    head->recent_kernel = load_i32(base + layout->recent_kernel);
    head->refusals = -1;
    if (hr_has_burst(layout) && load_i32(base + hr_refusals_at(layout) + 8) == HR_REFUSALS_COUNTED)
        head->refusals = (int64_t)load_u64(base + hr_refusals_at(layout));
}

ALWAYS_INLINE bool head_is_unchanged(const struct hr_layout *layout, const unsigned char *base,
                                     const struct hr_snapshot *head)
{
    struct hr_snapshot again;
    read_head(layout, base, &again);
    return again.owner_pid == head->owner_pid && again.last_kernel_time == head->last_kernel_time &&
           again.priority == head->priority &&
           again.utilization_switch == head->utilization_switch &&
           again.recent_kernel == head->recent_kernel &&
           load_u64(base + layout->device_num) == head->device_num;
}

ALWAYS_INLINE void read_device(const struct hr_layout *layout, const unsigned char *base,
                               size_t device, struct hr_device *to)
{
    const unsigned char *uuid = base + layout->uuids + device * HR_UUID_BYTES;
    to->limit = load_u64(base + layout->limit + device * 8);
    to->sm_limit = load_u64(base + layout->sm_limit + device * 8);
#pragma GCC unroll 12
    for (size_t at = 0; at < HR_UUID_BYTES; at += 8) {
        const uint64_t text = load_u64(uuid + at);
        memcpy(to->uuid + at, &text, sizeof text);
    }
}

/* uuids are written without the lock. */
ALWAYS_INLINE bool device_is_unchanged(const struct hr_layout *layout, const unsigned char *base,
                                       size_t device, const struct hr_device *copy)
{
    const unsigned char *uuid = base + layout->uuids + device * HR_UUID_BYTES;
    uint64_t changed = load_u64(base + layout->limit + device * 8) ^ copy->limit;
    changed |= load_u64(base + layout->sm_limit + device * 8) ^ copy->sm_limit;
#pragma GCC unroll 12
    for (size_t at = 0; at < HR_UUID_BYTES; at += 8) {
        uint64_t text;
        memcpy(&text, copy->uuid + at, sizeof text);
        changed |= load_u64(uuid + at) ^ text;
    }
    return changed == 0;
}

/* ---- One region -------------------------------------------------------------- */

static int no_space(uint64_t wanted)
{
    return HR_FAIL(HR_ENOSPACE, .wanted = wanted);
}

static int bad_uuid(const struct hr_layout *layout, size_t device)
{
    return HR_FAIL_OF(HR_ECORRUPT, (int32_t)device, layout->id, .reason = HR_REASON_UUID,
                      .file_size = layout->size);
}

/* Counts, listed devices and span: they decide how much is copied, and where to. */
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
    uint32_t shown = (1u << hr_counted_devices(region, device_num)) - 1;
    /* While the container has not reported its devices: those that have left traces. */
    if (device_num == 0)
        shown |= hr_find_traces(region, proc_num);
    const uint32_t span = 32 - (uint32_t)__builtin_clz(shown);

    struct hr_snapshot *head = reading->head;
    reading->process_bytes = sizeof(struct hr_process) + span * sizeof(struct hr_usage);
    reading->wanted =
        sizeof *head + span * sizeof(struct hr_device) + (size_t)proc_num * reading->process_bytes;
    if (reading->wanted > reading->bytes)
        return no_space(reading->wanted);
    reading->devices = (struct hr_device *)(head + 1);
    reading->processes = (unsigned char *)(reading->devices + span);
    head->device_num = device_num;
    head->process_count = proc_num;
    head->slot_count = (uint32_t)proc_num;
    head->truncated = 0;
    head->shown = shown;
    head->span = span;
    return HR_OK;
}

/*
 * The lock is free if its semaphore is 1 and nobody has signed.  Above 1, which libvgpu up to 2.7.1
 * brings about by itself, it excludes nobody, and an owner with a free semaphore is a holder that
 * came in while it was so.
 */
ALWAYS_INLINE bool lock_is_free(const struct hr_snapshot *head)
{
    return (uint32_t)head->semaphore == 1 && head->owner_pid == 0;
}

/* Both reads, with the check of the lock between them: whether all of it is settled. */
ALWAYS_INLINE bool read_twice(const struct hr_layout *layout, struct hr_reading *reading)
{
    const hr_region *region = reading->region;
    const unsigned char *base = region->base;
    struct hr_snapshot *head = reading->head;
    const size_t count = (size_t)head->process_count, span = head->span;
    read_head(layout, base, head);
    for (size_t device = 0; device < span; device++)
        read_device(layout, base, device, &reading->devices[device]);
    for (size_t i = 0; i < count; i++)
        read_slot(layout, reading, i);

    /* The fence keeps the first read before the check; acquire keeps the second one behind it, and
     * pairs with the release of the post. */
    atomic_thread_fence(memory_order_acquire);
    head->semaphore = hr_load_u64(base + layout->sem, memory_order_acquire);
    /* After the semaphore: a slot is filled before proc_num is raised to take it in, so the second
     * read finds it changed. */
    if (!lock_is_free(head) ||
        hr_load_i32(base + layout->proc_num, memory_order_acquire) != head->process_count)
        return false;

    bool same = head_is_unchanged(layout, base, head);
    for (size_t device = 0; device < span; device++)
        same &= device_is_unchanged(layout, base, device, &reading->devices[device]);
    for (size_t i = 0; i < count; i++)
        same &= slot_is_unchanged(layout, reading, i);
    return same;
}

/*
 * Of the copies, so that a device's sums are those of the processes beside them.  Modulo 2^64, as
 * libvgpu adds: a process that frees memory in a slot that has become another's makes that one's
 * figure wrap around, and only sums that wrap too are what is used.
 */
static void sum_up(const struct hr_reading *reading)
{
    const size_t span = reading->head->span, count = (size_t)reading->head->process_count;
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

/* Both its copy and the slot, which has figures of more devices than the copy. */
static bool is_emptied(const struct hr_reading *reading, size_t i)
{
    const struct hr_process *process = process_at(reading, i);
    const uint64_t *figures = (const uint64_t *)(const void *)(process + 1);
    uint64_t any = (uint32_t)process->status | (reading->seqlocks[i] & 1);
    for (size_t figure = 0; figure < reading->head->span * FIGURES; figure++)
        any |= figures[figure];
    return any == 0 && hr_is_emptied(reading->region, (int32_t)i);
}

/* Close the gaps of emptied slots among the copies. */
static void drop_emptied(struct hr_reading *reading)
{
    const size_t count = (size_t)reading->head->process_count;
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        if (process_at(reading, i)->status == 0 && is_emptied(reading, i))
            continue;
        if (kept != i)
            memcpy(process_at(reading, kept), process_at(reading, i), reading->process_bytes);
        kept++;
    }
    reading->head->process_count = (int32_t)kept;
    reading->wanted -= (count - kept) * reading->process_bytes;
}

static int check_uuids(const struct hr_layout *layout, const struct hr_reading *reading)
{
    for (size_t device = 0; device < reading->head->span; device++) {
        if (!hr_uuid_is_plausible((const unsigned char *)reading->devices[device].uuid))
            return bad_uuid(layout, device);
    }
    return HR_OK;
}

/* One attempt: HR_OK, and settled or not; HR_ECORRUPT; or a code that waiting does not change. */
ALWAYS_INLINE int read_once(const struct hr_layout *layout, struct hr_reading *reading)
{
    int code = hr_check_header(reading->region);
    if (code == HR_OK)
        code = measure(reading);
    if (code != HR_OK)
        return code;
    reading->head->settled = read_twice(layout, reading);
    return check_uuids(layout, reading);
}

ALWAYS_INLINE int read_as(const struct hr_layout *layout, struct hr_reading *reading)
{
    struct hr_snapshot *head = reading->head;
    int code = read_once(layout, reading);
    /* Damage may be about to be mended. */
    for (unsigned attempt = 0; ((code == HR_OK && !head->settled) || code == HR_ECORRUPT) &&
                               pause_before(reading, attempt);
         attempt++)
        code = read_once(layout, reading);
    if (code != HR_OK)
        return code;
    head->code = HR_OK;
    head->layout = layout->id;
    head->taken_at_ns = reading->taken_at_ns;
    head->owner_pid = hr_owner_pid(head->owner_pid);
    sum_up(reading);
    drop_emptied(reading);
    return HR_OK;
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

int hr_snapshot(hr_region *region, void *buffer, size_t bytes, struct hr_error *error)
{
    struct hr_reading reading;
    reading.region = region;
    reading.head = buffer;
    reading.bytes = bytes;
    reading.deadline_ns = 0;
    reading.taken_at_ns = hr_clock_ns(CLOCK_REALTIME);
    return hr_report(error, hr_run(region, hr_read_consistently, &reading));
}
