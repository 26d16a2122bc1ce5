/* The slot table, its processes, and our own place in it. */
#ifndef HR_SLOTS_H
#define HR_SLOTS_H

#include "lock.h"

/* ---- The table --------------------------------------------------------------------------- */

/*
 * The slot table: finding, naming, emptying and counting slots.  Internal to the
 * core; all that stores is called under the region's lock, but for what a process does
 * in its own slot.
 *
 * No slot is ever moved, in no layout: the version in a file is its creator's, and a
 * process of HAMi 2.8.1 or later, which remembers the address of its slot, may
 * use a file that says 1.1.
 */

/*
 * The pid of a slot without a process.  A pid of 0 among the slots in use hangs the
 * next newcomer of libvgpu up to 2.8.0; no process ever has this one (pid_max is 2^22 at
 * most), so that all generations take the slot for a dead process's.
 */
#define HR_NOBODY INT32_MAX

/* The file's own generation accounts without the lock, inside the slot's seqlock. */
bool hr_has_seqlock(const hr_region *region);

/* proc_num, of a file that is still the region's. */
int hr_checked_table(const hr_region *region, int32_t *count);

int32_t hr_slot_pid(const hr_region *region, int32_t index);
void hr_set_slot_pid(const hr_region *region, int32_t index, int32_t pid);

/*
 * proc_num from what was judged to what it shall be.  Never a plain store: when it refuses
 * an allocation, libvgpu removes slots without the lock, and lowers proc_num meanwhile.
 */
bool hr_swap_proc_num(const hr_region *region, int32_t judged, int32_t count);

/*
 * The index of the pid's slot below `count`, or -1.  A pid can stand twice: libvgpu copies
 * slots downwards, and the original is the highest.
 */
int32_t hr_find_slot(const hr_region *region, int32_t pid, int32_t count);
int hr_no_process(int32_t pid);

/* Left odd by a death, or by a move in the middle of an accounting, every reader of libvgpu would
 * spin on it for ever. */
void hr_make_seqlock_even(const hr_region *region, int32_t index);
/* All but the pid and the seqlock, which is made even. */
void hr_empty_slot(const hr_region *region, int32_t index);
/* Only what counts: a copy that a live process has left keeps its status, which old versions of
 * libvgpu read there. */
void hr_clear_usage(const hr_region *region, int32_t index);
/* Whether more than its status and host pid would be left out: it counts something, has figures of
 * the driver's, or an odd seqlock. */
bool hr_slot_is_used(const hr_region *region, int32_t index);
/* Emptied by us or by libvgpu, and free for a newcomer: no process, whatever its pid. */
bool hr_is_emptied(const hr_region *region, int32_t index);
uint64_t hr_slot_bytes(const hr_region *region, int32_t index);

/* Whether a slot with pid 0 counts something, or is being accounted in. */
bool hr_is_in_use(const hr_region *region, int32_t index);

/* A slot as it was at some time. */
struct hr_seen_slot {
    int32_t pid, host_pid, status;
    uint64_t seqlock, bytes, mark;
};
struct hr_seen_slot hr_look_at_slot(const hr_region *region, int32_t index);
bool hr_is_as_seen(const hr_region *region, const struct hr_seen_slot *before, int32_t index);

/* From the odd value that was seen to the next even one.  A swap: false if it has changed. */
bool hr_end_seqlock(const hr_region *region, int32_t index, uint64_t seen);

/* ---- Evidence ------------------------------------------------------------------------- */

struct hr_evidence {
    hr_region *region;
    uint64_t noted_ns;
    int64_t noted_ticks; /* since boot, as start times are */
    struct hr_lock_words words;
    int32_t slots; /* below proc_num */
    bool has_pidless;
    struct hr_seen_slot seen[HR_SLOTS];
    struct hr_search search; /* what to look for */
    struct hr_slot_pids wanted;
    struct hr_mappers mappers;
};

