#define _GNU_SOURCE
#include "identify.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base.h"
#include "map_files.h"

/* Covers every field up to procs in every layout. */
#define HEADER_BYTES 2048

/* Above what people set in percent, below what allocations come to in bytes, and below a
 * pid with its host pid: what stands there in the other of two layouts. */
#define SM_LIMIT_LIKELY (UINT64_C(1) << 20)

/* libvgpu stores pids here; ours stay below 2^31 as well (lock.h). */
#define OWNER_PID_PLAUSIBLE INT32_MAX

int hr_open_directory(const char *path, const char **name)
{
    char directory[PATH_MAX];
    const char *slash = strrchr(path, '/');
    size_t length = slash == NULL ? 0 : (size_t)(slash - path);

    *name = slash == NULL ? path : slash + 1;
    if (slash == NULL) {
        strcpy(directory, ".");
    } else if (length == 0) {
        strcpy(directory, "/");
    } else if (length >= sizeof directory) {
        return hr_fail_errno(HR_ESYSTEM, ENAMETOOLONG);
    } else {
        memcpy(directory, path, length);
        directory[length] = '\0';
    }
    if ((*name)[0] == '\0')
        return hr_fail_why(HR_ENOTREGION, HR_WHY_DIRECTORY);
    int fd = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0)
        return fd;
    if (errno == ENOENT || errno == ENOTDIR)
        return hr_fail_errno(HR_ENOTFOUND, errno);
    return hr_fail_errno(errno == EACCES ? HR_EACCESS : HR_ESYSTEM, errno);
}

static int check_type(const struct stat *status)
{
    switch (status->st_mode & S_IFMT) {
    case S_IFREG:
        return HR_OK;
    case S_IFLNK:
        return hr_fail_why(HR_ENOTREGION, HR_WHY_SYMLINK);
    case S_IFDIR:
        return hr_fail_why(HR_ENOTREGION, HR_WHY_DIRECTORY);
    case S_IFIFO:
        return hr_fail_why(HR_ENOTREGION, HR_WHY_FIFO);
    case S_IFSOCK:
        return hr_fail_why(HR_ENOTREGION, HR_WHY_SOCKET);
    default:
        return hr_fail_why(HR_ENOTREGION, HR_WHY_DEVICE);
    }
}

static int open_error(int error)
{
    switch (error) {
    case ENOENT:
    case ENOTDIR:
        return hr_fail_errno(HR_ENOTFOUND, error);
    case EACCES:
    case EPERM:
    case EROFS:
        return hr_fail_errno(HR_EACCESS, error);
    case EISDIR:
        return hr_fail_why(HR_ENOTREGION, HR_WHY_DIRECTORY);
    case ENXIO:
        return hr_fail_why(HR_ENOTREGION, HR_WHY_SOCKET);
    case ELOOP: /* O_NOFOLLOW met a link that was put there after the stat */
        return hr_fail_why(HR_ENOTREGION, HR_WHY_SYMLINK);
    default:
        return hr_fail_errno(HR_ESYSTEM, error);
    }
}

/* Open what is held by an O_PATH descriptor, whatever the name leads to by now. */
static int open_held(int held, int directory, const char *name, int access)
{
    const int flags = access | O_NONBLOCK | O_CLOEXEC | O_NOCTTY;
    char link[40];
    snprintf(link, sizeof link, "/proc/self/fd/%d", held);
    int fd = open(link, flags);
    /* No /proc here. */
    return fd < 0 && errno == ENOENT ? openat(directory, name, flags | O_NOFOLLOW) : fd;
}

/*
 * Opening a device node can already have an effect, and a container can make one and
 * exchange it for its file between a look and an opening.  So the file is taken hold
 * of, looked at, and opened by that hold.
 */
