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
#include <sys/syscall.h>
#include <time.h>
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
 * first access to a dynamic TLS block would call malloc inside a signal handler.  It is also the
 * cheapest.
 */
#define GUARD_TLS static _Thread_local __attribute__((tls_model("initial-exec")))

GUARD_TLS struct frame *current;

/*
 * Our handler is one function per layer, and each layer knows whom it covers: a
 * SIGBUS that is not ours goes on to covered[layer].  Who takes the signal from us
 * and puts it back some day puts back the layer that was there, and so names all
 * those below it and none above: the chain needs no other memory.  A handler that
 * was covered before gets its old layer again, so the chain does not grow.
 */
#define LAYERS 8
static struct sigaction covered[LAYERS];
static int layers_used;
static pthread_mutex_t installing = PTHREAD_MUTEX_INITIALIZER;

static void on_sigbus(int layer, siginfo_t *info, void *context);

/* clang-format off */
#define LAYER(number) \
    static void on_sigbus_##number(int signal_number, siginfo_t *info, void *context) \
    { \
        (void)signal_number; \
        on_sigbus(number, info, context); \
    }
LAYER(0) LAYER(1) LAYER(2) LAYER(3) LAYER(4) LAYER(5) LAYER(6) LAYER(7)
static void (*const layers[LAYERS])(int, siginfo_t *, void *) = {
    on_sigbus_0, on_sigbus_1, on_sigbus_2, on_sigbus_3,
    on_sigbus_4, on_sigbus_5, on_sigbus_6, on_sigbus_7,
};
/* clang-format on */

/* Whether a run may find that ours is not on top, because it has stepped aside. */
static atomic_bool is_aside;

/* What was sent to this thread during its work, until that is over; si_signo 0: nothing. */
GUARD_TLS siginfo_t postponed;
/* Also where this thread has the signal blocked and is about to work, or has just done so. */
GUARD_TLS bool postponing;

static bool is_same(const struct sigaction *one, const struct sigaction *other)
{
    /* Of the mask libc fills in only as much as the kernel has. */
    return one->sa_sigaction == other->sa_sigaction && one->sa_flags == other->sa_flags &&
           memcmp(&one->sa_mask, &other->sa_mask, (_NSIG - 1) / 8) == 0;
}

/* Sent, not caused by the instruction that it interrupts. */
static bool was_sent(const siginfo_t *info)
{
    return info->si_code <= 0 || info->si_code == BUS_MCEERR_AO;
}

/* With all that its sender said, to the thread or the process as it was. */
static void send_again(siginfo_t *info)
{
    /* The kernel lets nobody name a sender but the thread itself, by its own number:
     * that leads to the whole process too. */
    pid_t thread = (pid_t)syscall(SYS_gettid);
    if (info->si_code == SI_TKILL)
        syscall(SYS_rt_tgsigqueueinfo, getpid(), thread, SIGBUS, info);
    else
        syscall(SYS_rt_sigqueueinfo, thread, SIGBUS, info);
}

/*
 * Let it happen again to the handler that this layer covers, as if ours were not there: a
 * fault comes back by itself when its instruction runs again.  The next run of any thread
 * puts ours on top again.
 */
