#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "identify.h"
#include "lock_word.h"
#include "mappers.h"
#include "testpoint.h"

#ifdef HR_TESTPOINTS
#define OWNERLESS_NS hr_testpoint_ownerless_ns
#else
#define OWNERLESS_NS HR_OWNERLESS_NS
#endif

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
    uint64_t word = hr_load_u64(hr_sem_at(region), memory_order_acquire);
    out->value = hr_sem_value(word);
    out->waiters = (uint32_t)(word >> 32);
    out->owner_pid = hr_owner_of(region);
    out->is_ours = hr_is_foreign(out->owner_pid);
    out->postinit = 1;
    if (region->layout->sem_postinit != HR_ABSENT)
        out->postinit = hr_sem_value(
            hr_load_u64(region->base + region->layout->sem_postinit, memory_order_acquire));
    return HR_OK;
}

/* A writer of this library lives while its host lock does. */
static enum hr_life life_of_foreign(const hr_region *region)
{
    if (region->locked)
        return HR_ALIVE;
    int fd = region->fd;
    struct stat status;
    if (fd < 0 && hr_open_file(region->path, 0, &fd, &status) != HR_OK)
        return HR_LIFE_UNKNOWN;
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
    const struct hr_slot_pids owner = {
        .pids = {(int32_t)out->owner_pid}, .count = 1, .any_level = true};
    int code = hr_find_mappers(region, proc, HR_WITH_OWN_HANDLE, &owner,
                               hr_deadline_ns(HR_SEARCH_NS), &mappers);
    if (code != HR_OK)
        return code;
    out->owner_life = hr_life_of_owner(&mappers, (int32_t)out->owner_pid, &out->owner_pid_here);
    hr_free_mappers(&mappers);
    return HR_OK;
}

/* State, then judgement; again where the lock has changed hands in between. */
static int judge_state(hr_region *region, const char *proc, struct hr_lock_state *out)
{
    const int tries = 3;
    struct hr_lock_state after;
    for (int try = 0; try < tries; try++) {
        memset(out, 0, sizeof *out);
        memset(&after, 0, sizeof after);
        uint32_t uses = atomic_load_explicit(&hr_uses, memory_order_seq_cst);
        struct state_call before_call = {.region = region, .out = out};
        struct state_call after_call = {.region = region, .out = &after};
        int code = hr_run_entered(region, state_work, &before_call);
        if (code == HR_OK)
            code = judge_owner(region, proc, out);
        if (code == HR_OK)
            code = hr_run_entered(region, state_work, &after_call);
        if (code != HR_OK)
            return code;
        bool is_own = out->owner_pid == (uint64_t)getpid();
        bool used_meanwhile = uses != atomic_load_explicit(&hr_uses, memory_order_seq_cst);
        if (after.owner_pid == out->owner_pid && after.value == out->value &&
            !(is_own && used_meanwhile))
            return HR_OK;
    }
    /* Who lets go is alive, whatever was found of it afterwards. */
    if (out->owner_pid != 0)
        out->owner_life = HR_ALIVE;
    return HR_OK;
}

int hr_get_lock_state(hr_region *region, const char *proc, struct hr_lock_state *out)
{
    int code = hr_enter(region);
    if (code != HR_OK)
        return code;
    code = judge_state(region, proc, out);
    hr_leave(region);
    return code;
}

/* ---- Recovery --------------------------------------------------------------- */

struct recovery {
    hr_region *region;
    const struct hr_mappers *mappers;
    uint64_t owner_pid; /* from before the scan, which says nothing about who came later */
    uint32_t uses;      /* and hr_uses of then */
    uint64_t watch_ns;
    int done; /* set of enum hr_recovered */
    bool interrupted;
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
    return mappers->complete && !mappers->filtered && mappers->count == 0 &&
           mappers->unsure_count == 0;
}

/* Whether value and owner stay as they are for `long_enough`; waiters may come and go. */
static bool stands_still(struct recovery *recovery, const unsigned char *sem, uint64_t long_enough)
{
    hr_region *region = recovery->region;
    uint64_t watch = recovery->watch_ns < long_enough ? recovery->watch_ns : long_enough;
    uint32_t value = hr_sem_value(hr_load_u64(sem, memory_order_acquire));
    uint64_t owner = hr_owner_of(region);
    uint64_t deadline = hr_deadline_ns(watch);
    const struct timespec nap = {.tv_nsec = 1000000};
    while (hr_clock_ns(CLOCK_MONOTONIC) < deadline) {
        if (hr_sem_value(hr_load_u64(sem, memory_order_acquire)) != value ||
            hr_owner_of(region) != owner || hr_is_closing(region))
            return false;
        if (nanosleep(&nap, NULL) != 0) {
            recovery->interrupted = true;
            return false;
        }
    }
    return watch >= long_enough;
}

