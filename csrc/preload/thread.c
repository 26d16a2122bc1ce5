/*
 * The one thread of this library in a program: from the session's attachment on it reads the
 * limits, sets the rate of launches, reconciles pools, measures contexts, and looks after
 * neighbours that have died.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "../internal.h"
#include "burst.h"
#include "complain.h"
#include "hooks.h"
#include "limits.h"
#include "memory.h"
#include "samples.h"
#include "session.h"

enum {
    SUSPENDED = 2,      /* status of a slot */
    IDLE_TENTHS = 5,    /* between two passes while no row is limited; and pools are reconciled */
    ROUND_TENTHS = 10,  /* contexts, status and neighbours */
    SEARCH_TENTHS = 50, /* neighbours that became other programs */
    END_S = 1           /* how long the program's end waits for a pass */
};

#define TENTH_NS 100000000u
#define LISTED_US 5000000u /* how long NVML may take to list this process */
#define NO_RATE_LIMIT 1e17 /* tokens a second */

/* A row whose SM limit is held. */
struct paced_row {
    bool has_begun;     /* under the limit that it has now */
    bool is_impossible; /* its limit cannot be held */
    bool is_listed;     /* NVML lists this process among those that use the device */
    uint64_t begun_us;
    uint64_t shown_percent; /* as the own slot has it */
    nvmlDevice_t device;
    struct hr_law law;
    struct hr_samples samples;
    struct hr_burst burst;
};

static struct paced_row paced[HR_DEVICES];
static uint64_t shown_bytes[HR_DEVICES]; /* NVML's figure, as the own slot has it */
static struct hr_busy_list busy;
static bool has_reported_pid;

static _Atomic bool runs;
static _Atomic bool is_ending;
/* Held during a pass: the process does not take the driver down under one. */
static pthread_mutex_t in_pass = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t resting = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t hurried = PTHREAD_COND_INITIALIZER;

static uint64_t now_us(void)
{
    return hr_clock_ns(CLOCK_REALTIME) / 1000;
}

/* ---- SM limits ------------------------------------------------------------------------ */

static void give_up(int row, const char *why)
{
    paced[row].is_impossible = true;
    hr_set_rule(row, HR_ROW_FREE);
    hr_complain("the SM limit of device %d cannot be held: %s", row, why);
}

static void begin_row(hr_region *region, int row)
{
    struct paced_row *one = &paced[row];
    struct hr_info info;
    int processors = 0;
    CUdevice device = hr_device_of_row(row);
    /* Nothing is launched on a device that this process has not used so far. */
    if (device < 0)
        return;
    hr_get_info(region, &info);
    if (HR_CUDA(cuDeviceGetAttribute)(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                                      device) != CUDA_SUCCESS ||
        processors <= 0) {
        give_up(row, "the driver does not say how large it is");
        return;
    }
    one->begun_us = now_us();
    if (!hr_nvml_device(row, &one->device) ||
        !hr_nvml_busy(one->device, one->begun_us - LISTED_US, &busy)) {
        give_up(row, "NVML does not tell how busy each process keeps it");
        return;
    }
    atomic_store_explicit(&hr_rows[row].unit_cost, (uint32_t)processors, memory_order_relaxed);
    hr_reset_bucket(&hr_rows[row].bucket, hr_clock_ns(CLOCK_MONOTONIC));
    hr_start_law(&one->law, (double)one->begun_us / 1e6);
    hr_start_samples(&one->samples, one->begun_us);
    hr_start_burst(&one->burst);
    one->has_begun = true;
    hr_set_rule(row, HR_ROW_PACED);
}

/* Figures that are another process's, or no process's, would let everything through. */
static void check_own_pid(int row)
{
    struct paced_row *one = &paced[row];
    if (!one->is_listed)
        one->is_listed = hr_is_listed(row, one->device);
    if (!one->is_listed && now_us() - one->begun_us > LISTED_US)
        give_up(row, "NVML does not show this process by a pid that it can be known by");
}

static bool is_unwanted(struct paced_row *one, const struct hr_figures *figures, double now_s)
{
    if (!atomic_load_explicit(&hr_is_burst, memory_order_relaxed))
        return false;
    struct hr_process_list *contexts = hr_nvml_processes(one->device);
    bool found = contexts != NULL &&
                 hr_is_unwanted(&one->burst, figures, contexts->list, contexts->count, now_s);
    free(contexts);
    return found;
}

