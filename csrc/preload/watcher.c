#define _GNU_SOURCE
#include "watcher.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "charges.h"
#include "context_memory.h"
#include "forks.h"
#include "pools.h"
#include "session.h"
#include "snapshots.h"
#include "threads.h"
#include "throttle.h"

enum {
    SUSPENDED = 2, /* status of a slot */
    TENTHS = 10,
    LIMITS_TENTHS = 5,   /* the limits are read twice a second */
    LOOK_AT_ALL_EACH = 5 /* of how many rounds one looks for neighbours that became others */
};

#define TENTH_NS 100000000L

static _Atomic bool runs;
static _Atomic bool is_ending;
/* Held during a round: the process does not take the driver down under one. */
static pthread_mutex_t in_round = PTHREAD_MUTEX_INITIALIZER;

/* ---- Neighbours ------------------------------------------------------------------------- */

static bool is_there(int32_t pid)
{
    return kill(pid, 0) == 0 || errno == EPERM;
}

/* One process of the region looks after the others: the one with the lowest pid that is there. */
static bool is_first(const struct hr_snapshot *snapshot)
{
    for (uint32_t number = 0; (int32_t)number < snapshot->proc_num; number++) {
        int32_t pid = hr_snapshot_process(snapshot, number)->pid;
        if (pid > 0 && pid < getpid() && is_there(pid))
            return false;
    }
    return true;
}

static void let_go_on(void)
{
    atomic_fetch_and_explicit(&hr_holds, ~(unsigned)HR_HOLD_SUSPENDED, memory_order_relaxed);
}

static void note_status(const struct hr_snapshot *snapshot)
{
    bool is_suspended = false; /* nobody could resume a process whose slot was taken away */
    for (uint32_t number = 0; (int32_t)number < snapshot->proc_num; number++) {
        const struct hr_process *process = hr_snapshot_process(snapshot, number);
        if (process->pid == getpid())
            is_suspended = process->status == SUSPENDED;
    }
    if (is_suspended)
        atomic_fetch_or_explicit(&hr_holds, HR_HOLD_SUSPENDED, memory_order_relaxed);
    else
        let_go_on();
}

/* ---- Rounds ------------------------------------------------------------------------------ */

/* A damaged table would let nobody resume a process, and hold its launches for ever. */
static void look_around(hr_region *region, unsigned round)
{
    int code;
    struct hr_snapshot *snapshot = hr_new_snapshot(region, &code);
    if (snapshot == NULL) {
        if (code == HR_ECORRUPT)
            hr_lose_session(code);
        return;
    }
    note_status(snapshot);
    /* Any process of the region can forge a slot that keeps all others from being the first.  So
     * each of them looks from time to time, only at those whose pid is gone, which costs little. */
    bool at_all = round % LOOK_AT_ALL_EACH == 0;
    bool first = is_first(snapshot);
    if (snapshot->proc_num > 1 && (first || at_all))
        hr_reap_neighbours(region, first && at_all);
    free(snapshot);
    for (int row = 0; row < HR_DEVICES; row++)
        hr_measure_contexts(row);
}

/*
 * A round is a second.  Its tenths are for what should show at once: that this process goes on
 * after it was suspended, and that the driver has taken back what a pool held.
 */
static bool is_hurried(hr_region *region, bool has_more)
{
    bool is_suspended = (hr_current_holds() & HR_HOLD_SUSPENDED) != 0;
    if (is_suspended) {
        int code;
        struct hr_snapshot *snapshot = hr_new_snapshot(region, &code);
        if (snapshot != NULL)
            note_status(snapshot);
        free(snapshot);
    }
    return is_suspended || has_more;
}

static void rest(long pause_ns)
{
    const struct timespec pause = {.tv_sec = pause_ns / 1000000000,
                                   .tv_nsec = pause_ns % 1000000000};
    nanosleep(&pause, NULL);
}

/* This asks the driver, which a thread that first runs as the program ends must not do. */
static void begin_to_watch(void)
{
    pthread_mutex_lock(&in_round);
    if (!atomic_load_explicit(&is_ending, memory_order_relaxed))
        hr_relax_capture();
    pthread_mutex_unlock(&in_round);
}

static void *watch(void *argument)
{
    (void)argument;
    begin_to_watch();
    /* What a round would find now, the first context has found. */
    rest(LIMITS_TENTHS * TENTH_NS);
    for (unsigned tenth = LIMITS_TENTHS;;) {
        pthread_mutex_lock(&in_round);
        hr_region *region = hr_session_region();
        bool is_over = atomic_load_explicit(&is_ending, memory_order_relaxed) || region == NULL;
        bool hurried = false;
        if (!is_over) {
            int code = hr_look_at_limits(region);
            if (code != HR_OK)
                hr_lose_session(code);
            if (tenth % TENTHS == 0)
                look_around(region, tenth / TENTHS);
            hurried = is_hurried(region, hr_settle_pools());
        }
        /* Launches may wait that nobody else would let go on; and a round may have said otherwise
         * while the session was lost. */
        if (is_over) {
            hr_end_throttle();
            let_go_on();
        }
        pthread_mutex_unlock(&in_round);
        if (is_over)
            return NULL;
        unsigned tenths = hurried ? 1 : LIMITS_TENTHS - tenth % LIMITS_TENTHS;
        rest(tenths * TENTH_NS);
        tenth += tenths;
    }
}

/* ---- Its life ---------------------------------------------------------------------------- */

void hr_fork_watcher(enum hr_fork at)
{
    if (at != HR_IN_CHILD)
        return;
    /* The thread is the parent's, and so may be the lock. */
    pthread_mutex_init(&in_round, NULL);
    atomic_store_explicit(&runs, false, memory_order_relaxed);
}

/* Wait for a round in progress, and begin no other.  By atexit(), as the driver may end by that,
 * before any destructor. */
static void end_watcher(void)
{
    struct timespec deadline;
    atomic_store_explicit(&is_ending, true, memory_order_relaxed);
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec++;
    if (pthread_mutex_timedlock(&in_round, &deadline) == 0)
        pthread_mutex_unlock(&in_round);
}

static void register_end(void)
{
    atexit(end_watcher);
}

void hr_start_watcher(void)
{
    static pthread_once_t end = PTHREAD_ONCE_INIT;
    if (hr_session_region() == NULL || atomic_exchange_explicit(&runs, true, memory_order_relaxed))
        return;
    pthread_once(&end, register_end);
    if (!hr_start_thread(watch))
        atomic_store_explicit(&runs, false, memory_order_relaxed);
}
