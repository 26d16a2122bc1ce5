/* What the crash test counts: a row for each point, and one for kills at random moments. */
#ifndef CRASH_REPORT_H
#define CRASH_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "testpoint.h"

enum { AT_RANDOM = HR_TESTPOINTS_COUNT, ROWS, MOST_ROUNDS = 20000 };

extern const char *const row_names[ROWS];

void count_kill(int row);
/* A round is over.  False once a row is full. */
bool count_round(int row, bool passed, uint64_t took_ns);
/* A table, or JSON, with the closing line.  Returns how many rounds failed. */
uint32_t report_rows(bool json, uint64_t seed);

#endif
