#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "internal.h"
#include "testpoint.h"

#ifdef HR_TESTPOINTS
int hr_testpoint_kill_at = -1;
int hr_testpoint_kill_on = 1;
int hr_testpoint_signal = SIGKILL;
int hr_testpoint_reached[HR_TESTPOINTS_COUNT];
uint64_t hr_testpoint_ownerless_ns = HR_OWNERLESS_NS;
#endif

const char *hr_core_version(void)
{
    return HR_VERSION;
}

static _Thread_local struct hr_error last;

int hr_fail(const struct hr_error *detail)
{
    last = *detail;
    return detail->code;
}

int hr_fail_reason(int code, int reason)
{
    return HR_FAIL(code, .reason = reason);
}

int hr_fail_code(int code)
{
    return hr_fail_reason(code, HR_REASON_NONE);
}

int hr_fail_errno(int code, int sys_errno)
{
    return HR_FAIL(code, .sys_errno = sys_errno);
}

void hr_last_error(struct hr_error *out)
{
    *out = last;
}

void hr_report_failure(struct hr_error *error, int code)
{
    *error = last;
    if (last.code != code) /* a failure without a detail: no other one may stand in for it */
        *error = (struct hr_error){.code = code, .device = -1, .layout = HR_LAYOUTS};
}

uint64_t hr_clock_ns(int clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t hr_deadline_ns(uint64_t timeout_ns)
{
    return hr_add_saturating(hr_clock_ns(CLOCK_MONOTONIC), timeout_ns);
}

bool hr_is_past(uint64_t deadline_ns)
{
    return hr_clock_ns(CLOCK_MONOTONIC) >= deadline_ns;
}

void *hr_grow(void *list, uint32_t count, size_t item)
{
    if ((count & (count - 1)) != 0) /* full at each power of two */
        return list;
    return realloc(list, (count == 0 ? 1 : (size_t)count * 2) * item);
}

bool hr_nap(uint64_t deadline_ns, unsigned *naps)
{
    const uint64_t shortest = 20000;
    const unsigned doublings = 4; /* up to 320 us */
    uint64_t now = hr_clock_ns(CLOCK_MONOTONIC);
    if (now >= deadline_ns)
        return false;
    uint64_t length = shortest << (*naps < doublings ? *naps : doublings);
    (*naps)++;
    if (length > deadline_ns - now)
        length = deadline_ns - now;
    const struct timespec nap = {.tv_nsec = (long)length};
    nanosleep(&nap, NULL);
    return true;
}

/* ---- Forks --------------------------------------------------------------------------------- */

uint32_t hr_fork_generation;

static pthread_mutex_t fork_guard = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t fork_watch = PTHREAD_ONCE_INIT;
static int fork_watch_error;

void hr_fork_lock(void)
{
    pthread_mutex_lock(&fork_guard);
}

void hr_fork_unlock(void)
{
    pthread_mutex_unlock(&fork_guard);
}

static void after_fork_in_child(void)
{
    hr_fork_generation++;
    hr_fork_unlock();
}

static void watch_forks(void)
{
    fork_watch_error = pthread_atfork(hr_fork_lock, hr_fork_unlock, after_fork_in_child);
}

int hr_watch_forks(void)
{
    pthread_once(&fork_watch, watch_forks);
    return fork_watch_error == 0 ? HR_OK : hr_fail_errno(HR_ESYSTEM, fork_watch_error);
}
