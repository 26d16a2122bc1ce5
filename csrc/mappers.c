#define _GNU_SOURCE
#include "mappers.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

/* ---- The pids that matter -------------------------------------------------------- */

bool hr_names_slot(const struct hr_slot_pids *slots, int32_t pid)
{
    for (int32_t i = 0; i < slots->count; i++) {
        if (slots->pids[i] == pid)
            return true;
    }
    return false;
}

static bool matches(const struct hr_slot_pids *pids, const struct hr_mapper *mapper)
{
    for (uint32_t level = pids->any_level ? 0 : mapper->levels - 1; level < mapper->levels; level++)
        if (hr_names_slot(pids, mapper->pids[level]))
            return true;
    return false;
}

struct copy_call {
    const hr_region *region;
    struct hr_slot_pids *out;
};

static int copy_slot_pids(void *argument)
{
    struct copy_call *call = argument;
    const hr_region *region = call->region;
    int32_t count;
    int code = hr_checked_proc_num(region, &count);
    for (int32_t i = 0; code == HR_OK && i < count; i++) {
        const unsigned char *slot = hr_slot(region, (uint32_t)i);
        int32_t pid = hr_load_i32(slot + region->layout->slot_pid, memory_order_relaxed);
        if (pid != 0)
            call->out->pids[call->out->count++] = pid;
    }
    return code;
}

int hr_read_slot_pids(const hr_region *region, struct hr_slot_pids *out)
{
    struct copy_call call = {.region = region, .out = out};
    out->count = 0;
    out->any_level = false;
    return hr_run_entered(region, copy_slot_pids, &call);
}

/* ---- What this /proc shows ------------------------------------------------------- */

static bool is_initial(int proc, const char *namespace_link)
{
    char link[64];
    hr_read_link(proc, namespace_link, link, sizeof link);
    return strcmp(link, HR_INITIAL_PID_NAMESPACE) == 0;
}

/*
 * The first namespace sees everybody; a later one only itself and what it made.  We
 * see it if we are in it: only its own /proc has a `self` for us then.  Or if its
 * /proc is mounted here, where we may need a privilege to look at process 1.
 */
static bool shows_all_namespaces(int proc)
{
    return is_initial(proc, "self/ns/pid") || is_initial(proc, "1/ns/pid");
}

/* With hidepid the others' directories are not listed, or not readable: then process 1's is
 * neither. */
static bool sees_first_process(int proc)
{
    struct hr_mapper mapper;
    return hr_read_status(proc, "1/status", &mapper) == HR_MAPS;
}

/*
 * Whether this /proc is that of the namespace whose pids stand in the slots.  Pids are small
 * numbers, and a program of another container that has the region open for writing, such as this
 * library in a sidecar, may well have that of a slot.  So it has to be a process of libvgpu too, or
 * this very one with its slot.
 */
static bool is_namespace_of_slots(const hr_region *region, const struct hr_slot_pids *slots,
                                  const struct hr_mappers *mappers)
{
    if (region->attached_pid != 0 && hr_names_slot(slots, region->attached_pid))
        return true;
    for (uint32_t i = 0; i < mappers->count; i++) {
        const struct hr_mapper *mapper = &mappers->list[i];
        if (mapper->levels == 1 && mapper->has_libvgpu && hr_names_slot(slots, mapper->pids[0]))
            return true;
    }
    return false;
}

/* ---- Searching ------------------------------------------------------------------- */

struct search {
    int proc;
    char self[24]; /* this process's name there; empty where that /proc does not have it */
    bool with_self;
    struct hr_mapped_file file;
    const struct hr_slot_pids *only; /* NULL: all processes */
    const struct hr_slot_pids *slots;
    uint64_t deadline_ns;
};

/* Whether the maps of the process have to be read.  If unsure, yes: reading them says what is in
 * the way. */
static bool may_matter(const struct search *search, const char *name)
{
    struct hr_mapper mapper;
    if (!search->with_self && strcmp(name, search->self) == 0)
        return false;
    if (search->only == NULL)
        return true;
    char status[24];
    snprintf(status, sizeof status, "%.10s/status", name);
    if (hr_read_status(search->proc, status, &mapper) != HR_MAPS)
        return true;
    return matches(search->only, &mapper) ||
           (search->slots != NULL && matches(search->slots, &mapper));
}

