#define _GNU_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "slots.h"

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

static void free_handle(hr_region *region)
{
    free(region->path);
    free(region);
}

static hr_region *new_handle(const char *path, uint32_t flags)
{
    hr_region *region = calloc(1, sizeof *region);
    if (region == NULL)
        return NULL;
    region->path = absolute_path(path);
    if (region->path == NULL) {
        free(region);
        return NULL;
    }
    region->fork_generation = hr_fork_generation;
    region->writable = (flags & HR_WRITE) != 0;
    region->no_link = flags & HR_NO_LINK;
    region->is_kept = (flags & HR_KEEP) != 0;
    return region;
}

/* No child is forked in between, and no other thread sees a mapping without its handle. */
static int map_file(hr_region *region, int fd)
{
    int protection = region->writable ? PROT_READ | PROT_WRITE : PROT_READ;
    int code = HR_OK;
    hr_fork_lock();
    void *base = mmap(NULL, region->mapped_bytes, protection, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
        code = hr_fail_errno(HR_ESYSTEM, errno);
    } else {
        region->base = base;
        if (region->writable)
            hr_link_writable(region);
    }
    hr_fork_unlock();
    return code;
}

static int try_open(const char *path, uint32_t flags, uint32_t layout, hr_region **out)
{
    *out = NULL;
    int code = hr_watch_forks();
    if (code != HR_OK)
        return code;
    hr_region *region = new_handle(path, flags);
    if (region == NULL)
        return hr_fail_errno(HR_ESYSTEM, ENOMEM);
    int fd = hr_open_identified(region, flags, layout);
    code = fd < 0 ? fd : map_file(region, fd);
    if (fd >= 0)
        hr_close_file(fd, flags);
    if (code != HR_OK) {
        free_handle(region);
        return code;
    }
    *out = region;
    return (int)region->layout->id;
}

int hr_open(const char *path, uint32_t flags, uint32_t layout, uint64_t timeout_ns, hr_region **out,
            struct hr_error *error)
{
    /* A file is made within milliseconds, a container within seconds. */
    const long shortest = 250000, longest = 16000000;
    const uint64_t deadline = hr_deadline_ns(timeout_ns);
    for (long nap = shortest;; nap = nap < longest ? 2 * nap : longest) {
        const int code = try_open(path, flags, layout, out);
        const uint64_t now = hr_clock_ns(CLOCK_MONOTONIC);
        if ((code != HR_ENOTFOUND && code != HR_ENOTREADY) || now >= deadline)
            return hr_report(error, code);
        const uint64_t left = deadline - now;
        const struct timespec length = {.tv_nsec = left < (uint64_t)nap ? (long)left : nap};
        nanosleep(&length, NULL);
    }
}

void hr_get_info(const hr_region *region, struct hr_info *out)
{
    out->layout = region->layout->id;
    out->writable = region->writable;
    out->inode = region->inode;
    out->device_id = region->device_id;
    out->mapped_bytes = region->mapped_bytes;
    out->version = region->version;
    bool is_ours = region->fork_generation == hr_fork_generation;
    /* hr_close() may take it away just now: who touches it enters, and this does not. */
    unsigned char *base = __atomic_load_n(&region->base, __ATOMIC_RELAXED);
    out->address = is_ours ? (uint64_t)(uintptr_t)base : 0;
}

/* Whether the region's name leads to it; also where the system does not let us look: no
 * descriptors are left, for example. */
static bool is_there(const hr_region *region)
{
    struct stat status;
    int code = hr_stat_file(region, &status);
    if (code != HR_OK)
        return code == HR_ESYSTEM;
    return hr_is_file_of(region, &status) && (uint64_t)status.st_size >= region->layout->size;
}

int hr_is_stale(hr_region *region, struct hr_error *error)
{
    int code = hr_enter(region);
    if (code == HR_OK)
        code = hr_leave_after(region, !is_there(region));
    return hr_report(error, code);
}

int hr_close(hr_region *region, struct hr_error *error)
{
    uint32_t before = atomic_fetch_or_explicit(&region->users, HR_CLOSING, memory_order_acq_rel);
    if ((before & HR_CLOSING) != 0)
        return HR_OK;
    /* In a forked child the threads that were inside do not exist, so there is no wait. */
    bool forked = region->fork_generation != hr_fork_generation;
    const struct timespec nap = {.tv_nsec = 20000};
    while (!forked &&
           (atomic_load_explicit(&region->users, memory_order_acquire) & ~HR_CLOSING) != 0)
        nanosleep(&nap, NULL); /* each call inside has a deadline of its own */
    int code = HR_OK;
    if (!forked) {
        const uint64_t one_second = 1000000000;
        region->is_leaving = true;
        if (region->lock.held)
            hr_lock_drop(region);
        if (region->own.pid != 0)
            code = hr_leave_region(region, hr_deadline_ns(one_second));
    }
    region->own.is_claimed = false;
    hr_fork_lock();
    munmap(region->base, region->mapped_bytes);
    __atomic_store_n(&region->base, NULL, __ATOMIC_RELAXED);
    if (region->writable)
        hr_unlink_writable(region);
    hr_fork_unlock();
    hr_unlock_bytes(region, &region->lock.own_bytes);
    return hr_report(error, code);
}

void hr_free(hr_region **held)
{
    if (*held == NULL)
        return;
    hr_close(*held, NULL);
    free_handle(*held);
    *held = NULL;
}
