#define _GNU_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"
#include "proc.h"

/* Covers every field up to procs in every layout. */
#define HEADER_BYTES 2048

/* Above what people set in percent, below what allocations come to in bytes, and below a
 * pid with its host pid: what stands there in the other of two layouts. */
#define SM_LIMIT_LIKELY (UINT64_C(1) << 20)

/* libvgpu stores pids here; ours stay below 2^31 as well (region.h). */
#define OWNER_PID_PLAUSIBLE INT32_MAX

static int check_type(const struct stat *status)
{
    const mode_t type = status->st_mode & S_IFMT;
    if (type == S_IFREG)
        return HR_OK;
    return HR_FAIL(HR_ENOTREGION, .found = type,
                   .reason = type == S_IFLNK ? HR_REASON_SYMLINK : HR_REASON_FILE_TYPE);
}

int hr_open_error(int error)
{
    switch (error) {
    case ENOENT:
    case ENOTDIR:
        return hr_fail_errno(HR_ENOTFOUND, error);
    case EACCES:
    case EPERM:
    case EROFS:
        return hr_fail_errno(HR_EACCESS, error);
    case ELOOP: /* O_NOFOLLOW met a link that was put there after the stat */
        return hr_fail_reason(HR_ENOTREGION, HR_REASON_SYMLINK);
    default:
        return hr_fail_errno(HR_ESYSTEM, error);
    }
}

int hr_open_directory(const char *path, uint32_t flags, const char **name)
{
    char directory[PATH_MAX];
    const char *slash = strrchr(path, '/');
    const size_t length = slash == NULL ? 1 : (size_t)(slash - path) + 1;
    *name = slash == NULL ? path : slash + 1;
    if (length >= sizeof directory)
        return hr_fail_errno(HR_ESYSTEM, ENAMETOOLONG);
    if ((*name)[0] == '\0')
        return HR_FAIL(HR_ENOTREGION, .found = S_IFDIR, .reason = HR_REASON_FILE_TYPE);
    memcpy(directory, slash == NULL ? "." : path, length);
    /* A name with a slash at its end is followed, whatever the flags. */
    const bool no_link = (flags & HR_NO_LINK) != 0 && length > 1;
    directory[no_link ? length - 1 : length] = '\0';
    int fd = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC | (no_link ? O_NOFOLLOW : 0));
    if (fd >= 0)
        return fd;
    return errno == ELOOP ? hr_fail_errno(HR_ESYSTEM, ELOOP) : hr_open_error(errno);
}

/* Where there is no /proc: by its name, if that leads to the same file still. */
static int open_by_name(int held, const char *path, int flags)
{
    struct stat wanted, found;
    int fd = open(path, flags | O_NOFOLLOW);
    if (fd < 0 || (fstat(held, &wanted) == 0 && fstat(fd, &found) == 0 &&
                   wanted.st_ino == found.st_ino && wanted.st_dev == found.st_dev))
        return fd;
    close(fd);
    errno = ENOENT;
    return -1;
}

int hr_open_held(int held, const char *path, uint32_t flags)
{
    const int access = ((flags & HR_WRITE) != 0 ? O_RDWR : O_RDONLY) | O_NONBLOCK | O_CLOEXEC;
    char link[40];
    snprintf(link, sizeof link, "/proc/self/fd/%d", held);
    int fd = open(link, access | O_NOCTTY);
    if (fd < 0 && errno == ENOENT)
        fd = open_by_name(held, path, access | O_NOCTTY);
    return fd >= 0 ? fd : hr_open_error(errno);
}

/*
 * The files that were opened with HR_KEEP, for as long as the process lives: one descriptor each,
 * or two where two threads came at once. While it is open, no other file can get its inode.
 * Entries are only added, so that a fork does not have to wait.
 */
struct kept_file {
    struct kept_file *next;
    dev_t device_id;
    ino_t inode;
    int fd;
};

static struct kept_file *_Atomic kept_files;

/* Open what is held for reading, or return the descriptor that this process has. */
static int open_kept(int held, const char *path, const struct stat *status)
{
    /* Acquire: the entries behind it, which are released below. */
    struct kept_file *first = atomic_load_explicit(&kept_files, memory_order_acquire);
    for (const struct kept_file *file = first; file != NULL; file = file->next)
        if (file->device_id == status->st_dev && file->inode == status->st_ino)
            return file->fd;

    struct kept_file *added = malloc(sizeof *added);
    int fd = added == NULL ? hr_fail_errno(HR_ESYSTEM, ENOMEM) : hr_open_held(held, path, HR_READ);
    if (fd < 0) {
        free(added);
        return fd;
    }
    *added = (struct kept_file){first, status->st_dev, status->st_ino, fd};
    /* Release: the entry is whole before others can find it. */
    while (!atomic_compare_exchange_weak_explicit(&kept_files, &added->next, added,
                                                  memory_order_release, memory_order_relaxed))
        continue;
    return fd;
}

