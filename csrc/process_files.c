#define _GNU_SOURCE
#include "process_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

static FILE *open_at(int directory, const char *name)
{
    int fd = openat(directory, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return NULL;
    FILE *file = fdopen(fd, "re");
    if (file == NULL)
        close(fd);
    return file;
}

static bool parse_mapping(const char *line, uint64_t *start, char permissions[5],
                          struct hr_identity *out)
{
    return sscanf(line, "%" SCNx64 "-%*x %4s %*x %x:%x %" SCNu64, start, permissions,
                  &out->major_number, &out->minor_number, &out->inode) == 5;
}

static bool is_for_want_of_room(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOMEM;
}

int hr_own_identity(const hr_region *region, struct hr_identity *out)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    if (maps == NULL && is_for_want_of_room(errno))
        return hr_fail_errno(HR_ESYSTEM, errno);
    char *line = NULL;
    size_t room = 0;
    bool found = false;
    while (maps != NULL && !found && getline(&line, &room, maps) > 0) {
        uint64_t start;
        char permissions[5];
        found = parse_mapping(line, &start, permissions, out) &&
                start == (uint64_t)(uintptr_t)region->base;
    }
    free(line);
    if (maps != NULL)
        fclose(maps);
    if (found)
        return HR_OK;
    out->major_number = major(region->device_id);
    out->minor_number = minor(region->device_id);
    out->inode = region->inode;
    return HR_OK;
}

/* Only these say that the process has ended.  All else, a lack of descriptors or of memory as much
 * as a refusal, says nothing about it. */
static enum hr_seen after_failure(int error)
{
    return error == ENOENT || error == ESRCH ? HR_GONE : HR_REFUSED;
}

/* Who only reads is an exporter somewhere: no process of the region, and no holder. */
static bool is_for_writing(const char *line, const struct hr_identity *identity)
{
    uint64_t start;
    char permissions[5];
    struct hr_identity other;
    return parse_mapping(line, &start, permissions, &other) && permissions[1] == 'w' &&
           other.inode == identity->inode && other.major_number == identity->major_number &&
           other.minor_number == identity->minor_number;
}

/* A process can have 65,530 mappings with paths of 4 KiB: a quarter of a gigabyte to read. */
#define MOST_MAPS_BYTES ((size_t)32 << 20)
#define LINES_BETWEEN_LOOKS_AT_THE_CLOCK 64

static bool is_past(uint64_t deadline_ns)
{
    return deadline_ns != HR_NO_DEADLINE && hr_clock_ns(CLOCK_MONOTONIC) >= deadline_ns;
}

/* HR_MAPS_NOTHING: an empty list, as kernel threads, zombies and dying processes have.  Linux 6.16
 * refuses to open it instead, as if they had ended. */
static enum hr_seen read_maps(int directory, const char *name, const struct hr_identity *identity,
                              uint64_t deadline_ns)
{
    FILE *maps = open_at(directory, name);
    if (maps == NULL)
        return errno == ESRCH ? HR_MAPS_NOTHING : after_failure(errno);
    char inode[32];
    snprintf(inode, sizeof inode, " %" PRIu64, identity->inode);
    char *line = NULL;
    size_t room = 0, bytes = 0;
    enum hr_seen seen = HR_MAPS_NOTHING;
    bool too_long = is_past(deadline_ns);
    errno = 0;
    for (unsigned lines = 1; seen != HR_MAPS && !too_long; lines++) {
        ssize_t length = getline(&line, &room, maps);
        if (length <= 0)
            break;
        /* A search tells nearly all lines apart, without parsing them. */
        bool same = strstr(line, inode) != NULL && is_for_writing(line, identity);
        seen = same ? HR_MAPS : HR_MAPS_NOT;
        bytes += (size_t)length;
        too_long = bytes > MOST_MAPS_BYTES ||
                   (lines % LINES_BETWEEN_LOOKS_AT_THE_CLOCK == 0 && is_past(deadline_ns));
    }
    if (seen != HR_MAPS && (too_long || is_past(deadline_ns)))
        seen = HR_REFUSED;
    else if (seen != HR_MAPS && !feof(maps))
        seen = after_failure(errno);
    free(line);
    fclose(maps);
    return seen;
}

