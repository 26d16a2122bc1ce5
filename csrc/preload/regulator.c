#define _GNU_SOURCE
#include "regulator.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "../internal.h"
#include "../lock.h"
#include "complaints.h"
#include "crowd.h"
#include "cuda_functions.h"
#include "neighbours.h"
#include "own_pid.h"
#include "pace.h"
#include "sampler.h"
#include "snapshots.h"
#include "soft_limit.h"
#include "threads.h"
#include "throttle.h"

#define PASS_NS 100000000u
#define SHOWN_NS 5000000000u              /* how long NVML may take to name this process */
#define IDLE_PASS_NS 500000000u           /* while nothing is limited */
#define MAPPERS_NS 1000000000u            /* between two searches for libvgpu, */
#define INCOMPLETE_MAPPERS_NS 5000000000u /* and after one that has not seen everybody */
#define END_S 1                           /* how long the program's end waits for a pass */

/* One row, as the regulator sees it. */
struct regulated_row {
    bool has_begun;     /* under the limit that it has now */
    bool is_impossible; /* its limit cannot be held */
    bool is_shown;      /* NVML names this process among those that use the device */
    uint64_t begun_ns, ticked_ns;
    struct hr_pace pace;
    struct hr_crowd crowd;
    struct hr_soft_limit soft;
};

static struct regulated_row regulated[HR_DEVICES];
static bool is_beside; /* libvgpu takes part in the region */
static uint64_t known_pids, next_search_ns;
static const char *thread_name; /* NULL: as the program has it */

static _Atomic bool runs;
static _Atomic bool is_ending;
/* Held during a pass: the process does not take the driver down under one. */
static pthread_mutex_t in_pass = PTHREAD_MUTEX_INITIALIZER;

/* ---- The processes of the region ------------------------------------------------------ */

/* Changes with the set of processes, whatever their order. */
static uint64_t sum_of_pids(const struct hr_snapshot *snapshot)
{
    uint64_t sum = (uint64_t)snapshot->proc_num;
    for (uint32_t number = 0; number < (uint32_t)snapshot->proc_num; number++)
        sum += ((uint64_t)hr_snapshot_process(snapshot, number)->pid + 1) * 0x9e3779b97f4a7c15u;
    return sum;
}

static int find_slot_owners(hr_region *region, struct hr_mappers *out)
{
    struct hr_slot_pids slots;
    int code = hr_enter(region);
    if (code != HR_OK)
        return code;
    code = hr_read_slot_pids(region, &slots);
    hr_leave(region);
    return code == HR_OK ? hr_look_for_mappers(region, NULL, &slots, out) : code;
}

/* This process uses the region without libvgpu: else it could not have attached. */
static bool is_alone(const struct hr_snapshot *snapshot)
{
    return snapshot->proc_num == 1 && hr_snapshot_process(snapshot, 0)->pid == getpid();
}

static void look_for_libvgpu(hr_region *region, const struct hr_snapshot *snapshot, uint64_t now_ns)
{
    uint64_t pids = sum_of_pids(snapshot);
    struct hr_mappers mappers;
    if (pids == known_pids || now_ns < next_search_ns)
        return;
    if (is_alone(snapshot)) {
        is_beside = false;
        known_pids = pids;
        return;
    }
    next_search_ns = now_ns + MAPPERS_NS;
    if (find_slot_owners(region, &mappers) != HR_OK)
        return;
    is_beside = false;
    for (uint32_t at = 0; at < mappers.count; at++)
        is_beside = is_beside || mappers.list[at].has_libvgpu;
    /* What was not seen this time, on a busy machine, may be seen later. */
    if (mappers.incomplete)
        next_search_ns = now_ns + INCOMPLETE_MAPPERS_NS;
    else
        known_pids = pids;
    hr_free_mappers(&mappers);
}

/* ---- Rows ----------------------------------------------------------------------------- */