/* Sign in the place of a holder that is gone: from here on the lock is ours. */
static bool take_over(struct recovery *recovery, uint64_t gone, int what)
{
    hr_region *region = recovery->region;
    if (!hr_swap_u64(hr_owner_at(region), &gone, region->signature))
        return false;
    HR_POINT(RECOVER_OWNER_TAKEN);
    region->locked = true;
    recovery->done |= what;
    return true;
}

/* Only if it still is the word that was judged. */
static bool set_value(unsigned char *sem, uint64_t word, uint32_t value)
{
    if (!hr_swap_u64(sem, &word, (word & ~(uint64_t)UINT32_MAX) | value))
        return false;
    HR_POINT(RECOVER_VALUE_STORED);
    return true;
}

/* While a holder is inside the value is 0, whatever it stood at. */
static void lower_to_held(unsigned char *sem)
{
    uint64_t word;
    do {
        word = hr_load_u64(sem, memory_order_acquire);
    } while (hr_sem_value(word) > 0 && !set_value(sem, word, 0));
}

static enum hr_life owner_life(const struct recovery *recovery, uint64_t owner, int32_t *here)
{
    *here = 0;
    if (hr_is_signed_by_dead_writer(recovery->region, owner))
        return HR_DEAD;
    if (owner > INT32_MAX)
        return HR_LIFE_UNKNOWN;
    return hr_life_of_owner(recovery->mappers, (int32_t)owner, here);
}

/* HR_OK with region->locked where the lock is ours now. */
static int recover_signed(struct recovery *recovery, uint64_t owner, uint64_t word)
{
    hr_region *region = recovery->region;
    int32_t here;
    enum hr_life life = owner_life(recovery, owner, &here);
    if (life == HR_DEAD) {
        if (!take_over(recovery, owner, HR_RECOVERED_OWNER))
            return not_recoverable(HR_WHY_BUSY, owner, 0);
        lower_to_held(hr_sem_at(region));
        return HR_OK;
    }
    if (hr_sem_value(word) > 1 && life == HR_ALIVE) {
        /* It is inside, so 0 is right, and 1 after its post. */
        if (!set_value(hr_sem_at(region), word, 0))
            return not_recoverable(HR_WHY_BUSY, owner, here);
        recovery->done |= HR_RECOVERED_VALUE;
        return HR_OK;
    }
    return not_recoverable(life == HR_ALIVE ? HR_WHY_ALIVE : HR_WHY_UNKNOWN, owner, here);
}

static int recover_unsigned(struct recovery *recovery)
{
    hr_region *region = recovery->region;
    if (!is_alone(recovery->mappers) && !stands_still(recovery, hr_sem_at(region), OWNERLESS_NS))
        return recovery->interrupted ? hr_fail_code(HR_EINTERRUPTED)
                                     : not_recoverable(HR_WHY_BUSY, 0, 0);
    if (hr_sem_value(hr_load_u64(hr_sem_at(region), memory_order_acquire)) != 0)
        return HR_OK;
    if (!take_over(recovery, 0, HR_RECOVERED_OWNERLESS))
        return not_recoverable(HR_WHY_BUSY, 0, 0);
    return HR_OK;
}

static int recover_work(void *argument)
{
    struct recovery *recovery = argument;
    hr_region *region = recovery->region;
    uint64_t word = hr_load_u64(hr_sem_at(region), memory_order_acquire);
    uint64_t owner = hr_owner_of(region);
    uint32_t value = hr_sem_value(word);
    int code = HR_OK;
    bool used_meanwhile = recovery->uses != atomic_load_explicit(&hr_uses, memory_order_seq_cst);
    if (owner != recovery->owner_pid || (owner == (uint64_t)getpid() && used_meanwhile))
        return not_recoverable(HR_WHY_BUSY, owner, 0);
    if (value == 0 && owner == 0) {
        code = recover_unsigned(recovery);
    } else if (value == 0 || (value > 1 && owner != 0)) {
        code = recover_signed(recovery, owner, word);
    } else if (value > 1 && set_value(hr_sem_at(region), word, 1)) {
        recovery->done |= HR_RECOVERED_VALUE;
    } else if (value > 1) {
        code = not_recoverable(HR_WHY_BUSY, owner, 0);
    }
    return code;
}

