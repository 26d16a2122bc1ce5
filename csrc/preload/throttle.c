#define _GNU_SOURCE
#include "throttle.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../internal.h"
#include "cuda_functions.h"
#include "forks.h"
#include "regulator.h"

#define POLICY_VARIABLE "GPU_CORE_UTILIZATION_POLICY"

/* How long a launch waits where time alone does not help. */
#define NAP_NS 5000000u
/* For the regulator to begin, less at first: mostly it has within a millisecond. */
#define FIRST_NAP_NS 50000u

enum { RECENT_KERNEL = 2, SEVERAL_ROWS = -2, NAPS_THAT_GROW = 6 };

struct hr_row hr_rows[HR_DEVICES];
_Atomic bool hr_is_burst;

/* The row of the only device that this process sees, SEVERAL_ROWS, or HR_NO_ROW. */
static _Atomic int only_row = SEVERAL_ROWS;

/* Over the rules below, and over what follows from them in rows and in hr_holds. */
static pthread_mutex_t looking = PTHREAD_MUTEX_INITIALIZER;
static enum hr_throttle_state rules[HR_DEVICES] = {[0 ... HR_DEVICES - 1] = HR_ROW_NEW};
static bool is_over;

/* ---- Limits --------------------------------------------------------------------------- */

enum policy { POLICY_REGION, POLICY_FORCE, POLICY_DISABLE };

static enum policy read_policy(void)
{
    const char *text = getenv(POLICY_VARIABLE);
    if (text != NULL && strcmp(text, "force") == 0)
        return POLICY_FORCE;
    if (text != NULL && strcmp(text, "disable") == 0)
        return POLICY_DISABLE;
    return POLICY_REGION;
}

/* What holds in the whole region. */
struct sight {
    uint64_t sm_limits[HR_DEVICES];
    bool is_on;      /* SM limits hold */
    bool is_stopped; /* recent_kernel is negative */
    bool stops_all;  /* also processes without a limit, as libvgpu of this layout does */
    bool is_burst;   /* SM limits are soft */
};

static int see(hr_region *region, struct sight *sight)
{
    static const enum policy unread = (enum policy) - 1;
    static enum policy policy = unread;
    uint64_t on, recent, burst;
    struct hr_info info;
    if (policy == unread)
        policy = read_policy();
    int code = hr_get(region, HR_SWITCH, 0, &on, NULL);
    if (code == HR_OK)
        code = hr_get(region, HR_RECENT_KERNEL, 0, &recent, NULL);
    if (code == HR_OK)
        code = hr_get(region, HR_VALUE_BURST, 0, &burst, NULL);
    for (uint32_t row = 0; row < HR_DEVICES && code == HR_OK; row++)
        code = hr_get(region, HR_SM, row, &sight->sm_limits[row], NULL);
    if (code != HR_OK)
        return code;
    hr_get_info(region, &info);
    sight->is_on = policy == POLICY_FORCE || (policy == POLICY_REGION && on != 0);
    sight->is_stopped = (int64_t)recent < 0;
    sight->stops_all = info.layout < HR_V1_1_POSTINIT;
    sight->is_burst = burst != 0;
    return HR_OK;
}

static uint32_t limit_in_force(const struct sight *sight, int row)
{
    uint64_t limit = sight->sm_limits[row];
    bool holds = sight->is_on && rules[row] != HR_ROW_FREE && limit > 0 && limit < HR_NO_LIMIT;
    return holds ? (uint32_t)limit : HR_NO_LIMIT;
}

static void apply(const struct sight *sight)
{
    unsigned holds = 0;
    atomic_store_explicit(&hr_is_burst, sight->is_burst, memory_order_relaxed);
    for (int row = 0; row < HR_DEVICES; row++) {
        uint32_t limit = limit_in_force(sight, row);
        bool is_limited = limit != HR_NO_LIMIT;
        enum hr_throttle_state state = is_limited ? rules[row] : HR_ROW_FREE;
        if (sight->is_stopped && (is_limited || sight->stops_all))
            state = HR_ROW_STOPPED;
        atomic_store_explicit(&hr_rows[row].limit, limit, memory_order_relaxed);
        atomic_store_explicit(&hr_rows[row].state, state, memory_order_relaxed);
        if (state != HR_ROW_FREE)
            holds = HR_HOLD_LIMITED;
    }
    if (holds != 0)
        atomic_fetch_or_explicit(&hr_holds, HR_HOLD_LIMITED, memory_order_relaxed);
    else
        atomic_fetch_and_explicit(&hr_holds, ~(unsigned)HR_HOLD_LIMITED, memory_order_relaxed);
}

