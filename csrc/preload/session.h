/*
 * This process's stay in a region: which one, which of its rows a device has, and what to do
 * where there is none.
 *
 * Nothing happens before the program uses CUDA: the region is opened by the first question about
 * memory, and attached to by the first context.  Then the threads of watcher.c start.
 *
 * A program that forks has a child that does not use CUDA yet: in the child everything is as at
 * the start, and its first context attaches under its own pid.
 *
 * The core's fault guard installs a handler for SIGBUS when the region is opened, and that is
 * right here: anybody in the container can shorten the file, and without the handler the kernel
 * would end the program for it.  What is not a fault in the region goes to the program's own
 * handler, whenever that was installed; and a program that does not use CUDA never has it.
 */
#ifndef HR_SESSION_H
#define HR_SESSION_H

#include <stdatomic.h>
#include <stdbool.h>

#include "../region.h"
#include "cuda_api.h"

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
    HR_SESSION_REFUSED   /* there is none, and the policy refuses contexts and memory */
};

/*
 * Open the region if that was not done yet, or attach to it.  Both are tried once in a process.
 * Returns the state that the session has then.
 */
enum hr_session_state hr_open_session(void);
enum hr_session_state hr_attach_session(void);

/* The region as long as the session is open or attached, else NULL. */
hr_region *hr_session_region(void);

/*
 * Something is wrong with the region later on.  Says so once; from then on the session is free,
 * or refused if the policy was set to that.
 */
void hr_lose_session(int code);

/* How often this process's line has forked since the program began. */
unsigned hr_fork_count(void);

/*
 * The row of a device in the region, or HR_NO_ROW.  A region that names any device by its uuid
 * has no row for one that it does not name; in one that names none, rows are CUDA's ordinals.
 * A row stays what it was at the first question.
 */
int hr_row_of_device(CUdevice device);

/* The device of a row, -1 where no device of this process has it so far. */
CUdevice hr_device_of_row(int row);

/*
 * What may hold up calls, as bits; 0 means that a call can go on at once.  Read with one relaxed
 * load on the way of each launch and each allocation.
 */
enum {
    HR_HOLD_SUSPENDED = 1,  /* this process's slot has status 2 */
    HR_HOLD_LIMITED = 2,    /* the SM limit of some row holds: launches ask the throttle */
    HR_HOLD_UNPREPARED = 4, /* nobody has asked yet whether one does: since the start, or a fork */
    HR_HOLD_UNNOTED = 8     /* no launch was made since the region was last told of one */
};
extern _Atomic unsigned hr_holds;

static inline unsigned hr_current_holds(void)
{
    return atomic_load_explicit(&hr_holds, memory_order_relaxed);
}

/* Wait while this process is suspended. */
void hr_wait_while_suspended(void);

#endif
