#include <string.h>
#include <time.h>

#include "reading.h"

struct table {
    uint64_t *cells;
    uint32_t capacity;
};

struct tables {
    struct table regions, devices, processes, usages;
    struct hr_rows filled;
    bool fits; /* so far; rows that do not fit are only counted */
};

/*
 * Figures go straight to where they stay.  Only what the head and a process are in
 * other widths than a cell is read into the scratch first.
 */
struct scratch {
    struct hr_snapshot head;
    struct hr_process processes[HR_SLOTS];
};
_Static_assert(sizeof(struct scratch) <= HR_SNAPSHOT_MAX_BYTES, "what callers have room for");

_Static_assert(HR_USAGE_OFFSET == HR_USAGE_TOTAL + 4 && HR_USAGE_DEC == HR_USAGE_TOTAL + 8 &&
                   HR_USAGE_DEC + 1 == HR_USAGE_COLUMNS && HR_DEVICE_TOTAL == HR_DEVICE_LIMIT + 2 &&
                   HR_DEVICE_OFFSET == HR_DEVICE_TOTAL + 4 &&
                   HR_DEVICE_DEC == HR_DEVICE_TOTAL + 8 && HR_DEVICE_UUID == HR_DEVICE_DEC + 1,
               "the columns have the order of struct hr_usage and hr_device");

struct set_reading {
    struct hr_reading reading; /* first, so that place_columns() finds the rest */
    struct scratch *scratch;
    struct tables tables;
};

static uint64_t *cell_at(const struct table *table, uint32_t column, uint32_t row)
{
    return &table->cells[(size_t)column * table->capacity + row];
}

static uint64_t widen(int32_t value)
{
    return (uint64_t)(int64_t)value;
}

static int place_columns(struct hr_reading *reading)
{
    struct set_reading *set = (struct set_reading *)(void *)reading;
    struct tables *tables = &set->tables;
    struct scratch *scratch = set->scratch;
    const struct hr_snapshot *head = reading->head;

    uint32_t count = 0;
    for (uint32_t shown = head->shown; shown != 0; shown &= shown - 1)
        reading->listed[count++] = (uint8_t)__builtin_ctz(shown);
    reading->device_count = count;
    const uint32_t processes = (uint32_t)head->proc_num;
    const struct hr_rows *filled = &tables->filled;
    if (filled->devices + count > tables->devices.capacity ||
        filled->processes + processes > tables->processes.capacity ||
        filled->usages + processes * count > tables->usages.capacity)
        tables->fits = false;
    if (!tables->fits)
        return hr_no_space(0);

    reading->limits = cell_at(&tables->devices, HR_DEVICE_LIMIT, filled->devices);
    reading->limit_step = tables->devices.capacity;
    reading->device_limits = 1;
    reading->uuids = (unsigned char *)(cell_at(&tables->devices, HR_DEVICE_UUID, 0) +
                                       (size_t)filled->devices * (HR_UUID_BYTES / 8));
    reading->uuid_step = HR_UUID_BYTES;
    reading->processes = (unsigned char *)scratch->processes;
    reading->process_step = sizeof(struct hr_process);
    reading->figures = cell_at(&tables->usages, HR_USAGE_TOTAL, filled->usages);
    reading->figure_step = tables->usages.capacity;
    reading->device_figures = 1;
    reading->process_figures = count;
    return HR_OK;
}

/* Store, and go to the next column of the row. */
static inline uint64_t *put(uint64_t *cell, size_t step, uint64_t value)
{
    *cell = value;
    return cell + step;
}

static void put_failed_region(const struct tables *tables, uint32_t row, int code)
{
    for (uint32_t column = 0; column < HR_REGION_COLUMNS; column++)
        *cell_at(&tables->regions, column, row) = 0;
    *cell_at(&tables->regions, HR_REGION_CODE, row) = widen(code);
    *cell_at(&tables->regions, HR_REGION_FIRST_DEVICE, row) = tables->filled.devices;
    *cell_at(&tables->regions, HR_REGION_FIRST_PROCESS, row) = tables->filled.processes;
}

