/*
 * What the lock, its numbers and forking rely on between two of their steps: a child stops at a
 * test point and is looked at there.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lock.h"
#include "check.h"
#include "glibc_lock.h"
#include "internal.h"
#include "region.h"
#include "region_file.h"
#include "stopped_child.h"
#include "testpoint.h"

enum { DATA = 2 };

/* The first of a dead writer's numbers, and that of another block. */
#define DEAD_BLOCK (HR_FOREIGN_OWNER + 77 * HR_TURNS)
#define OTHER_BLOCK (HR_FOREIGN_OWNER + 99 * HR_TURNS)

/* In the place of libc's: what a handle draws first, and then. */
static uint32_t drawn[2] = {OTHER_BLOCK - HR_FOREIGN_OWNER, OTHER_BLOCK - HR_FOREIGN_OWNER};
static uint32_t draws;

ssize_t getrandom(void *buffer, size_t bytes, unsigned flags)
{
    if (bytes != sizeof drawn[0]) /* the C library's own */
        return syscall(SYS_getrandom, buffer, bytes, flags);
    memcpy(buffer, &drawn[draws == 0 ? 0 : 1], bytes);
    draws++;
    return (ssize_t)bytes;
}

static int lock_once(hr_region *region)
{
    return hr_lock(region, 0, &call_error);
}

static int recover(hr_region *region)
{
    struct hr_recovery progress = {0};
    return hr_recover_lock(region, NULL, 0, &progress, &call_error);
}

static int charge(hr_region *region)
{
    int code = hr_attach(region, ONE_SECOND, &call_error);
    return code == HR_OK ? hr_charge(region, 0, DATA, 1000, 0, ONE_SECOND, &call_error) : code;
}

static int account(hr_region *region)
{
    int code = charge(region);
    return code == HR_OK ? hr_release(region, 0, DATA, 1000, ONE_SECOND, &call_error) : code;
}

static void hold_as(const struct region_file *file, uint64_t owner)
{
    poke32(file, file->layout->sem, 0);
    poke64(file, file->layout->owner_pid, owner);
}

static uint64_t owner_of(const struct region_file *file)
{
    return peek64(file, file->layout->owner_pid);
}

static bool can_lock_byte(const struct region_file *file, off_t at)
{
    struct flock byte = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
    int fd = open(file->path, O_RDWR | O_CLOEXEC);
    NEED(fd >= 0);
    const bool can = fcntl(fd, F_OFD_SETLK, &byte) == 0;
    NEED(can || errno == EAGAIN || errno == EACCES);
    close(fd);
    return can;
}

/* While a dead writer's signature is replaced, nobody can draw its number. */
static void test_a_dead_writers_number_is_kept_while_its_signature_is_replaced(void)
{
    const struct {
        deed *deed;
        int point;
    } ways[] = {{lock_once, HR_AT_LOCK_TAKEN_OVER}, {recover, HR_AT_RECOVER_OWNER_TAKEN}};
    for (uint32_t id = HR_V1_1; id < HR_LAYOUTS; id++) {
        for (size_t way = 0; way < sizeof ways / sizeof ways[0]; way++) {
            struct region_file file;
            region_file_make(&file, id);
            hold_as(&file, DEAD_BLOCK + 5);
            CHECK(can_lock_byte(&file, HR_NUMBER_BYTE + 77 * HR_TURNS + 5));
            pid_t pid = start(&file, ways[way].deed, ways[way].point);
            CHECK(!can_lock_byte(&file, HR_NUMBER_BYTE + 77 * HR_TURNS + 5));
            finish(pid);
            end(pid);
            CHECK_EQ(*result, HR_OK);
            region_file_remove(&file);
        }
    }
}

