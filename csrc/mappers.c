#define _GNU_SOURCE
#include "mappers.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "process_stats.h"

/* The inode number that the kernel gives to the first pid namespace, always. */
#define INITIAL_PID_NAMESPACE "pid:[4026531836]"

/* ---- The pids that matter -------------------------------------------------------- */

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

static bool matches(const struct hr_slot_pids *pids, const struct hr_mapper *mapper)
{
    for (int32_t i = 0; i < pids->count; i++) {
        if (has_pid(mapper, pids->pids[i], pids->any_level))
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
    out->any_level = false;
    return hr_run_entered(region, copy_slot_pids, &call);
}

/* ---- The processes of a /proc ---------------------------------------------------- */

struct listed_process {
    char name[12]; /* of its directory: its pid there */
    uint32_t pid;
    struct hr_mapper pids;
    uint64_t start_time_ticks;        /* 0: not read, or not known */
    struct hr_written_files *written; /* NULL: its maps have not been read for others */
};

/*
 * Read once, and then searched for many regions.  A pid in a region is older than the search for
 * its process: the process stands in a list that was made later, or is dead.  So a list is good for
 * each region whose slots were read before it.
 */
struct hr_process_list {
    DIR *directory; /* of the /proc that was read: its names mean other processes elsewhere */
    char self[24];  /* this process's name there; empty where that /proc does not have it */
    bool initial;   /* the /proc of the first pid namespace, which has everybody */
    bool sees_first_process; /* else the others' directories are hidden (hidepid) */
    bool cut_short;          /* the budget was spent */
    struct listed_process *processes;
    uint32_t count;
};

/*
 * The first namespace sees everybody; a later one only itself and what it made.  We
 * see it if we are in it: only its own /proc has a `self` for us then.  Or if its
 * /proc is mounted here, where we may need a privilege to look at process 1.
 */
static bool is_initial(int proc, const char *namespace_link)
{
    char link[64];
    hr_read_link(proc, namespace_link, link, sizeof link);
    return strcmp(link, INITIAL_PID_NAMESPACE) == 0;
}

static int list_process(struct hr_process_list *list, const char *name)
{
    struct listed_process process = {.written = NULL};
    char status[sizeof process.name + 8];
    if (name[0] < '0' || name[0] > '9' || strlen(name) >= sizeof process.name)
        return HR_OK;
    strcpy(process.name, name);
    process.pid = (uint32_t)strtoul(name, NULL, 10);
    snprintf(status, sizeof status, "%s/status", process.name);
    if (hr_read_pids(dirfd(list->directory), status, &process.pids) == HR_GONE)
        return HR_OK;
    struct listed_process *longer = hr_grow(list->processes, list->count, sizeof *longer);
    if (longer == NULL)
        return hr_fail_errno(HR_ESYSTEM, ENOMEM);
    list->processes = longer;
    list->processes[list->count++] = process;
    return HR_OK;
}

static int read_directory(struct hr_process_list *list, const struct hr_budget *budget)
{
    int proc = dirfd(list->directory);
    struct hr_mapper first;
    hr_read_link(proc, "self", list->self, sizeof list->self);
    list->initial = is_initial(proc, "self/ns/pid") || is_initial(proc, "1/ns/pid");
    /* With hidepid the others' directories are not listed, or not readable: then process 1's is
     * neither. */
    list->sees_first_process = hr_read_pids(proc, "1/status", &first) == HR_MAPS;
    int code = HR_OK;
    struct dirent *entry;
    while (code == HR_OK && (errno = 0, entry = readdir(list->directory)) != NULL) {
        if (hr_is_spent(budget)) {
            list->cut_short = true;
            return HR_OK;
        }
        code = list_process(list, entry->d_name);
    }
    return code == HR_OK && errno != 0 ? hr_fail_errno(HR_ESYSTEM, errno) : code;
}

static int make_process_list(const char *proc, const struct hr_budget *budget,
                             struct hr_process_list **out)
{
    *out = NULL;
    struct hr_process_list *list = calloc(1, sizeof *list);
    if (list == NULL)
        return hr_fail_errno(HR_ESYSTEM, ENOMEM);
    list->directory = opendir(proc == NULL ? "/proc" : proc);
    int code =
        list->directory == NULL ? hr_fail_errno(HR_ESYSTEM, errno) : read_directory(list, budget);
    if (code == HR_OK)
        *out = list;
    else
        hr_free_process_list(list);
    return code;
}

int hr_list_processes(const char *proc, uint64_t cpu_ns, struct hr_process_list **out)
{
    const struct hr_budget budget = hr_budget_of_cpu(cpu_ns);
    return make_process_list(proc, &budget, out);
}

void hr_free_process_list(struct hr_process_list *list)
{
    if (list == NULL)
        return;
    for (uint32_t i = 0; i < list->count; i++)
        free(list->processes[i].written);
    free(list->processes);
    if (list->directory != NULL)
        closedir(list->directory);
    free(list);
}

/* ---- Searching ------------------------------------------------------------------- */

struct search {
    hr_region *region;
    struct hr_process_list *list;
    enum hr_own_handle own;
    struct hr_mapped_file file;
    const struct hr_slot_pids *only;  /* NULL: all processes */
    const struct hr_slot_pids *slots; /* those of the region, where they matter */
    struct hr_slot_pids pids_of_slots;
    const struct hr_strangers *strangers; /* NULL: nobody is left out */
    bool keeps_maps;                      /* for other regions */
    struct hr_round *round;               /* NULL: everybody is looked at */
    const struct hr_slot_pids *names;     /* with a round: looked at in each of its calls */
    const struct hr_budget *budget;
};

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

static int compare_strangers(const void *one, const void *other)
{
    const struct hr_stranger *a = one, *b = other;
    return (a->pid > b->pid) - (a->pid < b->pid);
}

/* It must be the very process: its pid can be another's by now. */
static bool is_stranger(const struct search *search, struct listed_process *process)
{
    const struct hr_strangers *strangers = search->strangers;
    const struct hr_stranger wanted = {.pid = process->pid};
    const struct hr_stranger *found =
        strangers == NULL || strangers->count == 0
            ? NULL
            : bsearch(&wanted, strangers->list, strangers->count, sizeof wanted, compare_strangers);
    if (found == NULL)
        return false;
    /* Once for all regions: whoever has the pid later is not the one that was listed. */
    if (process->start_time_ticks == 0)
        process->start_time_ticks =
            hr_read_start_time(dirfd(search->list->directory), process->pid);
    return process->start_time_ticks != 0 && process->start_time_ticks == found->start_time_ticks;
}

/* Whether the maps of the process have to be read.  If unsure, yes: reading them says what is in
 * the way. */
static bool may_matter(const struct search *search, struct listed_process *process)
{
    if (process->written != NULL && hr_is_not_written(process->written, &search->file))
        return false;
    const bool matters = search->only == NULL || process->pids.levels == 0 ||
                         matches(search->only, &process->pids) ||
                         (search->slots != NULL && matches(search->slots, &process->pids));
    return matters && !is_stranger(search, process);
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

static int look_at(const struct search *search, struct listed_process *process,
                   struct hr_mappers *out)
{
    bool counts = true;
    int code = HR_OK;
    if (strcmp(process->name, search->list->self) == 0)
        code = is_own_process_of_region(search, &counts);
    if (code != HR_OK || !counts)
        return code;
    struct hr_written_files unkept;
    /* Without memory for it, the maps are read again for the next region. */
    if (search->keeps_maps && process->written == NULL)
        process->written = calloc(1, sizeof *process->written);
    struct hr_mapper mapper = process->pids;
    int proc = dirfd(search->list->directory);
    uint64_t start = search->round == NULL ? 0 : hr_read_start_time(proc, process->pid);
    enum hr_seen seen = hr_look_at_process(proc, process->name, &search->file, search->budget,
                                           process->written != NULL ? process->written : &unkept,
                                           &mapper.has_libvgpu);
    if (search->round != NULL)
        hr_note_seen(search->round, process->pid, start, seen);
    if (seen == HR_MAPS_NOT || seen == HR_MAPS_NOTHING || seen == HR_GONE)
        return HR_OK;
    if (mapper.levels == 0) {
        out->incomplete = true;
        return HR_OK;
    }
    /* The init of the host itself is no process of a container, also where it may not be
     * looked at. */
    if (seen == HR_REFUSED && out->initial && mapper.levels == 1 && mapper.pids[0] == 1)
        return HR_OK;
    mapper.is_unsure = seen != HR_MAPS;
    out->cut_short = out->cut_short || seen == HR_NO_TIME;
    out->has_unsure = out->has_unsure || mapper.is_unsure;
    out->has_other_inode = out->has_other_inode || seen == HR_MAPS_UNSURE;
    struct hr_mapper *longer = hr_grow(out->list, out->count, sizeof *longer);
    if (longer == NULL)
        return hr_fail_errno(HR_ESYSTEM, ENOMEM);
    out->list = longer;
    out->list[out->count++] = mapper;
    return HR_OK;
}

/* With a round: who has a name in a slot is looked at in each call, so that a slot with a name does
 * not wait for those without; and last are those whose maps took all of an earlier budget. */
enum turn { NAMED, OTHERS, EXPENSIVE };

static bool has_turn(const struct search *search, const struct listed_process *process,
                     enum turn turn)
{
    const struct hr_round *round = search->round;
    if (round == NULL)
        return true;
    if (hr_comes_last(round, process->pid) != (turn == EXPENSIVE))
        return false;
    bool is_named = matches(search->names, &process->pids) ||
                    (search->slots != NULL && matches(search->slots, &process->pids));
    if (is_named || turn == NAMED)
        return is_named && turn != OTHERS;
    return !hr_is_ruled_out(round, dirfd(search->list->directory), process->pid);
}

static int look_at_all(struct search *search, enum turn turn, struct hr_mappers *out)
{
    const struct hr_process_list *list = search->list;
    int code = HR_OK;
    for (uint32_t i = 0; code == HR_OK && !out->cut_short && i < list->count; i++) {
        struct listed_process *process = &list->processes[i];
        if (!may_matter(search, process) || !has_turn(search, process, turn))
            continue;
        /* Before it: the last one may take all that is left. */
        out->cut_short = hr_is_spent(search->budget);
        if (!out->cut_short)
            code = look_at(search, process, out);
    }
    return code;
}

static int search_list(struct search *search, struct hr_mappers *out)
{
    struct hr_process_list *list = search->list;
    *out = (struct hr_mappers){.filtered = search->only != NULL, .initial = list->initial};
    int code = hr_own_mapping(search->region, &search->file, NULL);
    if (code == HR_OK && !list->initial) {
        /* A later namespace is proved by those processes with slots that live in it. */
        code = hr_read_slot_pids(search->region, &search->pids_of_slots);
        search->slots = &search->pids_of_slots;
    }
    out->cut_short = list->cut_short;
    const enum turn last = search->round == NULL ? NAMED : EXPENSIVE;
    for (enum turn turn = NAMED; code == HR_OK && turn <= last; turn++)
        code = look_at_all(search, turn, out);
    if (code != HR_OK) {
        hr_free_mappers(out);
        return code;
    }
    out->incomplete = out->incomplete || out->cut_short;
    bool everybody = list->initial || is_namespace_of_slots(search->region, search->slots, out);
    out->complete = everybody && !out->incomplete && list->sees_first_process;
    return HR_OK;
}

static int search_proc(struct search *search, const char *proc, struct hr_mappers *out)
{
    int code = make_process_list(proc, search->budget, &search->list);
    if (code != HR_OK)
        return code;
    code = search_list(search, out);
    hr_free_process_list(search->list);
    return code;
}

int hr_find_mappers(hr_region *region, const char *proc, enum hr_own_handle own,
                    const struct hr_slot_pids *only, const struct hr_strangers *strangers,
                    const struct hr_budget *budget, struct hr_mappers *out)
{
    struct search search = {
        .region = region, .own = own, .only = only, .strangers = strangers, .budget = budget};
    return search_proc(&search, proc, out);
}

int hr_find_mappers_in_round(hr_region *region, const char *proc, const struct hr_slot_pids *names,
                             const struct hr_strangers *strangers, const struct hr_budget *budget,
                             struct hr_round *round, struct hr_mappers *out)
{
    struct search search = {
        .region = region, .round = round, .names = names, .strangers = strangers, .budget = budget};
    return search_proc(&search, proc, out);
}

int hr_look_for_mappers(hr_region *region, const char *proc, const struct hr_slot_pids *only,
                        struct hr_mappers *out)
{
    const struct hr_budget budget = hr_budget_of_cpu(HR_SEARCH_CPU_NS);
    int code = hr_enter(region);
    if (code != HR_OK)
        return code;
    code = hr_find_mappers(region, proc, HR_WITH_OWN_HANDLE, only, NULL, &budget, out);
    hr_leave(region);
    return code;
}

void hr_free_mappers(struct hr_mappers *mappers)
{
    free(mappers->list);
    *mappers = (struct hr_mappers){.list = NULL};
}

bool hr_may_have_two_inodes(hr_region *region)
{
    if (hr_lies_on_overlay(region))
        return true;
    const struct hr_budget budget = hr_budget_of_cpu(HR_SEARCH_CPU_NS);
    struct hr_mappers mappers;
    if (hr_find_mappers(region, NULL, HR_WITH_OWN_HANDLE, NULL, NULL, &budget, &mappers) != HR_OK)
        return true;
    const bool may = mappers.has_other_inode;
    hr_free_mappers(&mappers);
    return may;
}

/* ---- Liveness -------------------------------------------------------------------- */

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

int hr_search_slots(hr_region *region, struct hr_process_list *list,
                    const struct hr_strangers *strangers, const struct hr_slot_pids *asked,
                    const struct hr_budget *budget, uint32_t *lives)
{
    struct search search = {.region = region,
                            .list = list,
                            .only = asked,
                            .strangers = strangers,
                            .keeps_maps = true,
                            .budget = budget};
    struct hr_mappers mappers;
    int code = search_list(&search, &mappers);
    if (code != HR_OK)
        return code;
    /* No process has pid 0. */
    for (int32_t i = 0; i < asked->count; i++) {
        int32_t pid = asked->pids[i];
        lives[i] = pid == 0 ? HR_DEAD : hr_liveness_of_slot(&mappers, pid);
    }
    hr_free_mappers(&mappers);
    return HR_OK;
}
