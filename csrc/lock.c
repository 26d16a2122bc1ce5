#define _GNU_SOURCE
#include "lock.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "lock_word.h"
#include "testpoint.h"

/* ---- The semaphore's bytes -------------------------------------------------- */

/* The futex is the low half of the word: little-endian, so the same address. */
static void futex_wait(unsigned char *sem, uint64_t nap_ns)
{
    const struct timespec nap = {.tv_nsec = (long)nap_ns};
    syscall(SYS_futex, sem, FUTEX_WAIT, 0, &nap, NULL, 0);
}

void hr_sem_wake(unsigned char *sem)
{
    syscall(SYS_futex, sem, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static bool try_take(unsigned char *sem)
{
    /* Acquire on success pairs with the release of whoever posted. */
    uint64_t word = hr_load_u64(sem, memory_order_relaxed);
    while (hr_sem_value(word) > 0) {
        if (hr_swap_u64(sem, &word, word - 1))
            return true;
    }
    return false;
}

static void post(unsigned char *sem)
{
    /* Release: what the holder stored is visible to who takes it next. */
    hr_add_u64(sem, 1, memory_order_release);
    HR_POINT(UNLOCK_SEM_POSTED);
    hr_sem_wake(sem);
    HR_POINT(UNLOCK_WOKEN);
}

uintptr_t hr_thread_id(void)
{
    /* The address of a thread's own variable: cheaper than a system call. */
    static _Thread_local char here;
    return (uintptr_t)&here;
}

/* ---- The gate: threads of one handle ---------------------------------------- */

int hr_gate_enter(hr_region *region, uint64_t deadline_ns)
{
    uint32_t state = 0;
    if (!atomic_compare_exchange_strong_explicit(&region->gate, &state, 1, memory_order_acquire,
                                                 memory_order_relaxed)) {
        if (atomic_load_explicit(&region->gate_thread, memory_order_relaxed) == hr_thread_id())
            return hr_fail_code(HR_EBUSY);
        /* 2 from here on: whoever leaves has to wake somebody. */
        while (atomic_exchange_explicit(&region->gate, 2, memory_order_acquire) != 0) {
            uint64_t now = hr_clock_ns(CLOCK_MONOTONIC);
            if (hr_is_closing(region))
                return hr_fail_code(HR_ECLOSED);
            if (now >= deadline_ns)
                return hr_fail_code(HR_ETIMEOUT);
            uint64_t left = deadline_ns - now;
            const uint64_t longest = 100000000; /* hr_close() must not wait long for us */
            if (left > longest)
                left = longest;
            const struct timespec nap = {.tv_nsec = (long)left};
            syscall(SYS_futex, &region->gate, FUTEX_WAIT_PRIVATE, 2, &nap, NULL, 0);
        }
    }
    atomic_store_explicit(&region->gate_thread, hr_thread_id(), memory_order_relaxed);
    return HR_OK;
}

void hr_gate_leave(hr_region *region)
{
    atomic_store_explicit(&region->gate_thread, 0, memory_order_relaxed);
    if (atomic_exchange_explicit(&region->gate, 0, memory_order_release) == 2)
        syscall(SYS_futex, &region->gate, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* ---- The host lock: processes of this library --------------------------------- */

int hr_set_range_lock(int fd, short type, off_t start, off_t length)
{
    struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = length};
    return fcntl(fd, F_OFD_SETLK, &range);
}

int hr_take_range(hr_region *region, off_t start, off_t length, uint64_t deadline_ns)
{
    unsigned naps = 0;
    while (hr_set_range_lock(region->fd, F_WRLCK, start, length) != 0) {
        if (errno != EAGAIN && errno != EACCES && errno != EINTR)
            return hr_fail_errno(HR_ESYSTEM, errno);
        if (hr_is_closing(region))
            return hr_fail_code(HR_ECLOSED);
        if (!hr_nap(deadline_ns, &naps))
            return hr_fail_code(HR_ETIMEOUT);
    }
    return HR_OK;
}

void hr_drop_host_lock(hr_region *region)
{
    if (region->host_locked)
        hr_set_range_lock(region->fd, F_UNLCK, HR_HOST_LOCK_BYTE, 1);
    region->host_locked = false;
}

int hr_take_host_lock(hr_region *region, uint64_t deadline_ns)
{
    int code = hr_take_range(region, HR_HOST_LOCK_BYTE, 1, deadline_ns);
    if (code != HR_OK)
        return code;
    region->host_locked = true;
    HR_POINT(LOCK_HOST_TAKEN);
    return HR_OK;
}

/* ---- Taking and giving back ------------------------------------------------- */

void hr_decide_signature(hr_region *region)
{
    region->signature = region->attached_pid != 0 ? (uint64_t)region->attached_pid
                                                  : HR_FOREIGN_OWNER + (uint64_t)getpid();
}

bool hr_is_signed_by_dead_writer(const hr_region *region, uint64_t owner)
{
    return region->host_locked && hr_is_foreign(owner);
}

struct take_call {
    hr_region *region;
    uint64_t deadline_ns;
};

static int sign(hr_region *region)
{
    region->locked = true;
    atomic_fetch_add_explicit(&hr_uses, 1, memory_order_seq_cst);
    HR_POINT(LOCK_SEM_TAKEN);
    /* Release: who reads the signature has the semaphore's new value before it. */
    hr_store_u64(hr_owner_at(region), region->signature, memory_order_release);
    HR_POINT(LOCK_OWNER_STORED);
    return HR_OK;
}

static int timed_out(uint64_t owner)
{
    struct hr_detail detail = {
        .code = HR_ETIMEOUT, .device = -1, .layout = HR_LAYOUTS, .found = owner};
    return hr_fail(&detail);
}

static int take_work(void *argument)
{
    struct take_call *call = argument;
    hr_region *region = call->region;
    unsigned char *sem = hr_sem_at(region);
    uint64_t nap_ns = 20000;
    while (!try_take(sem)) {
        uint64_t owner = hr_owner_of(region);
        if (hr_is_signed_by_dead_writer(region, owner) &&
            hr_swap_u64(hr_owner_at(region), &owner, region->signature)) {
            region->locked = true;
            return HR_OK;
        }
        if (hr_is_closing(region))
            return hr_fail_code(HR_ECLOSED);
        uint64_t now = hr_clock_ns(CLOCK_MONOTONIC);
        if (now >= call->deadline_ns)
            return timed_out(owner);
        /* glibc's post does not know of us: never sleep past a millisecond. */
        uint64_t left = call->deadline_ns - now;
        futex_wait(sem, nap_ns < left ? nap_ns : left);
        nap_ns = nap_ns < 640000 ? nap_ns * 2 : 1000000 - 1;
    }
    return sign(region);
}

/* Another thread or another writer of this library was in the way: say who has signed. */
static int name_owner_work(void *argument)
{
    return timed_out(hr_owner_of(argument));
}

static int name_owner(hr_region *region, int code)
{
    if (code != HR_ETIMEOUT)
        return code;
    return hr_run_entered(region, name_owner_work, region);
}

/*
 * Who waits for a semaphore that others hold does not keep the host lock meanwhile:
 * hr_recover_lock() needs it to free them all.
 */
#define HOST_LOCK_SLICE_NS 5000000

static int take_in_slices(hr_region *region, uint64_t deadline_ns)
{
    unsigned naps = 0;
    for (;;) {
        int code = name_owner(region, hr_take_host_lock(region, deadline_ns));
        if (code != HR_OK)
            return code;
        uint64_t slice = hr_deadline_ns(HOST_LOCK_SLICE_NS);
        struct take_call call = {.region = region,
                                 .deadline_ns = slice < deadline_ns ? slice : deadline_ns};
        code = hr_run_entered(region, take_work, &call);
        if (code == HR_OK)
            return HR_OK;
        region->locked = false;
        hr_drop_host_lock(region);
        if (code != HR_ETIMEOUT || call.deadline_ns == deadline_ns || !hr_nap(deadline_ns, &naps))
            return code;
    }
}

int hr_lock_take(hr_region *region, uint64_t deadline_ns)
{
    int code = hr_gate_enter(region, deadline_ns);
    if (code != HR_OK)
        return name_owner(region, code);
    hr_decide_signature(region);
    code = take_in_slices(region, deadline_ns);
    if (code != HR_OK)
        hr_gate_leave(region);
    return code;
}

static int take_quickly_work(void *argument)
{
    hr_region *region = argument;
    return try_take(hr_sem_at(region)) ? sign(region) : HR_EBUSY;
}

int hr_lock_take_quickly(hr_region *region, uint64_t deadline_ns)
{
    int code = hr_gate_enter(region, deadline_ns);
    if (code != HR_OK)
        return name_owner(region, code);
    hr_decide_signature(region);
    code = HR_EBUSY;
    if (!hr_is_foreign(region->signature))
        code = hr_run_entered(region, take_quickly_work, region);
    if (code == HR_OK)
        return HR_OK;
    region->locked = false;
    hr_gate_leave(region);
    return code == HR_EBUSY ? hr_lock_take(region, deadline_ns) : code;
}

int hr_drop_semaphore_work(void *argument)
{
    hr_region *region = argument;
    uint64_t ours = region->signature;
    /* Not ours any more: a waiter has taken it away, and posting would admit two. */
    if (!hr_swap_u64(hr_owner_at(region), &ours, 0))
        return hr_fail_code(HR_ELOST);
    HR_POINT(UNLOCK_OWNER_CLEARED);
    post(hr_sem_at(region));
    return HR_OK;
}

int hr_lock_drop(hr_region *region)
{
    int code = hr_run_entered(region, hr_drop_semaphore_work, region);
    region->locked = false;
    hr_drop_host_lock(region);
    hr_gate_leave(region);
    return code;
}

void hr_lock_abandon(hr_region *region)
{
    if (region->locked)
        hr_lock_drop(region);
}

int hr_lock(hr_region *region, uint64_t timeout_ns)
{
    if (!region->writable)
        return hr_fail_code(HR_EREADONLY);
    int code = hr_enter(region);
    if (code != HR_OK)
        return code;
    code = hr_lock_take(region, hr_deadline_ns(timeout_ns));
    hr_leave(region);
    return code;
}

int hr_unlock(hr_region *region)
{
    int code = hr_enter(region);
    if (code != HR_OK)
        return code;
    code = region->locked ? hr_lock_drop(region) : hr_fail_code(HR_EBUSY);
    hr_leave(region);
    return code;
}

int hr_unlock_own(hr_region *region)
{
    if (atomic_load_explicit(&region->gate_thread, memory_order_relaxed) != hr_thread_id())
        return hr_fail_code(HR_EBUSY);
    return hr_unlock(region);
}

/* ---- Running work under the lock ------------------------------------------------- */

int hr_run_under(hr_take_lock *take, hr_region *region, hr_guarded_work *work, void *argument,
                 uint64_t timeout_ns)
{
    if (!region->writable)
        return hr_fail_code(HR_EREADONLY);
    int code = hr_enter(region);
    if (code != HR_OK)
        return code;
    code = take(region, hr_deadline_ns(timeout_ns));
    if (code == HR_OK) {
        code = hr_run_entered(region, work, argument);
        int dropped = hr_lock_drop(region);
        /* Done is done, also where somebody has taken the lock away before the end of it. */
        if (code >= 0 && dropped != HR_OK && dropped != HR_ELOST)
            code = dropped;
    }
    hr_leave(region);
    return code;
}

int hr_run_locked(hr_region *region, hr_guarded_work *work, void *argument, uint64_t timeout_ns)
{
    return hr_run_under(hr_lock_take, region, work, argument, timeout_ns);
}