/* A number under which a dead writer stands is not drawn: its byte would come to life. */
static void test_a_dead_writers_number_is_not_drawn(struct region_file *file)
{
    hold_as(file, DEAD_BLOCK + 5);
    drawn[0] = DEAD_BLOCK - HR_FOREIGN_OWNER;
    draws = 0;
    hr_region *region = open_or_fail(file->path, HR_WRITE);
    CHECK_EQ(hr_lock(region, ONE_SECOND, &call_error), HR_OK);
    CHECK_EQ(draws, 2);
    CHECK_EQ(owner_of(file) / HR_TURNS, OTHER_BLOCK / HR_TURNS);
    CHECK_EQ(hr_unlock(region, &call_error), HR_OK);
    drawn[0] = drawn[1];
    close_and_free(region);
}

/* ---- The signatures of attached processes --------------------------------------------- */

static int attach_and_detach(hr_region *region)
{
    /* The next one is that of attaching. */
    hr_testpoint_kill_on = hr_testpoint_reached[HR_AT_UNLOCK_SEM_POSTED] + 2;
    int code = hr_attach(region, ONE_SECOND, &call_error);
    return code == HR_OK ? hr_detach(region, 0, ONE_SECOND, &call_error) : code;
}

/* The lock was signed with the byte: until it is given back nobody may be able to lock that. */
static void test_who_detaches_keeps_its_byte_until_the_lock_is_given_back(struct region_file *file)
{
    pid_t pid = start(file, attach_and_detach, HR_AT_UNLOCK_SEM_POSTED);
    CHECK_EQ(owner_of(file), 0);
    CHECK(!can_lock_byte(file, HR_PID_BYTE + pid));
    finish(pid);
    end(pid);
    CHECK_EQ(*result, HR_OK);
    CHECK(can_lock_byte(file, HR_PID_BYTE + pid));
}

/* By others it cannot be judged: the byte of the pid is locked again. */
static void
test_a_process_takes_over_what_a_former_one_with_its_pid_has_signed(struct region_file *file)
{
    hold_as(file, hr_attached_signature(getpid(), 7));
    hr_region *region = open_or_fail(file->path, HR_WRITE);
    CHECK_EQ(hr_attach(region, ONE_SECOND, &call_error), HR_OK);
    CHECK_EQ(owner_of(file), 0);
    hold_as(file, hr_attached_signature(getpid(), 7));
    CHECK_EQ(recover(region), HR_OK);
    CHECK_EQ(owner_of(file), 0);
    CHECK_EQ(hr_detach(region, 0, ONE_SECOND, &call_error), HR_OK);
    close_and_free(region);
}

static void on_point(int number, void (*handler)(int))
{
    const struct sigaction stop = {.sa_handler = handler};
    NEED(sigaction(SIGUSR1, &stop, NULL) == 0);
    hr_testpoint_signal = SIGUSR1;
    hr_testpoint_kill_on = hr_testpoint_reached[number] + 1;
    hr_testpoint_kill_at = number;
}

static void off_point(int number)
{
    NEED(hr_testpoint_reached[number] == hr_testpoint_kill_on);
    hr_testpoint_kill_at = -1;
    hr_testpoint_kill_on = 1;
    NEED(signal(SIGUSR1, SIG_DFL) != SIG_ERR);
}

static struct {
    hr_region *attaching, *other;
    pthread_t closer;
} closed;

static void *close_attaching(void *unused)
{
    (void)unused;
    hr_close(closed.attaching, &call_error);
    return NULL;
}

static void on_slot_byte_locked(int number)
{
    (void)number;
    NEED(pthread_create(&closed.closer, NULL, close_attaching, NULL) == 0);
    while ((atomic_load(&closed.attaching->users) & HR_CLOSING) == 0)
        sched_yield();
    /* One that does not wait has closed by then. */
    for (int i = 0; i < 50; i++) {
        nap_us(1000);
        CHECK_EQ(hr_attach(closed.other, ONE_SECOND, &call_error), HR_EATTACHED);
    }
}