static bool read_device(CUdevice device, uint32_t *sm_count, uint32_t *threads)
{
    int processors = 0, each = 0;
    if (HR_CUDA(cuDeviceGetAttribute)(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                                      device) != CUDA_SUCCESS ||
        HR_CUDA(cuDeviceGetAttribute)(&each, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR,
                                      device) != CUDA_SUCCESS)
        return false;
    *sm_count = (uint32_t)processors;
    *threads = (uint32_t)each;
    return processors > 0 && each > 0;
}

/* For as long as the process lives: launches may be waiting in it. */
static bool make_limiter(hr_region *region, int row, uint32_t sm_count, uint32_t threads)
{
    hr_limiter *limiter;
    if (atomic_load_explicit(&hr_rows[row].limiter, memory_order_relaxed) != NULL)
        return true;
    if (hr_limiter_new(sm_count, threads, 0, region, (uint32_t)row, &limiter, NULL) != HR_OK)
        return false;
    atomic_store_explicit(&hr_rows[row].limiter, limiter, memory_order_release);
    return true;
}

static void give_up(int row, const char *why)
{
    regulated[row].is_impossible = true;
    hr_set_rule(row, HR_ROW_FREE);
    hr_complain("the SM limit of device %d cannot be held: %s", row, why);
}

static void begin_row(hr_region *region, const struct hr_snapshot *snapshot, int row,
                      uint64_t now_ns)
{
    struct regulated_row *one = &regulated[row];
    uint32_t sm_count, threads;
    CUdevice device = hr_device_of_row(row);
    /* Nothing is launched on a device that this process has not used so far. */
    if (device < 0)
        return;
    if (!read_device(device, &sm_count, &threads)) {
        give_up(row, "the driver does not say how large it is");
        return;
    }
    if (!hr_can_sample(region, snapshot, row)) {
        give_up(row, "NVML does not tell how busy each process keeps it");
        return;
    }
    if (!make_limiter(region, row, sm_count, threads)) {
        give_up(row, "there is no memory");
        return;
    }
    atomic_store_explicit(&hr_rows[row].sm_count, sm_count, memory_order_relaxed);
    hr_reset_bucket(&hr_rows[row].bucket, now_ns);
    hr_start_pace(&one->pace, (double)now_ns / 1e9);
    hr_forget_crowd(&one->crowd);
    hr_start_soft_limit(&one->soft, (double)now_ns / 1e9);
    hr_forget_neighbours(row);
    one->has_begun = true;
    one->begun_ns = one->ticked_ns = now_ns;
    hr_set_rule(row, is_beside ? HR_ROW_BESIDE : HR_ROW_PACED);
}

/* ---- Steps ---------------------------------------------------------------------------- */

/* What the figures of all processes say about a row. */
static void read_figures(const struct hr_snapshot *snapshot, int row, struct hr_pace_view *view)
{
    uint64_t all = 0;
    view->own = view->all = 0;
    view->users = 1;
    if ((uint32_t)row >= snapshot->span)
        return;
    for (uint32_t number = 0; number < (uint32_t)snapshot->proc_num; number++) {
        uint64_t sm = hr_snapshot_usage(snapshot, number, (uint32_t)row)->sm;
        all = hr_add_saturating(all, sm);
        if (hr_snapshot_process(snapshot, number)->pid == getpid())
            view->own = sm < 100 ? (double)sm : 100;
        else if (sm > 0)
            view->users++;
    }
    view->all = all < 100 ? (double)all : 100;
}

/* The figures of few processes tell enough. */
static void look_at_crowd(hr_region *region, const struct hr_snapshot *snapshot, int row,
                          struct hr_pace_view *view)
{
    struct regulated_row *one = &regulated[row];
    struct hr_device_figures figures;
    uint32_t processes = hr_count_users(snapshot, row);
    if (processes < HR_CROWD)
        return;
    if (hr_read_device_figures(region, snapshot, row, &figures)) {
        hr_note_crowd(&one->crowd, view->now_s, figures.device, figures.beside);
        view->sample_s = figures.sample_s;
    }
    hr_complete_view(&one->crowd, processes, one->pace.rate <= 0, view);
}

