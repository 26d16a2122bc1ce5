/*
 * What a call may have stored.  Before a call the shadow of the file is made equal to the
 * file; what other processes store meanwhile goes into both.  So afterwards the shadow is
 * the region as it would be without the call, and the file is the region as it is.
 */
#ifndef FUZZ_CHANGES_H
#define FUZZ_CHANGES_H

#include "fuzz_run.h"

enum { MEANWHILE_MAX = 8 };

/* Which fields a call may change; slots besides. */
enum may_change { MAY_LOCK = 1, MAY_POSTINIT = 2, MAY_COUNT = 4 };

/* Whether the call may change this slot, at this offset from its start. */
typedef bool may_change_slot(uint32_t slot, uint32_t offset);

/* For a new input: nobody else does anything. */
void changes_reset(void);
/* Another process stores this when the core has napped so often; no bytes: a signal comes. */
void changes_plan(const struct poke *poke, uint32_t naps);

void changes_begin(void);
/* Whether another process has stored something since. */
bool changes_are_disturbed(void);
/* Whether another process has moved this slot's seqlock since. */
bool changes_moved(uint32_t slot);

/* Nothing but this has changed, if the file is whole.  Returns whether it is. */
bool changes_require(uint32_t may, may_change_slot *slot);
/* Nothing has. */
bool changes_require_none(void);

/* The region without the call, and with it. */
struct view was(void);
struct view now(void);

int32_t count_of(const struct view *view);
int32_t pid_at(const struct view *view, uint32_t slot);
uint64_t owner_of(const struct view *view);
uint64_t sem_of(const struct view *view);
/* The total of one device, and of all of them, saturating; only pages that are tracked have any. */
uint64_t total_at(const struct view *view, uint32_t slot, uint32_t device);
uint64_t bytes_at(const struct view *view, uint32_t slot);
/* 0 where no process of this layout remembers its slot. */
uint64_t seqlock_at(const struct view *view, uint32_t slot);
bool is_slot_used(uint32_t slot);
bool is_slot_changed(uint32_t slot);

#endif