static int postinit_work(void *argument)
{
    struct recovery *recovery = argument;
    unsigned char *sem = recovery->region->base + recovery->region->layout->sem_postinit;
    uint64_t word = hr_load_u64(sem, memory_order_acquire);
    if (hr_sem_value(word) == 1)
        return HR_OK;
    if (hr_sem_value(word) == 0 && !is_alone(recovery->mappers) &&
        !stands_still(recovery, sem, HR_POSTINIT_NS))
        return recovery->interrupted ? hr_fail_code(HR_EINTERRUPTED)
                                     : HR_OK; /* in use, as far as anybody can tell */
    /* Waiters may have come and gone since; the value must be the one that was judged. */
    const uint32_t judged = hr_sem_value(word);
    do {
        word = hr_load_u64(sem, memory_order_acquire);
        if (hr_sem_value(word) != judged)
            return HR_OK;
    } while (!set_value(sem, word, 1));
    hr_sem_wake(sem);
    recovery->done |= HR_RECOVERED_POSTINIT;
    return HR_OK;
}

static bool needs_recovery(const struct hr_lock_state *state)
{
    return state->value != 1 || state->postinit != 1;
}

/* With gate and host lock held. */
static int recover_held(hr_region *region, const char *proc, uint64_t watch_ns)
{
    uint32_t uses = atomic_load_explicit(&hr_uses, memory_order_seq_cst);
    struct hr_lock_state state = {0};
    struct state_call look = {.region = region, .out = &state};
    int code = hr_run_entered(region, state_work, &look);
    if (code != HR_OK || !needs_recovery(&state))
        return code;
    struct hr_mappers mappers;
    /* Of a signed lock only the owner has to be found; an unsigned one may be anybody's. */
    const struct hr_slot_pids owner = {
        .pids = {(int32_t)state.owner_pid}, .count = 1, .any_level = true};
    bool has_owner = state.postinit == 1 && state.owner_pid != 0 && state.owner_pid <= INT32_MAX;
    code = hr_find_mappers(region, proc, HR_WITHOUT_OWN_HANDLE, has_owner ? &owner : NULL,
                           hr_deadline_ns(HR_SEARCH_NS), &mappers);
    if (code != HR_OK)
        return code;
    struct recovery recovery = {.region = region,
                                .mappers = &mappers,
                                .owner_pid = state.owner_pid,
                                .uses = uses,
                                .watch_ns = watch_ns};
    if (state.value != 1)
        code = hr_run_entered(region, recover_work, &recovery);
    if (region->locked) {
        int dropped = hr_run_entered(region, hr_drop_semaphore_work, region);
        region->locked = false;
        code = code == HR_OK ? dropped : code;
    }
    if (code == HR_OK && region->layout->sem_postinit != HR_ABSENT)
        code = hr_run_entered(region, postinit_work, &recovery);
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
    int code = hr_take_range(region, 0, length, deadline_ns);
    if (code != HR_OK)
        return code;
    code = recover_held(region, proc, watch_ns);
    hr_set_range_lock(region->fd, F_UNLCK, 0, length);
    return code;
}

/* Another writer of this library, or another thread, is at it: say who holds the lock. */
static int held_meanwhile(hr_region *region, const char *proc)
{
    struct hr_lock_state state = {0};
    struct state_call look = {.region = region, .out = &state};
    int code = hr_run_entered(region, state_work, &look);
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
    const uint64_t patience_ns = 500000000;
    uint64_t deadline = hr_deadline_ns(patience_ns);
    code = hr_gate_enter(region, deadline);
    if (code == HR_OK) {
        hr_decide_signature(region);
        code = hr_take_host_lock(region, deadline);
        if (code == HR_OK) {
            code = recover_apart_from_libvgpu(region, proc, watch_ns, deadline);
            hr_drop_host_lock(region);
        }
        hr_gate_leave(region);
    }
    if (code == HR_ETIMEOUT)
        code = held_meanwhile(region, proc);
    hr_leave(region);
    return code;
}
