#define _GNU_SOURCE
#include "mappers.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "handle.h"

/* The inode number that the kernel gives to the first pid namespace, always. */
#define INITIAL_PID_NAMESPACE "pid:[4026531836]"

/* "dev inode" as maps prints it: stat's device number differs on some file systems. */
struct identity {
    unsigned major_number, minor_number;
    uint64_t inode;
};

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
                          struct identity *out)
{
    return sscanf(line, "%" SCNx64 "-%*x %4s %*x %x:%x %" SCNu64, start, permissions,
                  &out->major_number, &out->minor_number, &out->inode) == 5;
}

/*
 * Our own mapping tells how the file is called in everybody's maps.  A process that
 * has dropped its privileges may not read its own; then stat's numbers have to do.
 */
static void own_identity(const hr_region *region, struct identity *out)
{
    FILE *maps = fopen("/proc/self/maps", "re");
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
        return;
    out->major_number = major(region->device_id);
    out->minor_number = minor(region->device_id);
    out->inode = region->inode;
}

enum seen { MAPS_NOT, MAPS, MAPS_NOTHING, REFUSED, GONE };

static bool is_refusal(int error)
{
    return error == EACCES || error == EPERM;
}

/* MAPS_NOTHING: an empty list, as kernel threads, zombies and dying processes have. */
static enum seen read_maps(int directory, const char *name, const struct identity *identity)
{
    FILE *maps = open_at(directory, name);
    if (maps == NULL)
        return is_refusal(errno) ? REFUSED : GONE;
    char *line = NULL;
    size_t room = 0;
    enum seen seen = MAPS_NOTHING;
    errno = 0;
    while (seen != MAPS && getline(&line, &room, maps) > 0) {
        uint64_t start;
        char permissions[5];
        struct identity other;
        bool same = parse_mapping(line, &start, permissions, &other) &&
                    other.inode == identity->inode &&
                    other.major_number == identity->major_number &&
                    other.minor_number == identity->minor_number;
        /* Who only reads is an exporter somewhere: no process of the region, and no holder. */
        seen = same && permissions[1] == 'w' ? MAPS : MAPS_NOT;
    }
    if (seen == MAPS_NOTHING && is_refusal(errno))
        seen = REFUSED;
    free(line);
    fclose(maps);
    return seen;
}

