/* Where the parts of a snapshot lie, as region.h lays it out. */
#ifndef SNAPSHOT_VIEW_H
#define SNAPSHOT_VIEW_H

#include "region.h"

static inline size_t snapshot_process_bytes(const struct hr_snapshot *snapshot)
{
    return sizeof(struct hr_process) + snapshot->span * sizeof(struct hr_usage);
}

static inline size_t snapshot_bytes(const struct hr_snapshot *snapshot)
{
    return sizeof *snapshot + snapshot->span * sizeof(struct hr_device) +
           (size_t)snapshot->proc_num * snapshot_process_bytes(snapshot);
}

static inline const struct hr_device *snapshot_device(const struct hr_snapshot *snapshot,
                                                      uint32_t device)
{
    return (const struct hr_device *)(const void *)(snapshot + 1) + device;
}

static inline const struct hr_process *snapshot_process(const struct hr_snapshot *snapshot,
                                                        uint32_t index)
{
    const char *first = (const char *)snapshot_device(snapshot, snapshot->span);
    return (const struct hr_process *)(const void *)(first +
                                                     index * snapshot_process_bytes(snapshot));
}

static inline const struct hr_usage *snapshot_usage(const struct hr_snapshot *snapshot,
                                                    uint32_t index, uint32_t device)
{
    return (const struct hr_usage *)(const void *)(snapshot_process(snapshot, index) + 1) + device;
}

/* The same in what hr_read_set() wrote. */
static inline const struct hr_snapshot *set_snapshot(const void *set, uint32_t index)
{
    const struct hr_member *member = (const struct hr_member *)set + index;
    return (const struct hr_snapshot *)(const void *)((const char *)set + member->at);
}

static inline const struct hr_detail *set_failure(const void *set, uint32_t index)
{
    return (const struct hr_detail *)(const void *)(set_snapshot(set, index) + 1);
}

#endif
