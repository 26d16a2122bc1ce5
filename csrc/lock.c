#define _GNU_SOURCE

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "slots.h"
#include "testpoint.h"

/* ---- The words -------------------------------------------------------------- */

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

struct hr_lock_words hr_load_lock(const hr_region *region)
{
    /* Acquire: what the last holder stored is visible to who finds its words. */
    struct hr_lock_words words = {.owner = hr_owner_of(region)};
    words.sem = hr_load_u64(hr_sem_at(region), memory_order_acquire);
    return words;
}

/* A full barrier, as every locked instruction is one; pairs with itself, and with libvgpu's. */
bool hr_swap_lock(hr_region *region, struct hr_lock_words from, struct hr_lock_words to)
{
    unsigned char *at = hr_owner_at(region);
#if defined(__x86_64__)
    /* By hand: the compilers inline it only where all code is made for such processors. */
    bool swapped;
    __asm__ __volatile__("lock cmpxchg16b %1"
                         : "=@ccz"(swapped), "+m"(*(struct hr_lock_words *)(void *)at),
                           "+a"(from.owner), "+d"(from.sem)
                         : "b"(to.owner), "c"(to.sem)
                         : "memory");
    return swapped;
#else
    const unsigned __int128 before = (unsigned __int128)from.sem << 64 | from.owner;
    const unsigned __int128 after = (unsigned __int128)to.sem << 64 | to.owner;
    return __sync_bool_compare_and_swap((unsigned __int128 *)(void *)at, before, after);
#endif
}

uintptr_t hr_thread_id(void)
{
    /* The address of a thread's own variable: cheaper than a system call. */
    static _Thread_local char here;
    return (uintptr_t)&here;
}

int hr_check_lockable(const hr_region *region)
{
    const struct hr_layout *layout = region->layout;
    if (layout->sem != layout->owner_pid + 8 || layout->owner_pid % 16 != 0)
        return hr_fail(&(struct hr_error){
            .code = HR_EREADONLY, .reason = HR_REASON_LAYOUT, .device = -1, .layout = layout->id});
    return HR_OK;
}

int hr_enter_to_lock(hr_region *region)
{
    int code = hr_check_lockable(region);
    return code == HR_OK ? hr_enter_to_write(region) : code;
}

/* ---- The gate: threads of one handle ---------------------------------------- */

static bool take_free_gate(hr_region *region)
{
    uint32_t state = 0;
    return atomic_compare_exchange_strong_explicit(&region->lock.gate, &state, 1,
                                                   memory_order_acquire, memory_order_relaxed);
}

int hr_gate_enter(hr_region *region, uint64_t deadline_ns)
{
    if (!take_free_gate(region)) {
        if (atomic_load_explicit(&region->lock.gate_thread, memory_order_relaxed) == hr_thread_id())
            return hr_fail_code(HR_EBUSY);
        /* 2 from here on: the thread that leaves has to wake another. */
        while (atomic_exchange_explicit(&region->lock.gate, 2, memory_order_acquire) != 0) {
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
            syscall(SYS_futex, &region->lock.gate, FUTEX_WAIT_PRIVATE, 2, &nap, NULL, 0);
        }
    }
    atomic_store_explicit(&region->lock.gate_thread, hr_thread_id(), memory_order_relaxed);
    return HR_OK;
}

