#include <string.h>
#include <time.h>

#include "handle.h"
#include "identify.h"

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

struct reading {
    hr_region *region;
    struct hr_snapshot *head;
    size_t bytes; /* room behind `head` */
    bool thorough;
    uint32_t far; /* devices beyond the counted ones, found so far */
    uint64_t deadline_ns; /* 0 until somebody had to wait */
    uint64_t taken_at_ns;
    uint32_t bad_uuid; /* first device with an implausible one, or HR_DEVICES */
    uint64_t seqlocks[HR_SLOTS];
};

static struct hr_device *devices_of(struct hr_snapshot *head)
{
    return (struct hr_device *)(head + 1);
}

static size_t process_bytes(uint32_t span)
{
    return sizeof(struct hr_process) + span * sizeof(struct hr_usage);
}

static struct hr_process *process_of(struct hr_snapshot *head, uint32_t index)
{
    unsigned char *first = (unsigned char *)(devices_of(head) + head->span);
    return (struct hr_process *)(void *)(first + index * process_bytes(head->span));
}

static struct hr_usage *usage_of(struct hr_process *process)
{
    return (struct hr_usage *)(process + 1);
}

static bool time_is_up(struct reading *reading)
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
static bool wait_until_free(struct reading *reading)
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
static uint64_t seqlock_of(const hr_region *region, const unsigned char *slot)
{
    uint32_t offset = region->layout->slot_seqlock;
    return offset == HR_ABSENT ? 0 : hr_load_u64(slot + offset, memory_order_acquire);
}

static void copy_slot(const hr_region *region, const unsigned char *slot, uint32_t span,
                      struct hr_process *process)
{
    const struct hr_layout *layout = region->layout;
    process->pid = hr_load_i32(slot + layout->slot_pid, memory_order_relaxed);
    process->host_pid = hr_load_i32(slot + layout->slot_hostpid, memory_order_relaxed);
    process->status = hr_load_i32(slot + layout->slot_status, memory_order_relaxed);

    struct hr_usage *usage = usage_of(process);
    const unsigned char *used = slot + layout->slot_used;
    const unsigned char *monitor = slot + layout->slot_monitorused;
    for (uint32_t device = 0; device < span; device++, usage++) {
        usage->context = hr_load_u64(used, memory_order_relaxed);
        usage->module = hr_load_u64(used + 8, memory_order_relaxed);
        usage->data = hr_load_u64(used + 16, memory_order_relaxed);
        usage->offset = hr_load_u64(used + 24, memory_order_relaxed);
        usage->total = hr_load_u64(used + 32, memory_order_relaxed);
        usage->monitor = hr_load_u64(monitor + device * 8, memory_order_relaxed);
        used += layout->slot_used_stride;
    }
    usage = usage_of(process);
    if (layout->slot_util == HR_ABSENT) {
        for (uint32_t device = 0; device < span; device++, usage++)
            usage->sm = usage->enc = usage->dec = 0;
        return;
    }
    const unsigned char *util = slot + layout->slot_util;
    for (uint32_t device = 0; device < span; device++, usage++) {
        usage->dec = hr_load_u64(util, memory_order_relaxed);
        usage->enc = hr_load_u64(util + 8, memory_order_relaxed);
        usage->sm = hr_load_u64(util + 16, memory_order_relaxed);
        util += layout->slot_util_stride;
    }
}

