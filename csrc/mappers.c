#define _GNU_SOURCE
#include "mappers.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "process_files.h"

/*
 * Pids are small numbers, and a program of another container that has the region open for
 * writing, such as this library in a sidecar, may well have that of a slot.  So outside the first
 * namespace it has to be a process of libvgpu too, or this very one with its slot.
 */
void hr_judge_slot(struct hr_namespace_view *view, int32_t pid)
{
    /* Also where this process is left out of the list. */
    if (pid == view->region->attached_pid)
        view->own = true;
    for (uint32_t i = 0; i < view->mappers->count; i++) {
        const struct hr_mapper *mapper = &view->mappers->list[i];
        if (mapper->pids[mapper->levels - 1] != pid)
            continue;
        if (mapper->levels > 1)
            view->inner = true;
        else if (view->mappers->initial || mapper->has_libvgpu)
            view->own = true;
    }
}

bool hr_names_slot(const struct hr_slot_pids *slots, int32_t pid)
{
    for (int32_t i = 0; i < slots->count; i++) {
        if (slots->pids[i] == pid)
            return true;
    }
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
    return hr_guard_run(region->base, region->mapped_bytes, copy_slot_pids, &call);
}

void hr_judge_slots(struct hr_namespace_view *view, const struct hr_slot_pids *slots)
{
    for (int32_t i = 0; i < slots->count; i++)
        hr_judge_slot(view, slots->pids[i]);
}

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
bool hr_sees_everybody(int proc)
{
    return is_initial(proc, "self/ns/pid") || is_initial(proc, "1/ns/pid");
}

/* With hidepid the others' directories are not listed, or not readable: then process 1's is
 * neither. */
static bool sees_first_process(int proc)
{
    struct hr_mapper mapper;
    int process = openat(proc, "1", O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (process < 0)
        return false;
    enum hr_seen seen = hr_read_status(process, &mapper);
    close(process);
    return seen == HR_MAPS;
}

/* In doubt it may: then the look at its maps says what is in the way. */
static bool may_have_slot(int proc, const char *name, const struct hr_slot_pids *slots)
{
    struct hr_mapper mapper;
    int process = openat(proc, name, O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (process < 0)
        return true;
    enum hr_seen seen = hr_read_status(process, &mapper);
    close(process);
    return seen != HR_MAPS || hr_names_slot(slots, mapper.pids[mapper.levels - 1]);
}

static int scan(DIR *directory, hr_region *region, const struct hr_identity *identity,
                enum hr_own_handle own, const struct hr_slot_pids *only, uint64_t deadline_ns,
                struct hr_mappers *out)
{
    int at = dirfd(directory);
    char self[24];
    hr_read_link(at, "self", self, sizeof self);
    bool with_self = hr_is_used_by_process(region, own == HR_WITHOUT_OWN_HANDLE);
    out->initial = hr_sees_everybody(at);
    int code = HR_OK;
    struct dirent *entry;
    while (code == HR_OK && (errno = 0, entry = readdir(directory)) != NULL) {
        bool is_process = entry->d_name[0] >= '0' && entry->d_name[0] <= '9';
        if (is_process && (with_self || strcmp(entry->d_name, self) != 0) &&
            (only == NULL || may_have_slot(at, entry->d_name, only)))
            code = hr_look_at_process(at, entry->d_name, identity, deadline_ns, out);
    }
    if (code == HR_OK && errno != 0)
        code = hr_fail_errno(HR_ESYSTEM, errno);
    if (code != HR_OK)
        return code;
    struct hr_namespace_view view = {.region = region, .mappers = out};
    struct hr_slot_pids slots;
    if (!out->initial) {
        code = hr_read_slot_pids(region, &slots);
        hr_judge_slots(&view, &slots);
    }
    out->complete = (out->initial || view.own) && !out->blind && sees_first_process(at);
    return code;
}

int hr_find_mappers(hr_region *region, const char *proc, enum hr_own_handle own,
                    const struct hr_slot_pids *only, uint64_t deadline_ns, struct hr_mappers *out)
{
    memset(out, 0, sizeof *out);
    struct hr_identity identity;
    int code = hr_own_identity(region, &identity);
    if (code != HR_OK)
        return code;
    DIR *directory = opendir(proc == NULL ? "/proc" : proc);
    if (directory == NULL)
        return hr_fail_errno(HR_ESYSTEM, errno);
    code = scan(directory, region, &identity, own, only, deadline_ns, out);
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

int hr_look_for_mappers(hr_region *region, const char *proc, struct hr_mappers *out)
{
    int code = hr_enter(region);
    if (code != HR_OK)
        return code;
    code = hr_find_mappers(region, proc, HR_WITH_OWN_HANDLE, NULL, HR_NO_DEADLINE, out);
    hr_leave(region);
    return code;
}
