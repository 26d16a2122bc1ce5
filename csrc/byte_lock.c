#define _GNU_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lock.h"

int hr_check_reopenable(const hr_region *region)
{
    return region->is_kept ? hr_fail_reason(HR_EREADONLY, HR_REASON_KEPT) : HR_OK;
}

/*
 * By its path, as the region was opened: no descriptor is kept that others could close.  Before the
 * fork lock is taken: a path may lead where nobody answers.
 */
static int hold_again(const hr_region *region)
{
    struct stat status;
    int code = hr_check_reopenable(region);
    if (code != HR_OK)
        return code;
    int held = hr_hold_file(region->path, region->no_link, &status);
    if (held >= 0 ? hr_is_file_of(region, &status) : held != HR_ENOTFOUND && held != HR_ENOTREGION)
        return held;
    if (held >= 0)
        close(held);
    return hr_fail_reason(HR_ESTALE, HR_REASON_REPLACED);
}

int hr_open_again(const hr_region *region, uint32_t flags)
{
    int held = hold_again(region);
    if (held < 0)
        return held;
    int fd = hr_open_held(held, region->path, flags);
    close(held);
    return fd;
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
    out->page = NULL;
    int held = hold_again(region);
    if (held < 0)
        return held;
    /* No child is forked while the descriptor is open. */
    hr_fork_lock();
    int fd = hr_open_held(held, region->path, type == F_WRLCK ? HR_WRITE : HR_READ);
    int code = fd >= 0 ? lock_in_page(fd, type, start, length, out) : fd;
    if (fd >= 0)
        close(fd);
    hr_fork_unlock();
    close(held);
    return code;
}

int hr_ask_bytes(const hr_region *region, const off_t *bytes, uint32_t count, bool *is_locked)
{
    int fd = hr_open_again(region, HR_READ), code = HR_OK;
    if (fd < 0)
        return fd;
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