/* Else another thread or handle claims the process's attachment beside the one that attaches. */
static void test_a_handle_closes_when_its_attaching_thread_has_come_out(struct region_file *file)
{
    closed.attaching = open_or_fail(file->path, HR_WRITE);
    closed.other = open_or_fail(file->path, HR_WRITE);
    on_point(HR_AT_SLOT_BYTE_LOCKED, on_slot_byte_locked);
    CHECK_EQ(hr_attach(closed.attaching, ONE_SECOND, &call_error), HR_ECLOSED);
    off_point(HR_AT_SLOT_BYTE_LOCKED);
    NEED(pthread_join(closed.closer, NULL) == 0);
    CHECK_EQ(hr_attach(closed.other, ONE_SECOND, &call_error), HR_OK);
    hr_free(&closed.attaching);
    close_and_free(closed.other);
}

/* ---- Calls of other threads in between ------------------------------------------------- */

static struct {
    hr_region *region;
    pthread_t thread;
} beside;

static void *unlock_beside(void *unused)
{
    (void)unused;
    CHECK_EQ(hr_unlock(beside.region, &call_error), HR_EBUSY);
    return NULL;
}

static void on_slot_cleared(int number)
{
    (void)number;
    NEED(pthread_create(&beside.thread, NULL, unlock_beside, NULL) == 0);
    NEED(pthread_join(beside.thread, NULL) == 0);
}

/* hr_lock() leaves the lock to its caller; what a call takes for itself is nobody else's. */
static void test_no_other_thread_gives_back_what_a_call_has_taken(struct region_file *file)
{
    beside.region = open_or_fail(file->path, HR_WRITE);
    on_point(HR_AT_ATTACH_SLOT_CLEARED, on_slot_cleared);
    CHECK_EQ(hr_attach(beside.region, ONE_SECOND, &call_error), HR_OK);
    off_point(HR_AT_ATTACH_SLOT_CLEARED);
    CHECK_EQ(hr_detach(beside.region, 0, ONE_SECOND, &call_error), HR_OK);
    close_and_free(beside.region);
}

/* Between the first store of an accounting and its last the seqlock is odd. */
static void test_the_seqlock_is_odd_until_all_is_stored(void)
{
    const int points[] = {HR_AT_ACCOUNT_SEQLOCK_ODD, HR_AT_ACCOUNT_TOTAL_STORED,
                          HR_AT_ACCOUNT_KIND_STORED};
    for (uint32_t id = HR_V1_1; id < HR_LAYOUTS; id++) {
        if (hr_layouts[id].slot_seqlock == HR_ABSENT)
            continue;
        for (size_t i = 0; i < sizeof points / sizeof points[0]; i++) {
            struct region_file file;
            region_file_make(&file, id);
            pid_t pid = start(&file, account, points[i]);
            CHECK_EQ(peek64(&file, slot_at(&file, 0, file.layout->slot_seqlock)) & 1, 1);
            finish(pid);
            end(pid);
            CHECK_EQ(*result, HR_OK);
            CHECK_EQ(peek64(&file, slot_at(&file, 0, file.layout->slot_seqlock)) & 1, 0);
            region_file_remove(&file);
        }
    }
}

/* ---- Seqlocks ------------------------------------------------------------------------- */

static int charge_without_limit(hr_region *region)
{
    int code = hr_attach(region, ONE_SECOND, &call_error);
    return code == HR_OK ? hr_charge(region, 0, DATA, 1000, HR_FORCE, ONE_SECOND, &call_error)
                         : code;
}

static uint64_t seqlock_in(const struct region_file *file, uint32_t slot)
{
    return peek64(file, slot_at(file, slot, file->layout->slot_seqlock));
}

/* libvgpu would wait for it with the lock.  That of a live process is its own matter. */
static void test_who_takes_a_dead_ones_lock_over_makes_its_seqlock_even(struct region_file *file)
{
    pid_t alive = start(file, charge_without_limit, HR_AT_ACCOUNT_TOTAL_STORED);
    pid_t dead = start(file, account, HR_AT_ACCOUNT_TOTAL_STORED);
    CHECK(owner_of(file) != 0);
    CHECK_EQ(seqlock_in(file, 0) & 1, 1);
    CHECK_EQ(seqlock_in(file, 1) & 1, 1);
    end(dead);
    hr_region *region = open_or_fail(file->path, HR_WRITE);
    CHECK_EQ(hr_lock(region, ONE_SECOND, &call_error), HR_OK);
    CHECK_EQ(seqlock_in(file, 0) & 1, 1);
    CHECK_EQ(seqlock_in(file, 1) & 1, 0);
    CHECK_EQ(hr_unlock(region, &call_error), HR_OK);
    finish(alive);
    end(alive);
    CHECK_EQ(*result, HR_OK);
    CHECK_EQ(seqlock_in(file, 0) & 1, 0);
    close_and_free(region);
}

