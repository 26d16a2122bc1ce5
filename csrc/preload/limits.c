#define _GNU_SOURCE
#include "limits.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../internal.h"
#include "driver.h"
#include "hooks.h"
#include "session.h"

#define POLICY_VARIABLE "GPU_CORE_UTILIZATION_POLICY"

/* The pause between two tries of a launch that waits for the thread or for feedback. */
#define NAP_NS 5000000u
/* The thread mostly begins within a millisecond. */
#define FIRST_NAP_NS 100000u
/* A launch that has waited for tokens for so long is made, one of a process at a time: the GPU may
 * be busy with a kernel that waits for this launch. */
#define LONGEST_WAIT_NS 10000000000u

enum { RECENT_KERNEL = 2, SEVERAL_ROWS = -2 };

struct hr_row hr_rows[HR_DEVICES];
_Atomic bool hr_is_burst;

/* The row of the only device that this process sees, SEVERAL_ROWS, or HR_NO_ROW. */
static _Atomic int only_row = SEVERAL_ROWS;

/* Over the rules below, and over what follows from them in rows and in hr_holds. */
static pthread_mutex_t reading = PTHREAD_MUTEX_INITIALIZER;
static enum hr_row_rule rules[HR_DEVICES] = {[0 ... HR_DEVICES - 1] = HR_ROW_NEW};
static bool is_over;

static _Atomic uint64_t last_overdue_ns; /* when a launch was last made that had waited too long */

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
struct limits {
    uint64_t sm_limits[HR_DEVICES];
    bool is_on;      /* SM limits hold */
    bool is_stopped; /* recent_kernel is negative */
    bool stops_all;  /* also processes without a limit, as libvgpu of this layout does */
    bool is_burst;   /* SM limits are soft */
};

static int read_region(hr_region *region, struct limits *limits)
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
        code = hr_get(region, HR_SM, row, &limits->sm_limits[row], NULL);
    if (code != HR_OK)
        return code;
    hr_get_info(region, &info);
    limits->is_on = policy == POLICY_FORCE || (policy == POLICY_REGION && on != 0);
    limits->is_stopped = (int64_t)recent < 0;
    limits->stops_all = info.layout < HR_V1_1_POSTINIT;
    limits->is_burst = burst != 0;
    return HR_OK;
}

static uint32_t limit_in_force(const struct limits *limits, int row)
{
    uint64_t limit = limits->sm_limits[row];
    bool holds = limits->is_on && rules[row] != HR_ROW_FREE && limit > 0 && limit < HR_NO_LIMIT;
    return holds ? (uint32_t)limit : HR_NO_LIMIT;
}

static void apply(const struct limits *limits)
{
    bool is_any = false;
    atomic_store_explicit(&hr_is_burst, limits->is_burst, memory_order_relaxed);
    for (int row = 0; row < HR_DEVICES; row++) {
        uint32_t limit = limit_in_force(limits, row);
        bool is_limited = limit != HR_NO_LIMIT;
        enum hr_row_rule rule = is_limited ? rules[row] : HR_ROW_FREE;
        if (limits->is_stopped && (is_limited || limits->stops_all))
            rule = HR_ROW_STOPPED;
        atomic_store_explicit(&hr_rows[row].limit, limit, memory_order_relaxed);
        atomic_store_explicit(&hr_rows[row].rule, rule, memory_order_relaxed);
        is_any = is_any || rule != HR_ROW_FREE;
    }
    hr_set_hold(HR_HOLD_LIMITED, is_any);
}

void hr_set_rule(int row, enum hr_row_rule rule)
{
    pthread_mutex_lock(&reading);
    rules[row] = rule;
    int now = atomic_load_explicit(&hr_rows[row].rule, memory_order_relaxed);
    if (!is_over && now != HR_ROW_FREE && now != HR_ROW_STOPPED)
        atomic_store_explicit(&hr_rows[row].rule, rule, memory_order_relaxed);
    pthread_mutex_unlock(&reading);
}

void hr_open_gate(void)
{
    pthread_mutex_lock(&reading);
    is_over = true;
    for (int row = 0; row < HR_DEVICES; row++)
        atomic_store_explicit(&hr_rows[row].rule, HR_ROW_FREE, memory_order_relaxed);
    hr_set_hold(~(unsigned)HR_HOLD_SUSPENDED, false);
    pthread_mutex_unlock(&reading);
}

/* ---- Reporting launches to the region --------------------------------------------------- */

/* As libvgpu does: HAMi's monitor counts recent_kernel down, and shows the time. */
static int note_launch(void *argument)
{
    const hr_region *region = argument;
    unsigned char *recent_at = region->base + region->layout->recent_kernel;
    int32_t recent = hr_load_i32(recent_at, memory_order_relaxed);
    /* Only the monitor takes its negative value back. */
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
    if ((hr_current_holds() & (HR_HOLD_UNPREPARED | HR_HOLD_REPORT_DUE)) != 0)
        return;
    hr_run_write(region, note_launch, region);
    hr_set_hold(HR_HOLD_REPORT_DUE, true);
}

