/*
 * The fault guard: SIGBUS at our mappings becomes an error code.
 *
 * A container can shorten its file at any time, and the next access to a page
 * that is gone raises SIGBUS.  Work on a mapping therefore runs inside
 * hr_guard_run().
 *
 * The handler is installed by the first hr_open() and put back on top by later
 * ones if somebody else has installed theirs meanwhile.  A SIGBUS that is not
 * at the mapping that the *current thread* is working on goes to the handler
 * that was there before, with that handler's own mask.
 *
 * A handler installed after ours and in front of it (faulthandler.enable())
 * sees our faults first.  faulthandler then restores ours and raises the signal
 * again; we take that second one as the fault that it stands for.
 */
#ifndef HR_GUARD_H
#define HR_GUARD_H

#include <stddef.h>

/* Install the handler, or put it back on top.  HR_OK or HR_ESYSTEM. */
int hr_guard_install(void);

/* For pthread_atfork(): a child must not find it half installed by another thread. */
void hr_guard_before_fork(void);
void hr_guard_after_fork(void);

typedef int hr_guarded_work(void *argument);

/*
 * Run `work(argument)` and return what it returns; HR_ESTALE if it touched a
 * page of [base, base + bytes) that the file no longer has.  What the work
 * stored through `argument` before the fault stays.  The work must not hold a
 * resource that only its own end would release.
 */
int hr_guard_run(const void *base, size_t bytes, hr_guarded_work *work, void *argument);

#endif