/* The second look: whether the slot still holds what was copied. */
static bool holds_copy(const hr_region *region, const unsigned char *slot, uint32_t span,
                       const struct hr_process *process)
{
    const struct hr_layout *layout = region->layout;
    uint32_t other = 0;
    other |= (uint32_t)(hr_load_i32(slot + layout->slot_pid, memory_order_relaxed) ^ process->pid);
    other |= (uint32_t)(hr_load_i32(slot + layout->slot_hostpid, memory_order_relaxed) ^
                        process->host_pid);
    other |= (uint32_t)(hr_load_i32(slot + layout->slot_status, memory_order_relaxed) ^
                        process->status);

    uint64_t changed = other;
    const struct hr_usage *usage = (const struct hr_usage *)(process + 1);
    const unsigned char *used = slot + layout->slot_used;
    const unsigned char *monitor = slot + layout->slot_monitorused;
    for (uint32_t device = 0; device < span; device++) {
        changed |= hr_load_u64(used, memory_order_relaxed) ^ usage[device].context;
        changed |= hr_load_u64(used + 8, memory_order_relaxed) ^ usage[device].module;
        changed |= hr_load_u64(used + 16, memory_order_relaxed) ^ usage[device].data;
        changed |= hr_load_u64(used + 24, memory_order_relaxed) ^ usage[device].offset;
        changed |= hr_load_u64(used + 32, memory_order_relaxed) ^ usage[device].total;
        changed |= hr_load_u64(monitor + device * 8, memory_order_relaxed) ^ usage[device].monitor;
        used += layout->slot_used_stride;
    }
    if (layout->slot_util == HR_ABSENT)
        return changed == 0;
    const unsigned char *util = slot + layout->slot_util;
    for (uint32_t device = 0; device < span; device++) {
        changed |= hr_load_u64(util, memory_order_relaxed) ^ usage[device].dec;
        changed |= hr_load_u64(util + 8, memory_order_relaxed) ^ usage[device].enc;
        changed |= hr_load_u64(util + 16, memory_order_relaxed) ^ usage[device].sm;
        util += layout->slot_util_stride;
    }
    return changed == 0;
}

/* The fence: the seqlock is read after the values. */
static bool is_unchanged(const hr_region *region, const unsigned char *slot, uint32_t span,
                         const struct hr_process *process, uint64_t seqlock)
{
    bool same = holds_copy(region, slot, span, process);
    atomic_thread_fence(memory_order_acquire);
    return same && (seqlock & 1) == 0 && seqlock_of(region, slot) == seqlock;
}

static bool proc_num_is(const hr_region *region, int32_t count)
{
    return hr_load_i32(region->base + region->layout->proc_num, memory_order_acquire) == count;
}

/* Try one slot again by itself.  Its process must still be the same one. */
static bool settle_slot(struct reading *reading, uint32_t index, struct hr_process *process)
{
    hr_region *region = reading->region;
    const unsigned char *slot = hr_slot(region, index);
    uint32_t span = reading->head->span;
    int32_t pid = process->pid;
    for (unsigned try = 0; try < SLOT_TRIES; try++) {
        uint64_t seqlock = seqlock_of(region, slot);
        if ((seqlock & 1) != 0) {
            if (atomic_load_explicit(&region->stuck_seqlock, memory_order_relaxed) == seqlock)
                return false;
            hr_pause();
            continue;
        }
        copy_slot(region, slot, span, process);
        if (process->pid != pid)
            return false;
        bool undisturbed = is_free(semaphore_between_looks(region)) &&
                           proc_num_is(region, reading->head->proc_num);
        if (undisturbed && is_unchanged(region, slot, span, process, seqlock))
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

/* Returns the first device whose uuid is implausible, or HR_DEVICES. */
static uint32_t copy_devices(const hr_region *region, struct hr_snapshot *head)
{
    const unsigned char *limit = region->base + region->layout->limit;
    const unsigned char *sm_limit = region->base + region->layout->sm_limit;
    const unsigned char *uuid = region->base + region->layout->uuids;
    struct hr_device *device = devices_of(head);
    uint32_t bad = HR_DEVICES;
    for (uint32_t i = 0; i < head->span; i++, device++, uuid += HR_UUID_BYTES) {
        device->limit = hr_load_u64(limit + i * 8, memory_order_relaxed);
        device->sm_limit = hr_load_u64(sm_limit + i * 8, memory_order_relaxed);
        struct hr_uuid_check check = {0};
        for (uint32_t word = 0; word < HR_UUID_WORDS; word++) {
            uint64_t text = hr_load_u64(uuid + word * 8, memory_order_relaxed);
            memcpy(device->uuid + word * 8, &text, sizeof text);
            hr_uuid_check_word(&check, word, text);
        }
        if (!hr_uuid_has_usual_form(&check) && bad == HR_DEVICES &&
            !hr_uuid_is_plausible((const unsigned char *)device->uuid))
            bad = i;
    }
    return bad;
}

/* From the copies, so that a device's sums are those of the processes beside them. */
static void sum_usages(struct hr_snapshot *head)
{
    struct hr_device *devices = devices_of(head);
    for (uint32_t device = 0; device < head->span; device++) {
        struct hr_usage sums = {0};
        for (uint32_t i = 0; i < (uint32_t)head->proc_num; i++) {
            const struct hr_usage *usage = &usage_of(process_of(head, i))[device];
            sums.total = hr_add_saturating(sums.total, usage->total);
            sums.context = hr_add_saturating(sums.context, usage->context);
            sums.module = hr_add_saturating(sums.module, usage->module);
            sums.data = hr_add_saturating(sums.data, usage->data);
            sums.monitor = hr_add_saturating(sums.monitor, usage->monitor);
            sums.sm = hr_add_saturating(sums.sm, usage->sm);
            sums.enc = hr_add_saturating(sums.enc, usage->enc);
            sums.dec = hr_add_saturating(sums.dec, usage->dec);
            sums.offset = hr_add_saturating(sums.offset, usage->offset);
        }
        devices[device].sums = sums;
    }
}

static bool head_is_unchanged(const hr_region *region, struct hr_snapshot *head)
{
    struct hr_snapshot again;
    copy_head(region, &again);
    uint64_t changed = again.owner_pid ^ head->owner_pid;
    changed |= again.last_kernel_time ^ head->last_kernel_time;
    changed |= (uint32_t)(again.priority ^ head->priority);
    changed |= (uint32_t)(again.utilization_switch ^ head->utilization_switch);
    changed |= (uint32_t)(again.recent_kernel ^ head->recent_kernel);
    const struct hr_device *device = devices_of(head);
    for (uint32_t i = 0; i < head->span; i++, device++) {
        changed |= hr_load_u64(region->base + region->layout->limit + i * 8,
                               memory_order_relaxed) ^
                   device->limit;
        changed |= hr_load_u64(region->base + region->layout->sm_limit + i * 8,
                               memory_order_relaxed) ^
                   device->sm_limit;
    }
    return changed == 0;
}

static int no_space(uint64_t wanted)
{
    struct hr_detail detail = {
        .code = HR_ENOSPACE, .device = -1, .layout = HR_LAYOUTS, .wanted = wanted};
    return hr_fail(&detail);
}

/* Counts, listed devices and span: what decides how much is copied. */
static int measure(struct reading *reading)
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
        reading->far |= hr_far_uuids(region, count);
        for (int32_t i = 0; i < head->proc_num; i++)
            reading->far |= hr_far_usage(region, hr_slot(region, (uint32_t)i), count);
    }
    head->device_num = device_num;
    head->shown = ((1u << count) - 1) | reading->far;
    head->span = 32 - (uint32_t)__builtin_clz(head->shown);
    size_t wanted = sizeof *head + head->span * sizeof(struct hr_device) +
                    (size_t)head->proc_num * process_bytes(head->span);
    return wanted <= reading->bytes ? HR_OK : no_space(wanted);
}

