#define _GNU_SOURCE
#include "process_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "identify.h"

void hr_read_link(int directory, const char *name, char *out, size_t room)
{
    ssize_t length = readlinkat(directory, name, out, room - 1);
    out[length < 0 ? 0 : length] = '\0';
}

/* ---- Mappings -------------------------------------------------------------------- */

static bool is_same_file(const struct hr_mapped_file *one, const struct hr_mapped_file *other)
{
    return one->inode == other->inode && one->major_number == other->major_number &&
           one->minor_number == other->minor_number;
}

static void look_up_in_maps(struct hr_lines *maps, hr_region *region)
{
    struct hr_mapping mapping;
    while (region->in_maps.inode == 0 && hr_next_line(maps)) {
        if (hr_parse_mapping(maps->text, &mapping) &&
            mapping.start == (uint64_t)(uintptr_t)region->base)
            region->in_maps = mapping.file;
    }
    rewind(maps->file);
}

/* Under the fork lock, so that no handle is opened or closed meanwhile. */
static bool is_mapped_by_another(struct hr_lines *maps, const struct hr_mapped_file *file)
{
    bool found = false;
    struct hr_mapping mapping;
    while (!found && hr_next_line(maps))
        found = hr_parse_written(maps->text, &mapping) && is_same_file(&mapping.file, file) &&
                !hr_is_mapped_by_handle(mapping.start);
    return found;
}

int hr_own_mapping(hr_region *region, struct hr_mapped_file *out, bool *by_another)
{
    *out = (struct hr_mapped_file){.major_number = major(region->device_id),
                                   .minor_number = minor(region->device_id),
                                   .inode = region->inode};
    out->has_own_pages = region->has_own_pages;
    int code = HR_OK;
    struct hr_lines maps = {.file = NULL};
    hr_fork_lock();
    bool look = by_another != NULL || region->in_maps.inode == 0;
    if (look && !hr_open_lines(&maps, AT_FDCWD, "/proc/self/maps", NULL) &&
        (errno == EMFILE || errno == ENFILE || errno == ENOMEM))
        code = hr_fail_errno(HR_ESYSTEM, errno);
    if (maps.file != NULL && region->in_maps.inode == 0)
        look_up_in_maps(&maps, region);
    bool is_known = region->in_maps.inode != 0;
    if (is_known)
        *out = region->in_maps;
    out->bytes = region->mapped_bytes;
    out->has_own_pages = region->has_own_pages;
    if (by_another != NULL)
        *by_another = maps.file != NULL && is_known && is_mapped_by_another(&maps, out);
    hr_fork_unlock();
    hr_close_lines(&maps);
    return code;
}

/* Only these say that the process has ended.  All else, a lack of descriptors or of memory as much
 * as a refusal, says nothing about it. */
static enum hr_seen after_failure(int error)
{
    return error == ENOENT || error == ESRCH ? HR_GONE : HR_REFUSED;
}

static enum hr_seen compare(const struct hr_mapped_file *mapped, const struct hr_mapped_file *file)
{
    if (mapped->inode != file->inode)
        return HR_MAPS_NOT;
    if (is_same_file(mapped, file))
        return HR_MAPS;
    return mapped->bytes >= file->bytes ? HR_MAPS_UNSURE : HR_MAPS_NOT;
}

bool hr_is_not_written(const struct hr_written_files *written, const struct hr_mapped_file *file)
{
    bool matches = !written->complete;
    for (uint32_t i = 0; i < written->count && !matches; i++)
        matches = compare(&written->files[i], file) != HR_MAPS_NOT;
    return !matches;
}

/* Whether it was kept. */
static bool keep_written(struct hr_written_files *written, const struct hr_mapped_file *file)
{
    const uint32_t room = sizeof written->files / sizeof *written->files;
    uint32_t i = 0;
    while (i < written->count && !is_same_file(&written->files[i], file))
        i++;
    if (i == room)
        return false;
    if (i == written->count)
        written->files[written->count++] = *file;
    else if (file->bytes > written->files[i].bytes)
        written->files[i].bytes = file->bytes;
    return true;
}

/* What is known of the device of a mapping that shows the inode number. */
struct other_device {
    const char *maps; /* the file that is read, beside which mountinfo lies */
    unsigned major_number, minor_number;
    bool is_looked_up, has_own_pages;
};

static bool is_mount_of(const char *line, const struct other_device *device, const char **type)
{
    unsigned major_number, minor_number;
    *type = strstr(line, " - ");
    return *type != NULL && sscanf(line, "%*d %*d %u:%u", &major_number, &minor_number) == 2 &&
           major_number == device->major_number && minor_number == device->minor_number;
}

/* A process can have 100,000 mounts with names of 16 KiB; a container has a hundred. */
#define MOUNTINFO_BYTES ((size_t)1 << 20)

/*
 * Whether the process has a file system of that device mounted which keeps its files' pages itself.
 * A device number is one file system's, and the kernel writes mountinfo.
 */
