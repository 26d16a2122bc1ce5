#define _GNU_SOURCE
#include "guard.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

#include "base.h"

struct frame {
    sigjmp_buf resume;
    uintptr_t start, end;
    struct frame *outer;
};

/*
 * initial-exec: the handler may run in a thread that never called us, where the
 * first access to a dynamic TLS block would call malloc inside a signal handler.
 */
#define HANDLER_TLS static _Thread_local __attribute__((tls_model("initial-exec")))

HANDLER_TLS struct frame *current;

/*
 * Whom to pass a foreign SIGBUS to: predecessors[0] had the signal before our
 * first installation, the others took it from us later.
 */
#define PREDECESSORS 8
static struct sigaction predecessors[PREDECESSORS];
static atomic_int predecessor_count;
static pthread_mutex_t installing = PTHREAD_MUTEX_INITIALIZER;

/*
 * A later one restores us and raises again when it is done, from inside its own
 * handler: then the next lower one is due.  The address tells such a nested
 * call from a new one after a handler left by longjmp().
 */
HANDLER_TLS int passing_level;
HANDLER_TLS uintptr_t passing_frame;

static bool is_nested(uintptr_t frame)
{
    return passing_level > 0 && frame < passing_frame && passing_frame - frame < 64 * 1024;
}

static void end_by_default(int signal_number, const siginfo_t *info)
{
    struct sigaction by_default;
    memset(&by_default, 0, sizeof by_default);
    by_default.sa_handler = SIG_DFL;
    sigaction(signal_number, &by_default, NULL);
    /* A fault comes back by itself when the instruction runs again, with its address. */
    if (info->si_code <= 0)
        raise(signal_number);
}

static void pass_on(int signal_number, siginfo_t *info, void *context)
{
    uintptr_t frame = (uintptr_t)__builtin_frame_address(0);
    int level = is_nested(frame)
                    ? passing_level - 1
                    : atomic_load_explicit(&predecessor_count, memory_order_acquire) - 1;
    if (level < 0) {
        end_by_default(signal_number, info);
        return;
    }
    const struct sigaction *to = &predecessors[level];
    bool with_info = (to->sa_flags & SA_SIGINFO) != 0;
    if (!with_info && to->sa_handler == SIG_IGN && info->si_code <= 0)
        return;
    if (!with_info && (to->sa_handler == SIG_DFL || to->sa_handler == SIG_IGN)) {
        end_by_default(signal_number, info);
        return;
    }
    sigset_t blocked = to->sa_mask, before;
    if ((to->sa_flags & SA_NODEFER) == 0)
        sigaddset(&blocked, signal_number);
    pthread_sigmask(SIG_BLOCK, &blocked, &before);
    passing_level = level;
    passing_frame = frame;
    if (with_info)
        to->sa_sigaction(signal_number, info, context);
    else
        to->sa_handler(signal_number);
    passing_level = 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static bool is_ours(const struct frame *frame, const siginfo_t *info)
{
    if (frame == NULL)
        return false;
    if (info->si_code > 0) {
        uintptr_t address = (uintptr_t)info->si_addr;
        return address >= frame->start && address < frame->end;
    }
    /* raise() by a handler in front of ours, in this very thread, which inside
     * the guard does nothing but touch the mapping. */
    return info->si_code == SI_TKILL && info->si_pid == getpid();
}

static void on_sigbus(int signal_number, siginfo_t *info, void *context)
{
    int saved_errno = errno;
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

void hr_guard_before_fork(void)
{
    pthread_mutex_lock(&installing);
}

void hr_guard_after_fork(void)
{
    pthread_mutex_unlock(&installing);
}

int hr_guard_install(void)
{
    struct sigaction ours, found;
    memset(&ours, 0, sizeof ours);
    ours.sa_sigaction = on_sigbus;
    /* NODEFER, so that nested faults are seen; the mask is put right before the jump,
     * where sigsetjmp() saving it would cost a system call at each hr_guard_run(). */
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigemptyset(&ours.sa_mask);

    pthread_mutex_lock(&installing);
    int code = HR_OK;
    if (sigaction(SIGBUS, NULL, &found) != 0) {
        code = hr_fail_errno(HR_ESYSTEM, errno);
    } else if (!((found.sa_flags & SA_SIGINFO) && found.sa_sigaction == on_sigbus)) {
        int count = atomic_load_explicit(&predecessor_count, memory_order_relaxed);
        /* More than PREDECESSORS take-overs: let the latest stand in for the one before it. */
        int slot = count < PREDECESSORS ? count : PREDECESSORS - 1;
        predecessors[slot] = found;
        atomic_store_explicit(&predecessor_count, slot + 1, memory_order_release);
        if (sigaction(SIGBUS, &ours, NULL) != 0)
            code = hr_fail_errno(HR_ESYSTEM, errno);
    }
    pthread_mutex_unlock(&installing);
    return code;
}

int hr_guard_run(const void *base, size_t bytes, hr_guarded_work *work, void *argument)
{
    struct frame frame;
    frame.start = (uintptr_t)base;
    frame.end = frame.start + bytes;
    frame.outer = current;
    if (sigsetjmp(frame.resume, 0) != 0)
        return hr_fail_why(HR_ESTALE, HR_WHY_TRUNCATED);
    current = &frame;
    /* The handler runs in this thread: a compiler barrier is all it takes. */
    atomic_signal_fence(memory_order_seq_cst);
    int code = work(argument);
    atomic_signal_fence(memory_order_seq_cst);
    current = frame.outer;
    return code;
}
