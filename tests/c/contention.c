/*
 * Many processes of many threads in one region, doing everything at random:
 *
 *     contention [SECONDS]
 *
 * for so long in each layout.  Also under the sanitizers, which see the threads of a process.
 *
 * What must hold all the time: one holder at a time; a settled snapshot in which the
 * processes add up to the devices, nobody stands twice, and what is written in one
 * go is seen in one piece; a recovery or a reaping that finds nothing to do.  In the
 * end every sum is exactly 0, and the lock as if nobody had ever been there.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "check.h"
#include "region.h"
#include "region_file.h"
#include "snapshot_view.h"

enum { PROCESSES = 8, THREADS = 4, DEVICES = 2, KINDS = 3, MIB = 1 << 20 };

#define PATIENCE (30 * ONE_SECOND)
/* Tight: charges are refused all the time. */
#define LIMIT (UINT64_C(24) * MIB)

enum phase { WORK, RELEASE, LEAVE };

struct shared {
    atomic_int phase, ready;
    volatile uint64_t inside; /* plain: only the lock makes these right */
    volatile uint64_t turns;
    _Atomic uint64_t operations, locked, snapshots, settled, refused;
    atomic_ulong checks, failures;
    _Atomic int32_t pids[PROCESSES];
};

static struct shared *shared;

/* ---- One thread --------------------------------------------------------------- */

/* A process of the region: its handles, and what its threads must agree on. */
struct member {
    hr_region *region, *other; /* it is attached by the first */
    bool has_seqlock, has_util;
    pthread_rwlock_t leaving; /* for writing while it attaches or detaches */
    bool attached;
    uint32_t attachments; /* so far */
};

struct worker {
    struct member *member;
    uint64_t random;
    uint64_t held[DEVICES][KINDS]; /* of the charges of this thread */
    uint32_t attachment;           /* since which these count */
    uint64_t operations;
    unsigned char *buffer;
};

/* With the process attached, and this thread's books not older than that. */
static bool enter_attached(struct worker *worker)
{
    struct member *member = worker->member;
    pthread_rwlock_rdlock(&member->leaving);
    if (worker->attachment != member->attachments)
        memset(worker->held, 0, sizeof worker->held);
    worker->attachment = member->attachments;
    return member->attached;
}

static void charge(struct worker *worker)
{
    uint32_t device = next_random(&worker->random) % DEVICES;
    uint32_t kind = next_random(&worker->random) % KINDS;
    uint64_t bytes = 1 + next_random(&worker->random) % (8 * MIB);
    if (enter_attached(worker)) {
        int code = hr_charge(worker->member->region, device, kind, bytes, 0, PATIENCE, &call_error);
        if (code == HR_OK)
            worker->held[device][kind] += bytes;
        else if (code == HR_EMEMORYLIMIT)
            atomic_fetch_add(&shared->refused, 1);
        else
            CHECK_EQ(code, HR_OK);
    }
    pthread_rwlock_unlock(&worker->member->leaving);
}

static void release(struct worker *worker, uint32_t device, uint32_t kind, bool all)
{
    if (enter_attached(worker) && worker->held[device][kind] > 0) {
        uint64_t bytes = worker->held[device][kind];
        if (!all)
            bytes = 1 + next_random(&worker->random) % bytes;
        CHECK_EQ(hr_release(worker->member->region, device, kind, bytes, PATIENCE, &call_error),
                 HR_OK);
        worker->held[device][kind] -= bytes;
    }
    pthread_rwlock_unlock(&worker->member->leaving);
}

static void come_or_leave(struct member *member, bool stay)
{
    pthread_rwlock_wrlock(&member->leaving);
    if (!member->attached) {
        CHECK_EQ(hr_attach(member->region, PATIENCE, &call_error), HR_OK);
        member->attachments++;
        member->attached = true;
    } else if (!stay) {
        CHECK_EQ(hr_detach(member->region, 0, PATIENCE, &call_error), HR_OK);
        member->attached = false;
    }
    pthread_rwlock_unlock(&member->leaving);
}

static void lock_and_unlock(const struct worker *worker)
{
    int code = hr_lock(worker->member->region, PATIENCE, &call_error);
    CHECK_EQ(code, HR_OK);
    if (code != HR_OK)
        return;
    CHECK_EQ(shared->inside, 0);
    shared->inside = 1;
    shared->turns++;
    shared->inside = 0;
    atomic_fetch_add(&shared->locked, 1);
    CHECK_EQ(hr_unlock(worker->member->region, &call_error), HR_OK);
}

