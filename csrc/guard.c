#define _GNU_SOURCE

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "internal.h"

struct frame {
    sigjmp_buf resume;
    uintptr_t start, end;
    struct frame *outer;
};

/*
 * initial-exec: the handler may run in a thread that has never called us, where the first access
 * to a dynamic TLS block would call malloc inside a signal handler.
 */
#define GUARD_TLS static _Thread_local __attribute__((tls_model("initial-exec")))

GUARD_TLS struct frame *current;

/* The handler that ours replaced, written under the fork lock. */
static struct sigaction previous;

/*
 * Where on the stack the previous handler was called, or 0: one that calls ours or puts it back
 * and raises the signal again, as faulthandler does, comes back deeper in the stack.  An address,
 * because a handler that leaves by longjmp() does not reset it.
 */
GUARD_TLS uintptr_t passing_on;

static void end_by_default(int signal_number, const siginfo_t *info)
{
    const struct sigaction by_default = {.sa_handler = SIG_DFL};
    sigaction(signal_number, &by_default, NULL);
    /* A fault comes back when the instruction runs again, with its address. */
    if (info->si_code <= 0)
        raise(signal_number);
}

static void pass_on(int signal_number, siginfo_t *info, void *context)
{
    const uintptr_t here = (uintptr_t)__builtin_frame_address(0);
    const struct sigaction to = previous;
    if (here < passing_on || to.sa_handler == SIG_DFL ||
        (to.sa_handler == SIG_IGN && info->si_code > 0)) {
        end_by_default(signal_number, info);
        return;
    }
    if (to.sa_handler == SIG_IGN)
        return;
    sigset_t before;
    pthread_sigmask(SIG_BLOCK, &to.sa_mask, &before);
    passing_on = here;
    if ((to.sa_flags & SA_SIGINFO) != 0)
        to.sa_sigaction(signal_number, info, context);
    else
        to.sa_handler(signal_number);
    passing_on = 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static bool is_ours(const struct frame *frame, const siginfo_t *info)
{
    if (frame == NULL)
        return false;
    if (info->si_code > 0) {
        const uintptr_t address = (uintptr_t)info->si_addr;
        return address >= frame->start && address < frame->end;
    }
    /* raise() by a handler in front of ours, in this very thread, which inside
     * the guard does nothing but touch the mapping. */
    return info->si_code == SI_TKILL && info->si_pid == getpid();
}

static void on_sigbus(int signal_number, siginfo_t *info, void *context)
{
    const int saved_errno = errno;
    struct frame *frame = current;
    if (is_ours(frame, info)) {
        current = frame->outer;
        /* A handler in front of ours that calls us may have been installed with a mask,
         * which would stay and make the next fault fatal. */
        pthread_sigmask(SIG_SETMASK, &((ucontext_t *)context)->uc_sigmask, NULL);
        siglongjmp(frame->resume, 1);
    }
    pass_on(signal_number, info, context);
    errno = saved_errno;
}

/* ---- Before the work ------------------------------------------------------- */

/* NODEFER, so that nested faults are seen; the mask is restored right before the jump, where
 * sigsetjmp() saving it would cost a system call at each hr_guard_run(). */
#define OUR_FLAGS (SA_SIGINFO | SA_ONSTACK | SA_NODEFER)

static void remember(const struct sigaction *found)
{
    if (found->sa_sigaction != on_sigbus)
        previous = *found;
}

/* A failing sigaction() (a sandbox may forbid it) leaves things as they are. */
static void install(void)
{
    struct sigaction found;
    /* signal() puts a handler back without its flags. */
    if (sigaction(SIGBUS, NULL, &found) != 0 ||
        (found.sa_sigaction == on_sigbus && (found.sa_flags & OUR_FLAGS) == OUR_FLAGS))
        return;
    struct sigaction ours = {.sa_sigaction = on_sigbus, .sa_flags = OUR_FLAGS};
    sigemptyset(&ours.sa_mask);
    hr_fork_lock();
    if (sigaction(SIGBUS, NULL, &found) == 0)
        remember(&found);
    /* Another thread may have installed one in between. */
    if (sigaction(SIGBUS, &ours, &found) == 0)
        remember(&found);
    hr_fork_unlock();
}

/*
 * For hr_guard_spaced_runs(): so long is a check valid in the thread that made it, in ticks of the
 * processor.  About a millisecond.
 */
#define SPACED_TICKS 3000000

static _Atomic bool is_spaced;

void hr_guard_spaced_runs(void)
{
    atomic_store_explicit(&is_spaced, true, memory_order_relaxed);
}

static uint64_t ticks(void)
{
#ifdef __x86_64__
    return __builtin_ia32_rdtsc();
#else
    return hr_clock_ns(CLOCK_MONOTONIC) * 3;
#endif
}

GUARD_TLS uint64_t last_checked; /* 0: never, or the signal is blocked */

static bool is_checked(void)
{
    return atomic_load_explicit(&is_spaced, memory_order_relaxed) &&
           ticks() - last_checked < SPACED_TICKS;
}

/* Returns whether it was blocked before. */
static bool change_sigbus(int how)
{
    sigset_t sigbus, before;
    sigemptyset(&sigbus);
    sigaddset(&sigbus, SIGBUS);
    return pthread_sigmask(how, &sigbus, &before) == 0 && sigismember(&before, SIGBUS) == 1;
}

bool hr_guard_begin(void)
{
    if (is_checked())
        return false;
    install();
    passing_on = 0;
    const bool unblocked = change_sigbus(SIG_UNBLOCK);
    if (!unblocked)
        last_checked = ticks();
    return unblocked;
}

void hr_guard_end(bool unblocked)
{
    if (__builtin_expect(!unblocked, 1))
        return;
    change_sigbus(SIG_BLOCK);
    last_checked = 0;
}

int hr_guard_run_begun(const void *base, size_t bytes, hr_guarded_work *work, void *argument)
{
    struct frame frame;
    frame.start = (uintptr_t)base;
    frame.end = frame.start + bytes;
    frame.outer = current;
    if (sigsetjmp(frame.resume, 0) != 0)
        return hr_fail_reason(HR_ESTALE, HR_REASON_TRUNCATED);
    current = &frame;
    /* The handler runs in this thread: a compiler barrier is all it takes. */
    atomic_signal_fence(memory_order_seq_cst);
    int code = work(argument);
    atomic_signal_fence(memory_order_seq_cst);
    current = frame.outer;
    return code;
}

int hr_guard_run(const void *base, size_t bytes, hr_guarded_work *work, void *argument)
{
    bool unblocked = hr_guard_begin();
    int code = hr_guard_run_begun(base, bytes, work, argument);
    hr_guard_end(unblocked);
    return code;
}
