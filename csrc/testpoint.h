/*
 * Named points at which tests kill this very process, to see what others make of
 * what it leaves behind.  Nothing at all is compiled in without HR_TESTPOINTS.
 *
 * Each point is right after a store that other processes can see.
 */
#ifndef HR_TESTPOINT_H
#define HR_TESTPOINT_H

#define HR_TESTPOINT_NAMES(X)                                                                      \
    X(LOCK_NUMBERS_DRAWN)                                                                          \
    X(LOCK_OWNER_STORED)                                                                           \
    X(LOCK_TAKEN_OVER)                                                                             \
    X(UNLOCK_SEM_POSTED)                                                                           \
    X(UNLOCK_WOKEN)                                                                                \
    X(SLOT_BYTE_LOCKED)                                                                            \
    X(ATTACH_SLOT_CLEARED)                                                                         \
    X(ATTACH_PID_STORED)                                                                           \
    X(ATTACH_COUNT_STORED)                                                                         \
    X(ACCOUNT_SEQLOCK_ODD)                                                                         \
    X(ACCOUNT_TOTAL_STORED)                                                                        \
    X(ACCOUNT_KIND_STORED)                                                                         \
    X(ACCOUNT_SEQLOCK_EVEN)                                                                        \
    X(REMOVE_USAGE_CLEARED)                                                                        \
    X(REMOVE_COUNT_STORED)                                                                         \
    X(RECOVER_HOST_TAKEN)                                                                          \
    X(RECOVER_OWNER_TAKEN)                                                                         \
    X(RECOVER_VALUE_STORED)                                                                        \
    X(SEQLOCK_ENDED)                                                                               \
    X(REPAIR_COUNT_STORED)                                                                         \
    X(REPAIR_COPY_CLEARED)

enum hr_testpoint {
#define HR_TESTPOINT_ENUM(name) HR_AT_##name,
    HR_TESTPOINT_NAMES(HR_TESTPOINT_ENUM)
#undef HR_TESTPOINT_ENUM
        HR_TESTPOINTS_COUNT
};

#ifdef HR_TESTPOINTS

#include <signal.h>
#include <stdint.h>

/* Set by a test: die at this point (-1: nowhere) when it is reached for the n-th time, or have
 * another signal than SIGKILL: with SIGSTOP others can do something in between. */
extern int hr_testpoint_kill_at;
extern int hr_testpoint_kill_on;
extern int hr_testpoint_signal;
/* How often each point was reached in this process. */
extern int hr_testpoint_reached[HR_TESTPOINTS_COUNT];
/* Instead of HR_OWNERLESS_NS, so that thousands of kills end within a day. */
extern uint64_t hr_testpoint_ownerless_ns;

static inline void hr_testpoint(enum hr_testpoint point)
{
    int times = __atomic_add_fetch(&hr_testpoint_reached[point], 1, __ATOMIC_RELAXED);
    if (hr_testpoint_kill_at == (int)point && times == hr_testpoint_kill_on)
        raise(hr_testpoint_signal);
}
#define HR_POINT(name) hr_testpoint(HR_AT_##name)

#else
#define HR_POINT(name) ((void)0)
#endif

#endif
