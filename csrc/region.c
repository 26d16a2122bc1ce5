#define _GNU_SOURCE
#include "region.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "handle.h"
#include "identify.h"

const char *hr_core_version(void)
{
    return HR_VERSION;
}

/* ---- Details of the last failure, per thread ------------------------------ */

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

/* ---- Opening and closing ----------------------------------------------------- */

/* hr_is_stale() must not depend on where the process goes later. */
static char *absolute_path(const char *path)
{
    char *directory = path[0] == '/' ? strdup("") : getcwd(NULL, 0);
    char *absolute = NULL;
    if (directory != NULL &&
        asprintf(&absolute, "%s%s%s", directory, path[0] == '/' ? "" : "/", path) < 0)
        absolute = NULL;
    free(directory);
    return absolute;
}

static hr_region *new_handle(const char *path, uint32_t flags, const struct hr_layout *layout,
                             const struct stat *status)
{
    hr_region *region = calloc(1, sizeof *region);
    if (region == NULL)
        return NULL;
    region->path = absolute_path(path);
    if (region->path == NULL) {
        free(region);
        return NULL;
    }
    region->layout = layout;
    region->mapped_bytes = layout->size;
    region->fork_generation = hr_fork_generation;
    region->writable = (flags & HR_WRITE) != 0;
    region->fd = -1;
    region->device_id = status->st_dev;
    region->inode = status->st_ino;
    return region;
}

/*
 * Locks need an open file of their own: the mapping holds on to the one it was made
 * from, and a child of fork(), which inherits the mapping, would keep its locks.
 * The descriptor's own link opens the same file, whatever its name leads to by now.
 */
