#define _GNU_SOURCE
#include "namespaces.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "process_files.h"

/*
 * The question of hr_shares_namespace() is asked by each process that attaches.  Of
 * all processes only those matter whose pid stands in a slot, so that maps, which
 * are dear, are read of those alone.
 */
struct namespace_search {
    int proc;
    const struct hr_identity *identity;
    const struct hr_slot_pids *slots;
    struct hr_mappers found;
    bool with_self;
    char self[24];      /* this process's name there; empty where that /proc does not have it */
    char namespace[64]; /* of the processes that have one pid in that /proc; empty if unknown */
};

/* A process that is seen here under a pid of its slot, if it uses the region, has that name. */
static int look_for_own(struct namespace_search *search, struct hr_namespace_view *view)
{
    int code = HR_OK;
    for (int32_t i = 0; code == HR_OK && !view->own && i < search->slots->count; i++) {
        char name[16];
        int32_t pid = search->slots->pids[i];
        snprintf(name, sizeof name, "%" PRId32, pid);
        if (pid > 0 && (search->with_self || strcmp(name, search->self) != 0))
            code = hr_look_at_process(search->proc, name, search->identity, HR_NO_DEADLINE,
                                      &search->found);
        hr_judge_slot(view, pid);
    }
    return code;
}

/* Whether a process may have the pid of a slot in a namespace below this one. */
static bool may_be_inner(const struct namespace_search *search, const char *name)
{
    int process = openat(search->proc, name, O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (process < 0)
        return false;
    char namespace[64];
    struct hr_mapper mapper;
    hr_read_link(process, "ns/pid", namespace, sizeof namespace);
    bool known = namespace[0] != '\0' && strcmp(namespace, search->namespace) == 0;
    bool may = !known && hr_read_status(process, &mapper) == HR_MAPS && mapper.levels > 1 &&
               hr_names_slot(search->slots, mapper.pids[mapper.levels - 1]);
    close(process);
    return may;
}

static int look_for_inner(struct namespace_search *search, DIR *directory,
                          struct hr_namespace_view *view)
{
    int code = HR_OK;
    struct dirent *entry;
    while (code == HR_OK && !view->inner && (entry = readdir(directory)) != NULL) {
        const char *name = entry->d_name;
        if (name[0] < '0' || name[0] > '9' ||
            (!search->with_self && strcmp(name, search->self) == 0) || !may_be_inner(search, name))
            continue;
        code = hr_look_at_process(search->proc, name, search->identity, HR_NO_DEADLINE,
                                  &search->found);
        hr_judge_slots(view, search->slots);
    }
    return code;
}

/* The namespace of that /proc is known where this process is in it: then it has one pid there. */
static void name_namespace(struct namespace_search *search)
{
    struct hr_mapper mapper;
    int self = openat(search->proc, "self", O_PATH | O_DIRECTORY | O_CLOEXEC);
    search->namespace[0] = '\0';
    if (self < 0)
        return;
    if (hr_read_status(self, &mapper) == HR_MAPS && mapper.levels == 1)
        hr_read_link(self, "ns/pid", search->namespace, sizeof search->namespace);
    close(self);
}

static bool shares_namespace(hr_region *region, DIR *directory, const struct hr_slot_pids *slots)
{
    struct hr_identity identity;
    if (hr_own_identity(region, &identity) != HR_OK)
        return false;
    struct namespace_search search = {
        .proc = dirfd(directory),
        .identity = &identity,
        .slots = slots,
        .with_self = hr_is_used_by_process(region, false),
        .found = {.initial = hr_sees_everybody(dirfd(directory))},
    };
    struct hr_namespace_view view = {.region = region, .mappers = &search.found};
    hr_read_link(search.proc, "self", search.self, sizeof search.self);
    int code = look_for_own(&search, &view);
    if (code == HR_OK && view.own && !view.inner) {
        name_namespace(&search);
        code = look_for_inner(&search, directory, &view);
    }
    hr_free_mappers(&search.found);
    return code == HR_OK && view.own && !view.inner;
}

bool hr_shares_namespace(hr_region *region)
{
    struct hr_slot_pids slots;
    if (hr_read_slot_pids(region, &slots) != HR_OK || slots.count == 0)
        return false;
    DIR *directory = opendir("/proc");
    if (directory == NULL)
        return false;
    bool shares = shares_namespace(region, directory, &slots);
    closedir(directory);
    return shares;
}
