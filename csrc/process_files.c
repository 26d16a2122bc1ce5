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

struct mapping {
    uint64_t start, end, inode;
    unsigned major_number, minor_number;
    char permissions[5];
};

static bool parse_mapping(const char *line, struct mapping *out)
{
    return sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s %*x %x:%x %" SCNu64, &out->start, &out->end,
                  out->permissions, &out->major_number, &out->minor_number, &out->inode) == 6;
}

static bool is_writable(const struct mapping *mapping)
{
    return mapping->permissions[1] == 'w';
}

static bool is_same_file(const struct mapping *mapping, const struct hr_mapped_file *file)
{
    return mapping->inode == file->inode && mapping->major_number == file->major_number &&
           mapping->minor_number == file->minor_number;
}

static bool is_for_want_of_room(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOMEM;
}

static bool find_own(FILE *maps, const hr_region *region, struct hr_mapped_file *out)
{
    char *line = NULL;
    size_t room = 0;
    bool found = false;
    struct mapping mapping;
    while (!found && getline(&line, &room, maps) > 0) {
        found = parse_mapping(line, &mapping) && mapping.start == (uint64_t)(uintptr_t)region->base;
        if (found) {
            out->major_number = mapping.major_number;
            out->minor_number = mapping.minor_number;
            out->inode = mapping.inode;
        }
    }
    free(line);
    return found;
}

/* Under the fork lock, so that no handle is opened or closed meanwhile. */
static bool is_mapped_by_another(FILE *maps, const struct hr_mapped_file *file)
{
    char *line = NULL;
    size_t room = 0;
    bool found = false;
    struct mapping mapping;
    while (!found && getline(&line, &room, maps) > 0)
        found = parse_mapping(line, &mapping) && is_writable(&mapping) &&
                is_same_file(&mapping, file) && !hr_is_mapped_by_handle(mapping.start);
    free(line);
    return found;
}

int hr_own_mapping(const hr_region *region, struct hr_mapped_file *out, bool *by_another)
{
    *out = (struct hr_mapped_file){.major_number = major(region->device_id),
                                   .minor_number = minor(region->device_id),
                                   .inode = region->inode,
                                   .bytes = region->mapped_bytes};
    *by_another = false;
    FILE *maps = fopen("/proc/self/maps", "re");
    if (maps == NULL)
        return is_for_want_of_room(errno) ? hr_fail_errno(HR_ESYSTEM, errno) : HR_OK;
    hr_fork_lock();
    if (find_own(maps, region, out)) {
        rewind(maps);
        *by_another = is_mapped_by_another(maps, out);
    }
    hr_fork_unlock();
    fclose(maps);
    return HR_OK;
}

/* Only these say that the process has ended.  All else, a lack of descriptors or of memory as much
 * as a refusal, says nothing about it. */
static enum hr_seen after_failure(int error)
{
    return error == ENOENT || error == ESRCH ? HR_GONE : HR_REFUSED;
}

/*
 * What a line of maps says of the file.  A process that maps it for reading only is an exporter
 * somewhere: no process of the region, and no holder of its lock.
 */
static enum hr_seen judge_line(const char *line, const struct hr_mapped_file *file)
{
    struct mapping mapping;
    if (!parse_mapping(line, &mapping) || !is_writable(&mapping) || mapping.inode != file->inode)
        return HR_MAPS_NOT;
    if (is_same_file(&mapping, file))
        return HR_MAPS;
    return mapping.end - mapping.start >= file->bytes ? HR_MAPS_UNSURE : HR_MAPS_NOT;
}

/* A process can have 65,530 mappings with paths of 4 KiB: a quarter of a gigabyte to read. */
#define MOST_MAPS_BYTES ((size_t)32 << 20)
#define LINES_BETWEEN_LOOKS_AT_THE_CLOCK 64

static bool is_past(uint64_t deadline_ns)
{
    return hr_clock_ns(CLOCK_MONOTONIC) >= deadline_ns;
}

