/* Edits: what they report they have stored, and nothing else. */
#ifndef FUZZ_EDITS_H
#define FUZZ_EDITS_H

#include "fuzz_run.h"

/* Whether `step` was an edit, and has been done if there is a region. */
bool edit_step(uint8_t step, struct input *input);

#endif
