#include <string.h>
#include <time.h>

#include "internal.h"

/* In place of the snapshot of a region that could not be read. */
struct failure {
    struct hr_snapshot head;
    struct hr_error detail;
};

static int read_one(struct hr_reading *reading)
{
    hr_region *region = reading->region;
    if (region == NULL)
        return hr_fail_code(HR_ECLOSED);
    /* Until hr_leave(), hr_close() waits; so the mapping may be touched. */
    int code = hr_enter(region);
    if (code != HR_OK)
        return code;
    return hr_leave_after(region, hr_guard_run_begun(region->base, region->mapped_bytes,
                                                     hr_read_consistently, reading));
}

/* HR_ENOSPACE, or the code that it records. */
static int put_failure(struct hr_reading *reading, int code)
{
    struct failure *failure = (struct failure *)(void *)reading->head;
    reading->wanted = sizeof *failure;
    if (reading->wanted > reading->bytes)
        return HR_ENOSPACE;
    memset(failure, 0, sizeof *failure);
    failure->head.code = code;
    hr_last_error(&failure->detail);
    return code;
}

/* Takes the processes out of a snapshot that has been read. */
static void drop_processes(struct hr_reading *reading)
{
    reading->head->process_count = 0;
    reading->head->truncated = 1;
    reading->wanted = sizeof *reading->head + reading->head->span * sizeof(struct hr_device);
}

int hr_read_set(hr_region *const *regions, uint32_t count, void *buffer, size_t bytes,
                uint32_t max_usages, struct hr_set_size *size, struct hr_error *error)
{
    struct hr_member *members = buffer;
    struct hr_set_size sum = {.bytes = count * sizeof *members};
    struct hr_reading reading;
    /* One deadline for all: regions whose writers do not leave cannot add up. */
    reading.deadline_ns = 0;
    reading.taken_at_ns = hr_clock_ns(CLOCK_REALTIME);
    bool fits = true; /* what does not is only measured */
    int failed = 0;
    const bool unblocked = hr_guard_begin();
    for (uint32_t i = 0; i < count; i++) {
        fits = fits && sum.bytes <= bytes;
        reading.region = regions[i];
        reading.head = fits ? (void *)((unsigned char *)buffer + sum.bytes) : NULL;
        reading.bytes = fits ? bytes - sum.bytes : 0;
        int code = read_one(&reading);
        if (code != HR_OK && code != HR_ENOSPACE) {
            code = put_failure(&reading, code);
            failed++;
        }
        fits = fits && code != HR_ENOSPACE;
        if (fits) {
            const struct hr_snapshot *head = reading.head;
            const uint32_t devices = (uint32_t)__builtin_popcount(head->shown);
            if ((uint32_t)head->process_count * devices > max_usages)
                drop_processes(&reading);
            members[i] =
                (struct hr_member){sum.bytes, sum.devices, sum.processes, sum.usages, devices};
            sum.devices += devices;
            sum.processes += (uint32_t)head->process_count;
            sum.usages += (uint32_t)head->process_count * devices;
        }
        sum.bytes += reading.wanted;
    }
    hr_guard_end(unblocked);
    *size = sum;
    return hr_report(error, fits && sum.bytes <= bytes ? failed : hr_fail_code(HR_ENOSPACE));
}

/* ---- Columns ----------------------------------------------------------------- */

/*
 * A table is `step` cells a column; `to` is the cell of the next row in its first
 * column.
 */
struct table {
    uint64_t *to;
    size_t step;
};

static inline void put_row(struct table *table, const uint64_t *row, size_t columns)
{
    uint64_t *cell = table->to++;
    for (size_t i = 0; i < columns; i++, cell += table->step)
        *cell = row[i];
}

static inline uint64_t widen(int32_t value)
{
    return (uint64_t)(int64_t)value;
}

