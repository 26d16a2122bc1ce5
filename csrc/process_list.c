#define _GNU_SOURCE
#include "process_list.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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

static int append(struct hr_process_list *list, const struct hr_listed_process *process)
{
    if ((list->count & (list->count - 1)) == 0) { /* full at each power of two */
        size_t room = list->count == 0 ? 1 : (size_t)list->count * 2;
        struct hr_listed_process *longer = realloc(list->processes, room * sizeof *longer);
        if (longer == NULL)
            return hr_fail_errno(HR_ESYSTEM, ENOMEM);
        list->processes = longer;
    }
    list->processes[list->count++] = *process;
    return HR_OK;
}

static int list_process(struct hr_process_list *list, const char *name, bool with_pids)
{
    struct hr_listed_process process = {.written = NULL};
    char status[sizeof process.name + 8];
    if (name[0] < '0' || name[0] > '9' || strlen(name) >= sizeof process.name)
        return HR_OK;
    strcpy(process.name, name);
    snprintf(status, sizeof status, "%s/status", process.name);
    if (with_pids && hr_read_status(dirfd(list->directory), status, &process.pids) == HR_GONE)
        return HR_OK;
    return append(list, &process);
}

static int read_directory(struct hr_process_list *list, bool with_pids, uint64_t deadline_ns)
{
    int proc = dirfd(list->directory);
    hr_read_link(proc, "self", list->self, sizeof list->self);
    list->initial = shows_all_namespaces(proc);
    list->sees_first_process = sees_first_process(proc);
    int code = HR_OK;
    struct dirent *entry;
    while (code == HR_OK && (errno = 0, entry = readdir(list->directory)) != NULL) {
        if (hr_clock_ns(CLOCK_MONOTONIC) >= deadline_ns) {
            list->cut_short = true;
            return HR_OK;
        }
        code = list_process(list, entry->d_name, with_pids);
    }
    return code == HR_OK && errno != 0 ? hr_fail_errno(HR_ESYSTEM, errno) : code;
}

int hr_make_process_list(const char *proc, bool with_pids, uint64_t deadline_ns,
                         struct hr_process_list **out)
{
    *out = NULL;
    struct hr_process_list *list = calloc(1, sizeof *list);
    if (list == NULL)
        return hr_fail_errno(HR_ESYSTEM, ENOMEM);
    list->directory = opendir(proc == NULL ? "/proc" : proc);
    int code = list->directory == NULL ? hr_fail_errno(HR_ESYSTEM, errno)
                                       : read_directory(list, with_pids, deadline_ns);
    if (code == HR_OK)
        *out = list;
    else
        hr_free_process_list(list);
    return code;
}

int hr_list_processes(const char *proc, uint64_t timeout_ns, struct hr_process_list **out)
{
    return hr_make_process_list(proc, true, hr_deadline_ns(timeout_ns), out);
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
