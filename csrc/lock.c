#define _GNU_SOURCE
#include "lock.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "handle.h"
#include "mappers.h"
#include "testpoint.h"

#ifdef HR_TESTPOINTS
int hr_testpoint_kill_at = -1;
int hr_testpoint_kill_on = 1;
int hr_testpoint_reached[HR_TESTPOINTS_COUNT];
uint64_t hr_testpoint_ownerless_ns = HR_OWNERLESS_NS;
#define OWNERLESS_NS hr_testpoint_ownerless_ns
#else
#define OWNERLESS_NS HR_OWNERLESS_NS
#endif

/* ---- The semaphore's bytes -------------------------------------------------- */

static unsigned char *sem_at(const hr_region *region)
{
    return region->base + region->layout->sem;
}

static unsigned char *owner_at(const hr_region *region)
{
    return region->base + region->layout->owner_pid;
}

static uint64_t owner_of(const hr_region *region)
{
    return hr_load_u64(owner_at(region), memory_order_acquire);
}

static uint32_t value_of(uint64_t word)
{
    return (uint32_t)word;
}

/* The futex is the low half of the word: little-endian, so the same address. */
static void futex_wait(unsigned char *sem, uint64_t nap_ns)
{
    const struct timespec nap = {.tv_nsec = (long)nap_ns};
    syscall(SYS_futex, sem, FUTEX_WAIT, 0, &nap, NULL, 0);
}

