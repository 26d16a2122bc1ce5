/*
 * What all files of the core share: words of the mapping, errors, clocks, the fault guard, a handle
 * and how a call enters it, and the fields of a region.
 *
 * The preload library is compiled from these files too, and calls functions of this header, lock.h
 * and proc.h.
 */
#ifndef HR_INTERNAL_H
#define HR_INTERNAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "region.h"

/* ---- Words of the mapping ---------------------------------------------------------------- */

/*
 * Access to shared words of a mapped region.
 *
 * The mapping has no C objects of our own making, so the words are reached by
 * address and width.  layout.c asserts that these widths are lock-free.  Every
 * caller names its memory order; where an order pairs with another one, the
 * comment stands at the call.
 */

static inline uint64_t hr_load_u64(const unsigned char *at, memory_order order)
{
    return atomic_load_explicit((const _Atomic uint64_t *)(const void *)at, order);
}

static inline int32_t hr_load_i32(const unsigned char *at, memory_order order)
{
    return atomic_load_explicit((const _Atomic int32_t *)(const void *)at, order);
}

static inline void hr_store_u64(unsigned char *at, uint64_t value, memory_order order)
{
    atomic_store_explicit((_Atomic uint64_t *)(void *)at, value, order);
}

static inline void hr_store_i32(unsigned char *at, int32_t value, memory_order order)
{
    atomic_store_explicit((_Atomic int32_t *)(void *)at, value, order);
}

static inline uint64_t hr_add_u64(unsigned char *at, uint64_t value, memory_order order)
{
    return atomic_fetch_add_explicit((_Atomic uint64_t *)(void *)at, value, order);
}

/* `expected` takes what was found when this fails. */
static inline bool hr_swap_u64(unsigned char *at, uint64_t *expected, uint64_t desired)
{
    return atomic_compare_exchange_strong_explicit((_Atomic uint64_t *)(void *)at, expected,
                                                   desired, memory_order_acq_rel,
                                                   memory_order_acquire);
}

static inline bool hr_swap_i32(unsigned char *at, int32_t *expected, int32_t desired)
{
    return atomic_compare_exchange_strong_explicit((_Atomic int32_t *)(void *)at, expected, desired,
                                                   memory_order_acq_rel, memory_order_acquire);
}

static inline void hr_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* ---- Errors, clocks, forks --------------------------------------------------------------- */

/*
 * Record why this thread's call fails, and return the code.  Public functions copy that into their
 * caller's struct by hr_report() before they return, so nothing that runs between two calls, such
 * as a signal handler of Python, comes in between.
 */
int hr_fail(const struct hr_error *detail);
int hr_fail_code(int code);
int hr_fail_errno(int code, int sys_errno);
int hr_fail_reason(int code, int reason);
/* With fields of struct hr_error, and a device and a layout where they are meant. */
#define HR_FAIL_OF(failed, of_device, of_layout, ...)                                              \
    hr_fail(&(struct hr_error){                                                                    \
        .code = (failed), .device = (of_device), .layout = (of_layout), __VA_ARGS__})
#define HR_FAIL(failed, ...) HR_FAIL_OF(failed, -1, HR_LAYOUTS, __VA_ARGS__)

/* What this thread has recorded last. */
void hr_last_error(struct hr_error *out);
void hr_report_failure(struct hr_error *error, int code);

/* The end of a public function: `error` may be NULL. */
static inline int hr_report(struct hr_error *error, int code)
{
    if (error != NULL && code >= 0)
        error->code = HR_OK;
    else if (error != NULL)
        hr_report_failure(error, code);
    return code;
}

uint64_t hr_clock_ns(int clock);
uint64_t hr_deadline_ns(uint64_t timeout_ns);
bool hr_is_past(uint64_t deadline_ns);
/* Sleep a little longer each time, never past the deadline.  False once it has passed. */
bool hr_nap(uint64_t deadline_ns, unsigned *naps);

/* Each fork() makes the child's generation another one (pthread_atfork). */
extern uint32_t hr_fork_generation;
int hr_watch_forks(void);
/* Between the two no child is forked, which would keep a descriptor that it does not know of, or
 * find a handler half installed. */
