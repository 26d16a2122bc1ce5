/* Handles under threads: closing waits, fork invalidates, and no access races another. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "region.h"
#include "region_file.h"
#include "snapshot_view.h"

enum { READERS = 3, WRITERS = 2, WORKERS = 6, PROCESSES = 6 };

static void fill(const struct region_file *file)
{
    for (uint32_t slot = 0; slot < PROCESSES; slot++)
        fill_slot(file, slot, (int32_t)slot + 1, slot, 2);
    poke32(file, file->layout->proc_num, PROCESSES);
}

struct crowd {
    hr_region *region;
    atomic_ulong rounds;
};

/* One round of everything that reads; false once the handle is closed. */
static bool read_everything(hr_region *region, uint64_t *buffer)
{
    const int code = hr_snapshot(region, buffer, HR_SNAPSHOT_MAX_BYTES, &call_error);
    if (code == HR_ECLOSED)
        return false;
    CHECK_EQ(code, HR_OK);
    const struct hr_snapshot *snapshot = (const struct hr_snapshot *)(const void *)buffer;
    CHECK_EQ(snapshot->process_count, PROCESSES);
    for (uint32_t index = 0; index < PROCESSES; index++)
        CHECK_EQ(hr_snapshot_usage(snapshot, index, 1)->data, index * 1000 + 13);

    struct hr_set_size size;
    if (hr_read_set(&region, 1, buffer, HR_SNAPSHOT_MAX_BYTES, UINT32_MAX, &size, &call_error) == 0)
        CHECK_EQ(size.usages, 2 * PROCESSES);
    else
        CHECK_EQ(set_snapshot(buffer, 0)->code, HR_ECLOSED);

    const uint64_t limit = live_value(region, HR_MEMORY, 0);
    if (limit == NO_VALUE)
        CHECK_EQ(call_error.code, HR_ECLOSED);
    else
        CHECK(limit == 4 * GIB || (limit >= 64 * GIB && limit % GIB == 0));

    const int stale = hr_is_stale(region, &call_error);
    CHECK(stale == 0 || stale == HR_ECLOSED);
    return true;
}

static void *reader(void *argument)
{
    struct crowd *crowd = argument;
    uint64_t *buffer = malloc(HR_SNAPSHOT_MAX_BYTES);
    NEED(buffer != NULL);
    while (read_everything(crowd->region, buffer))
        atomic_fetch_add(&crowd->rounds, 1);
    CHECK_EQ(call_error.code, HR_ECLOSED);
    free(buffer);
    return NULL;
}

static void *writer(void *argument)
{
    struct crowd *crowd = argument;
    struct hr_edit edits[HR_DEVICES];
    int32_t before;
    for (uint32_t round = 0;; round++) {
        const uint64_t value = (64 + round % 64) * GIB;
        int code = set_limits(crowd->region, HR_MEMORY, HR_ALL_DEVICES, value, 0, 0, edits);
        if (code == HR_ECLOSED)
            break;
        CHECK_EQ(code, 2);
        code = set_limits(crowd->region, HR_MEMORY, 0, value, value, HR_EXPECT, edits);
        CHECK(code == 1 || code == HR_ECONFLICT || code == HR_ECLOSED);
        code = set_limits(crowd->region, HR_SM, 1, round % 100 + 1, 0, 0, edits);
        CHECK(code == 1 || code == HR_ECLOSED);
        code = set_value(crowd->region, HR_RECENT_KERNEL, (int32_t)round, 0, 0, &before);
        CHECK(code == HR_OK || code == HR_ECLOSED);
        atomic_fetch_add(&crowd->rounds, 1);
    }
    return NULL;
}

static void *closer(void *argument)
{
    struct crowd *crowd = argument;
    hr_close(crowd->region, &call_error);
    return NULL;
}

/* Readers and writers share a handle until it is closed under them. */
static void test_close_under_readers_and_writers(void)
{
    for (uint32_t round = 0; round < 4 * HR_LAYOUTS / SHARE_OF_WORK; round++) {
        struct region_file file;
        region_file_make(&file, round % HR_LAYOUTS);
        fill(&file);
        struct crowd crowd = {.region = open_or_fail(file.path, HR_WRITE)};
        pthread_t threads[READERS + WRITERS], closers[2];
        for (int i = 0; i < READERS + WRITERS; i++)
            NEED(pthread_create(&threads[i], NULL, i < READERS ? reader : writer, &crowd) == 0);
        while (atomic_load(&crowd.rounds) < 200)
            sched_yield();
        /* Twice, and at the same time. */
        for (int i = 0; i < 2; i++)
            NEED(pthread_create(&closers[i], NULL, closer, &crowd) == 0);
        for (int i = 0; i < 2; i++)
            pthread_join(closers[i], NULL);
        for (int i = 0; i < READERS + WRITERS; i++)
            pthread_join(threads[i], NULL);
        hr_free(&crowd.region);
        region_file_remove(&file);
    }
}