/* What is copied as it is: these structs have their figures in the order of the columns. */
#define LIMITS_AND_SUMS offsetof(struct hr_device, uuid)
_Static_assert(LIMITS_AND_SUMS == (HR_DEVICE_COLUMNS - 2) * sizeof(uint64_t) &&
                   sizeof(struct hr_usage) == (HR_USAGE_COLUMNS - 2) * sizeof(uint64_t),
               "their number");

#define EACH_SHOWN(head, device)                                                                   \
    for (uint32_t left = (head)->shown, device;                                                    \
         left != 0 && ((device) = (uint32_t)__builtin_ctz(left), true); left &= left - 1)

static void put_region(struct table *table, const struct hr_member *member,
                       const struct hr_snapshot *head)
{
    const uint64_t row[HR_REGION_COLUMNS] = {
        widen(head->code),
        head->layout,
        head->taken_at_ns,
        head->settled,
        head->device_num,
        (uint32_t)head->process_count,
        head->slot_count,
        head->truncated,
        widen(head->priority),
        widen(head->utilization_switch),
        widen(head->recent_kernel),
        head->last_kernel_time,
        head->owner_pid,
        head->semaphore,
        (uint64_t)head->refusals,
        member->first_device,
        member->devices,
        member->first_process,
    };
    put_row(table, row, HR_REGION_COLUMNS);
}

static void put_devices(struct table *table, const struct hr_snapshot *head, uint32_t region)
{
    EACH_SHOWN(head, device)
    {
        uint64_t row[HR_DEVICE_COLUMNS] = {region, device};
        memcpy(row + 2, hr_snapshot_device(head, device), LIMITS_AND_SUMS);
        put_row(table, row, HR_DEVICE_COLUMNS);
    }
}

static void put_uuids(struct table *table, const struct hr_snapshot *head)
{
    EACH_SHOWN(head, device)
    {
        memcpy(table->to, hr_snapshot_device(head, device)->uuid, HR_UUID_BYTES);
        table->to += HR_UUID_BYTES / sizeof *table->to;
    }
}

static void put_processes(struct table *table, const struct hr_member *member,
                          const struct hr_snapshot *head, uint32_t region)
{
    for (uint32_t i = 0; i < (uint32_t)head->process_count; i++) {
        const struct hr_process *process = hr_snapshot_process(head, i);
        const uint64_t row[HR_PROCESS_COLUMNS] = {
            region,
            process->slot,
            widen(process->pid),
            widen(process->host_pid),
            widen(process->status),
            process->settled,
            member->first_usage + i * member->devices,
        };
        put_row(table, row, HR_PROCESS_COLUMNS);
    }
}

static void put_usages(struct table *table, const struct hr_member *member,
                       const struct hr_snapshot *head)
{
    for (uint32_t i = 0; i < (uint32_t)head->process_count; i++) {
        EACH_SHOWN(head, device)
        {
            uint64_t row[HR_USAGE_COLUMNS] = {member->first_process + i, device};
            const struct hr_usage *usage = hr_snapshot_usage(head, i, device);
            memcpy(row + 2, usage, sizeof *usage);
            put_row(table, row, HR_USAGE_COLUMNS);
        }
    }
}

void hr_columns(const void *set, uint32_t count, uint32_t which, void *cells, size_t step)
{
    struct table table = {cells, step};
    const struct hr_member *members = set;
    for (uint32_t i = 0; i < count; i++) {
        const struct hr_member *member = &members[i];
        const struct hr_snapshot *head =
            (const struct hr_snapshot *)(const void *)((const unsigned char *)set + member->at);
        switch ((enum hr_table)which) {
        case HR_TABLE_REGIONS:
            put_region(&table, member, head);
            break;
        case HR_TABLE_DEVICES:
            put_devices(&table, head, i);
            break;
        case HR_TABLE_UUIDS:
            put_uuids(&table, head);
            break;
        case HR_TABLE_PROCESSES:
            put_processes(&table, member, head, i);
            break;
        case HR_TABLE_USAGES:
            put_usages(&table, member, head);
            break;
        }
    }
}
