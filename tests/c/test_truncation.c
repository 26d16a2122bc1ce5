/* Files that are shortened, emptied or replaced under a handle: errors, never a dead process. */
#include <pthread.h>
#include <unistd.h>

#include "check.h"
#include "region_file.h"
#include "snapshot_view.h"

static uint64_t buffer[(HR_SNAPSHOT_MAX_BYTES + 7) / 8];

enum { TRUNCATIONS = 10000 / SHARE_OF_WORK, READERS = 3 };

struct storm {
    struct region_file file;
    uint8_t *content;
    hr_region *shared;
    atomic_bool over;
    atomic_ulong good, stale, reopened;
};

/* What a reader may be told while the file is cut and made whole again. */
static bool is_expected_in_a_storm(int code)
{
    return code == HR_OK || code == HR_ESTALE || code == HR_ECORRUPT;
}

static void count_code(struct storm *storm, int code)
{
    if (code == HR_ESTALE)
        atomic_fetch_add(&storm->stale, 1);
    else if (code == HR_OK)
        atomic_fetch_add(&storm->good, 1);
}

static void *read_in_a_storm(void *argument)
{
    struct storm *storm = argument;
    uint64_t *own = malloc(HR_SNAPSHOT_MAX_BYTES);
    NEED(own != NULL);
    struct hr_edit edits[HR_DEVICES];
    while (!atomic_load(&storm->over)) {
        int code = hr_snapshot(storm->shared, own, HR_SNAPSHOT_MAX_BYTES, &call_error);
        CHECK(is_expected_in_a_storm(code));
        count_code(storm, code);
        if (live_value(storm->shared, HR_VALUE_MEMORY_USED, 1) == NO_VALUE)
            CHECK(is_expected_in_a_storm(call_error.code));
        code = set_limits(storm->shared, HR_SM, HR_ALL_DEVICES, 50, 0, 0, edits);
        CHECK(code > 0 || is_expected_in_a_storm(code));

        hr_region *fresh = NULL;
        code = hr_open(storm->file.path, HR_READ, HR_LAYOUTS, 0, &fresh, &call_error);
        if (code >= 0) {
            atomic_fetch_add(&storm->reopened, 1);
            for (int i = 0; i < 3; i++) {
                code = hr_snapshot(fresh, own, HR_SNAPSHOT_MAX_BYTES, &call_error);
                CHECK(is_expected_in_a_storm(code));
                count_code(storm, code);
            }
            const int stale = hr_is_stale(fresh, &call_error);
            CHECK(stale == 0 || stale == 1);
            close_and_free(fresh);
        } else {
            CHECK(code == HR_ENOTREADY || code == HR_ESTALE || code == HR_ECORRUPT);
        }
    }
    free(own);
    return NULL;
}

/* Thousands of truncations under three readers: errors, and no dead process. */
static void test_truncation_under_readers(void)
{
    static struct storm storm;
    region_file_make(&storm.file, HR_V1_2);
    for (uint32_t slot = 0; slot < 20; slot++)
        fill_slot(&storm.file, slot, (int32_t)slot + 1, slot, 2);
    poke32(&storm.file, storm.file.layout->proc_num, 20);
    storm.content = region_file_copy(&storm.file);
    storm.shared = open_or_fail(storm.file.path, HR_WRITE);

    pthread_t readers[READERS];
    for (int i = 0; i < READERS; i++)
        NEED(pthread_create(&readers[i], NULL, read_in_a_storm, &storm) == 0);
    const size_t head = 64 * 1024;
    const size_t tail = storm.file.layout->proc_num & ~(size_t)4095;
    uint32_t random = 1;
    for (int i = 0; i < TRUNCATIONS; i++) {
        random = random * 1664525 + 1013904223;
        const off_t cut = i % 4 == 0 ? 0 : (off_t)((random >> 8) % storm.file.size);
        NEED(ftruncate(storm.file.fd, cut) == 0);
        if (i % 8 == 0)
            sched_yield();
        NEED(ftruncate(storm.file.fd, (off_t)storm.file.size) == 0);
        NEED(pwrite(storm.file.fd, storm.content + tail, storm.file.size - tail, (off_t)tail) > 0);
        NEED(pwrite(storm.file.fd, storm.content, head, 0) == (ssize_t)head);
        if (i % 8 == 4)
            sched_yield();
    }
    atomic_store(&storm.over, true);
    for (int i = 0; i < READERS; i++)
        pthread_join(readers[i], NULL);
    CHECK(atomic_load(&storm.good) > 0);
    CHECK(atomic_load(&storm.stale) > 0);
    CHECK(atomic_load(&storm.reopened) > 0);

    /* Whole again, it works again, for the old handle and for a new one. */
    CHECK_EQ(hr_snapshot(storm.shared, buffer, sizeof buffer, &call_error), HR_OK);
    CHECK_EQ(hr_is_stale(storm.shared, &call_error), 0);
    hr_region *fresh = open_or_fail(storm.file.path, HR_READ);
    CHECK_EQ(hr_snapshot(fresh, buffer, sizeof buffer, &call_error), HR_OK);
    close_and_free(fresh);
    close_and_free(storm.shared);
    free(storm.content);
    region_file_remove(&storm.file);
}

