/* A file that is shortened and made whole again under threads: errors, never a dead process. */
#include <pthread.h>
#include <unistd.h>

#include "check.h"
#include "region_file.h"

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

int main(void)
{
    RUN(test_truncation_under_readers);
    return check_report("test_truncation");
}
