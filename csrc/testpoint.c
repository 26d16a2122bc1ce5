#include "region.h"
#include "testpoint.h"

#ifdef HR_TESTPOINTS

int hr_testpoint_kill_at = -1;
int hr_testpoint_kill_on = 1;
int hr_testpoint_signal = SIGKILL;
int hr_testpoint_reached[HR_TESTPOINTS_COUNT];
uint64_t hr_testpoint_ownerless_ns = HR_OWNERLESS_NS;

#endif

/* A translation unit must not be empty. */
typedef int hr_testpoint_unit;
