#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proc.h"

const char *hr_initial_pid_namespace(void)
{
#ifdef HR_TEST_BUILD
    const char *of_tests = getenv("HAMIREGION_INITIAL_PID_NAMESPACE");
    if (of_tests != NULL)
        return of_tests;
#endif
    return "pid:[4026531836]";
}

/* ---- One process ------------------------------------------------------------------- */

/* What is asked of one process's maps. */
struct question {
    struct hr_asked_file *files;
    uint32_t count, found;
    int process;
    uint64_t deadline_ns;
};

/*
 * Whether a mapping that shows the inode number on another device is of another file for certain:
 * an overlay has its file's pages in the upper directory's file system, these have not.  Else a
 * neighbour could forge the number.  A device number is one file system's, and the kernel writes
 * mountinfo.
 */
static bool is_another_file(const struct question *question, const struct hr_asked_file *asked,
                            const struct hr_file_id *file)
{
    /* A process can have thousands of such mappings, and of mounts to read for each. */
    return asked->has_own_pages && !hr_is_past(question->deadline_ns) &&
           hr_is_device_with_own_pages(question->process, file);
}

/*
 * Only what is mapped for writing counts.  A process that maps a file for reading only is an
 * exporter somewhere: no process of the region, and no holder of its lock.
 */
static bool match_mapping(void *argument, const struct hr_mapping *mapping)
{
    struct question *question = argument;
    for (uint32_t i = 0; mapping->writable && i < question->count; i++) {
        struct hr_asked_file *asked = &question->files[i];
        if (mapping->file.inode != asked->file.inode || asked->seen == HR_MAPS)
            continue;
        if (hr_is_same_file(&mapping->file, &asked->file)) {
            asked->seen = HR_MAPS;
            question->found++;
        } else if (asked->unsure_bytes < asked->bytes &&
                   !is_another_file(question, asked, &mapping->file)) {
            asked->unsure_bytes += mapping->end - mapping->start;
        }
    }
    return question->found < question->count;
}

static enum hr_seen read_asked(int proc, const char *name, struct question *question,
                               bool *has_libvgpu)
{
    struct hr_maps_reader reader = {
        .take = match_mapping, .argument = question, .deadline_ns = question->deadline_ns};
    question->process = hr_open_process(proc, name);
    if (question->process < 0) /* what is no directory is no process */
        return errno == ENOTDIR || errno == ELOOP ? HR_GONE : hr_after_failure(errno);
    enum hr_seen seen = hr_read_process_maps(question->process, &reader);
    close(question->process);
    *has_libvgpu = reader.has_libvgpu;
    return seen;
}

