#include "base.h"

#include <time.h>

const char *hr_core_version(void)
{
    return HR_VERSION;
}

static _Thread_local struct hr_detail last;

int hr_fail(const struct hr_detail *detail)
{
    last = *detail;
    return detail->code;
}

int hr_fail_why(int code, int why)
{
    struct hr_detail detail = {.code = code, .why = why, .device = -1, .layout = HR_LAYOUTS};
    return hr_fail(&detail);
}

int hr_fail_code(int code)
{
    return hr_fail_why(code, HR_WHY_NONE);
}

int hr_fail_errno(int code, int sys_errno)
{
    struct hr_detail detail = {
        .code = code, .sys_errno = sys_errno, .device = -1, .layout = HR_LAYOUTS};
    return hr_fail(&detail);
}

void hr_last_detail(struct hr_detail *out)
{
    *out = last;
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

bool hr_nap(uint64_t deadline_ns, unsigned *naps)
{
    const uint64_t shortest = 20000, longest = 320000;
    uint64_t now = hr_clock_ns(CLOCK_MONOTONIC);
    if (now >= deadline_ns)
        return false;
    uint64_t length = shortest << (*naps < 4 ? *naps : 4);
    (*naps)++;
    if (length > longest)
        length = longest;
    if (length > deadline_ns - now)
        length = deadline_ns - now;
    const struct timespec nap = {.tv_nsec = (long)length};
    nanosleep(&nap, NULL);
    return true;
}
