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

/* What is to be locked: a range, or those of `bytes` that are free. */
struct wanted {
    short type;
    off_t start, length;
    const off_t *bytes;
    uint32_t count;
    bool *is_locked;
};

static int set_wanted(int fd, const struct wanted *wanted)
{
    if (wanted->bytes == NULL)
        return set_lock(fd, wanted->type, wanted->start, wanted->length);
    for (uint32_t i = 0; i < wanted->count; i++) {
        int code = set_lock(fd, F_RDLCK, wanted->bytes[i], 1);
        if (code != HR_OK && code != HR_EBUSY)
            return code;
        wanted->is_locked[i] = code == HR_OK;
    }
    return HR_OK;
}

static int lock_in_page(const hr_region *region, const struct hr_hold *hold,
                        const struct wanted *wanted, struct hr_byte_lock *out)
{
    int fd;
    int code = open_again(region, hold, wanted->type == F_WRLCK ? HR_WRITE : HR_READ, &fd);
    if (code != HR_OK)
        return code;
    void *page = mmap(NULL, 1, PROT_NONE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED || madvise(page, 1, MADV_DONTFORK) != 0)
        code = hr_fail_errno(HR_ESYSTEM, errno);
    else
        code = set_wanted(fd, wanted);
    close(fd);
    if (code == HR_OK)
        out->page = page;
    else if (page != MAP_FAILED)
        munmap(page, 1);
    return code;
}

static int lock_wanted(const hr_region *region, const struct wanted *wanted,
                       struct hr_byte_lock *out)
{
    struct hr_hold hold;
    out->page = NULL;
    int code = hold_again(region, &hold);
    if (code != HR_OK)
        return code;
    hr_fork_lock();
    code = lock_in_page(region, &hold, wanted, out);
    hr_fork_unlock();
    hr_end_hold(&hold);
    return code;
}

int hr_lock_bytes(const hr_region *region, short type, off_t start, off_t length,
                  struct hr_byte_lock *out)
{
    const struct wanted wanted = {.type = type, .start = start, .length = length};
    return lock_wanted(region, &wanted, out);
}

int hr_lock_free_bytes(const hr_region *region, const off_t *bytes, uint32_t count, bool *is_locked,
                       struct hr_byte_lock *out)
{
    const struct wanted wanted = {
        .type = F_RDLCK, .bytes = bytes, .count = count, .is_locked = is_locked};
    return lock_wanted(region, &wanted, out);
}

void hr_unlock_bytes(const hr_region *region, struct hr_byte_lock *lock)
{
    /* In a forked child the page is not there, and its address may be somebody else's. */
    if (lock->page != NULL && region->fork_generation == hr_fork_generation)
        munmap(lock->page, 1);
    lock->page = NULL;
}