int hr_open_file(const char *path, uint32_t flags, int *fd, struct stat *status)
{
    const char *name;
    int directory = hr_open_directory(path, &name);
    if (directory < 0)
        return directory;

    int code = HR_OK;
    *fd = -1;
    int held = -1;
    if (hr_is_in_map_files(path)) {
        held = hr_hold_mapped_file(directory, name);
        if (held < 0)
            code = held;
    } else {
        held = openat(directory, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
        if (held < 0)
            code = open_error(errno);
    }
    if (code == HR_OK && fstat(held, status) != 0)
        code = hr_fail_errno(HR_ESYSTEM, errno);
    if (code == HR_OK)
        code = check_type(status);
    if (code == HR_OK) {
        *fd = open_held(held, directory, name, (flags & HR_WRITE) != 0 ? O_RDWR : O_RDONLY);
        if (*fd < 0)
            code = open_error(errno);
    }
    if (held >= 0)
        close(held);
    close(directory);
    /* Look again, for where it had to be opened by its name. */
    if (code == HR_OK && fstat(*fd, status) != 0)
        code = hr_fail_errno(HR_ESYSTEM, errno);
    if (code == HR_OK)
        code = check_type(status);
    if (code != HR_OK && *fd >= 0) {
        close(*fd);
        *fd = -1;
    }
    return code;
}

struct file_view {
    int fd;
    uint64_t size;
    unsigned char header[HEADER_BYTES];
    uint32_t major_version, minor_version;
};

static uint64_t header_u64(const struct file_view *view, uint32_t offset)
{
    uint64_t value;
    memcpy(&value, view->header + offset, sizeof value);
    return value;
}

static uint32_t header_u32(const struct file_view *view, uint32_t offset)
{
    uint32_t value;
    memcpy(&value, view->header + offset, sizeof value);
    return value;
}

static int read_at(int fd, void *to, size_t bytes, uint64_t offset)
{
    ssize_t got = pread(fd, to, bytes, (off_t)offset);
    if (got < 0)
        return hr_fail_errno(HR_ESYSTEM, errno);
    if ((size_t)got < bytes)
        return hr_fail_why(HR_ESTALE, HR_WHY_TRUNCATED);
    return HR_OK;
}

int hr_uuid_is_plausible(const unsigned char *uuid)
{
    size_t length = strnlen((const char *)uuid, HR_UUID_BYTES);
    bool prefixed = memcmp(uuid, "GPU-", 4) == 0 || memcmp(uuid, "MIG-", 4) == 0;
    if (length == HR_UUID_BYTES || (length > 0 && !prefixed))
        return 0;
    for (size_t i = 0; i < HR_UUID_BYTES; i++) {
        bool printable = uuid[i] >= 0x20 && uuid[i] <= 0x7e;
        if (i < length ? !printable : uuid[i] != 0)
            return 0;
    }
    return 1;
}

/* A code that is no verdict on the layout but on the attempt to read it. */
static bool is_final(int code)
{
    return code != HR_OK && code != HR_ECORRUPT;
}

static int implausible(const struct file_view *view, const struct hr_layout *layout, int why,
                       int device, uint64_t found)
{
    struct hr_detail detail = {.code = HR_ECORRUPT,
                               .why = why,
                               .device = device,
                               .layout = layout->id,
                               .file_size = view->size,
                               .found = found};
    return hr_fail(&detail);
}

/* HR_OK, HR_ECORRUPT with the reason, or a final code. */
static int judge(const struct file_view *view, const struct hr_layout *layout)
{
    uint64_t version = (uint64_t)view->major_version << 32 | view->minor_version;
    if (view->size < layout->size)
        return implausible(view, layout, HR_WHY_TRUNCATED, -1, view->size);
    if (layout->major_version != 0 && (view->major_version != layout->major_version ||
                                       view->minor_version != layout->minor_version))
        return implausible(view, layout, HR_WHY_VERSION, -1, version);
    if (layout->major_version == 0 && header_u64(view, layout->owner_pid) > OWNER_PID_PLAUSIBLE)
        return implausible(view, layout, HR_WHY_VERSION, -1, version);

    uint64_t device_num = header_u64(view, layout->device_num);
    if (device_num > HR_DEVICES)
        return implausible(view, layout, HR_WHY_DEVICE_NUM, -1, device_num);
    for (int device = 0; device < HR_DEVICES; device++) {
        if (!hr_uuid_is_plausible(view->header + layout->uuids + device * HR_UUID_BYTES))
            return implausible(view, layout, HR_WHY_UUID, device, 0);
    }
    int32_t proc_num;
    int code = read_at(view->fd, &proc_num, sizeof proc_num, layout->proc_num);
    if (code != HR_OK)
        return code;
    if (proc_num < 0 || proc_num > HR_SLOTS)
        return implausible(view, layout, HR_WHY_PROC_NUM, -1, (uint64_t)(int64_t)proc_num);
    return HR_OK;
}

/*
 * No SM limit is a fault: any number from 100 on is unlimited.  But a file that can be read
 * in two layouts is of the one in which its SM limits look like some.
 */
static bool has_likely_sm_limits(const struct file_view *view, const struct hr_layout *layout)
{
    for (uint32_t device = 0; device < HR_DEVICES; device++) {
        if (header_u64(view, layout->sm_limit + device * 8) > SM_LIMIT_LIKELY)
            return false;
    }
    return true;
}

/*
 * Whether the four words after the slots say that a process has used the file in
 * this layout: creation sets utilization_switch and recent_kernel.
 */
static int has_used_tail(const struct file_view *view, const struct hr_layout *layout, bool *out)
{
    int32_t tail[4];
    int code = read_at(view->fd, tail, sizeof tail, layout->proc_num);
    *out = code == HR_OK && (tail[0] | tail[1] | tail[2] | tail[3]) != 0;
    return code;
}

/*
 * Files without version fields.  Both layouts have the same header, so size
 * decides; but a process of the newer generation lengthens an older file when it
 * opens it, and then only the tail tells which of the two has been in use.
 */
static int candidates_without_version(const struct file_view *view, uint32_t *candidates)
{
    if (view->size < hr_layouts[HR_UNVERSIONED].size) {
        *candidates = 1u << HR_UNVERSIONED_NO_UTIL;
        return HR_OK;
    }
    bool old_in_use, new_in_use;
    int code = has_used_tail(view, &hr_layouts[HR_UNVERSIONED_NO_UTIL], &old_in_use);
    if (code == HR_OK)
        code = has_used_tail(view, &hr_layouts[HR_UNVERSIONED], &new_in_use);
    if (code != HR_OK)
        return code;
    *candidates = old_in_use ? 1u << HR_UNVERSIONED_NO_UTIL : 0;
    if (new_in_use || !old_in_use)
        *candidates |= 1u << HR_UNVERSIONED;
    return HR_OK;
}

/*
 * sm_init_flag 1 and owner_pid 1 or 2, the lock held by a container's first
 * process, look like a version 1.1 or 1.2.  Only such a file has the mark of a
 * process-shared semaphore at the older place; a newer one that was cut short, or
 * one of a version to come, has not.
 */
static bool has_unversioned_semaphore(const struct file_view *view)
{
    uint32_t sem = hr_layouts[HR_UNVERSIONED].sem;
    return header_u32(view, sem + 8) == 128 || header_u32(view, sem + 4) == 128;
}

static uint32_t candidates_with_version(const struct file_view *view)
{
    uint32_t candidates = 0;
    for (uint32_t id = 0; id < HR_LAYOUTS; id++) {
        const struct hr_layout *layout = &hr_layouts[id];
        if (layout->major_version != 0 && layout->major_version == view->major_version &&
            layout->minor_version == view->minor_version && layout->size <= view->size)
            candidates |= 1u << id;
    }
    return candidates;
}

static int candidates_of(const struct file_view *view, uint32_t *candidates)
{
    uint32_t with_version = candidates_with_version(view);
    bool cut_short =
        view->major_version == 1 && (view->minor_version == 1 || view->minor_version == 2);
    bool fits_version = view->size >= hr_layouts[HR_V1_1].size;
    uint32_t without_version = 0;
    int code = HR_OK;
    /* At that size, or with such a version, only the mark tells an older file from a newer
     * one of an unknown version or a damaged one. */
    if (!(fits_version || cut_short) || has_unversioned_semaphore(view))
        code = candidates_without_version(view, &without_version);
    *candidates = with_version | without_version;
    return code;
}

/* What a file was made as, by the mark that creation leaves in the second semaphore. */
static uint32_t likeliest_of(const struct file_view *view, uint32_t candidates)
{
    uint32_t sem = hr_layouts[HR_V1_1_POSTINIT].sem_postinit;
    bool marked = header_u32(view, sem + 8) == 128 || header_u32(view, sem + 4) == 128;
    if (marked && (candidates & 1u << HR_V1_1_POSTINIT) != 0)
        return HR_V1_1_POSTINIT;
    uint32_t others = candidates & ~(1u << HR_V1_1_POSTINIT);
    return 31 - (uint32_t)__builtin_clz(others != 0 ? others : candidates);
}

/* The layout named is not the file's. */
static int contradicted(const struct file_view *view, uint32_t named, uint32_t found)
{
    struct hr_detail detail = {.code = HR_ENOTREGION,
                               .why = HR_WHY_LAYOUT,
                               .device = -1,
                               .layout = named,
                               .file_size = view->size,
                               .found = found};
    return hr_fail(&detail);
}

static int decide(const struct file_view *view, uint32_t named)
{
    uint32_t candidates, plausible = 0, likely = 0;
    int code = candidates_of(view, &candidates);
    if (code != HR_OK)
        return code;
    if (candidates == 0) {
        bool cut = view->size < hr_layouts[HR_V1_1].size;
        struct hr_detail detail = {.code = HR_ECORRUPT,
                                   .why = cut ? HR_WHY_TRUNCATED : HR_WHY_VERSION,
                                   .device = -1,
                                   .layout = HR_LAYOUTS,
                                   .file_size = view->size,
                                   .found =
                                       (uint64_t)view->major_version << 32 | view->minor_version,
                                   .wanted = cut ? hr_layouts[HR_V1_1].size : 0};
        return hr_fail(&detail);
    }
    const bool is_candidate = named < HR_LAYOUTS && (candidates & 1u << named) != 0;
    uint32_t likeliest = is_candidate ? named : likeliest_of(view, candidates);
    for (uint32_t at = 0; at < HR_LAYOUTS; at++) {
        /* The likeliest comes last: where none is plausible, what is said is about it. */
        uint32_t id = (likeliest + 1 + at) % HR_LAYOUTS;
        if ((candidates & 1u << id) == 0)
            continue;
        code = judge(view, &hr_layouts[id]);
        if (is_final(code))
            return code;
        if (code != HR_OK)
            continue;
        plausible |= 1u << id;
        if (has_likely_sm_limits(view, &hr_layouts[id]))
            likely |= 1u << id;
    }
    if (plausible == 0)
        return HR_ECORRUPT; /* the detail of the last judgement stands */
    if (likely != 0)
        plausible = likely;
    if (is_candidate && (plausible & 1u << named) != 0)
        return (int)named;
    if ((plausible & (plausible - 1)) == 0) {
        uint32_t found = (uint32_t)__builtin_ctz(plausible);
        return named == HR_LAYOUTS ? (int)found : contradicted(view, named, found);
    }
    struct hr_detail detail = {.code = HR_EAMBIGUOUS,
                               .device = -1,
                               .candidates = plausible,
                               .layout = HR_LAYOUTS,
                               .file_size = view->size};
    return hr_fail(&detail);
}

static int not_ready(const struct file_view *view, int why)
{
    struct hr_detail detail = {.code = HR_ENOTREADY,
                               .why = why,
                               .device = -1,
                               .layout = HR_LAYOUTS,
                               .file_size = view->size,
                               .wanted = hr_layouts[HR_UNVERSIONED_NO_UTIL].size};
    return hr_fail(&detail);
}

static int identify_file(int fd, const struct stat *status, uint32_t layout)
{
    struct file_view view = {.fd = fd, .size = (uint64_t)status->st_size};
    int32_t magic = 0;
    if (view.size == 0)
        return not_ready(&view, HR_WHY_EMPTY);
    if (view.size >= sizeof magic) {
        int code = read_at(fd, &magic, sizeof magic, 0);
        if (code != HR_OK)
            return code;
    }
    if (magic != 0 && magic != HR_MAGIC) {
        struct hr_detail detail = {.code = HR_ENOTREGION,
                                   .why = HR_WHY_MAGIC,
                                   .device = -1,
                                   .layout = HR_LAYOUTS,
                                   .file_size = view.size,
                                   .found = (uint32_t)magic};
        return hr_fail(&detail);
    }
    if (view.size < hr_layouts[HR_UNVERSIONED_NO_UTIL].size)
        return not_ready(&view, HR_WHY_SHORT);
    if (magic == 0)
        return not_ready(&view, HR_WHY_MAGIC_ZERO);

    int code = read_at(fd, view.header, sizeof view.header, 0);
    if (code != HR_OK)
        return code;
    view.major_version = header_u32(&view, 4);
    view.minor_version = header_u32(&view, 8);
    return decide(&view, layout);
}

int hr_open_identified(const char *path, uint32_t flags, uint32_t layout, int *fd,
                       struct stat *status)
{
    if (layout > HR_LAYOUTS || (flags & ~(uint32_t)HR_WRITE) != 0)
        return hr_fail_code(HR_EINVAL);
    int code = hr_open_file(path, flags, fd, status);
    if (code != HR_OK)
        return code;
    int found = identify_file(*fd, status, layout);
    if (found < 0) {
        close(*fd);
        *fd = -1;
    }
    return found;
}

int hr_identify(const char *path, uint32_t layout)
{
    int fd;
    struct stat status;
    int found = hr_open_identified(path, HR_READ, layout, &fd, &status);
    if (found >= 0)
        close(fd);
    return found;
}