static void step(hr_region *region, const struct hr_snapshot *snapshot, int row)
{
    struct paced_row *one = &paced[row];
    struct hr_bucket *bucket = &hr_rows[row].bucket;
    struct hr_law_view view;
    static unsigned pids[HR_SLOTS];
    struct hr_figures figures = {.list = busy.list,
                                 .count = busy.count,
                                 .device_percent = hr_nvml_device_busy(one->device),
                                 .pids = pids,
                                 .own = hr_own_nvml_pid()};
    for (uint32_t at = 0; (int32_t)at < snapshot->process_count && at < HR_SLOTS; at++)
        pids[figures.pid_count++] = hr_slot_nvml_pid(hr_snapshot_process(snapshot, at));
    pids[figures.pid_count < HR_SLOTS ? figures.pid_count++ : 0] = figures.own;
    if (!hr_take_sample(&one->samples, &figures, now_us(), &view))
        return;
    bool is_free = is_unwanted(one, &figures, view.now_s);
    uint32_t limit = atomic_load_explicit(&hr_rows[row].limit, memory_order_relaxed);
    view.limit = is_free ? 1 : limit / 100.0;
    view.has_waited = atomic_exchange_explicit(&bucket->has_waited, false, memory_order_relaxed);
    double rate = hr_step_law(&one->law, &view);
    hr_set_rate(bucket, is_free ? NO_RATE_LIMIT : rate);
    if (one->law.units <= 0)
        hr_grant_launch(bucket);
    hr_show_in_slot(region, HR_SLOT_SM, row, (uint64_t)(view.own * 100 + 0.5), &one->shown_percent);
}

/* Returns whether a row has a limit in force. */
static bool pace_rows(hr_region *region)
{
    bool is_any = false;
    struct hr_snapshot *snapshot = NULL;
    for (int row = 0; row < HR_DEVICES; row++) {
        struct paced_row *one = &paced[row];
        if (atomic_load_explicit(&hr_rows[row].limit, memory_order_relaxed) == HR_NO_LIMIT) {
            if (one->has_begun)
                hr_show_in_slot(region, HR_SLOT_SM, row, 0, &one->shown_percent);
            one->has_begun = false;
            continue;
        }
        is_any = true;
        if (one->is_impossible)
            continue;
        if (!one->has_begun)
            begin_row(region, row);
        if (!one->has_begun)
            continue;
        hr_note_units(&one->samples, now_us(), (double)hr_taken_tokens(&hr_rows[row].bucket));
        int code;
        if (!hr_is_sample_due(&one->samples, now_us()) ||
            !hr_nvml_busy(one->device, one->samples.newest_us, &busy))
            continue;
        if (snapshot == NULL)
            snapshot = hr_new_snapshot(region, &code);
        if (snapshot == NULL)
            break;
        check_own_pid(row);
        step(region, snapshot, row);
    }
    free(snapshot);
    return is_any;
}

/* ---- Neighbours ----------------------------------------------------------------------- */

/* One process of the region looks after the others: the one with the lowest pid that is there. */
static bool is_first(const struct hr_snapshot *snapshot)
{
    for (uint32_t number = 0; (int32_t)number < snapshot->process_count; number++) {
        int32_t pid = hr_snapshot_process(snapshot, number)->pid;
        if (pid > 0 && pid < getpid() && hr_is_here(pid))
            return false;
    }
    return true;
}

static void note_status(const struct hr_snapshot *snapshot)
{
    bool is_suspended = false; /* a process whose slot was taken away could not be resumed */
    for (uint32_t number = 0; (int32_t)number < snapshot->process_count; number++) {
        const struct hr_process *process = hr_snapshot_process(snapshot, number);
        if (process->pid == getpid())
            is_suspended = process->status == SUSPENDED;
    }
    hr_set_hold(HR_HOLD_SUSPENDED, is_suspended);
}

static void check_neighbours(hr_region *region, const struct hr_snapshot *snapshot, unsigned tenth)
{
    /* Any process of the region can forge a slot that keeps all others from being the first.  So
     * each of them looks from time to time, only at those whose pid is gone, which costs little. */
    bool is_time = tenth % SEARCH_TENTHS == 0;
    bool first = is_first(snapshot);
    if (snapshot->process_count > 1 && (first || is_time))
        hr_reap_neighbours(region, first && is_time);
}

static void measure_contexts(hr_region *region)
{
    for (int row = 0; row < HR_DEVICES; row++)
        hr_show_in_slot(region, HR_SLOT_MONITOR_USED, row, hr_measure_contexts(row),
                        &shown_bytes[row]);
}

