#define _GNU_SOURCE

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "proc.h"

/* Only these say that the process has ended.  All else, a lack of descriptors or of memory as much
 * as a refusal, says nothing about it. */
enum hr_seen hr_after_failure(int error)
{
    return error == ENOENT || error == ESRCH ? HR_GONE : HR_REFUSED;
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

/* A file below `directory`, to be read by lines; NULL: errno says why not. */
static FILE *open_stream(int directory, const char *name)
{
    int fd = openat(directory, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    FILE *stream = fd < 0 ? NULL : fdopen(fd, "re");
    if (stream == NULL && fd >= 0)
        close(fd);
    return stream;
}

/* ---- Start times ------------------------------------------------------------------- */

/* As proc(5) counts the fields of stat. */
enum { STATE = 3, THREADS = 20, START_TIME = 22 };

int64_t hr_read_start_time(int proc, uint32_t pid)
{
    char name[sizeof "4294967295/stat"], text[4096], state = ' ';
    uint64_t threads = 0;
    snprintf(name, sizeof name, "%" PRIu32 "/stat", pid);
    int fd = openat(proc, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    /* This process may have no descriptors left, which says nothing of the other. */
    if (fd < 0)
        return hr_after_failure(errno) == HR_GONE ? HR_HAS_ENDED : HR_START_REFUSED;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    if (length <= 0)
        return HR_HAS_ENDED;
    text[length] = '\0';
    /* The name in parentheses may hold anything, parentheses and newlines too. */
    const char *at = memrchr(text, ')', (size_t)length);
    for (int field = STATE; field <= START_TIME && at != NULL; field++) {
        at = strchr(at, ' ');
        at += at != NULL;
        if (at != NULL && field == STATE)
            state = *at;
        if (at != NULL && field == THREADS)
            threads = strtoull(at, NULL, 10);
    }
    if (at == NULL || (strchr("ZX", state) != NULL && threads <= 1))
        return HR_HAS_ENDED;
    return strtoll(at, NULL, 10);
}

void hr_read_start_times(int proc, const uint32_t *pids, uint32_t count, int64_t *out)
{
    for (uint32_t i = 0; i < count; i++)
        out[i] = hr_read_start_time(proc, pids[i]);
}

int64_t hr_clock_ticks(void)
{
    return (int64_t)(hr_clock_ns(CLOCK_BOOTTIME) / (1000000000u / (uint64_t)sysconf(_SC_CLK_TCK)));
}

/* ---- Mounts ------------------------------------------------------------------------ */

/* File systems that the kernel serves itself: an operation waits for a disk at most.  All but an
 * overlay keep the pages of their files themselves. */
static const char *const LOCAL[] = {"ext4", "xfs", "btrfs", "tmpfs", "overlay"};
enum { LOCAL_TYPES = 5, OWN_PAGES_TYPES = 4 };

/* A process can have 100,000 mounts with names of 16 KiB; a container has a hundred. */
#define MOUNTINFO_LIMIT ((size_t)8 << 20)

/* A line of mountinfo: id parent major:minor root point options [tags] - type source options. */
static bool has_type(const char *line, size_t types)
{
    const char *type = strstr(line, " - ");
    size_t length = type == NULL ? 0 : strcspn(type += 3, " \n");
    for (size_t i = 0; i < types; i++) {
        if (strlen(LOCAL[i]) == length && strncmp(type, LOCAL[i], length) == 0)
            return true;
    }
    return false;
}

/*
 * Find a mount of one of the first types: by its number if that is not negative, else by its
 * device.  What is behind `limit` bytes is not found.
 */
static bool find_mount(int directory, const char *name, size_t limit, size_t types, int number,
                       dev_t *device)
{
    FILE *stream = open_stream(directory, name);
    char *line = NULL;
    size_t room = 0;
    bool found = false;
    ssize_t length;
    while (stream != NULL && !found && (length = getline(&line, &room, stream)) > 0) {
        unsigned major_number, minor_number;
        int id;
        if ((size_t)length > limit)
            break;
        limit -= (size_t)length;
        if (sscanf(line, "%d %*d %u:%u", &id, &major_number, &minor_number) != 3)
            continue;
        const dev_t seen = makedev(major_number, minor_number);
        found = (number >= 0 ? id == number : seen == *device) && has_type(line, types);
        if (found)
            *device = seen;
    }
    free(line);
    if (stream != NULL)
        fclose(stream);
    return found;
}

bool hr_is_device_with_own_pages(int process, const struct hr_file_id *file)
{
    dev_t device = makedev(file->major_number, file->minor_number);
    return find_mount(process, "mountinfo", MOUNTINFO_LIMIT, OWN_PAGES_TYPES, -1, &device);
}

/* ---- Maps -------------------------------------------------------------------------- */

/* A line of maps: start-end rights offset major:minor inode path. */
static bool parse_mapping(const char *line, struct hr_mapping *out)
{
    char rights[5];
    int used;
    struct hr_file_id *file = &out->file;
    if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s %*x %x:%x %" SCNu64 " %n", &out->start, &out->end,
               rights, &file->major_number, &file->minor_number, &file->inode, &used) != 6)
        return false;
    out->path = line + used;
    out->writable = rights[1] == 'w';
    return strlen(rights) == 4 && rights[3] == 's' && file->inode != 0;
}

static void take_line(struct hr_maps_reader *reader, char *line)
{
    const char *rights = strchr(line, ' ');
    struct hr_mapping mapping;
    if (!reader->has_libvgpu)
        reader->has_libvgpu = strstr(line, "/libvgpu.so") != NULL;
    if (reader->is_enough || rights == NULL || strnlen(rights, 5) < 5 || rights[4] != 's')
        return; /* private, as nearly all are */
    if (parse_mapping(line, &mapping))
        reader->is_enough = !reader->take(reader->argument, &mapping);
}

/* An empty list is HR_MAPS_NOTHING.  Linux 6.16 refuses to open it instead, as if the process
 * had ended. */
enum hr_seen hr_read_maps(int directory, const char *name, struct hr_maps_reader *reader)
{
    enum hr_seen seen = HR_TOO_LONG;
    char *line = NULL, buffer[4096]; /* as much as the kernel gives at a time */
    size_t room = 0, total = 0;
    FILE *stream = open_stream(directory, name);
    if (stream == NULL)
        return errno == ESRCH ? HR_MAPS_NOTHING : hr_after_failure(errno);
    setvbuf(stream, buffer, _IOFBF, sizeof buffer);
    for (unsigned lines = 0; seen == HR_TOO_LONG && total < HR_MAPS_BYTES; lines++) {
        /* To ask for the time at each line would cost a tenth of it. */
        if (lines % 64 == 0 && hr_is_past(reader->deadline_ns)) {
            seen = HR_NO_TIME;
            break;
        }
        ssize_t length = getline(&line, &room, stream);
        if (length > 0) {
            total += (size_t)length;
            line[length - 1] = '\0';
            take_line(reader, line);
        } else if (!feof(stream)) {
            seen = hr_after_failure(errno);
        } else {
            seen = total == 0 ? HR_MAPS_NOTHING : HR_MAPS;
        }
        /* The libraries come after what a program maps itself, so both end at about the same
         * place. */
        if (reader->is_enough && reader->has_libvgpu)
            seen = HR_MAPS;
    }
    free(line);
    fclose(stream);
    return seen;
}

/* A process whose first thread has ended shows its maps only under the other threads. */
static enum hr_seen read_maps_of_threads(int process, struct hr_maps_reader *reader)
{
    int fd = openat(process, "task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *tasks = fd < 0 ? NULL : fdopendir(fd);
    if (tasks == NULL) {
        enum hr_seen seen = hr_after_failure(errno);
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
            seen = hr_read_maps(fd, name, reader);
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

enum hr_seen hr_read_process_maps(int process, struct hr_maps_reader *reader)
{
    enum hr_seen seen = hr_read_maps(process, "maps", reader);
    /* A kernel thread, or one whose first thread has ended or is about to. */
    return seen == HR_MAPS_NOTHING ? read_maps_of_threads(process, reader) : seen;
}

int hr_open_process(int proc, const char *name)
{
    return openat(proc, name, O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
}

/* ---- The files of a process --------------------------------------------------------- */

struct files {
    struct hr_mapped_file *list;
    uint32_t count, capacity;
    char *paths;
    uint32_t path_bytes, paths_capacity;
    bool is_full;
};

static bool add_mapping(void *argument, const struct hr_mapping *mapping)
{
    struct files *files = argument;
    struct hr_mapped_file *file = files->list, *end = files->list + files->count;
    const size_t length = strlen(mapping->path);
    while (file < end && !hr_is_same_file(&file->file, &mapping->file))
        file++;
    if (file == end) {
        files->is_full =
            files->count == files->capacity || length > files->paths_capacity - files->path_bytes;
        if (files->is_full)
            return false;
        *file = (struct hr_mapped_file){.file = mapping->file,
                                        .start = mapping->start,
                                        .end = mapping->end,
                                        .path_at = files->path_bytes,
                                        .path_bytes = (uint32_t)length};
        memcpy(files->paths + files->path_bytes, mapping->path, length);
        files->path_bytes += (uint32_t)length;
        files->count++;
    }
    file->bytes += mapping->end - mapping->start;
    file->is_writable = file->is_writable || mapping->writable;
    return true;
}

int hr_read_mapped_files(int process, struct hr_mapped_file *out, uint32_t capacity, char *paths,
                         uint32_t paths_bytes, uint32_t *has_libvgpu, struct hr_error *error)
{
    struct files files = {
        .list = out, .capacity = capacity, .paths = paths, .paths_capacity = paths_bytes};
    struct hr_maps_reader reader = {
        .take = add_mapping, .argument = &files, .deadline_ns = hr_deadline_ns(HR_PROC_NS)};
    enum hr_seen seen = hr_read_process_maps(process, &reader);
    *has_libvgpu = reader.has_libvgpu;
    if (files.is_full || seen == HR_NO_TIME || seen == HR_TOO_LONG)
        return hr_report(error, HR_EFULL);
    if (seen == HR_REFUSED)
        return hr_report(error, HR_EACCESS);
    return hr_report(error, seen == HR_GONE ? HR_ENOTFOUND : (int)files.count);
}

/* ---- Pids -------------------------------------------------------------------------- */

static void parse_pids(const char *at, struct hr_mapper *out)
{
    int used;
    while (out->levels < HR_PID_LEVELS &&
           sscanf(at, "%" SCNd32 "%n", &out->pids[out->levels], &used) == 1) {
        out->levels++;
        at += used;
    }
}

enum hr_seen hr_read_pids(int directory, const char *status, struct hr_mapper *out)
{
    const char field[] = "NSpid:";
    char *line = NULL;
    size_t room = 0;
    memset(out, 0, sizeof *out);
    FILE *stream = open_stream(directory, status);
    if (stream == NULL)
        return hr_after_failure(errno);
    while (out->levels == 0 && getline(&line, &room, stream) > 0) {
        if (strncmp(line, field, sizeof field - 1) == 0)
            parse_pids(line + sizeof field - 1, out);
    }
    enum hr_seen seen = feof(stream) ? HR_REFUSED : hr_after_failure(errno);
    free(line);
    fclose(stream);
    return out->levels > 0 ? HR_MAPS : seen;
}

/* ---- Links of map_files ------------------------------------------------------------- */

bool hr_is_in_map_files(const char *path)
{
    const char *slash = strrchr(path, '/');
    const char directory[] = "/map_files";
    const size_t length = sizeof directory - 1;
    return slash != NULL && (size_t)(slash - path) > length &&
           strncmp(slash - length, directory, length) == 0;
}

/* The kernel's number of the mount that a descriptor was opened through, or -1. */
static int mount_number(int fd)
{
    char name[48];
    int number = -1;
    snprintf(name, sizeof name, "/proc/self/fdinfo/%d", fd);
    FILE *file = fopen(name, "re");
    if (file != NULL && fscanf(file, "pos: %*d flags: %*d mnt_id: %d", &number) != 1)
        number = -1;
    if (file != NULL)
        fclose(file);
    return number;
}

int hr_hold_mapped_file(int directory, const char *name)
{
    struct statfs system;
    if (fstatfs(directory, &system) != 0 || system.f_type != PROC_SUPER_MAGIC) {
        errno = ENOENT;
        return -1;
    }
    int held = openat(directory, name, O_PATH | O_CLOEXEC);
    if (held < 0)
        return -1;
    /*
     * The file is not looked at before its mount is known: a stat of a file in a FUSE that nobody
     * serves does not return.  What the process has mounted itself stands in its own mountinfo
     * only, not in that of the first process.
     */
    const int number = mount_number(held);
    dev_t device;
    if (number >= 0 &&
        find_mount(directory, "../mountinfo", MOUNTINFO_LIMIT, LOCAL_TYPES, number, &device) &&
        find_mount(directory, "../../1/mountinfo", SIZE_MAX, LOCAL_TYPES, -1, &device))
        return held;
    close(held);
    errno = EREMOTE;
    return -1;
}