static void futex_wake(unsigned char *sem)
{
    /* Always: old glibc counts its waiters where new glibc has other bits. */
    syscall(SYS_futex, sem, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static bool try_take(unsigned char *sem)
{
    /* Acquire on success pairs with the release of whoever posted. */
    uint64_t word = hr_load_u64(sem, memory_order_relaxed);
    while (value_of(word) > 0) {
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
    futex_wake(sem);
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

static int set_range_lock(int fd, short type, off_t start, off_t length)
{
    struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = length};
    return fcntl(fd, F_OFD_SETLK, &range);
}

static int take_range(hr_region *region, off_t start, off_t length, uint64_t deadline_ns)
{
    unsigned naps = 0;
    while (set_range_lock(region->fd, F_WRLCK, start, length) != 0) {
        if (errno != EAGAIN && errno != EACCES && errno != EINTR)
            return hr_fail_errno(HR_ESYSTEM, errno);
        if (hr_is_closing(region))
            return hr_fail_code(HR_ECLOSED);
        if (!hr_nap(deadline_ns, &naps))
            return hr_fail_code(HR_ETIMEOUT);
    }
    return HR_OK;
}

static void drop_host_lock(hr_region *region)
{
    if (region->host_locked)
        set_range_lock(region->fd, F_UNLCK, HR_HOST_LOCK_BYTE, 1);
    region->host_locked = false;
}

static int take_host_lock(hr_region *region, uint64_t deadline_ns)
{
    int code = take_range(region, HR_HOST_LOCK_BYTE, 1, deadline_ns);
    if (code != HR_OK)
        return code;
    region->host_locked = true;
    HR_POINT(LOCK_HOST_TAKEN);
    return HR_OK;
}

/* ---- Taking and giving back ------------------------------------------------- */

static bool is_foreign(uint64_t owner)
{
    return owner >= HR_FOREIGN_OWNER && owner <= INT32_MAX;
}

static void decide_signature(hr_region *region)
{
    /* A slot of our own may show what could not be told before it. */
    bool may_have_changed = is_foreign(region->signature) && region->attached_pid != 0 &&
                            region->signature_for != region->attached_pid;
    if (region->signature != 0 && !may_have_changed)
        return;
    uint64_t pid = (uint64_t)getpid();
    region->signature_for = region->attached_pid;
    region->signature = hr_shares_namespace(region) ? pid : HR_FOREIGN_OWNER + pid;
}

/*
 * Whether the signature in owner_pid proves its holder dead, to one who has the
 * host lock: every live writer of this library that signs so would have that.
 */
static bool is_signed_by_dead_writer(const hr_region *region, uint64_t owner)
{
    return region->host_locked && is_foreign(owner);
}

struct take_call {
    hr_region *region;
    uint64_t deadline_ns;
};

static int sign(hr_region *region)
{
    region->locked = true;
    HR_POINT(LOCK_SEM_TAKEN);
    /* Release: who reads the signature has the semaphore's new value before it. */
    hr_store_u64(owner_at(region), region->signature, memory_order_release);
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
    unsigned char *sem = sem_at(region);
    uint64_t nap_ns = 20000;
    while (!try_take(sem)) {
        uint64_t owner = owner_of(region);
        if (is_signed_by_dead_writer(region, owner) &&
            hr_swap_u64(owner_at(region), &owner, region->signature)) {
            region->locked = true;
            int finished = hr_finish_removal(region);
            return finished < 0 ? finished : HR_OK;
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
    return timed_out(owner_of(argument));
}

static int name_owner(hr_region *region, int code)
{
    if (code != HR_ETIMEOUT)
        return code;
    return hr_guard_run(region->base, region->mapped_bytes, name_owner_work, region);
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
        int code = name_owner(region, take_host_lock(region, deadline_ns));
        if (code != HR_OK)
            return code;
        uint64_t slice = hr_deadline_ns(HOST_LOCK_SLICE_NS);
        struct take_call call = {.region = region,
                                 .deadline_ns = slice < deadline_ns ? slice : deadline_ns};
        code = hr_guard_run(region->base, region->mapped_bytes, take_work, &call);
        if (code == HR_OK)
            return HR_OK;
        region->locked = false;
        drop_host_lock(region);
        if (code != HR_ETIMEOUT || call.deadline_ns == deadline_ns || !hr_nap(deadline_ns, &naps))
            return code;
    }
}

int hr_lock_take(hr_region *region, uint64_t deadline_ns)
{
    int code = hr_gate_enter(region, deadline_ns);
    if (code != HR_OK)
        return name_owner(region, code);
    decide_signature(region);
    code = take_in_slices(region, deadline_ns);
    if (code != HR_OK)
        hr_gate_leave(region);
    return code;
}

static int take_quickly_work(void *argument)
{
    hr_region *region = argument;
    return try_take(sem_at(region)) ? sign(region) : HR_EBUSY;
}

int hr_lock_take_quickly(hr_region *region, uint64_t deadline_ns)
{
    int code = hr_gate_enter(region, deadline_ns);
    if (code != HR_OK)
        return name_owner(region, code);
    decide_signature(region);
    code = HR_EBUSY;
    if (!is_foreign(region->signature))
        code = hr_guard_run(region->base, region->mapped_bytes, take_quickly_work, region);
    if (code == HR_OK)
        return HR_OK;
    region->locked = false;
    hr_gate_leave(region);
    return code == HR_EBUSY ? hr_lock_take(region, deadline_ns) : code;
}

static int drop_work(void *argument)
{
    hr_region *region = argument;
    uint64_t ours = region->signature;
    /* Not ours any more: a waiter has taken it away, and posting would admit two. */
    if (!hr_swap_u64(owner_at(region), &ours, 0))
        return hr_fail_code(HR_ELOST);
    HR_POINT(UNLOCK_OWNER_CLEARED);
    post(sem_at(region));
    return HR_OK;
}

int hr_lock_drop(hr_region *region)
{
    int code = hr_guard_run(region->base, region->mapped_bytes, drop_work, region);
    region->locked = false;
    drop_host_lock(region);
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

/* ---- Who holds it ----------------------------------------------------------- */

struct state_call {
    const hr_region *region;
    struct hr_lock_state *out;
};

static int state_work(void *argument)
{
    struct state_call *call = argument;
    const hr_region *region = call->region;
    struct hr_lock_state *out = call->out;
    int code = hr_check_header(region);
    if (code != HR_OK)
        return code;
    uint64_t word = hr_load_u64(sem_at(region), memory_order_acquire);
    out->value = value_of(word);
    out->waiters = (uint32_t)(word >> 32);
    out->owner_pid = owner_of(region);
    out->is_ours = is_foreign(out->owner_pid);
    out->postinit = 1;
    if (region->layout->sem_postinit != HR_ABSENT)
        out->postinit = value_of(
            hr_load_u64(region->base + region->layout->sem_postinit, memory_order_acquire));
    return HR_OK;
}

/* A writer of this library lives while its host lock does. */
static enum hr_life life_of_foreign(const hr_region *region)
{
    if (region->locked)
        return HR_ALIVE;
    int fd = region->fd;
    if (fd < 0)
        fd = open(region->path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (fd < 0)
        return HR_LIFE_UNKNOWN;
    struct stat status;
    struct flock range = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = HR_HOST_LOCK_BYTE, .l_len = 1};
    enum hr_life life = HR_LIFE_UNKNOWN;
    if (fstat(fd, &status) == 0 && status.st_ino == region->inode &&
        status.st_dev == region->device_id && fcntl(fd, F_OFD_GETLK, &range) == 0)
        life = range.l_type == F_UNLCK ? HR_DEAD : HR_ALIVE;
    if (fd != region->fd)
        close(fd);
    return life;
}

static int judge_owner(hr_region *region, const char *proc, struct hr_lock_state *out)
{
    if (out->owner_pid == 0)
        return HR_OK;
    if (out->is_ours) {
        out->owner_pid_here = (int32_t)(out->owner_pid - HR_FOREIGN_OWNER);
        out->owner_life = life_of_foreign(region);
        return HR_OK;
    }
    if (out->owner_pid > INT32_MAX) {
        out->owner_life = HR_LIFE_UNKNOWN;
        return HR_OK;
    }
    struct hr_mappers mappers;
    int code = hr_find_mappers(region, proc, HR_WITH_OWN_HANDLE, &mappers);
    if (code != HR_OK)
        return code;
    out->owner_life =
        hr_life_of_owner(&mappers, (int32_t)out->owner_pid, &out->owner_pid_here);
    hr_free_mappers(&mappers);
    return HR_OK;
}

int hr_get_lock_state(hr_region *region, const char *proc, struct hr_lock_state *out)
{
    memset(out, 0, sizeof *out);
    struct state_call call = {.region = region, .out = out};
    int code = hr_run(region, state_work, &call);
    if (code != HR_OK)
        return code;
    code = hr_enter(region);
    if (code != HR_OK)
        return code;
    code = judge_owner(region, proc, out);
    hr_leave(region);
    return code;
}

/* ---- Recovery --------------------------------------------------------------- */

struct recovery {
    hr_region *region;
    const struct hr_mappers *mappers;
    uint64_t watch_ns;
    int done; /* set of enum hr_recovered */
};

static int not_recoverable(int why, uint64_t owner, int32_t here)
{
    struct hr_detail detail = {.code = HR_ENOTRECOVERABLE,
                               .why = why,
                               .device = -1,
                               .layout = HR_LAYOUTS,
                               .found = owner,
                               .wanted = (uint64_t)here};
    return hr_fail(&detail);
}

/* Nobody uses the file, for certain: this process neither, by another handle. */
static bool is_alone(const struct hr_mappers *mappers)
{
    return mappers->complete && mappers->count == 0 && mappers->unreadable_count == 0;
}

/* Whether word and owner stay as they are for `long_enough`. */
static bool stands_still(const struct recovery *recovery, const unsigned char *sem,
                         uint64_t long_enough)
{
    hr_region *region = recovery->region;
    uint64_t watch = recovery->watch_ns < long_enough ? recovery->watch_ns : long_enough;
    uint64_t word = hr_load_u64(sem, memory_order_acquire);
    uint64_t owner = owner_of(region);
    uint64_t deadline = hr_deadline_ns(watch);
    unsigned naps = 0;
    do {
        if (hr_load_u64(sem, memory_order_acquire) != word || owner_of(region) != owner ||
            hr_is_closing(region))
            return false;
    } while (hr_nap(deadline, &naps));
    return watch >= long_enough;
}

/* Sign in the place of a holder that is gone: from here on the lock is ours. */
static bool take_over(struct recovery *recovery, uint64_t gone, int what)
{
    hr_region *region = recovery->region;
    if (!hr_swap_u64(owner_at(region), &gone, region->signature))
        return false;
    HR_POINT(RECOVER_OWNER_TAKEN);
    region->locked = true;
    recovery->done |= what;
    return true;
}

/* The value while a holder is inside is 0, whatever it stood at. */
static void set_value(unsigned char *sem, uint32_t value)
{
    uint64_t word = hr_load_u64(sem, memory_order_acquire);
    while (!hr_swap_u64(sem, &word, (word & ~(uint64_t)UINT32_MAX) | value))
        ;
    HR_POINT(RECOVER_VALUE_STORED);
}

static enum hr_life owner_life(const struct recovery *recovery, uint64_t owner, int32_t *here)
{
    *here = 0;
    if (is_signed_by_dead_writer(recovery->region, owner))
        return HR_DEAD;
    if (owner > INT32_MAX)
        return HR_LIFE_UNKNOWN;
    return hr_life_of_owner(recovery->mappers, (int32_t)owner, here);
}

/* HR_OK with region->locked where the lock is ours now. */
static int recover_signed(struct recovery *recovery, uint64_t owner, uint32_t value)
{
    hr_region *region = recovery->region;
    int32_t here;
    enum hr_life life = owner_life(recovery, owner, &here);
    if (life == HR_DEAD) {
        if (!take_over(recovery, owner, HR_RECOVERED_OWNER))
            return not_recoverable(HR_WHY_BUSY, owner, 0);
        if (value > 0)
            set_value(sem_at(region), 0);
        return HR_OK;
    }
    if (value > 1 && life == HR_ALIVE) {
        /* It is inside, so 0 is right, and 1 after its post. */
        set_value(sem_at(region), 0);
        recovery->done |= HR_RECOVERED_VALUE;
        return HR_OK;
    }
    return not_recoverable(life == HR_ALIVE ? HR_WHY_ALIVE : HR_WHY_UNKNOWN, owner, here);
}

static int recover_unsigned(struct recovery *recovery)
{
    hr_region *region = recovery->region;
    if (!is_alone(recovery->mappers) && !stands_still(recovery, sem_at(region), OWNERLESS_NS))
        return not_recoverable(HR_WHY_BUSY, 0, 0);
    if (value_of(hr_load_u64(sem_at(region), memory_order_acquire)) != 0)
        return HR_OK;
    if (!take_over(recovery, 0, HR_RECOVERED_OWNERLESS))
        return not_recoverable(HR_WHY_BUSY, 0, 0);
    return HR_OK;
}

static int recover_work(void *argument)
{
    struct recovery *recovery = argument;
    hr_region *region = recovery->region;
    uint64_t word = hr_load_u64(sem_at(region), memory_order_acquire);
    uint64_t owner = owner_of(region);
    uint32_t value = value_of(word);
    int code = HR_OK;
    if (value == 0 && owner == 0) {
        code = recover_unsigned(recovery);
    } else if (value == 0 || (value > 1 && owner != 0)) {
        code = recover_signed(recovery, owner, value);
    } else if (value > 1) {
        set_value(sem_at(region), 1);
        recovery->done |= HR_RECOVERED_VALUE;
    }
    if (code != HR_OK || !region->locked)
        return code;
    code = hr_finish_removal(region);
    if (code > 0) {
        recovery->done |= HR_RECOVERED_MOVE;
        code = HR_OK;
    }
    return code;
}

static int postinit_work(void *argument)
{
    struct recovery *recovery = argument;
    unsigned char *sem = recovery->region->base + recovery->region->layout->sem_postinit;
    uint64_t word = hr_load_u64(sem, memory_order_acquire);
    if (value_of(word) == 1)
        return HR_OK;
    if (value_of(word) == 0 && !is_alone(recovery->mappers) &&
        !stands_still(recovery, sem, HR_POSTINIT_NS))
        return HR_OK; /* in use, as far as anybody can tell */
    uint64_t free_word = (word & ~(uint64_t)UINT32_MAX) | 1;
    if (hr_swap_u64(sem, &word, free_word)) {
        futex_wake(sem);
        recovery->done |= HR_RECOVERED_POSTINIT;
    }
    return HR_OK;
}

static bool needs_recovery(const struct hr_lock_state *state)
{
    return state->value != 1 || state->postinit != 1;
}

/* With gate and host lock held. */
static int recover_held(hr_region *region, const char *proc, uint64_t watch_ns)
{
    struct hr_lock_state state = {0};
    struct state_call look = {.region = region, .out = &state};
    int code = hr_guard_run(region->base, region->mapped_bytes, state_work, &look);
    if (code != HR_OK || !needs_recovery(&state))
        return code;
    struct hr_mappers mappers;
    code = hr_find_mappers(region, proc, HR_WITHOUT_OWN_HANDLE, &mappers);
    if (code != HR_OK)
        return code;
    struct recovery recovery = {.region = region, .mappers = &mappers, .watch_ns = watch_ns};
    if (state.value != 1)
        code = hr_guard_run(region->base, region->mapped_bytes, recover_work, &recovery);
    if (region->locked) {
        int dropped = hr_guard_run(region->base, region->mapped_bytes, drop_work, region);
        region->locked = false;
        code = code == HR_OK ? dropped : code;
    }
    if (code == HR_OK && region->layout->sem_postinit != HR_ABSENT)
        code = hr_guard_run(region->base, region->mapped_bytes, postinit_work, &recovery);
    hr_free_mappers(&mappers);
    return code == HR_OK ? recovery.done : code;
}

/*
 * Up to 2.8.0 a waiter that finds the owner dead repairs that under lockf over the
 * struct.  The same range, locked by us as well, keeps the two recoveries apart:
 * locks of open files and of processes exclude each other.
 */
static int recover_apart_from_libvgpu(hr_region *region, const char *proc, uint64_t watch_ns,
                                      uint64_t deadline_ns)
{
    if (region->layout->slot_seqlock != HR_ABSENT)
        return recover_held(region, proc, watch_ns);
    off_t length = (off_t)region->layout->size;
    int code = take_range(region, 0, length, deadline_ns);
    if (code != HR_OK)
        return code;
    code = recover_held(region, proc, watch_ns);
    set_range_lock(region->fd, F_UNLCK, 0, length);
    return code;
}

/* Another writer of this library, or another thread, is at it: say who holds the lock. */
static int held_meanwhile(hr_region *region, const char *proc)
{
    struct hr_lock_state state = {0};
    struct state_call look = {.region = region, .out = &state};
    int code = hr_guard_run(region->base, region->mapped_bytes, state_work, &look);
    if (code == HR_OK)
        code = judge_owner(region, proc, &state);
    if (code != HR_OK)
        return code;
    bool alive = state.owner_pid != 0 && state.owner_life == HR_ALIVE;
    return not_recoverable(alive ? HR_WHY_ALIVE : HR_WHY_BUSY, state.owner_pid,
                           state.owner_pid_here);
}

int hr_recover_lock(hr_region *region, const char *proc, uint64_t watch_ns)
{
    if (!region->writable)
        return hr_fail_code(HR_EREADONLY);
    int code = hr_enter(region);
    if (code != HR_OK)
        return code;
    const uint64_t patience_ns = 2000000000;
    uint64_t deadline = hr_deadline_ns(patience_ns);
    code = hr_gate_enter(region, deadline);
    if (code == HR_OK) {
        decide_signature(region);
        code = take_host_lock(region, deadline);
        if (code == HR_OK) {
            code = recover_apart_from_libvgpu(region, proc, watch_ns, deadline);
            drop_host_lock(region);
        }
        hr_gate_leave(region);
    }
    if (code == HR_ETIMEOUT)
        code = held_meanwhile(region, proc);
    hr_leave(region);
    return code;
}
