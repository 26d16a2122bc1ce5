/*
 * What can be known of the slot table from outside its processes: which of them live, by
 * /proc, and which slots they write to, by a short watch.  Internal to the core.
 *
 * A process of HAMi 2.8.1 or later remembers the address of its slot.  When libvgpu
 * removes dead slots it moves live ones downwards, and such a process goes on
 * writing at or above proc_num, while its copy below is frozen.  A pid in the tail says
 * little: slots of earlier processes remain there, and a container that starts again gives
 * its processes the same pids, often with the same figures.  Host pids say nothing:
 * drivers answer with the container's own pids, two containers can swap theirs, and after a
 * reboot they repeat.  So where the pid lives only a slot that is seen moving is proof.
 */
#ifndef HR_TABLE_VIEW_H
#define HR_TABLE_VIEW_H

#include "lock_word.h"
#include "mappers.h"
#include "slot_table.h"

struct hr_table_view {
    struct hr_mappers mappers;
    struct {
        int32_t pid;      /* before the processes were looked for */
        bool is_sought;   /* has pid 0, and is one of those that the search is about */
        uint64_t seqlock; /* when the watch began, after that; of one that is sought, before */
        uint64_t bytes;   /* of one that is sought, before */
    } seen[HR_SLOTS];
};

/*
 * Scan /proc, watch the table for 20 ms, take the lock and run the work, which judges by `view`
 * under the lock.  While the lock is waited for the view grows old: it is made anew every quarter
 * of a second, and when the work returns HR_ETIMEOUT.
 */
int hr_run_viewed(hr_region *region, const char *proc, struct hr_table_view *view,
                  hr_guarded_work *work, void *argument, uint64_t timeout_ns);
/* The same view for work that only reads and takes no lock. */
int hr_run_viewed_unlocked(hr_region *region, const char *proc, struct hr_table_view *view,
                           hr_guarded_work *work, void *argument);

/* Whether a slot with pid 0 cannot be judged because the search for its owner has not ended, or
 * was begun before it was there. */
bool hr_is_sought_yet(const hr_region *region, const struct hr_table_view *view, int32_t index);

/* What a slot at or above proc_num, `count`, is. */
enum hr_slot_use {
    HR_USE_NONE,     /* no live process has that pid, and nobody writes there */
    HR_USE_STALE,    /* its process lives and works in another slot */
    HR_USE_BLANK,    /* its process lives, and has nothing there */
    HR_USE_AT_WORK,  /* its process lives and works there */
    HR_USE_UNDECIDED /* its process may live and may come back to it */
};
enum hr_slot_use hr_judge_use(const hr_region *region, const struct hr_table_view *view,
                              int32_t index, int32_t count);

enum hr_motion {
    HR_STANDS_STILL,
    HR_MOVES,         /* the process that it names has accounted there */
    HR_MOTION_UNCLEAR /* taken, copied or mended meanwhile: no evidence */
};
enum hr_motion hr_motion_of(const hr_region *region, const struct hr_table_view *view,
                            int32_t index);

/* Whether a process of libvgpu may live that has taken its name out of its slot. */
bool hr_may_be_ending(const hr_region *region, const struct hr_mappers *mappers);

/* Whether exactly one process lives that has this pid in its own namespace. */
bool hr_lives_once(const struct hr_table_view *view, int32_t pid);

/*
 * Of the slots below `end` that name the live process of the slot `at_work`, which it works in:
 * clear those that stand still and count something.  Returns how many there were.
 */
int32_t hr_clear_frozen_copies(const hr_region *region, const struct hr_table_view *view,
                               int32_t at_work, int32_t end, bool dry_run);

/* ---- Places for a newcomer --------------------------------------------------------- */

/* Whether a newcomer needs a view to take a slot: something may be at the end, or is to be used
 * again. */
bool hr_needs_view(const hr_region *region, int32_t count, int32_t pid);
/* An emptied slot below `count` that is nobody's any more, or -1. */
int32_t hr_find_emptied(const hr_region *region, const struct hr_table_view *view, int32_t count,
                        int32_t pid);
/* The first place from `count` on where no live process may be writing, or -1. */
int32_t hr_find_place(const hr_region *region, const struct hr_table_view *view, int32_t count,
                      int32_t pid);
/*
 * After a newcomer has taken the slot at `end` and those from `count` on count too: no process
 * shall count twice there, as far as it can be told which of its slots it uses.
 */
void hr_settle_stepped_over(const hr_region *region, const struct hr_table_view *view,
                            int32_t count, int32_t end);

#endif
