/*
 * What callers see of the core: enums, structs and functions.  region.h is the manual.
 *
 * cffi reads this file (libhamiregion/_build.py), so it holds only what its parser takes:
 * enums, plain structs, array sizes by enum or number, and prototypes.
 */
#ifndef HR_API_H
#define HR_API_H

#include <stddef.h>
#include <stdint.h>

/* ---- Layouts ----------------------------------------------------------- */

/* An offset is HR_ABSENT where a layout does not have the field. */
#define HR_MAGIC 19920718
#define HR_DEVICES 16
#define HR_SLOTS 1024
#define HR_UUID_BYTES 96
#define HR_SEM_BYTES 32

enum hr_layout_id {
    HR_UNVERSIONED_NO_UTIL,
    HR_UNVERSIONED,
    HR_V1_1,
    HR_V1_1_POSTINIT,
    HR_V1_2,
    HR_LAYOUTS
};

/*
 * Offsets in bytes.  Header offsets count from the start of the file, slot
 * offsets from the start of a slot.  Inside one `used` record context, module,
 * data, offset and total follow each other as u64; inside one utilisation
 * record dec, enc and sm do.  That holds in all layouts.
 */
struct hr_layout {
    const char *name;
    uint32_t id;
    uint32_t major_version; /* 0: the file has no version fields */
    uint32_t minor_version;
    uint32_t size; /* sizeof the struct; files are at least this long */

    uint32_t sm_init_flag;
    uint32_t owner_pid;
    uint32_t sem;
    uint32_t sem_postinit; /* or HR_ABSENT */
    uint32_t device_num;
    uint32_t uuids;
    uint32_t limit;
    uint32_t sm_limit;
    uint32_t procs;
    uint32_t proc_num;
    uint32_t utilization_switch;
    uint32_t recent_kernel;
    uint32_t priority;
    uint32_t last_kernel_time; /* or HR_ABSENT */

    uint32_t slot_stride;
    uint32_t slot_pid;
    uint32_t slot_hostpid;
    uint32_t slot_seqlock; /* or HR_ABSENT */
    uint32_t slot_used;
    uint32_t slot_used_stride;
    uint32_t slot_monitorused;
    uint32_t slot_util; /* or HR_ABSENT */
    uint32_t slot_util_stride;
    uint32_t slot_status;
};

extern const struct hr_layout hr_layouts[HR_LAYOUTS];

/* The version of the sources that this core was built from. */
const char *hr_core_version(void);

/*
 * The first pid namespace, as a link in /proc shows it: the kernel always gives it the same inode
 * number.  A build for tests takes one of theirs from the environment, so that they need not share
 * a /proc with the whole machine.
 */
const char *hr_initial_pid_namespace(void);

/* ---- Errors ------------------------------------------------------------ */

enum hr_code {
    HR_OK = 0,
    HR_ENOTFOUND = -1,        /* no such file */
    HR_EACCESS = -2,          /* the system refuses access */
    HR_ENOTREGION = -3,       /* not a regular file, or another magic */
    HR_ENOTREADY = -4,        /* no magic yet: being created */
    HR_EAMBIGUOUS = -5,       /* several layouts are plausible */
    HR_ECORRUPT = -6,         /* a count or a text is out of range */
    HR_ESTALE = -7,           /* truncated, emptied or replaced since hr_open() */
    HR_ECLOSED = -8,          /* used after hr_close() */
    HR_EFORKED = -9,          /* opened before fork() */
    HR_EREADONLY = -10,       /* a write through a read-only handle, or to a newer version; a lock
                                 in a layout that is too old for it */
    HR_ECONFLICT = -11,       /* the expected value was not there */
    HR_EBELOWUSE = -12,       /* the limit would be lower than what is used */
    HR_EEXISTS = -13,         /* hr_create() never overwrites */
    HR_ENOSPACE = -14,        /* the caller's buffer is too small: error.wanted */
    HR_EINVAL = -15,          /* an argument is out of range */
    HR_ESYSTEM = -16,         /* another system error: error.sys_errno */
    HR_ETIMEOUT = -17,        /* the lock was not free within the deadline */
    HR_ENOTRECOVERABLE = -18, /* nothing proves that the lock may be broken */
    HR_EMEMORYLIMIT = -19,    /* a charge would pass the memory limit */
    HR_EFULL = -20,           /* all 1,024 slots are taken */
    HR_ENOPROCESS = -21,      /* no slot of that pid below proc_num */
    HR_EBUSY = -22,           /* this thread has the lock already; or hr_unlock() without it */
    HR_ELOST = -23,           /* the lock was taken away while it was held */
    HR_EATTACHED = -24,       /* this process is attached to the region already */
    HR_EDETACHED = -25,       /* this handle is not attached */
    HR_EINTERRUPTED = -26,    /* a signal handler ran during a long watch; call again */
    HR_ENODEVICE = -27,       /* not a device that the region has: error.candidates */
    HR_EUNWATCHED = -28       /* the SM limit would stop running processes for good */
};