/* What the processes of the region may use together now. */
static uint32_t allow(const struct hr_snapshot *snapshot, int row, uint32_t limit, uint64_t now_ns)
{
    nvmlDevice_t device;
    struct hr_neighbours others;
    struct hr_soft_limit *soft = &regulated[row].soft;
    const double now_s = (double)now_ns / 1e9;
    if (!atomic_load_explicit(&hr_is_burst, memory_order_relaxed)) {
        hr_start_soft_limit(soft, now_s);
        return limit;
    }
    bool is_known = hr_sampled_device(snapshot, row, &device) &&
                    hr_look_at_neighbours(snapshot, row, device, now_ns, &others);
    struct hr_soft_view view = {.now_s = now_s, .limit = limit, .is_disturbed = true};
    if (is_known) {
        view.is_disturbed = others.is_disturbed;
        view.own = others.own;
        view.soft = others.soft;
    }
    return hr_step_soft_limit(soft, &view);
}

static void step(hr_region *region, const struct hr_snapshot *snapshot, int row, uint64_t now_ns)
{
    struct hr_row *here = &hr_rows[row];
    struct regulated_row *one = &regulated[row];
    struct hr_pace_view view = {
        .now_s = (double)now_ns / 1e9,
        .launched = (double)hr_taken_tokens(&here->bucket),
        .limit = atomic_load_explicit(&here->limit, memory_order_relaxed),
        .has_waited =
            atomic_exchange_explicit(&here->bucket.has_waited, false, memory_order_relaxed),
    };
    read_figures(snapshot, row, &view);
    if (is_beside) {
        hr_limiter_tick(atomic_load_explicit(&here->limiter, memory_order_relaxed),
                        (int32_t)view.all, NULL);
    } else {
        view.limit = allow(snapshot, row, view.limit, now_ns);
        look_at_crowd(region, snapshot, row, &view);
        hr_set_rate(&here->bucket, hr_step_pace(&one->pace, &view));
    }
    one->ticked_ns = now_ns;
}

/* Figures that are another process's, or nobody's, would let everything through. */
static void check_own_pid(hr_region *region, const struct hr_snapshot *snapshot, int row,
                          uint64_t now_ns)
{
    struct regulated_row *one = &regulated[row];
    nvmlDevice_t device;
    if (one->is_shown || !hr_sampled_device(snapshot, row, &device))
        return;
    one->is_shown = hr_find_own_pid(region, snapshot, row, device);
    if (!one->is_shown && now_ns - one->begun_ns > SHOWN_NS)
        give_up(row, "NVML does not show this process by a pid that it can be known by");
}

static void regulate_row(hr_region *region, struct hr_snapshot *snapshot, int row, uint64_t now_ns)
{
    struct regulated_row *one = &regulated[row];
    const uint64_t period_ns = is_beside ? HR_LIMITER_PERIOD_NS : PASS_NS;
    if (!one->is_impossible && one->has_begun &&
        now_ns - one->ticked_ns >= period_ns - period_ns / 8) {
        check_own_pid(region, snapshot, row, now_ns);
        step(region, snapshot, row, now_ns);
    }
}

/* ---- Passes --------------------------------------------------------------------------- */

/* The rows with a limit in force, one bit each. */
static uint32_t limited_rows(void)
{
    uint32_t rows = 0;
    for (int row = 0; row < HR_DEVICES; row++) {
        if (atomic_load_explicit(&hr_rows[row].limit, memory_order_relaxed) != HR_NO_LIMIT)
            rows |= 1u << row;
        else
            regulated[row].has_begun = false;
    }
    return rows;
}

static void regulate(hr_region *region, uint32_t rows)
{
    int code;
    struct hr_snapshot *snapshot = hr_new_snapshot(region, &code);
    uint64_t now_ns = hr_clock_ns(CLOCK_MONOTONIC);
    if (snapshot == NULL)
        return;
    /* First, as launches wait for it: to look through /proc takes long where there is much. */
    for (int row = 0; row < HR_DEVICES; row++) {
        if ((rows >> row & 1) != 0 && !regulated[row].has_begun && !regulated[row].is_impossible)
            begin_row(region, snapshot, row, now_ns);
    }
    bool was_beside = is_beside;
    look_for_libvgpu(region, snapshot, now_ns);
    hr_sample(region, snapshot, rows);
    for (int row = 0; row < HR_DEVICES; row++) {
        if ((rows >> row & 1) == 0)
            continue;
        if (was_beside != is_beside)
            regulated[row].has_begun = false;
        regulate_row(region, snapshot, row, now_ns);
    }
    free(snapshot);
}