static void remember_stuck_seqlock(struct reading *reading, uint32_t index)
{
    uint64_t seqlock = seqlock_of(reading->region, hr_slot(reading->region, index));
    if ((seqlock & 1) != 0)
        atomic_store_explicit(&reading->region->stuck_seqlock, seqlock, memory_order_relaxed);
}

/* One round: HR_OK with head->settled and each process's; or a code. */
static int read_round(struct reading *reading)
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
    reading->bad_uuid = copy_devices(region, head);
    uint32_t count = (uint32_t)head->proc_num;
    for (uint32_t i = 0; i < count; i++) {
        const unsigned char *slot = hr_slot(region, i);
        reading->seqlocks[i] = seqlock_of(region, slot);
        copy_slot(region, slot, head->span, process_of(head, i));
    }

    head->semaphore = semaphore_between_looks(region);
    /* proc_num after the semaphore: who adds a slot fills it before proc_num is raised,
     * so the second look finds the slot changed. */
    bool undisturbed =
        no_holder && is_free(head->semaphore) && proc_num_is(region, head->proc_num);
    bool all = true;
    for (uint32_t i = 0; i < count; i++) {
        struct hr_process *process = process_of(head, i);
        process->settled =
            is_unchanged(region, hr_slot(region, i), head->span, process, reading->seqlocks[i]);
        all = all && process->settled;
    }
    all = head_is_unchanged(region, head) && all;
    head->settled = undisturbed && all && reading->bad_uuid == HR_DEVICES;
    if (head->settled)
        return HR_OK;

    for (uint32_t i = 0; i < count; i++) {
        struct hr_process *process = process_of(head, i);
        if (!(undisturbed && process->settled))
            process->settled = settle_slot(reading, i, process);
        if (!process->settled)
            remember_stuck_seqlock(reading, i);
    }
    return HR_OK;
}

