/*
 * A search of /proc that goes on where the call before was cut short.  Internal to the core.
 *
 * A slot with pid 0 may be any process's that is about to end, so the maps of all processes of the
 * node have to be read, and a call has a budget for that.  A round is as many calls as it takes.
 * It begins with the slots as they stand then.  Whoever may still write to one of them had the file
 * mapped by that time and keeps it mapped until it ends: so a process that does not map it at any
 * later moment is ruled out for the whole round, under its pid and its start time.  Slots that have
 * changed since, or have come, wait for the next round.  So does one that a call has found changed,
 * though it stands again as it did: only what comes back between two calls is not noticed.
 *
 * Rounds are kept for the process, by file: a node's agent opens a region anew for each repair.  A
 * file is its device, its inode number and the time of its birth.
 */
#ifndef HR_SEARCH_ROUND_H
#define HR_SEARCH_ROUND_H

#include "process_files.h"
#include "slot_table.h"

/* A slot with pid 0, as it stood before /proc was searched. */
struct hr_nameless {
    int32_t index;
    uint64_t seqlock, bytes;
};

struct hr_nameless_slots {
    int32_t count;
    struct hr_nameless list[HR_SLOTS];
};

/* Whether a slot with pid 0 counts something, or is being accounted in. */
bool hr_is_in_use(const hr_region *region, int32_t index);
void hr_note_nameless(const hr_region *region, int32_t index, struct hr_nameless_slots *slots);

struct hr_round;

/*
 * The round of this file that was kept, or a new one with the slots that stand in the table: all
 * that are in use or below proc_num, also those that this call is not about, for calls of other
 * kinds share the round.  NULL without memory for it.  Those of `asked` that are not the round's,
 * as they were, are taken out of it; the two may be one.
 */
struct hr_round *hr_take_round(const hr_region *region, const char *proc,
                               const struct hr_nameless_slots *standing,
                               struct hr_nameless_slots *asked);
/* Keep it for the next call, where this one has not come to its end; else it is over. */
void hr_end_round(struct hr_round *round, bool goes_on);

/* By their pids in `proc`, a descriptor of that directory. */
bool hr_is_ruled_out(const struct hr_round *round, int proc, uint32_t pid);
/* Its maps took all that was left of a call's budget: it comes last. */
bool hr_comes_last(const struct hr_round *round, uint32_t pid);
/* What a look at its maps has found; `start`, of hr_read_start_time(), was read before it. */
void hr_note_seen(struct hr_round *round, uint32_t pid, uint64_t start, enum hr_seen seen);

#endif
