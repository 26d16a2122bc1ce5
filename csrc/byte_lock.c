#define _GNU_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lock.h"

/* HR_ESTALE if the path leads to another file by now. */
static int check_same(const hr_region *region, int code, const struct stat *status)
{
    if (code == HR_ENOTFOUND || code == HR_ENOTREGION ||
        (code == HR_OK && (status->st_ino != region->inode || status->st_dev != region->device_id)))
        return hr_fail_reason(HR_ESTALE, HR_REASON_REPLACED);
    return code;
}

/*
 * By its path, as the region was opened: no descriptor is kept that others could close.  Before the
 * fork lock is taken: a path may lead where nobody answers.
 */
static int hold_again(const hr_region *region, struct hr_hold *hold)
{
    struct stat status;
    int code = hr_hold_file(region->path, region->no_link, hold, &status);
    code = check_same(region, code, &status);
    if (code != HR_OK)
        hr_end_hold(hold);
    return code;
}

/* Under the fork lock: no child is forked while the descriptor is open. */
static int open_again(const hr_region *region, const struct hr_hold *hold, uint32_t flags, int *fd)
{
    struct stat status;
    int code = hr_open_hold(hold, flags, fd, &status);
    const bool is_open = code == HR_OK;
    code = check_same(region, code, &status);
    if (is_open && code != HR_OK)
        close(*fd);
    return code;
}

int hr_open_again(const hr_region *region, uint32_t flags, int *fd)
{
    struct hr_hold hold;
    int code = hold_again(region, &hold);
    if (code != HR_OK)
        return code;
    code = open_again(region, &hold, flags, fd);
    hr_end_hold(&hold);
    return code;
}

static int lock_in_page(int fd, short type, off_t start, off_t length, struct hr_byte_lock *out)
{
    struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = length};
    void *page = mmap(NULL, 1, PROT_NONE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED)
        return hr_fail_errno(HR_ESYSTEM, errno);
    if (madvise(page, 1, MADV_DONTFORK) == 0 && fcntl(fd, F_OFD_SETLK, &range) == 0) {
        out->page = page;
        return HR_OK;
    }
    const int error = errno;
    munmap(page, 1);
    return error == EAGAIN || error == EACCES ? HR_EBUSY : hr_fail_errno(HR_ESYSTEM, error);
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
