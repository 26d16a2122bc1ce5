/* The core limiter, with and without a region, under any numbers. */
#ifndef FUZZ_LIMITER_H
#define FUZZ_LIMITER_H

#include "fuzz_run.h"

/* Whether `step` was one of the limiter's, and has been done. */
bool limiter_step(uint8_t step, struct input *input);

/* The region's handle is closed and will be freed: so is the limiter. */
void limiter_end(void);

#endif
