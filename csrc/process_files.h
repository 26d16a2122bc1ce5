/*
 * What /proc tells of one process: whether it maps a region, and its pids.  Internal
 * to the core; mappers.h puts it together.
 */
#ifndef HR_PROCESS_FILES_H
#define HR_PROCESS_FILES_H

#include "fields.h"

/* Namespaces nest 32 deep at most, below the first one. */
#define HR_PID_LEVELS 33

struct hr_mapper {
    int32_t pids[HR_PID_LEVELS]; /* from this /proc's namespace to the innermost */
    uint32_t levels;
    bool has_libvgpu;
};

struct hr_mappers {
    /*
     * The processes that map the region for writing.  This process is among them if it
     * uses the region itself: it has the lock by another handle, it is attached, or
     * another library in it maps the file.  Merely reading the file does not count.
     */
    struct hr_mapper *list;
    uint32_t count;
    /*
     * Processes of which it is not known whether they map it: their maps were refused, too
     * long, or not reached before the deadline, or show the file's inode number on another
     * device.  Absence from `list` proves nothing about them.
     */
    struct hr_mapper *unsure;
    uint32_t unsure_count;
    bool filtered;   /* only processes with certain pids were looked for */
    bool initial;    /* the /proc of the first pid namespace, which has everybody */
    bool incomplete; /* some processes are hidden (hidepid, no privilege), or the deadline passed */
    /*
     * Whether every process of the region can be seen: this is the first namespace,
     * or that of processes with slots.  In the latter case a process that started in
     * a namespace around it would be missed, as libvgpu misses it too; on the host
     * nothing is.
     */
    bool complete;
};

/* The inode number that the kernel gives to the first pid namespace, always. */
#define HR_INITIAL_PID_NAMESPACE "pid:[4026531836]"

/* A region's file as maps shows it.  stat's device number differs on some file systems. */
struct hr_mapped_file {
    unsigned major_number, minor_number;
    uint64_t inode;
    uint64_t bytes; /* a process of the region maps at least so much of it */
};

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
 * another file system (an overlay's upper directory).
 */
enum hr_seen { HR_MAPS_NOT, HR_MAPS, HR_MAPS_UNSURE, HR_MAPS_NOTHING, HR_REFUSED, HR_GONE };

/* The line NSpid of a process's status file: HR_MAPS if it is there, else why not. */
enum hr_seen hr_read_status(int directory, const char *name, struct hr_mapper *out);

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
 * Put the process into one of the lists if it belongs there.  Maps that are too long, or
 * not read by the deadline, count as refused.  `written`, if not NULL, gets the files.  HR_OK or
 * HR_ESYSTEM.
 */
int hr_look_at_process(int proc, const char *name, const struct hr_mapped_file *file,
                       uint64_t deadline_ns, struct hr_mappers *out,
                       struct hr_written_files *written);

/* The text of a link, cut to `room`; empty where it cannot be read. */
void hr_read_link(int directory, const char *name, char *out, size_t room);

#endif