static void put_region(const struct set_reading *set, uint32_t row)
{
    const struct hr_snapshot *head = set->reading.head;
    const size_t step = set->tables.regions.capacity;
    uint64_t *to = set->tables.regions.cells + row; /* columns in the order of their enum */
    to = put(to, step, HR_OK);
    to = put(to, step, set->reading.region->layout->id);
    to = put(to, step, head->taken_at_ns);
    to = put(to, step, head->settled);
    to = put(to, step, head->device_num);
    to = put(to, step, (uint32_t)head->proc_num);
    to = put(to, step, widen(head->priority));
    to = put(to, step, widen(head->utilization_switch));
    to = put(to, step, widen(head->recent_kernel));
    to = put(to, step, head->last_kernel_time);
    to = put(to, step, head->owner_pid);
    to = put(to, step, head->semaphore);
    to = put(to, step, set->tables.filled.devices);
    to = put(to, step, set->reading.device_count);
    put(to, step, set->tables.filled.processes);
}

/* The rest of the device table is there already. */
static void put_devices(const struct set_reading *set, uint32_t row)
{
    const size_t step = set->tables.devices.capacity;
    uint64_t *to = set->tables.devices.cells + set->tables.filled.devices;
    for (uint32_t i = 0; i < set->reading.device_count; i++)
        put(put(to + i, step, row), step, set->reading.listed[i]);
}

/* The processes, and of their usages all but the figures, which are there already. */
static void put_processes(const struct set_reading *set, uint32_t row)
{
    const struct tables *tables = &set->tables;
    const size_t step = tables->processes.capacity, usage_step = tables->usages.capacity;
    const uint32_t count = (uint32_t)set->reading.head->proc_num;
    const uint32_t devices = set->reading.device_count;
    uint32_t process_row = tables->filled.processes, usage_row = tables->filled.usages;
    for (uint32_t i = 0; i < count; i++, process_row++) {
        const struct hr_process *from = &set->scratch->processes[i];
        uint64_t *to = tables->processes.cells + process_row;
        to = put(to, step, row);
        to = put(to, step, widen(from->pid));
        to = put(to, step, widen(from->host_pid));
        to = put(to, step, widen(from->status));
        to = put(to, step, from->settled);
        put(to, step, usage_row);
        for (uint32_t device = 0; device < devices; device++, usage_row++)
            put(put(tables->usages.cells + usage_row, usage_step, process_row), usage_step,
                set->reading.listed[device]);
    }
}

static void count_rows(struct set_reading *set)
{
    const uint32_t processes = (uint32_t)set->reading.head->proc_num;
    set->tables.filled.devices += set->reading.device_count;
    set->tables.filled.processes += processes;
    set->tables.filled.usages += processes * set->reading.device_count;
}

/*
 * The regions lie apart from each other, so a read of many is one wait for memory
 * after another unless the next region is on its way while this one is read.
 * Prefetching never faults, neither behind a truncation nor after an unmapping.
 */
static void prefetch_region(const hr_region *region)
{
    if (region == NULL || region->base == NULL)
        return;
    const struct hr_layout *layout = region->layout;
    const unsigned char *base = region->base;
    const uint32_t slots = atomic_load_explicit(&region->likely_slots, memory_order_relaxed);
    __builtin_prefetch(base);
    __builtin_prefetch(base + layout->uuids + 64);
    __builtin_prefetch(base + layout->uuids + 128);
    __builtin_prefetch(base + layout->limit);
    __builtin_prefetch(base + layout->sm_limit);
    __builtin_prefetch(base + layout->proc_num);
    const unsigned char *slot = hr_slot(region, 0);
    for (uint32_t i = 0; i < slots; i++, slot += layout->slot_stride) {
        __builtin_prefetch(slot);
        __builtin_prefetch(slot + 64);
        __builtin_prefetch(slot + layout->slot_monitorused);
        __builtin_prefetch(slot + layout->slot_status);
        if (layout->slot_util != HR_ABSENT)
            __builtin_prefetch(slot + layout->slot_util);
    }
}

