#define _GNU_SOURCE
#include "proc.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

/* The inode number that the kernel gives to the first pid namespace, always. */
#define INITIAL_PID_NAMESPACE "pid:[4026531836]"

/* Only these say that the process has ended.  All else, a lack of descriptors or of memory as much
 * as a refusal, says nothing about it. */
static enum hr_seen after_failure(int error)
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

void hr_read_link(int directory, const char *name, char *out, size_t room)
{
    ssize_t length = readlinkat(directory, name, out, room - 1);
    out[length < 0 ? 0 : length] = '\0';
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
    if (fd < 0)
        return errno == EACCES || errno == EPERM ? HR_START_REFUSED : HR_HAS_ENDED;
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

/* ---- Mounts ------------------------------------------------------------------------ */

/* File systems that the kernel serves itself: an operation waits for a disk at most.  All but an
 * overlay keep the pages of their files themselves. */
static const char *const LOCAL[] = {"ext4", "xfs", "btrfs", "tmpfs", "overlay"};
enum { LOCAL_TYPES = 5, OWN_PAGES_TYPES = 4 };

/* A process can have 100,000 mounts with names of 16 KiB; a container has a hundred. */
#define MOUNTINFO_LIMIT ((size_t)8 << 20)

struct mount {
    unsigned major_number, minor_number;
};

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
                       struct mount *mount)
{
    int fd = openat(directory, name, O_RDONLY | O_CLOEXEC);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "re");
    char *line = NULL;
    size_t room = 0;
    bool found = false;
    ssize_t length;
    while (file != NULL && !found && (length = getline(&line, &room, file)) > 0) {
        struct mount seen;
        int id;
        if ((size_t)length > limit)
            break;
        limit -= (size_t)length;
        if (sscanf(line, "%d %*d %u:%u", &id, &seen.major_number, &seen.minor_number) != 3)
            continue;
        found = (number >= 0 ? id == number
                             : seen.major_number == mount->major_number &&
                                   seen.minor_number == mount->minor_number) &&
                has_type(line, types);
        if (found)
            *mount = seen;
    }
    free(line);
    if (file != NULL)
        fclose(file);
    else if (fd >= 0)
        close(fd);
    return found;
}

/* ---- Maps -------------------------------------------------------------------------- */

struct maps {
    char text[8192]; /* the kernel gives 4 KiB of whole lines at a time, or one longer line */
    size_t length;
    bool skips_line; /* its beginning has been taken, the rest did not fit */
    bool has_libvgpu, is_enough;
    hr_take_mapping *take;
    void *argument;
};

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

static void take_line(struct maps *maps, const char *line)
{
    const char *rights = strchr(line, ' ');
    struct hr_mapping mapping;
    if (!maps->has_libvgpu)
        maps->has_libvgpu = strstr(line, "/libvgpu.so") != NULL;
    if (maps->is_enough || rights == NULL || strnlen(rights, 5) < 5 || rights[4] != 's')
        return; /* private, as nearly all are */
    if (parse_mapping(line, &mapping))
        maps->is_enough = !maps->take(maps->argument, &mapping);
}

/* Take the whole lines, and the beginning of one that is longer than the room for it. */
static void take_lines(struct maps *maps)
{
    char *line = maps->text, *end;
    maps->text[maps->length] = '\0';
    while ((end = memchr(line, '\n', (size_t)(maps->text + maps->length - line))) != NULL) {
        *end = '\0';
        if (!maps->skips_line)
            take_line(maps, line);
        maps->skips_line = false;
        line = end + 1;
    }
    size_t left = (size_t)(maps->text + maps->length - line);
    if (left == sizeof maps->text - 1) {
        if (!maps->skips_line)
            take_line(maps, line);
        maps->skips_line = true;
        left = 0;
    }
    memmove(maps->text, line, left);
    maps->length = left;
}

/* An empty list is HR_MAPS_NOTHING.  Linux 6.16 refuses to open it instead, as if the process
 * had ended. */