/* What about a file or a value was wrong; error.reason. */
enum hr_reason {
    HR_REASON_NONE,
    HR_REASON_SYMLINK,
    HR_REASON_FILE_TYPE,       /* found = the type, as in st_mode */
    HR_REASON_VERSION,         /* found = major << 32 | minor: fits no layout, or is too new */
    HR_REASON_DEVICE_NUM,      /* found = the value */
    HR_REASON_PROC_NUM,        /* found = the value, sign-extended */
    HR_REASON_UUID,            /* device = which one */
    HR_REASON_TRUNCATED,       /* SIGBUS, or the file is shorter than its layout */
    HR_REASON_REPLACED,        /* magic or version changed under the mapping */
    HR_REASON_ALIVE,           /* the lock's owner is alive */
    HR_REASON_UNKNOWN,         /* /proc does not show enough to tell */
    HR_REASON_KEPT,            /* HR_EREADONLY: opened with HR_KEEP, the file is not opened again */
    HR_REASON_CUT_SHORT,       /* the search of /proc took too long */
    HR_REASON_TOO_LONG,        /* the process `wanted` has more than 8 MiB of maps */
    HR_REASON_BUSY,            /* the lock was taken or given back while it was looked at */
    HR_REASON_FOREIGN_MAPPING, /* HR_EATTACHED: another library in this process maps the file */
    HR_REASON_LAYOUT,          /* HR_ENOTREGION: layout = the one named, found = the file's;
                                  HR_EREADONLY: no locks and no slots in this layout */
    HR_REASON_SAME_PID,        /* HR_EATTACHED: a live process of another pid namespace has `found`,
                                  this process's pid, in the region */
    HR_REASON_UNWATCHED,       /* the lock is not signed, and was not watched for long enough */
    HR_REASON_RECOVERING       /* another recovery was at it all the time */
};

/*
 * Why a call failed.  Each function that returns a code fills the struct that its caller passes, if
 * that is not NULL; after a success only its code, with HR_OK.
 */
struct hr_error {
    int32_t code;        /* the HR_E... that this belongs to */
    int32_t sys_errno;   /* 0, or the errno behind it */
    int32_t reason;      /* enum hr_reason */
    int32_t device;      /* -1, or the device concerned */
    uint32_t candidates; /* bit set of layouts: HR_EAMBIGUOUS; of devices: HR_ENODEVICE */
    uint32_t layout;     /* the layout judged, or HR_LAYOUTS */
    uint64_t file_size;  /* bytes; HR_ENOTREADY, HR_ECORRUPT */
    uint64_t found;      /* the offending value; used bytes for HR_EBELOWUSE */
    uint64_t wanted;     /* what was asked for; bytes for HR_ENOSPACE */
    uint64_t limit;      /* HR_EMEMORYLIMIT: the limit in bytes */
    uint32_t kind;       /* enum hr_value: what hr_edit() has refused */
};

/* ---- Opening ------------------------------------------------------------ */

typedef struct hr_region hr_region;

enum hr_open_flags {
    HR_READ = 0,
    HR_WRITE = 1,
    /* Read, and never close the file's descriptor, of which a process has one for each file
     * until it ends: for a process that may have libvgpu loaded too (CAVEATS). */
    HR_KEEP = 2,
    /* Added to one of these: follow no link to the file's directory either, neither now nor when
     * the handle checks the file again.  For a directory that a hostile process can replace. */
    HR_NO_LINK = 4
};

struct hr_info {
    uint32_t layout;
    uint32_t writable;
    uint64_t inode;
    uint64_t device_id;
    uint64_t mapped_bytes;
    uint64_t address; /* of the mapping, in this process */
    uint64_t version; /* in the file: major << 32 | minor; 0 where the layout has no such fields */
};

/*
 * Find out which layout a file has, and map it.  `layout` HR_LAYOUTS: any.  Another value names
 * one, which decides between the candidates of an ambiguous file; one that contradicts what the
 * file is gives HR_ENOTREGION.  Never follows a symbolic link in the last component, never blocks
 * on a FIFO.  While there is no file, or one that is being created (HR_ENOTFOUND, HR_ENOTREADY),
 * try again until `timeout_ns` have passed; 0 tries once.  HR_READ and HR_KEEP map PROT_READ.  Only
 * HR_KEEP keeps a descriptor.
 *
 * Returns the layout (>= 0) and the handle, or HR_ENOTFOUND, HR_EACCESS, HR_ENOTREGION,
 * HR_ENOTREADY, HR_EAMBIGUOUS, HR_ECORRUPT, HR_ESTALE, HR_EINVAL, HR_ESYSTEM.
 *
 * A file with the newest layout's major version and a newer minor one is read in that layout
 * where each field passes for what it should be (hr_info.version tells), and never written:
 * HR_EREADONLY with HR_WRITE (error: HR_REASON_VERSION, found = the version).
 */
int hr_open(const char *path, uint32_t flags, uint32_t layout, uint64_t timeout_ns, hr_region **out,
            struct hr_error *error);

void hr_get_info(const hr_region *region, struct hr_info *out);

/* 1: the path no longer names the mapped file, or it is shorter than its
 * layout.  0: it does.  HR_ECLOSED, HR_EFORKED otherwise. */
int hr_is_stale(hr_region *region, struct hr_error *error);

/*
 * Unmap.  Waits until calls in progress have ended.  Idempotent.
 *
 * HR_ETIMEOUT: closed, but this process's slot could not be removed, because the lock was
 * not free within a second; it goes on counting until it is reaped (error.found =
 * owner_pid, error.wanted = the bytes that it counts).
 */
int hr_close(hr_region *region, struct hr_error *error);
/* The destructor of what holds a handle from before hr_open() on; NULL where it failed. */
void hr_free(hr_region **held);