/* ---- Waking --------------------------------------------------------------------------- */

/* Longer than a busy machine needs. */
enum { SLEEP_S = 20 };

static void await_sleep(pid_t pid)
{
    while (!is_asleep(pid) && kill(pid, 0) == 0)
        nap_us(200);
}

/* Ours are not registered, and this one does not poll. */
static void test_a_release_wakes_a_waiter_that_is_not_registered(struct region_file *file)
{
    hr_region *region = open_or_fail(file->path, HR_WRITE);
    CHECK_EQ(hr_lock(region, ONE_SECOND, &call_error), HR_OK);
    const pid_t sleeper = fork();
    NEED(sleeper >= 0);
    if (sleeper == 0) {
        const struct timespec most = {.tv_sec = SLEEP_S};
        _exit(syscall(SYS_futex, file->bytes + file->layout->sem, FUTEX_WAIT, 0, &most, NULL, 0));
    }
    await_sleep(sleeper);
    CHECK_EQ(hr_unlock(region, &call_error), HR_OK);
    int status;
    NEED(waitpid(sleeper, &status, 0) == sleeper);
    CHECK_EQ(status, 0);
    close_and_free(region);
}

/* What old glibc counts 128 waiters in is new glibc's flag of 128; killed ones stay counted. */
static void test_a_charge_wakes_a_waiter_of_glibc(void)
{
    for (uint32_t id = HR_V1_1; id < HR_LAYOUTS; id++) {
        for (int is_old = 0; is_old <= 1; is_old++) {
            struct region_file file;
            region_file_make(&file, id);
            const struct glibc_lock lock =
                glibc_lock_in(file.bytes, file.layout->sem, file.layout->owner_pid, is_old != 0);
            NEED(glibc_lock_init(&lock) == 0);
            const unsigned long killed = is_old != 0 ? 127 : 0;
            if (is_old != 0)
                atomic_store(&lock.old->waiters, killed);
            const pid_t charging = start(&file, charge, HR_AT_ACCOUNT_TOTAL_STORED);
            const pid_t sleeper = fork();
            NEED(sleeper >= 0);
            if (sleeper == 0) {
                const int error = glibc_lock_take(&lock, SLEEP_S);
                if (error == 0)
                    glibc_lock_drop(&lock);
                _exit(error);
            }
            while (glibc_lock_waiters(&lock) == killed)
                nap_us(200);
            await_sleep(sleeper);
            finish(charging);
            int status;
            NEED(waitpid(sleeper, &status, 0) == sleeper);
            CHECK_EQ(status, 0);
            CHECK_EQ(*result, HR_OK);
            end(charging);
            region_file_remove(&file);
        }
    }
}

/* ---- Forking ------------------------------------------------------------------------ */

static atomic_bool is_inside, is_about_to_fork;

/* A byte of the file that nobody else locks. */
static const off_t FAR_AWAY = 1 << 30;

static void *hold_fork_lock(void *unused)
{
    (void)unused;
    hr_fork_lock();
    atomic_store(&is_inside, true);
    while (!atomic_load(&is_about_to_fork))
        ;
    /* Long enough for a fork that does not wait; one that does may take its time. */
    nap_us(100000);
    atomic_store(&is_inside, false);
    hr_fork_unlock();
    return NULL;
}

/* Another thread that holds the fork lock for a while longer. */
static pthread_t start_holding(void)
{
    pthread_t thread;
    atomic_store(&is_about_to_fork, false);
    NEED(pthread_create(&thread, NULL, hold_fork_lock, NULL) == 0);
    while (!atomic_load(&is_inside))
        ;
    atomic_store(&is_about_to_fork, true);
    return thread;
}