/* An empty list is HR_MAPS_NOTHING.  Linux 6.16 refuses to open it instead, as if the process
 * had ended. */
static enum hr_seen read_maps(int directory, const char *name, const struct hr_mapped_file *file,
                              uint64_t deadline_ns)
{
    FILE *maps = open_at(directory, name);
    if (maps == NULL)
        return errno == ESRCH ? HR_MAPS_NOTHING : after_failure(errno);
    char inode[32];
    snprintf(inode, sizeof inode, " %" PRIu64, file->inode);
    char *line = NULL;
    size_t room = 0, bytes = 0;
    enum hr_seen seen = HR_MAPS_NOTHING;
    bool unsure = false, cut_short = is_past(deadline_ns);
    errno = 0;
    for (unsigned lines = 1; seen != HR_MAPS && !cut_short; lines++) {
        ssize_t length = getline(&line, &room, maps);
        if (length <= 0)
            break;
        /* A search tells nearly all lines apart, without parsing them. */
        seen = strstr(line, inode) != NULL ? judge_line(line, file) : HR_MAPS_NOT;
        unsure = unsure || seen == HR_MAPS_UNSURE;
        bytes += (size_t)length;
        cut_short = bytes > MOST_MAPS_BYTES ||
                    (lines % LINES_BETWEEN_LOOKS_AT_THE_CLOCK == 0 && is_past(deadline_ns));
    }
    if (seen != HR_MAPS && cut_short)
        seen = HR_REFUSED;
    else if (seen != HR_MAPS && !feof(maps))
        seen = after_failure(errno);
    else if (seen != HR_MAPS && unsure)
        seen = HR_MAPS_UNSURE;
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
static enum hr_seen read_maps_of_threads(int process, const struct hr_mapped_file *file,
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
            seen = read_maps(fd, name, file, deadline_ns);
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

enum hr_seen hr_read_status(int directory, const char *name, struct hr_mapper *out)
{
    char text[4096];
    size_t length = 0;
    ssize_t got = 0;
    const char *pids = NULL, *end = NULL;
    memset(out, 0, sizeof *out);
    int fd = openat(directory, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
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

int hr_look_at_process(int proc, const char *name, const struct hr_mapped_file *file,
                       uint64_t deadline_ns, struct hr_mappers *out)
{
    int process = openat(proc, name, O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (process < 0) {
        bool is_file = errno == ENOTDIR || errno == ELOOP;
        out->incomplete = out->incomplete || (!is_file && after_failure(errno) == HR_REFUSED);
        return HR_OK;
    }
    struct hr_mapper mapper;
    enum hr_seen known = HR_MAPS_NOT;
    enum hr_seen seen = read_maps(process, "maps", file, deadline_ns);
    if (seen != HR_MAPS_NOT && seen != HR_GONE)
        known = hr_read_status(process, "status", &mapper);
    /* A kernel thread, or one whose first thread has ended or is about to. */
    if (seen == HR_MAPS_NOTHING && known == HR_MAPS)
        seen = read_maps_of_threads(process, file, deadline_ns);
    if (seen == HR_MAPS && known == HR_MAPS)
        mapper.has_libvgpu = has_libvgpu(process, deadline_ns);
    close(process);

    if (known == HR_REFUSED)
        out->incomplete = true;
    if (known != HR_MAPS)
        return HR_OK;
    if (seen == HR_MAPS)
        return append(&out->list, &out->count, &mapper);
    /* The init of the host itself is no process of a container, also where it may not be
     * looked at. */
    bool host_init = out->initial && mapper.levels == 1 && mapper.pids[0] == 1;
    if (seen == HR_MAPS_UNSURE || (seen == HR_REFUSED && !host_init))
        return append(&out->unsure, &out->unsure_count, &mapper);
    return HR_OK;
}

void hr_read_link(int directory, const char *name, char *out, size_t room)
{
    ssize_t length = readlinkat(directory, name, out, room - 1);
    out[length < 0 ? 0 : length] = '\0';
}