struct hr_create_spec {
    uint32_t layout;
    int32_t priority;
    uint32_t device_num;
    uint64_t limit[HR_DEVICES];    /* bytes, 0 = unlimited */
    uint64_t sm_limit[HR_DEVICES]; /* percent */
    char uuids[HR_DEVICES][HR_UUID_BYTES];
};

/*
 * Make a complete region under a temporary name in the same directory, magic
 * last, and publish it under `path` in one step.  HR_EEXISTS if something is
 * there already; nothing is left behind on failure.
 */
int hr_create(const char *path, const struct hr_create_spec *spec, struct hr_error *error);

/* ---- Reading ------------------------------------------------------------ */

/*
 * A snapshot is one struct hr_snapshot, then `span` struct hr_device, then for
 * each of `process_count` processes one struct hr_process and `span` struct hr_usage.
 * An emptied slot (status 0, nothing counted, an even seqlock) is no process, whatever its pid:
 * only `slot_count`, the file's own proc_num, includes it.
 * `shown` has a bit for each device to report: device_num devices; while that is
 * 0, those up to the last memory limit and those with usage or a uuid.  `span`
 * reaches the highest of them.
 *
 * Settled means: every number was read twice and found unchanged; between the two
 * reads the region's semaphore was free (1, and not signed); the slot's
 * seqlock was even and unchanged, and its totals are the sums of their kinds.  Then
 * the copy is the state at one moment at which no writer was inside.  What did not
 * settle within the budget (HR_SNAPSHOT_BUDGET_NS) is returned all the same, and
 * marked.  A writer that never leaves costs each snapshot that budget.
 *
 * Two equal reads do not prove that a uuid, which is more than one store, is complete: a writer may
 * have been stopped in the middle of it during both (docs/consistency-and-lifetimes.md).
 */
struct hr_snapshot {
    uint64_t taken_at_ns; /* CLOCK_REALTIME */
    uint64_t owner_pid;
    uint64_t last_kernel_time; /* Unix seconds; 0 where the layout has none */
    uint64_t semaphore;        /* value, low 32 bits; waiters, high 32 bits */
    int64_t refusals; /* of memory, by the limit; -1: no process of the region counts them */
    uint32_t settled;
    uint32_t span;
    uint32_t shown;
    uint32_t device_num;
    int32_t process_count; /* processes in this snapshot */
    int32_t priority;
    int32_t utilization_switch;
    int32_t recent_kernel;
    int32_t code;        /* HR_OK; for hr_read_set() */
    uint32_t layout;     /* enum hr_layout_id */
    uint32_t slot_count; /* slots below the file's proc_num */
    uint32_t truncated;  /* 1: hr_read_set() has left out all processes */
};

struct hr_process {
    int32_t pid;
    int32_t host_pid;
    int32_t status;
    uint16_t settled;
    uint16_t slot; /* index in the file's table; slots move, so it names no process */
};

struct hr_usage {
    uint64_t total;                 /* bytes; what counts against the limit */
    uint64_t context, module, data; /* bytes */
    uint64_t offset;                /* bytes; written by libvgpu, read by no program */
    uint64_t monitor;               /* bytes, the driver's figure */
    uint64_t sm, enc, dec;          /* percent */
};

struct hr_device {
    uint64_t limit;       /* bytes, 0 = unlimited */
    uint64_t sm_limit;    /* percent, 0 or >= 100 = unlimited */
    struct hr_usage sums; /* over all slots below proc_num, modulo 2^64 */
    char uuid[HR_UUID_BYTES];
};

/* Long enough for a preempted writer's neighbours, short enough for a scrape. */
#define HR_SNAPSHOT_BUDGET_NS 100000u

/*
 * HR_ENOSPACE with the bytes that would do in error.wanted; HR_ESTALE,
 * HR_ECORRUPT (a count or a uuid out of range), HR_ECLOSED, HR_EFORKED.
 */
int hr_snapshot(hr_region *region, void *buffer, size_t bytes, struct hr_error *error);

/*
 * Values of a region.  `device` matters for the limits and the memory in use.  The i32 fields come
 * sign-extended to 64 bits.
 */
enum hr_value {
    /* hr_edit() takes these: */
    HR_MEMORY, /* limit in bytes, 0 = unlimited */
    HR_SM,     /* limit in percent, 0 or >= 100 = unlimited */
    HR_PRIORITY,
    HR_SWITCH, /* utilization_switch */
    HR_RECENT_KERNEL,
    HR_EDIT_KINDS,
    /* The sum that libvgpu enforces, modulo 2^64 */
    HR_VALUE_MEMORY_USED = HR_EDIT_KINDS,
    HR_VALUE_LAST_KERNEL_TIME, /* HR_EINVAL where the layout has none */
    HR_VALUE_DEVICE_NUM,
    HR_VALUE_PROC_NUM,
    HR_VALUE_PIDLESS,  /* slots below proc_num with pid 0, emptied ones included */
    HR_VALUE_DEVICES,  /* one bit each: the devices that the region has, as hr_edit() says */
    HR_VALUE_SEM,      /* the lock's semaphore: 1 free, 0 taken */
    HR_VALUE_POSTINIT, /* the start-up semaphore; 1 where the layout has none */
    /* Of the slot `device`, without this library's mark; in 1.1 at 1.2's place.  HR_EINVAL in
     * layouts before 1.1. */
    HR_VALUE_SEQLOCK,
    /* 1: the SM limits are soft: programs that run under this library use the GPU's idle time.
     * libvgpu has no soft limits and holds its processes to them.  0 in layouts before 1.1. */
    HR_VALUE_BURST
};

