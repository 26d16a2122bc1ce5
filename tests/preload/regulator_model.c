/*
 * What the thread does that keeps launches within the SM limits, pass by pass, by a region, an NVML
 * and a clock that show what is asked for here: `regulator_model`.  It ends the program if
 * something is wrong.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../csrc/internal.h"
#include "../../csrc/lock.h"
#include "../../csrc/preload/complaints.h"
#include "../../csrc/preload/crowd.h"
#include "../../csrc/preload/cuda_functions.h"
#include "../../csrc/preload/neighbours.h"
#include "../../csrc/preload/own_pid.h"
#include "../../csrc/preload/pace.h"
#include "../../csrc/preload/regulator.h"
#include "../../csrc/preload/sampler.h"
#include "../../csrc/preload/snapshots.h"
#include "../../csrc/preload/soft_limit.h"
#include "../../csrc/preload/threads.h"
#include "../../csrc/preload/throttle.h"

#define MUST_SHOW "%llu ms; said \"%s\"", (unsigned long long)(now_ns / 1000000), said
#include "must.h"

static uint64_t now_ns;
static char said[256];

/* The row under a limit is the last one, of device 3; other rows have no device here. */
enum { LAST = HR_DEVICES - 1, SPAN = HR_DEVICES, OTHER_PID = 1 << 29 };
#define MS UINT64_C(1000000)

#undef hr_limiter_new

/* ---- The region ----------------------------------------------------------------------- */

static struct hr_region region;
struct hr_row hr_rows[HR_DEVICES];
_Atomic bool hr_is_burst;
_Atomic uint32_t hr_uses;
uint32_t hr_fork_generation;
static bool is_gone, has_no_snapshot;
static int limits_code, lost, ended, resigned, rules_set, rule;
static struct {
    int32_t pid;
    uint64_t sm, bytes;
} slots[6];
static int slot_count;

int hr_fail_code(int code)
{
    return code;
}

hr_region *hr_session_region(void)
{
    return is_gone ? NULL : &region;
}

void hr_lose_session(int code)
{
    MUST(code == limits_code && resigned == 1);
    lost++;
}

int hr_look_at_limits(hr_region *of)
{
    MUST(of == &region);
    return limits_code;
}

void hr_set_rule(int row, enum hr_throttle_state state)
{
    MUST(row == LAST);
    rule = state;
    rules_set++;
}

void hr_end_throttle(void)
{
    ended++;
}

struct hr_snapshot *hr_new_snapshot(hr_region *of, int *code)
{
    *code = HR_ESYSTEM;
    MUST(of == &region);
    struct hr_snapshot shape = {.span = SPAN, .proc_num = slot_count};
    struct hr_snapshot *snapshot = has_no_snapshot ? NULL : calloc(1, hr_snapshot_bytes(&shape));
    if (snapshot == NULL)
        return NULL;
    *snapshot = shape;
    for (int at = 0; at < slot_count; at++) {
        struct hr_process *process =
            (struct hr_process *)(uintptr_t)hr_snapshot_process(snapshot, (uint32_t)at);
        process->pid = slots[at].pid;
        struct hr_usage *usage =
            (struct hr_usage *)(uintptr_t)hr_snapshot_usage(snapshot, (uint32_t)at, LAST);
        usage->sm = slots[at].sm;
        usage->total = slots[at].bytes;
    }
    return snapshot;
}

/* ---- Users of a region ---------------------------------------------------------------- */

static int searches, mappers_freed, mapper_code;
static bool has_libvgpu, is_incomplete;

int hr_read_slot_pids(const hr_region *of, struct hr_slot_pids *out)
{
    MUST(of == &region && region.users == 1);
    memset(out, 0, sizeof *out);
    return HR_OK;
}

int hr_look_for_mappers(hr_region *of, const char *proc, const struct hr_slot_pids *only,
                        struct hr_mappers *out)
{
    MUST(of == &region && proc == NULL && only != NULL && region.users == 0);
    searches++;
    if (mapper_code != HR_OK)
        return mapper_code;
    *out = (struct hr_mappers){.count = 2, .incomplete = is_incomplete};
    out->list = calloc(2, sizeof *out->list);
    out->list[1].has_libvgpu = has_libvgpu;
    return HR_OK;
}

