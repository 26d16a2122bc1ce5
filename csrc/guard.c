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
 * Our handler is one function per layer, and each layer knows which handler it covers: a
 * SIGBUS that is not ours goes on to covered[layer].  Code that takes the signal from us
 * and puts it back some day puts back the layer that was there, and so names all
 * those below it and none above: the chain needs no other memory.  A handler that
 * was covered before gets its old layer again, so the chain does not grow.
 */
#define LAYERS 8
static struct sigaction covered[LAYERS];
static int layers_used;
static pthread_mutex_t installing = PTHREAD_MUTEX_INITIALIZER;

static void on_sigbus(int layer, int signal_number, siginfo_t *info, void *context);

/* clang-format off */
#define LAYER(number) \
    static void on_sigbus_##number(int signal_number, siginfo_t *info, void *context) \
    { \
        on_sigbus(number, signal_number, info, context); \
    }
LAYER(0) LAYER(1) LAYER(2) LAYER(3) LAYER(4) LAYER(5) LAYER(6) LAYER(7)
static void (*const layers[LAYERS])(int, siginfo_t *, void *) = {
    on_sigbus_0, on_sigbus_1, on_sigbus_2, on_sigbus_3,
    on_sigbus_4, on_sigbus_5, on_sigbus_6, on_sigbus_7,
};
/* clang-format on */

/*
 * A handler that was installed a second time, over ours, may hand the signal down
 * to the layer that covers it.  Then nobody is left to ask.  Told by the context,
 * which such handlers pass on, and by the address: one that leaves by longjmp()
 * does not come back to reset this.
 */
struct passing {
    const void *context;
    uintptr_t frame;
    unsigned layers;
};
GUARD_TLS struct passing passing;

/* A SIGBUS that this thread had blocked, until it is blocked again; si_signo 0: none. */
GUARD_TLS bool postponing;
GUARD_TLS siginfo_t postponed;

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

static void pass_on(int layer, int signal_number, siginfo_t *info, void *context)
{
    const struct passing outer = passing;
    uintptr_t frame = (uintptr_t)__builtin_frame_address(0);
    bool is_nested = context == outer.context && frame < outer.frame;
    struct sigaction to = covered[layer];
    if ((is_nested && (outer.layers & (1u << layer)) != 0) || to.sa_handler == SIG_DFL ||
        (to.sa_handler == SIG_IGN && info->si_code > 0)) {
        end_by_default(signal_number, info);
        return;
    }
    if (to.sa_handler == SIG_IGN)
        return;
    if ((to.sa_flags & (int)SA_RESETHAND) != 0)
        covered[layer].sa_handler = SIG_DFL;
    sigset_t blocked = to.sa_mask, before;
    if ((to.sa_flags & SA_NODEFER) == 0)
        sigaddset(&blocked, signal_number);
    pthread_sigmask(SIG_BLOCK, &blocked, &before);
    passing = (struct passing){context, frame, (is_nested ? outer.layers : 0) | 1u << layer};
    if ((to.sa_flags & SA_SIGINFO) != 0)
        to.sa_sigaction(signal_number, info, context);
    else
        to.sa_handler(signal_number);
    passing = outer;
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

/* Sent, not caused by the instruction that it interrupts. */
static bool was_sent(const siginfo_t *info)
{
    return info->si_code <= 0 || info->si_code == BUS_MCEERR_AO;
}

static void on_sigbus(int layer, int signal_number, siginfo_t *info, void *context)
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
    if (!postponing || !was_sent(info))
        pass_on(layer, signal_number, info, context);
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

static bool is_same(const struct sigaction *one, const struct sigaction *other)
{
    /* Of the mask libc fills in only as much as the kernel has. */
    return one->sa_sigaction == other->sa_sigaction && one->sa_flags == other->sa_flags &&
           memcmp(&one->sa_mask, &other->sa_mask, (_NSIG - 1) / 8) == 0;
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

static void install_over(struct sigaction *found)
{
    struct sigaction ours;
    memset(&ours, 0, sizeof ours);
    ours.sa_flags = OUR_FLAGS;
    sigemptyset(&ours.sa_mask);
    bool disturbed = true;
    for (int before = -1; disturbed;) {
        int layer = layer_of(found);
        if (layer < 0)
            layer = layer_over(found);
        ours.sa_sigaction = layers[layer];
        struct sigaction replaced;
        if (sigaction(SIGBUS, &ours, &replaced) != 0)
            return;
        /* Another thread came in between: what it installed is what counts. */
        disturbed = before < 0 ? !is_same(&replaced, found) : layer_of(&replaced) != before;
        before = layer;
        *found = replaced;
    }
}

/*
 * By whatever way the program took our handler away, it did not ask us.  A failing
 * sigaction() (a sandbox may forbid it) leaves things as they are.
 */
static void be_on_top(void)
{
    struct sigaction found;
    /* signal() puts a handler back without its flags. */
    if (sigaction(SIGBUS, NULL, &found) != 0 ||
        (layer_of(&found) >= 0 && (found.sa_flags & OUR_FLAGS) == OUR_FLAGS))
        return;
    pthread_mutex_lock(&installing);
    if (sigaction(SIGBUS, NULL, &found) == 0)
        install_over(&found);
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
/* About a millisecond, for hr_guard_spaced_runs(). */
#define SPACED_TICKS 3000000

static _Atomic uint64_t burst_ticks = BURST_TICKS, checked_ticks = CHECKED_TICKS;

void hr_guard_spaced_runs(void)
{
    atomic_store_explicit(&burst_ticks, SPACED_TICKS, memory_order_relaxed);
    atomic_store_explicit(&checked_ticks, SPACED_TICKS, memory_order_relaxed);
}

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
    bool in_burst = now - last_began < atomic_load_explicit(&burst_ticks, memory_order_relaxed) &&
                    now - last_checked < atomic_load_explicit(&checked_ticks, memory_order_relaxed);
    last_began = now;
    return __builtin_expect(!in_burst, 0) && check(now);
}

void hr_guard_end(bool unblocked)
{
    if (__builtin_expect(!unblocked, 1))
        return;
    change_sigbus(SIG_BLOCK);
    last_checked = 0;
    postponing = false;
    siginfo_t info = postponed;
    postponed.si_signo = 0;
    if (info.si_signo == 0)
        return;
    /* The kernel lets nobody name a sender but the thread itself, by its own number:
     * that leads to the whole process too. */
    pid_t thread = (pid_t)syscall(SYS_gettid);
    if (info.si_code == SI_TKILL)
        syscall(SYS_rt_tgsigqueueinfo, getpid(), thread, SIGBUS, &info);
    else
        syscall(SYS_rt_sigqueueinfo, thread, SIGBUS, &info);
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