/* One live value, straight from the mapping: HR_OK and the value, HR_EINVAL, HR_ESTALE,
 * HR_ECORRUPT, HR_ECLOSED or HR_EFORKED. */
int hr_get(hr_region *region, uint32_t value, uint32_t device, uint64_t *out,
           struct hr_error *error);

/*
 * Many regions.  hr_read_set() writes one struct hr_member for each of them, then
 * their snapshots.  A region that could not be read has, in the place of its
 * snapshot, a head with its code and zeros, and a struct hr_error behind it.
 */
struct hr_member {
    uint64_t at;            /* its snapshot, in bytes from the first member on */
    uint32_t first_device;  /* devices shown, processes and usages of the members before it */
    uint32_t first_process; /* (a usage is one process on one device shown) */
    uint32_t first_usage;
    uint32_t devices; /* those shown of its own */
};

/* All members together. */
struct hr_set_size {
    uint64_t bytes;
    uint32_t devices, processes, usages;
};

/*
 * Read `count` regions into `buffer`, aligned for u64.  A region that cannot be read
 * does not stop the others; returns how many these were.  A NULL handle gets
 * HR_ECLOSED.  HR_ENOSPACE where the buffer is too small, with the bytes that would
 * do in `size`.  Regions may be closed meanwhile, and be in other calls.
 *
 * Regions with more than `max_usages` usages have none of their processes: a
 * container can fill its table to make its readers large.  The sums of its devices are
 * those over all slots.
 *
 * All of them together wait for writers no longer than HR_SNAPSHOT_BUDGET_NS.
 */
int hr_read_set(hr_region *const *regions, uint32_t count, void *buffer, size_t bytes,
                uint32_t max_usages, struct hr_set_size *size, struct hr_error *error);

/*
 * Columns of what hr_read_set() wrote.  All cells are 64 bits wide.  A table of k
 * columns is k arrays of `step` cells, one after the other.  `step` is at least the number of rows;
 * a multiple of 512 takes twice as long, as the columns then meet in few lines of the processor's
 * cache.
 */
enum hr_table {
    HR_TABLE_REGIONS,
    HR_TABLE_DEVICES,
    HR_TABLE_UUIDS, /* HR_UUID_BYTES of text a device, row after row; no step */
    HR_TABLE_PROCESSES,
    HR_TABLE_USAGES
};

void hr_columns(const void *set, uint32_t count, uint32_t which, void *cells, size_t step);

/*
 * Columns of the tables, in their order.
 *
 * Regions: code (HR_OK, or why the region has no rows elsewhere), layout, taken_at_ns, settled,
 * device count, process count, slot count, processes truncated, priority, utilization_switch,
 * recent_kernel, last_kernel_time, owner_pid, semaphore, refusals, first row in the device table,
 * rows there, first row in the process table.
 *
 * Devices: row in the region table, index, limit, SM limit, the figures of struct hr_usage as sums
 * over all slots below proc_num.
 *
 * Processes: row in the region table, slot, pid, host pid, status, settled, first row in the usage
 * table.
 *
 * Usages: row in the process table, index of the device, the figures of struct hr_usage.
 */
enum {
    HR_REGION_COLUMNS = 18,
    HR_DEVICE_COLUMNS = 13,
    HR_PROCESS_COLUMNS = 7,
    HR_USAGE_COLUMNS = 11
};

/* ---- Editing ------------------------------------------------------------ */

enum hr_edit_flags {
    /* Of one edit: */
    HR_EXPECT = 1,  /* compare-and-set: only if the value is `expected` */
    HR_PERCENT = 2, /* HR_MEMORY: `value` is a percentage of the present limit */
    /* Of the call: */
    HR_FORCE = 4,   /* allow what would harm running processes, and any device */
    HR_DRY_RUN = 8, /* check everything, store nothing */
};

enum { HR_ALL_DEVICES = -1 };

struct hr_edit {
    uint32_t kind;  /* enum hr_value, below HR_EDIT_KINDS */
    int32_t device; /* index, or HR_ALL_DEVICES; without meaning for the whole region's values */
    uint32_t flags;
    uint32_t stops_launches; /* out: see HR_EUNWATCHED */
    uint64_t value;
    uint64_t expected;
    uint64_t before, after; /* out, as stored */
};