static int open_for_locks(int mapped)
{
    char link[40];
    snprintf(link, sizeof link, "/proc/self/fd/%d", mapped);
    int fd = open(link, O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    return fd >= 0 ? fd : hr_fail_errno(HR_ESYSTEM, errno);
}

int hr_open(const char *path, uint32_t flags, uint32_t layout, hr_region **out)
{
    *out = NULL;
    int code = hr_watch_forks();
    if (code == HR_OK)
        code = hr_guard_install();
    if (code != HR_OK)
        return code;

    int fd;
    struct stat status;
    int found = hr_open_identified(path, flags, layout, &fd, &status);
    if (found < 0)
        return found;
    hr_region *region = new_handle(path, flags, &hr_layouts[found], &status);
    if (region == NULL) {
        close(fd);
        return hr_fail_errno(HR_ESYSTEM, ENOMEM);
    }
    int protection = region->writable ? PROT_READ | PROT_WRITE : PROT_READ;
    void *base = mmap(NULL, region->mapped_bytes, protection, MAP_SHARED, fd, 0);
    code = base == MAP_FAILED ? hr_fail_errno(HR_ESYSTEM, errno) : HR_OK;
    if (code == HR_OK && region->writable) {
        hr_hold_forks();
        region->fd = open_for_locks(fd);
        code = region->fd < 0 ? region->fd : HR_OK;
        region->base = base;
        if (code == HR_OK)
            hr_link_writable(region);
        hr_let_forks();
    }
    close(fd);
    if (code != HR_OK) {
        if (base != MAP_FAILED)
            munmap(base, region->mapped_bytes);
        free(region->path);
        free(region);
        return code;
    }
    region->base = base;
    *out = region;
    return found;
}

void hr_get_info(const hr_region *region, struct hr_info *out)
{
    out->layout = region->layout->id;
    out->writable = region->writable;
    out->inode = region->inode;
    out->device_id = region->device_id;
    out->mapped_bytes = region->mapped_bytes;
    bool is_ours = region->fork_generation == hr_fork_generation;
    out->address = is_ours ? (uint64_t)(uintptr_t)region->base : 0;
}

int hr_is_stale(hr_region *region)
{
    int code = hr_enter(region);
    if (code != HR_OK)
        return code;
    struct stat status;
    int stale = fstatat(AT_FDCWD, region->path, &status, AT_SYMLINK_NOFOLLOW) != 0 ||
                status.st_ino != region->inode || status.st_dev != region->device_id ||
                (uint64_t)status.st_size < region->layout->size;
    hr_leave(region);
    return stale;
}

void hr_close(hr_region *region)
{
    uint32_t before = atomic_fetch_or_explicit(&region->users, HR_CLOSING, memory_order_acq_rel);
    if ((before & HR_CLOSING) != 0)
        return;
    /* In a forked child the threads that were inside do not exist: nobody to wait for. */
    bool forked = region->fork_generation != hr_fork_generation;
    const struct timespec nap = {.tv_nsec = 20000};
    while (!forked &&
           (atomic_load_explicit(&region->users, memory_order_acquire) & ~HR_CLOSING) != 0)
        nanosleep(&nap, NULL); /* each call inside has a deadline of its own */
    if (!forked) {
        const uint64_t one_second = 1000000000;
        region->is_leaving = true;
        hr_lock_abandon(region);
        if (region->attachment != NULL)
            hr_leave_region(region, hr_deadline_ns(one_second));
    }
    munmap(region->base, region->mapped_bytes);
    region->base = NULL;
    hr_unclaim_attachment(region);
    if (region->writable)
        hr_unlink_writable(region);
    if (region->fd >= 0)
        close(region->fd);
    region->fd = -1;
}

void hr_free(hr_region *region)
{
    if (region == NULL)
        return;
    hr_close(region);
    free(region->attachment);
    free(region->path);
    free(region);
}

int hr_run(hr_region *region, hr_guarded_work *work, void *argument)
{
    int code = hr_enter(region);
    if (code != HR_OK)
        return code;
    code = hr_guard_run(region->base, region->mapped_bytes, work, argument);
    hr_leave(region);
    return code;
}

int hr_run_write(hr_region *region, hr_guarded_work *work, void *argument)
{
    /* `writable` never changes after hr_open(). */
    return region->writable ? hr_run(region, work, argument) : hr_fail_code(HR_EREADONLY);
}

/* ---- Header fields --------------------------------------------------------- */

int hr_check_header(const hr_region *region)
{
    const struct hr_layout *layout = region->layout;
    /* Acquire: what a creator stored before the magic is visible after it. */
    int32_t magic = hr_load_i32(region->base, memory_order_acquire);
    bool same = magic == HR_MAGIC;
    if (layout->major_version != 0) {
        same =
            same &&
            hr_load_i32(region->base + 4, memory_order_relaxed) == (int32_t)layout->major_version &&
            hr_load_i32(region->base + 8, memory_order_relaxed) == (int32_t)layout->minor_version;
    }
    return same ? HR_OK : hr_fail_why(HR_ESTALE, HR_WHY_REPLACED);
}

static int corrupt(const hr_region *region, int why, uint64_t found)
{
    struct hr_detail detail = {.code = HR_ECORRUPT,
                               .why = why,
                               .device = -1,
                               .layout = region->layout->id,
                               .file_size = region->layout->size,
                               .found = found};
    return hr_fail(&detail);
}

int hr_checked_proc_num(const hr_region *region, int32_t *out)
{
    /* Acquire pairs with the release of proc_num after a slot has been filled. */
    *out = hr_load_i32(region->base + region->layout->proc_num, memory_order_acquire);
    if (*out >= 0 && *out <= HR_SLOTS)
        return HR_OK;
    return corrupt(region, HR_WHY_PROC_NUM, (uint64_t)(int64_t)*out);
}

int hr_checked_device_num(const hr_region *region, uint32_t *out)
{
    uint64_t count = hr_load_u64(region->base + region->layout->device_num, memory_order_relaxed);
    *out = (uint32_t)count;
    return count <= HR_DEVICES ? HR_OK : corrupt(region, HR_WHY_DEVICE_NUM, count);
}

static uint64_t limit_of(const hr_region *region, uint32_t device)
{
    return hr_load_u64(region->base + region->layout->limit + device * 8, memory_order_relaxed);
}

bool hr_limits_all_equal(const hr_region *region)
{
    uint64_t first = limit_of(region, 0);
    for (uint32_t device = 1; device < HR_DEVICES; device++) {
        if (limit_of(region, device) != first)
            return false;
    }
    return true;
}

uint32_t hr_counted_devices(const hr_region *region, uint32_t device_num)
{
    if (device_num != 0)
        return device_num;
    if (hr_limits_all_equal(region))
        return 1;
    uint32_t count = HR_DEVICES;
    while (count > 1 && limit_of(region, count - 1) == 0)
        count--;
    return count;
}

uint32_t hr_far_uuids(const hr_region *region, uint32_t count)
{
    uint32_t found = 0;
    for (uint32_t device = count; device < HR_DEVICES; device++) {
        const unsigned char *uuid = region->base + region->layout->uuids + device * HR_UUID_BYTES;
        if (hr_load_u64(uuid, memory_order_relaxed) != 0)
            found |= 1u << device;
    }
    return found;
}

uint32_t hr_far_usage(const hr_region *region, const unsigned char *slot, uint32_t count)
{
    const unsigned char *used = hr_used(region, slot, count);
    const uint32_t stride = region->layout->slot_used_stride;
    /* Nearly always all zero: five independent sums first, devices apart only on demand. */
    uint64_t context = 0, module = 0, data = 0, offset = 0, total = 0;
    for (uint32_t device = count; device < HR_DEVICES; device++, used += stride) {
        context |= hr_load_u64(used, memory_order_relaxed);
        module |= hr_load_u64(used + 8, memory_order_relaxed);
        data |= hr_load_u64(used + 16, memory_order_relaxed);
        offset |= hr_load_u64(used + 24, memory_order_relaxed);
        total |= hr_load_u64(used + 32, memory_order_relaxed);
    }
    if ((context | module | data | offset | total) == 0)
        return 0;

    uint32_t found = 0;
    for (uint32_t device = count; device < HR_DEVICES; device++) {
        used = hr_used(region, slot, device);
        uint64_t any = 0;
        for (uint32_t field = 0; field < 5; field++)
            any |= hr_load_u64(used + field * 8, memory_order_relaxed);
        if (any != 0)
            found |= 1u << device;
    }
    return found;
}

int hr_sum_used(const hr_region *region, uint32_t device, uint64_t *out)
{
    int32_t count;
    int code = hr_checked_proc_num(region, &count);
    if (code != HR_OK)
        return code;
    uint64_t sum = 0;
    for (int32_t i = 0; i < count; i++) {
        const unsigned char *used = hr_used(region, hr_slot(region, (uint32_t)i), device);
        sum = hr_add_saturating(sum, hr_load_u64(used + 32, memory_order_relaxed));
    }
    *out = sum;
    return HR_OK;
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

/* ---- Live values ----------------------------------------------------------- */

struct get_call {
    const hr_region *region;
    uint32_t value;
    uint32_t device;
    uint64_t result;
};

static uint64_t load_signed(const hr_region *region, uint32_t offset)
{
    return (uint64_t)(int64_t)hr_load_i32(region->base + offset, memory_order_relaxed);
}

static int get_work(void *argument)
{
    struct get_call *call = argument;
    const hr_region *region = call->region;
    const struct hr_layout *layout = region->layout;
    uint32_t device_num;
    int32_t proc_num;

    int code = hr_check_header(region);
    if (code != HR_OK)
        return code;
    switch (call->value) {
    case HR_VALUE_MEMORY_LIMIT:
        call->result = limit_of(region, call->device);
        return HR_OK;
    case HR_VALUE_SM_LIMIT:
        call->result =
            hr_load_u64(region->base + layout->sm_limit + call->device * 8, memory_order_relaxed);
        return HR_OK;
    case HR_VALUE_MEMORY_USED:
        return hr_sum_used(region, call->device, &call->result);
    case HR_VALUE_PRIORITY:
        call->result = load_signed(region, layout->priority);
        return HR_OK;
    case HR_VALUE_UTILIZATION_SWITCH:
        call->result = load_signed(region, layout->utilization_switch);
        return HR_OK;
    case HR_VALUE_RECENT_KERNEL:
        call->result = load_signed(region, layout->recent_kernel);
        return HR_OK;
    case HR_VALUE_LAST_KERNEL_TIME:
        if (layout->last_kernel_time == HR_ABSENT)
            return hr_fail_code(HR_EINVAL);
        call->result = hr_load_u64(region->base + layout->last_kernel_time, memory_order_relaxed);
        return HR_OK;
    case HR_VALUE_DEVICE_NUM:
        code = hr_checked_device_num(region, &device_num);
        call->result = device_num;
        return code;
    case HR_VALUE_PROC_NUM:
        code = hr_checked_proc_num(region, &proc_num);
        call->result = (uint64_t)proc_num;
        return code;
    default:
        return hr_fail_code(HR_EINVAL);
    }
}

uint64_t hr_get(hr_region *region, uint32_t value, uint32_t device)
{
    if (device >= HR_DEVICES) {
        hr_fail_code(HR_EINVAL);
        return HR_NO_VALUE;
    }
    struct get_call call = {.region = region, .value = value, .device = device};
    int code = hr_run(region, get_work, &call);
    if (code != HR_OK)
        return HR_NO_VALUE;
    if (call.result == HR_NO_VALUE)
        last.code = HR_OK; /* the file really says so */
    return call.result;
}