void hr_gate_leave(hr_region *region)
{
    atomic_store_explicit(&region->lock.gate_thread, 0, memory_order_relaxed);
    if (atomic_exchange_explicit(&region->lock.gate, 0, memory_order_release) == 2)
        syscall(SYS_futex, &region->lock.gate, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* ---- Signatures --------------------------------------------------------------- */

/* After HR_EBUSY: HR_EBUSY again after a nap, or what ends the waiting. */
static int nap_before_next(hr_region *region, uint64_t deadline_ns, unsigned *naps)
{
    if (hr_is_closing(region))
        return hr_fail_code(HR_ECLOSED);
    return hr_nap(deadline_ns, naps) ? HR_EBUSY : hr_fail_code(HR_ETIMEOUT);
}

int hr_await_bytes(hr_region *region, off_t start, off_t length, uint64_t deadline_ns,
                   struct hr_byte_lock *out)
{
    unsigned naps = 0;
    int code;
    do
        code = hr_lock_bytes(region, F_WRLCK, start, length, out);
    while (code == HR_EBUSY && (code = nap_before_next(region, deadline_ns, &naps)) == HR_EBUSY);
    return code;
}

static uint64_t draw(const hr_region *region)
{
    uint32_t random;
    if (getrandom(&random, sizeof random, GRND_NONBLOCK) != sizeof random)
        random = (uint32_t)hr_clock_ns(CLOCK_MONOTONIC) * 2654435761u;
    /* Locks in one inode say nothing to those who have opened another. */
    return (region->has_own_pages ? HR_FOREIGN_OWNER : HR_FOREIGN_END) +
           random % (HR_FOREIGN_END - HR_FOREIGN_OWNER) / HR_TURNS * HR_TURNS;
}

/* A dead writer's signature may still stand there: its numbers must not come to life. */
static int check_numbers_work(void *argument)
{
    const hr_region *region = argument;
    return hr_owner_of(region) / HR_TURNS == region->lock.numbers / HR_TURNS ? HR_EBUSY : HR_OK;
}

static int draw_numbers(hr_region *region, uint64_t deadline_ns)
{
    struct hr_lock_part *lock = &region->lock;
    unsigned naps = 0;
    int code;
    /* A container may lock all bytes there are. */
    do {
        const uint64_t numbers = draw(region);
        code = hr_lock_bytes(region, F_WRLCK, hr_number_byte(numbers), HR_TURNS, &lock->own_bytes);
        HR_POINT(LOCK_NUMBERS_DRAWN);
        if (code == HR_OK) {
            lock->numbers = numbers;
            code = hr_run_entered(region, check_numbers_work, region);
        }
        if (code == HR_OK)
            return code;
        lock->numbers = 0;
        hr_unlock_bytes(region, &lock->own_bytes);
    } while (code == HR_EBUSY && (code = nap_before_next(region, deadline_ns, &naps)) == HR_EBUSY);
    return code;
}

int hr_choose_signature(hr_region *region, uint64_t deadline_ns)
{
    struct hr_lock_part *lock = &region->lock;
    const struct hr_own_slot *own = &region->own;
    if (own->signature != 0) {
        lock->signature = own->signature;
        return HR_OK;
    }
    if (atomic_load_explicit(&own->attaching_thread, memory_order_relaxed) == hr_thread_id()) {
        lock->signature = own->attaching_signature;
        return HR_OK;
    }
    int code = lock->numbers != 0 ? HR_OK : draw_numbers(region, deadline_ns);
    lock->signature = lock->numbers + lock->turn % HR_TURNS;
    return code;
}

/* ---- Taking --------------------------------------------------------------------- */

void hr_note_taken(hr_region *region)
{
    region->lock.held = true;
    region->lock.turn++;
}

struct attempt {
    hr_region *region;
    struct hr_lock_words seen;
};

/* HR_EBUSY, without a detail: not taken. */
static int attempt_work(void *argument)
{
    struct attempt *attempt = argument;
    hr_region *region = attempt->region;
    do {
        attempt->seen = hr_load_lock(region);
        if (attempt->seen.owner != 0 || hr_sem_value(attempt->seen.sem) == 0)
            return HR_EBUSY;
    } while (!hr_swap_lock(region, attempt->seen,
                           hr_lock_with(attempt->seen, region->lock.signature, 0)));
    hr_note_taken(region);
    HR_POINT(LOCK_OWNER_STORED);
    return HR_OK;
}

/*
 * Killed while it charged, the dead owner has left its seqlock odd, and libvgpu would wait for that
 * with the lock.  The byte of its pid is locked by us: a slot with its mark is of no other process.
 */
static void end_seqlock_of(const hr_region *region, uint64_t owner)
{
    if (!hr_is_attached_owner(owner) || !hr_has_seqlock(region))
        return;
    for (int32_t index = 0; index < HR_SLOTS && hr_lock_is_kept(region); index++) {
        if (hr_slot_pid(region, index) != (int32_t)hr_owner_pid(owner))
            continue;
        const struct hr_seen_slot slot = hr_look_at_slot(region, index);
        if (slot.mark != 0 && hr_marked_signature(slot.pid, slot.mark) == owner &&
            (slot.seqlock & 1) != 0 && hr_end_seqlock(region, index, slot.seqlock))
            HR_POINT(SEQLOCK_ENDED);
    }
}

static int take_over_work(void *argument)
{
    struct attempt *attempt = argument;
    hr_region *region = attempt->region;
    struct hr_lock_words now = hr_load_lock(region);
    if (now.owner != attempt->seen.owner ||
        !hr_swap_lock(region, now, hr_lock_with(now, region->lock.signature, 0)))
        return HR_EBUSY;
    hr_note_taken(region);
    HR_POINT(LOCK_TAKEN_OVER);
    end_seqlock_of(region, attempt->seen.owner);
    return HR_OK;
}

/*
 * HR_EBUSY: its writer lives, or that cannot be told.  While its byte is locked nobody
 * can draw that number.  Up to 2.8.0 a waiter of libvgpu that repairs has the struct's range
 * locked and stores plainly; holding that range until the lock is given back also
 * keeps such waiters, whose time is up, from taking it at once.
 */
static int take_over(struct attempt *attempt)
{
    hr_region *region = attempt->region;
    struct hr_byte_lock dead = {NULL};
    const uint64_t owner = attempt->seen.owner;
    int code = hr_is_predecessor(region, owner)
                   ? HR_OK
                   : hr_lock_bytes(region, F_RDLCK, hr_owner_byte(region, owner), 1, &dead);
    if (code == HR_OK && region->layout->slot_seqlock == HR_ABSENT)
        code = hr_lock_bytes(region, F_WRLCK, 0, (off_t)region->layout->size, &region->lock.range);
    if (code == HR_OK)
        code = hr_run_entered(region, take_over_work, attempt);
    hr_unlock_bytes(region, &dead);
    if (code != HR_OK) {
        hr_unlock_bytes(region, &region->lock.range);
        return code == HR_ESTALE ? code : HR_EBUSY;
    }
    return HR_OK;
}

/* Naps before a signature is judged: most holders are gone by then. */
#define PATIENCE_NS 80000

static int take(struct attempt *attempt, uint64_t deadline_ns)
{
    hr_region *region = attempt->region;
    uint64_t nap_ns = 20000;
    for (;;) {
        attempt->seen.owner = 0;
        int code = hr_run_entered(region, attempt_work, attempt);
        if (code != HR_EBUSY)
            return code;
        if (hr_is_closing(region))
            return hr_fail_code(HR_ECLOSED);
        uint64_t now = hr_clock_ns(CLOCK_MONOTONIC);
        bool is_last = now >= deadline_ns;
        if (hr_owner_byte(region, attempt->seen.owner) != 0 && (is_last || nap_ns > PATIENCE_NS)) {
            code = take_over(attempt);
            if (code != HR_EBUSY)
                return code;
        }
        if (is_last)
            return HR_ETIMEOUT;
        /* glibc's post does not know of us: never sleep past a millisecond. */
        uint64_t left = deadline_ns - now;
        futex_wait(hr_sem_at(region), nap_ns < left ? nap_ns : left);
        nap_ns = nap_ns < 640000 ? nap_ns * 2 : 1000000 - 1;
    }
}

/* Say who has signed, whether this lock was waited for, another thread, or numbers all locked. */
static int time_out_work(void *argument)
{
    return HR_FAIL(HR_ETIMEOUT, .found = hr_owner_pid(hr_owner_of(argument)));
}

int hr_lock_take(hr_region *region, uint64_t deadline_ns)
{
    struct attempt attempt = {.region = region};
    int code = hr_gate_enter(region, deadline_ns);
    bool entered = code == HR_OK;
    if (code == HR_OK)
        code = hr_choose_signature(region, deadline_ns);
    if (code == HR_OK)
        code = take(&attempt, deadline_ns);
    if (code == HR_ETIMEOUT)
        code = hr_run_entered(region, time_out_work, region);
    if (entered && code != HR_OK)
        hr_gate_leave(region);
    return code;
}

/* ---- Giving back ------------------------------------------------------------------ */

static int give_back_work(void *argument)
{
    hr_region *region = argument;
    struct hr_lock_words now;
    do {
        now = hr_load_lock(region);
        /* Not ours any more: a waiter has taken it away, and a post would admit two. */
        if (now.owner != region->lock.signature)
            return hr_fail_code(HR_ELOST);
    } while (!hr_swap_lock(region, now, hr_lock_with(now, 0, 1)));
    HR_POINT(UNLOCK_SEM_POSTED);
    /*
     * Always, though it is a call of the kernel: no count proves that no waiter sleeps.  Waiters of
     * this library are in no count.  Old glibc has its count where new glibc has a flag of 128, so
     * that 128 waiters look like none; and waiters that were killed stay counted.
     */
    hr_sem_wake(hr_sem_at(region));
    HR_POINT(UNLOCK_WOKEN);
    return HR_OK;
}

int hr_give_back(hr_region *region)
{
    int code = hr_run_entered(region, give_back_work, region);
    region->lock.held = false;
    hr_unlock_bytes(region, &region->lock.range);
    return code;
}

int hr_lock_drop(hr_region *region)
{
    int code = hr_give_back(region);
    hr_gate_leave(region);
    return code;
}

/* ---- For users -------------------------------------------------------------------- */

int hr_lock(hr_region *region, uint64_t timeout_ns, struct hr_error *error)
{
    int code = hr_enter_to_lock(region);
    if (code != HR_OK)
        return hr_report(error, code);
    code = hr_lock_take(region, hr_deadline_ns(timeout_ns));
    if (code == HR_OK) {
        /* Release: another thread may give it back, and reads what it was signed with. */
        atomic_store_explicit(&region->lock.handed_out, true, memory_order_release);
    }
    return hr_report(error, hr_leave_after(region, code));
}

int hr_unlock(hr_region *region, struct hr_error *error)
{
    int code = hr_enter(region);
    if (code != HR_OK)
        return hr_report(error, code);
    code = atomic_exchange_explicit(&region->lock.handed_out, false, memory_order_acquire)
               ? hr_lock_drop(region)
               : hr_fail_code(HR_EBUSY);
    return hr_report(error, hr_leave_after(region, code));
}

int hr_unlock_own(hr_region *region, struct hr_error *error)
{
    if (atomic_load_explicit(&region->lock.gate_thread, memory_order_relaxed) != hr_thread_id())
        return hr_report(error, hr_fail_code(HR_EBUSY));
    return hr_unlock(region, error);
}

int hr_lock_drop_after(hr_region *region, int code)
{
    struct hr_error detail;
    if (code < 0)
        hr_last_error(&detail);
    int dropped = hr_lock_drop(region);
    if (code < 0)
        hr_fail(&detail);
    /* The work is done, even if the lock was taken away before its end. */
    return code >= 0 && dropped != HR_OK && dropped != HR_ELOST ? dropped : code;
}

/* ---- Running work under the lock ------------------------------------------------- */

int hr_run_locked(hr_region *region, hr_guarded_work *work, void *argument, uint64_t timeout_ns)
{
    int code = hr_enter_to_lock(region);
    if (code != HR_OK)
        return code;
    code = hr_lock_take(region, hr_deadline_ns(timeout_ns));
    if (code == HR_OK)
        code = hr_lock_drop_after(region, hr_run_entered(region, work, argument));
    return hr_leave_after(region, code);
}