/*
 * Change values of one region, all or nothing: all are checked, then each is stored by
 * compare-and-swap with what was checked; where one has become another and is refused now,
 * those before it are put back, unless another process has stored another value since.  No
 * lock is taken.  A process that is killed in between, within some 100 ns, leaves the first
 * values new and the others old.
 *
 * The devices that a region has: those below device_num; while that is 0, every index up
 * to the last device that has a memory limit, use, a uuid, or an SM limit that not all 16 have
 * alike; where there is no such device, all 16.
 *
 * An edit of HR_ALL_DEVICES becomes one edit per device.  `edits` has `room` entries, of
 * which the first `count` are given, and is overwritten: the edits as they were made, whose
 * number is returned.
 *
 * SM limits 0 and >= 100 are expected alike: both are unlimited.
 *
 * HR_ECONFLICT (error: kind, device, found, wanted): not what was expected; or others
 * never stopped writing there.
 * HR_EBELOWUSE, without HR_FORCE: a memory limit under what is used (error: device,
 * found = used bytes, wanted).
 * HR_EUNWATCHED, without HR_FORCE: the SM limit of device 0 goes from unlimited to limited
 * while processes are in the region, in a layout whose libvgpu starts nothing that fills
 * the bucket of a process that began without a limit: one launch passes and then none, and
 * taking the limit back does not free it (error: found = processes).
 * HR_ENODEVICE, without HR_FORCE: another device (error: device, candidates = those there are).
 * HR_EINVAL: an argument out of range; with a device in the error: edited twice, or (found
 * and wanted set) its limit has no such percentage.
 * HR_ENOSPACE (error.wanted), HR_EREADONLY, HR_ESTALE, HR_ECORRUPT.
 */
int hr_edit(hr_region *region, struct hr_edit *edits, uint32_t count, uint32_t room, uint32_t flags,
            struct hr_error *error);

/*
 * Make the SM limits soft, or hard again.  Returns what they were before, as HR_VALUE_BURST; makes
 * the file some bytes longer.  `flags`: HR_DRY_RUN or 0.  HR_EINVAL in a layout before 1.1,
 * HR_EREADONLY, HR_EACCESS, HR_ESYSTEM, or a code of hr_get().
 */
int hr_set_burst(hr_region *region, int on, uint32_t flags, struct hr_error *error);

/*
 * Add to the number of allocations that the limit has refused; the first call, which may add 0,
 * makes them count.  HR_EINVAL in layouts before 1.1.
 */
int hr_count_refusals(hr_region *region, uint64_t count, struct hr_error *error);

/* ---- The lock ---------------------------------------------------------- */

/* Clear of HAMi's lockf on [0, sizeof) and of its record lock on 0x40000000. */
#define HR_PID_BYTE 0x10000000 /* slots.h */
#define HR_PIDS 0x400000u      /* pid_max at most */
#define HR_HOST_LOCK_BYTE 0x50000000
#define HR_NUMBER_BYTE 0x60000000

/* Above every pid_max (2^22), below 2^31: libvgpu keeps owners in an int. */
#define HR_FOREIGN_OWNER 0x40000000u
#define HR_FOREIGN_END 0x50000000u
/* From there on, numbers of writers whose file may have another inode. */
#define HR_NUMBERS_END 0x60000000u
/* In the upper half of owner_pid: an attached process. */
#define HR_ATTACHED_OWNER 0x80000000u
/* A waiter of libvgpu that has judged one signature must not take the next one for it. */
#define HR_TURNS 256u

/* Longer than any holder can need between taking the semaphore and signing. */
#define HR_OWNERLESS_NS 10000000000u
/* How long a watch may be interrupted by a signal and still go on where it was. */
#define HR_UNWATCHED_NS 100000000u
/* For a process that came after a scan of /proc and is about to sign: on a busy machine it may not
 * run for a long while. */
#define HR_NEWCOMER_NS 300000000u

/*
 * Take the lock within `timeout_ns`, 0 = look once.
 *
 * HR_ETIMEOUT (error.found = owner_pid), HR_EBUSY (this thread has it already),
 * HR_EREADONLY, HR_ESTALE, HR_ECLOSED, HR_EFORKED, HR_ESYSTEM.  A handle that is not attached
 * opens the file anew the first time: HR_ESTALE if its path leads elsewhere, HR_EACCESS.
 */
int hr_lock(hr_region *region, uint64_t timeout_ns, struct hr_error *error);

/*
 * Give back what hr_lock() has taken, from any thread.  HR_EBUSY: no caller holds it, though
 * a call of this handle may.  HR_ELOST: it was taken away meanwhile.
 */
int hr_unlock(hr_region *region, struct hr_error *error);
/* Give it back if this thread has it, else HR_EBUSY: after an exception of a signal's handler. */
int hr_unlock_own(hr_region *region, struct hr_error *error);

enum hr_liveness { HR_DEAD, HR_ALIVE, HR_LIVENESS_UNKNOWN };

struct hr_lock_state {
    uint32_t value;          /* of the semaphore: 1 free, 0 taken */
    uint32_t waiters;        /* as new glibc counts them */
    uint32_t postinit;       /* value of sem_postinit; 1 where the layout has none */
    uint32_t is_ours;        /* signed with a number of this library */
    uint32_t is_damaged;     /* the value is above 1, or above 0 though the lock is signed */
    uint64_t owner_pid;      /* as libvgpu reads it: a pid, or a number */
    uint64_t signature;      /* as stored: with its upper half */
    int32_t owner_pid_here;  /* the owner's pid in this process's /proc; 0: none, or a number */
    uint32_t owner_liveness; /* enum hr_liveness; HR_DEAD where owner_pid is 0 */
};

/* Works on a read-only handle too, but not on one opened with HR_KEEP: HR_EREADONLY, as the call
 * may open the file again.  `proc` is the root of /proc, NULL = "/proc". */
int hr_get_lock_state(hr_region *region, const char *proc, struct hr_lock_state *out,
                      struct hr_error *error);