static int read_region(struct reading *reading)
{
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
    sum_usages(head);
    if (reading->bad_uuid == HR_DEVICES)
        return HR_OK;
    struct hr_detail detail = {.code = HR_ECORRUPT,
                               .why = HR_WHY_UUID,
                               .device = (int32_t)reading->bad_uuid,
                               .layout = reading->region->layout->id,
                               .file_size = reading->region->layout->size};
    return hr_fail(&detail);
}

static int snapshot_work(void *argument)
{
    return read_region(argument);
}

int hr_snapshot(hr_region *region, void *buffer, size_t bytes)
{
    if (bytes < sizeof(struct hr_snapshot))
        return no_space(sizeof(struct hr_snapshot));
    struct reading reading;
    reading.region = region;
    reading.head = buffer;
    reading.bytes = bytes;
    reading.thorough = true;
    reading.far = 0;
    reading.deadline_ns = 0;
    reading.taken_at_ns = hr_clock_ns(CLOCK_REALTIME);
    return hr_run(region, snapshot_work, &reading);
}

/* ---- Many regions, as columns ---------------------------------------------- */

struct table {
    uint64_t *cells;
    uint32_t capacity;
};

struct tables {
    struct table regions, devices, processes, usages;
    struct hr_rows filled;
};

static void put(const struct table *table, uint32_t column, uint32_t row, uint64_t value)
{
    table->cells[(size_t)column * table->capacity + row] = value;
}

static uint64_t widen(int32_t value)
{
    return (uint64_t)(int64_t)value;
}

static void put_failed_region(struct tables *tables, uint32_t row, int code)
{
    for (uint32_t column = 0; column < HR_REGION_COLUMNS; column++)
        put(&tables->regions, column, row, 0);
    put(&tables->regions, HR_REGION_CODE, row, widen(code));
    put(&tables->regions, HR_REGION_FIRST_DEVICE, row, tables->filled.devices);
    put(&tables->regions, HR_REGION_FIRST_PROCESS, row, tables->filled.processes);
}

static void put_region(struct tables *tables, uint32_t row, const hr_region *region,
                       const struct hr_snapshot *head, uint32_t device_rows)
{
    const struct table *to = &tables->regions;
    put(to, HR_REGION_CODE, row, HR_OK);
    put(to, HR_REGION_LAYOUT, row, region->layout->id);
    put(to, HR_REGION_TAKEN_AT_NS, row, head->taken_at_ns);
    put(to, HR_REGION_SETTLED, row, head->settled);
    put(to, HR_REGION_DEVICE_COUNT, row, head->device_num);
    put(to, HR_REGION_PROCESS_COUNT, row, (uint32_t)head->proc_num);
    put(to, HR_REGION_PRIORITY, row, widen(head->priority));
    put(to, HR_REGION_UTILIZATION_SWITCH, row, widen(head->utilization_switch));
    put(to, HR_REGION_RECENT_KERNEL, row, widen(head->recent_kernel));
    put(to, HR_REGION_LAST_KERNEL_TIME, row, head->last_kernel_time);
    put(to, HR_REGION_OWNER_PID, row, head->owner_pid);
    put(to, HR_REGION_SEMAPHORE, row, head->semaphore);
    put(to, HR_REGION_FIRST_DEVICE, row, tables->filled.devices);
    put(to, HR_REGION_DEVICE_ROWS, row, device_rows);
    put(to, HR_REGION_FIRST_PROCESS, row, tables->filled.processes);
}

/* Usage rows are most of all rows: their columns are found once, not per cell. */
static void put_usages(const struct tables *tables, uint32_t row, uint32_t process_row,
                       const struct hr_usage *usage, const struct hr_snapshot *head)
{
    const size_t capacity = tables->usages.capacity;
    uint64_t *cell = tables->usages.cells + row;
    for (uint32_t device = 0; device < head->span; device++, usage++) {
        if ((head->shown & 1u << device) == 0)
            continue;
        cell[HR_USAGE_PROCESS * capacity] = process_row;
        cell[HR_USAGE_DEVICE * capacity] = device;
        cell[HR_USAGE_TOTAL * capacity] = usage->total;
        cell[HR_USAGE_CONTEXT * capacity] = usage->context;
        cell[HR_USAGE_MODULE * capacity] = usage->module;
        cell[HR_USAGE_DATA * capacity] = usage->data;
        cell[HR_USAGE_OFFSET * capacity] = usage->offset;
        cell[HR_USAGE_MONITOR * capacity] = usage->monitor;
        cell[HR_USAGE_SM * capacity] = usage->sm;
        cell[HR_USAGE_ENC * capacity] = usage->enc;
        cell[HR_USAGE_DEC * capacity] = usage->dec;
        cell++;
    }
}

