/*
 * Glibc's own semaphore on the other side, as libvgpu uses it:
 *
 *     glibc_peer [TURNS [TRIES]]
 *
 * One process takes the lock by plain sem_timedwait() and sem_post(), another by
 * this library, in the same bytes.  What they count in turn inside the lock with a
 * plain variable must add up.  Then glibc's side sleeps in sem_timedwait() and has
 * to be woken by our release, and by our recovery when the holder is killed.  All of
 * it again with the semaphore of a glibc before 2.21 (glibc_lock.h).
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "check.h"
#include "glibc_lock.h"
#include "region.h"
#include "region_file.h"

/* Far from the 10 s that a sleeper waits whom nobody wakes; a busy machine needs its time. */
#define PROMPT_NS (5 * ONE_SECOND)
enum { LAYOUTS = HR_LAYOUTS - HR_V1_1 };

/* Beside the region: what both sides see. */
struct shared {
    volatile uint64_t counter; /* plain: only the lock makes it right */
    volatile uint64_t inside;  /* 1 while somebody is */
    volatile uint64_t last;    /* who was inside last: enum side */
    volatile uint64_t changes; /* of sides */
    _Atomic uint64_t overlaps;
    _Atomic uint64_t errors;
    atomic_int ready;
    _Atomic uint64_t released_ns, woken_ns;
};

static struct shared *shared;

struct figures {
    uint64_t turns, changes, worst_ns;
    uint32_t wakes;
};

enum side { NOBODY, GLIBC, OURS };

/* One step inside the lock that goes wrong as soon as two are in it. */
static void take_turn(enum side side, uint64_t turn)
{
    if (shared->inside != 0)
        atomic_fetch_add(&shared->overlaps, 1);
    shared->inside = 1;
    uint64_t before = shared->counter;
    if (turn % 64 == 0)
        sched_yield(); /* be descheduled inside, and found there */
    shared->counter = before + 1;
    shared->changes += shared->last != side;
    shared->last = side;
    shared->inside = 0;
}

/* Up to some microseconds outside, or one side would take all its turns in a row. */
static void stay_outside(uint64_t *random)
{
    uint64_t until = now_ns() + next_random(random) % 5000;
    while (now_ns() < until)
        ;
}

static void wait_until_ready(int count)
{
    atomic_fetch_add(&shared->ready, 1);
    while (atomic_load(&shared->ready) < count)
        sched_yield();
}

static pid_t fork_tied(void)
{
    pid_t pid = fork();
    NEED(pid >= 0);
    if (pid == 0)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    return pid;
}

/* ---- Mutual exclusion ------------------------------------------------------------ */

static void turn_with_glibc(const struct glibc_lock *lock, uint64_t turns)
{
    uint64_t random = GLIBC;
    wait_until_ready(2);
    for (uint64_t i = 0; i < turns; i++) {
        stay_outside(&random);
        if (glibc_lock_take(lock, 10) != 0) {
            atomic_fetch_add(&shared->errors, 1);
            continue;
        }
        if (atomic_load(lock->owner) != (uint64_t)getpid())
            atomic_fetch_add(&shared->overlaps, 1);
        take_turn(GLIBC, i);
        glibc_lock_drop(lock);
    }
}

static void turn_with_ours(const struct region_file *file, uint64_t turns)
{
    hr_region *region = open_or_fail(file->path, HR_WRITE);
    uint64_t random = OURS;
    wait_until_ready(2);
    for (uint64_t i = 0; i < turns; i++) {
        stay_outside(&random);
        if (hr_lock(region, 10 * ONE_SECOND, &call_error) != HR_OK) {
            atomic_fetch_add(&shared->errors, 1);
            continue;
        }
        take_turn(OURS, i);
        if (hr_unlock(region, &call_error) != HR_OK)
            atomic_fetch_add(&shared->errors, 1);
    }
    hr_free(&region);
}

static void take_turns(const struct region_file *file, const struct glibc_lock *lock,
                       uint64_t turns, struct figures *figures)
{
    memset(shared, 0, sizeof *shared);
    pid_t pid = fork_tied();
    if (pid == 0) {
        turn_with_glibc(lock, turns / 2);
        _exit(0);
    }
    turn_with_ours(file, turns - turns / 2);
    int status;
    NEED(waitpid(pid, &status, 0) == pid);
    figures->turns += turns;
    figures->changes += shared->changes;
    CHECK_EQ(status, 0);
    CHECK_EQ(shared->counter, turns);
    CHECK_EQ(shared->overlaps, 0);
    CHECK_EQ(shared->errors, 0);
    CHECK_EQ(peek32(file, file->layout->sem), 1);
    CHECK_EQ(glibc_lock_waiters(lock), 0);
    CHECK_EQ(peek64(file, file->layout->owner_pid), 0);
}

/* ---- A sleeper is woken ----------------------------------------------------------- */

static void sleep_with_glibc(const struct glibc_lock *lock)
{
    if (glibc_lock_take(lock, 30) != 0)
        _exit(1);
    atomic_store(&shared->woken_ns, now_ns());
    glibc_lock_drop(lock);
    _exit(0);
}