enum hr_recovered {
    HR_RECOVERED_OWNER = 1,     /* a dead owner's lock was given back */
    HR_RECOVERED_OWNERLESS = 2, /* the lock was taken and not signed */
    HR_RECOVERED_VALUE = 4,     /* the semaphore contradicted its owner, or was above 1 */
    HR_RECOVERED_POSTINIT = 8   /* sem_postinit was given back */
};

/* What a recovery has done and seen so far; all zero for a new one. */
struct hr_recovery {
    uint32_t done;  /* set of enum hr_recovered */
    uint32_t value; /* the state that has been watched, */
    uint64_t signature;
    uint64_t watched_ns; /* and for how long, */
    uint64_t postinit_watched_ns;
    uint64_t interrupted_ns; /* and when a signal last came; on the monotonic clock */
};

/*
 * Repair the lock if it is proved to have no holder: the owner is dead; the lock is not signed,
 * or its signature cannot be judged, and no other process has the file open; it was not signed
 * and unchanged for HR_OWNERLESS_NS; or the value contradicts the owner.  sem_postinit, which is
 * never signed, likewise, after HR_POSTINIT_NS.
 *
 * The call watches an unsigned lock for `watch_ns` at most.  A dead holder's lock
 * is taken over and then given back: being killed meanwhile leaves the next dead holder.
 *
 * HR_OK: recovery->done says what was done; nothing where nothing was wrong.
 * HR_EINTERRUPTED: a signal came; call again with the same `recovery`, which goes on.
 * HR_ENOTRECOVERABLE with error.reason HR_REASON_ALIVE, HR_REASON_UNKNOWN,
 * HR_REASON_CUT_SHORT, HR_REASON_TOO_LONG, HR_REASON_BUSY,
 * HR_REASON_UNWATCHED or HR_REASON_RECOVERING, error.found = owner_pid, error.wanted = its pid
 * here.
 */
#define HR_POSTINIT_NS 60000000000u
int hr_recover_lock(hr_region *region, const char *proc, uint64_t watch_ns,
                    struct hr_recovery *recovery, struct hr_error *error);

/* ---- Process slots ----------------------------------------------------- */

/*
 * Take a slot for this process, under the lock.  A slot that has its pid already
 * is a dead predecessor's, or its own of before; it is emptied and taken.  Else an emptied one
 * is used again, if that is worth a search of /proc, or one at the end is taken, beyond all
 * in which a live process may be writing.  One attachment per handle, and one handle
 * per process and region: HR_EATTACHED; with error.reason HR_REASON_FOREIGN_MAPPING another
 * library in this process, libvgpu, has the region mapped; with HR_REASON_SAME_PID a live process
 * of another pid namespace has this one's pid there.
 *
 * HR_EFULL, HR_ETIMEOUT and the rest of hr_lock().
 */
int hr_attach(hr_region *region, uint64_t timeout_ns, struct hr_error *error);

/* The number of this handle's attachment, another one each time; 0: it is not attached. */
uint64_t hr_attachment(const hr_region *region);

/* Empty the slot of this attachment, of any with 0, and remove it if it is the last one.
 * HR_EDETACHED: there is no such attachment any more. */
int hr_detach(hr_region *region, uint64_t attachment, uint64_t timeout_ns, struct hr_error *error);

enum hr_kind { HR_CONTEXT, HR_MODULE, HR_DATA };

/*
 * Count `bytes` of one kind on one device, if the sum over all slots stays within
 * the limit, which is read each time, under the lock.  HR_EMEMORYLIMIT (error: device, found =
 * used bytes, limit, wanted).  With HR_FORCE in `flags`, whatever the limit: for what is there
 * already.
 */
int hr_charge(hr_region *region, uint32_t device, uint32_t kind, uint64_t bytes, uint32_t flags,
              uint64_t timeout_ns, struct hr_error *error);

/* Give back.  HR_EINVAL (error.found = what is charged): more than was charged. */
int hr_release(hr_region *region, uint32_t device, uint32_t kind, uint64_t bytes,
               uint64_t timeout_ns, struct hr_error *error);

enum hr_slot_value {
    HR_SLOT_HOST_PID,
    HR_SLOT_STATUS,
    HR_SLOT_MONITOR_USED, /* bytes; with a device */
    HR_SLOT_SM,           /* percent; with a device */
    HR_SLOT_ENC,
    HR_SLOT_DEC
};

struct hr_slot_edit {
    uint32_t value; /* enum hr_slot_value */
    uint32_t device;
    uint64_t to;
    uint64_t before; /* filled in */
};

/*
 * Store values in the slot of `pid`, found afresh under the lock.  HR_ENOPROCESS.
 * With `dry_run` nothing is stored.
 */
int hr_edit_slot(hr_region *region, int32_t pid, struct hr_slot_edit *edits, uint32_t count,
                 uint32_t dry_run, uint64_t timeout_ns, struct hr_error *error);

/* What hr_reap() and hr_repair_slots() have made of the slots of a pid. */
enum hr_slot_outcome {
    HR_SLOT_DONE = 1,  /* empty, where it was; or the process counts once, in its own slot */
    HR_SLOT_ALIVE,     /* left alone: the process lives */
    HR_SLOT_UNKNOWN,   /* left alone: there is no proof of its death, or of which slot is its own */
    HR_SLOT_CUT_SHORT, /* left alone: the search of /proc was cut short before a proof */
    HR_SLOT_TOO_LONG   /* left alone: a process that may use it has more than 8 MiB of maps */
};

