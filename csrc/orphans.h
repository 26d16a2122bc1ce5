/*
 * Orphaned slots: live processes that write at or above proc_num.  Internal to the core.
 */
#ifndef HR_ORPHANS_H
#define HR_ORPHANS_H

#include "lock_word.h"
#include "mappers.h"
#include "slot_table.h"

/*
 * Whether a live process may be writing at proc_num, where a newcomer would go, is
 * judged over a short while: hr_watch_seqlocks() begins before the lock,
 * hr_step_over_orphans() ends under it.
 */
struct hr_seqlock_watch {
    uint64_t seqlocks[HR_SLOTS];
};
int hr_watch_seqlocks(hr_region *region, struct hr_seqlock_watch *watch);
int hr_step_over_orphans(hr_region *region, const struct hr_mappers *mappers,
                         const struct hr_seqlock_watch *watch);

#endif