static void ask(int proc, const char *name, struct hr_asked_file *files, uint32_t count,
                uint64_t deadline_ns, struct hr_mapper *out)
{
    struct question question = {.files = files, .count = count, .deadline_ns = deadline_ns};
    for (uint32_t i = 0; i < count; i++) {
        files[i].seen = HR_MAPS_NOT;
        files[i].unsure_bytes = 0;
    }
    enum hr_seen seen = read_asked(proc, name, &question, &out->has_libvgpu);
    for (uint32_t i = 0; i < count; i++) {
        if (files[i].seen == HR_MAPS)
            continue;
        files[i].seen = seen;
        if (seen == HR_MAPS)
            files[i].seen = files[i].unsure_bytes >= files[i].bytes ? HR_MAPS_UNSURE : HR_MAPS_NOT;
    }
    out->is_cut = seen != HR_MAPS;
    out->is_too_long = seen == HR_TOO_LONG;
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

/* If unsure, yes: reading its maps says what is in the way. */
static bool may_matter(const struct hr_search *search, const struct hr_mapper *mapper,
                       bool is_initial)
{
    return search->only == NULL || mapper->levels == 0 || has_any_pid(mapper, search->only) ||
           (!is_initial && has_any_pid(mapper, &search->slots));
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

/* The text of a link, cut to `room`; empty where it cannot be read. */
static void read_link(int directory, const char *name, char *out, size_t room)
{
    ssize_t length = readlinkat(directory, name, out, room - 1);
    out[length < 0 ? 0 : length] = '\0';
}

static bool is_self(int proc, const char *name)
{
    char self[24];
    read_link(proc, "self", self, sizeof self);
    return strcmp(name, self) == 0;
}

void hr_ask_process(int proc, uint32_t pid, struct hr_asked_file *files, uint32_t count,
                    uint64_t timeout_ns, struct hr_answer *out)
{
    struct hr_mapper mapper;
    char name[16], status[32];
    snprintf(name, sizeof name, "%" PRIu32, pid);
    snprintf(status, sizeof status, "%s/status", name);
    const int64_t started = hr_read_start_time(proc, pid);
    hr_read_pids(proc, status, &mapper);
    ask(proc, name, files, count, hr_deadline_ns(timeout_ns), &mapper);
    *out = (struct hr_answer){.start_time_ticks = started,
                              .levels = mapper.levels,
                              .has_libvgpu = mapper.has_libvgpu,
                              .is_cut = mapper.is_cut,
                              .is_too_long = mapper.is_too_long,
                              .is_self = is_self(proc, name)};
    memcpy(out->pids, mapper.pids, sizeof out->pids);
}

int hr_add_answer(struct hr_mappers *out, struct hr_mapper *mapper, enum hr_seen seen)
{
    if (seen == HR_MAPS_NOT || seen == HR_MAPS_NOTHING || seen == HR_GONE)
        return HR_OK;
    if (mapper->levels == 0) {
        out->incomplete = true;
        return HR_OK;
    }
    /* The init of the host itself is no process of a container, also where it may not be read. */
    if (seen == HR_REFUSED && out->initial && mapper->levels == 1 && mapper->pids[0] == 1)
        return HR_OK;
    mapper->is_unsure = seen != HR_MAPS;
    out->cut_short = out->cut_short || seen == HR_NO_TIME;
    /* Whether it has libvgpu may be unknown, too. */
    out->has_unsure = out->has_unsure || mapper->is_unsure || mapper->is_cut;
    return add_mapper(out, mapper);
}

static int search_process(const struct hr_search *search, int proc, const char *name,
                          struct hr_mappers *out)
{
    struct hr_mapper mapper;
    char status[32];
    snprintf(status, sizeof status, "%.10s/status", name);
    if (hr_read_pids(proc, status, &mapper) == HR_GONE ||
        !may_matter(search, &mapper, out->initial))
        return HR_OK;
    struct hr_asked_file file = search->file;
    ask(proc, name, &file, 1, search->deadline_ns, &mapper);
    return hr_add_answer(out, &mapper, file.seen);
}

/*
 * The first namespace sees every process; a later one only itself and what it made.  We see it if
 * we are in it: only its own /proc has a `self` for us then.  Or if its /proc is mounted here,
 * where we may need a privilege to read the link of process 1.
 */
static bool is_initial(int proc, const char *namespace_link)
{
    char link[64];
    read_link(proc, namespace_link, link, sizeof link);
    return strcmp(link, hr_initial_pid_namespace()) == 0;
}

/*
 * Whether this /proc is that of the namespace whose pids stand in the slots.  Pids are small
 * numbers, and a program of another container that has the region open for writing, such as this
 * library in a sidecar, may well have that of a slot.  So it has to be a process of libvgpu too.
 */
static bool is_namespace_of_slots(const struct hr_search *search, const struct hr_mappers *mappers)
{
    for (uint32_t i = 0; i < mappers->count; i++) {
        const struct hr_mapper *mapper = &mappers->list[i];
        if (mapper->levels == 1 && mapper->has_libvgpu &&
            hr_names_slot(&search->slots, mapper->pids[0]))
            return true;
    }
    return search->is_namespace_of_slots;
}

int hr_search_proc(const struct hr_search *search, struct hr_mappers *out)
{
    char self[24];
    struct hr_mapper first;
    struct dirent *entry;
    int code = HR_OK;
    *out = (struct hr_mappers){.filtered = search->only != NULL};
    DIR *directory = opendir(search->proc == NULL ? "/proc" : search->proc);
    if (directory == NULL)
        return hr_fail_errno(HR_ESYSTEM, errno);
    const int proc = dirfd(directory);
    read_link(proc, "self", self, sizeof self);
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
    closedir(directory);
    out->incomplete = out->incomplete || out->cut_short;
    out->complete =
        (out->initial || is_namespace_of_slots(search, out)) && !out->incomplete && sees_first;
    if (code != HR_OK)
        hr_free_mappers(out);
    return code;
}

void hr_free_mappers(struct hr_mappers *mappers)
{
    free(mappers->list);
    *mappers = (struct hr_mappers){.list = NULL};
}

enum hr_liveness hr_liveness_of(const struct hr_mappers *mappers, int32_t pid, bool any_level,
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

enum hr_liveness hr_liveness_of_slot(const struct hr_mappers *mappers, int32_t pid)
{
    int32_t here;
    return hr_liveness_of(mappers, pid, false, &here);
}

enum hr_slot_outcome hr_why_unknown(const struct hr_mappers *mappers, int32_t pid, int32_t *process)
{
    for (uint32_t i = 0; i < mappers->count; i++) {
        const struct hr_mapper *mapper = &mappers->list[i];
        *process = mapper->pids[0];
        if (mapper->is_too_long && (pid == 0 || has_pid(mapper, pid, false)))
            return HR_SLOT_TOO_LONG;
    }
    *process = 0;
    return mappers->cut_short ? HR_SLOT_CUT_SHORT : HR_SLOT_UNKNOWN;
}