/* Where a call has its processes from: evidence, or /proc (NULL = "/proc"). */
struct hr_source {
    const char *proc;
    const hr_evidence *evidence;
};

/*
 * The processes that map the region, as the caller's part of `search` says: from evidence, or from
 * /proc, for which the region's part is filled in.  HR_OK or HR_ESYSTEM.
 */
int hr_find_mappers(hr_region *region, struct hr_search *search, struct hr_mappers *out);

/* Enter, search with HR_PROC_NS, leave. */
int hr_look_for_mappers(hr_region *region, const struct hr_source *source,
                        const struct hr_slot_pids *only, struct hr_mappers *out);

/* ---- Marks ------------------------------------------------------------------------------- */

/*
 * Marks of slots: the kernel's proof that a process of this library is dead.
 *
 * An attached process keeps a byte of the file locked, HR_PID_BYTE + its pid (lock.h), and its slot
 * has a mark, which differs each time a process attaches.  A slot is of a dead process if the byte
 * of its pid was free and the slot, under the lock, is as it was before that.  No /proc is needed,
 * and it holds from any pid namespace.  A second process with the same pid, of another namespace,
 * cannot attach.
 *
 * A mark is two words where no libvgpu keeps anything.  It holds only while a flag is set in the
 * slot's seqlock.  A process of libvgpu that takes the slot makes one of the two 0: up to 2.8.0 all
 * of the usage record, from 2.8.1 on the seqlock.
 *
 * No mark: a slot of libvgpu's or of an earlier build, a process that could not lock its byte, and
 * a file that may have another inode, as one on an overlay.  Those are judged by /proc.
 */

/* Under the lock, in a slot that is empty; 0: none. */
void hr_store_mark(const hr_region *region, int32_t index, int32_t pid, uint64_t mark);

/* ---- Processes at work ------------------------------------------------------------------- */

/*
 * What can be known of the slot table from outside its processes: which of them live, by
 * /proc, and which slots they write to, by a short watch.
 *
 * A process of HAMi 2.8.1 or later remembers the address of its slot.  When libvgpu
 * removes dead slots it moves live ones downwards, and such a process goes on
 * writing at or above proc_num, while its copy below is frozen.  A pid in the tail says
 * little: slots of earlier processes remain there, and a container that starts again gives
 * its processes the same pids, often with the same figures.  Host pids say nothing:
 * drivers answer with the container's own pids, two containers can swap theirs, and after a
 * reboot they repeat.  So where the pid lives only a slot that is seen moving is proof.
 */

struct hr_table_view {
    hr_region *region;
    struct hr_slot_pids names; /* the pids in the table */
    bool has_pidless; /* something counts in a slot with pid 0, which may be any process's */
    struct hr_mappers mappers;
    /* Before the processes were looked for; the seqlocks of slots with a pid when the watch began,
     * after that. */
    struct hr_seen_slot seen[HR_SLOTS];
};

/*
 * Scan /proc or take evidence, watch the table for 20 ms, and judge by `view`; if that returns
 * HR_NEEDS_LOCK, or there is no such function, take the lock and run the work, which judges anew.
 * While the lock is waited for the view grows old: it is made anew every quarter of a second, and
 * when the work returns HR_ETIMEOUT.
 */
#define HR_NEEDS_LOCK (HR_SLOTS + 1)
int hr_run_viewed(hr_region *region, const struct hr_source *source, struct hr_table_view *view,
                  hr_guarded_work *judge, hr_guarded_work *work, void *argument,
                  uint64_t timeout_ns);

/* What a slot is; all but HR_USE_AT_WORK is about those at or above proc_num, `count`. */
enum hr_slot_use {
    HR_USE_NONE,     /* no live process writes there: none has that pid, or it works elsewhere */
    HR_USE_BLANK,    /* its process lives, and has nothing there */
    HR_USE_AT_WORK,  /* its process lives and works there */
    HR_USE_UNDECIDED /* its process may live and may come back to it */
};
enum hr_slot_use hr_judge_use(const hr_region *region, const struct hr_table_view *view,
                              int32_t index, int32_t count);

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