void hr_set_rule(int row, enum hr_throttle_state rule)
{
    pthread_mutex_lock(&looking);
    rules[row] = rule;
    struct hr_row *one = &hr_rows[row];
    int state = atomic_load_explicit(&one->state, memory_order_relaxed);
    if (!is_over && state != HR_ROW_FREE && state != HR_ROW_STOPPED)
        atomic_store_explicit(&one->state, rule, memory_order_relaxed);
    pthread_mutex_unlock(&looking);
}

void hr_end_throttle(void)
{
    pthread_mutex_lock(&looking);
    is_over = true;
    for (int row = 0; row < HR_DEVICES; row++)
        atomic_store_explicit(&hr_rows[row].state, HR_ROW_FREE, memory_order_relaxed);
    atomic_fetch_and_explicit(&hr_holds, HR_HOLD_SUSPENDED, memory_order_relaxed);
    pthread_mutex_unlock(&looking);
}

/* ---- Telling the region of launches --------------------------------------------------- */

/* As libvgpu does: HAMi's monitor counts recent_kernel down, and shows the time. */
static int note_launch(void *argument)
{
    const hr_region *region = argument;
    unsigned char *recent_at = region->base + region->layout->recent_kernel;
    int32_t recent = hr_load_i32(recent_at, memory_order_relaxed);
    /* A negative value is the monitor's word, which only it takes back. */
    if (recent >= 0 && recent != RECENT_KERNEL)
        hr_swap_i32(recent_at, &recent, RECENT_KERNEL);
    if (region->layout->last_kernel_time != HR_ABSENT)
        hr_store_u64(region->base + region->layout->last_kernel_time, (uint64_t)time(NULL),
                     memory_order_relaxed);
    return HR_OK;
}

/* A launch takes the bit away: so it costs the launches one branch once a second. */
static void note_launches(hr_region *region)
{
    if ((hr_current_holds() & (HR_HOLD_UNPREPARED | HR_HOLD_UNNOTED)) != 0)
        return;
    hr_run_write(region, note_launch, region);
    atomic_fetch_or_explicit(&hr_holds, HR_HOLD_UNNOTED, memory_order_relaxed);
}

int hr_look_at_limits(hr_region *region)
{
    struct sight sight;
    pthread_mutex_lock(&looking);
    int code = see(region, &sight);
    if (code == HR_OK && !is_over) {
        apply(&sight);
        note_launches(region);
    }
    pthread_mutex_unlock(&looking);
    return code;
}

/* ---- Beginning ------------------------------------------------------------------------ */

void hr_fork_throttle(enum hr_fork at)
{
    if (at == HR_BEFORE_FORK) {
        pthread_mutex_lock(&looking);
        return;
    }
    if (at == HR_IN_CHILD) {
        /* The parent's limiters are its region's. */
        for (int row = 0; row < HR_DEVICES; row++) {
            rules[row] = HR_ROW_NEW;
            atomic_store_explicit(&hr_rows[row].state, HR_ROW_FREE, memory_order_relaxed);
            atomic_store_explicit(&hr_rows[row].limiter, NULL, memory_order_relaxed);
        }
        is_over = false;
        atomic_store_explicit(&only_row, SEVERAL_ROWS, memory_order_relaxed);
        hr_forget_regulator();
    }
    pthread_mutex_unlock(&looking);
}

/* Before the first launch of the process, so that the limit holds from the first one on. */
static void prepare(void)
{
    int devices;
    hr_attach_session();
    hr_region *region = hr_session_region();
    if (region == NULL || hr_look_at_limits(region) != HR_OK) {
        hr_end_throttle();
        return;
    }
    if (HR_CUDA(cuDeviceGetCount)(&devices) == CUDA_SUCCESS && devices == 1)
        atomic_store_explicit(&only_row, hr_row_of_device(0), memory_order_relaxed);
    atomic_fetch_and_explicit(&hr_holds, ~(unsigned)HR_HOLD_UNPREPARED, memory_order_relaxed);
}

