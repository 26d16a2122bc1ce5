/*
 * This process's use of a region: which one, whether it is attached, and the policy if there is
 * none.
 *
 * Nothing happens before the program uses CUDA: the region is opened by the first question about
 * memory, and attached to by the first context, allocation or launch.  Then the thread of thread.c
 * starts.
 *
 * The driver refuses the child of a process that has used CUDA (CUDA_ERROR_NOT_INITIALIZED).  So
 * the session of such a child is over before it begins: memory and contexts get the driver's
 * answer, and everything else goes on to the driver.  The child of a process without a session
 * begins its own.
 *
 * The core's fault guard installs a handler for SIGBUS when the region is opened: any process of
 * the container can shorten the file, and the kernel would end the program for it.  A fault outside
 * the region goes to the program's own handler; a program that does not use CUDA never has ours.
 */
#ifndef HR_SESSION_H
#define HR_SESSION_H

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "../region.h"
#include "api.h"

#define HR_REGION_VARIABLE "CUDA_DEVICE_MEMORY_SHARED_CACHE"
#define HR_POLICY_VARIABLE "HAMIREGION_ON_ERROR"

/* How long a charge waits for the region's lock, where its layout has accounting under it. */
#define HR_CHARGE_NS 10000000000u

/* No row: the region does not name this device, or there is no region; nothing is limited. */
#define HR_NO_ROW (-1)

enum hr_session_state {
    HR_SESSION_NONE,     /* not begun: no question was asked, or the process was forked */
    HR_SESSION_OPEN,     /* the region is open; this process has no slot in it yet */
    HR_SESSION_ATTACHED, /* this process has a slot */
    HR_SESSION_FREE,     /* there is no region to use, and the policy lets everything through */
    HR_SESSION_REFUSED,  /* there is none, and the policy refuses contexts and memory */
    HR_SESSION_FORKED    /* the parent had begun one before it forked */
};

/*
 * Open the region if that was not done yet, or attach to it.  Both are tried once in a process.
 * Returns the state that the session has then.
 */
enum hr_session_state hr_open_session(void);
enum hr_session_state hr_attach_session(void);

enum hr_session_state hr_session_state(void);

/* What a state means for a call that wants memory or a context. */
static inline CUresult hr_session_result(enum hr_session_state state)
{
    if (__builtin_expect(state < HR_SESSION_REFUSED, 1))
        return CUDA_SUCCESS;
    return state == HR_SESSION_FORKED ? CUDA_ERROR_NOT_INITIALIZED : CUDA_ERROR_NOT_PERMITTED;
}

/* The region as long as the session is open or attached, else NULL. */
hr_region *hr_session_region(void);

/*
 * The region has become unusable.  Says so once; from then on the session is free, or refused if
 * the policy was set to that.
 */
void hr_lose_session(int code);

/* ---- The thread (thread.c) ------------------------------------------------------------- */

/* Start it, if this process is attached and it does not run yet. */
void hr_start_thread(void);

/* A launch waits for its row: begin the next pass at once. */
void hr_hurry_thread(void);

/* ---- Holds ---------------------------------------------------------------------------- */

/*
 * What may hold up calls, as bits; 0 means that a call can go on at once.  Read with one relaxed
 * load on the way of each launch and each allocation.
 */
enum {
    HR_HOLD_SUSPENDED = 1,  /* this process's slot has status 2 */
    HR_HOLD_LIMITED = 2,    /* an SM limit holds on some row: launches ask limits.c */
    HR_HOLD_UNPREPARED = 4, /* the limits were not read yet: since the start, or a fork */
    HR_HOLD_REPORT_DUE = 8  /* the next launch is reported to the region */
};
extern _Atomic unsigned hr_holds;

static inline unsigned hr_current_holds(void)
{
    return atomic_load_explicit(&hr_holds, memory_order_relaxed);
}

static inline void hr_set_hold(unsigned hold, bool is_set)
{
    if (is_set)
        atomic_fetch_or_explicit(&hr_holds, hold, memory_order_relaxed);
    else
        atomic_fetch_and_explicit(&hr_holds, ~hold, memory_order_relaxed);
}

void hr_wait_while_suspended(void);

/* ---- Processes ------------------------------------------------------------------------ */

/* Whether a process of this pid is here, zombies included. */
static inline bool hr_is_here(int32_t pid)
{
    return kill(pid, 0) == 0 || errno != ESRCH;
}

/* Write a value of the own slot if it differs from `shown`, which it becomes unless that fails. */
void hr_show_in_slot(hr_region *region, enum hr_slot_value value, int row, uint64_t to,
                     uint64_t *shown);

#endif