static bool look_up_device(struct other_device *device, int directory,
                           const struct hr_budget *budget)
{
    static const char *const types[] = {"ext2", "ext3", "ext4", "xfs", "btrfs", "tmpfs"};
    char name[64];
    const char *type;
    struct hr_lines mounts;
    snprintf(name, sizeof name, "%.*smountinfo", (int)(strlen(device->maps) - strlen("maps")),
             device->maps);
    bool found = false, has = false;
    size_t bytes = 0;
    if (hr_open_lines(&mounts, directory, name, budget)) {
        while (!found && bytes < MOUNTINFO_BYTES && hr_next_line(&mounts)) {
            found = is_mount_of(mounts.text, device, &type);
            bytes += strlen(mounts.text);
        }
        type = found ? type + strlen(" - ") : "";
        for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
            size_t length = strlen(types[i]);
            has = has || (strncmp(type, types[i], length) == 0 && type[length] == ' ');
        }
    }
    hr_close_lines(&mounts);
    return has;
}

/* Whether a mapping that shows the inode number on another device is of another file for certain:
 * an overlay has its file's pages in the upper directory's file system, these have not. */
static bool is_another_file(struct other_device *device, int directory,
                            const struct hr_mapped_file *mapped, const struct hr_mapped_file *file,
                            const struct hr_budget *budget)
{
    if (!file->has_own_pages)
        return false;
    if (!device->is_looked_up || device->major_number != mapped->major_number ||
        device->minor_number != mapped->minor_number) {
        *device = (struct other_device){.maps = device->maps,
                                        .major_number = mapped->major_number,
                                        .minor_number = mapped->minor_number,
                                        .is_looked_up = true};
        device->has_own_pages = look_up_device(device, directory, budget);
    }
    return device->has_own_pages;
}

/* An empty list is HR_MAPS_NOTHING.  Linux 6.16 refuses to open it instead, as if the process
 * had ended. */
static enum hr_seen read_maps(int directory, const char *name, const struct hr_mapped_file *file,
                              const struct hr_budget *budget, struct hr_written_files *written)
{
    written->count = 0;
    written->complete = false;
    struct hr_written_maps maps;
    if (!hr_open_written(&maps, directory, name, budget))
        return errno == ESRCH ? HR_MAPS_NOTHING : after_failure(errno);
    enum hr_seen seen = HR_MAPS_NOT;
    bool unsure = false, kept = true;
    struct hr_mapping mapping;
    struct other_device device = {.maps = name};
    while (seen != HR_MAPS && hr_next_written(&maps, &mapping)) {
        seen = compare(&mapping.file, file);
        if (seen == HR_MAPS_UNSURE &&
            is_another_file(&device, directory, &mapping.file, file, budget))
            seen = HR_MAPS_NOT;
        unsure = unsure || seen == HR_MAPS_UNSURE;
        kept = keep_written(written, &mapping.file) && kept;
    }
    if (seen != HR_MAPS && maps.cut_short)
        seen = HR_NO_TIME;
    else if (seen != HR_MAPS && maps.error != 0)
        seen = after_failure(maps.error);
    else if (seen != HR_MAPS && maps.is_empty)
        seen = HR_MAPS_NOTHING;
    else if (seen != HR_MAPS && unsure)
        seen = HR_MAPS_UNSURE;
    written->complete = kept && (seen == HR_MAPS_NOT || seen == HR_MAPS_UNSURE);
    hr_close_written(&maps);
    return seen;
}