void hr_fork_lock(void);
void hr_fork_unlock(void);

/* Room for one more behind `count` items: the list, perhaps moved.  NULL where memory is short;
 * the list stays. */
void *hr_grow(void *list, uint32_t count, size_t item);

static inline uint64_t hr_add_saturating(uint64_t a, uint64_t b)
{
    uint64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

/* ---- The fault guard --------------------------------------------------------------------- */

/*
 * The fault guard: SIGBUS at our mappings becomes an error code.
 *
 * A container can shorten its file at any time, and the next access to a page
 * that is gone raises SIGBUS.  Work on a mapping therefore runs inside
 * hr_guard_run().
 *
 * Before the work it checks whether our handler is installed and whether SIGBUS is blocked in this
 * thread, as a fault under a blocked signal kills the process.  A handler that was installed since
 * the last check, or an older one that was restored, is replaced by ours and becomes its previous
 * handler; a blocked signal is unblocked during the work.
 *
 * A SIGBUS that is not at the mapping that the *current thread* is working on goes to the previous
 * handler, with that handler's own mask.
 *
 * Caveats
 *  - There is one previous handler: the last one that ours replaced.  If it hands the signal down,
 *    to ours, the process ends as by default.  If it was removed by restoring ours, it is called
 *    all the same.
 *  - Another thread may install a handler between the check and a fault.  If it hands the signal
 *    down, by a call or by restoring ours and raising it again as faulthandler does, the fault is
 *    caught.  One that just returns, as Python's does, runs again and again until any thread begins
 *    the next run; one that ends the process ends it.
 *  - A SIGBUS that is sent to a thread that blocks it is delivered if it arrives during the work.
 *  - Leaving the work by longjmp() leaves the signal unblocked.
 */

/*
 * From now on a check of the handler and the mask is valid for about a millisecond, in the thread
 * that made it.  For a program with a few microseconds of other work between two runs, whose cost
 * the check would double.  If within that millisecond a thread blocks SIGBUS or the program
 * installs a handler, and the file is truncated, the program gets the fault.
 */
void hr_guard_spaced_runs(void);

typedef int hr_guarded_work(void *argument);

/*
 * Run `work(argument)` and return its result; HR_ESTALE if it touched a page of
 * [base, base + bytes) that is not available, mostly because the file became
 * shorter.  What the work stored through `argument` before the fault stays.  The
 * work must not hold a resource that only its own end would release.
 */
int hr_guard_run(const void *base, size_t bytes, hr_guarded_work *work, void *argument);

/*
 * The same in parts, for many runs in a row: begin once, run each, end with what
 * begin returned.  Between the two the thread may change neither its signal mask
 * nor the handler.
 */
bool hr_guard_begin(void);
int hr_guard_run_begun(const void *base, size_t bytes, hr_guarded_work *work, void *argument);
void hr_guard_end(bool unblocked);

/* ---- Handles ----------------------------------------------------------------------------- */

/*
 * What a handle is made of, and how a call enters and leaves it.
 */

/* Set in `users` once hr_close() has begun. */
#define HR_CLOSING 0x80000000u

/* A lock on bytes of the file, held by this page (lock.h). */
struct hr_byte_lock {
    void *page; /* NULL: not locked */
};

/* What lock.c keeps in each handle.  All but the atomics is touched under the gate only. */
struct hr_lock_part {
    /* The gate lets one thread of this handle at a time go for the lock. */
    _Atomic uint32_t gate;         /* 0 free, 1 taken, 2 taken and waited for */
    _Atomic uintptr_t gate_thread; /* hr_thread_id() of the one that has it */
    _Atomic bool held;             /* this handle holds the region's lock; other handles read it */
    _Atomic uint64_t turn;         /* how often the lock has been taken */
    /* The caller of hr_lock() holds the lock.  The thread that clears this gives the lock back.
     * While it is false, only a call that is under the lock may do so. */
    _Atomic bool handed_out;
    uint64_t signature;            /* what owner_pid is signed with this time */
    uint64_t numbers;              /* the first of this handle's signatures (region.h), or 0 */
    struct hr_byte_lock own_bytes; /* the lock on the bytes of its numbers */
    struct hr_byte_lock range;     /* after a take-over up to 2.8.0: libvgpu's range */
};

enum { HR_KINDS = 3 };

/* What attach.c keeps in each handle: this process's own slot.  Touched under the gate, and by the
 * thread that attaches. */
struct hr_own_slot {
    /* The pid in the slot; 0 = not attached.  Searches for others' slots read it without the gate,
     * to leave out our own: either of two values is right for them. */
    _Atomic int32_t pid;
    _Atomic bool is_claimed; /* by this handle, the only one of the process; set under fork lock */
    /* What hr_detach() names: an owner that has been detached must not end a later attachment. */
    _Atomic uint64_t attachment; /* 0: not attached */
    uint64_t attachments;        /* that this handle has had */
    uint64_t signature;          /* that an attached process signs the lock with; 0: not attached */
    /* The thread that is attaching, for which another signature is its own already. */
    _Atomic uintptr_t attaching_thread;
    uint64_t attaching_signature;

    int32_t index;
    bool is_appended; /* no slot of an earlier process, which libvgpu may be about to remove */
    uint64_t mark;    /* of the slot; 0: none */
    struct hr_byte_lock byte; /* of the pid, for as long as the process is attached */
    /* Our own books: we are the only writer of our slot, so they are the truth about it. */
    uint64_t charged[HR_DEVICES][HR_KINDS];
};

struct hr_region {
    const struct hr_layout *layout;
    uint64_t version;    /* in the file when it was opened: the layout's or a newer one; 0: none */
    unsigned char *base; /* NULL once closed */
    size_t mapped_bytes; /* whole pages */
    _Atomic uint32_t users; /* calls in progress, and HR_CLOSING */
    uint32_t fork_generation;
    bool writable;
    uint32_t no_link; /* HR_NO_LINK, or 0 */
    bool is_kept;     /* opened with HR_KEEP */
    uint64_t device_id;
    uint64_t inode;
    bool has_own_pages;        /* hr_has_own_pages() of its file system */
    struct hr_file_id in_maps; /* under the fork lock; inode 0 = not looked up yet */
    char *path;
    struct hr_lock_part lock;
    struct hr_own_slot own;
    bool is_leaving; /* hr_close() is alone and detaches; it may wait for the lock */
    struct hr_region *next_writable;
};

static inline int hr_enter(hr_region *region)
{
    /* Acquire pairs with hr_close(): who enters before the closing bit is waited for. */
    uint32_t before = atomic_fetch_add_explicit(&region->users, 1, memory_order_acquire);
    if (__builtin_expect((before & HR_CLOSING) != 0, 0)) {
        atomic_fetch_sub_explicit(&region->users, 1, memory_order_release);
        return hr_fail_code(HR_ECLOSED);
    }
    if (__builtin_expect(region->fork_generation != hr_fork_generation, 0)) {
        atomic_fetch_sub_explicit(&region->users, 1, memory_order_release);
        return hr_fail_code(HR_EFORKED);
    }
    return HR_OK;
}

/* For a call that stores: HR_EREADONLY through a read-only handle. */
static inline int hr_enter_to_write(hr_region *region)
{
    /* `writable` never changes after hr_open(). */
    return region->writable ? hr_enter(region) : hr_fail_code(HR_EREADONLY);
}

static inline void hr_leave(hr_region *region)
{
    atomic_fetch_sub_explicit(&region->users, 1, memory_order_release);
}

/* Leave, and pass on the code of what was done inside. */
static inline int hr_leave_after(hr_region *region, int code)
{
    hr_leave(region);
    return code;
}

/* handles.c: the writable handles of this process, for the questions below. */
void hr_link_writable(hr_region *region); /* both under the fork lock */
void hr_unlink_writable(hr_region *region);
/* Under the fork lock: whether a mapping that begins there is one of the handles', those of the
 * parent's included that a forked child has inherited. */
bool hr_is_mapped_by_handle(uint64_t start);

/* One attachment per process and region: false if another handle has it. */
bool hr_claim_attachment(hr_region *region);
/* Whether this process is attached to the region or has its lock, by any handle, or by any
 * other handle. */
bool hr_is_used_by_process(const hr_region *region, bool by_another);

static inline bool hr_is_closing(hr_region *region)
{
    return (atomic_load_explicit(&region->users, memory_order_relaxed) & HR_CLOSING) != 0 &&
           !region->is_leaving;
}

/* ---- Fields ------------------------------------------------------------------------------ */

/*
 * The fields of a mapped region, each checked where it is read; and how a call runs
 * that touches the mapping.
 */

/* Enter, run the work inside the fault guard, leave. */
int hr_run(hr_region *region, hr_guarded_work *work, void *argument);

/* Run the work inside the fault guard, for a call that has entered. */
int hr_run_entered(const hr_region *region, hr_guarded_work *work, void *argument);

static inline bool hr_is_file_of(const hr_region *region, const struct stat *status)
{
    return status->st_ino == region->inode && status->st_dev == region->device_id;
}

/* The status of the file at the region's path: HR_OK, or a code of hr_hold_file(). */
int hr_stat_file(const hr_region *region, struct stat *status);

/*
 * HR_ESTALE if the file was cut within its last page. Then there is no signal: the page's rest
 * reads as 0, and stores to it succeed. So before a 0 behind the slots is trusted or replaced, this
 * asks for the file's size if the last number of all is 0 too.
 */
int hr_check_end(const hr_region *region);

/* Run a call that stores: HR_EREADONLY through a read-only handle. */
int hr_run_write(hr_region *region, hr_guarded_work *work, void *argument);

/* HR_ESTALE if the file under the mapping has become another or is being remade. */
int hr_check_header(const hr_region *region);

/* proc_num and device_num, checked for their range: HR_OK or HR_ECORRUPT.  HR_ESTALE where the
 * file was cut before proc_num: hr_check_end(). */
int hr_checked_proc_num(const hr_region *region, int32_t *out);
int hr_checked_device_num(const hr_region *region, uint32_t *out);

static inline bool hr_is_per_device(uint32_t kind)
{
    return kind == HR_MEMORY || kind == HR_SM;
}

/* A value that can be edited: where it is, and what it is, i32 sign-extended. */
unsigned char *hr_value_at(const hr_region *region, uint32_t kind, uint32_t device);
uint64_t hr_load_value(const hr_region *region, uint32_t kind, uint32_t device);

/* The devices that device_num or, while it is 0, the memory limits speak of. */
uint32_t hr_counted_devices(const hr_region *region, uint32_t device_num);

/* The devices that the region has, one bit each, as hr_edit() says. */
int hr_region_devices(const hr_region *region, uint32_t *out);

static inline bool hr_is_limited_sm(uint64_t percent)
{
    return percent > 0 && percent < 100;
}

/* The devices with a uuid, or with usage in a slot, one bit each. */
uint32_t hr_find_traces(const hr_region *region, int32_t proc_num);

/* The enforced sum of `total` over all slots below proc_num, modulo 2^64 as libvgpu adds. */
int hr_sum_used(const hr_region *region, uint32_t device, uint64_t *out);

/*
 * The word that says whether SM limits are soft.  Any other value is off: no other program is known
 * to write there, but one may.  It is behind the structure, in the page that the last bytes of that
 * are in, so that every mapping of a region shows it.  libvgpu maps the structure only, and each
 * time it starts it stores a zero in the byte that follows; between the fields it has no room that
 * it does not empty or move with a slot.  In a file that ends before, the page is zero there.
 * Before 1.1 HAMi's monitor knows its regions by the exact size of the file.
 */
#define HR_BURST_ON 0x74737262 /* "brst" */

static inline bool hr_has_burst(const struct hr_layout *layout)
{
    return layout->id >= HR_V1_1;
}

static inline uint32_t hr_burst_at(const struct hr_layout *layout)
{
    return (layout->size + 15) & ~7u;
}

/*
 * Behind it: how many allocations and contexts the limit has refused, as a 64-bit number, and a
 * word that says that they are counted.  A process that counts stores the word before it attaches,
 * and so makes the file long enough.  libvgpu does not count.
 */
#define HR_REFUSALS_COUNTED 0x64736672 /* "rfsd" */

static inline uint32_t hr_refusals_at(const struct hr_layout *layout)
{
    return hr_burst_at(layout) + 8;
}

/* Of `total` in a `used` record. */
enum { HR_TOTAL_OFFSET = 32 };

static inline unsigned char *hr_slot(const hr_region *region, uint32_t index)
{
    return region->base + region->layout->procs + (size_t)index * region->layout->slot_stride;
}

/*
 * The word of a slot that a process which remembers it counts in.  The slots of layouts 1.1 and 1.2
 * are the same but for this word, which is unused in the former: in a slot of a process up to 2.8.0
 * it stays 0, while a newer one that works on such a file counts in it.
 */
static inline uint32_t hr_seqlock_offset(const hr_region *region)
{
    return region->layout->id == HR_V1_1 ? hr_layouts[HR_V1_2].slot_seqlock
                                         : region->layout->slot_seqlock;
}

/* In the seqlock of a slot with a mark (slots.h).  No counter reaches it. */
#define HR_MARK_FLAG (UINT64_C(1) << 62)

/* Without the flag of a mark. */
static inline uint64_t hr_seqlock_of(const hr_region *region, int32_t index)
{
    return hr_load_u64(hr_slot(region, (uint32_t)index) + hr_seqlock_offset(region),
                       memory_order_acquire) &
           ~HR_MARK_FLAG;
}

static inline unsigned char *hr_used(const hr_region *region, unsigned char *slot, uint32_t device)
{
    return slot + region->layout->slot_used + (size_t)device * region->layout->slot_used_stride;
}

/* ---- One read ---------------------------------------------------------------------------- */

/* One consistent read of a region; hr_read_set() makes one after another. */

struct hr_reading {
    hr_region *region;
    struct hr_snapshot *head; /* where the snapshot goes; anything while `bytes` is 0 */
    size_t bytes;             /* room for it */
    size_t wanted;            /* out: what it takes, with HR_OK and HR_ENOSPACE */
    uint64_t taken_at_ns;
    uint64_t deadline_ns; /* 0 until a caller had to wait */

    /* The parts behind the head, once they are measured. */
    struct hr_device *devices;
    unsigned char *processes;
    size_t process_bytes;
    uint64_t seqlocks[HR_SLOTS];
};

/* Read one region; an hr_guarded_work, its argument a struct hr_reading. */
int hr_read_consistently(void *reading);

/* ---- Files ------------------------------------------------------------------------------- */

/* From a path to an open, proven region file. */

/* The two version fields at the start of a file, as one number. */
static inline uint64_t hr_version(uint32_t major_version, uint32_t minor_version)
{
    return (uint64_t)major_version << 32 | minor_version;
}

/*
 * Open the file at the handle's path, decide its layout, and fill in what the handle says of both.
 * Returns the descriptor or a code.
 */
int hr_open_identified(hr_region *region, uint32_t flags, uint32_t layout);

/* The code for an errno of open(). */
int hr_open_error(int error);

/*
 * Open the directory of `path`, and give the last component.  Files are reached
 * through this descriptor, so that the directory cannot be exchanged between two
 * steps.  With HR_NO_LINK in `flags` it is no link.  Returns the descriptor or a code.
 */
int hr_open_directory(const char *path, uint32_t flags, const char **name);

/*
 * Open a regular file and nothing else, not even for a moment, in two steps: the path is walked to
 * a descriptor that only holds the file (O_PATH), which costs as long as a file system takes to
 * answer; then that very file is opened, without a walk.  Each returns a descriptor, close-on-exec,
 * or a code.
 */
int hr_hold_file(const char *path, uint32_t flags, struct stat *status);
int hr_open_held(int held, const char *path, uint32_t flags);

/* Close what was opened with these flags; with HR_KEEP the descriptor stays, for the next time. */
void hr_close_file(int fd, uint32_t flags);

/* A uuid of a region: empty, or printable ASCII from "GPU-" or "MIG-", NUL-padded. */
bool hr_uuid_is_plausible(const unsigned char *uuid);

#endif
