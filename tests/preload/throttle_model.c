/*
 * What a thread waits for before a launch and how long, by a region, a regulator and a clock that
 * are a few numbers here: `throttle_model`.  It ends the program if something is wrong.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../csrc/internal.h"
#include "../../csrc/preload/cuda_functions.h"
#include "../../csrc/preload/forks.h"
#include "../../csrc/preload/regulator.h"
#include "../../csrc/preload/throttle.h"

#define MUST_SHOW "%s; holds %u, naps %d", subject, (unsigned)hr_holds, naps
#include "must.h"

static const char *subject = "";

#undef hr_get_info

enum { LAST = HR_DEVICES - 1, SMS = 10 };
static const struct hr_graph_size SIZE = {.kernels = 2, .blocks = 7}; /* 27 tokens */

/* ---- The region ----------------------------------------------------------------------- */

static struct {
    int32_t recent;
    int32_t padding;
    uint64_t launched_s;
} memory;
static struct hr_layout layout;
static struct hr_region region = {.layout = &layout, .base = (unsigned char *)&memory};

_Atomic unsigned hr_holds;
static uint64_t limits[HR_DEVICES], is_switched_on, is_burst;
static int failing_value, failing_device, value_code, naps, writes, attached, regulators;
static uint32_t layout_id;
static bool has_no_region;

int hr_get(hr_region *of, uint32_t value, uint32_t device, uint64_t *out, struct hr_error *error)
{
    (void)error;
    MUST(of == &region && device < HR_DEVICES);
    if ((int)value == failing_value && (int)device == failing_device)
        return value_code;
    switch (value) {
    case HR_SWITCH:
        *out = is_switched_on;
        return HR_OK;
    case HR_RECENT_KERNEL:
        *out = (uint64_t)(int64_t)memory.recent;
        return HR_OK;
    case HR_VALUE_BURST:
        *out = is_burst;
        return HR_OK;
    default:
        MUST(value == HR_SM);
        *out = limits[device];
        return HR_OK;
    }
}

void hr_get_info(const hr_region *of, struct hr_info *out)
{
    MUST(of == &region);
    *out = (struct hr_info){.layout = layout_id};
}

int hr_run_write(hr_region *of, hr_guarded_work *work, void *argument)
{
    MUST(of == &region);
    writes++;
    return work(argument);
}

enum hr_session_state hr_attach_session(void)
{
    attached++;
    return HR_SESSION_ATTACHED;
}

hr_region *hr_session_region(void)
{
    return has_no_region ? NULL : &region;
}

int hr_row_of_device(CUdevice device)
{
    return device == 0 ? LAST : device == 1 ? 0 : HR_NO_ROW;
}

/* ---- Waiting -------------------------------------------------------------------------- */

static uint64_t now_ns, napped_ns[64];
static void (*happens)(void); /* after each nap */
static int suspensions;

void hr_wait_while_suspended(void)
{
    if ((hr_holds & HR_HOLD_SUSPENDED) != 0)
        suspensions++;
    hr_holds &= ~(unsigned)HR_HOLD_SUSPENDED;
}

uint64_t hr_clock_ns(int clock)
{
    MUST(clock == CLOCK_MONOTONIC);
    return now_ns;
}

int nanosleep(const struct timespec *time, struct timespec *left)
{
    (void)left;
    MUST(naps < 64 && time->tv_sec == 0 && happens != NULL);
    napped_ns[naps++] = (uint64_t)time->tv_nsec;
    now_ns += (uint64_t)time->tv_nsec;
    happens();
    return 0;
}

static int acquired;
static bool has_tokens;
static char limiter_[1];

int hr_limiter_take(hr_limiter *limiter, int64_t blocks)
{
    MUST(limiter == (hr_limiter *)(void *)limiter_ && blocks == 7);
    acquired++;
    return has_tokens;
}

void hr_start_regulator(void)
{
    regulators++;
}

void hr_forget_regulator(void)
{
    regulators = 0;
}

