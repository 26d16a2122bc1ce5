#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

/* <linux/fs.h> has it, but clashes with <fcntl.h> on some systems. */
#define NO_REPLACE 1u

/* What sem_init(sem, 1, 1) of glibc leaves: value 1, no waiter, shared. */
static void init_semaphore(unsigned char *at)
{
    const uint64_t free_word = 1;
    const int32_t shared = 128;
    memset(at, 0, HR_SEM_BYTES);
    memcpy(at, &free_word, sizeof free_word);
    memcpy(at + 8, &shared, sizeof shared);
}

static int write_at(int fd, const void *from, size_t bytes, uint64_t offset)
{
    ssize_t written = pwrite(fd, from, bytes, (off_t)offset);
    if (written < 0)
        return hr_fail_errno(HR_ESYSTEM, errno);
    return (size_t)written == bytes ? HR_OK : hr_fail_errno(HR_ESYSTEM, ENOSPC);
}

static int write_region(int fd, const struct hr_layout *layout, const struct hr_create_spec *spec)
{
    unsigned char header[2048] = {0};
    unsigned char tail[128] = {0}; /* from proc_num to the end of the struct */
    const uint32_t version[] = {layout->major_version, layout->minor_version};
    const uint64_t device_num = spec->device_num, now = (uint64_t)time(NULL);
    /* proc_num, then what libvgpu's creation leaves: limiting on, a launch just seen. */
    const int32_t numbers[] = {0, 1, 2, spec->priority};
    if (layout->major_version != 0)
        memcpy(header + 4, version, sizeof version);
    init_semaphore(header + layout->sem);
    memcpy(header + layout->device_num, &device_num, sizeof device_num);
    memcpy(header + layout->limit, spec->limit, sizeof spec->limit);
    memcpy(header + layout->sm_limit, spec->sm_limit, sizeof spec->sm_limit);
    memcpy(header + layout->uuids, spec->uuids, sizeof spec->uuids);
    memcpy(tail, numbers, sizeof numbers);
    if (layout->last_kernel_time != HR_ABSENT)
        memcpy(tail + (layout->last_kernel_time - layout->proc_num), &now, sizeof now);
    if (layout->sem_postinit != HR_ABSENT) {
        bool in_header = layout->sem_postinit < layout->procs;
        init_semaphore(in_header ? header + layout->sem_postinit
                                 : tail + (layout->sem_postinit - layout->proc_num));
    }

    /* One byte behind the struct, as libvgpu leaves it by seeking and writing a zero. */
    if (ftruncate(fd, (off_t)layout->size + 1) != 0)
        return hr_fail_errno(HR_ESYSTEM, errno);
    int code = write_at(fd, header, layout->procs, 0);
    if (code == HR_OK)
        code = write_at(fd, tail, layout->size - layout->proc_num, layout->proc_num);
    /* Magic last: until then a reader sees a region that is not ready. */
    const int32_t magic = HR_MAGIC;
    if (code == HR_OK)
        code = write_at(fd, &magic, sizeof magic, 0);
    /* Any user in the container may be the next to open it; umask must not decide. */
    if (code == HR_OK && fchmod(fd, 0666) != 0)
        code = hr_fail_errno(HR_ESYSTEM, errno);
    return code;
}

static int publish(int directory, const char *temporary, const char *name)
{
    if (syscall(SYS_renameat2, directory, temporary, directory, name, NO_REPLACE) == 0)
        return HR_OK;
    return hr_fail_errno(errno == EEXIST ? HR_EEXISTS : HR_ESYSTEM, errno);
}

static int check_spec(const struct hr_create_spec *spec)
{
    if (spec->layout >= HR_LAYOUTS || spec->device_num > HR_DEVICES)
        return hr_fail_code(HR_EINVAL);
    for (uint32_t device = 0; device < HR_DEVICES; device++) {
        if (!hr_uuid_is_plausible((const unsigned char *)spec->uuids[device]))
            return hr_fail_code(HR_EINVAL);
    }
    return HR_OK;
}

int hr_create(const char *path, const struct hr_create_spec *spec, struct hr_error *error)
{
    int code = check_spec(spec);
    if (code != HR_OK)
        return hr_report(error, code);
    const char *name;
    int directory = hr_open_directory(path, 0, &name);
    if (directory < 0)
        return hr_report(error, directory);

    char temporary[64]; /* no .cache at its end, so it does not look like a region */
    snprintf(temporary, sizeof temporary, ".region-%d-%016" PRIx64 ".new", getpid(),
             hr_clock_ns(CLOCK_MONOTONIC));
    int fd = openat(directory, temporary, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) {
        code = hr_open_error(errno);
    } else {
        code = write_region(fd, &hr_layouts[spec->layout], spec);
        close(fd);
        if (code == HR_OK)
            code = publish(directory, temporary, name);
        if (code != HR_OK)
            unlinkat(directory, temporary, 0);
    }
    close(directory);
    return hr_report(error, code);
}