static void remember(const struct hr_reading *reading)
{
    /* Enough for nearly all; more would push out what is being read. */
    const uint32_t most = 8;
    uint32_t slots = (uint32_t)reading->head->proc_num, span = reading->head->span;
    hr_region *region = reading->region;
    atomic_store_explicit(&region->far_devices, reading->far, memory_order_relaxed);
    atomic_store_explicit(&region->likely_slots, slots < most ? slots : most, memory_order_relaxed);
    atomic_store_explicit(&region->likely_devices, span < most ? span : most, memory_order_relaxed);
}

/*
 * As hr_run(), but without counting the call: an atomic addition waits until all
 * the cells stored for the region before have left the processor.  That no
 * handle is closed meanwhile is the caller's part.
 */
static int read_one_of_set(struct hr_reading *reading, hr_region *region)
{
    if ((atomic_load_explicit(&region->users, memory_order_acquire) & HR_CLOSING) != 0)
        return hr_fail_code(HR_ECLOSED);
    if (region->fork_generation != hr_fork_generation)
        return hr_fail_code(HR_EFORKED);
    reading->region = region;
    uint32_t reads = atomic_load_explicit(&region->set_reads, memory_order_relaxed);
    atomic_store_explicit(&region->set_reads, reads + 1, memory_order_relaxed);
    reading->thorough = reads % HR_THOROUGH_EVERY == 0;
    reading->far =
        reading->thorough ? 0 : atomic_load_explicit(&region->far_devices, memory_order_relaxed);
    int code =
        hr_guard_run_begun(region->base, region->mapped_bytes, hr_read_consistently, reading);
    return hr_explain_fault(region, code);
}

int hr_read_set(hr_region *const *regions, const struct hr_rows *capacity, uint64_t *arena,
                void *scratch, struct hr_rows *filled)
{
    struct set_reading set;
    set.scratch = scratch;
    set.tables = (struct tables){
        .regions = {arena, capacity->regions},
        .devices = {NULL, capacity->devices},
        .processes = {NULL, capacity->processes},
        .usages = {NULL, capacity->usages},
        .fits = true,
    };
    struct tables *tables = &set.tables;
    tables->devices.cells = cell_at(&tables->regions, HR_REGION_COLUMNS, 0);
    tables->processes.cells = cell_at(&tables->devices, HR_DEVICE_COLUMNS, 0);
    tables->usages.cells = cell_at(&tables->processes, HR_PROCESS_COLUMNS, 0);

    set.reading.head = &set.scratch->head;
    set.reading.place = place_columns;
    /* One deadline for all: regions whose writers do not leave cannot add up. */
    set.reading.deadline_ns = 0;
    set.reading.taken_at_ns = hr_clock_ns(CLOCK_REALTIME);
    int failed = 0;
    bool unblocked = hr_guard_begin();
    for (uint32_t row = 0; row < capacity->regions; row++) {
        hr_region *region = regions[row];
        if (row + 1 < capacity->regions)
            prefetch_region(regions[row + 1]);
        int code = region == NULL ? HR_ECLOSED : read_one_of_set(&set.reading, region);
        if (code == HR_OK) {
            put_region(&set, row);
            put_devices(&set, row);
            put_processes(&set, row);
        } else if (code != HR_ENOSPACE) {
            put_failed_region(tables, row, code);
            failed++;
            continue;
        }
        remember(&set.reading);
        count_rows(&set);
    }
    hr_guard_end(unblocked);
    tables->filled.regions = capacity->regions;
    *filled = tables->filled;
    return tables->fits ? failed : hr_no_space(0);
}