static void step_aside(int layer, siginfo_t *info)
{
    struct sigaction now, other = covered[layer];
    /* It is on top, and hands the signal to the layer that covers it: nobody is left to ask. */
    if (sigaction(SIGBUS, NULL, &now) == 0 && is_same(&now, &other))
        other = (struct sigaction){.sa_handler = SIG_DFL};
    atomic_store_explicit(&is_aside, true, memory_order_relaxed);
    sigaction(SIGBUS, &other, NULL);
    if (was_sent(info))
        send_again(info);
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

static void on_sigbus(int layer, siginfo_t *info, void *context)
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
    if (!was_sent(info) || (frame == NULL && !postponing))
        step_aside(layer, info);
    else if (postponed.si_signo == 0)
        postponed = *info;
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

/* ---- Before the work ------------------------------------------------------- */

/* NODEFER, so that nested faults are seen; the mask is put right before the jump, where
 * sigsetjmp() saving it would cost a system call at each hr_guard_run(). */
#define OUR_FLAGS (SA_SIGINFO | SA_ONSTACK | SA_NODEFER)

static int layer_of(const struct sigaction *action)
{
    int layer = LAYERS - 1;
    while (layer >= 0 && action->sa_sigaction != layers[layer])
        layer--;
    return layer;
}

static int layer_over(const struct sigaction *found)
{
    for (int layer = 0; layer < layers_used; layer++) {
        if (is_same(&covered[layer], found))
            return layer;
    }
    /* More than LAYERS different handlers: let the latest stand in for the one before it. */
    if (layers_used < LAYERS)
        layers_used++;
    covered[layers_used - 1] = *found;
    return layers_used - 1;
}

static void install_over(struct sigaction found)
{
    struct sigaction ours = {.sa_flags = OUR_FLAGS}, replaced;
    sigemptyset(&ours.sa_mask);
    bool installed = false;
    while (!installed) {
        int layer = layer_of(&found);
        ours.sa_sigaction = layers[layer < 0 ? layer_over(&found) : layer];
        if (sigaction(SIGBUS, &ours, &replaced) != 0)
            return;
        /* Another thread came in between: what it installed is what counts. */
        installed = is_same(&replaced, &found) || layer_of(&replaced) >= 0;
        found = replaced;
    }
}

/*
 * By whatever way the program took our handler away, it did not ask us.  A failing
 * sigaction() (a sandbox may forbid it) leaves things as they are.
 */
static void be_on_top(void)
{
    struct sigaction found;
    atomic_store_explicit(&is_aside, false, memory_order_relaxed);
    /* signal() puts a handler back without its flags. */
    if (sigaction(SIGBUS, NULL, &found) != 0 ||
        (layer_of(&found) >= 0 && (found.sa_flags & OUR_FLAGS) == OUR_FLAGS))
        return;
    pthread_mutex_lock(&installing);
    if (sigaction(SIGBUS, NULL, &found) == 0)
        install_over(found);
    pthread_mutex_unlock(&installing);
}

/*
 * The two checks are system calls, which a tight loop of reads would feel.  So they
 * are left out where this thread's last run began a moment ago, and its last checks
 * are not old: in BURST_TICKS there is hardly room for it to read, to block a signal
 * and to read again, with the file cut in between.  The ticks are those of the
 * processor, so that "a moment" is shorter on a faster one: some 3 and 40 us.
 */
#define BURST_TICKS 8000
#define CHECKED_TICKS 100000

static uint64_t ticks(void)
{
#ifdef __x86_64__
    return __builtin_ia32_rdtsc();
#else
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return ((uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec) * 3;
#endif
}

GUARD_TLS uint64_t last_began;
GUARD_TLS uint64_t last_checked; /* 0: not at all, or the signal is blocked */

static void change_sigbus(int how)
{
    sigset_t sigbus;
    sigemptyset(&sigbus);
    sigaddset(&sigbus, SIGBUS);
    pthread_sigmask(how, &sigbus, NULL);
}

static bool check(uint64_t now)
{
    be_on_top();
    sigset_t mask;
    if (pthread_sigmask(SIG_BLOCK, NULL, &mask) != 0 || sigismember(&mask, SIGBUS) == 0) {
        last_checked = now;
        return false;
    }
    postponing = true;
    atomic_signal_fence(memory_order_seq_cst);
    change_sigbus(SIG_UNBLOCK);
    return true;
}

bool hr_guard_begin(void)
{
    uint64_t now = ticks();
    bool in_burst = !atomic_load_explicit(&is_aside, memory_order_relaxed) &&
                    now - last_began < BURST_TICKS && now - last_checked < CHECKED_TICKS;
    last_began = now;
    return __builtin_expect(!in_burst, 0) && check(now);
}

void hr_guard_end(bool unblocked)
{
    if (__builtin_expect(!unblocked && postponed.si_signo == 0, 1))
        return;
    if (unblocked) {
        change_sigbus(SIG_BLOCK);
        last_checked = 0;
        postponing = false;
    }
    /* A run inside another one leaves it to that. */
    if (current != NULL || postponed.si_signo == 0)
        return;
    siginfo_t info = postponed;
    postponed.si_signo = 0;
    send_again(&info);
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