enum { SET_MEMBERS = 12 };

struct set_crowd {
    hr_region *regions[SET_MEMBERS];
    atomic_ulong rounds;
};

/* Until all are closed; one that is has its code and nothing else. */
static void *set_reader(void *argument)
{
    struct set_crowd *crowd = argument;
    const size_t bytes = SET_MEMBERS * 2048;
    uint64_t *set = malloc(bytes);
    NEED(set != NULL);
    int failed;
    do {
        struct hr_set_size size;
        failed =
            hr_read_set(crowd->regions, SET_MEMBERS, set, bytes, UINT32_MAX, &size, &call_error);
        int closed = 0;
        for (uint32_t i = 0; i < SET_MEMBERS; i++) {
            const struct hr_snapshot *snapshot = set_snapshot(set, i);
            closed += snapshot->code == HR_ECLOSED;
            CHECK_EQ(snapshot->process_count, snapshot->code == HR_OK ? PROCESSES : 0);
            if (snapshot->code != HR_OK)
                CHECK_EQ(set_failure(set, i)->code, HR_ECLOSED);
        }
        CHECK_EQ(failed, closed);
        atomic_fetch_add(&crowd->rounds, 1);
    } while (failed < SET_MEMBERS);
    free(set);
    return NULL;
}

/* Sets count themselves among the users of their regions: closing one waits for them. */
static void test_close_under_sets(struct region_file *file)
{
    fill(file);
    for (int round = 0; round < 40 / SHARE_OF_WORK; round++) {
        struct set_crowd crowd = {.rounds = 0};
        for (uint32_t i = 0; i < SET_MEMBERS; i++)
            crowd.regions[i] = open_or_fail(file->path, HR_READ);
        pthread_t threads[READERS];
        for (int i = 0; i < READERS; i++)
            NEED(pthread_create(&threads[i], NULL, set_reader, &crowd) == 0);
        for (uint32_t i = 0; i < SET_MEMBERS; i++) {
            const unsigned long before = atomic_load(&crowd.rounds);
            while (atomic_load(&crowd.rounds) < before + 2)
                sched_yield();
            hr_close(crowd.regions[(i * 5) % SET_MEMBERS], &call_error);
        }
        for (int i = 0; i < READERS; i++)
            pthread_join(threads[i], NULL);
        for (uint32_t i = 0; i < SET_MEMBERS; i++)
            hr_free(&crowd.regions[i]);
    }
}

/* Closing at once, while calls are only beginning, many times. */
static void test_close_at_once(struct region_file *file)
{
    fill(file);
    for (int round = 0; round < 200 / SHARE_OF_WORK; round++) {
        struct crowd crowd = {.region = open_or_fail(file->path, HR_READ)};
        pthread_t threads[2];
        for (int i = 0; i < 2; i++)
            NEED(pthread_create(&threads[i], NULL, reader, &crowd) == 0);
        hr_close(crowd.region, &call_error);
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
        hr_free(&crowd.region);
    }
}

static void in_forked_child(struct region_file *file, hr_region *region)
{
    uint64_t set[1024];
    struct hr_set_size size;
    CHECK_EQ(hr_snapshot(region, set, sizeof set, &call_error), HR_EFORKED);
    CHECK_EQ(hr_read_set(&region, 1, set, sizeof set, UINT32_MAX, &size, &call_error), 1);
    CHECK_EQ(set_snapshot(set, 0)->code, HR_EFORKED);
    CHECK_EQ(live_value(region, HR_PRIORITY, 0), NO_VALUE);
    CHECK_EQ(call_error.code, HR_EFORKED);
    CHECK_EQ(hr_is_stale(region, &call_error), HR_EFORKED);
    int32_t before;
    CHECK_EQ(set_value(region, HR_PRIORITY, 1, 0, 0, &before), HR_EFORKED);
    CHECK_EQ(hr_lock(region, 0, &call_error), HR_EFORKED);
    /* The file itself is open to the child. */
    hr_region *own = open_or_fail(file->path, HR_READ);
    CHECK_EQ(live_value(own, HR_MEMORY, 1), 8 * GIB);
    close_and_free(own);
    hr_close(region, &call_error);
    CHECK_EQ(hr_is_stale(region, &call_error), HR_ECLOSED);
    hr_free(&region);
}