/* Whoever has a descriptor of the region open for a moment holds the fork lock: a child would keep
 * what that descriptor has locked. */
static void test_no_child_is_forked_while_forking_is_locked(struct region_file *file)
{
    hr_region *region = open_or_fail(file->path, HR_WRITE);
    pthread_t thread = start_holding();
    pid_t pid = fork();
    NEED(pid >= 0);
    if (pid == 0)
        _exit(atomic_load(&is_inside) ? 1 : 0);
    int status;
    NEED(waitpid(pid, &status, 0) == pid);
    CHECK_EQ(status, 0);
    NEED(pthread_join(thread, NULL) == 0);
    /* And it is free again, here and in a child. */
    hr_fork_lock();
    hr_fork_unlock();
    close_and_free(region);
}

static void test_a_byte_is_locked_while_no_child_can_be_forked(struct region_file *file)
{
    hr_region *region = open_or_fail(file->path, HR_WRITE);
    pthread_t thread = start_holding();
    struct hr_byte_lock lock;
    CHECK_EQ(hr_lock_bytes(region, F_WRLCK, FAR_AWAY, 1, &lock), HR_OK);
    CHECK(!atomic_load(&is_inside));
    NEED(pthread_join(thread, NULL) == 0);
    hr_unlock_bytes(region, &lock);
    close_and_free(region);
}

/* The page by which a byte is locked is not there in a child, which may have another in its place.
 */
static void test_a_child_unmaps_nothing_of_its_own(struct region_file *file)
{
    hr_region *region = open_or_fail(file->path, HR_WRITE);
    struct hr_byte_lock lock;
    NEED(hr_lock_bytes(region, F_WRLCK, FAR_AWAY, 1, &lock) == HR_OK);
    NEED(lock.page != NULL);
    pid_t pid = fork();
    NEED(pid >= 0);
    if (pid == 0) {
        const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
        void *own = mmap(lock.page, 1, PROT_READ | PROT_WRITE, flags, -1, 0);
        if (own != lock.page)
            _exit(2);
        hr_unlock_bytes(region, &lock);
        _exit(msync(own, 1, MS_ASYNC) == 0 ? 0 : 1);
    }
    int status;
    NEED(waitpid(pid, &status, 0) == pid);
    CHECK_EQ(status, 0);
    void *page = lock.page;
    hr_unlock_bytes(region, &lock);
    /* In the process that has locked it, it is. */
    CHECK_EQ(msync(page, 1, MS_ASYNC), -1);
    CHECK(lock.page == NULL);
    close_and_free(region);
}

int main(void)
{
    share_result();
    RUN(test_a_dead_writers_number_is_kept_while_its_signature_is_replaced);
    RUN_FROM(HR_V1_1, test_a_dead_writers_number_is_not_drawn);
    RUN_FROM(HR_V1_1, test_who_detaches_keeps_its_byte_until_the_lock_is_given_back);
    RUN_FROM(HR_V1_1, test_a_process_takes_over_what_a_former_one_with_its_pid_has_signed);
    RUN_IN(HR_V1_2, test_a_handle_closes_when_its_attaching_thread_has_come_out);
    RUN_IN(HR_V1_2, test_no_other_thread_gives_back_what_a_call_has_taken);
    RUN(test_the_seqlock_is_odd_until_all_is_stored);
    RUN_FROM(HR_V1_1_POSTINIT, test_who_takes_a_dead_ones_lock_over_makes_its_seqlock_even);
    RUN_FROM(HR_V1_1, test_a_release_wakes_a_waiter_that_is_not_registered);
    RUN(test_a_charge_wakes_a_waiter_of_glibc);
    RUN_IN(HR_V1_2, test_no_child_is_forked_while_forking_is_locked);
    RUN_IN(HR_V1_2, test_a_byte_is_locked_while_no_child_can_be_forked);
    RUN_IN(HR_V1_2, test_a_child_unmaps_nothing_of_its_own);
    return check_report("test_lock_points");
}
