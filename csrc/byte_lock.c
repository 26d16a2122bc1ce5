#define _GNU_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lock.h"

static bool is_region(const hr_region *region, const struct stat *status)
{
    return status->st_ino == region->inode && status->st_dev == region->device_id;
}

/*
 * By its path, as the region was opened: no descriptor is kept that others could close.  Before the
 * fork lock is taken: a path may lead where nobody answers.
 */
static int hold_again(const hr_region *region, struct hr_hold *hold)
{
    struct stat status;
    int code = hr_hold_file(region->path, region->no_link, hold, &status);
    if (code == HR_ENOTFOUND || code == HR_ENOTREGION ||
        (code == HR_OK && !is_region(region, &status)))
        code = hr_fail_reason(HR_ESTALE, HR_REASON_REPLACED);
    if (code != HR_OK)
        hr_end_hold(hold);
    return code;
}

/* Under the fork lock: no child is forked while the descriptor is open. */
static int open_again(const hr_region *region, const struct hr_hold *hold, uint32_t flags, int *fd)
{
    struct stat status;
    int code = hr_open_hold(hold, flags, fd, &status);
    if (code == HR_ENOTFOUND || code == HR_ENOTREGION)
        return hr_fail_reason(HR_ESTALE, HR_REASON_REPLACED);
    if (code != HR_OK || is_region(region, &status))
        return code;
    close(*fd);
    *fd = -1;
    return hr_fail_reason(HR_ESTALE, HR_REASON_REPLACED);
}

int hr_open_again(const hr_region *region, uint32_t flags, int *fd)
{
    struct hr_hold hold;
    *fd = -1;
    int code = hold_again(region, &hold);
    if (code == HR_OK)
        code = open_again(region, &hold, flags, fd);
    hr_end_hold(&hold);
    return code;
}

static int set_lock(int fd, short type, off_t start, off_t length)
{
    struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = length};
    if (fcntl(fd, F_OFD_SETLK, &range) == 0)
        return HR_OK;
    return errno == EAGAIN || errno == EACCES ? HR_EBUSY : hr_fail_errno(HR_ESYSTEM, errno);
}

static int lock_in_page(int fd, short type, off_t start, off_t length, struct hr_byte_lock *out)
{
    int code;
    void *page = mmap(NULL, 1, PROT_NONE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED || madvise(page, 1, MADV_DONTFORK) != 0)
        code = hr_fail_errno(HR_ESYSTEM, errno);
    else
        code = set_lock(fd, type, start, length);
    if (code == HR_OK)
        out->page = page;
    else if (page != MAP_FAILED)
        munmap(page, 1);
    return code;
}

int hr_lock_bytes(const hr_region *region, short type, off_t start, off_t length,
                  struct hr_byte_lock *out)
{
    struct hr_hold hold;
    int fd;
    out->page = NULL;
    int code = hold_again(region, &hold);
    if (code != HR_OK)
        return code;
    hr_fork_lock();
    code = open_again(region, &hold, type == F_WRLCK ? HR_WRITE : HR_READ, &fd);
    if (code == HR_OK) {
        code = lock_in_page(fd, type, start, length, out);
        close(fd);
    }
    hr_fork_unlock();
    hr_end_hold(&hold);
    return code;
}

int hr_ask_bytes(const hr_region *region, const off_t *bytes, uint32_t count, bool *is_locked)
{
    int fd;
    int code = hr_open_again(region, HR_READ, &fd);
    if (code != HR_OK)
        return code;
    for (uint32_t i = 0; code == HR_OK && i < count; i++) {
        struct flock range = {
            .l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = bytes[i], .l_len = 1};
        if (fcntl(fd, F_OFD_GETLK, &range) != 0)
            code = hr_fail_errno(HR_ESYSTEM, errno);
        is_locked[i] = range.l_type != F_UNLCK;
    }
    close(fd);
    return code;
}

void hr_unlock_bytes(const hr_region *region, struct hr_byte_lock *lock)
{
    /* In a forked child the page is not there, and its address may be somebody else's. */
    if (lock->page != NULL && region->fork_generation == hr_fork_generation)
        munmap(lock->page, 1);
    lock->page = NULL;
}
