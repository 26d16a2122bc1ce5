#include <errno.h>
#include <unistd.h>

#include "lock.h"

/* Any other value is off: no other program is known to write there, but one may. */
#define BURST_ON 0x74737262 /* "brst" */

/*
 * Behind the structure, in the page that its last bytes are in, so that every mapping of a region
 * shows it.  libvgpu maps the structure only, and each time it starts it stores a zero in the byte
 * that follows; between the fields it has no room that it does not empty or move with a slot.  In a
 * file that ends before, the page is zero there.  Before 1.1 HAMi's monitor knows its regions by
 * the exact size of the file.
 */
static uint32_t burst_at(const struct hr_layout *layout)
{
    return ((uint32_t)layout->size + 15) & ~7u;
}

static bool has_burst(const struct hr_layout *layout)
{
    return layout->id >= HR_V1_1;
}

struct burst_call {
    const hr_region *region;
    bool is_on;
};

static int load(void *argument)
{
    struct burst_call *call = argument;
    const unsigned char *at = call->region->base + burst_at(call->region->layout);
    /* Nothing else is published by it. */
    call->is_on = hr_load_i32(at, memory_order_relaxed) == BURST_ON;
    return HR_OK;
}

static int read_entered(const hr_region *region)
{
    struct burst_call call = {.region = region};
    if (!has_burst(region->layout))
        return 0;
    const size_t bytes = burst_at(region->layout) + sizeof(int32_t);
    int code = hr_guard_run(region->base, bytes, load, &call);
    return code == HR_OK ? call.is_on : code;
}

int hr_read_burst(hr_region *region, struct hr_error *error)
{
    int code = hr_enter(region);
    if (code != HR_OK)
        return hr_report(error, code);
    code = read_entered(region);
    hr_leave(region);
    return hr_report(error, code);
}

/* By the file: a store through the mapping would not make it longer. */
static int write_word(const hr_region *region, int32_t word)
{
    int fd = hr_open_again(region, HR_WRITE), code = HR_OK;
    if (fd < 0)
        return fd;
    if (pwrite(fd, &word, sizeof word, burst_at(region->layout)) != (ssize_t)sizeof word)
        code = hr_fail_errno(HR_ESYSTEM, errno);
    close(fd);
    return code;
}

int hr_set_burst(hr_region *region, int on, uint32_t flags, struct hr_error *error)
{
    int code = hr_enter_to_write(region);
    if (code != HR_OK)
        return hr_report(error, code);
    int before = has_burst(region->layout) ? read_entered(region) : hr_fail_code(HR_EINVAL);
    code = before;
    if (before >= 0 && before != (on != 0) && (flags & HR_DRY_RUN) == 0)
        code = write_word(region, on != 0 ? BURST_ON : 0);
    hr_leave(region);
    return hr_report(error, code < 0 ? code : before);
}
