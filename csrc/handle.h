/*
 * What a handle is made of, and how a call enters and leaves it.  Internal to
 * the core: users include region.h.
 */
#ifndef HR_HANDLE_H
#define HR_HANDLE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "atomics.h"
#include "base.h"
#include "guard.h"
#include "proc.h"
#include "region.h"

/* Set in `users` once hr_close() has begun. */
#define HR_CLOSING 0x80000000u

/* A lock on bytes of the file, held by this page (byte_lock.h). */
struct hr_byte_lock {
    void *page; /* NULL: not locked */
};

/* What lock.c keeps in each handle.  All but the atomics is touched under the gate only. */
struct hr_lock_part {
    /* The gate lets one thread of this handle at a time go for the lock. */
    _Atomic uint32_t gate;         /* 0 free, 1 taken, 2 taken and waited for */
    _Atomic uintptr_t gate_thread; /* hr_thread_id() of the one that has it */
    _Atomic bool held;             /* the region's lock is ours; other handles look at this too */
    _Atomic uint64_t turn;         /* how often the lock has been taken */
    /* Which turn hr_lock() has left to its caller.  Who sets it to 0 gives the lock back, also from
     * another thread; 0: nobody may, though a call may be under the lock now. */
    _Atomic uint64_t lent;
    uint64_t signature;            /* what owner_pid is signed with this time */
    uint64_t numbers;              /* the first of this handle's signatures (region.h), or 0; also
                                      under the fork lock */
    struct hr_byte_lock own_bytes; /* the lock on the bytes of its numbers */
    struct hr_byte_lock range;     /* after a take-over up to 2.8.0: libvgpu's range */
};

/* What attach.c keeps in each handle: this process's own slot.  Touched under the gate. */
struct hr_own_slot {
    /* That stands in it; 0 = not attached.  Searches for others' slots look at it beside the gate,
     * to leave out our own: which of two values they find does not matter. */
    _Atomic int32_t pid;
    struct hr_attachment *attachment; /* NULL = not attached */
    _Atomic bool is_claimed; /* by this handle, the only one of the process; set under fork lock */
    _Atomic uint64_t turn;   /* how often this handle has been attached */
    uint64_t signature;      /* that an attached process signs the lock with; 0: not attached */
    /* The thread that is attaching, for which another signature is its own already. */
    _Atomic uintptr_t attaching_thread;
    uint64_t attaching_signature;
};

struct hr_region {
    const struct hr_layout *layout;
    uint64_t version;    /* in the file when it was opened: the layout's or a newer one; 0: none */
    unsigned char *base; /* NULL once closed */
    size_t mapped_bytes;
    _Atomic uint32_t users;      /* calls in progress, and HR_CLOSING */
    _Atomic uint32_t references; /* hr_free()'s, and those of tickets */
    uint32_t fork_generation;
    bool writable;
    uint32_t no_link; /* HR_NO_LINK, or 0 */
    uint64_t device_id;
    uint64_t inode;
    bool has_own_pages;        /* hr_has_own_pages() of its file system */
    struct hr_file_id in_maps; /* under the fork lock; inode 0 = not looked up yet */
    char *path;
    /* How many slots the last hr_read_set() found, for the next one to prefetch. */
    _Atomic uint32_t likely_slots;
    struct hr_lock_part lock;
    struct hr_own_slot own;
    bool is_leaving; /* hr_close() is alone and detaches; it may wait for the lock */
    bool has_left;   /* hr_leave_all() has been here */
    struct hr_region *next_writable, *previous_writable;
};

/* Each fork() makes the child's generation another one (pthread_atfork). */
extern uint32_t hr_fork_generation;

/*
 * How often this process has begun to use a region: attached, or taken a lock.  If it has
 * changed since a scan of /proc began, the scan does not tell whether a signature with the
 * own pid is a live one.
 */
extern _Atomic uint32_t hr_uses;

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

/* handles.c: the writable handles of this process, for fork() and for the questions below. */
int hr_watch_forks(void);
/* Between the two no child is forked, which would keep a descriptor that it does not know of. */
void hr_fork_lock(void);
void hr_fork_unlock(void);
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

/* Under the fork lock: the lowest signature from `from` on that starts the numbers of a handle
 * of this process for the region, or HR_FOREIGN_END. */
uint64_t hr_next_own_numbers(const hr_region *region, uint64_t from);

/* The handle's memory lives until the last reference is gone; hr_close() has ended it before. */
void hr_keep(hr_region *region);
void hr_let_go(hr_region *region);
/* A handle that was not returned yet, with a reference; NULL: no more. */
hr_region *hr_next_to_leave(void);

static inline bool hr_is_closing(hr_region *region)
{
    return (atomic_load_explicit(&region->users, memory_order_relaxed) & HR_CLOSING) != 0 &&
           !region->is_leaving;
}

#endif
