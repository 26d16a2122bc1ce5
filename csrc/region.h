/*
 * libhamiregion's C core: HAMi's shared region, read and edited in place.
 *
 * CONCEPT
 *
 * HAMi shares one GPU among containers.  In each container its library,
 * libvgpu.so, maps one small file, the *shared region*: the limits, a table of
 * 1,024 process slots with what each process uses, and a semaphore.  This core
 * maps the same file beside it.  It never allocates on a hot path, never calls
 * libc's semaphores, never prints, never exits, and never waits without a
 * deadline.
 *
 *   hr_open()      map a region, after proof that it is one; hr_open_wait() waits for it
 *   hr_snapshot()  one consistent picture of it, without its lock
 *   hr_read_set()  the same for many regions; hr_columns() turns that into columns
 *   hr_get()       one live value
 *   hr_edit()      one limit or several, all or nothing
 *   hr_close()     unmap; waits for calls in progress in other threads
 *   hr_free()      release the handle itself
 *
 * Five layouts exist (layout.h).  All functions work on the offset table of
 * the one that hr_open() identified.
 *
 * Everything in a region is written by the container and is therefore hostile:
 * counts and indices are checked at each use, also after a successful open.
 *
 * CAVEATS
 *
 * - Errors.  Functions return a negative HR_E... code on failure, and HR_OK or,
 *   where it says so, a count or a layout otherwise.  What exactly was wrong is
 *   kept per thread: hr_last_detail().
 * - Threads.  A handle may be used by several threads at once.  hr_close() lets
 *   calls in progress end; later ones get HR_ECLOSED.  hr_free() must come
 *   last, when no thread can call with the handle any more.
 * - Fork.  A handle does not survive fork(): the child gets HR_EFORKED and has
 *   to open the file itself.  hr_close() and hr_free() work in the child.
 * - Truncation.  Anybody in the container can shorten the file under our
 *   mapping, and the kernel answers with SIGBUS.  Accesses run inside a guard
 *   (guard.h) that turns it into HR_ESTALE.  The guard installs a SIGBUS
 *   handler on the first hr_open() and hands every signal that is not ours to
 *   the handler that was there before.
 * - Replacement.  A container that restarts may replace the file.  The old
 *   mapping then shows old data for ever; hr_is_stale() tells.
 * - POSIX record locks.  Closing any descriptor of a file drops the process's
 *   POSIX locks on it.  hr_open(), hr_attach(), the first hr_lock(), and whatever judges
 *   a lock or a slot close descriptors of the region.  A process that has libvgpu.so loaded itself
 * would drop the lock that libvgpu takes while it starts: it opens regions with HR_KEEP, and no
 * others.
 */
#ifndef HR_REGION_H
#define HR_REGION_H

#include <stddef.h>
#include <stdint.h>

#include "layout.h"

/* The version of the sources that this core was built from. */
const char *hr_core_version(void);

/* ---- Errors ------------------------------------------------------------ */

enum hr_code {
    HR_OK = 0,
    HR_ENOTFOUND = -1,        /* no such file */
    HR_EACCESS = -2,          /* the system refuses access */
    HR_ENOTREGION = -3,       /* not a regular file, or another magic */
    HR_ENOTREADY = -4,        /* empty, short or magic 0: being created */
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
    HR_ENOSPACE = -14,        /* the caller's buffer is too small: detail.wanted */
    HR_EINVAL = -15,          /* an argument is out of range */
    HR_ESYSTEM = -16,         /* another system error: detail.sys_errno */
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
    HR_ENODEVICE = -27,       /* not a device that the region has: detail.candidates */
    HR_EUNWATCHED = -28       /* the SM limit would stop running processes for good */
};

/* What about a file or a value was wrong; detail.reason. */
enum hr_reason {
    HR_REASON_NONE,
    HR_REASON_SYMLINK,
    HR_REASON_DIRECTORY,
    HR_REASON_FIFO,
    HR_REASON_SOCKET,
    HR_REASON_DEVICE,
    HR_REASON_EMPTY,
    HR_REASON_SHORT,
    HR_REASON_MAGIC_ZERO,
    HR_REASON_MAGIC,
    HR_REASON_VERSION,         /* found = major << 32 | minor: fits no layout, or is too new */
    HR_REASON_DEVICE_NUM,      /* found = the value */
    HR_REASON_PROC_NUM,        /* found = the value, sign-extended */
    HR_REASON_UUID,            /* device = which one */
    HR_REASON_TRUNCATED,       /* SIGBUS, or the file is shorter than its layout */
    HR_REASON_REPLACED,        /* magic or version changed under the mapping */
    HR_REASON_ALIVE,           /* the lock's owner is alive */
    HR_REASON_UNKNOWN,         /* /proc does not show enough to tell */
    HR_REASON_BUSY,            /* the lock was taken or given back while it was looked at */
    HR_REASON_TWO_INODES,      /* the file may have another inode, whose locks are not seen here */
    HR_REASON_FOREIGN_MAPPING, /* HR_EATTACHED: another library in this process maps the file */
    HR_REASON_LAYOUT,          /* HR_ENOTREGION: layout = the one named, found = the file's;
                                  HR_EREADONLY: no locks and no slots in this layout */
    HR_REASON_SAME_PID,        /* HR_EATTACHED: a live process of another pid namespace has `found`,
                                  this process's pid, in the region */
    HR_REASON_UNWATCHED,       /* nobody has signed, and that was not watched for long enough */
    HR_REASON_RECOVERING       /* another recovery was at it all the time */
};