/* Asleep in the kernel, and counted in the semaphore. */
static bool is_waiting(pid_t pid, const struct glibc_lock *lock)
{
    return is_asleep(pid) && glibc_lock_waiters(lock) == 1;
}

static pid_t start_sleeper(const struct glibc_lock *lock)
{
    pid_t pid = fork_tied();
    if (pid == 0)
        sleep_with_glibc(lock);
    uint64_t deadline = now_ns() + 10 * ONE_SECOND;
    while (!is_waiting(pid, lock) && now_ns() < deadline)
        nap_us(200);
    CHECK(is_waiting(pid, lock));
    CHECK_EQ(shared->woken_ns, 0);
    return pid;
}

/* How long after `from_ns` it was inside. */
static uint64_t await_sleeper(const struct region_file *file, const struct glibc_lock *lock,
                              pid_t pid, uint64_t from_ns)
{
    int status;
    NEED(waitpid(pid, &status, 0) == pid);
    CHECK_EQ(status, 0);
    CHECK_EQ(peek32(file, file->layout->sem), 1);
    CHECK_EQ(peek64(file, file->layout->owner_pid), 0);
    CHECK_EQ(glibc_lock_waiters(lock), 0);
    return shared->woken_ns > from_ns ? shared->woken_ns - from_ns : 0;
}

static uint64_t wake_by_release(const struct region_file *file, const struct glibc_lock *lock,
                                hr_region *region)
{
    memset(shared, 0, sizeof *shared);
    NEED(hr_lock(region, ONE_SECOND, &call_error) == HR_OK);
    pid_t pid = start_sleeper(lock);
    uint64_t from_ns = now_ns();
    CHECK_EQ(hr_unlock(region, &call_error), HR_OK);
    return await_sleeper(file, lock, pid, from_ns);
}

static void hold_until_killed(const struct region_file *file)
{
    hr_region *region;
    if (hr_open(file->path, HR_WRITE, HR_LAYOUTS, 0, &region, &call_error) >= 0 &&
        hr_lock(region, ONE_SECOND, &call_error) == HR_OK)
        atomic_store(&shared->ready, 1);
    for (;;)
        pause();
}

static uint64_t wake_by_recovery(const struct region_file *file, const struct glibc_lock *lock,
                                 hr_region *region)
{
    memset(shared, 0, sizeof *shared);
    pid_t holder = fork_tied();
    if (holder == 0)
        hold_until_killed(file);
    while (atomic_load(&shared->ready) == 0)
        nap_us(200);
    pid_t pid = start_sleeper(lock);
    NEED(kill(holder, SIGKILL) == 0 && waitpid(holder, NULL, 0) == holder);
    CHECK_EQ(shared->woken_ns, 0);
    CHECK_EQ(recover_lock(region, NULL, 0), HR_RECOVERED_OWNER);
    return await_sleeper(file, lock, pid, now_ns());
}

static void wake_often(const struct region_file *file, const struct glibc_lock *lock,
                       uint32_t tries, struct figures *figures)
{
    hr_region *region = open_or_fail(file->path, HR_WRITE);
    for (uint32_t i = 0; i < tries; i++) {
        const uint64_t ns =
            i % 4 == 3 ? wake_by_recovery(file, lock, region) : wake_by_release(file, lock, region);
        if (ns > figures->worst_ns)
            figures->worst_ns = ns;
    }
    figures->wakes += tries;
    hr_free(&region);
}

/* ---- Both, in every layout --------------------------------------------------------- */

static void meet(uint32_t layout, bool is_old, uint64_t turns, uint32_t tries,
                 struct figures *figures)
{
    struct region_file file;
    region_file_make(&file, layout);
    struct glibc_lock lock =
        glibc_lock_in(file.bytes, file.layout->sem, file.layout->owner_pid, is_old);
    NEED(glibc_lock_init(&lock) == 0);
    take_turns(&file, &lock, turns, figures);
    wake_often(&file, &lock, tries, figures);
    region_file_remove(&file);
}

int main(int argc, char **argv)
{
    static struct figures figures;
    const uint64_t turns = argc > 1 ? strtoull(argv[1], NULL, 10) : 100000;
    const uint32_t tries = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 50;
    shared = share_memory(sizeof *shared);
    for (uint32_t layout = HR_V1_1; layout < HR_LAYOUTS; layout++) {
        meet(layout, false, turns / LAYOUTS, tries, &figures);
        meet(layout, true, turns / LAYOUTS / 4, tries, &figures);
    }
    CHECK(figures.worst_ns < PROMPT_NS);
    const unsigned long failed = atomic_load(&check_failures);
    printf("{\"turns\": %llu, \"changes\": %llu, \"wakes\": %u, \"worst_wake_ms\": %.3f, "
           "\"checks\": %lu, \"failed\": %lu}\n",
           (unsigned long long)figures.turns, (unsigned long long)figures.changes, figures.wakes,
           (double)figures.worst_ns / 1e6, atomic_load(&check_count), failed);
    return failed != 0;
}