/* A process whose first thread has ended shows its maps only under the other threads. */
static enum seen read_maps_of_threads(int process, const struct identity *identity)
{
    int fd = openat(process, "task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *tasks = fd < 0 ? NULL : fdopendir(fd);
    if (tasks == NULL) {
        enum seen seen = is_refusal(errno) ? REFUSED : GONE;
        if (fd >= 0)
            close(fd);
        return seen;
    }
    enum seen seen = MAPS_NOTHING;
    struct dirent *entry;
    while (seen == MAPS_NOTHING && (entry = readdir(tasks)) != NULL) {
        char name[sizeof entry->d_name + 8];
        snprintf(name, sizeof name, "%s/maps", entry->d_name);
        if (entry->d_name[0] != '.')
            seen = read_maps(fd, name, identity);
    }
    closedir(tasks);
    return seen;
}

struct status_lines {
    struct hr_mapper mapper;
    bool zombie;
};

static void parse_pids(const char *at, struct hr_mapper *out)
{
    int used;
    while (out->levels < HR_PID_LEVELS &&
           sscanf(at, "%" SCNd32 "%n", &out->pids[out->levels], &used) == 1) {
        out->levels++;
        at += used;
    }
}

/* The lines State and NSpid: MAPS if they are there, else why not. */
static enum seen read_status(int process, struct status_lines *out)
{
    memset(out, 0, sizeof *out);
    FILE *status = open_at(process, "status");
    if (status == NULL)
        return is_refusal(errno) ? REFUSED : GONE;
    char *line = NULL;
    size_t room = 0;
    errno = 0;
    while (out->mapper.levels == 0 && getline(&line, &room, status) > 0) {
        if (strncmp(line, "State:", 6) == 0)
            out->zombie = strchr(line, 'Z') != NULL;
        if (strncmp(line, "NSpid:", 6) == 0)
            parse_pids(line + 6, &out->mapper);
    }
    enum seen seen = out->mapper.levels > 0 ? MAPS : is_refusal(errno) ? REFUSED : GONE;
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

static int look_at(int proc, const char *name, const struct identity *identity,
                   struct hr_mappers *out)
{
    int process = openat(proc, name, O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (process < 0)
        return HR_OK; /* gone */
    struct status_lines status;
    enum seen known = MAPS_NOT;
    enum seen seen = read_maps(process, "maps", identity);
    if (seen != MAPS_NOT && seen != GONE)
        known = read_status(process, &status);
    if (seen == MAPS_NOTHING && known == MAPS && status.zombie)
        seen = read_maps_of_threads(process, identity);
    close(process);

    if (known == REFUSED)
        out->blind = true;
    if (known != MAPS)
        return HR_OK;
    if (seen == MAPS)
        return append(&out->list, &out->count, &status.mapper);
    /* The init of the host itself is no process of a container, also where it may not be
     * looked at. */
    bool host_init = out->initial && status.mapper.levels == 1 && status.mapper.pids[0] == 1;
    if (seen == REFUSED && !host_init)
        return append(&out->unreadable, &out->unreadable_count, &status.mapper);
    return HR_OK;
}

static bool is_initial(int proc, const char *namespace_link)
{
    char link[64];
    ssize_t length = readlinkat(proc, namespace_link, link, sizeof link - 1);
    if (length < 0)
        return false;
    link[length] = '\0';
    return strcmp(link, INITIAL_PID_NAMESPACE) == 0;
}

/*
 * The first namespace sees everybody; a later one only itself and what it made.  We
 * see it if we are in it: only its own /proc has a `self` for us then.  Or if its
 * /proc is mounted here, where we may need a privilege to look at process 1.
 */
static bool sees_everybody(int proc)
{
    return is_initial(proc, "self/ns/pid") || is_initial(proc, "1/ns/pid");
}

struct namespace_call {
    const hr_region *region;
    const struct hr_mappers *mappers;
    bool own;   /* some slot's process is seen here under the pid in its slot */
    bool inner; /* some slot's process has that pid only in an inner namespace */
};

static void judge_slot(struct namespace_call *call, int32_t pid)
{
    /* Also where this process is left out of the list. */
    if (pid == call->region->attached_pid)
        call->own = true;
    for (uint32_t i = 0; i < call->mappers->count; i++) {
        const struct hr_mapper *mapper = &call->mappers->list[i];
        if (mapper->pids[mapper->levels - 1] == pid)
            *(mapper->levels == 1 ? &call->own : &call->inner) = true;
    }
}

static int judge_slots(void *argument)
{
    struct namespace_call *call = argument;
    int32_t count;
    int code = hr_checked_proc_num(call->region, &count);
    for (int32_t i = 0; code == HR_OK && i < count; i++) {
        const unsigned char *slot = hr_slot(call->region, (uint32_t)i);
        int32_t pid = hr_load_i32(slot + call->region->layout->slot_pid, memory_order_relaxed);
        if (pid != 0)
            judge_slot(call, pid);
    }
    return code;
}

static int judge_namespace(const hr_region *region, struct namespace_call *call)
{
    return hr_guard_run(region->base, region->mapped_bytes, judge_slots, call);
}

/* With hidepid the others' directories are not listed, or not readable: then process 1's is
 * neither. */
static bool sees_first_process(int proc)
{
    struct status_lines status;
    int process = openat(proc, "1", O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (process < 0)
        return false;
    enum seen seen = read_status(process, &status);
    close(process);
    return seen == MAPS;
}

static int scan(DIR *directory, hr_region *region, const struct identity *identity,
                enum hr_own_handle own, struct hr_mappers *out)
{
    int at = dirfd(directory);
    char self[24] = "";
    ssize_t length = readlinkat(at, "self", self, sizeof self - 1);
    if (length > 0)
        self[length] = '\0';
    bool with_self = hr_is_used_by_process(region, own == HR_WITHOUT_OWN_HANDLE);
    out->initial = sees_everybody(at);
    int code = HR_OK;
    struct dirent *entry;
    while (code == HR_OK && (entry = readdir(directory)) != NULL) {
        bool is_process = entry->d_name[0] >= '0' && entry->d_name[0] <= '9';
        if (is_process && (with_self || strcmp(entry->d_name, self) != 0))
            code = look_at(at, entry->d_name, identity, out);
    }
    if (code != HR_OK)
        return code;
    struct namespace_call call = {.region = region, .mappers = out};
    if (!out->initial)
        code = judge_namespace(region, &call);
    out->complete = (out->initial || call.own) && !out->blind && sees_first_process(at);
    return code;
}

int hr_find_mappers(hr_region *region, const char *proc, enum hr_own_handle own,
                    struct hr_mappers *out)
{
    memset(out, 0, sizeof *out);
    struct identity identity;
    own_identity(region, &identity);
    DIR *directory = opendir(proc == NULL ? "/proc" : proc);
    if (directory == NULL)
        return hr_fail_errno(HR_ESYSTEM, errno);
    int code = scan(directory, region, &identity, own, out);
    closedir(directory);
    if (code != HR_OK)
        hr_free_mappers(out);
    return code;
}

void hr_free_mappers(struct hr_mappers *mappers)
{
    free(mappers->list);
    free(mappers->unreadable);
    memset(mappers, 0, sizeof *mappers);
}

static bool has_pid(const struct hr_mapper *mapper, int32_t pid)
{
    for (uint32_t level = 0; level < mapper->levels; level++) {
        if (mapper->pids[level] == pid)
            return true;
    }
    return false;
}

enum hr_life hr_life_of_owner(const struct hr_mappers *mappers, int32_t pid, int32_t *here)
{
    *here = 0;
    for (uint32_t i = 0; i < mappers->count; i++) {
        if (has_pid(&mappers->list[i], pid)) {
            *here = mappers->list[i].pids[0];
            return HR_ALIVE;
        }
    }
    for (uint32_t i = 0; i < mappers->unreadable_count; i++) {
        if (has_pid(&mappers->unreadable[i], pid)) {
            *here = mappers->unreadable[i].pids[0];
            return HR_LIFE_UNKNOWN;
        }
    }
    return mappers->complete ? HR_DEAD : HR_LIFE_UNKNOWN;
}

static bool has_innermost(const struct hr_mapper *list, uint32_t count, int32_t pid)
{
    for (uint32_t i = 0; i < count; i++) {
        if (list[i].pids[list[i].levels - 1] == pid)
            return true;
    }
    return false;
}

enum hr_life hr_life_of_slot(const struct hr_mappers *mappers, int32_t pid)
{
    if (has_innermost(mappers->list, mappers->count, pid))
        return HR_ALIVE;
    if (has_innermost(mappers->unreadable, mappers->unreadable_count, pid))
        return HR_LIFE_UNKNOWN;
    return mappers->complete ? HR_DEAD : HR_LIFE_UNKNOWN;
}

bool hr_shares_namespace(hr_region *region)
{
    struct hr_mappers mappers;
    if (hr_find_mappers(region, NULL, HR_WITH_OWN_HANDLE, &mappers) != HR_OK)
        return false;
    struct namespace_call call = {.region = region, .mappers = &mappers};
    bool shares = judge_namespace(region, &call) == HR_OK && call.own && !call.inner;
    hr_free_mappers(&mappers);
    return shares;
}