/* One number in all of somebody's figures that are written under the lock. */
static void write_utilization(struct worker *worker)
{
    uint64_t number = next_random(&worker->random) % 101;
    struct hr_slot_edit edits[] = {
        {.value = HR_SLOT_MONITOR_USED, .device = 0, .to = number},
        {.value = HR_SLOT_MONITOR_USED, .device = 1, .to = number},
        {.value = HR_SLOT_SM, .device = 0, .to = number},
        {.value = HR_SLOT_ENC, .device = 0, .to = number},
        {.value = HR_SLOT_DEC, .device = 1, .to = number},
    };
    int32_t pid = atomic_load(&shared->pids[next_random(&worker->random) % PROCESSES]);
    uint32_t count = worker->member->has_util ? 5 : 2;
    int code = hr_edit_slot(worker->member->region, pid, edits, count, 0, PATIENCE, &call_error);
    CHECK(code == HR_OK || code == HR_ENOPROCESS);
}

static void check_whole(const struct worker *worker, const struct hr_usage *first,
                        const struct hr_usage *second)
{
    CHECK_EQ(second->monitor, first->monitor);
    if (!worker->member->has_util)
        return;
    CHECK_EQ(first->sm, first->monitor);
    CHECK_EQ(first->enc, first->monitor);
    CHECK_EQ(second->dec, first->monitor);
}

static void check_settled(const struct worker *worker, const struct hr_snapshot *snapshot)
{
    uint32_t count = (uint32_t)snapshot->process_count;
    struct hr_usage sums[DEVICES] = {0};
    for (uint32_t i = 0; i < count; i++) {
        int32_t pid = hr_snapshot_process(snapshot, i)->pid;
        bool known = false;
        for (uint32_t k = 0; k < PROCESSES; k++)
            known = known || atomic_load(&shared->pids[k]) == pid;
        CHECK(known);
        for (uint32_t k = 0; k < i; k++)
            CHECK(hr_snapshot_process(snapshot, k)->pid != pid);
        for (uint32_t device = 0; device < DEVICES; device++) {
            const struct hr_usage *usage = hr_snapshot_usage(snapshot, i, device);
            CHECK_EQ(usage->context + usage->module + usage->data, usage->total);
            add_usage(&sums[device], usage);
        }
        check_whole(worker, hr_snapshot_usage(snapshot, i, 0), hr_snapshot_usage(snapshot, i, 1));
    }
    for (uint32_t device = 0; device < DEVICES; device++) {
        const struct hr_device *shown = hr_snapshot_device(snapshot, device);
        CHECK_EQ(memcmp(&sums[device], &shown->sums, sizeof shown->sums), 0);
        /* Where the check and the charge are one step. */
        if (!worker->member->has_seqlock)
            CHECK(shown->sums.total <= LIMIT);
    }
}

enum { BUFFER_BYTES = 64 * 1024 };

/* A process finds nothing to do in itself, by the handle that it is attached by or another. */
static hr_region *any_handle(struct worker *worker)
{
    return next_random(&worker->random) % 2 == 0 ? worker->member->region : worker->member->other;
}

static void look(struct worker *worker)
{
    struct hr_snapshot *snapshot = (void *)worker->buffer;
    hr_region *region = any_handle(worker);
    int code = hr_snapshot(region, snapshot, BUFFER_BYTES, &call_error);
    CHECK_EQ(code, HR_OK);
    atomic_fetch_add(&shared->snapshots, 1);
    if (code != HR_OK || !snapshot->settled)
        return;
    atomic_fetch_add(&shared->settled, 1);
    check_settled(worker, snapshot);
}

/*
 * Everybody lives, so there is nothing to recover and nobody to reap; but for the slot
 * that this process has left, which was emptied in place.
 */