void hr_free_mappers(struct hr_mappers *mappers)
{
    free(mappers->list);
    mappers_freed++;
}

/* ---- NVML ----------------------------------------------------------------------------- */

static uint32_t sampled_rows;
static int samples, told, found_asked;
static bool cannot_sample, is_not_found, is_not_shown, forgot;

void hr_sample(hr_region *of, struct hr_snapshot *snapshot, uint32_t rows)
{
    MUST(of == &region && snapshot->span == SPAN);
    sampled_rows = rows;
    samples++;
}

bool hr_can_sample(hr_region *of, const struct hr_snapshot *snapshot, int row)
{
    MUST(of == &region && snapshot != NULL && row == LAST);
    return !cannot_sample;
}

bool hr_sampled_device(const struct hr_snapshot *snapshot, int row, nvmlDevice_t *out)
{
    MUST(snapshot != NULL && row == LAST);
    *out = NULL;
    return !is_not_found;
}

static struct hr_device_figures device_figures;
static bool is_device_silent;
static int device_asked;

bool hr_read_device_figures(hr_region *of, const struct hr_snapshot *snapshot, int row,
                            struct hr_device_figures *out)
{
    MUST(of == &region && snapshot != NULL && row == LAST);
    device_asked++;
    *out = device_figures;
    return !is_device_silent;
}

void hr_resign_sampler(hr_region *of)
{
    MUST(of == &region);
    resigned++;
}

void hr_forget_sampler(void)
{
    forgot = true;
}

bool hr_find_own_pid(hr_region *of, const struct hr_snapshot *snapshot, int row,
                     nvmlDevice_t device)
{
    MUST(of == &region && snapshot != NULL && row == LAST && device == NULL);
    found_asked++;
    return !is_not_shown;
}

void hr_tell_host_pid(hr_region *of)
{
    MUST(of == &region);
    told++;
}

static struct hr_neighbours others;
static bool is_neighbours_unknown;
static int neighbours_asked, neighbours_forgotten;

bool hr_look_at_neighbours(const struct hr_snapshot *snapshot, int row, nvmlDevice_t device,
                           uint64_t at_ns, struct hr_neighbours *out)
{
    MUST(snapshot != NULL && row == LAST && device == NULL && at_ns == now_ns);
    neighbours_asked++;
    *out = others;
    return !is_neighbours_unknown;
}

void hr_forget_neighbours(int row)
{
    MUST(row == LAST);
    neighbours_forgotten++;
}

/* ---- The rules ------------------------------------------------------------------------ */

static struct hr_pace_view seen;
static struct hr_soft_view soft_seen;
static int paces, steps, soft_starts, soft_steps, resets, limiters, ticks, tick_percent;
static uint64_t stepped_ns;
static double rate;
static bool is_limiter_short;

void hr_start_pace(struct hr_pace *pace, double now_s)
{
    MUST(pace != NULL && now_s == (double)now_ns / 1e9);
    paces++;
}

static int crowds_forgotten, crowds_noted, views_completed;
static uint32_t crowd_processes, crowd_device, crowd_beside;
static double pace_rate;
static bool crowd_has_stopped;

void hr_forget_crowd(struct hr_crowd *crowd)
{
    MUST(crowd != NULL);
    crowds_forgotten++;
}

void hr_note_crowd(struct hr_crowd *crowd, double now_s, uint32_t device, uint32_t beside)
{
    MUST(crowd != NULL && now_s == (double)now_ns / 1e9);
    crowd_device = device;
    crowd_beside = beside;
    crowds_noted++;
}

void hr_complete_view(struct hr_crowd *crowd, uint32_t processes, bool stopped,
                      struct hr_pace_view *view)
{
    MUST(crowd != NULL && view->limit > 0);
    crowd_processes = processes;
    crowd_has_stopped = stopped;
    view->missing = 0.25;
    views_completed++;
}