/* Each call on a file that is gone gives an error, from every layout and each cut. */
static void test_every_call_on_a_truncated_file(void)
{
    for (uint32_t id = 0; id < HR_LAYOUTS; id++) {
        struct region_file file;
        region_file_make(&file, id);
        hr_region *region = open_or_fail(file.path, HR_WRITE);
        struct hr_edit edits[HR_DEVICES];
        int32_t before;
        NEED(ftruncate(file.fd, 0) == 0);
        CHECK_EQ(hr_is_stale(region, &call_error), 1);
        CHECK_EQ(hr_snapshot(region, buffer, sizeof buffer, &call_error), HR_ESTALE);
        for (uint32_t value = 0; value <= HR_VALUE_PROC_NUM; value++) {
            CHECK_EQ(live_value(region, value, 0), NO_VALUE);
            CHECK_EQ(call_error.code, HR_ESTALE);
        }
        CHECK_EQ(set_limits(region, HR_MEMORY, 0, GIB, 0, 0, edits), HR_ESTALE);
        CHECK_EQ(set_limits(region, HR_SM, HR_ALL_DEVICES, 10, 0, 0, edits), HR_ESTALE);
        CHECK_EQ(set_value(region, HR_PRIORITY, 1, 0, 0, &before), HR_ESTALE);
        struct hr_set_size size;
        CHECK_EQ(hr_read_set(&region, 1, buffer, sizeof buffer, UINT32_MAX, &size, &call_error), 1);
        CHECK_EQ(set_snapshot(buffer, 0)->code, HR_ESTALE);
        CHECK_EQ(set_failure(buffer, 0)->reason, HR_REASON_TRUNCATED);

        /* Only the head is left: what lies in the tail is missed at its use. */
        NEED(ftruncate(file.fd, 4096) == 0);
        poke32(&file, 0, HR_MAGIC);
        poke32(&file, 4, file.layout->major_version);
        poke32(&file, 8, file.layout->minor_version);
        CHECK_EQ(hr_snapshot(region, buffer, sizeof buffer, &call_error), HR_ESTALE);
        CHECK_EQ(call_error.reason, HR_REASON_TRUNCATED);
        CHECK_EQ(set_value(region, HR_PRIORITY, 1, 0, 0, &before), HR_ESTALE);
        CHECK_EQ(set_limits(region, HR_MEMORY, 0, GIB, 0, 0, edits), HR_ESTALE);
        CHECK_EQ(peek64(&file, file.layout->limit), 0);
        close_and_free(region);
        region_file_remove(&file);
    }
}

/* The old mapping shows the old file; staleness tells, and the next open finds the new one. */
static void test_replacement(void)
{
    struct region_file file;
    region_file_make(&file, HR_V1_1);
    hr_region *region = open_or_fail(file.path, HR_READ);
    for (uint32_t round = 0; round < 100; round++) {
        struct hr_create_spec spec;
        region_file_spec(&spec, round % HR_LAYOUTS);
        spec.limit[0] = (round + 10) * GIB;
        CHECK_EQ(hr_is_stale(region, &call_error), 0);
        const uint64_t old_limit = live_value(region, HR_MEMORY, 0);
        NEED(unlink(file.path) == 0);
        CHECK_EQ(hr_is_stale(region, &call_error), 1);
        CHECK_EQ(hr_create(file.path, &spec, &call_error), HR_OK);
        CHECK_EQ(hr_is_stale(region, &call_error), 1);
        CHECK_EQ(live_value(region, HR_MEMORY, 0), old_limit);
        close_and_free(region);
        region = open_or_fail(file.path, HR_READ);
        struct hr_info info;
        hr_get_info(region, &info);
        CHECK_EQ(info.layout, round % HR_LAYOUTS);
        CHECK_EQ(live_value(region, HR_MEMORY, 0), (round + 10) * GIB);
    }
    close_and_free(region);
    region_file_remove(&file);
}

int main(void)
{
    RUN(test_every_call_on_a_truncated_file);
    RUN(test_replacement);
    RUN(test_truncation_under_readers);
    return check_report("test_truncation");
}