void hr_close_file(int fd, uint32_t flags)
{
    if ((flags & HR_KEEP) == 0)
        close(fd);
}

/*
 * Opening a device node can already have an effect, and a container can make one and
 * exchange it for its file between a look and an opening.  So the file is taken hold
 * of, looked at, and opened by that hold.
 */
int hr_hold_file(const char *path, uint32_t flags, struct stat *status)
{
    const char *name;
    int directory = hr_open_directory(path, flags, &name);
    if (directory < 0)
        return directory;
    int held = hr_is_in_map_files(path) ? hr_hold_mapped_file(directory, name)
                                        : openat(directory, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    int error = errno;
    close(directory);
    if (held < 0)
        return hr_open_error(error);
    int code = fstat(held, status) == 0 ? check_type(status) : hr_fail_errno(HR_ESYSTEM, errno);
    if (code == HR_OK)
        return held;
    close(held);
    return code;
}

struct file_view {
    int fd;
    uint64_t size;
    unsigned char header[HEADER_BYTES];
    uint64_t version;    /* hr_version(), where there is one */
    int code, sys_errno; /* of the first read that failed */
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

/* What cannot be read is zeros, until identify_file() returns the failure. */
static void read_at(struct file_view *view, void *to, size_t bytes, uint64_t offset)
{
    const ssize_t got = pread(view->fd, to, bytes, (off_t)offset);
    if (got == (ssize_t)bytes)
        return;
    memset(to, 0, bytes);
    if (view->code == HR_OK) {
        view->code = got < 0 ? HR_ESYSTEM : HR_ESTALE;
        view->sys_errno = errno;
    }
}

static int32_t read_i32(struct file_view *view, uint64_t offset)
{
    int32_t value;
    read_at(view, &value, sizeof value, offset);
    return value;
}

static int read_failure(const struct file_view *view)
{
    return view->code == HR_ESTALE ? hr_fail_reason(HR_ESTALE, HR_REASON_TRUNCATED)
                                   : hr_fail_errno(HR_ESYSTEM, view->sys_errno);
}

bool hr_uuid_is_plausible(const unsigned char *uuid)
{
    static const unsigned char zeros[HR_UUID_BYTES];
    const size_t length = strnlen((const char *)uuid, HR_UUID_BYTES);
    unsigned char bad = length == HR_UUID_BYTES;
    /* Over all bytes and without branches: the compiler takes many of them at once. */
    for (size_t at = 0; at < HR_UUID_BYTES; at++)
        bad |= (uuid[at] != 0) & ((unsigned char)(uuid[at] - ' ') > '~' - ' ');
    return bad == 0 && memcmp(uuid + length, zeros, HR_UUID_BYTES - length) == 0 &&
           (length == 0 || memcmp(uuid, "GPU-", 4) == 0 || memcmp(uuid, "MIG-", 4) == 0);
}

/* `layout` is the one judged, or HR_LAYOUTS. */
static int refuse(const struct file_view *view, int code, int reason, uint32_t layout,
                  uint64_t found)
{
    struct hr_error detail = {.code = code,
                              .reason = reason,
                              .device = -1,
                              .layout = layout,
                              .file_size = view->size,
                              .found = found};
    if (reason == HR_REASON_UUID)
        detail.device = (int32_t)found;
    return hr_fail(&detail);
}

/* HR_OK, or HR_ECORRUPT with the reason. */
static int judge(struct file_view *view, uint32_t id)
{
    const struct hr_layout *layout = &hr_layouts[id];
    if (layout->major_version == 0 && header_u64(view, layout->owner_pid) > OWNER_PID_PLAUSIBLE)
        return refuse(view, HR_ECORRUPT, HR_REASON_VERSION, id, view->version);
    uint64_t device_num = header_u64(view, layout->device_num);
    if (device_num > HR_DEVICES)
        return refuse(view, HR_ECORRUPT, HR_REASON_DEVICE_NUM, id, device_num);
    for (uint32_t device = 0; device < HR_DEVICES; device++) {
        if (!hr_uuid_is_plausible(view->header + layout->uuids + device * HR_UUID_BYTES))
            return refuse(view, HR_ECORRUPT, HR_REASON_UUID, id, device);
    }
    const int32_t proc_num = read_i32(view, layout->proc_num);
    if (proc_num >= 0 && proc_num <= HR_SLOTS)
        return HR_OK;
    return refuse(view, HR_ECORRUPT, HR_REASON_PROC_NUM, id, (uint64_t)(int64_t)proc_num);
}

/* Of a process-shared semaphore of glibc: its `private`, at 8 bytes or, in older ones, at 4. */
static bool is_semaphore(const unsigned char *at)
{
    uint32_t words[2];
    memcpy(words, at + 4, sizeof words);
    return words[0] == 128 || words[1] == 128;
}

static bool has_semaphore(const struct file_view *view, uint32_t offset)
{
    return is_semaphore(view->header + offset);
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
static bool has_used_tail(struct file_view *view, const struct hr_layout *layout)
{
    int32_t tail[4];
    read_at(view, tail, sizeof tail, layout->proc_num);
    return (tail[0] | tail[1] | tail[2] | tail[3]) != 0;
}

/*
 * Files without version fields.  Both layouts have the same header, so size
 * decides; but a process of the newer generation lengthens an older file when it
 * opens it, and then only the tail tells which of the two has been in use.
 */
static uint32_t candidates_without_version(struct file_view *view)
{
    const uint32_t old = 1u << HR_UNVERSIONED_NO_UTIL, new = 1u << HR_UNVERSIONED;
    if (view->size < hr_layouts[HR_UNVERSIONED].size)
        return old;
    if (!has_used_tail(view, &hr_layouts[HR_UNVERSIONED_NO_UTIL]))
        return new;
    return has_used_tail(view, &hr_layouts[HR_UNVERSIONED]) ? old | new : old;
}

/* ---- A version to come ---------------------------------------------------------------- */

/*
 * The newest layout that is known: the table's last row.  A file with its major version and a
 * newer minor one has all of its fields where they were, and more behind them; or it has been
 * changed in another way, and then nothing that stands elsewhere passes for those fields.
 */
#define NEWEST ((enum hr_layout_id)(HR_LAYOUTS - 1))

static bool is_newer(uint64_t version)
{
    const struct hr_layout *layout = &hr_layouts[NEWEST];
    return version >> 32 == layout->major_version && (uint32_t)version > layout->minor_version;
}

/* Whether the file passes for one of the newest layout, and has both of its semaphores. */
static int judge_newer(struct file_view *view)
{
    const struct hr_layout *layout = &hr_layouts[NEWEST];
    unsigned char postinit[HR_SEM_BYTES];
    read_at(view, postinit, sizeof postinit, layout->sem_postinit);
    if (judge(view, NEWEST) == HR_OK && has_semaphore(view, layout->sem) &&
        is_semaphore(postinit) && has_likely_sm_limits(view, layout))
        return HR_OK;
    return refuse(view, HR_ECORRUPT, HR_REASON_VERSION, NEWEST, view->version);
}

static uint32_t candidates_of(struct file_view *view)
{
    uint32_t with_version = 0;
    bool is_known_version = false;
    for (uint32_t id = HR_V1_1; id < HR_LAYOUTS; id++) {
        const struct hr_layout *layout = &hr_layouts[id];
        if (view->version != hr_version(layout->major_version, layout->minor_version))
            continue;
        is_known_version = true;
        if (layout->size <= view->size)
            with_version |= 1u << id;
    }
    if (is_newer(view->version) && view->size >= hr_layouts[NEWEST].size)
        with_version = 1u << NEWEST;
    /*
     * sm_init_flag 1 and owner_pid 1 or 2, the lock held by a container's first process, look
     * like a version 1.1 or 1.2.  Then, and at that size, only the mark of the semaphore at the
     * older place tells an older file from a newer one that was cut short, is damaged, or is of
     * a version to come.  SoftMig 2.0 has a thread id there, which can be that mark.
     */
    if ((!is_known_version && view->size < hr_layouts[HR_V1_1].size) ||
        (view->version != hr_version(2, 0) && has_semaphore(view, hr_layouts[HR_UNVERSIONED].sem)))
        return with_version | candidates_without_version(view);
    return with_version;
}

/* What a file was made as, by the mark that creation leaves in the second semaphore. */
static uint32_t likeliest_of(const struct file_view *view, uint32_t candidates)
{
    const uint32_t postinit = 1u << HR_V1_1_POSTINIT;
    if ((candidates & postinit) != 0 &&
        (candidates == postinit || has_semaphore(view, hr_layouts[HR_V1_1_POSTINIT].sem_postinit)))
        return HR_V1_1_POSTINIT;
    return 31 - (uint32_t)__builtin_clz(candidates & ~postinit);
}

static int decide(struct file_view *view, uint32_t named)
{
    const uint32_t candidates = candidates_of(view);
    uint32_t plausible = 0, likely = 0;
    if (candidates == 0) {
        bool is_cut = view->size < hr_layouts[HR_V1_1].size;
        return refuse(view, HR_ECORRUPT, is_cut ? HR_REASON_TRUNCATED : HR_REASON_VERSION,
                      HR_LAYOUTS, view->version);
    }
    const bool is_candidate = named < HR_LAYOUTS && (candidates & 1u << named) != 0;
    uint32_t likeliest = is_candidate ? named : likeliest_of(view, candidates);
    for (uint32_t at = 0; at < HR_LAYOUTS; at++) {
        /* The likeliest comes last: where none is plausible, what is said is about it. */
        uint32_t id = (likeliest + 1 + at) % HR_LAYOUTS;
        if ((candidates & 1u << id) == 0)
            continue;
        if ((id == NEWEST && is_newer(view->version) ? judge_newer(view) : judge(view, id)) !=
            HR_OK)
            continue;
        plausible |= 1u << id;
        if (has_likely_sm_limits(view, &hr_layouts[id]))
            likely |= 1u << id;
    }
    if (plausible == 0)
        return HR_ECORRUPT; /* with the detail of the last judgement */
    if (likely != 0)
        plausible = likely;
    if (is_candidate && (plausible & 1u << named) != 0)
        return (int)named;
    if ((plausible & (plausible - 1)) == 0) {
        uint32_t found = (uint32_t)__builtin_ctz(plausible);
        return named == HR_LAYOUTS ? (int)found
                                   : refuse(view, HR_ENOTREGION, HR_REASON_LAYOUT, named, found);
    }
    return HR_FAIL(HR_EAMBIGUOUS, .candidates = plausible, .file_size = view->size);
}

static int identify_file(int fd, uint64_t size, uint32_t layout, bool to_write, uint64_t *version)
{
    struct file_view view = {.fd = fd, .size = size};
    const int32_t magic = view.size >= sizeof magic ? read_i32(&view, 0) : 0;
    if (view.code != HR_OK)
        return read_failure(&view);
    if (magic != 0 && magic != HR_MAGIC)
        return refuse(&view, HR_ENOTREGION, HR_REASON_NONE, HR_LAYOUTS, (uint32_t)magic);
    if (magic == 0)
        return refuse(&view, HR_ENOTREADY, HR_REASON_NONE, HR_LAYOUTS, 0);
    /* A creator sets the size first and the magic last. */
    if (view.size < hr_layouts[HR_UNVERSIONED_NO_UTIL].size)
        return refuse(&view, HR_ECORRUPT, HR_REASON_TRUNCATED, HR_LAYOUTS, 0);

    read_at(&view, view.header, sizeof view.header, 0);
    view.version = hr_version(header_u32(&view, 4), header_u32(&view, 8));
    *version = view.version;
    const int found = decide(&view, layout);
    if (view.code != HR_OK)
        return read_failure(&view);
    /* A newer version may have given a field another meaning. */
    if (to_write && found == NEWEST && is_newer(view.version))
        return refuse(&view, HR_EREADONLY, HR_REASON_VERSION, NEWEST, view.version);
    return found;
}

int hr_open_identified(hr_region *region, uint32_t flags, uint32_t layout)
{
    const uint32_t access = flags & ~(uint32_t)HR_NO_LINK;
    struct stat status;
    if (layout > HR_LAYOUTS || (access != HR_READ && access != HR_WRITE && access != HR_KEEP))
        return hr_fail_code(HR_EINVAL);
    int held = hr_hold_file(region->path, flags, &status);
    if (held < 0)
        return held;
    int fd = access == HR_KEEP ? open_kept(held, region->path, &status)
                               : hr_open_held(held, region->path, flags);
    close(held);
    if (fd < 0)
        return fd;
    int found =
        identify_file(fd, (uint64_t)status.st_size, layout, access == HR_WRITE, &region->version);
    if (found < 0) {
        hr_close_file(fd, flags);
        return found;
    }
    region->layout = &hr_layouts[found];
    if (region->layout->major_version == 0)
        region->version = 0;
    region->mapped_bytes = ((size_t)region->layout->size + 4095) & ~(size_t)4095;
    region->device_id = status.st_dev;
    region->inode = status.st_ino;
    region->has_own_pages = hr_has_own_pages(fd);
    return fd;
}
