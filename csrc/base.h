/*
 * What every part of the core stands on: how a failure is recorded, the clock, and
 * short sleeps.  Internal to the core.
 */
#ifndef HR_BASE_H
#define HR_BASE_H

#include <stdbool.h>
#include <stdint.h>

#include "region.h"

/*
 * Record why this thread's call fails, and return the code.  Public functions copy that into their
 * caller's struct by hr_report() before they return, so nothing that runs between two calls, such
 * as a signal handler of Python, comes in between.
 */
int hr_fail(const struct hr_error *detail);
int hr_fail_code(int code);
int hr_fail_errno(int code, int sys_errno);
int hr_fail_reason(int code, int reason);
/* With fields of struct hr_error, where no device and no layout is meant. */
#define HR_FAIL(failed, ...)                                                                       \
    hr_fail(&(struct hr_error){.code = (failed), .device = -1, .layout = HR_LAYOUTS, __VA_ARGS__})

/* What this thread has recorded last. */
void hr_last_error(struct hr_error *out);
void hr_report_failure(struct hr_error *error, int code);

/* The end of a public function: `error` may be NULL. */
static inline int hr_report(struct hr_error *error, int code)
{
    if (__builtin_expect(code < 0 && error != NULL, 0))
        hr_report_failure(error, code);
    return code;
}

uint64_t hr_clock_ns(int clock);
uint64_t hr_deadline_ns(uint64_t timeout_ns);
bool hr_is_past(uint64_t deadline_ns);
/* Sleep a little longer each time, never past the deadline.  False once it has passed. */
bool hr_nap(uint64_t deadline_ns, unsigned *naps);

/* Room for one more behind `count` items: the list, perhaps moved.  NULL where memory is short;
 * the list stays. */
void *hr_grow(void *list, uint32_t count, size_t item);

static inline uint64_t hr_add_saturating(uint64_t a, uint64_t b)
{
    uint64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

#endif
