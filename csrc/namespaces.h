/*
 * Whose pids stand in the slots: those of this /proc's namespace, or of one below.
 * Internal to the core; mappers.h has the questions.
 */
#ifndef HR_NAMESPACES_H
#define HR_NAMESPACES_H

#include "mappers.h"

/* The pids that stand in slots, each of another process. */
struct hr_slot_pids {
    int32_t pids[HR_SLOTS];
    int32_t count;
};

int hr_read_slot_pids(const hr_region *region, struct hr_slot_pids *out);
bool hr_names_slot(const struct hr_slot_pids *slots, int32_t pid);

struct hr_namespace_view {
    const hr_region *region;
    const struct hr_mappers *mappers;
    bool own;   /* some slot's process is seen here under the pid in its slot */
    bool inner; /* some slot's process has that pid only in an inner namespace */
};

/* Fill in `own` and `inner`, by the mappers that are known. */
void hr_judge_slots(struct hr_namespace_view *view, const struct hr_slot_pids *slots);

#endif
