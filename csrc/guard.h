/*
 * The fault guard: SIGBUS at our mappings becomes an error code.
 *
 * A container can shorten its file at any time, and the next access to a page
 * that is gone raises SIGBUS.  Work on a mapping therefore runs inside
 * hr_guard_run().
 *
 * Before the work it checks whether our handler is installed and whether SIGBUS is blocked in this
 * thread, as a fault under a blocked signal kills the process.  A handler that was installed since
 * the last check, or an older one that was restored, is replaced by ours and becomes its previous
 * handler; a blocked signal is unblocked during the work.
 *
 * A SIGBUS that is not at the mapping that the *current thread* is working on goes to the previous
 * handler, with that handler's own mask.
 *
 * Caveats
 *  - There is one previous handler: the last one that ours replaced.  If it hands the signal down,
 *    to ours, the process ends as by default.  If it was removed by restoring ours, it is called
 *    all the same.
 *  - Another thread may install a handler between the check and a fault.  If it hands the signal
 *    down, by a call or by restoring ours and raising it again as faulthandler does, the fault is
 *    caught.  One that just returns, as Python's does, runs again and again until any thread begins
 *    the next run; one that ends the process ends it.
 *  - A SIGBUS that is sent to a thread that blocks it is delivered if it arrives during the work.
 *  - Leaving the work by longjmp() leaves the signal unblocked.
 */
#ifndef HR_GUARD_H
#define HR_GUARD_H

#include <stdbool.h>
#include <stddef.h>

/* For pthread_atfork(): a child must not find it half installed by another thread. */
void hr_guard_before_fork(void);
void hr_guard_after_fork(void);

/*
 * From now on a check of the handler and the mask is valid for about a millisecond, in the thread
 * that made it.  For a program with a few microseconds of other work between two runs, whose cost
 * the check would double.  If within that millisecond a thread blocks SIGBUS or the program
 * installs a handler, and the file is truncated, the program gets the fault.
 */
void hr_guard_spaced_runs(void);

typedef int hr_guarded_work(void *argument);

/*
 * Run `work(argument)` and return what it returns; HR_ESTALE if it touched a
 * page of [base, base + bytes) that cannot be had, mostly because the file no longer
 * has it.  What the work stored through `argument` before the fault stays.  The
 * work must not hold a resource that only its own end would release.
 */
int hr_guard_run(const void *base, size_t bytes, hr_guarded_work *work, void *argument);

/*
 * The same in parts, for many runs in a row: begin once, run each, end with what
 * begin returned.  Between the two the thread may change neither its signal mask
 * nor the handler.
 */
bool hr_guard_begin(void);
int hr_guard_run_begun(const void *base, size_t bytes, hr_guarded_work *work, void *argument);
void hr_guard_end(bool unblocked);

#endif
