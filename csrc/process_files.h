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
    /* Without this process, unless it uses the region itself: by another handle that has
     * the lock, or as a process of the region.  Looking is no use. */
    struct hr_mapper *list;
    uint32_t count;
    /* Processes whose maps were refused: with this many, absence proves nothing about them. */
    struct hr_mapper *unreadable; /* or too long */
    uint32_t unreadable_count;
    bool initial; /* the /proc of the first pid namespace, which has everybody */
    bool blind;   /* some processes are hidden from us (hidepid, or no privilege) */
    /*
     * Whether every process of the region can be seen: this is the first namespace,
     * or that of processes with slots.  In the latter case a process that started in
     * a namespace around it would be missed, as libvgpu misses it too; on the host
     * nothing is.
     */
    bool complete;
};

#define HR_NO_DEADLINE UINT64_MAX

/* The inode number that the kernel gives to the first pid namespace, always. */
#define HR_INITIAL_PID_NAMESPACE "pid:[4026531836]"

/* "dev inode" as maps prints it: stat's device number differs on some file systems. */
struct hr_identity {
    unsigned major_number, minor_number;
    uint64_t inode;
};

/*
 * Our own mapping tells how the file is called in everybody's maps.  A process that
 * has dropped its privileges may not read its own; then stat's numbers have to do.  HR_ESYSTEM
 * where it cannot be read now, for want of a descriptor or of memory.
 */
int hr_own_identity(const hr_region *region, struct hr_identity *out);

/* HR_MAPS_NOTHING: an empty list, as kernel threads, zombies and dying processes have. */
enum hr_seen { HR_MAPS_NOT, HR_MAPS, HR_MAPS_NOTHING, HR_REFUSED, HR_GONE };

/* The line NSpid of a process by its directory: HR_MAPS if it is there, else why not. */
enum hr_seen hr_read_status(int process, struct hr_mapper *out);

/*
 * Put the process into one of the lists if it belongs there.  Maps that are too long, or
 * not read by the deadline (HR_NO_DEADLINE: whenever), count as refused.  HR_OK or HR_ESYSTEM.
 */
int hr_look_at_process(int proc, const char *name, const struct hr_identity *identity,
                       uint64_t deadline_ns, struct hr_mappers *out);

/* The text of a link, cut to `room`; empty where it cannot be read. */
void hr_read_link(int directory, const char *name, char *out, size_t room);

#endif
