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
    uint64_t start;
    char permissions[5];
    struct hr_mapped_file file; /* `bytes` of it are mapped */
};

static bool parse_mapping(const char *line, struct mapping *out)
{
    struct hr_mapped_file *file = &out->file;
    uint64_t end;
    if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s %*x %x:%x %" SCNu64, &out->start, &end,
               out->permissions, &file->major_number, &file->minor_number, &file->inode) != 6)
        return false;
    file->bytes = end - out->start;
    return true;
}

/*
 * A process that maps a file for reading only is an exporter somewhere: no process of the region,
 * and no holder of its lock.  Nor is one with a private copy.
 */
static bool parse_written(const char *line, struct mapping *out)
{
    const char *permissions = strchr(line, ' ');
    return permissions != NULL && strnlen(permissions, 5) == 5 && permissions[2] == 'w' &&
           permissions[4] == 's' && parse_mapping(line, out);
}

static bool is_same_file(const struct hr_mapped_file *one, const struct hr_mapped_file *other)
{
    return one->inode == other->inode && one->major_number == other->major_number &&
           one->minor_number == other->minor_number;
}

static bool is_for_want_of_room(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOMEM;
}

static void look_up_in_maps(FILE *maps, hr_region *region)
{
    char *line = NULL;
    size_t room = 0;
    struct mapping mapping;
    while (region->in_maps.inode == 0 && getline(&line, &room, maps) > 0) {
        if (parse_mapping(line, &mapping) && mapping.start == (uint64_t)(uintptr_t)region->base) {
            region->in_maps.major_number = mapping.file.major_number;
            region->in_maps.minor_number = mapping.file.minor_number;
            region->in_maps.inode = mapping.file.inode;
        }
    }
    free(line);
    rewind(maps);
}

/* Under the fork lock, so that no handle is opened or closed meanwhile. */
static bool is_mapped_by_another(FILE *maps, const struct hr_mapped_file *file)
{
    char *line = NULL;
    size_t room = 0;
    bool found = false;
    struct mapping mapping;
    while (!found && getline(&line, &room, maps) > 0)
        found = parse_written(line, &mapping) && is_same_file(&mapping.file, file) &&
                !hr_is_mapped_by_handle(mapping.start);
    free(line);
    return found;
}

int hr_own_mapping(hr_region *region, struct hr_mapped_file *out, bool *by_another)
{
    *out = (struct hr_mapped_file){.major_number = major(region->device_id),
                                   .minor_number = minor(region->device_id),
                                   .inode = region->inode,
                                   .bytes = region->mapped_bytes};
    int code = HR_OK;
    hr_fork_lock();
    bool look = by_another != NULL || region->in_maps.inode == 0;
    FILE *maps = look ? fopen("/proc/self/maps", "re") : NULL;
    if (look && maps == NULL && is_for_want_of_room(errno))
        code = hr_fail_errno(HR_ESYSTEM, errno);
    if (maps != NULL && region->in_maps.inode == 0)
        look_up_in_maps(maps, region);
    if (region->in_maps.inode != 0) {
        out->major_number = region->in_maps.major_number;
        out->minor_number = region->in_maps.minor_number;
        out->inode = region->in_maps.inode;
    }
    if (by_another != NULL)
        *by_another = maps != NULL && region->in_maps.inode != 0 && is_mapped_by_another(maps, out);
    hr_fork_unlock();
    if (maps != NULL)
        fclose(maps);
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
                              uint64_t deadline_ns, struct hr_written_files *written)
{
    FILE *maps = open_at(directory, name);
    if (maps == NULL)
        return errno == ESRCH ? HR_MAPS_NOTHING : after_failure(errno);
    char inode[32];
    snprintf(inode, sizeof inode, " %" PRIu64, file->inode);
    if (written != NULL)
        written->count = 0;
    char *line = NULL;
    size_t room = 0, bytes = 0;
    enum hr_seen seen = HR_MAPS_NOTHING;
    bool unsure = false, kept = written != NULL, cut_short = is_past(deadline_ns);
    errno = 0;
    for (unsigned lines = 1; seen != HR_MAPS && !cut_short; lines++) {
        ssize_t length = getline(&line, &room, maps);
        if (length <= 0)
            break;
        struct mapping mapping;
        seen = HR_MAPS_NOT;
        /* A search tells nearly all lines apart, without parsing them. */
        if ((kept || strstr(line, inode) != NULL) && parse_written(line, &mapping)) {
            seen = compare(&mapping.file, file);
            kept = kept && keep_written(written, &mapping.file);
        }
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
    if (written != NULL)
        written->complete = kept && (seen == HR_MAPS_NOT || seen == HR_MAPS_UNSURE);
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
            seen = read_maps(fd, name, file, deadline_ns, NULL);
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
                       uint64_t deadline_ns, struct hr_mappers *out,
                       struct hr_written_files *written)
{
    int process = openat(proc, name, O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (process < 0) {
        bool is_file = errno == ENOTDIR || errno == ELOOP;
        out->incomplete = out->incomplete || (!is_file && after_failure(errno) == HR_REFUSED);
        return HR_OK;
    }
    struct hr_mapper mapper;
    enum hr_seen known = HR_MAPS_NOT;
    enum hr_seen seen = read_maps(process, "maps", file, deadline_ns, written);
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