/* ---- Passes --------------------------------------------------------------------------- */

/* A damaged table would keep a process suspended for ever. */
static void check_status(hr_region *region, unsigned tenth)
{
    int code;
    struct hr_snapshot *snapshot = hr_new_snapshot(region, &code);
    if (snapshot == NULL && code == HR_ECORRUPT)
        hr_lose_session(code);
    if (snapshot == NULL)
        return;
    note_status(snapshot);
    if (tenth % ROUND_TENTHS == 0)
        check_neighbours(region, snapshot, tenth);
    free(snapshot);
}

/* Returns how many tenths of a second until the next pass. */
static unsigned pass(hr_region *region, unsigned tenth)
{
    int code = hr_read_limits(region);
    if (code != HR_OK) {
        hr_lose_session(code);
        return 1;
    }
    if (!has_reported_pid)
        hr_report_host_pid(region);
    has_reported_pid = true;
    bool is_paced = pace_rows(region);
    if (tenth % IDLE_TENTHS == 0)
        hr_reconcile_pools();
    bool is_suspended = (hr_current_holds() & HR_HOLD_SUSPENDED) != 0;
    if (tenth % ROUND_TENTHS == 0 || is_suspended)
        check_status(region, tenth);
    if (tenth % ROUND_TENTHS == 0)
        measure_contexts(region);
    is_suspended = (hr_current_holds() & HR_HOLD_SUSPENDED) != 0;
    return is_paced || is_suspended ? 1 : IDLE_TENTHS - tenth % IDLE_TENTHS;
}

static void rest(unsigned tenths)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)(tenths * TENTH_NS);
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&resting);
    pthread_cond_timedwait(&hurried, &resting, &until);
    pthread_mutex_unlock(&resting);
}

static void *run(void *argument)
{
    (void)argument;
    /* A first full round would only find what the first context has found. */
    for (unsigned tenth = 1, next = 1;; tenth += next) {
        pthread_mutex_lock(&in_pass);
        hr_region *region = hr_session_region();
        /* A thread that first runs as the program ends must not ask the driver. */
        bool is_over = atomic_load_explicit(&is_ending, memory_order_relaxed) || region == NULL;
        if (!is_over) {
            hr_relax_capture();
            next = pass(region, tenth);
        } else {
            /* Launches may wait that nothing else would let go on. */
            hr_open_gate();
            hr_set_hold(HR_HOLD_SUSPENDED, false);
        }
        pthread_mutex_unlock(&in_pass);
        if (is_over)
            return NULL;
        rest(next);
    }
}

/* ---- Its life ------------------------------------------------------------------------- */

/* Wait for a pass in progress, and begin no other; launches are not held up any more.  By atexit(),
 * as the driver may end by that, before any destructor. */
static void end_thread(void)
{
    struct timespec deadline;
    /* In a forked child there is no thread, and its locks may look taken. */
    if (hr_session_state() == HR_SESSION_FORKED)
        return;
    atomic_store_explicit(&is_ending, true, memory_order_relaxed);
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += END_S;
    if (pthread_mutex_timedlock(&in_pass, &deadline) == 0)
        pthread_mutex_unlock(&in_pass);
    hr_open_gate();
}

/* A thread that is never joined, and in which no signal that was sent to the program is handled. */
static bool create_thread(void)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&hurried, &monotonic);
    pthread_condattr_destroy(&monotonic);
    /* The kernel ends a program that blocks a signal of its own instruction: the program may have
     * a handler for it, such as that of a sandbox, which answers for system calls (SIGSYS). */
    static const int caused[] = {SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};
    sigset_t sent, before;
    sigfillset(&sent);
    for (size_t at = 0; at < sizeof caused / sizeof caused[0]; at++)
        sigdelset(&sent, caused[at]);
    pthread_sigmask(SIG_SETMASK, &sent, &before);
    pthread_t thread;
    bool is_created = pthread_create(&thread, NULL, run, NULL) == 0;
    if (is_created)
        pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return is_created;
}

void hr_start_thread(void)
{
    if (hr_session_region() == NULL || atomic_exchange_explicit(&runs, true, memory_order_relaxed))
        return;
    atexit(end_thread);
    if (create_thread())
        return;
    hr_complain("no thread could be started: SM limits are not held, and later changes not seen");
    hr_open_gate();
}

void hr_hurry_thread(void)
{
    pthread_mutex_lock(&resting);
    pthread_cond_signal(&hurried);
    pthread_mutex_unlock(&resting);
}
