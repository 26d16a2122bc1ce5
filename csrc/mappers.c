#define _GNU_SOURCE
#include "mappers.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "identify.h"
#include "process_list.h"

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

/*
 * Whether this /proc is that of the namespace whose pids stand in the slots.  Pids are small
 * numbers, and a program of another container that has the region open for writing, such as this
 * library in a sidecar, may well have that of a slot.  So it has to be a process of libvgpu too, or
 * this very one with its slot.
 */
static bool is_namespace_of_slots(const hr_region *region, const struct hr_slot_pids *slots,
                                  const struct hr_mappers *mappers)
{
    if (region->own.pid != 0 && hr_names_slot(slots, region->own.pid))
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
    hr_region *region;
    struct hr_process_list *list;
    enum hr_own_handle own;
    struct hr_mapped_file file;
    const struct hr_slot_pids *only; /* NULL: all processes */
    const struct hr_slot_pids *slots;
    bool keeps_maps; /* for other regions */
    uint64_t deadline_ns;
};

/* Whether the maps of the process have to be read.  If unsure, yes: reading them says what is in
 * the way. */
static bool may_matter(const struct search *search, const struct hr_listed_process *process)
{
    if (process->written != NULL && hr_is_not_written(process->written, &search->file))
        return false;
    return search->only == NULL || process->pids.levels == 0 ||
           matches(search->only, &process->pids) ||
           (search->slots != NULL && matches(search->slots, &process->pids));
}

/* Whether this process is one of the region's, by more than the handle that is searched with. */
static int is_own_process_of_region(const struct search *search, bool *is_one)
{
    struct hr_mapped_file file;
    int code = hr_own_mapping(search->region, &file, is_one);
    *is_one =
        *is_one || hr_is_used_by_process(search->region, search->own == HR_WITHOUT_OWN_HANDLE);
    return code;
}

static int look_at(const struct search *search, struct hr_listed_process *process,
                   struct hr_mappers *out)
{
    bool counts = true;
    int code = HR_OK;
    if (strcmp(process->name, search->list->self) == 0)
        code = is_own_process_of_region(search, &counts);
    if (code != HR_OK || !counts)
        return code;
    /* Without memory for it, the maps are read again for the next region. */
    if (search->keeps_maps && process->written == NULL)
        process->written = calloc(1, sizeof *process->written);
    return hr_look_at_process(dirfd(search->list->directory), process->name, &search->file,
                              search->deadline_ns, out, process->written);
}

static int search_list(struct search *search, struct hr_mappers *out)
{
    struct hr_process_list *list = search->list;
    struct hr_slot_pids slots;
    out->filtered = search->only != NULL;
    out->initial = list->initial;
    int code = hr_own_mapping(search->region, &search->file, NULL);
    if (code == HR_OK && !list->initial) {
        /* A later namespace is proved by those processes with slots that live in it. */
        code = hr_read_slot_pids(search->region, &slots);
        search->slots = &slots;
    }
    bool late = list->cut_short;
    for (uint32_t i = 0; code == HR_OK && !late && i < list->count; i++) {
        if (!may_matter(search, &list->processes[i]))
            continue;
        code = look_at(search, &list->processes[i], out);
        late = hr_clock_ns(CLOCK_MONOTONIC) >= search->deadline_ns;
    }
    if (code != HR_OK) {
        hr_free_mappers(out);
        return code;
    }
    out->incomplete = out->incomplete || late;
    bool everybody = list->initial || is_namespace_of_slots(search->region, &slots, out);
    out->complete = everybody && !out->incomplete && list->sees_first_process;
    return HR_OK;
}

int hr_find_mappers(hr_region *region, const char *proc, enum hr_own_handle own,
                    const struct hr_slot_pids *only, uint64_t deadline_ns, struct hr_mappers *out)
{
    memset(out, 0, sizeof *out);
    struct search search = {.region = region, .own = own, .only = only, .deadline_ns = deadline_ns};
    int code = hr_make_process_list(proc, only != NULL, deadline_ns, &search.list);
    if (code != HR_OK)
        return code;
    code = search_list(&search, out);
    hr_free_process_list(search.list);
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

enum hr_liveness hr_liveness_of_owner(const struct hr_mappers *mappers, int32_t pid, int32_t *here)
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
            return HR_LIVENESS_UNKNOWN;
        }
    }
    return mappers->complete ? HR_DEAD : HR_LIVENESS_UNKNOWN;
}

static bool has_innermost(const struct hr_mapper *list, uint32_t count, int32_t pid)
{
    for (uint32_t i = 0; i < count; i++) {
        if (list[i].pids[list[i].levels - 1] == pid)
            return true;
    }
    return false;
}

enum hr_liveness hr_liveness_of_slot(const struct hr_mappers *mappers, int32_t pid)
{
    if (has_innermost(mappers->list, mappers->count, pid))
        return HR_ALIVE;
    if (has_innermost(mappers->unsure, mappers->unsure_count, pid))
        return HR_LIVENESS_UNKNOWN;
    return mappers->complete ? HR_DEAD : HR_LIVENESS_UNKNOWN;
}

static int judge_slots(hr_region *region, struct hr_process_list *list,
                       const struct hr_slot_pids *asked, uint64_t deadline_ns, uint32_t *lives)
{
    struct search search = {.region = region,
                            .list = list,
                            .own = HR_WITH_OWN_HANDLE,
                            .only = asked,
                            .keeps_maps = true,
                            .deadline_ns = deadline_ns};
    struct hr_mappers mappers = {.list = NULL};
    int code = search_list(&search, &mappers);
    if (code != HR_OK)
        return code;
    /* No process has pid 0. */
    for (int32_t i = 0; i < asked->count; i++)
        lives[i] = asked->pids[i] == 0 ? HR_DEAD : hr_liveness_of_slot(&mappers, asked->pids[i]);
    hr_free_mappers(&mappers);
    return HR_OK;
}

int hr_judge_slots(hr_region *region, struct hr_process_list *list, const int32_t *pids,
                   uint32_t count, uint64_t timeout_ns, uint32_t *lives)
{
    if (count > HR_SLOTS)
        return hr_fail_code(HR_EINVAL);
    struct hr_slot_pids asked = {.count = (int32_t)count};
    memcpy(asked.pids, pids, count * sizeof *pids);
    int code = hr_enter(region);
    if (code != HR_OK)
        return code;
    code = judge_slots(region, list, &asked, hr_deadline_ns(timeout_ns), lives);
    hr_leave(region);
    return code;
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

bool hr_may_have_two_inodes(const hr_region *region)
{
    int fd;
    struct stat status;
    struct statfs system;
    char link[40], path[PATH_MAX];
    if (hr_open_file(region->path, 0, &fd, &status) != HR_OK)
        return true;
    bool may = fstatfs(fd, &system) != 0 || system.f_type == OVERLAYFS_SUPER_MAGIC;
    /* The descriptor's link: to resolve the name would walk where a container may mount. */
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    hr_read_link(AT_FDCWD, link, path, sizeof path);
    close(fd);
    return may || path[0] != '/' || is_in_upper_directory(path);
}