struct hr_slot_result {
    int32_t pid;
    uint32_t what;   /* enum hr_slot_outcome */
    uint64_t bytes;  /* that its slot counted, over all devices; of hr_reap() */
    int32_t process; /* of HR_SLOT_TOO_LONG, in the /proc that was searched; else 0 */
};

/*
 * Empty the slots of dead processes: those of `pids`, or with count 0 all.  Seqlocks that the dead
 * left odd are made even.  `out` takes HR_SLOTS entries; returns their number.  Explicit pids that
 * live or cannot be judged are reported; so is HR_ENOPROCESS for one without a slot, before
 * anything is done.
 *
 * /proc is searched before the lock is taken, for 2 s at most.  What counts and could not be judged
 * because that was not enough is reported as HR_SLOT_CUT_SHORT; because of a process with more than
 * 8 MiB of maps, as HR_SLOT_TOO_LONG: another search would not help while that one lives.
 */
int hr_reap(hr_region *region, const char *proc, const int32_t *pids, uint32_t count,
            uint32_t dry_run, uint64_t timeout_ns, struct hr_slot_result *out,
            struct hr_error *error);

/*
 * What /proc tells of processes.
 *
 * hr_read_start_times(): when each of `count` processes started, in clock ticks after boot; with
 * the pid, its identity.  Negative: it has ended, or this process may not read it.  `proc` is a
 * descriptor of /proc.
 *
 * hr_read_mapped_files(): the files that a process maps shared, with the sum of their mappings;
 * `process` is a descriptor of its directory; `paths` gets the files' names, as the process sees
 * them.  Returns their number.  8 MiB of maps are read, for 2 s at most.  HR_EFULL: there is more,
 * or no room for it.  HR_ENOTFOUND: the process has ended.  HR_EACCESS: this process may not read
 * it.  A process can keep a reader of its maps waiting for ever, so the call belongs into a thread
 * that can be given up.
 */
enum hr_no_start { HR_HAS_ENDED = -1, HR_START_REFUSED = -2 };
void hr_read_start_times(int proc, const uint32_t *pids, uint32_t count, int64_t *out);

/* A file as maps shows it.  stat's device number differs on some file systems. */
struct hr_file_id {
    uint32_t major_number, minor_number;
    uint64_t inode;
};
/* The region's file; a process that may not read its own maps gets stat's numbers. */
int hr_get_file_id(hr_region *region, struct hr_file_id *out, struct hr_error *error);

struct hr_mapped_file {
    struct hr_file_id file;
    uint64_t start, end; /* of its first mapping */
    uint64_t bytes;
    uint32_t path_at, path_bytes;
    uint32_t is_writable;
};

int hr_read_mapped_files(int process, struct hr_mapped_file *out, uint32_t capacity, char *paths,
                         uint32_t paths_bytes, uint32_t *has_libvgpu, struct hr_error *error);

/* ---- Evidence ---------------------------------------------------------- */

/*
 * What is known of the processes of a region, gathered before a call that judges them: the lock and
 * the slots as they were before, and what each process has answered since.  The calls that take it
 * do not read /proc.  They judge only what is as it was noted.  Older than HR_EVIDENCE_NS it proves
 * nothing.
 *
 *   hr_note()              the lock, the slots, and which pids matter; reads /proc/self only
 *   hr_ask_process()       one question about one process; no handle, so that the thread which asks
 *                          can be given up: a process can keep a reader of its maps for ever
 *   hr_add_process()       its answer about this region's file
 *   hr_end_evidence()      what the answers are together
 *
 * Evidence belongs to one thread at a time, and to the handle that it was noted by, which stays
 * open for longer.  Any number of calls may use it.
 */
#define HR_EVIDENCE_NS 5000000000u
typedef struct hr_evidence hr_evidence;

/* HR_OK, HR_ESTALE, HR_ECORRUPT, HR_ESYSTEM, HR_ECLOSED, HR_EFORKED. */
int hr_note(hr_region *region, hr_evidence **out, struct hr_error *error);
void hr_free_evidence(hr_evidence *evidence); /* takes NULL */

/* What is seen of a file in a process's maps, or why nothing is. */
enum hr_seen {
    HR_MAPS_NOT,
    HR_MAPS,         /* for writing */
    HR_MAPS_UNSURE,  /* a file with the inode number on another device: maybe the same file through
                        another file system (an overlay's upper directory) */
    HR_MAPS_NOTHING, /* an empty list, as kernel threads, zombies and dying processes have */
    HR_REFUSED,
    HR_NO_TIME,  /* the time was over before its end */
    HR_TOO_LONG, /* it is longer than 8 MiB */
    HR_GONE
};

/* A region's file, asked for. */
struct hr_asked_file {
    struct hr_file_id file;
    uint64_t bytes; /* a process of the region maps at least so much of it */
    uint32_t has_own_pages;
    uint32_t seen;         /* out: enum hr_seen */
    uint64_t unsure_bytes; /* out */
};

/* Which processes have to be asked, and for what. */
struct hr_wanted {
    struct hr_asked_file file;
    uint32_t all;       /* every process, as a slot without a pid or an unsigned lock needs */
    uint32_t count;     /* else those with one of these pids in any of their namespaces */
    int32_t pids[1025]; /* of the slots, and the lock's owner */
};
void hr_get_wanted(const hr_evidence *evidence, struct hr_wanted *out);