/* Every process of a container that HAMi has given a GPU has it loaded. */
static bool has_libvgpu(int process, uint64_t deadline_ns)
{
    FILE *maps = open_at(process, "maps");
    char *line = NULL;
    size_t room = 0, bytes = 0;
    bool found = false;
    while (maps != NULL && !found && bytes <= MOST_MAPS_BYTES && !is_past(deadline_ns)) {
        ssize_t length = getline(&line, &room, maps);
        if (length <= 0)
            break;
        bytes += (size_t)length;
        found = strstr(line, "/libvgpu.so") != NULL;
    }
    free(line);
    if (maps != NULL)
        fclose(maps);
    return found;
}

/* A process whose first thread has ended shows its maps only under the other threads. */
static enum hr_seen read_maps_of_threads(int process, const struct hr_identity *identity,
                                         uint64_t deadline_ns)
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
            seen = read_maps(fd, name, identity, deadline_ns);
        if (seen == HR_GONE) {
            seen = HR_MAPS_NOTHING;
            thread_ended = true;
        }
    }
    /* Who has ended may have left a successor behind that was not listed. */
    if (seen == HR_MAPS_NOTHING && (thread_ended || errno != 0))
        seen = HR_REFUSED;
    closedir(tasks);
    return seen;
}

static void parse_pids(const char *at, struct hr_mapper *out)
{
    int used;
    while (out->levels < HR_PID_LEVELS &&
           sscanf(at, "%" SCNd32 "%n", &out->pids[out->levels], &used) == 1) {
        out->levels++;
        at += used;
    }
}

enum hr_seen hr_read_status(int process, struct hr_mapper *out)
{
    memset(out, 0, sizeof *out);
    FILE *status = open_at(process, "status");
    if (status == NULL)
        return after_failure(errno);
    char *line = NULL;
    size_t room = 0;
    errno = 0;
    while (out->levels == 0 && getline(&line, &room, status) > 0) {
        if (strncmp(line, "NSpid:", 6) == 0)
            parse_pids(line + 6, out);
    }
    enum hr_seen seen = HR_MAPS;
    if (out->levels == 0)
        seen = feof(status) ? HR_REFUSED : after_failure(errno);
    free(line);
    fclose(status);
    return seen;
}

static int append(struct hr_mapper **list, uint32_t *count, const struct hr_mapper *mapper)
{
    if ((*count & (*count - 1)) == 0) { /* full at each power of two */
        size_t room = *count == 0 ? 1 : (size_t)*count * 2;
        struct hr_mapper *longer = realloc(*list, room * sizeof *longer);
        if (longer == NULL)
            return hr_fail_errno(HR_ESYSTEM, ENOMEM);
        *list = longer;
    }
    (*list)[(*count)++] = *mapper;
    return HR_OK;
}

int hr_look_at_process(int proc, const char *name, const struct hr_identity *identity,
                       uint64_t deadline_ns, struct hr_mappers *out)
{
    int process = openat(proc, name, O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (process < 0) {
        bool is_file = errno == ENOTDIR || errno == ELOOP;
        out->blind = out->blind || (!is_file && after_failure(errno) == HR_REFUSED);
        return HR_OK;
    }
    struct hr_mapper mapper;
    enum hr_seen known = HR_MAPS_NOT;
    enum hr_seen seen = read_maps(process, "maps", identity, deadline_ns);
    if (seen != HR_MAPS_NOT && seen != HR_GONE)
        known = hr_read_status(process, &mapper);
    /* A kernel thread, or one whose first thread has ended or is about to. */
    if (seen == HR_MAPS_NOTHING && known == HR_MAPS)
        seen = read_maps_of_threads(process, identity, deadline_ns);
    if (seen == HR_MAPS && known == HR_MAPS)
        mapper.has_libvgpu = has_libvgpu(process, deadline_ns);
    close(process);

    if (known == HR_REFUSED)
        out->blind = true;
    if (known != HR_MAPS)
        return HR_OK;
    if (seen == HR_MAPS)
        return append(&out->list, &out->count, &mapper);
    /* The init of the host itself is no process of a container, also where it may not be
     * looked at. */
    bool host_init = out->initial && mapper.levels == 1 && mapper.pids[0] == 1;
    if (seen == HR_REFUSED && !host_init)
        return append(&out->unreadable, &out->unreadable_count, &mapper);
    return HR_OK;
}

void hr_read_link(int directory, const char *name, char *out, size_t room)
{
    ssize_t length = readlinkat(directory, name, out, room - 1);
    out[length < 0 ? 0 : length] = '\0';
}