struct hr_detail {
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
    uint32_t kind;       /* enum hr_edit_kind: what hr_edit() has refused */
};

/* Copy what this thread's last failed call left.  Never fails. */
void hr_last_detail(struct hr_detail *out);

/*
 * For callers whose signal handlers call this core too (details.h).  hr_keep_detail() puts
 * the last detail on a small stack of the thread; hr_take_detail() takes the newest one of a
 * code and drops those kept after it.  Where there is none, it gives a detail that tells
 * nothing.
 */
void hr_keep_detail(int code);
void hr_take_detail(int code, struct hr_detail *out);

/* ---- Opening ------------------------------------------------------------ */

typedef struct hr_region hr_region;

enum hr_open_flags {
    HR_READ = 0,
    HR_WRITE = 1,
    /* Read, and never close the file's descriptor, of which a process has one for each file
     * until it ends: for a process that may have libvgpu loaded too (CAVEATS). */
    HR_KEEP = 2,
    /* Beside one of these: follow no link to the file's directory either, neither now nor when the
     * handle looks at the file again.  For a directory that somebody hostile can replace. */
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
 * Find out which layout a file has: `layout` HR_LAYOUTS.  Any other value names one, which
 * decides between the candidates of an ambiguous file; one that contradicts what the file
 * is gives HR_ENOTREGION.  Opens read-only, never follows a symbolic link in the last
 * component, never blocks on a FIFO.
 *
 * Returns the layout (>= 0), or HR_ENOTFOUND, HR_EACCESS, HR_ENOTREGION,
 * HR_ENOTREADY, HR_EAMBIGUOUS, HR_ECORRUPT, HR_ESTALE, HR_EINVAL, HR_ESYSTEM.
 */
int hr_identify(const char *path, uint32_t layout);

/*
 * Identify as hr_identify() does, then map; HR_READ and HR_KEEP map PROT_READ.  Only HR_KEEP
 * keeps a descriptor.
 * Returns the layout (>= 0) and the handle, or one of hr_identify()'s codes.
 *
 * A file with the newest layout's major version and a newer minor one is read in that layout
 * where each field passes for what it should be (hr_info.version tells), and never written:
 * HR_EREADONLY with HR_WRITE (detail: HR_REASON_VERSION, found = the version).
 */
int hr_open(const char *path, uint32_t flags, uint32_t layout, hr_region **out);

/*
 * The same, but as long as there is no file, or one that is being created (HR_ENOTFOUND,
 * HR_ENOTREADY), try again until `timeout_ns` have passed; 0 tries once.
 */
int hr_open_wait(const char *path, uint32_t flags, uint32_t layout, uint64_t timeout_ns,
                 hr_region **out);

void hr_get_info(const hr_region *region, struct hr_info *out);

/* 1: the path no longer names the mapped file, or it is shorter than its
 * layout.  0: it does.  HR_ECLOSED, HR_EFORKED otherwise. */
int hr_is_stale(hr_region *region);

/*
 * Whether the SM limits of the region are soft: programs that run under this library then use what
 * nobody else on the GPU does.  libvgpu knows no such thing and holds the limits.  Kept behind the
 * structure, from layout 1.1 on; 0 in older layouts.
 *
 * hr_read_burst() returns 1 or 0, hr_set_burst() what it was before; or HR_ECLOSED, HR_EFORKED,
 * HR_ESTALE.  Setting it makes the file some bytes longer.  `flags`: HR_DRY_RUN or 0.  It fails
 * with HR_EREADONLY, HR_EINVAL in an older layout, HR_EACCESS or HR_ESYSTEM.
 */
int hr_read_burst(hr_region *region);
int hr_set_burst(hr_region *region, int on, uint32_t flags);

/*
 * Unmap.  Waits until calls in progress have ended.  Idempotent.
 *
 * HR_ETIMEOUT: closed, but this process's slot could not be removed, because the lock was
 * not free within a second; it goes on counting until it is reaped (detail.found =
 * owner_pid, detail.wanted = the bytes that it counts).
 */
int hr_close(hr_region *region);
void hr_free(hr_region *region);

/* The destructor of what holds a handle from before hr_open() on; NULL where it failed. */
void hr_free_held(hr_region **held);

/*
 * At the end of the process: give back the locks of this thread, and leave all regions.  A
 * handle that is read-only has nothing to leave.
 */
void hr_leave_all(void);

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
int hr_create(const char *path, const struct hr_create_spec *spec);

/* ---- Reading ------------------------------------------------------------ */

/*
 * A snapshot is one struct hr_snapshot, then `span` struct hr_device, then for
 * each of `proc_num` processes one struct hr_process and `span` struct hr_usage.
 * `shown` has a bit for each device to report: device_num devices; while that is
 * 0, those up to the last memory limit and those with usage or a uuid.  `span`
 * reaches the highest of them.
 *
 * Settled means: every number was read twice and found unchanged; between the two
 * looks the region's semaphore was free (1, and nobody signed for it); the slot's
 * seqlock was even and unchanged, and its totals are the sums of their kinds.  Then
 * the copy is the state at one moment at which no writer was inside.  What did not
 * settle within the budget (HR_SNAPSHOT_BUDGET_NS) is returned all the same, and
 * marked.  A writer that never leaves costs each handle that budget once.
 */
struct hr_snapshot {
    uint64_t taken_at_ns; /* CLOCK_REALTIME */
    uint64_t owner_pid;
    uint64_t last_kernel_time; /* Unix seconds; 0 where the layout has none */
    uint64_t semaphore;        /* value, low 32 bits; waiters, high 32 bits */
    uint32_t settled;
    uint32_t span;
    uint32_t shown;
    uint32_t device_num;
    int32_t proc_num;
    int32_t priority;
    int32_t utilization_switch;
    int32_t recent_kernel;
    int32_t code;    /* HR_OK; for hr_read_set() */
    uint32_t layout; /* enum hr_layout_id */
};

struct hr_process {
    int32_t pid;
    int32_t host_pid;
    int32_t status;
    uint32_t settled;
};

struct hr_usage {
    uint64_t total;                 /* bytes; what counts against the limit */
    uint64_t context, module, data; /* bytes */
    uint64_t offset;                /* bytes; libvgpu keeps it, nobody uses it */
    uint64_t monitor;               /* bytes, the driver's figure */
    uint64_t sm, enc, dec;          /* percent */
};

struct hr_device {
    uint64_t limit;       /* bytes, 0 = unlimited */
    uint64_t sm_limit;    /* percent, 0 or >= 100 = unlimited */
    struct hr_usage sums; /* over all slots below proc_num, modulo 2^64 */
    char uuid[HR_UUID_BYTES];
};

/* Where the parts of a snapshot lie.  `device` is below span, `index` below proc_num. */
static inline size_t hr_snapshot_process_bytes(const struct hr_snapshot *snapshot)
{
    return sizeof(struct hr_process) + snapshot->span * sizeof(struct hr_usage);
}

static inline size_t hr_snapshot_bytes(const struct hr_snapshot *snapshot)
{
    return sizeof(struct hr_snapshot) + snapshot->span * sizeof(struct hr_device) +
           (size_t)snapshot->proc_num * hr_snapshot_process_bytes(snapshot);
}

static inline const struct hr_device *hr_snapshot_device(const struct hr_snapshot *snapshot,
                                                         uint32_t device)
{
    return (const struct hr_device *)(const void *)(snapshot + 1) + device;
}

static inline const struct hr_process *hr_snapshot_process(const struct hr_snapshot *snapshot,
                                                           uint32_t index)
{
    const char *first = (const char *)hr_snapshot_device(snapshot, snapshot->span);
    return (const struct hr_process *)(const void *)(first +
                                                     index * hr_snapshot_process_bytes(snapshot));
}

static inline const struct hr_usage *hr_snapshot_usage(const struct hr_snapshot *snapshot,
                                                       uint32_t index, uint32_t device)
{
    return (const struct hr_usage *)(const void *)(hr_snapshot_process(snapshot, index) + 1) +
           device;
}

/* Long enough for a preempted writer's neighbours, short enough for a scrape. */
#define HR_SNAPSHOT_BUDGET_NS 100000u

/* The largest snapshot there is: 1,024 processes x 16 devices. */
#define HR_SNAPSHOT_MAX_BYTES                                                                      \
    (sizeof(struct hr_snapshot) + HR_DEVICES * sizeof(struct hr_device) +                          \
     HR_SLOTS * (sizeof(struct hr_process) + HR_DEVICES * sizeof(struct hr_usage)))

/*
 * HR_ENOSPACE with the bytes that would do in detail.wanted; HR_ESTALE,
 * HR_ECORRUPT (a count or a uuid out of range), HR_ECLOSED, HR_EFORKED.
 */
int hr_snapshot(hr_region *region, void *buffer, size_t bytes);

/* Live values, straight from the mapping; `device` matters for the first three. */
enum hr_value {
    HR_VALUE_MEMORY_LIMIT,
    HR_VALUE_SM_LIMIT,
    HR_VALUE_MEMORY_USED, /* the sum that libvgpu enforces, modulo 2^64 */
    HR_VALUE_PRIORITY,    /* the i32 fields come sign-extended */
    HR_VALUE_UTILIZATION_SWITCH,
    HR_VALUE_RECENT_KERNEL,
    HR_VALUE_LAST_KERNEL_TIME, /* HR_EINVAL where the layout has none */
    HR_VALUE_DEVICE_NUM,
    HR_VALUE_PROC_NUM,
    HR_VALUE_DEVICES /* one bit each: the devices that the region has, as hr_edit() says */
};

/* HR_OK and the value, HR_EINVAL, HR_ESTALE, HR_ECORRUPT, HR_ECLOSED or HR_EFORKED. */
int hr_read_value(hr_region *region, uint32_t value, uint32_t device, uint64_t *out);

/*
 * The same in one word: HR_NO_VALUE on failure, with the code in hr_last_detail().  As
 * UINT64_MAX can also stand in the file, that code is HR_OK then.
 */
#define HR_NO_VALUE UINT64_MAX
uint64_t hr_get(hr_region *region, uint32_t value, uint32_t device);

/*
 * Many regions.  hr_read_set() writes one struct hr_member for each of them, then
 * their snapshots.  A region that could not be read has, in the place of its
 * snapshot, a head with its code and zeros, and a struct hr_detail behind it.
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
 * All of them together wait for writers no longer than HR_SNAPSHOT_BUDGET_NS.
 */
int hr_read_set(hr_region *const *regions, uint32_t count, void *buffer, size_t bytes,
                struct hr_set_size *size);

/*
 * The same, but regions with more usages than that have none of their processes: a
 * container can fill its table to make its readers large.  The sums of its devices are
 * those over all slots.
 */
int hr_read_set_capped(hr_region *const *regions, uint32_t count, void *buffer, size_t bytes,
                       uint32_t most_usages, struct hr_set_size *size);

/*
 * Columns of what hr_read_set() wrote.  All cells are 64 bits wide.  A table of k
 * columns is k arrays of `step` cells, one after the other, in the order of the
 * enums below.  `step` is at least the number of rows; a multiple of 512 takes twice
 * as long, as the columns then meet in few lines of the processor's cache.
 */
enum hr_table {
    HR_TABLE_REGIONS,
    HR_TABLE_DEVICES,
    HR_TABLE_UUIDS, /* HR_UUID_BYTES of text a device, row after row; no step */
    HR_TABLE_PROCESSES,
    HR_TABLE_USAGES
};

void hr_columns(const void *set, uint32_t count, uint32_t which, void *cells, size_t step);

enum hr_region_column {
    HR_REGION_CODE, /* HR_OK, or why the region has no rows in the other tables */
    HR_REGION_LAYOUT,
    HR_REGION_TAKEN_AT_NS,
    HR_REGION_SETTLED,
    HR_REGION_DEVICE_COUNT,
    HR_REGION_PROCESS_COUNT,
    HR_REGION_PRIORITY,
    HR_REGION_UTILIZATION_SWITCH,
    HR_REGION_RECENT_KERNEL,
    HR_REGION_LAST_KERNEL_TIME,
    HR_REGION_OWNER_PID,
    HR_REGION_SEMAPHORE,
    HR_REGION_FIRST_DEVICE, /* row in the device table */
    HR_REGION_DEVICE_ROWS,
    HR_REGION_FIRST_PROCESS, /* row in the process table */
    HR_REGION_COLUMNS
};

enum hr_device_column {
    HR_DEVICE_REGION, /* row in the region table */
    HR_DEVICE_INDEX,
    HR_DEVICE_LIMIT,
    HR_DEVICE_SM_LIMIT,
    HR_DEVICE_TOTAL, /* sums over all slots below proc_num, modulo 2^64 */
    HR_DEVICE_CONTEXT,
    HR_DEVICE_MODULE,
    HR_DEVICE_DATA,
    HR_DEVICE_OFFSET,
    HR_DEVICE_MONITOR,
    HR_DEVICE_SM,
    HR_DEVICE_ENC,
    HR_DEVICE_DEC,
    HR_DEVICE_COLUMNS
};

enum hr_process_column {
    HR_PROCESS_REGION,
    HR_PROCESS_PID,
    HR_PROCESS_HOST_PID,
    HR_PROCESS_STATUS,
    HR_PROCESS_SETTLED,
    HR_PROCESS_FIRST_USAGE, /* row in the usage table */
    HR_PROCESS_COLUMNS
};

enum hr_usage_column {
    HR_USAGE_PROCESS, /* row in the process table */
    HR_USAGE_DEVICE,  /* index of the device in its region */
    HR_USAGE_TOTAL,
    HR_USAGE_CONTEXT,
    HR_USAGE_MODULE,
    HR_USAGE_DATA,
    HR_USAGE_OFFSET,
    HR_USAGE_MONITOR,
    HR_USAGE_SM,
    HR_USAGE_ENC,
    HR_USAGE_DEC,
    HR_USAGE_COLUMNS
};

/* ---- Editing ------------------------------------------------------------ */

enum hr_edit_kind {
    HR_MEMORY, /* bytes, 0 = unlimited */
    HR_SM,     /* percent, 0 or >= 100 = unlimited */
    /* Of the whole region, i32 each, sign-extended to 64 bits: */
    HR_PRIORITY,
    HR_SWITCH, /* utilization_switch */
    HR_RECENT_KERNEL,
    HR_EDIT_KINDS
};

enum hr_edit_flags {
    /* Of one edit: */
    HR_EXPECT = 1,  /* compare-and-set: only where `expected` stands */
    HR_PERCENT = 2, /* HR_MEMORY: `value` is a percentage of what stands there */
    /* Of the call: */
    HR_FORCE = 4,   /* allow what would harm running processes, and any device */
    HR_DRY_RUN = 8, /* check everything, store nothing */
};

#define HR_ALL_DEVICES (-1)

/* Both limits of every device, and the three values of the whole region. */
#define HR_EDITS_MAX (2 * HR_DEVICES + 3)

struct hr_edit {
    uint32_t kind;
    int32_t device; /* index, or HR_ALL_DEVICES; without meaning for the whole region's values */
    uint32_t flags;
    uint32_t stops_launches; /* out: see HR_EUNWATCHED */
    uint64_t value;
    uint64_t expected;
    const char *uuid;       /* not NULL: the device with this uuid, whatever `device` says */
    uint64_t before, after; /* out, as stored */
};

/*
 * Change values of one region, all or nothing: all are checked, then each is stored by
 * compare-and-swap with what was checked; where one has become another and is refused now,
 * those before it are put back, unless somebody has stored something else there since.  No
 * lock is taken.  A process that is killed in between, within some 100 ns, leaves the first
 * values new and the others old.
 *
 * The devices that a region has: those below device_num; while that is 0, every index up
 * to the last device that has a memory limit, use, or an SM limit that not all 16 have
 * alike; where there is no such device, all 16.
 *
 * An edit of HR_ALL_DEVICES becomes one edit per device.  `edits` has `room` entries, of
 * which the first `count` are given, and is overwritten: the edits as they were made, whose
 * number is returned.
 *
 * SM limits 0 and >= 100 are expected alike: both are unlimited.
 *
 * HR_ECONFLICT (detail: kind, device, found, wanted): not what was expected; or others
 * never stopped writing there.
 * HR_EBELOWUSE, without HR_FORCE: a memory limit under what is used (detail: device,
 * found = used bytes, wanted).
 * HR_EUNWATCHED, without HR_FORCE: the SM limit of device 0 goes from unlimited to limited
 * while processes are in the region, in a layout whose libvgpu starts nothing that fills
 * the bucket of a process that began without a limit: one launch passes and then none, and
 * taking the limit back does not free it (detail: found = processes).
 * HR_ENODEVICE, without HR_FORCE: another device (detail: device, or -1 for a uuid,
 * candidates = those there are, found = number of the edit).
 * HR_EINVAL: an argument out of range; with a device in the detail: edited twice, or (found
 * and wanted set) its limit has no such percentage.
 * HR_ENOSPACE (detail.wanted), HR_EREADONLY, HR_ESTALE, HR_ECORRUPT.
 */
int hr_edit(hr_region *region, struct hr_edit *edits, uint32_t count, uint32_t room,
            uint32_t flags);

#endif