/* ---- Deaths ------------------------------------------------------------------------------ */

/*
 * The proof of a death is gathered before the lock: the bytes of the pids, then a search of /proc,
 * which may take long.  A process that takes a dead one's pid and slot meanwhile changes the slot:
 * libvgpu makes all of it 0, this library stores another mark.  So under the lock only a slot that
 * is as it was before the search is emptied, and one that counts nothing stays as it is.  Not seen
 * is a newcomer of libvgpu's that has made the same figures, pids, status and seqlock again within
 * the 2 s of the search.
 */
struct hr_deaths {
    /* From the caller: */
    hr_region *region;
    struct hr_search search; /* proc, or evidence */
    bool only_odd;           /* ask only for the processes of slots whose seqlock is odd */

    int32_t slots; /* below proc_num, before the search */
    struct hr_mappers mappers;
    struct hr_slot_pids names; /* to be searched for */
    struct hr_seen_slot seen[HR_SLOTS];
    enum hr_liveness by_byte[HR_SLOTS];
    bool is_ended[HR_SLOTS]; /* its seqlock was made even while a live owner had the lock */
};

/* Outside the guard.  The mappers are the caller's to free. */
int hr_gather_deaths(struct hr_deaths *deaths, uint64_t deadline_ns);
/* Unknown if the slot is not as it was. */
enum hr_liveness hr_judge_slot(const struct hr_deaths *deaths, int32_t index);

/*
 * A seqlock that a killed process has left odd.  From HAMi-core of September 2026 on all processes
 * wait for an even one while they have the lock, so that its holder waits for ever and no one else
 * gets it.  The seqlock is made even before a dead owner's lock is given back.  Without the lock it
 * is made even only while the same live process has the lock.
 */

/* Under the lock. */
void hr_even_up(const struct hr_deaths *deaths);
/* Without the lock, outside the guard; gathers anew.  HR_OK also if nothing could be done. */
int hr_even_up_beside_owner(struct hr_deaths *deaths);

/* ---- Places for a newcomer --------------------------------------------------------- */

/* Whether a newcomer needs a view to take a slot: something may be at the end, or is to be used
 * again. */
bool hr_needs_view(const hr_region *region, int32_t count, int32_t pid);
/* An emptied slot below `count` that belongs to no process, else the first place from there on
 * where no live process may be writing; HR_SLOTS: there is none. */
int32_t hr_find_room(const hr_region *region, const struct hr_table_view *view, int32_t count,
                     int32_t pid);
/*
 * After a newcomer has taken the slot at `end` and those from `count` on count too: no process
 * shall count twice there, as far as it can be told which of its slots it uses.
 */
void hr_settle_stepped_over(const hr_region *region, const struct hr_table_view *view,
                            int32_t count, int32_t end);

/* ---- Our own slot ------------------------------------------------------------------------ */

/*
 * Being a process of the region: its slot, and our own books about it.
 */

/* What takes or regains a slot returns this if it needs a view and has done nothing. */
#define HR_NEEDS_VIEW 1

/* Run the work under the lock; again, with the view that it needs, in `*view`. */
int hr_run_with_view(hr_region *region, const struct hr_table_view **view, hr_guarded_work *work,
                     void *argument, uint64_t timeout_ns);

/* Whether our slot still is where we remember it. */
bool hr_remembers_slot(const hr_region *region);
/* Under the lock: find our slot anew, or take one, and write our books into it. */
int hr_regain_slot(hr_region *region, const struct hr_table_view *view);

/* For hr_close(): give this process's slot back.  HR_ETIMEOUT where the lock cannot be had: the
 * slot stays (detail.found = owner_pid, detail.wanted = the bytes that it counts). */
int hr_leave_region(hr_region *region, uint64_t deadline_ns);

#endif