static int search_processes(const struct search *search, DIR *directory, struct hr_mappers *out)
{
    int code = HR_OK;
    struct dirent *entry;
    while (code == HR_OK && (errno = 0, entry = readdir(directory)) != NULL) {
        bool is_process = entry->d_name[0] >= '0' && entry->d_name[0] <= '9';
        if (hr_clock_ns(CLOCK_MONOTONIC) >= search->deadline_ns) {
            out->incomplete = true;
            return HR_OK;
        }
        if (is_process && may_matter(search, entry->d_name))
            code = hr_look_at_process(search->proc, entry->d_name, &search->file,
                                      search->deadline_ns, out);
    }
    return code == HR_OK && errno != 0 ? hr_fail_errno(HR_ESYSTEM, errno) : code;
}

static int search_directory(DIR *directory, hr_region *region, enum hr_own_handle own,
                            const struct hr_slot_pids *only, uint64_t deadline_ns,
                            struct hr_mappers *out)
{
    struct search search = {.proc = dirfd(directory), .only = only, .deadline_ns = deadline_ns};
    struct hr_slot_pids slots;
    int code = hr_own_mapping(region, &search.file, &search.with_self);
    if (code != HR_OK)
        return code;
    search.with_self =
        search.with_self || hr_is_used_by_process(region, own == HR_WITHOUT_OWN_HANDLE);
    hr_read_link(search.proc, "self", search.self, sizeof search.self);
    out->initial = shows_all_namespaces(search.proc);
    if (!out->initial) {
        /* A later namespace is proved by those processes with slots that live in it. */
        code = hr_read_slot_pids(region, &slots);
        search.slots = &slots;
    }
    if (code == HR_OK)
        code = search_processes(&search, directory, out);
    if (code != HR_OK)
        return code;
    bool everybody = out->initial || is_namespace_of_slots(region, &slots, out);
    out->complete = everybody && !out->incomplete && sees_first_process(search.proc);
    return HR_OK;
}

int hr_find_mappers(hr_region *region, const char *proc, enum hr_own_handle own,
                    const struct hr_slot_pids *only, uint64_t deadline_ns, struct hr_mappers *out)
{
    memset(out, 0, sizeof *out);
    out->filtered = only != NULL;
    DIR *directory = opendir(proc == NULL ? "/proc" : proc);
    if (directory == NULL)
        return hr_fail_errno(HR_ESYSTEM, errno);
    int code = search_directory(directory, region, own, only, deadline_ns, out);
    closedir(directory);
    if (code != HR_OK)
        hr_free_mappers(out);
    return code;
}

int hr_look_for_mappers(hr_region *region, const char *proc, struct hr_mappers *out)
{
    int code = hr_enter(region);
    if (code != HR_OK)
        return code;
    code =
        hr_find_mappers(region, proc, HR_WITH_OWN_HANDLE, NULL, hr_deadline_ns(HR_SEARCH_NS), out);
    hr_leave(region);
    return code;
}

void hr_free_mappers(struct hr_mappers *mappers)
{
    free(mappers->list);
    free(mappers->unsure);
    memset(mappers, 0, sizeof *mappers);
}

/* ---- Who lives ------------------------------------------------------------------- */

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
    for (uint32_t i = 0; i < mappers->unsure_count; i++) {
        if (has_pid(&mappers->unsure[i], pid)) {
            *here = mappers->unsure[i].pids[0];
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
    if (has_innermost(mappers->unsure, mappers->unsure_count, pid))
        return HR_LIFE_UNKNOWN;
    return mappers->complete ? HR_DEAD : HR_LIFE_UNKNOWN;
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
    FILE *mounts = fopen("/proc/self/mountinfo", "re");
    char *line = NULL;
    size_t room = 0;
    /* What cannot be told is taken for possible. */
    bool found = mounts == NULL;
    while (!found && getline(&line, &room, mounts) > 0)
        found = is_upper_file(line, path);
    free(line);
    if (mounts != NULL)
        fclose(mounts);
    return found;
}

bool hr_may_have_two_inodes(int fd)
{
    struct statfs status;
    char link[40], path[PATH_MAX];
    if (fstatfs(fd, &status) != 0 || status.f_type == OVERLAYFS_SUPER_MAGIC)
        return true;
    /* The descriptor's link: to resolve the name would walk where a container may mount. */
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    hr_read_link(AT_FDCWD, link, path, sizeof path);
    return path[0] != '/' || is_in_upper_directory(path);
}
