/* Handles under threads: closing waits, fork invalidates, and no access races another. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "call_error.h"
#include "check.h"
#include "region.h"
#include "region_file.h"
#include "snapshot_view.h"

#define ONE_SECOND UINT64_C(1000000000)

enum { READERS = 3, WRITERS = 2, PROCESSES = 6, SET_CELLS = 1024 };

static void make_busy(struct region_file *file, uint32_t layout)
{
    region_file_make(file, layout);
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
    CHECK_EQ(snapshot->proc_num, PROCESSES);
    for (uint32_t index = 0; index < PROCESSES; index++)
        CHECK_EQ(hr_snapshot_usage(snapshot, index, 1)->data, index * 1000 + 13);

    const uint64_t limit = live_value(region, HR_MEMORY, 0);
    if (limit == NO_VALUE)
        CHECK_EQ(last_detail().code, HR_ECLOSED);
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
    CHECK_EQ(last_detail().code, HR_ECLOSED);
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

/* A set of a region that others read and edit. */
static void test_columns_beside_others(void)
{
    struct region_file file;
    make_busy(&file, HR_V1_2);
    struct crowd crowd = {.region = open_or_fail(file.path, HR_WRITE)};
    pthread_t threads[2];
    NEED(pthread_create(&threads[0], NULL, reader, &crowd) == 0);
    NEED(pthread_create(&threads[1], NULL, writer, &crowd) == 0);
    uint64_t set[SET_CELLS];
    struct hr_set_size size;
    for (int i = 0; i < 2000; i++) {
        CHECK_EQ(hr_read_set(&crowd.region, 1, set, sizeof set, UINT32_MAX, &size, &call_error),
                 HR_OK);
        CHECK_EQ(set_snapshot(set, 0)->proc_num, PROCESSES);
        CHECK_EQ(size.usages, 2 * PROCESSES);
    }
    hr_close(crowd.region, &call_error);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    CHECK_EQ(hr_read_set(&crowd.region, 1, set, sizeof set, UINT32_MAX, &size, &call_error), 1);
    CHECK_EQ(set_snapshot(set, 0)->code, HR_ECLOSED);
    hr_free(&crowd.region);
    region_file_remove(&file);
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
        make_busy(&file, round % HR_LAYOUTS);
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
            CHECK_EQ(snapshot->proc_num, snapshot->code == HR_OK ? PROCESSES : 0);
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
static void test_close_under_sets(void)
{
    struct region_file file;
    make_busy(&file, HR_V1_2);
    for (int round = 0; round < 40 / SHARE_OF_WORK; round++) {
        struct set_crowd crowd = {.rounds = 0};
        for (uint32_t i = 0; i < SET_MEMBERS; i++)
            crowd.regions[i] = open_or_fail(file.path, HR_READ);
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
    region_file_remove(&file);
}

/* Closing at once, while calls are only beginning, many times. */
static void test_close_at_once(void)
{
    struct region_file file;
    make_busy(&file, HR_V1_2);
    for (int round = 0; round < 200 / SHARE_OF_WORK; round++) {
        struct crowd crowd = {.region = open_or_fail(file.path, HR_READ)};
        pthread_t threads[2];
        for (int i = 0; i < 2; i++)
            NEED(pthread_create(&threads[i], NULL, reader, &crowd) == 0);
        hr_close(crowd.region, &call_error);
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
        hr_free(&crowd.region);
    }
    region_file_remove(&file);
}

static void test_closed_handle(void)
{
    struct region_file file;
    make_busy(&file, HR_V1_1);
    hr_region *region = open_or_fail(file.path, HR_WRITE);
    uint64_t small[8];
    struct hr_edit edits[HR_DEVICES];
    int32_t before;
    hr_close(region, &call_error);
    CHECK_EQ(hr_snapshot(region, small, sizeof small, &call_error), HR_ECLOSED);
    CHECK_EQ(last_detail().code, HR_ECLOSED);
    CHECK_EQ(live_value(region, HR_PRIORITY, 0), NO_VALUE);
    CHECK_EQ(last_detail().code, HR_ECLOSED);
    CHECK_EQ(hr_is_stale(region, &call_error), HR_ECLOSED);
    CHECK_EQ(set_limits(region, HR_MEMORY, 0, 1, 0, 0, edits), HR_ECLOSED);
    CHECK_EQ(set_value(region, HR_PRIORITY, 1, 0, 0, &before), HR_ECLOSED);
    close_and_free(region);
    region_file_remove(&file);
}

static void in_forked_child(struct region_file *file, hr_region *region)
{
    uint64_t small[8];
    struct hr_edit edits[HR_DEVICES];
    int32_t before;
    CHECK_EQ(hr_snapshot(region, small, sizeof small, &call_error), HR_EFORKED);
    CHECK_EQ(last_detail().code, HR_EFORKED);
    CHECK_EQ(live_value(region, HR_PRIORITY, 0), NO_VALUE);
    CHECK_EQ(last_detail().code, HR_EFORKED);
    CHECK_EQ(hr_is_stale(region, &call_error), HR_EFORKED);
    CHECK_EQ(set_limits(region, HR_MEMORY, 0, 7 * GIB, 0, 0, edits), HR_EFORKED);
    CHECK_EQ(set_value(region, HR_PRIORITY, 1, 0, 0, &before), HR_EFORKED);
    uint64_t set[SET_CELLS];
    struct hr_set_size size;
    CHECK_EQ(hr_read_set(&region, 1, set, sizeof set, UINT32_MAX, &size, &call_error), 1);
    CHECK_EQ(set_snapshot(set, 0)->code, HR_EFORKED);

    /* The file itself is open to the child. */
    hr_region *own = open_or_fail(file->path, HR_READ);
    CHECK_EQ(live_value(own, HR_MEMORY, 1), 8 * GIB);
    CHECK_EQ(hr_is_stale(own, &call_error), 0);
    close_and_free(own);
    hr_close(region, &call_error);
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

static void test_fork(void)
{
    struct region_file file;
    make_busy(&file, HR_V1_2);
    hr_region *region = open_or_fail(file.path, HR_WRITE);
    check_child(&file, region);
    /* The parent's handle is as good as before. */
    CHECK_EQ(live_value(region, HR_MEMORY, 1), 8 * GIB);
    CHECK_EQ(live_value(region, HR_PRIORITY, 0), 1);
    close_and_free(region);
    region_file_remove(&file);
}

/* The calls that other threads were in at the fork never end in the child. */
static void test_fork_while_threads_call(void)
{
    struct region_file file;
    make_busy(&file, HR_V1_2);
    struct crowd crowd = {.region = open_or_fail(file.path, HR_WRITE)};
    pthread_t threads[READERS];
    for (int i = 0; i < READERS; i++)
        NEED(pthread_create(&threads[i], NULL, reader, &crowd) == 0);
    for (int round = 0; round < 20 / SHARE_OF_WORK; round++) {
        const unsigned long before = atomic_load(&crowd.rounds);
        check_child(&file, crowd.region);
        while (atomic_load(&crowd.rounds) < before + 5)
            sched_yield();
    }
    hr_close(crowd.region, &call_error);
    for (int i = 0; i < READERS; i++)
        pthread_join(threads[i], NULL);
    hr_free(&crowd.region);
    region_file_remove(&file);
}

struct failer {
    const char *path;
    int code;
};

static void *fail_often(void *argument)
{
    const struct failer *failer = argument;
    for (int i = 0; i < 500; i++) {
        CHECK_EQ(hr_identify(failer->path, HR_LAYOUTS, &call_error), failer->code);
        CHECK_EQ(last_detail().code, failer->code);
    }
    return NULL;
}

/* Each thread sees why its own call failed. */
static void test_details_are_per_thread(void)
{
    struct failer failers[] = {{"/dev/null", HR_ENOTREGION}, {"/nowhere/at/all", HR_ENOTFOUND}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        NEED(pthread_create(&threads[i], NULL, fail_often, &failers[i]) == 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
}

/* Opening and closing from several threads at once. */
static void *open_often(void *argument)
{
    const struct region_file *file = argument;
    for (int i = 0; i < 300; i++) {
        hr_region *region = open_or_fail(file->path, i % 2 ? HR_READ : HR_WRITE);
        CHECK_EQ(live_value(region, HR_VALUE_PROC_NUM, 0), PROCESSES);
        close_and_free(region);
    }
    return NULL;
}

static void test_open_from_many_threads(void)
{
    struct region_file file;
    make_busy(&file, HR_V1_1_POSTINIT);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        NEED(pthread_create(&threads[i], NULL, open_often, &file) == 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    region_file_remove(&file);
}

struct holder {
    hr_region *region;
    pthread_barrier_t held, asked;
};

static void *hold_lock(void *argument)
{
    struct holder *holder = argument;
    CHECK_EQ(hr_lock(holder->region, ONE_SECOND, &call_error), HR_OK);
    pthread_barrier_wait(&holder->held);
    pthread_barrier_wait(&holder->asked);
    CHECK_EQ(hr_unlock(holder->region, &call_error), HR_OK);
    return NULL;
}

/* Only the thread that has the lock gives it back by hr_unlock_own(). */
static void test_lock_of_another_thread_stays(void)
{
    struct region_file file;
    region_file_make(&file, HR_V1_2);
    struct holder holder = {.region = open_or_fail(file.path, HR_WRITE)};
    NEED(pthread_barrier_init(&holder.held, NULL, 2) == 0);
    NEED(pthread_barrier_init(&holder.asked, NULL, 2) == 0);
    pthread_t thread;
    NEED(pthread_create(&thread, NULL, hold_lock, &holder) == 0);
    pthread_barrier_wait(&holder.held);
    CHECK_EQ(hr_unlock_own(holder.region, &call_error), HR_EBUSY);
    pthread_barrier_wait(&holder.asked);
    pthread_join(thread, NULL);
    CHECK_EQ(hr_lock(holder.region, ONE_SECOND, &call_error), HR_OK);
    CHECK_EQ(hr_unlock_own(holder.region, &call_error), HR_OK);
    CHECK_EQ(hr_unlock_own(holder.region, &call_error), HR_EBUSY);
    close_and_free(holder.region);
    region_file_remove(&file);
}

int main(void)
{
    RUN(test_closed_handle);
    RUN(test_open_from_many_threads);
    RUN(test_details_are_per_thread);
    RUN(test_lock_of_another_thread_stays);
    RUN(test_fork);
    RUN(test_fork_while_threads_call);
    RUN(test_columns_beside_others);
    RUN(test_close_under_sets);
    RUN(test_close_at_once);
    RUN(test_close_under_readers_and_writers);
    return check_report("test_lifetime");
}
