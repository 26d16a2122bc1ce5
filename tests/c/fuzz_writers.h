/*
 * The calls that write under the region's lock or judge by /proc: each is made as the
 * input says, and then what it has stored is compared with what it may.
 */
#ifndef FUZZ_WRITERS_H
#define FUZZ_WRITERS_H

#include "fuzz_changes.h"
#include "region.h"

/* ---- Steps ------------------------------------------------------------------------- */

/* Before the first step of an input; and after the last, when the handle is closed. */
void writers_begin(void);
void writers_end(void);

/* Whether `step` was one of theirs, and has been done. */
bool writers_step(uint8_t step, struct input *input);

/* hr_close(), which gives back what the handle still has. */
void writers_close(void);

/* Those of one kind each: fuzz_lock.c, fuzz_slots.c. */
bool lock_step(uint8_t step, struct input *input);
bool slot_step(uint8_t step, struct input *input);
/* By evidence: the first or the second of lock state and recovery, of reap and repair. */
void lock_step_by(bool is_first, struct input *input);
void slot_step_by(bool is_first, struct input *input);

/* ---- What has been done so far ------------------------------------------------------- */

struct writers {
    bool has_lock; /* by hr_lock() */
    bool is_attached;
    int other_fd;          /* of another writer of this library, which has at most one of */
    bool other_has_host;   /* the host lock, */
    uint64_t other_number; /* and the byte of this number, with which it signs */
    bool have_written;
    uint64_t charged[HR_DEVICES][3];
};

extern struct writers writers;

/* ---- What every call has to leave alone ---------------------------------------------- */

/* Any call that goes for the lock. */
#define LOCK_CODES HR_ETIMEOUT, HR_EBUSY, HR_ELOST, HR_EREADONLY, HR_ESTALE, HR_ECORRUPT, HR_ESYSTEM

void begin_call(void);
/* The two oldest layouts have no lock for us: true if the handle's is one of them, and a call that
 * needs it was refused and has stored nothing. */
bool require_refused(int code);

static inline bool is_own(int32_t pid)
{
    return pid == getpid();
}

/* Signed by a writer of this library that has ended. */
bool is_dead_number(uint64_t owner);
bool is_lock(const struct view *view, uint64_t owner, uint32_t value);
/* Whether a call that goes for the lock may have had it. */
bool was_to_be_had(void);

may_change_slot any_slot;
may_change_slot own_slot;

/* The lock is as it was, or has been taken from nobody alive and given back. */
void require_lock_given_back(void);
void require_count_in_range(void);
/* What a call may do to the slots of processes that live, or may live. */
enum leeway {
    LEEWAY_NONE,
    LEEWAY_COPIES,  /* empty a copy that its process has left for another slot */
    LEEWAY_NEWCOMER /* and take a slot, emptied or above proc_num, of one that cannot be seen */
};
/* Whoever lives, or may live, keeps its slot and is counted, but for that. */
void require_the_living_kept(enum leeway leeway);
/* All of these. */
void require_others_kept(enum leeway leeway);

#endif
