/*
 * Evidence, and what it can prove: its processes as they were asked, and a region that is as it was
 * noted.
 */
#ifndef FUZZ_EVIDENCE_H
#define FUZZ_EVIDENCE_H

#include "fuzz_writers.h"
#include "lock.h"
#include "slots.h"

bool evidence_step(uint8_t step, struct input *input);

/* NULL if there is none. */
hr_evidence *evidence_noted(void);
/* Before its handle is freed, and at the end. */
void evidence_drop(void);

/* Another process, or another call, changes the region, or the machine. */
void evidence_region_changes(void);
void evidence_machine_changes(void);

/* Whether it says anything of who is dead; `of_all`: of processes without a pid, too. */
bool evidence_may_prove(bool of_all);
/* It is complete, and the region is as it was noted. */
bool evidence_must_prove(void);
bool evidence_is_of_lock(uint64_t owner, uint32_t value);

/* A call by it has changed only slots that are as they were noted, and only by a proof. */
void evidence_require_as_noted(void);

#endif