enum hr_seen hr_read_maps(int directory, const char *name, uint64_t deadline_ns,
                          hr_take_mapping *take, void *argument, bool *has_libvgpu)
{
    struct maps maps = {.take = take, .argument = argument};
    enum hr_seen seen = HR_NO_TIME;
    size_t total = 0;
    int fd = openat(directory, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return errno == ESRCH ? HR_MAPS_NOTHING : after_failure(errno);
    while (total < HR_MAPS_BYTES && !hr_is_past(deadline_ns)) {
        ssize_t got = read(fd, maps.text + maps.length, sizeof maps.text - 1 - maps.length);
        if (got <= 0) {
            seen = got < 0 ? after_failure(errno) : total == 0 ? HR_MAPS_NOTHING : HR_MAPS;
            break;
        }
        total += (size_t)got;
        maps.length += (size_t)got;
        take_lines(&maps);
        /* The libraries come after what a program maps itself, so both end at about the same
         * place. */
        if (maps.is_enough && maps.has_libvgpu) {
            seen = HR_MAPS;
            break;
        }
    }
    close(fd);
    *has_libvgpu = *has_libvgpu || maps.has_libvgpu;
    return seen;
}

/* What a search wants to know of one process's maps. */
struct match {
    const struct hr_search *search;
    int process;
    uint64_t bytes; /* of files with the inode number on another device */
    struct mount other;
    bool is_other_known, has_other_pages; /* of that device */
    bool is_found, is_unsure, has_libvgpu;
};

/*
 * Whether a mapping that shows the inode number on another device is of another file for certain:
 * an overlay has its file's pages in the upper directory's file system, these have not.  Else a
 * neighbour could forge the number.  A device number is one file system's, and the kernel writes
 * mountinfo.
 */
static bool is_another_file(struct match *match, const struct hr_file_id *file)
{
    struct mount mount = {.major_number = file->major_number, .minor_number = file->minor_number};
    if (!match->search->has_own_pages)
        return false;
    if (!match->is_other_known || memcmp(&mount, &match->other, sizeof mount) != 0) {
        match->other = mount;
        match->is_other_known = true;
        match->has_other_pages =
            find_mount(match->process, "mountinfo", MOUNTINFO_LIMIT, OWN_PAGES_TYPES, -1, &mount);
    }
    return match->has_other_pages;
}

/*
 * Only what is mapped for writing counts.  A process that maps a file for reading only is an
 * exporter somewhere: no process of the region, and no holder of its lock.
 */
static bool match_mapping(void *argument, const struct hr_mapping *mapping)
{
    struct match *match = argument;
    const struct hr_search *search = match->search;
    if (!mapping->writable || mapping->file.inode != search->file.inode)
        return true;
    if (hr_is_same_file(&mapping->file, &search->file))
        match->is_found = true;
    else if (!is_another_file(match, &mapping->file))
        match->bytes += mapping->end - mapping->start;
    return !match->is_found;
}

/* A process whose first thread has ended shows its maps only under the other threads. */
static enum hr_seen read_maps_of_threads(int process, uint64_t deadline_ns, hr_take_mapping *take,
                                         void *argument, bool *has_libvgpu)
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
            seen = hr_read_maps(fd, name, deadline_ns, take, argument, has_libvgpu);
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

static enum hr_seen read_process_maps(int process, uint64_t deadline_ns, hr_take_mapping *take,
                                      void *argument, bool *has_libvgpu)
{
    enum hr_seen seen = hr_read_maps(process, "maps", deadline_ns, take, argument, has_libvgpu);
    /* A kernel thread, or one whose first thread has ended or is about to. */
    if (seen == HR_MAPS_NOTHING)
        seen = read_maps_of_threads(process, deadline_ns, take, argument, has_libvgpu);
    return seen;
}

static int open_process(int proc, const char *name)
{
    return openat(proc, name, O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
}

static enum hr_seen match_process(int proc, const char *name, struct match *match)
{
    const struct hr_search *search = match->search;
    match->process = open_process(proc, name);
    if (match->process < 0) /* what is no directory is no process */
        return errno == ENOTDIR || errno == ELOOP ? HR_GONE : after_failure(errno);
    enum hr_seen seen = read_process_maps(match->process, search->deadline_ns, match_mapping, match,
                                          &match->has_libvgpu);
    close(match->process);
    if (match->is_found) {
        match->is_unsure = seen != HR_MAPS; /* whether it has libvgpu */
        return HR_MAPS;
    }
    if (seen != HR_MAPS)
        return seen;
    return match->bytes >= search->file_bytes ? HR_MAPS_UNSURE : HR_MAPS_NOT;
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
    struct hr_mapped_file *file = files->list;
    const size_t length = strlen(mapping->path);
    while (file < files->list + files->count && (file->inode != mapping->file.inode ||
                                                 file->major_number != mapping->file.major_number ||
                                                 file->minor_number != mapping->file.minor_number))
        file++;
    if (file == files->list + files->count) {
        files->is_full =
            files->count == files->capacity || length > files->paths_capacity - files->path_bytes;
        if (files->is_full)
            return false;
        *file = (struct hr_mapped_file){.inode = mapping->file.inode,
                                        .major_number = mapping->file.major_number,
                                        .minor_number = mapping->file.minor_number,
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

int hr_read_mapped_files(int proc, uint32_t pid, uint64_t start_time_ticks,
                         struct hr_mapped_file *out, uint32_t capacity, char *paths,
                         uint32_t paths_bytes, uint32_t *has_libvgpu, struct hr_error *error)
{
    struct files files = {
        .list = out, .capacity = capacity, .paths = paths, .paths_capacity = paths_bytes};
    char name[sizeof "4294967295"];
    bool found_libvgpu = false;
    snprintf(name, sizeof name, "%" PRIu32, pid);
    int process = open_process(proc, name);
    /* The directory stays that of this very process, whichever gets its pid later. */
    enum hr_seen seen = process < 0 ? after_failure(errno) : HR_GONE;
    if (process >= 0 && hr_read_start_time(proc, pid) == (int64_t)start_time_ticks)
        seen = read_process_maps(process, hr_deadline_ns(HR_PROC_NS), add_mapping, &files,
                                 &found_libvgpu);
    if (process >= 0)
        close(process);
    *has_libvgpu = found_libvgpu;
    if (files.is_full || seen == HR_NO_TIME)
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

/* A process may have 65,536 groups, whose line comes first: of what has been searched only as much
 * stays as the line that is looked for may be long. */
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

bool hr_names_slot(const struct hr_slot_pids *slots, int32_t pid)
{
    for (int32_t i = 0; i < slots->count; i++) {
        if (slots->pids[i] == pid)
            return true;
    }
    return false;
}

static bool has_pid(const struct hr_mapper *mapper, int32_t pid, bool any_level)
{
    for (uint32_t level = any_level ? 0 : mapper->levels - 1; level < mapper->levels; level++) {
        if (mapper->pids[level] == pid)
            return true;
    }
    return false;
}

static bool has_any_pid(const struct hr_mapper *mapper, const struct hr_slot_pids *pids)
{
    for (int32_t i = 0; i < pids->count; i++) {
        if (has_pid(mapper, pids->pids[i], pids->any_level))
            return true;
    }
    return false;
}

/* ---- Searching --------------------------------------------------------------------- */

static int compare_pids(const void *one, const void *other)
{
    const struct hr_stranger *a = one, *b = other;
    return (a->pid > b->pid) - (a->pid < b->pid);
}

/* It must be the very process: its pid can be another's by now. */
static bool is_excluded(const struct hr_search *search, int proc, uint32_t pid)
{
    const struct hr_stranger wanted = {.pid = pid};
    const struct hr_stranger *found =
        search->excluded_count == 0 ? NULL
                                    : bsearch(&wanted, search->excluded, search->excluded_count,
                                              sizeof wanted, compare_pids);
    return found != NULL && hr_read_start_time(proc, pid) == (int64_t)found->start_time_ticks;
}

/* If unsure, yes: reading its maps says what is in the way. */
static bool may_matter(const struct hr_search *search, const struct hr_mapper *mapper,
                       bool is_initial)
{
    return search->only == NULL || mapper->levels == 0 || has_any_pid(mapper, search->only) ||
           (!is_initial && search->slots != NULL && has_any_pid(mapper, search->slots));
}

static int add_mapper(struct hr_mappers *out, const struct hr_mapper *mapper)
{
    struct hr_mapper *longer = hr_grow(out->list, out->count, sizeof *longer);
    if (longer == NULL)
        return hr_fail_errno(HR_ESYSTEM, ENOMEM);
    out->list = longer;
    out->list[out->count++] = *mapper;
    return HR_OK;
}

static int search_process(const struct hr_search *search, int proc, const char *name,
                          struct hr_mappers *out)
{
    struct hr_mapper mapper;
    char status[32];
    snprintf(status, sizeof status, "%.10s/status", name);
    if (is_excluded(search, proc, (uint32_t)strtoul(name, NULL, 10)) ||
        hr_read_pids(proc, status, &mapper) == HR_GONE ||
        !may_matter(search, &mapper, out->initial))
        return HR_OK;
    struct match match = {.search = search};
    enum hr_seen seen = match_process(proc, name, &match);
    if (seen == HR_MAPS_NOT || seen == HR_MAPS_NOTHING || seen == HR_GONE)
        return HR_OK;
    if (mapper.levels == 0) {
        out->incomplete = true;
        return HR_OK;
    }
    /* The init of the host itself is no process of a container, also where it may not be read. */
    if (seen == HR_REFUSED && out->initial && mapper.levels == 1 && mapper.pids[0] == 1)
        return HR_OK;
    mapper.has_libvgpu = match.has_libvgpu;
    mapper.is_unsure = seen != HR_MAPS;
    out->cut_short = out->cut_short || seen == HR_NO_TIME;
    out->has_unsure = out->has_unsure || mapper.is_unsure || match.is_unsure;
    out->has_other_inode = out->has_other_inode || seen == HR_MAPS_UNSURE;
    return add_mapper(out, &mapper);
}

/*
 * The first namespace sees every process; a later one only itself and what it made.  We see it if
 * we are in it: only its own /proc has a `self` for us then.  Or if its /proc is mounted here,
 * where we may need a privilege to read the link of process 1.
 */
static bool is_initial(int proc, const char *namespace_link)
{
    char link[64];
    hr_read_link(proc, namespace_link, link, sizeof link);
    return strcmp(link, INITIAL_PID_NAMESPACE) == 0;
}

/*
 * Whether this /proc is that of the namespace whose pids stand in the slots.  Pids are small
 * numbers, and a program of another container that has the region open for writing, such as this
 * library in a sidecar, may well have that of a slot.  So it has to be a process of libvgpu too.
 */
static bool is_namespace_of_slots(const struct hr_search *search, const struct hr_mappers *mappers)
{
    for (uint32_t i = 0; search->slots != NULL && i < mappers->count; i++) {
        const struct hr_mapper *mapper = &mappers->list[i];
        if (mapper->levels == 1 && mapper->has_libvgpu &&
            hr_names_slot(search->slots, mapper->pids[0]))
            return true;
    }
    return search->is_namespace_of_slots;
}

static int search_directory(const struct hr_search *search, DIR *directory, struct hr_mappers *out)
{
    int proc = dirfd(directory), code = HR_OK;
    char self[24];
    struct hr_mapper first;
    struct dirent *entry;
    hr_read_link(proc, "self", self, sizeof self);
    out->initial = is_initial(proc, "self/ns/pid") || is_initial(proc, "1/ns/pid");
    /* With hidepid the others' directories are not listed, or not readable: then process 1's is
     * neither. */
    const bool sees_first = hr_read_pids(proc, "1/status", &first) == HR_MAPS;
    while (code == HR_OK && !out->cut_short && (errno = 0, entry = readdir(directory)) != NULL) {
        const char *name = entry->d_name;
        if (name[0] < '0' || name[0] > '9' || strlen(name) > strlen("4294967295") ||
            (!search->counts_self && strcmp(name, self) == 0))
            continue;
        out->cut_short = hr_is_past(search->deadline_ns);
        if (!out->cut_short)
            code = search_process(search, proc, name, out);
    }
    if (code == HR_OK && !out->cut_short && errno != 0)
        code = hr_fail_errno(HR_ESYSTEM, errno);
    out->incomplete = out->incomplete || out->cut_short;
    out->complete =
        (out->initial || is_namespace_of_slots(search, out)) && !out->incomplete && sees_first;
    return code;
}

int hr_search_proc(const struct hr_search *search, struct hr_mappers *out)
{
    *out = (struct hr_mappers){.filtered = search->only != NULL};
    DIR *directory = opendir(search->proc == NULL ? "/proc" : search->proc);
    if (directory == NULL)
        return hr_fail_errno(HR_ESYSTEM, errno);
    int code = search_directory(search, directory, out);
    closedir(directory);
    if (code != HR_OK)
        hr_free_mappers(out);
    return code;
}

void hr_free_mappers(struct hr_mappers *mappers)
{
    free(mappers->list);
    *mappers = (struct hr_mappers){.list = NULL};
}

static enum hr_liveness judge(const struct hr_mappers *mappers, int32_t pid, bool any_level,
                              int32_t *here)
{
    enum hr_liveness liveness = mappers->complete ? HR_DEAD : HR_LIVENESS_UNKNOWN;
    *here = 0;
    for (uint32_t i = 0; i < mappers->count && liveness != HR_ALIVE; i++) {
        const struct hr_mapper *mapper = &mappers->list[i];
        if (!has_pid(mapper, pid, any_level))
            continue;
        liveness = mapper->is_unsure ? HR_LIVENESS_UNKNOWN : HR_ALIVE;
        *here = mapper->pids[0];
    }
    return liveness;
}

enum hr_liveness hr_liveness_of_owner(const struct hr_mappers *mappers, int32_t pid, int32_t *here)
{
    return judge(mappers, pid, true, here);
}

enum hr_liveness hr_liveness_of_slot(const struct hr_mappers *mappers, int32_t pid)
{
    int32_t here;
    return judge(mappers, pid, false, &here);
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
    char name[48], line[128];
    int number = -1;
    snprintf(name, sizeof name, "/proc/self/fdinfo/%d", fd);
    FILE *file = fopen(name, "re");
    while (file != NULL && number < 0 && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "mnt_id: %d", &number) != 1)
            number = -1;
    }
    if (file != NULL)
        fclose(file);
    return number;
}

int hr_hold_mapped_file(int directory, const char *name)
{
    struct statfs system;
    if (fstatfs(directory, &system) != 0 || system.f_type != PROC_SUPER_MAGIC)
        return hr_fail_errno(HR_ENOTFOUND, ENOENT);
    int held = openat(directory, name, O_PATH | O_CLOEXEC);
    if (held < 0)
        return hr_fail_errno(errno == EPERM || errno == EACCES ? HR_EACCESS
                             : errno == ENOENT                 ? HR_ENOTFOUND
                                                               : HR_ESYSTEM,
                             errno);
    /*
     * The file is not looked at before its mount is known: a stat of a file in a FUSE that nobody
     * serves does not return.  What the process has mounted itself stands in its own mountinfo
     * only, not in that of the first process.
     */
    struct mount mount;
    int number = mount_number(held);
    int error = number < 0 ? errno : EREMOTE;
    if (number >= 0 &&
        find_mount(directory, "../mountinfo", MOUNTINFO_LIMIT, LOCAL_TYPES, number, &mount) &&
        find_mount(directory, "../../1/mountinfo", SIZE_MAX, LOCAL_TYPES, -1, &mount))
        return held;
    close(held);
    return hr_fail_errno(HR_ESYSTEM, error);
}