/* A process whose first thread has ended shows its maps only under the other threads. */
static enum hr_seen read_maps_of_threads(int process, const struct hr_mapped_file *file,
                                         const struct hr_budget *budget,
                                         struct hr_written_files *written)
{
    int fd = openat(process, "task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *tasks = fd < 0 ? NULL : fdopendir(fd);
    if (tasks == NULL) {
        enum hr_seen seen = after_failure(errno);
        if (fd >= 0)
            close(fd);
        return seen;
    }
    enum hr_seen seen = HR_MAPS_NOTHING;
    bool thread_ended = false;
    struct dirent *entry;
    while (seen == HR_MAPS_NOTHING && (errno = 0, entry = readdir(tasks)) != NULL) {
        char name[sizeof entry->d_name + 8];
        snprintf(name, sizeof name, "%s/maps", entry->d_name);
        if (entry->d_name[0] != '.')
            seen = read_maps(fd, name, file, budget, written);
        if (seen == HR_GONE) {
            seen = HR_MAPS_NOTHING;
            thread_ended = true;
        }
    }
    /* A thread that has ended may have started another one that was not listed. */
    if (seen == HR_MAPS_NOTHING && (thread_ended || errno != 0))
        seen = HR_REFUSED;
    closedir(tasks);
    return seen;
}

/* Every process of a container that HAMi has given a GPU has it loaded. */
static bool maps_libvgpu(int process, const struct hr_budget *budget)
{
    struct hr_lines maps;
    bool found = false;
    if (hr_open_lines(&maps, process, "maps", budget)) {
        while (!found && hr_next_line(&maps))
            found = strstr(maps.text, "/libvgpu.so") != NULL;
    }
    hr_close_lines(&maps);
    return found;
}

enum hr_seen hr_look_at_process(int proc, const char *name, const struct hr_mapped_file *file,
                                const struct hr_budget *budget, struct hr_written_files *written,
                                bool *has_libvgpu)
{
    int process = openat(proc, name, O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (process < 0) /* what is no directory is no process */
        return errno == ENOTDIR || errno == ELOOP ? HR_GONE : after_failure(errno);
    enum hr_seen seen = read_maps(process, "maps", file, budget, written);
    /* A kernel thread, or one whose first thread has ended or is about to. */
    if (seen == HR_MAPS_NOTHING)
        seen = read_maps_of_threads(process, file, budget, written);
    if (seen == HR_MAPS)
        *has_libvgpu = maps_libvgpu(process, budget);
    close(process);
    return seen;
}

/* ---- Pids ------------------------------------------------------------------------ */

static void parse_pids(const char *at, struct hr_mapper *out)
{
    int used;
    while (out->levels < HR_PID_LEVELS &&
           sscanf(at, "%" SCNd32 "%n", &out->pids[out->levels], &used) == 1) {
        out->levels++;
        at += used;
    }
}

/*
 * Searched without stdio: this is done for every process of the node.  A process may have 65,536
 * groups, whose line comes first: of what has been searched only as much stays as the line that
 * is looked for may be long.
 */
#define NSPID_LINE_BYTES 512

enum hr_seen hr_read_pids(int directory, const char *status, struct hr_mapper *out)
{
    char text[4096];
    size_t length = 0;
    ssize_t got = 0;
    const char *pids = NULL, *end = NULL;
    memset(out, 0, sizeof *out);
    int fd = openat(directory, status, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return after_failure(errno);
    while (end == NULL && (got = read(fd, text + length, sizeof text - 1 - length)) > 0) {
        length += (size_t)got;
        text[length] = '\0';
        pids = strstr(text, "\nNSpid:");
        end = pids == NULL ? NULL : strchr(pids + 1, '\n');
        if (end == NULL && length > sizeof text / 2) {
            memmove(text, text + length - NSPID_LINE_BYTES, NSPID_LINE_BYTES);
            length = NSPID_LINE_BYTES;
        }
    }
    enum hr_seen seen = got < 0 ? after_failure(errno) : HR_REFUSED;
    close(fd);
    if (end != NULL)
        parse_pids(pids + strlen("\nNSpid:"), out);
    return out->levels > 0 ? HR_MAPS : seen;
}

/* ---- One file, two inodes --------------------------------------------------------- */

/* mountinfo writes blanks and the like as a backslash and three octal digits. */
static void unescape(char *text)
{
    char *to = text;
    for (const char *from = text; *from != '\0'; to++) {
        unsigned code;
        if (from[0] == '\\' && sscanf(from + 1, "%3o", &code) == 1) {
            *to = (char)code;
            from += 4;
        } else {
            *to = *from++;
        }
    }
    *to = '\0';
}

/*
 * Whether the mount is an overlay whose upper directory has the file below it.  Of a relative
 * upper directory it is not known where it lies: then a path that has it as a part will do.
 */
static bool is_upper_file(char *mount, const char *path)
{
    char *options = strstr(mount, " - overlay ");
    char *upper = options == NULL ? NULL : strstr(options, ",upperdir=");
    if (upper == NULL)
        return false;
    upper += strlen(",upperdir=");
    upper[strcspn(upper, ", \n")] = '\0';
    unescape(upper);
    const char *found = upper[0] == '/' ? path : strstr(path, upper);
    bool begins =
        found != NULL && strncmp(found, upper, strlen(upper)) == 0 && found[strlen(upper)] == '/';
    return begins && (found == path || found[-1] == '/');
}

static bool is_in_upper_directory(const char *path)
{
    struct hr_lines mounts;
    /* What cannot be told is taken for possible. */
    bool found = !hr_open_lines(&mounts, AT_FDCWD, "/proc/self/mountinfo", NULL);
    while (!found && hr_next_line(&mounts))
        found = is_upper_file(mounts.text, path);
    hr_close_lines(&mounts);
    return found;
}

bool hr_has_own_pages(int fd)
{
    struct statfs system;
    const long types[] = {EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC, BTRFS_SUPER_MAGIC, TMPFS_MAGIC};
    bool has = false;
    for (size_t i = 0; fstatfs(fd, &system) == 0 && i < sizeof types / sizeof *types; i++)
        has = has || system.f_type == types[i];
    return has;
}

bool hr_lies_on_overlay(const hr_region *region)
{
    int fd;
    struct stat status;
    struct statfs system;
    char link[40], path[PATH_MAX];
    if (hr_open_file(region->path, region->no_link, &fd, &status) != HR_OK)
        return true;
    bool may = fstatfs(fd, &system) != 0 || system.f_type == OVERLAYFS_SUPER_MAGIC;
    /* The descriptor's link: to resolve the name would walk where a container may mount. */
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    hr_read_link(AT_FDCWD, link, path, sizeof path);
    close(fd);
    return may || path[0] != '/' || is_in_upper_directory(path);
}