int hr_read_limits(hr_region *region)
{
    struct limits limits;
    pthread_mutex_lock(&reading);
    int code = read_region(region, &limits);
    if (code == HR_OK && !is_over) {
        apply(&limits);
        note_launches(region);
    }
    pthread_mutex_unlock(&reading);
    return code;
}

/* ---- Beginning ------------------------------------------------------------------------ */

/* Before the first launch of the process, so that the limit holds from the first one on. */
static void prepare(void)
{
    int devices;
    hr_attach_session();
    hr_region *region = hr_session_region();
    if (region == NULL || hr_read_limits(region) != HR_OK) {
        hr_open_gate();
        return;
    }
    if (HR_CUDA(cuDeviceGetCount)(&devices) == CUDA_SUCCESS && devices == 1)
        atomic_store_explicit(&only_row, hr_row_of_device(0), memory_order_relaxed);
    hr_set_hold(HR_HOLD_UNPREPARED, false);
}

/* ---- Launches ------------------------------------------------------------------------- */

static void clear_holds(void)
{
    unsigned holds = hr_current_holds();
    if ((holds & HR_HOLD_UNPREPARED) != 0)
        prepare();
    hr_wait_while_suspended();
    if ((holds & HR_HOLD_REPORT_DUE) != 0)
        hr_set_hold(HR_HOLD_REPORT_DUE, false);
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

static int64_t tokens_for(const struct hr_row *row, struct hr_graph_size size)
{
    uint64_t each = atomic_load_explicit(&row->unit_cost, memory_order_relaxed);
    uint64_t tokens = size.kernels * each + size.blocks;
    return tokens < INT64_MAX / 4 ? (int64_t)tokens : INT64_MAX / 4;
}

static bool is_overdue(uint64_t since_ns, uint64_t now_ns)
{
    uint64_t last_ns = atomic_load_explicit(&last_overdue_ns, memory_order_relaxed);
    return now_ns - (last_ns > since_ns ? last_ns : since_ns) >= LONGEST_WAIT_NS &&
           atomic_compare_exchange_strong_explicit(&last_overdue_ns, &last_ns, now_ns,
                                                   memory_order_relaxed, memory_order_relaxed);
}

/* Wait, and pay.  False: it costs nothing. */
static bool pay_when_due(struct hr_row *row, int64_t tokens)
{
    uint64_t since_ns = hr_clock_ns(CLOCK_MONOTONIC);
    for (;;) {
        uint64_t patience_ns = NAP_NS, now_ns = hr_clock_ns(CLOCK_MONOTONIC);
        switch (atomic_load_explicit(&row->rule, memory_order_relaxed)) {
        case HR_ROW_FREE:
            return false;
        case HR_ROW_PACED:
            if (hr_refill_and_take(&row->bucket, tokens, now_ns, &patience_ns))
                return true;
            if (is_overdue(since_ns, now_ns)) {
                hr_pay_tokens(&row->bucket, tokens);
                return true;
            }
            break;
        case HR_ROW_NEW:
            hr_hurry_thread();
            patience_ns = FIRST_NAP_NS;
            break;
        default:
            break;
        }
        nap(patience_ns);
        hr_wait_while_suspended();
    }
}

struct hr_row *hr_wait_to_launch(struct hr_graph_size size, CUstream stream)
{
    if (__builtin_expect(hr_current_holds() != HR_HOLD_LIMITED, 0)) {
        clear_holds();
        if ((hr_current_holds() & HR_HOLD_LIMITED) == 0)
            return NULL;
    }
    struct hr_row *row = current_row();
    /* Kernels that are only recorded into a graph take no time. */
    if (row == NULL || atomic_load_explicit(&row->rule, memory_order_relaxed) == HR_ROW_FREE ||
        hr_is_captured(stream))
        return NULL;
    int64_t tokens = tokens_for(row, size);
    if (atomic_load_explicit(&row->rule, memory_order_relaxed) == HR_ROW_PACED &&
        hr_take_tokens(&row->bucket, tokens))
        return row;
    return pay_when_due(row, tokens) ? row : NULL;
}

void hr_give_back_tokens(struct hr_row *row, struct hr_graph_size size)
{
    atomic_fetch_add_explicit(&row->bucket.tokens, tokens_for(row, size), memory_order_relaxed);
}

/* ---- Waiting -------------------------------------------------------------------------- */

void hr_wait_while_suspended(void)
{
    while ((hr_current_holds() & HR_HOLD_SUSPENDED) != 0)
        nap(NAP_NS);
}
