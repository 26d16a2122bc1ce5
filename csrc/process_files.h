/*
 * What /proc tells of one process: its pids, and whether it maps a region.  Internal
 * to the core; mappers.h puts it together.
 */
#ifndef HR_PROCESS_FILES_H
#define HR_PROCESS_FILES_H

#include "fields.h"
#include "maps.h"

/* Namespaces nest 32 deep at most, below the first one. */
#define HR_PID_LEVELS 33

struct hr_mapper {
    int32_t pids[HR_PID_LEVELS]; /* from this /proc's namespace to the innermost */
    uint32_t levels;             /* 0: not known */
    bool has_libvgpu;
    /* Its maps were refused or not read to their end, or show the file's inode number on another
     * device: it may be a process of the region. */
    bool is_unsure;
};

static inline int32_t hr_innermost_pid(const struct hr_mapper *mapper)
{
    return mapper->pids[mapper->levels - 1];
}

/*
 * How the region's file is called in everybody's maps: our own mapping tells.  A process that
 * has dropped its privileges may not read its own maps; then stat's numbers have to do.
 * `by_another` gets whether this process also maps the file for writing by something else than
 * our handles: it has libvgpu loaded.  Where it is NULL, maps are read once for each handle.
 * HR_ESYSTEM where maps cannot be read now, for want of a descriptor or of memory.
 */
int hr_own_mapping(hr_region *region, struct hr_mapped_file *out, bool *by_another);

/*
 * HR_MAPS_NOTHING: an empty list, as kernel threads, zombies and dying processes have.
 * HR_MAPS_UNSURE: the inode number is there, on another device: maybe the same file through
 * another file system (an overlay's upper directory).  Not where both devices are of file systems
 * that keep their files' pages themselves, as the process's mountinfo tells.
 */
enum hr_seen {
    HR_MAPS_NOT,
    HR_MAPS,
    HR_MAPS_UNSURE,
    HR_MAPS_NOTHING,
    HR_REFUSED,
    HR_NO_TIME, /* the budget was spent before the end of them */
    HR_GONE
};

/* The line NSpid of a process's status file: HR_MAPS if it is there, else why not. */
enum hr_seen hr_read_pids(int directory, const char *status, struct hr_mapper *out);

/* The files that a process maps shared and for writing, so that one look at its maps serves many
 * regions. */
struct hr_written_files {
    bool complete; /* its maps were read to their end, and all of the files fit */
    uint32_t count;
    struct hr_mapped_file files[62];
};

/* Whether the process certainly does not map the file. */
bool hr_is_not_written(const struct hr_written_files *written, const struct hr_mapped_file *file);

/*
 * Whether the process of this name maps the file.  `written` gets its files, and `has_libvgpu` is
 * filled in where it maps the region.
 */
enum hr_seen hr_look_at_process(int proc, const char *name, const struct hr_mapped_file *file,
                                const struct hr_budget *budget, struct hr_written_files *written,
                                bool *has_libvgpu);

/* Whether the open file's file system keeps the pages of its files itself, as an overlay and other
 * layers do not. */
bool hr_has_own_pages(int fd);

/*
 * Whether the region's file lies on an overlay, or in the upper directory of one, as far as names
 * and this mount namespace tell.  True where that cannot be told.
 */
bool hr_lies_on_overlay(const hr_region *region);

/* The text of a link, cut to `room`; empty where it cannot be read. */
void hr_read_link(int directory, const char *name, char *out, size_t room);

#endif
