/*
 * The processes that a /proc shows, with their pids: read once, and then searched for many regions.
 *
 * A pid in a region is older than the search for its process.  So whoever has it stands in a list
 * that was made later, or is dead: a list is good for each region whose slots were read before it.
 */
#ifndef HR_PROCESS_LIST_H
#define HR_PROCESS_LIST_H

#include <dirent.h>

#include "process_files.h"
#include "slots.h"

struct hr_listed_process {
    char name[12];                    /* of its directory */
    struct hr_mapper pids;            /* 0 levels: not known */
    struct hr_written_files *written; /* NULL: its maps have not been read for others */
};

struct hr_process_list {
    DIR *directory; /* of the /proc that was read: its names mean other processes elsewhere */
    char self[24];  /* this process's name there; empty where that /proc does not have it */
    bool initial;   /* the /proc of the first pid namespace, which has everybody */
    bool sees_first_process; /* else the others' directories are hidden (hidepid) */
    bool cut_short;          /* the deadline passed */
    struct hr_listed_process *processes;
    uint32_t count;
};

/* Without pids only the names are listed, and status is not read.  HR_OK or HR_ESYSTEM. */
int hr_make_process_list(const char *proc, bool with_pids, uint64_t deadline_ns,
                         struct hr_process_list **out);

#endif