static void put_processes(const struct tables *tables, uint32_t row, struct hr_snapshot *head,
                          uint32_t device_rows)
{
    const struct table *to = &tables->processes;
    uint32_t process_row = tables->filled.processes;
    uint32_t usage_row = tables->filled.usages;
    for (uint32_t i = 0; i < (uint32_t)head->proc_num; i++) {
        struct hr_process *process = process_of(head, i);
        put(to, HR_PROCESS_REGION, process_row, row);
        put(to, HR_PROCESS_PID, process_row, widen(process->pid));
        put(to, HR_PROCESS_HOST_PID, process_row, widen(process->host_pid));
        put(to, HR_PROCESS_STATUS, process_row, widen(process->status));
        put(to, HR_PROCESS_SETTLED, process_row, process->settled);
        put(to, HR_PROCESS_FIRST_USAGE, process_row, usage_row);
        put_usages(tables, usage_row, process_row, usage_of(process), head);
        process_row++;
        usage_row += device_rows;
    }
}

static void put_devices(const struct tables *tables, uint32_t row, struct hr_snapshot *head)
{
    const struct table *to = &tables->devices;
    uint64_t *uuids = to->cells + (size_t)HR_DEVICE_UUID * to->capacity;
    uint32_t device_row = tables->filled.devices;
    for (uint32_t device = 0; device < head->span; device++) {
        if ((head->shown & 1u << device) == 0)
            continue;
        const struct hr_device *from = &devices_of(head)[device];
        put(to, HR_DEVICE_REGION, device_row, row);
        put(to, HR_DEVICE_INDEX, device_row, device);
        put(to, HR_DEVICE_LIMIT, device_row, from->limit);
        put(to, HR_DEVICE_SM_LIMIT, device_row, from->sm_limit);
        put(to, HR_DEVICE_TOTAL, device_row, from->sums.total);
        put(to, HR_DEVICE_CONTEXT, device_row, from->sums.context);
        put(to, HR_DEVICE_MODULE, device_row, from->sums.module);
        put(to, HR_DEVICE_DATA, device_row, from->sums.data);
        put(to, HR_DEVICE_OFFSET, device_row, from->sums.offset);
        put(to, HR_DEVICE_MONITOR, device_row, from->sums.monitor);
        put(to, HR_DEVICE_SM, device_row, from->sums.sm);
        put(to, HR_DEVICE_ENC, device_row, from->sums.enc);
        put(to, HR_DEVICE_DEC, device_row, from->sums.dec);
        memcpy(uuids + (size_t)device_row * HR_UUID_WORDS, from->uuid, HR_UUID_BYTES);
        device_row++;
    }
}

/* Count the rows always; store them only while they fit. */
static bool put_all(struct tables *tables, uint32_t row, const hr_region *region,
                    struct hr_snapshot *head, bool fits)
{
    uint32_t device_rows = (uint32_t)__builtin_popcount(head->shown);
    struct hr_rows after = {
        .regions = row + 1,
        .devices = tables->filled.devices + device_rows,
        .processes = tables->filled.processes + (uint32_t)head->proc_num,
        .usages = tables->filled.usages + (uint32_t)head->proc_num * device_rows,
    };
    fits = fits && after.devices <= tables->devices.capacity &&
           after.processes <= tables->processes.capacity &&
           after.usages <= tables->usages.capacity;
    if (fits) {
        put_region(tables, row, region, head, device_rows);
        put_processes(tables, row, head, device_rows);
        put_devices(tables, row, head);
    }
    tables->filled = after;
    return fits;
}

#define CACHE_LINE 64

static void prefetch(const unsigned char *from, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += CACHE_LINE)
        __builtin_prefetch(from + at);
}

/*
 * The regions lie apart from each other, so a read of many is one wait for memory
 * after another unless the next region is on its way while this one is read.
 * Prefetching never faults, neither behind a truncation nor after an unmapping.
 */
