/*
 * What /proc tells: which processes map a file, what their pids are in each namespace, and when
 * they started.  Internal to the core.  Everything here takes numbers and descriptors, never a
 * region, its lock or its guard: a read of /proc may never return.
 *
 * A pid in a region is one of the container's namespace and may have been used again.  What counts
 * as proof: /proc/<pid>/maps shows this very file mapped for writing, and NSpid in
 * /proc/<pid>/status has the number.  A process with the right number that does not map the file is
 * another one.
 *
 * A container decides how many processes it has and how long their maps are.  So of each process
 * HR_MAPS_BYTES are read, in pieces, and a search ends after HR_PROC_NS.  Processes that were not
 * read to the end are unsure.  Only the end of the time cuts a search short.
 */
#ifndef HR_PROC_H
#define HR_PROC_H

#include "internal.h"

/* 8,000 mappings of usual files are 0.75 MB. */
#define HR_MAPS_BYTES ((size_t)8 << 20)
/* What one search may take. */
#define HR_PROC_NS 2000000000u

/* ---- One process ------------------------------------------------------------------- */

/* A shared mapping of a file. */
struct hr_mapping {
    struct hr_file_id file;
    uint64_t start, end;
    const char *path; /* as the process sees it; its text lasts for the call */
    bool writable;
};

/* Takes a mapping; false: that is enough. */
typedef bool hr_take_mapping(void *argument, const struct hr_mapping *mapping);
struct hr_maps_reader {
    hr_take_mapping *take;
    void *argument;
    uint64_t deadline_ns;
    bool has_libvgpu; /* out: any mapping is of libvgpu.so, as far as maps was read */
    bool is_enough;   /* out */
};

/*
 * Hand over all shared mappings of files in a maps file, below `directory` or AT_FDCWD.
 * HR_MAPS: enough, or the end; HR_MAPS_NOTHING, HR_REFUSED, HR_NO_TIME, HR_TOO_LONG, HR_GONE.
 */
enum hr_seen hr_read_maps(int directory, const char *name, struct hr_maps_reader *reader);

/* The same of a process, or of its other threads where the first one has ended. */
enum hr_seen hr_read_process_maps(int process, struct hr_maps_reader *reader);
/* A descriptor (O_PATH) of its directory, which stays that of this very process. */
int hr_open_process(int proc, const char *name);
/* Why a call failed with this errno: HR_GONE or HR_REFUSED. */
enum hr_seen hr_after_failure(int error);
/* Whether the device of a file that the process maps has a file system as hr_has_own_pages(). */
bool hr_is_device_with_own_pages(int process, const struct hr_file_id *file);

static inline bool hr_is_same_file(const struct hr_file_id *one, const struct hr_file_id *other)
{
    return one->inode == other->inode && one->major_number == other->major_number &&
           one->minor_number == other->minor_number;
}

struct hr_mapper {
    int32_t pids[HR_PID_LEVELS]; /* from this /proc's namespace to the innermost */
    uint32_t levels;             /* 0: not known */
    bool has_libvgpu;
    /* Its maps were refused or not read to their end, or show the file's inode number on another
     * device: it may be a process of the region. */
    bool is_unsure;
    int64_t start_time_ticks; /* in evidence; negative or 0: not known */
    bool is_cut;              /* its maps were not read to the end, or refused */
    bool is_too_long;         /* because of HR_TOO_LONG: another search would not help */
};

static inline int32_t hr_innermost_pid(const struct hr_mapper *mapper)
{
    return mapper->pids[mapper->levels - 1];
}

/* Now, as start times are. */
int64_t hr_clock_ticks(void);
/* As hr_read_start_times(). */
int64_t hr_read_start_time(int proc, uint32_t pid);

/* The line NSpid of a process's status file: HR_MAPS if it is there, else why not. */
enum hr_seen hr_read_pids(int directory, const char *status, struct hr_mapper *out);

/* Whether an open file's file system keeps the pages of its files itself, as an overlay and other
 * layers do not. */
bool hr_has_own_pages(int fd);

/* ---- Searching --------------------------------------------------------------------- */

/* Pids of a container's namespace, each of another process. */
struct hr_slot_pids {
    int32_t pids[HR_SLOTS];
    int32_t count;
    bool any_level; /* a process also matches by its pid in a namespace around its own */
};
bool hr_names_slot(const struct hr_slot_pids *slots, int32_t pid);

struct hr_search {
    /* From the caller: */
    const char *proc;                /* NULL = "/proc" */
    const hr_evidence *evidence;     /* slots.h: instead of /proc; or NULL */
    const struct hr_slot_pids *only; /* only processes with these pids; NULL: all */
    uint64_t deadline_ns;
    bool without_own_handle; /* as a caller searches that has the gate and not the lock */

    /* From the region, by hr_prepare_search(): */
    struct hr_asked_file file;
    /* In a /proc that is not the first namespace's: the pids in the region's slots. */
    struct hr_slot_pids slots;
    bool counts_self;           /* this process is one of the region's, if it maps the file */
    bool is_namespace_of_slots; /* the caller is attached: its namespace is that of the slots */
};

struct hr_mappers {
    /* The processes that map the file for writing, or may: the absence of a pid proves nothing
     * where one is unsure. */
    struct hr_mapper *list;
    uint32_t count;
    bool has_unsure;
    bool filtered;   /* only processes with certain pids were looked for */
    bool initial;    /* the /proc of the first pid namespace, which has every process */
    bool incomplete; /* some processes are hidden (hidepid, no privilege), or cut short */
    bool cut_short;  /* the time was over before every process that matters was read */
    /*
     * Whether every process of the region can be seen: this is the first namespace, or that of
     * processes with slots.  In the latter case a process that started in a namespace around it
     * would be missed, as libvgpu misses it too.
     */
    bool complete;
};

/* What was seen of one process, which may not matter.  HR_OK or HR_ESYSTEM. */
int hr_add_answer(struct hr_mappers *out, struct hr_mapper *mapper, enum hr_seen seen);

/* HR_OK or HR_ESYSTEM. */
int hr_search_proc(const struct hr_search *search, struct hr_mappers *out);
void hr_free_mappers(struct hr_mappers *mappers);

/*
 * Whether the process lives that has `pid` in its innermost namespace, as the pid of a slot, or in
 * any of them.  `here` gets its pid in this /proc, or 0.
 */
enum hr_liveness hr_liveness_of(const struct hr_mappers *mappers, int32_t pid, bool any_level,
                                int32_t *here);
enum hr_liveness hr_liveness_of_slot(const struct hr_mappers *mappers, int32_t pid);
/* Why a slot of `pid`, or with 0 one that any process may use, could not be judged.  `process` gets
 * the pid here of one with too many maps, or 0. */
enum hr_slot_outcome hr_why_unknown(const struct hr_mappers *mappers, int32_t pid,
                                    int32_t *process);

/* ---- Links of map_files ------------------------------------------------------------- */

/* Whether a path is one of /proc/<pid>/map_files/<start>-<end>: the only links that are followed.
 */
bool hr_is_in_map_files(const char *path);

/*
 * Take hold (O_PATH) of the file that a link of map_files leads to, if no operation on it can wait
 * for a process: its mount is of a type that the kernel serves itself, and the host has mounted the
 * same file system.  `directory` is that of the links.  Returns the descriptor, or -1 and
 * errno.  The kernel asks for CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE.
 */
int hr_hold_mapped_file(int directory, const char *name);

#endif