double hr_step_pace(struct hr_pace *pace, const struct hr_pace_view *view)
{
    MUST(pace != NULL && view->now_s == (double)now_ns / 1e9);
    pace->rate = pace_rate;
    seen = *view;
    stepped_ns = now_ns;
    steps++;
    return 1234;
}

void hr_start_soft_limit(struct hr_soft_limit *soft, double now_s)
{
    MUST(soft != NULL && now_s == (double)now_ns / 1e9);
    soft_starts++;
}

uint32_t hr_step_soft_limit(struct hr_soft_limit *soft, const struct hr_soft_view *view)
{
    MUST(soft != NULL && view->now_s == (double)now_ns / 1e9);
    soft_seen = *view;
    soft_steps++;
    return 77;
}

void hr_reset_bucket(struct hr_bucket *bucket, uint64_t at_ns)
{
    MUST(bucket == &hr_rows[LAST].bucket && at_ns == now_ns);
    resets++;
}

void hr_set_rate(struct hr_bucket *bucket, double per_second)
{
    MUST(bucket == &hr_rows[LAST].bucket);
    rate = per_second;
}

int64_t hr_taken_tokens(struct hr_bucket *bucket)
{
    MUST(bucket == &hr_rows[LAST].bucket);
    return 555;
}

static char limiter_[1];

int hr_limiter_new(uint32_t sm_count, uint32_t threads, uint32_t limit, hr_region *of, uint32_t row,
                   hr_limiter **out, struct hr_error *error)
{
    (void)error;
    MUST(sm_count == 108 && threads == 2048 && limit == 0 && of == &region && row == LAST);
    if (is_limiter_short)
        return HR_ESYSTEM;
    limiters++;
    *out = (hr_limiter *)(void *)limiter_;
    return HR_OK;
}

int hr_limiter_tick(hr_limiter *limiter, int32_t percent, struct hr_error *error)
{
    (void)error;
    MUST(limiter == (hr_limiter *)(void *)limiter_);
    ticks++;
    tick_percent = percent;
    return HR_OK;
}

/* ---- The driver, and what is said ----------------------------------------------------- */

static int processors, threads_each, failing_attribute;
static bool has_no_device;