static void prefetch_region(const hr_region *region)
{
    if (region == NULL)
        return;
    const struct hr_layout *layout = region->layout;
    const unsigned char *base = region->base;
    uint32_t devices = atomic_load_explicit(&region->likely_devices, memory_order_relaxed);
    uint32_t slots = atomic_load_explicit(&region->likely_slots, memory_order_relaxed);
    prefetch(base, layout->uuids + devices * HR_UUID_BYTES);
    prefetch(base + layout->limit, layout->procs - layout->limit);
    prefetch(base + layout->proc_num, 2 * CACHE_LINE);
    for (uint32_t i = 0; i < slots; i++) {
        const unsigned char *slot = hr_slot(region, i);
        prefetch(slot, layout->slot_used + (size_t)devices * layout->slot_used_stride);
        prefetch(slot + layout->slot_monitorused, (size_t)devices * 8);
        prefetch(slot + layout->slot_status, CACHE_LINE);
        if (layout->slot_util != HR_ABSENT)
            prefetch(slot + layout->slot_util, (size_t)devices * layout->slot_util_stride);
    }
}

static void end_set_read(const struct reading *reading)
{
    const struct hr_snapshot *head = reading->head;
    /* Enough for nearly all; more would push out what is being read. */
    const uint32_t most = 8;
    uint32_t slots = (uint32_t)head->proc_num;
    hr_region *region = reading->region;
    atomic_store_explicit(&region->far_devices, reading->far, memory_order_relaxed);
    atomic_store_explicit(&region->likely_slots, slots < most ? slots : most,
                          memory_order_relaxed);
    atomic_store_explicit(&region->likely_devices, head->span < most ? head->span : most,
                          memory_order_relaxed);
}

/*
 * As hr_run(), but without counting the call: an atomic addition waits until all
 * the cells stored for the region before have left the processor.  That no
 * handle is closed meanwhile is the caller's part.
 */
static int read_one_of_set(struct reading *reading, hr_region *region)
{
    if ((atomic_load_explicit(&region->users, memory_order_acquire) & HR_CLOSING) != 0)
        return hr_fail_code(HR_ECLOSED);
    if (region->fork_generation != hr_fork_generation)
        return hr_fail_code(HR_EFORKED);
    reading->region = region;
    uint32_t reads = atomic_load_explicit(&region->set_reads, memory_order_relaxed);
    atomic_store_explicit(&region->set_reads, reads + 1, memory_order_relaxed);
    reading->thorough = reads % HR_THOROUGH_EVERY == 0;
    reading->far = reading->thorough
                       ? 0
                       : atomic_load_explicit(&region->far_devices, memory_order_relaxed);
    return hr_guard_run(region->base, region->mapped_bytes, snapshot_work, reading);
}

int hr_read_set(hr_region *const *regions, const struct hr_rows *capacity, uint64_t *arena,
                void *scratch, struct hr_rows *filled)
{
    struct tables tables = {
        .regions = {arena, capacity->regions},
        .devices = {NULL, capacity->devices},
        .processes = {NULL, capacity->processes},
        .usages = {NULL, capacity->usages},
    };
    tables.devices.cells = tables.regions.cells + (size_t)HR_REGION_COLUMNS * capacity->regions;
    tables.processes.cells = tables.devices.cells + (size_t)HR_DEVICE_COLUMNS * capacity->devices;
    tables.usages.cells =
        tables.processes.cells + (size_t)HR_PROCESS_COLUMNS * capacity->processes;

    /* One deadline for all: regions whose writers do not leave cannot add up. */
    struct reading reading;
    reading.head = scratch;
    reading.bytes = HR_SNAPSHOT_MAX_BYTES;
    reading.deadline_ns = 0;
    reading.taken_at_ns = hr_clock_ns(CLOCK_REALTIME);
    bool fits = true;
    int failed = 0;
    for (uint32_t row = 0; row < capacity->regions; row++) {
        hr_region *region = regions[row];
        int code = HR_ECLOSED;
        if (row + 1 < capacity->regions)
            prefetch_region(regions[row + 1]);
        if (region != NULL)
            code = read_one_of_set(&reading, region);
        if (code != HR_OK) {
            put_failed_region(&tables, row, code);
            failed++;
            continue;
        }
        end_set_read(&reading);
        fits = put_all(&tables, row, region, reading.head, fits);
    }
    tables.filled.regions = capacity->regions;
    *filled = tables.filled;
    return fits ? failed : no_space(0);
}
