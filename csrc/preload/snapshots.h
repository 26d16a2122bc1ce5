/* A whole snapshot of a region, of whatever size it has. */
#ifndef HR_SNAPSHOTS_H
#define HR_SNAPSHOTS_H

#include <unistd.h>

#include "../region.h"

/* The caller frees it.  NULL: the region cannot be read, or there is no memory, as
 * `code` says. */
struct hr_snapshot *hr_new_snapshot(hr_region *region, int *code);

/* How many processes of the region use a row's device, this one included. */
static inline uint32_t hr_count_users(const struct hr_snapshot *snapshot, int row)
{
    uint32_t count = 1;
    for (uint32_t number = 0;
         (uint32_t)row < snapshot->span && number < (uint32_t)snapshot->proc_num; number++) {
        const struct hr_usage *usage = hr_snapshot_usage(snapshot, number, (uint32_t)row);
        if (hr_snapshot_process(snapshot, number)->pid != getpid() &&
            (usage->total > 0 || usage->sm > 0))
            count++;
    }
    return count;
}

#endif
