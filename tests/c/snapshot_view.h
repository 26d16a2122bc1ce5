/* What snapshots and sets hold, as region.h lays it out. */
#ifndef SNAPSHOT_VIEW_H
#define SNAPSHOT_VIEW_H

#include "region.h"

/* Of one region in what hr_read_set() wrote. */
static inline const struct hr_snapshot *set_snapshot(const void *set, uint32_t index)
{
    const struct hr_member *member = (const struct hr_member *)set + index;
    return (const struct hr_snapshot *)(const void *)((const char *)set + member->at);
}

/* Modulo 2^64, as libvgpu adds. */
static inline void add_usage(struct hr_usage *sums, const struct hr_usage *usage)
{
    for (size_t i = 0; i < sizeof *sums / sizeof(uint64_t); i++)
        ((uint64_t *)sums)[i] += ((const uint64_t *)usage)[i];
}

static inline const struct hr_error *set_failure(const void *set, uint32_t index)
{
    return (const struct hr_error *)(const void *)(set_snapshot(set, index) + 1);
}

#endif