/* ---- The driver ----------------------------------------------------------------------- */

static int devices, asked;
static CUdevice current;
static bool is_capturing;

static CUresult count_devices(int *out)
{
    *out = devices;
    return CUDA_SUCCESS;
}

static CUresult get_device(CUdevice *out)
{
    asked++;
    *out = current;
    return current < 0 ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

static CUresult tell_capture(CUstream stream, int *status)
{
    MUST(stream == NULL);
    *status = is_capturing ? 1 : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

struct hr_cuda_functions hr_cuda = {
    .cuDeviceGetCount = count_devices,
    .cuCtxGetDevice = get_device,
    .cuStreamIsCapturing = tell_capture,
};

/* A program that has launched nothing, on two devices, under a limit of the first one. */
static void begin(uint64_t limit)
{
    hr_fork_throttle(HR_BEFORE_FORK);
    hr_fork_throttle(HR_IN_CHILD);
    hr_holds = HR_HOLD_UNPREPARED;
    for (int row = 0; row < HR_DEVICES; row++)
        limits[row] = 0;
    limits[LAST] = limit;
    is_switched_on = 1;
    failing_value = -1;
    is_burst = 0;
    layout_id = HR_V1_2;
    layout.recent_kernel = 0;
    layout.last_kernel_time = 8;
    memset(&memory, 0, sizeof memory);
    devices = 2;
    current = 0;
    naps = writes = attached = regulators = suspensions = asked = acquired = 0;
    has_tokens = true;
    has_no_region = is_capturing = false;
    happens = NULL;
    now_ns = 1000000000;
}

static struct hr_row *launch(void)
{
    return hr_throttle(SIZE, NULL);
}

static int state_of(int row)
{
    return hr_rows[row].state;
}

static void set_tokens(int64_t tokens, double rate)
{
    hr_rows[LAST].sm_count = SMS;
    hr_reset_bucket(&hr_rows[LAST].bucket, now_ns);
    hr_set_rate(&hr_rows[LAST].bucket, rate);
    hr_rows[LAST].bucket.tokens = tokens;
}

/* ---- Limits in force ------------------------------------------------------------------ */

static void check_limits(void)
{
    static const struct {
        uint64_t limit, is_on;
        bool holds;
    } cases[] = {{50, 1, true}, {1, 1, true},    {99, 1, true},  {100, 1, false},
                 {0, 1, false}, {101, 1, false}, {50, 0, false}, {100, 0, false}};
    const char *policy = getenv("GPU_CORE_UTILIZATION_POLICY");
    bool is_forced = policy != NULL && strcmp(policy, "force") == 0;
    bool is_disabled = policy != NULL && strcmp(policy, "disable") == 0;
    for (size_t at = 0; at < sizeof cases / sizeof *cases; at++) {
        bool is_limit = cases[at].limit > 0 && cases[at].limit < 100;
        bool holds = is_forced ? is_limit : !is_disabled && cases[at].holds;
        begin(cases[at].limit);
        is_switched_on = cases[at].is_on;
        limits[1] = 100;
        MUST(hr_look_at_limits(&region) == HR_OK);
        MUST(hr_rows[LAST].limit == (holds ? cases[at].limit : HR_NO_LIMIT));
        MUST(hr_rows[0].limit == HR_NO_LIMIT && hr_rows[1].limit == HR_NO_LIMIT);
        MUST(state_of(LAST) == (holds ? HR_ROW_NEW : HR_ROW_FREE) && state_of(0) == HR_ROW_FREE);
        MUST((hr_holds & HR_HOLD_LIMITED) == (holds ? HR_HOLD_LIMITED : 0u));
        /* One that is taken back. */
        limits[LAST] = 0;
        hr_holds |= HR_HOLD_SUSPENDED;
        MUST(hr_look_at_limits(&region) == HR_OK && state_of(LAST) == HR_ROW_FREE);
        MUST((hr_holds & (HR_HOLD_LIMITED | HR_HOLD_SUSPENDED)) == HR_HOLD_SUSPENDED);
    }
    if (is_disabled)
        return;
    /* One that cannot be held is none. */
    begin(50);
    limits[0] = 30;
    hr_set_rule(LAST, HR_ROW_FREE);
    MUST(hr_look_at_limits(&region) == HR_OK && state_of(LAST) == HR_ROW_FREE);
    MUST(hr_rows[LAST].limit == HR_NO_LIMIT && hr_rows[0].limit == 30);
    MUST((hr_holds & HR_HOLD_LIMITED) != 0);
    begin(50);
    hr_set_rule(LAST, HR_ROW_BESIDE);
    MUST(state_of(LAST) == HR_ROW_FREE);
    MUST(hr_look_at_limits(&region) == HR_OK && state_of(LAST) == HR_ROW_BESIDE);
    hr_set_rule(LAST, HR_ROW_PACED);
    MUST(state_of(LAST) == HR_ROW_PACED);
}

static void check_stops(void)
{
    for (uint32_t id = 0; id < HR_LAYOUTS; id++) {
        begin(50);
        layout_id = id;
        memory.recent = -1;
        hr_set_rule(LAST, HR_ROW_PACED);
        MUST(hr_look_at_limits(&region) == HR_OK && state_of(LAST) == HR_ROW_STOPPED);
        /* Those without a limit, too, in layouts whose libvgpu does so. */
        MUST(state_of(0) == (id < HR_V1_1_POSTINIT ? HR_ROW_STOPPED : HR_ROW_FREE));
        hr_set_rule(LAST, HR_ROW_BESIDE);
        MUST(state_of(LAST) == HR_ROW_STOPPED);
        memory.recent = 0;
        MUST(hr_look_at_limits(&region) == HR_OK && state_of(LAST) == HR_ROW_BESIDE);
        MUST(state_of(0) == HR_ROW_FREE);
    }
}

static void check_failures(void)
{
    static const int values[] = {HR_SWITCH, HR_RECENT_KERNEL, HR_VALUE_BURST, HR_SM};
    begin(50);
    MUST(hr_look_at_limits(&region) == HR_OK && !hr_is_burst);
    value_code = HR_ESTALE;
    for (size_t at = 0; at < sizeof values / sizeof *values; at++) {
        failing_value = values[at];
        failing_device = 0;
        limits[LAST] = 60;
        MUST(hr_look_at_limits(&region) == HR_ESTALE && hr_rows[LAST].limit == 50);
    }
    failing_device = LAST;
    MUST(hr_look_at_limits(&region) == HR_ESTALE);
    failing_value = -1;
    is_burst = 1;
    MUST(hr_look_at_limits(&region) == HR_OK && hr_rows[LAST].limit == 60 && hr_is_burst);
    is_burst = 0;
    MUST(hr_look_at_limits(&region) == HR_OK && !hr_is_burst);
}

/* ---- Launches ------------------------------------------------------------------------- */

static void become_paced(void)
{
    if (naps != 9)
        return;
    hr_set_rule(LAST, HR_ROW_PACED);
    set_tokens(0, 1);
}

static void check_first_launch(void)
{
    /* Under no limit. */
    begin(0);
    MUST(launch() == NULL && attached == 1 && naps == 0 && hr_holds == 0 && regulators == 0);
    /* Without a region, or with one that cannot be read. */
    begin(50);
    has_no_region = true;
    MUST(launch() == NULL && hr_holds == 0);
    begin(50);
    failing_value = HR_SM;
    failing_device = 3;
    value_code = HR_ECORRUPT;
    MUST(launch() == NULL && hr_holds == 0 && state_of(LAST) == HR_ROW_FREE);
    /* Under a limit, it waits for the regulator: not long at first. */
    begin(50);
    happens = become_paced;
    MUST(launch() == &hr_rows[LAST] && naps == 9 && regulators > 0 && attached == 1);
    MUST((hr_holds & HR_HOLD_UNPREPARED) == 0 && hr_rows[LAST].bucket.tokens == -27);
    MUST(napped_ns[0] <= 100000);
    for (int at = 1; at < 6; at++)
        MUST(napped_ns[at] == 2 * napped_ns[at - 1]);
    MUST(napped_ns[6] == napped_ns[7] && napped_ns[7] >= 1000000 && napped_ns[7] <= 10000000);
    MUST(napped_ns[6] > napped_ns[5]);
}

static void begin_paced(int64_t tokens, double rate)
{
    begin(50);
    hr_set_rule(LAST, HR_ROW_PACED);
    MUST(hr_look_at_limits(&region) == HR_OK);
    hr_holds = HR_HOLD_LIMITED;
    set_tokens(tokens, rate);
}

static void nothing(void)
{
}

static void lift(void)
{
    hr_set_rule(LAST, HR_ROW_FREE);
}

static void check_tokens(void)
{
    begin_paced(5, 1000);
    MUST(launch() == &hr_rows[LAST] && hr_rows[LAST].bucket.tokens == -22 && naps == 0);
    MUST(asked == 1 && attached == 0);
    /* In debt: until as many have come. */
    happens = nothing;
    MUST(launch() == &hr_rows[LAST] && naps > 0 && hr_rows[LAST].bucket.tokens <= -26);
    MUST(now_ns >= 1000000000 + 21 * 1000000 && now_ns <= 1000000000 + 40 * 1000000);
    int64_t left = hr_rows[LAST].bucket.tokens;
    hr_give_back_tokens(&hr_rows[LAST], SIZE);
    MUST(hr_rows[LAST].bucket.tokens == left + 27);
    /* A limit that is taken back lets those go who wait, for nothing. */
    begin_paced(-1000000, 1);
    happens = lift;
    MUST(launch() == NULL && naps == 1 && hr_rows[LAST].bucket.tokens == -1000000);
    /* What is captured runs nothing. */
    begin_paced(-5, 0);
    is_capturing = true;
    MUST(launch() == NULL && naps == 0 && hr_rows[LAST].bucket.tokens == -5);
    /* Other devices, those without a row, and no context at all. */
    begin_paced(-5, 0);
    current = 1;
    MUST(launch() == NULL && asked == 1);
    current = 2;
    MUST(launch() == NULL && asked == 2);
    current = -1;
    MUST(launch() == NULL && asked == 3 && naps == 0);
    /* Somebody who waits may be suspended. */
    begin_paced(5, 1000);
    hr_holds |= HR_HOLD_SUSPENDED;
    MUST(launch() == &hr_rows[LAST] && suspensions == 1);
    /* More than there can be. */
    begin_paced(5, 1);
    const struct hr_graph_size huge = {.kernels = UINT64_MAX / SMS, .blocks = 0};
    MUST(hr_throttle(huge, NULL) == &hr_rows[LAST] && hr_rows[LAST].bucket.tokens < 0);
    MUST(hr_rows[LAST].bucket.tokens >= -INT64_MAX / 4);
}

static void let_through(void)
{
    if (naps == 3)
        has_tokens = true;
}

static void go_on(void)
{
    if (naps == 4) {
        memory.recent = 0;
        MUST(hr_look_at_limits(&region) == HR_OK);
    }
}

static void check_other_rules(void)
{
    begin(50);
    hr_rows[LAST].limiter = (hr_limiter *)(void *)limiter_;
    hr_set_rule(LAST, HR_ROW_BESIDE);
    MUST(hr_look_at_limits(&region) == HR_OK);
    hr_holds = HR_HOLD_LIMITED;
    MUST(launch() == NULL && acquired == 1 && naps == 0);
    has_tokens = false;
    happens = let_through;
    MUST(launch() == NULL && acquired == 5 && naps == 3);
    begin_paced(100, 1000);
    memory.recent = -1;
    MUST(hr_look_at_limits(&region) == HR_OK);
    hr_holds = HR_HOLD_LIMITED;
    happens = go_on;
    MUST(launch() == &hr_rows[LAST] && naps == 4);
}

static void check_devices(void)
{
    /* Where there is one only, it is asked for once. */
    begin(50);
    devices = 1;
    current = 1;
    limits[0] = 0;
    hr_set_rule(LAST, HR_ROW_PACED);
    set_tokens(100, 0);
    MUST(launch() == &hr_rows[LAST] && launch() == &hr_rows[LAST] && asked == 0);
    /* In a child, which may see others, again. */
    begin(50);
    current = 1;
    MUST(launch() == NULL && asked == 1);
}

static void check_notes(void)
{
    begin(50);
    hr_set_rule(LAST, HR_ROW_PACED);
    set_tokens(100, 0);
    /* Before the first launch there is none to be told of. */
    MUST(hr_look_at_limits(&region) == HR_OK && writes == 0);
    MUST(launch() == &hr_rows[LAST] && (hr_holds & HR_HOLD_UNNOTED) == 0);
    MUST(hr_look_at_limits(&region) == HR_OK && writes == 1 && memory.recent == 2);
    MUST(memory.launched_s + 60 > (uint64_t)time(NULL) && (hr_holds & HR_HOLD_UNNOTED) != 0);
    memory.recent = 1;
    MUST(hr_look_at_limits(&region) == HR_OK && writes == 1 && memory.recent == 1);
    MUST(launch() == &hr_rows[LAST] && (hr_holds & HR_HOLD_UNNOTED) == 0);
    /* The monitor's word is its own; and not all layouts have a time. */
    memory.recent = -1;
    memory.launched_s = 5;
    layout.last_kernel_time = HR_ABSENT;
    MUST(hr_look_at_limits(&region) == HR_OK && writes == 2 && memory.recent == -1);
    MUST(memory.launched_s == 5);
}

static void check_end(void)
{
    begin_paced(-5, 0);
    hr_holds = HR_HOLD_LIMITED | HR_HOLD_UNNOTED | HR_HOLD_SUSPENDED;
    hr_end_throttle();
    MUST(hr_holds == HR_HOLD_SUSPENDED && state_of(LAST) == HR_ROW_FREE && launch() == NULL);
    hr_set_rule(LAST, HR_ROW_PACED);
    MUST(hr_look_at_limits(&region) == HR_OK && state_of(LAST) == HR_ROW_FREE && hr_holds == 0);
    /* A child begins anew. */
    regulators = 5;
    hr_fork_throttle(HR_BEFORE_FORK);
    hr_fork_throttle(HR_IN_PARENT);
    MUST(regulators == 5);
    hr_rows[LAST].limiter = (hr_limiter *)(void *)limiter_;
    hr_fork_throttle(HR_BEFORE_FORK);
    hr_fork_throttle(HR_IN_CHILD);
    MUST(regulators == 0 && hr_rows[LAST].limiter == NULL);
    MUST(hr_look_at_limits(&region) == HR_OK && state_of(LAST) == HR_ROW_NEW);
}

int main(void)
{
    static const char *const policies[] = {NULL, "", "force", "disable", "forced", "default"};
    for (size_t at = 0; at < sizeof policies / sizeof *policies; at++) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            subject = policies[at] == NULL ? "no policy" : policies[at];
            if (policies[at] != NULL)
                setenv("GPU_CORE_UTILIZATION_POLICY", policies[at], 1);
            else
                unsetenv("GPU_CORE_UTILIZATION_POLICY");
            check_limits();
            _exit(0);
        }
        MUST(waitpid(child, &status, 0) == child && status == 0);
    }
    unsetenv("GPU_CORE_UTILIZATION_POLICY");
    check_stops();
    check_failures();
    check_first_launch();
    check_tokens();
    check_other_rules();
    check_devices();
    check_notes();
    check_end();
    return 0;
}