static void check_child(struct region_file *file, hr_region *region)
{
    fflush(NULL);
    const pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
        atomic_store(&check_failures, 0);
        /* A child that waits for its parent's threads would wait for ever. */
        alarm(20);
        in_forked_child(file, region);
        _exit(atomic_load(&check_failures) != 0);
    }
    int status;
    NEED(waitpid(child, &status, 0) == child);
    CHECK_EQ(status, 0);
}

/* The calls that other threads were in at the fork never end in the child. */
static void test_fork_while_threads_call(struct region_file *file)
{
    fill(file);
    struct crowd crowd = {.region = open_or_fail(file->path, HR_WRITE)};
    pthread_t threads[READERS];
    for (int i = 0; i < READERS; i++)
        NEED(pthread_create(&threads[i], NULL, reader, &crowd) == 0);
    for (int round = 0; round < 20 / SHARE_OF_WORK; round++) {
        const unsigned long before = atomic_load(&crowd.rounds);
        check_child(file, crowd.region);
        while (atomic_load(&crowd.rounds) < before + 5)
            sched_yield();
    }
    hr_close(crowd.region, &call_error);
    for (int i = 0; i < READERS; i++)
        pthread_join(threads[i], NULL);
    hr_free(&crowd.region);
}

/* ---- Lock and slots under a close ------------------------------------------------ */

struct worker {
    hr_region *region;
    uint64_t random;
};

static void *work_until_closed(void *argument)
{
    struct worker *worker = argument;
    const uint64_t patience = 60 * ONE_SECOND;
    hr_region *region = worker->region;
    struct hr_slot_edit edit = {.value = HR_SLOT_MONITOR_USED, .to = 1000};
    int code = HR_OK;
    while (code != HR_ECLOSED) {
        switch (next_random(&worker->random) % 5) {
        case 0:
            code = hr_lock(region, patience, &call_error);
            if (code == HR_OK)
                code = hr_unlock(region, &call_error);
            break;
        case 1:
            code = hr_charge(region, 0, HR_DATA, 1, 0, patience, &call_error);
            break;
        case 2:
            code = hr_attach(region, patience, &call_error);
            break;
        case 3:
            code = hr_edit_slot(region, getpid(), &edit, 1, 0, patience, &call_error);
            break;
        default:
            code = hr_detach(region, 0, patience, &call_error);
        }
        CHECK(code == HR_OK || code == HR_EATTACHED || code == HR_EDETACHED ||
              code == HR_ENOPROCESS || code == HR_ECLOSED);
    }
    return NULL;
}

/* Whatever the threads are doing, the handle closes, and nothing of it stays locked. */
static void test_close_under_those_who_lock_and_attach(void)
{
    for (uint32_t id = HR_V1_1; id < HR_LAYOUTS; id++) {
        struct region_file file;
        pthread_t threads[WORKERS];
        struct worker workers[WORKERS];
        region_file_make(&file, id);
        hr_region *region = open_or_fail(file.path, HR_WRITE);
        for (uint32_t i = 0; i < WORKERS; i++) {
            workers[i] = (struct worker){.region = region, .random = i};
            NEED(pthread_create(&threads[i], NULL, work_until_closed, &workers[i]) == 0);
        }
        nap_us(200000 / SHARE_OF_WORK);
        hr_close(region, &call_error);
        for (uint32_t i = 0; i < WORKERS; i++)
            pthread_join(threads[i], NULL);
        hr_free(&region);
        CHECK_EQ(peek64(&file, file.layout->sem), 1);
        CHECK_EQ(peek64(&file, file.layout->owner_pid), 0);
        region_file_remove(&file);
    }
}

static void *give_back(void *region)
{
    CHECK_EQ(hr_unlock_own(region, &call_error), HR_EBUSY);
    return NULL;
}

/* Only the thread that has the lock gives it back by hr_unlock_own(). */
static void test_lock_of_another_thread_stays(struct region_file *file)
{
    hr_region *region = open_or_fail(file->path, HR_WRITE);
    pthread_t thread;
    CHECK_EQ(hr_lock(region, ONE_SECOND, &call_error), HR_OK);
    NEED(pthread_create(&thread, NULL, give_back, region) == 0);
    pthread_join(thread, NULL);
    CHECK_EQ(hr_unlock_own(region, &call_error), HR_OK);
    CHECK_EQ(hr_unlock_own(region, &call_error), HR_EBUSY);
    close_and_free(region);
}

int main(void)
{
    RUN_IN(HR_V1_2, test_lock_of_another_thread_stays);
    RUN_IN(HR_V1_2, test_fork_while_threads_call);
    RUN_IN(HR_V1_2, test_close_under_sets);
    RUN_IN(HR_V1_2, test_close_at_once);
    RUN(test_close_under_readers_and_writers);
    RUN(test_close_under_those_who_lock_and_attach);
    return check_report("test_lifetime");
}
