#include <string.h>
#include <time.h>

#include "handle.h"
#include "identify.h"

/*
 * How a consistent picture is made without the lock.
 *
 * Copy everything, then look at everything a second time.  A word that has the
 * same value at both looks had it all the time in between (or changed twice in
 * well under a microsecond), so if that holds for all of them, the copy is the
 * state at one moment.  On top of it, in between the semaphore must be free,
 * because a holder may be in the middle of moving a slot or, in the layouts
 * without seqlocks, of an accounting change; and each seqlock must be even and
 * unchanged.  The second look at the values is needed beside the seqlock: two
 * threads of one process inside it at once make it even again.
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

static uint64_t semaphore_word(const hr_region *region)
{
    /* Acquire pairs with the release of whoever posted it. */
    return hr_load_u64(region->base + region->layout->sem, memory_order_acquire);
}

static uint64_t owner_pid(const hr_region *region)
{
    return hr_load_u64(region->base + region->layout->owner_pid, memory_order_relaxed);
}

static bool is_free(uint64_t semaphore)
{
    return (int32_t)(uint32_t)semaphore > 0;
}

/* Wait for the holder to leave, unless an earlier snapshot has already waited for this one. */
static bool wait_until_free(struct reading *reading)
{
    hr_region *region = reading->region;
    while (!is_free(semaphore_word(region))) {
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
    const unsigned char *util = slot + layout->slot_util;
    bool has_util = layout->slot_util != HR_ABSENT;
    for (uint32_t device = 0; device < span; device++, usage++) {
        usage->context = hr_load_u64(used, memory_order_relaxed);
        usage->module = hr_load_u64(used + 8, memory_order_relaxed);
        usage->data = hr_load_u64(used + 16, memory_order_relaxed);
        usage->offset = hr_load_u64(used + 24, memory_order_relaxed);
        usage->total = hr_load_u64(used + 32, memory_order_relaxed);
        usage->monitor = hr_load_u64(monitor, memory_order_relaxed);
        usage->dec = has_util ? hr_load_u64(util, memory_order_relaxed) : 0;
        usage->enc = has_util ? hr_load_u64(util + 8, memory_order_relaxed) : 0;
        usage->sm = has_util ? hr_load_u64(util + 16, memory_order_relaxed) : 0;
        used += layout->slot_used_stride;
        monitor += 8;
        util += layout->slot_util_stride;
    }
}

/* The second look: whether the slot still holds what was copied. */
static bool holds_copy(const hr_region *region, const unsigned char *slot, uint32_t span,
                       struct hr_process *process)
{
    const struct hr_layout *layout = region->layout;
    uint64_t changed = 0;
    changed |= (uint32_t)(hr_load_i32(slot + layout->slot_pid, memory_order_relaxed) ^
                          process->pid);
    changed |= (uint32_t)(hr_load_i32(slot + layout->slot_hostpid, memory_order_relaxed) ^
                          process->host_pid);
    changed |= (uint32_t)(hr_load_i32(slot + layout->slot_status, memory_order_relaxed) ^
                          process->status);

    const struct hr_usage *usage = usage_of(process);
    const unsigned char *used = slot + layout->slot_used;
    const unsigned char *monitor = slot + layout->slot_monitorused;
    const unsigned char *util = slot + layout->slot_util;
    bool has_util = layout->slot_util != HR_ABSENT;
    for (uint32_t device = 0; device < span; device++, usage++) {
        changed |= hr_load_u64(used, memory_order_relaxed) ^ usage->context;
        changed |= hr_load_u64(used + 8, memory_order_relaxed) ^ usage->module;
        changed |= hr_load_u64(used + 16, memory_order_relaxed) ^ usage->data;
        changed |= hr_load_u64(used + 24, memory_order_relaxed) ^ usage->offset;
        changed |= hr_load_u64(used + 32, memory_order_relaxed) ^ usage->total;
        changed |= hr_load_u64(monitor, memory_order_relaxed) ^ usage->monitor;
        if (has_util) {
            changed |= hr_load_u64(util, memory_order_relaxed) ^ usage->dec;
            changed |= hr_load_u64(util + 8, memory_order_relaxed) ^ usage->enc;
            changed |= hr_load_u64(util + 16, memory_order_relaxed) ^ usage->sm;
        }
        used += layout->slot_used_stride;
        monitor += 8;
        util += layout->slot_util_stride;
    }
    return changed == 0;
}

/* After the fence, the seqlock is read after the values. */
static bool is_unchanged(const hr_region *region, const unsigned char *slot, uint32_t span,
                         struct hr_process *process, uint64_t seqlock)
{
    atomic_thread_fence(memory_order_acquire);
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
        bool was_free = is_free(semaphore_word(region));
        copy_slot(region, slot, span, process);
        if (process->pid != pid)
            return false;
        if (was_free && is_unchanged(region, slot, span, process, seqlock) &&
            is_free(semaphore_word(region)) && proc_num_is(region, reading->head->proc_num))
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

static void copy_devices(const hr_region *region, struct hr_snapshot *head)
{
    const unsigned char *limit = region->base + region->layout->limit;
    const unsigned char *sm_limit = region->base + region->layout->sm_limit;
    const unsigned char *uuid = region->base + region->layout->uuids;
    struct hr_device *device = devices_of(head);
    for (uint32_t i = 0; i < head->span; i++, device++) {
        device->limit = hr_load_u64(limit + i * 8, memory_order_relaxed);
        device->sm_limit = hr_load_u64(sm_limit + i * 8, memory_order_relaxed);
        for (uint32_t at = 0; at < HR_UUID_BYTES; at += 8) {
            uint64_t word = hr_load_u64(uuid + i * HR_UUID_BYTES + at, memory_order_relaxed);
            memcpy(device->uuid + at, &word, sizeof word);
        }
    }
}

/* The first device whose uuid is implausible, or HR_DEVICES. */
static uint32_t bad_uuid(struct hr_snapshot *head)
{
    const struct hr_device *device = devices_of(head);
    for (uint32_t i = 0; i < head->span; i++) {
        if (!hr_uuid_is_plausible((const unsigned char *)device[i].uuid))
            return i;
    }
    return HR_DEVICES;
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
    bool was_free = wait_until_free(reading);
    code = measure(reading);
    if (code != HR_OK)
        return code;
    copy_head(region, head);
    copy_devices(region, head);
    uint32_t count = (uint32_t)head->proc_num;
    for (uint32_t i = 0; i < count; i++) {
        const unsigned char *slot = hr_slot(region, i);
        reading->seqlocks[i] = seqlock_of(region, slot);
        copy_slot(region, slot, head->span, process_of(head, i));
    }

    bool all = true;
    for (uint32_t i = 0; i < count; i++) {
        struct hr_process *process = process_of(head, i);
        process->settled =
            is_unchanged(region, hr_slot(region, i), head->span, process, reading->seqlocks[i]);
        all = all && process->settled;
    }
    all = head_is_unchanged(region, head) && all;
    atomic_thread_fence(memory_order_acquire);
    head->semaphore = semaphore_word(region);
    bool undisturbed =
        was_free && is_free(head->semaphore) && proc_num_is(region, head->proc_num);
    head->settled = undisturbed && all && bad_uuid(head) == HR_DEVICES;
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
    head->taken_at_ns = hr_clock_ns(CLOCK_REALTIME);
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
    uint32_t device = head->settled ? HR_DEVICES : bad_uuid(head);
    if (device == HR_DEVICES)
        return HR_OK;
    struct hr_detail detail = {.code = HR_ECORRUPT,
                               .why = HR_WHY_UUID,
                               .device = (int32_t)device,
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

static void put_processes(struct tables *tables, uint32_t row, struct hr_snapshot *head,
                          struct hr_usage *sums)
{
    uint32_t process_row = tables->filled.processes;
    uint32_t usage_row = tables->filled.usages;
    for (uint32_t i = 0; i < (uint32_t)head->proc_num; i++, process_row++) {
        struct hr_process *process = process_of(head, i);
        const struct table *to = &tables->processes;
        put(to, HR_PROCESS_REGION, process_row, row);
        put(to, HR_PROCESS_PID, process_row, widen(process->pid));
        put(to, HR_PROCESS_HOST_PID, process_row, widen(process->host_pid));
        put(to, HR_PROCESS_STATUS, process_row, widen(process->status));
        put(to, HR_PROCESS_SETTLED, process_row, process->settled);
        put(to, HR_PROCESS_FIRST_USAGE, process_row, usage_row);
        to = &tables->usages;
        const struct hr_usage *usage = usage_of(process);
        for (uint32_t device = 0; device < head->span; device++, usage++) {
            if ((head->shown & 1u << device) == 0)
                continue;
            put(to, HR_USAGE_PROCESS, usage_row, process_row);
            put(to, HR_USAGE_DEVICE, usage_row, device);
            put(to, HR_USAGE_TOTAL, usage_row, usage->total);
            put(to, HR_USAGE_CONTEXT, usage_row, usage->context);
            put(to, HR_USAGE_MODULE, usage_row, usage->module);
            put(to, HR_USAGE_DATA, usage_row, usage->data);
            put(to, HR_USAGE_OFFSET, usage_row, usage->offset);
            put(to, HR_USAGE_MONITOR, usage_row, usage->monitor);
            put(to, HR_USAGE_SM, usage_row, usage->sm);
            put(to, HR_USAGE_ENC, usage_row, usage->enc);
            put(to, HR_USAGE_DEC, usage_row, usage->dec);
            usage_row++;
            struct hr_usage *sum = &sums[device];
            sum->total = hr_add_saturating(sum->total, usage->total);
            sum->context = hr_add_saturating(sum->context, usage->context);
            sum->module = hr_add_saturating(sum->module, usage->module);
            sum->data = hr_add_saturating(sum->data, usage->data);
            sum->offset = hr_add_saturating(sum->offset, usage->offset);
            sum->monitor = hr_add_saturating(sum->monitor, usage->monitor);
            sum->sm = hr_add_saturating(sum->sm, usage->sm);
            sum->enc = hr_add_saturating(sum->enc, usage->enc);
            sum->dec = hr_add_saturating(sum->dec, usage->dec);
        }
    }
}

static void put_devices(struct tables *tables, uint32_t row, struct hr_snapshot *head,
                        const struct hr_usage *sums)
{
    const struct table *to = &tables->devices;
    uint64_t *uuids = to->cells + (size_t)HR_DEVICE_UUID * to->capacity;
    uint32_t device_row = tables->filled.devices;
    for (uint32_t device = 0; device < head->span; device++) {
        if ((head->shown & 1u << device) == 0)
            continue;
        const struct hr_device *from = &devices_of(head)[device];
        const struct hr_usage *sum = &sums[device];
        put(to, HR_DEVICE_REGION, device_row, row);
        put(to, HR_DEVICE_INDEX, device_row, device);
        put(to, HR_DEVICE_LIMIT, device_row, from->limit);
        put(to, HR_DEVICE_SM_LIMIT, device_row, from->sm_limit);
        put(to, HR_DEVICE_TOTAL, device_row, sum->total);
        put(to, HR_DEVICE_CONTEXT, device_row, sum->context);
        put(to, HR_DEVICE_MODULE, device_row, sum->module);
        put(to, HR_DEVICE_DATA, device_row, sum->data);
        put(to, HR_DEVICE_OFFSET, device_row, sum->offset);
        put(to, HR_DEVICE_MONITOR, device_row, sum->monitor);
        put(to, HR_DEVICE_SM, device_row, sum->sm);
        put(to, HR_DEVICE_ENC, device_row, sum->enc);
        put(to, HR_DEVICE_DEC, device_row, sum->dec);
        memcpy(uuids + (size_t)device_row * (HR_UUID_BYTES / 8), from->uuid, HR_UUID_BYTES);
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
        struct hr_usage sums[HR_DEVICES];
        memset(sums, 0, head->span * sizeof sums[0]);
        put_region(tables, row, region, head, device_rows);
        put_processes(tables, row, head, sums);
        put_devices(tables, row, head, sums);
    }
    tables->filled = after;
    return fits;
}

static void begin_set_read(struct reading *reading, hr_region *region)
{
    reading->region = region;
    uint32_t reads = atomic_fetch_add_explicit(&region->set_reads, 1, memory_order_relaxed);
    reading->thorough = reads % HR_THOROUGH_EVERY == 0;
    reading->far = reading->thorough
                       ? 0
                       : atomic_load_explicit(&region->far_devices, memory_order_relaxed);
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
    bool fits = true;
    int failed = 0;
    for (uint32_t row = 0; row < capacity->regions; row++) {
        hr_region *region = regions[row];
        int code = HR_ECLOSED;
        if (region != NULL) {
            begin_set_read(&reading, region);
            code = hr_run(region, snapshot_work, &reading);
        }
        if (code != HR_OK) {
            put_failed_region(&tables, row, code);
            failed++;
            continue;
        }
        atomic_store_explicit(&region->far_devices, reading.far, memory_order_relaxed);
        fits = put_all(&tables, row, region, reading.head, fits);
    }
    tables.filled.regions = capacity->regions;
    *filled = tables.filled;
    return fits ? failed : no_space(0);
}
