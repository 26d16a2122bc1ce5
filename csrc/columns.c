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

static inline uint64_t *put(uint64_t *cell, size_t step, uint64_t value)
{
    *cell = value;
    return cell + step;
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

static inline void put_figures(uint64_t *cell, size_t step, const uint64_t *figures, size_t count)
{
    for (size_t i = 0; i < count; i++)
        cell = put(cell, step, figures[i]);
}

/* The devices of a snapshot that are shown, by their index. */
struct shown {
    uint32_t count;
    uint8_t devices[HR_DEVICES];
};

static struct shown shown_of(const struct hr_snapshot *head)
{
    struct shown shown = {0};
    for (uint32_t left = head->shown; left != 0; left &= left - 1)
        shown.devices[shown.count++] = (uint8_t)__builtin_ctz(left);
    return shown;
}

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
    const size_t step = table->step;
    uint64_t *to = table->to++;
    to = put(to, step, widen(head->code));
    to = put(to, step, head->layout);
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
    to = put(to, step, member->first_device);
    to = put(to, step, member->devices);
    put(to, step, member->first_process);
}

static void put_devices(struct table *table, const struct hr_snapshot *head, uint32_t region)
{
    const size_t step = table->step;
    const struct shown shown = shown_of(head);
    for (uint32_t i = 0; i < shown.count; i++) {
        const struct hr_device *device = &devices_of(head)[shown.devices[i]];
        uint64_t *to = table->to++;
        to = put(to, step, region);
        to = put(to, step, shown.devices[i]);
        put_figures(to, step, &device->limit, HR_DEVICE_COLUMNS - HR_DEVICE_LIMIT);
    }
}

static void put_uuids(struct table *table, const struct hr_snapshot *head)
{
    const struct shown shown = shown_of(head);
    for (uint32_t i = 0; i < shown.count; i++) {
        memcpy(table->to, devices_of(head)[shown.devices[i]].uuid, HR_UUID_BYTES);
        table->to += HR_UUID_BYTES / sizeof *table->to;
    }
}

static void put_processes(struct table *table, const struct hr_member *member,
                          const struct hr_snapshot *head, uint32_t region)
{
    const size_t step = table->step;
    uint32_t usage = member->first_usage;
    for (size_t i = 0; i < (size_t)head->proc_num; i++) {
        const struct hr_process *process = process_of(head, i);
        uint64_t *to = table->to++;
        to = put(to, step, region);
        to = put(to, step, widen(process->pid));
        to = put(to, step, widen(process->host_pid));
        to = put(to, step, widen(process->status));
        to = put(to, step, process->settled);
        put(to, step, usage);
        usage += member->devices;
    }
}

static void put_usages(struct table *table, const struct hr_member *member,
                       const struct hr_snapshot *head)
{
    const size_t step = table->step;
    const struct shown shown = shown_of(head);
    for (uint32_t i = 0; i < (uint32_t)head->proc_num; i++) {
        const struct hr_usage *usages = (const struct hr_usage *)(process_of(head, i) + 1);
        for (uint32_t j = 0; j < shown.count; j++) {
            uint64_t *to = table->to++;
            to = put(to, step, member->first_process + i);
            to = put(to, step, shown.devices[j]);
            put_figures(to, step, &usages[shown.devices[j]].total,
                        HR_USAGE_COLUMNS - HR_USAGE_TOTAL);
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
