/*
 * The calls that write under the region's lock or judge by /proc, and the limiter: each is
 * made as the input says, and then what it has stored is compared with what it may.
 */
#ifndef FUZZ_WRITERS_H
#define FUZZ_WRITERS_H

#include "fuzz_run.h"

/* Before the first step of an input; and after the last, when the handle is closed. */
void writers_begin(void);
void writers_end(void);

/* Whether `step` was one of theirs, and has been done. */
bool writers_step(uint8_t step, struct input *input);

/* Around hr_close(), which gives back what the handle still has. */
void writers_close(void);

#endif