static CUresult get_attribute(int *out, int attribute, CUdevice device)
{
    MUST(device == 3);
    *out = attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT ? processors : threads_each;
    return attribute == failing_attribute ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

struct hr_cuda_functions hr_cuda = {.cuDeviceGetAttribute = get_attribute};

CUdevice hr_device_of_row(int row)
{
    return row == LAST && !has_no_device ? 3 : -1;
}

void hr_complain(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(said, sizeof said, format, arguments);
    va_end(arguments);
}

/* ---- The thread and its clock --------------------------------------------------------- */

static void *(*thread)(void *);
static int started, relaxed, passes, wanted_passes;
static uint64_t pauses_ns[128];
static bool cannot_start;
static jmp_buf after_passes;

bool hr_start_thread(void *(*work)(void *))
{
    started++;
    thread = work;
    return !cannot_start;
}

int hr_relax_capture(void)
{
    relaxed++;
    return 0;
}

uint64_t hr_clock_ns(int clock)
{
    MUST(clock == CLOCK_MONOTONIC);
    return now_ns;
}

int nanosleep(const struct timespec *time, struct timespec *left)
{
    (void)left;
    MUST(time->tv_sec == 0 && time->tv_nsec >= 1000000 && passes < 128);
    pauses_ns[passes++] = (uint64_t)time->tv_nsec;
    now_ns += (uint64_t)time->tv_nsec;
    if (passes >= wanted_passes)
        longjmp(after_passes, 1);
    return 0;
}

static char name[32];

int pthread_setname_np(pthread_t of, const char *wanted)
{
    MUST(pthread_equal(of, pthread_self()));
    snprintf(name, sizeof name, "%s", wanted);
    return 0;
}

/* So many passes, in a thread that begins again each time. */
static void pass(int count)
{
    passes = relaxed = told = 0;
    wanted_passes = count;
    if (setjmp(after_passes) == 0)
        thread(NULL);
    MUST(passes == count && relaxed == 1 && told == !is_gone);
}

static void begin(void)
{
    hr_forget_regulator();
    MUST(forgot);
    memset(hr_rows, 0, sizeof hr_rows);
    for (int row = 0; row < HR_DEVICES; row++)
        hr_rows[row].limit = HR_NO_LIMIT;
    hr_rows[LAST].limit = 40;
    hr_is_burst = false;
    is_gone = has_no_snapshot = has_libvgpu = is_incomplete = cannot_sample = is_not_found = false;
    is_not_shown = forgot = is_neighbours_unknown = is_limiter_short = has_no_device = false;
    cannot_start = is_device_silent = false;
    device_asked = crowds_forgotten = crowds_noted = views_completed = 0;
    pace_rate = 0;
    limits_code = mapper_code = HR_OK;
    lost = ended = resigned = rules_set = searches = mappers_freed = samples = found_asked = 0;
    neighbours_asked = neighbours_forgotten = paces = steps = soft_starts = soft_steps = 0;
    resets = limiters = ticks = tick_percent = started = 0;
    rule = -1;
    rate = 0;
    sampled_rows = 0;
    processors = 108;
    threads_each = 2048;
    failing_attribute = -1;
    memset(slots, 0, sizeof slots);
    slot_count = 1;
    slots[0].pid = getpid();
    now_ns += 100000 * MS;
    said[0] = name[0] = '\0';
    hr_start_regulator();
    MUST(started == 1);
}

/* ---- Checks --------------------------------------------------------------------------- */

static void check_rows(void)
{
    begin();
    slots[0].sm = 30;
    pass(1);
    MUST(rule == HR_ROW_PACED && rules_set == 1 && paces == 1 && resets == 1 && limiters == 1);
    MUST(neighbours_forgotten == 1 && hr_rows[LAST].sm_count == 108 && samples == 1);
    MUST(sampled_rows == 1u << LAST && steps == 0 && pauses_ns[0] == 100 * MS);
    hr_rows[LAST].bucket.has_waited = true;
    pass(1);
    MUST(steps == 1 && rate == 1234 && seen.own == 30 && seen.all == 30 && seen.users == 1);
    MUST(seen.has_waited && !hr_rows[LAST].bucket.has_waited && seen.launched == 555);
    MUST(seen.limit == 40 && paces == 1 && rules_set == 1 && found_asked == 1);
    /* No step before its time. */
    now_ns -= 90 * MS;
    pass(1);
    MUST(steps == 1);
    pass(2);
    MUST(steps == 3 && !seen.has_waited && searches == 0 && said[0] == '\0');
    /* Without a limit nothing is done; under a new one it begins anew. */
    hr_rows[LAST].limit = HR_NO_LIMIT;
    samples = 0;
    pass(2);
    MUST(steps == 3 && samples == 0 && pauses_ns[1] == 500 * MS);
    hr_rows[LAST].limit = 99;
    pass(1);
    MUST(paces == 2 && rules_set == 2 && limiters == 1);
    /* A device that is not used so far: nothing is launched on it. */
    begin();
    has_no_device = true;
    pass(2);
    MUST(rules_set == 0 && said[0] == '\0' && steps == 0);
    has_no_device = false;
    pass(1);
    MUST(rule == HR_ROW_PACED);
}

static void check_figures(void)
{
    begin();
    slot_count = 4;
    slots[1].pid = OTHER_PID;
    slots[2].pid = OTHER_PID + 1;
    slots[3].pid = OTHER_PID + 2;
    pass(1);
    slots[0].sm = 20;
    slots[1].sm = 1;
    slots[3].sm = 15;
    pass(1);
    MUST(seen.own == 20 && seen.all == 36 && seen.users == 3);
    slots[0].sm = 120;
    slots[3].sm = UINT64_MAX;
    pass(1);
    MUST(seen.own == 100 && seen.all == 100 && seen.users == 3);
    slots[0].sm = 99;
    slots[1].sm = slots[3].sm = 0;
    pass(1);
    MUST(seen.own == 99 && seen.all == 99 && seen.users == 1);
}

/* The device is asked about where several processes use it, and only there. */
static void check_crowd(void)
{
    begin();
    slot_count = 6;
    for (int at = 1; at < slot_count; at++)
        slots[at].pid = OTHER_PID + at;
    slots[1].sm = slots[2].bytes = 1;
    device_figures = (struct hr_device_figures){.device = 33, .beside = 11, .sample_s = 0.5};
    pass(1);
    MUST(crowds_forgotten == 1);
    pass(3);
    MUST(device_asked == 0 && views_completed == 0 && steps == 3 && seen.missing == 0);
    slots[4].sm = slots[4].bytes = 1;
    pass(1);
    MUST(device_asked == 1 && crowd_processes == 4 && crowd_device == 33 && crowd_beside == 11);
    MUST(seen.missing == 0.25 && seen.sample_s == 0.5 && crowd_has_stopped && steps == 4);
    pace_rate = 5;
    pass(2);
    MUST(!crowd_has_stopped && crowds_noted == 3);
    /* What NVML does not tell is not noted, and the view is completed all the same. */
    is_device_silent = true;
    slots[5].bytes = 1;
    pass(1);
    MUST(crowds_noted == 3 && views_completed == 4 && crowd_processes == 5);
    MUST(seen.sample_s == 0);
    /* Beside libvgpu its arithmetic is ours. */
    has_libvgpu = true;
    slots[5].pid++;
    now_ns += 1000 * MS;
    pass(1);
    device_asked = views_completed = ticks = 0;
    pass(5);
    MUST(rule == HR_ROW_BESIDE && ticks > 0 && device_asked == 0 && views_completed == 0);
}

static void check_impossible(void)
{
    static const struct {
        int processors, each, failing;
        bool cannot_sample, is_short;
        const char *why;
    } cases[] = {
        {108, 2048, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, false, false, "how large"},
        {108, 2048, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, false, false, "how large"},
        {0, 2048, -1, false, false, "how large"},
        {108, 0, -1, false, false, "how large"},
        {108, 2048, -1, true, false, "how busy"},
        {108, 2048, -1, false, true, "no memory"},
    };
    for (size_t at = 0; at < sizeof cases / sizeof *cases; at++) {
        begin();
        processors = cases[at].processors;
        threads_each = cases[at].each;
        failing_attribute = cases[at].failing;
        cannot_sample = cases[at].cannot_sample;
        is_limiter_short = cases[at].is_short;
        pass(3);
        MUST(rule == HR_ROW_FREE && rules_set == 1 && steps == 0);
        MUST(strstr(said, "device 15 cannot be held") != NULL);
        MUST(strstr(said, cases[at].why) != NULL);
    }
    /* NVML shows some process, but not this one: not for longer than five seconds. */
    begin();
    is_not_shown = true;
    pass(50);
    MUST(rule == HR_ROW_PACED && said[0] == '\0' && found_asked > 40);
    pass(5);
    MUST(rule == HR_ROW_FREE && strstr(said, "does not show") != NULL && rules_set == 2);
    begin();
    is_not_shown = true;
    pass(20);
    is_not_shown = false;
    pass(60);
    MUST(rule == HR_ROW_PACED && found_asked == 20);
    begin();
    is_not_found = true;
    pass(60);
    MUST(rule == HR_ROW_PACED && found_asked == 0);
}

/* Beside libvgpu its arithmetic is ours. */
static void check_libvgpu(void)
{
    begin();
    slot_count = 2;
    slots[1].pid = OTHER_PID;
    slots[1].sm = 60;
    pass(1);
    MUST(searches == 1 && mappers_freed == 1 && rule == HR_ROW_PACED);
    pass(20);
    MUST(searches == 1);
    /* Another process: at most once a second. */
    has_libvgpu = true;
    slots[1].pid++;
    pass(1);
    MUST(searches == 2 && rules_set == 1 && steps > 10);
    steps = 0;
    pass(5);
    MUST(rule == HR_ROW_BESIDE && steps == 0 && ticks > 0 && tick_percent == 60);
    MUST(soft_steps == 0);
    ticks = 0;
    pass(12);
    MUST(ticks >= 5 && ticks <= 7);
    slots[1].pid++;
    pass(1);
    MUST(searches == 3);
    slots[1].pid++;
    pass(5);
    MUST(searches == 3);
    pass(8);
    MUST(searches == 4);
    /* It leaves. */
    slot_count = 1;
    pass(12);
    MUST(searches == 4 && rule == HR_ROW_PACED);
    slots[0].pid = OTHER_PID;
    now_ns += 1000 * MS;
    pass(2);
    MUST(searches == 5 && rule == HR_ROW_BESIDE);
    /* A process that was not seen this time is looked for later; one that cannot be seen, at once.
     */
    begin();
    slot_count = 2;
    is_incomplete = true;
    pass(45);
    MUST(searches == 1);
    pass(10);
    MUST(searches == 2 && mappers_freed == 2);
    begin();
    slot_count = 2;
    mapper_code = HR_ESYSTEM;
    pass(25);
    MUST(searches == 3 && mappers_freed == 0 && rule == HR_ROW_PACED && steps > 20);
    begin();
    slot_count = 2;
    region.users = HR_CLOSING;
    pass(3);
    MUST(searches == 0 && steps == 2);
    region.users = 0;
}

static void check_soft_limits(void)
{
    begin();
    pass(3);
    MUST(strcmp(name, HR_HARD_THREAD) == 0 && neighbours_asked == 0 && soft_steps == 0);
    MUST(soft_starts == 3 && seen.limit == 40);
    hr_is_burst = true;
    others = (struct hr_neighbours){.is_disturbed = false, .own = 11, .soft = 22};
    pass(1);
    MUST(strcmp(name, HR_SOFT_THREAD) == 0 && soft_steps == 1 && seen.limit == 77);
    MUST(!soft_seen.is_disturbed && soft_seen.own == 11 && soft_seen.soft == 22);
    MUST(soft_seen.limit == 40);
    others.is_disturbed = true;
    pass(1);
    MUST(soft_seen.is_disturbed && soft_seen.own == 11);
    /* A process that cannot be seen may be any program. */
    others.is_disturbed = false;
    is_neighbours_unknown = true;
    pass(1);
    MUST(soft_seen.is_disturbed && soft_seen.own == 0);
    is_neighbours_unknown = false;
    is_not_found = true;
    neighbours_asked = 0;
    pass(1);
    MUST(soft_seen.is_disturbed && neighbours_asked == 0);
    /* Its name is set where it changes. */
    strcpy(name, "as it was");
    pass(1);
    MUST(strcmp(name, "as it was") == 0);
}

static void check_losses(void)
{
    begin();
    limits_code = HR_ESTALE;
    pass(1);
    MUST(lost == 1 && ended == 1 && resigned == 1 && samples == 0 && rules_set == 0);
    MUST(pauses_ns[0] == 500 * MS);
    begin();
    has_no_snapshot = true;
    pass(2);
    MUST(rules_set == 0 && samples == 0 && lost == 0 && ended == 0);
    begin();
    is_gone = true;
    pass(1);
    MUST(ended == 1 && lost == 0 && pauses_ns[0] == 500 * MS);
}

static void check_starts(void)
{
    begin();
    hr_start_regulator();
    MUST(started == 1 && ended == 0 && said[0] == '\0');
    hr_forget_regulator();
    cannot_start = true;
    hr_start_regulator();
    MUST(started == 2 && ended == 1 && strstr(said, "no thread") != NULL);
    hr_start_regulator();
    MUST(started == 2);
    /* A child's rows are new. */
    begin();
    pass(2);
    hr_forget_regulator();
    pass(1);
    MUST(paces == 2 && rules_set == 2);
}

/* As the program ends: a thread that runs for the first time asks nobody anything. */
static void run_late(void)
{
    MUST(ended == 1);
    MUST(thread(NULL) == NULL && relaxed == 0 && told == 0 && samples == 0);
}

static void check_end(void)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        atexit(run_late);
        begin();
        exit(0);
    }
    MUST(waitpid(child, &status, 0) == child && status == 0);
}

int main(void)
{
    check_end();
    check_rows();
    check_figures();
    check_crowd();
    check_impossible();
    check_libvgpu();
    check_soft_limits();
    check_losses();
    check_starts();
    return 0;
}