static void mend_nothing(struct worker *worker)
{
    static _Thread_local struct hr_slot_result reaped[HR_SLOTS];
    hr_region *region = any_handle(worker);
    const uint64_t choice = next_random(&worker->random) % 3;
    if (choice == 0) {
        struct hr_lock_state state;
        CHECK_EQ(hr_get_lock_state(region, NULL, &state, &call_error), HR_OK);
        CHECK(state.owner_liveness != HR_DEAD || state.owner_pid == 0);
        return;
    }
    if (choice == 1) {
        int code = recover_lock(region, NULL, ONE_SECOND / 100);
        CHECK(code == 0 || code == HR_ENOTRECOVERABLE);
        return;
    }
    int count = hr_reap(region, NULL, NULL, 0, 0, PATIENCE, reaped, &call_error);
    CHECK(count >= 0);
    int mended = 0;
    for (int i = 0; i < count; i++) {
        /* The machine stood still during the search; the slot is left alone. */
        if (reaped[i].what == HR_SLOT_CUT_SHORT)
            continue;
        CHECK_EQ(++mended, 1);
        CHECK_EQ(reaped[i].pid, getpid());
        CHECK_EQ(reaped[i].bytes, 0);
    }
}

static void do_anything(struct worker *worker)
{
    uint64_t choice = next_random(&worker->random) % 10000;
    uint32_t device = next_random(&worker->random) % DEVICES;
    uint32_t kind = next_random(&worker->random) % KINDS;
    if (choice < 3000)
        charge(worker);
    else if (choice < 6000)
        release(worker, device, kind, choice < 4000);
    else if (choice < 7000)
        lock_and_unlock(worker);
    else if (choice < 8000)
        write_utilization(worker);
    else if (choice < 9700)
        look(worker);
    else if (choice < 9995)
        come_or_leave(worker->member, false);
    else
        mend_nothing(worker);
    worker->operations++;
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    worker->buffer = malloc(BUFFER_BYTES);
    NEED(worker->buffer != NULL);
    while (atomic_load_explicit(&shared->phase, memory_order_relaxed) == WORK)
        do_anything(worker);
    for (uint32_t device = 0; device < DEVICES; device++) {
        for (uint32_t kind = 0; kind < KINDS; kind++)
            release(worker, device, kind, true);
    }
    atomic_fetch_add(&shared->operations, worker->operations);
    free(worker->buffer);
    return NULL;
}

/* ---- One process ---------------------------------------------------------------- */

static void come_together(int count)
{
    atomic_fetch_add(&shared->ready, 1);
    while (atomic_load(&shared->ready) < count)
        nap_us(1000);
}

static void wait_for_phase(int phase)
{
    while (atomic_load(&shared->phase) != phase)
        nap_us(1000);
}

static void be_member(const struct region_file *file, uint32_t number)
{
    struct member member = {.has_seqlock = file->layout->slot_seqlock != HR_ABSENT,
                            .has_util = file->layout->slot_util != HR_ABSENT};
    pthread_rwlockattr_t attributes;
    pthread_rwlockattr_init(&attributes);
    pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&member.leaving, &attributes);
    member.region = open_or_fail(file->path, HR_WRITE);
    member.other = open_or_fail(file->path, HR_WRITE);
    atomic_store(&shared->pids[number], getpid());
    come_together(PROCESSES);

    pthread_t threads[THREADS];
    struct worker workers[THREADS] = {0};
    for (uint32_t i = 0; i < THREADS; i++) {
        workers[i].member = &member;
        workers[i].random = (uint64_t)getpid() << 32 | i;
        NEED(pthread_create(&threads[i], NULL, work, &workers[i]) == 0);
    }
    for (uint32_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    /* All there, with nothing charged, for the parent to see. */
    come_or_leave(&member, true);
    come_together(2 * PROCESSES);
    wait_for_phase(LEAVE);
    CHECK_EQ(hr_detach(member.region, 0, PATIENCE, &call_error), HR_OK);
    hr_free(&member.region);
    hr_free(&member.other);
    pthread_rwlock_destroy(&member.leaving);
}

static pid_t start_member(const struct region_file *file, uint32_t number)
{
    pid_t pid = fork();
    NEED(pid >= 0);
    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    atomic_store(&check_count, 0);
    atomic_store(&check_failures, 0);
    be_member(file, number);
    atomic_fetch_add(&shared->checks, atomic_load(&check_count));
    atomic_fetch_add(&shared->failures, atomic_load(&check_failures));
    _exit(0);
}

/* ---- All of them, in one layout --------------------------------------------------- */