/* ---- Launches ------------------------------------------------------------------------- */

static void settle_holds(void)
{
    unsigned holds = hr_current_holds();
    if ((holds & HR_HOLD_UNPREPARED) != 0)
        prepare();
    if ((holds & HR_HOLD_SUSPENDED) != 0)
        hr_wait_while_suspended();
    if ((holds & HR_HOLD_UNNOTED) != 0)
        atomic_fetch_and_explicit(&hr_holds, ~(unsigned)HR_HOLD_UNNOTED, memory_order_relaxed);
}

static struct hr_row *current_row(void)
{
    CUdevice device;
    int row = atomic_load_explicit(&only_row, memory_order_relaxed);
    if (row == SEVERAL_ROWS) {
        if (HR_CUDA(cuCtxGetDevice)(&device) != CUDA_SUCCESS)
            return NULL;
        row = hr_row_of_device(device);
    }
    return row >= 0 ? &hr_rows[row] : NULL;
}

static void nap(uint64_t ns)
{
    const struct timespec time = {.tv_nsec = (long)ns};
    nanosleep(&time, NULL);
}

/* Kernels that are only recorded into a graph take no time. */
static bool is_capturing(CUstream stream)
{
    int status;
    return HR_CUDA(cuStreamIsCapturing)(stream, &status) == CUDA_SUCCESS &&
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static int64_t tokens_for(const struct hr_row *row, struct hr_graph_size size)
{
    uint64_t each = atomic_load_explicit(&row->sm_count, memory_order_relaxed);
    uint64_t tokens = size.kernels * each + size.blocks;
    return tokens < INT64_MAX / 4 ? (int64_t)tokens : INT64_MAX / 4;
}

static bool try_to_launch(struct hr_row *row, struct hr_graph_size size, unsigned naps,
                          bool *has_paid, uint64_t *patience_ns)
{
    *patience_ns = NAP_NS;
    *has_paid = false;
    switch (atomic_load_explicit(&row->state, memory_order_relaxed)) {
    case HR_ROW_FREE:
        return true;
    case HR_ROW_PACED:
        *has_paid = hr_wait_for_tokens(&row->bucket, tokens_for(row, size),
                                       hr_clock_ns(CLOCK_MONOTONIC), patience_ns);
        return *has_paid;
    case HR_ROW_BESIDE:
        return hr_limiter_take(atomic_load_explicit(&row->limiter, memory_order_acquire),
                               (int64_t)size.blocks);
    case HR_ROW_NEW:
        hr_start_regulator();
        if (naps < NAPS_THAT_GROW)
            *patience_ns = FIRST_NAP_NS << naps;
        return false;
    default:
        return false;
    }
}

static bool pay_when_due(struct hr_row *row, struct hr_graph_size size, CUstream stream)
{
    uint64_t patience_ns;
    unsigned naps = 0;
    bool has_paid;
    if (try_to_launch(row, size, naps, &has_paid, &patience_ns) || is_capturing(stream))
        return has_paid;
    do {
        nap(patience_ns);
        naps++;
        hr_wait_while_suspended();
    } while (!try_to_launch(row, size, naps, &has_paid, &patience_ns));
    return has_paid;
}

struct hr_row *hr_throttle(struct hr_graph_size size, CUstream stream)
{
    if (__builtin_expect(hr_current_holds() != HR_HOLD_LIMITED, 0)) {
        settle_holds();
        if ((hr_current_holds() & HR_HOLD_LIMITED) == 0)
            return NULL;
    }
    struct hr_row *row = current_row();
    if (row == NULL)
        return NULL;
    int state = atomic_load_explicit(&row->state, memory_order_relaxed);
    if (state == HR_ROW_FREE)
        return NULL;
    if (state == HR_ROW_PACED && hr_take_tokens(&row->bucket, tokens_for(row, size)))
        return row;
    return pay_when_due(row, size, stream) ? row : NULL;
}

void hr_give_back_tokens(struct hr_row *row, struct hr_graph_size size)
{
    atomic_fetch_add_explicit(&row->bucket.tokens, tokens_for(row, size), memory_order_relaxed);
}