/* By this name others know a program whose limits are soft (neighbours.h). */
static void name_thread(void)
{
    bool is_burst = atomic_load_explicit(&hr_is_burst, memory_order_relaxed);
    const char *name = is_burst ? HR_SOFT_THREAD : HR_HARD_THREAD;
    if (name != thread_name)
        pthread_setname_np(pthread_self(), name);
    thread_name = name;
}

/* Returns how long until the next pass. */
static uint64_t pass(void)
{
    hr_region *region = hr_session_region();
    if (region == NULL) {
        hr_end_throttle();
        return IDLE_PASS_NS;
    }
    int code = hr_look_at_limits(region);
    if (code != HR_OK) {
        hr_resign_sampler(region);
        hr_lose_session(code);
        hr_end_throttle();
        return IDLE_PASS_NS;
    }
    name_thread();
    uint32_t rows = limited_rows();
    if (rows == 0)
        return IDLE_PASS_NS;
    regulate(region, rows);
    return PASS_NS;
}

static void rest(uint64_t ns)
{
    const struct timespec time = {.tv_nsec = (long)ns};
    nanosleep(&time, NULL);
}

/* This asks the driver, which a thread that first runs as the program ends must not do. */
static void begin_to_regulate(void)
{
    pthread_mutex_lock(&in_pass);
    hr_region *region = hr_session_region();
    if (!atomic_load_explicit(&is_ending, memory_order_relaxed)) {
        hr_relax_capture();
        if (region != NULL)
            hr_tell_host_pid(region);
    }
    pthread_mutex_unlock(&in_pass);
}

static void *run(void *argument)
{
    (void)argument;
    begin_to_regulate();
    for (;;) {
        pthread_mutex_lock(&in_pass);
        bool is_over = atomic_load_explicit(&is_ending, memory_order_relaxed);
        uint64_t pause_ns = is_over ? 0 : pass();
        pthread_mutex_unlock(&in_pass);
        if (is_over)
            return NULL;
        rest(pause_ns);
    }
}

/* ---- Its life ------------------------------------------------------------------------- */

/* As the program ends, before libraries are taken down: wait for a pass, and begin no other.  A
 * thread that launches meanwhile is not held up any more. */
static void end_regulator(void)
{
    struct timespec deadline;
    if (!atomic_load_explicit(&runs, memory_order_relaxed))
        return;
    atomic_store_explicit(&is_ending, true, memory_order_relaxed);
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += END_S;
    if (pthread_mutex_timedlock(&in_pass, &deadline) == 0)
        pthread_mutex_unlock(&in_pass);
    hr_end_throttle();
}

void hr_forget_regulator(void)
{
    pthread_mutex_init(&in_pass, NULL);
    for (int row = 0; row < HR_DEVICES; row++)
        regulated[row] = (struct regulated_row){.has_begun = false};
    is_beside = false;
    known_pids = next_search_ns = 0;
    thread_name = NULL;
    hr_forget_sampler();
    atomic_store_explicit(&is_ending, false, memory_order_relaxed);
    atomic_store_explicit(&runs, false, memory_order_relaxed);
}

static void register_end(void)
{
    atexit(end_regulator);
}

void hr_start_regulator(void)
{
    static pthread_once_t end = PTHREAD_ONCE_INIT;
    if (atomic_exchange_explicit(&runs, true, memory_order_relaxed))
        return;
    pthread_once(&end, register_end);
    if (!hr_start_thread(run)) {
        hr_complain("no thread could be started that holds the SM limit; it is not held");
        hr_end_throttle();
    }
}