static void check_lock(const struct region_file *file)
{
    CHECK_EQ((uint32_t)peek64(file, file->layout->sem), 1);
    CHECK_EQ(peek64(file, file->layout->sem) >> 32, 0);
    CHECK_EQ(peek64(file, file->layout->owner_pid), 0);
    CHECK_EQ(shared->turns, shared->locked);
    CHECK_EQ(shared->inside, 0);
}

/* Everybody is attached, and nobody has anything. */
static void check_all_released(const struct region_file *file)
{
    static _Alignas(8) unsigned char buffer[BUFFER_BYTES];
    struct hr_snapshot *snapshot = (void *)buffer;
    hr_region *region = open_or_fail(file->path, HR_READ);
    CHECK_EQ(hr_snapshot(region, snapshot, sizeof buffer, &call_error), HR_OK);
    CHECK(snapshot->settled);
    CHECK_EQ(snapshot->process_count, PROCESSES);
    for (uint32_t device = 0; device < DEVICES; device++) {
        const struct hr_usage *sums = &hr_snapshot_device(snapshot, device)->sums;
        CHECK_EQ(sums->total, 0);
        CHECK_EQ(sums->context, 0);
        CHECK_EQ(sums->module, 0);
        CHECK_EQ(sums->data, 0);
    }
    hr_free(&region);
}

/* Nobody is: what was left is empty. */
static void check_all_gone(const struct region_file *file)
{
    static struct hr_slot_result reaped[HR_SLOTS];
    hr_region *region = open_or_fail(file->path, HR_WRITE);
    for (uint32_t device = 0; device < DEVICES; device++)
        CHECK_EQ(live_value(region, HR_VALUE_MEMORY_USED, device), 0);
    int count = hr_reap(region, NULL, NULL, 0, 0, PATIENCE, reaped, &call_error);
    CHECK(count >= 0 && count <= PROCESSES);
    for (int i = 0; i < count; i++)
        CHECK_EQ(reaped[i].bytes, 0);
    hr_free(&region);
    check_lock(file);
}

static void contend(uint32_t layout, double seconds)
{
    struct region_file file;
    region_file_make(&file, layout);
    for (uint32_t device = 0; device < DEVICES; device++)
        poke64(&file, file.layout->limit + device * 8, LIMIT);
    memset(shared, 0, sizeof *shared);
    pid_t pids[PROCESSES];
    for (uint32_t i = 0; i < PROCESSES; i++)
        pids[i] = start_member(&file, i);
    while (atomic_load(&shared->ready) < PROCESSES)
        nap_us(1000);
    nap_us((uint64_t)(seconds * 1e6));
    atomic_store(&shared->phase, RELEASE);
    while (atomic_load(&shared->ready) < 2 * PROCESSES && waitpid(-1, NULL, WNOHANG) == 0)
        nap_us(1000);
    check_lock(&file);
    check_all_released(&file);
    atomic_store(&shared->phase, LEAVE);
    for (uint32_t i = 0; i < PROCESSES; i++) {
        int status = -1;
        NEED(waitpid(pids[i], &status, 0) == pids[i]);
        CHECK_EQ(status, 0);
    }
    check_all_gone(&file);
    atomic_fetch_add(&check_count, atomic_load(&shared->checks));
    atomic_fetch_add(&check_failures, atomic_load(&shared->failures));
    region_file_remove(&file);
}

static void report_layout(uint32_t layout)
{
    printf("%s{\"layout\": \"%s\", \"operations\": %llu, \"locked\": %llu, "
           "\"snapshots\": %llu, \"settled\": %llu, \"refused\": %llu}",
           layout == HR_V1_1 ? "" : ", ", hr_layouts[layout].name,
           (unsigned long long)shared->operations, (unsigned long long)shared->locked,
           (unsigned long long)shared->snapshots, (unsigned long long)shared->settled,
           (unsigned long long)shared->refused);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    const double seconds = argc > 1 ? strtod(argv[1], NULL) : 1;
    shared = share_memory(sizeof *shared);
    printf("{\"layouts\": [");
    fflush(stdout); /* or children print it again */
    for (uint32_t layout = HR_V1_1; layout < HR_LAYOUTS; layout++) {
        contend(layout, seconds);
        report_layout(layout);
    }
    const unsigned long failed = atomic_load(&check_failures);
    printf("], \"checks\": %lu, \"failed\": %lu}\n", atomic_load(&check_count), failed);
    return failed != 0;
}
