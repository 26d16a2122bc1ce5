#include <stdbool.h>
#include <string.h>

#include "region.h"

/*
 * A table is `step` cells a column; `to` is the cell of the next row in its first
 * column.  Columns are stored in the order of their enums.
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

/* The figures of struct hr_usage and hr_device are in the order of their columns. */
#define FIGURES(type, end) (offsetof(struct type, end) / sizeof(uint64_t))
_Static_assert(FIGURES(hr_usage, offset) == HR_USAGE_OFFSET - HR_USAGE_TOTAL &&
                   FIGURES(hr_usage, dec) == HR_USAGE_DEC - HR_USAGE_TOTAL &&
                   FIGURES(hr_device, sums) == HR_DEVICE_TOTAL - HR_DEVICE_LIMIT &&
                   FIGURES(hr_device, uuid) == HR_DEVICE_COLUMNS - HR_DEVICE_LIMIT,
               "their order");

#define EACH_SHOWN(head, device)                                                                   \
    for (uint32_t left = (head)->shown, device;                                                    \
         left != 0 && ((device) = (uint32_t)__builtin_ctz(left), true); left &= left - 1)

static const struct hr_device *devices_of(const struct hr_snapshot *head)
{
    return (const struct hr_device *)(head + 1);
}

static const struct hr_process *process_of(const struct hr_snapshot *head, size_t index)
{
    const size_t process_bytes = sizeof(struct hr_process) + head->span * sizeof(struct hr_usage);
    const unsigned char *first = (const unsigned char *)(devices_of(head) + head->span);
    return (const struct hr_process *)(const void *)(first + index * process_bytes);
}

static void put_region(struct table *table, const struct hr_member *member,
                       const struct hr_snapshot *head)
{
    const uint64_t row[HR_REGION_COLUMNS] = {
        widen(head->code),
        head->layout,
        head->taken_at_ns,
        head->settled,
        head->device_num,
        (uint32_t)head->proc_num,
        widen(head->priority),
        widen(head->utilization_switch),
        widen(head->recent_kernel),
        head->last_kernel_time,
        head->owner_pid,
        head->semaphore,
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
        memcpy(row + HR_DEVICE_LIMIT, &devices_of(head)[device],
               (HR_DEVICE_COLUMNS - HR_DEVICE_LIMIT) * sizeof *row);
        put_row(table, row, HR_DEVICE_COLUMNS);
    }
}

static void put_uuids(struct table *table, const struct hr_snapshot *head)
{
    EACH_SHOWN(head, device)
    {
        memcpy(table->to, devices_of(head)[device].uuid, HR_UUID_BYTES);
        table->to += HR_UUID_BYTES / sizeof *table->to;
    }
}

static void put_processes(struct table *table, const struct hr_member *member,
                          const struct hr_snapshot *head, uint32_t region)
{
    for (uint32_t i = 0; i < (uint32_t)head->proc_num; i++) {
        const struct hr_process *process = process_of(head, i);
        const uint64_t row[HR_PROCESS_COLUMNS] = {
            region,
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
    for (uint32_t i = 0; i < (uint32_t)head->proc_num; i++) {
        const struct hr_usage *usages = (const struct hr_usage *)(process_of(head, i) + 1);
        EACH_SHOWN(head, device)
        {
            uint64_t row[HR_USAGE_COLUMNS] = {member->first_process + i, device};
            memcpy(row + HR_USAGE_TOTAL, &usages[device], sizeof usages[device]);
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