#define HR_PID_LEVELS 33 /* namespaces nest 32 deep at most, below the first one */

struct hr_answer {
    int64_t start_time_ticks;    /* negative: enum hr_no_start; a zombie has ended */
    int32_t pids[HR_PID_LEVELS]; /* from this /proc's namespace to the innermost */
    uint32_t levels;             /* 0: not known */
    uint32_t has_libvgpu, is_cut, is_too_long;
    uint32_t is_self; /* the process that asks */
};

/* Ask one process for several files.  `proc` is a descriptor of /proc. */
void hr_ask_process(int proc, uint32_t pid, struct hr_asked_file *files, uint32_t count,
                    uint64_t timeout_ns, struct hr_answer *out);
/* HR_OK, HR_ESYSTEM. */
int hr_add_process(hr_evidence *evidence, const struct hr_answer *answer, uint32_t seen,
                   struct hr_error *error);

enum hr_gathered {
    HR_GATHERED_WANTED = 1,   /* every process that hr_get_wanted() names was found and asked */
    HR_GATHERED_ALL = 2,      /* every process that may map the file was */
    HR_GATHERED_CUT_SHORT = 4 /* there was no time for some */
};
void hr_end_evidence(hr_evidence *evidence, uint32_t flags);

/* As the functions without _by, with the evidence's region. */
int hr_get_lock_state_by(hr_evidence *evidence, struct hr_lock_state *out, struct hr_error *error);
int hr_recover_lock_by(hr_evidence *evidence, uint64_t watch_ns, struct hr_recovery *recovery,
                       struct hr_error *error);
int hr_reap_by(hr_evidence *evidence, const int32_t *pids, uint32_t count, uint32_t dry_run,
               uint64_t timeout_ns, struct hr_slot_result *out, struct hr_error *error);
int hr_repair_slots_by(hr_evidence *evidence, uint32_t dry_run, uint64_t timeout_ns,
                       struct hr_slot_result *out, struct hr_error *error);

/*
 * Put right what moves have torn apart: a live process that writes in a slot at or above
 * proc_num, which counts no more, while its copy below is frozen.  Proof is a slot that is
 * seen moving within 20 ms.  proc_num is raised to take it in, then copies below it
 * are emptied where they are; so is a copy that an interrupted repair has left.  Nothing
 * is taken in at or above a slot of which nothing can be proved.  `out` takes HR_SLOTS
 * entries; returns their number.  The lock is taken if there is something to put right; a dry run
 * takes none.
 *
 * A slot with pid 0 that counts something may be in the way.  If the search for its owner is cut
 * short, what waits for it is reported as HR_SLOT_CUT_SHORT, or HR_SLOT_TOO_LONG as of hr_reap().
 */
int hr_repair_slots(hr_region *region, const char *proc, uint32_t dry_run, uint64_t timeout_ns,
                    struct hr_slot_result *out, struct hr_error *error);

/* ---- The core limiter -------------------------------------------------- */

#define HR_LIMITER_PERIOD_NS 120000000u /* between two ticks */

/* Bounds that keep all sums within int64; the largest GPUs have 2^8 and 2^11. */
#define HR_LIMITER_MAX_SM_COUNT 65536u
#define HR_LIMITER_MAX_THREADS_PER_SM 65536u

typedef struct hr_limiter hr_limiter;

/*
 * Make a limiter for one device: tokens 0, share 0.  `sm_limit` is in percent, 0
 * or >= 100 = unlimited.
 *
 * With a `region` its SM limit of `device` and its utilization_switch rule
 * instead, read here and at each tick.  NULL: no region, the switch is on.
 *
 * HR_EINVAL: a count is 0 or above its bound, or `device` is no device.
 * HR_ESYSTEM: no memory.  Any error of hr_get().
 */
int hr_limiter_new(uint32_t sm_count, uint32_t max_threads_per_sm, uint32_t sm_limit,
                   hr_region *region, uint32_t device, hr_limiter **out, struct hr_error *error);

/* The last call on a limiter, when no thread is inside another.  Takes NULL. */
void hr_limiter_free(hr_limiter *limiter);

/*
 * Take `blocks` tokens, 0 or more, which may bring the bucket below zero.  Returns 0 if it is there
 * already, and takes nothing; libvgpu tries again every 10 ms.  Else 1; where nothing is limited it
 * takes nothing either.
 */
int hr_limiter_take(hr_limiter *limiter, int64_t blocks);

/*
 * One step of HR_LIMITER_PERIOD_NS.  `util_percent` is the sum over the
 * container's processes; outside 0..100 it says nothing and the bucket stays as
 * it is.  It also stays while the limit is 0 or >= 100.  While only the
 * switch is off it is refilled, as in libvgpu, so that switching on does not
 * begin with an old debt.
 *
 * An error of hr_get() is returned after the step was made with the limit and
 * the switch read last: a launch that waits must not wait for ever because its
 * region went away.
 *
 * HR_EBUSY: another thread is inside a tick; nothing was done.
 */
int hr_limiter_tick(hr_limiter *limiter, int32_t util_percent, struct hr_error *error);

struct hr_limiter_state {
    int64_t share;  /* blocks per tick */
    int64_t tokens; /* blocks available now, negative = debt */
    int64_t total;  /* the most there can be */
};
/* Each number by itself, no common picture. */
void hr_limiter_read(const hr_limiter *limiter, struct hr_limiter_state *out);

#endif
