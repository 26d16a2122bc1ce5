/*
 * The mappings of a process, one after the other, from its maps file.  Internal to the core.
 *
 * A process decides how many it has, and how long their paths are: 65,530 lines of up to 4 KiB.
 * So they are read in pieces, and between two of them the caller's budget is looked at.  From
 * Linux 6.11 on the kernel is asked for the next mapping of a kind instead (PROCMAP_QUERY): it
 * passes over all others, and no path is made into text.
 */
#ifndef HR_MAPS_H
#define HR_MAPS_H

#include <stdio.h>

#include "handle.h"

/* How much a search may cost. */
struct hr_budget {
    uint64_t deadline_ns; /* on the monotonic clock */
    uint64_t cpu_end_ns;  /* on the clock of this thread's processor time; UINT64_MAX: any */
};

/* For a search that others wait for. */
struct hr_budget hr_budget_of_time(uint64_t ns);
/* For one that nobody waits for: on a busy machine it may take twenty times as long. */
struct hr_budget hr_budget_of_cpu(uint64_t ns);
bool hr_is_spent(const struct hr_budget *budget);

/* ---- Lines ------------------------------------------------------------------------ */

struct hr_lines {
    FILE *file; /* NULL: not open */
    char *text;
    size_t room;
    const struct hr_budget *budget; /* NULL: to the end */
    unsigned count;
    bool cut_short;
};

/* False, with errno: it cannot be opened. */
bool hr_open_lines(struct hr_lines *lines, int directory, const char *name,
                   const struct hr_budget *budget);
bool hr_next_line(struct hr_lines *lines);
void hr_close_lines(struct hr_lines *lines);

/* ---- Mappings --------------------------------------------------------------------- */

struct hr_mapping {
    uint64_t start;
    struct hr_mapped_file file; /* `bytes` of it are mapped */
};

bool hr_parse_mapping(const char *line, struct hr_mapping *out);
/*
 * Of a mapping that is shared and may be written.  A process that maps a file for reading only is
 * an exporter somewhere: no process of the region, and no holder of its lock.  Nor is one with a
 * private copy.
 */
bool hr_parse_written(const char *line, struct hr_mapping *out);

/* The files that a process maps shared and for writing. */
struct hr_written_maps {
    struct hr_lines lines;
    uint64_t next; /* address to ask from */
    bool is_asked; /* the kernel answers queries */
    /* At the end: */
    bool is_empty;  /* no mappings at all, as of kernel threads, zombies and dying processes */
    bool cut_short; /* the budget is spent */
    int error;      /* 0, or what has ended it too early */
};

/* False, with errno: maps cannot be opened. */
bool hr_open_written(struct hr_written_maps *maps, int directory, const char *name,
                     const struct hr_budget *budget);
bool hr_next_written(struct hr_written_maps *maps, struct hr_mapping *out);
void hr_close_written(struct hr_written_maps *maps);

#endif
