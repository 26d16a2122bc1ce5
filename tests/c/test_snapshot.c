/* Snapshots and sets end with their buffers, and what was torn or unlocked is not settled. */
#include "check.h"
#include "region_file.h"
#include "snapshot_view.h"

/* Exactly as large as the snapshot, so that the sanitizer sees one byte too many. */
static struct hr_snapshot *take_exact(hr_region *region)
{
    struct hr_snapshot *small = malloc(sizeof *small);
    NEED(small != NULL);
    CHECK_EQ(hr_snapshot(region, small, sizeof *small, &call_error), HR_ENOSPACE);
    const struct hr_error detail = call_error;
    CHECK_EQ(detail.code, HR_ENOSPACE);
    free(small);
    CHECK(detail.wanted <= HR_SNAPSHOT_MAX_BYTES);
    struct hr_snapshot *snapshot = malloc(detail.wanted);
    NEED(snapshot != NULL);
    CHECK_EQ(hr_snapshot(region, snapshot, detail.wanted, &call_error), HR_OK);
    CHECK_EQ(hr_snapshot_bytes(snapshot), detail.wanted);
    return snapshot;
}

/* A buffer one byte too small is refused untouched, and told how large it should be. */
static void test_snapshot_never_passes_its_buffer(struct region_file *file)
{
    fill_slot(file, 0, 100, 1, 2);
    fill_slot(file, 1, 101, 2, 2);
    poke32(file, file->layout->proc_num, 2);
    hr_region *region = open_or_fail(file->path, HR_READ);
    struct hr_snapshot *snapshot = take_exact(region);
    const size_t wanted = hr_snapshot_bytes(snapshot);
    CHECK_EQ(wanted, sizeof(struct hr_snapshot) + 2 * sizeof(struct hr_device) +
                         2 * (sizeof(struct hr_process) + 2 * sizeof(struct hr_usage)));
    free(snapshot);
    for (size_t bytes = 0; bytes < wanted; bytes++) {
        char *exact = malloc(bytes + 1);
        NEED(exact != NULL);
        exact[bytes] = 0x5a;
        CHECK_EQ(hr_snapshot(region, exact, bytes, &call_error), HR_ENOSPACE);
        CHECK_EQ(call_error.wanted, wanted);
        CHECK_EQ(exact[bytes], 0x5a);
        free(exact);
    }
    CHECK_EQ(hr_snapshot(region, NULL, 0, &call_error), HR_ENOSPACE);
    close_and_free(region);
}

/* With regions of all layouts, one that is closed, and none in between. */
static void test_a_set_never_passes_its_buffer(void)
{
    enum { ROWS = HR_LAYOUTS + 2 };
    struct region_file files[HR_LAYOUTS];
    hr_region *regions[ROWS] = {0};
    struct hr_set_size size;
    for (uint32_t id = 0; id < HR_LAYOUTS; id++) {
        region_file_make(&files[id], id);
        for (uint32_t slot = 0; slot <= id; slot++)
            fill_slot(&files[id], slot, (int32_t)(100 * id + slot + 1), slot + 1, 2);
        poke32(&files[id], files[id].layout->proc_num, id + 1);
        regions[id] = open_or_fail(files[id].path, HR_READ);
    }
    regions[HR_LAYOUTS + 1] = open_or_fail(files[0].path, HR_READ);
    hr_close(regions[HR_LAYOUTS + 1], &call_error);

    CHECK_EQ(hr_read_set(regions, ROWS, NULL, 0, UINT32_MAX, &size, &call_error), HR_ENOSPACE);
    const uint64_t wanted = size.bytes;
    for (uint64_t bytes = 0; bytes <= wanted; bytes++) {
        char *exact = malloc(bytes + 1);
        NEED(exact != NULL);
        exact[bytes] = 0x5a;
        CHECK_EQ(hr_read_set(regions, ROWS, exact, bytes, UINT32_MAX, &size, &call_error),
                 bytes < wanted ? HR_ENOSPACE : 2);
        CHECK_EQ(size.bytes, wanted);
        CHECK_EQ(exact[bytes], 0x5a);
        free(exact);
    }
    hr_free(&regions[HR_LAYOUTS + 1]);
    for (uint32_t id = 0; id < HR_LAYOUTS; id++) {
        hr_free(&regions[id]);
        region_file_remove(&files[id]);
    }
}

/* A full table fits the largest snapshot there is. */
static void test_snapshot_of_a_full_table(struct region_file *file)
{
    for (uint32_t slot = 0; slot < HR_SLOTS; slot++)
        fill_slot(file, slot, (int32_t)(slot + 1), slot, HR_DEVICES);
    poke32(file, file->layout->proc_num, HR_SLOTS);
    poke64(file, file->layout->device_num, HR_DEVICES);
    hr_region *region = open_or_fail(file->path, HR_READ);
    struct hr_snapshot *snapshot = take_exact(region);
    CHECK_EQ(hr_snapshot_bytes(snapshot), HR_SNAPSHOT_MAX_BYTES);
    for (uint32_t slot = 0; slot < HR_SLOTS; slot++) {
        struct hr_usage usage;
        usage_of_number(file->layout, slot, HR_DEVICES - 1, &usage);
        CHECK_EQ(memcmp(hr_snapshot_usage(snapshot, slot, HR_DEVICES - 1), &usage, sizeof usage),
                 0);
    }
    free(snapshot);
    close_and_free(region);
}

enum { SAME = 3 };

struct shown_case {
    uint64_t device_num;
    uint64_t limits[3];
    int64_t used_device; /* or -1 */
    int64_t uuid_device; /* or -1 */
    uint32_t shown;
};

/* Which devices deserve a line: see struct hr_snapshot. */
static void test_shown_devices(struct region_file *file)
{
    const struct shown_case cases[] = {
        {2, {0, 0, 0}, -1, -1, 0x0003},
        {16, {0, 0, 0}, -1, -1, 0xffff},
        {0, {5, 0, 0}, -1, -1, 0x0001},
        {0, {5, 6, 0}, -1, -1, 0x0003},
        {0, {0, 0, 7}, -1, -1, 0x0007},
        {1, {5, 6, 7}, -1, -1, 0x0001},
        /* 16 equal limits say nothing. */
        {0, {SAME, SAME, SAME}, -1, -1, 0x0001},
        {0, {0, 0, 0}, 9, -1, 0x0201},
        {0, {0, 0, 0}, -1, 15, 0x8001},
        {0, {5, 0, 0}, 15, 4, 0x8011},
        {0, {0, 0, 0}, 15, 14, 0xc001},
        {2, {0, 0, 0}, 1, 0, 0x0003},
        /* What stands beyond those that the container has declared is left over. */
        {1, {0, 0, 0}, 9, -1, 0x0001},
        {1, {0, 0, 0}, 15, 14, 0x0001},
    };
    const struct hr_layout *layout = file->layout;
    uint8_t *uuids = file->bytes + layout->uuids;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct shown_case *this = &cases[i];
        memset(uuids, 0, HR_DEVICES * HR_UUID_BYTES);
        poke64(file, layout->device_num, this->device_num);
        for (uint32_t device = 0; device < HR_DEVICES; device++) {
            const uint64_t other = this->limits[0] == SAME ? SAME : 0;
            poke64(file, layout->limit + device * 8, device < 3 ? this->limits[device] : other);
            poke_usage(file, 0, device, &(struct hr_usage){0});
        }
        fill_slot(file, 0, 100, 1, 0);
        poke32(file, layout->proc_num, 1);
        if (this->used_device >= 0)
            poke_usage(file, 0, (uint32_t)this->used_device,
                       &(struct hr_usage){.context = 1, .total = 1});
        if (this->uuid_device >= 0)
            strcpy((char *)uuids + this->uuid_device * HR_UUID_BYTES, "GPU-1");

        hr_region *region = NULL;
        NEED(hr_open(file->path, HR_READ, file->layout->id, 0, &region, &call_error) >= 0);
        struct hr_snapshot *snapshot = take_exact(region);
        CHECK_EQ(snapshot->shown, this->shown);
        CHECK_EQ(snapshot->span, 32 - __builtin_clz(this->shown));
        CHECK_EQ(snapshot->device_num, this->device_num);
        free(snapshot);
        close_and_free(region);
    }
}

/* What was killed inside its seqlock. */
static void test_an_odd_seqlock_is_not_settled(struct region_file *file)
{
    for (uint32_t slot = 0; slot < 3; slot++)
        fill_slot(file, slot, (int32_t)(100 + slot), slot + 1, 2);
    poke32(file, file->layout->proc_num, 3);
    hr_region *region = open_or_fail(file->path, HR_READ);
    for (uint64_t seqlock = 7; seqlock < 9; seqlock++) {
        poke64(file, slot_at(file, 1, file->layout->slot_seqlock), seqlock);
        struct hr_snapshot *snapshot = take_exact(region);
        CHECK_EQ(snapshot->settled, seqlock % 2 == 0);
        for (uint32_t i = 0; i < 3; i++)
            CHECK_EQ(hr_snapshot_process(snapshot, i)->settled, i != 1 || seqlock % 2 == 0);
        CHECK_EQ(hr_snapshot_usage(snapshot, 1, 0)->total, 6006);
        free(snapshot);
    }
    close_and_free(region);
}

/* Nobody may be taken to be outside who came in while the semaphore excluded nobody. */
static void test_broken_lock_is_not_settled(struct region_file *file)
{
    const struct hr_layout *layout = file->layout;
    fill_slot(file, 0, 100, 1, 2);
    poke32(file, layout->proc_num, 1);
    hr_region *region = open_or_fail(file->path, HR_READ);
    const struct {
        uint32_t value;
        uint64_t owner;
        bool settled;
    } cases[] = {{1, 0, true},  {0, 0, false}, {0, 100, false},        {1, 100, false},
                 {2, 0, false}, {1, 0, true},  {1, 1u << 30, false},   {3, 100, false},
                 {1, 0, true},  {2, 7, false}, {1, UINT64_MAX, false}, {1, 0, true}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        poke32(file, layout->sem, cases[i].value);
        poke64(file, layout->owner_pid, cases[i].owner);
        struct hr_snapshot *snapshot = take_exact(region);
        CHECK_EQ(snapshot->settled, cases[i].settled);
        CHECK_EQ(hr_snapshot_process(snapshot, 0)->settled, cases[i].settled);
        free(snapshot);
    }
    /* Who waits does not matter. */
    poke32(file, layout->sem + 4, 3);
    struct hr_snapshot *snapshot = take_exact(region);
    CHECK_EQ(snapshot->settled, 1);
    free(snapshot);
    close_and_free(region);
}

/* Two threads that are killed inside one seqlock leave it even, and the total apart. */
static void test_torn_total_is_not_settled(struct region_file *file)
{
    const bool has_seqlock = file->layout->slot_seqlock != HR_ABSENT;
    for (uint32_t slot = 0; slot < 3; slot++)
        fill_slot(file, slot, (int32_t)(100 + slot), slot + 1, 2);
    poke32(file, file->layout->proc_num, 3);
    hr_region *region = open_or_fail(file->path, HR_READ);
    struct hr_usage usage;
    usage_of_number(file->layout, 2, 1, &usage);
    usage.total += 4096;
    poke_usage(file, 1, 1, &usage);
    struct hr_snapshot *snapshot = take_exact(region);
    CHECK_EQ(snapshot->settled, !has_seqlock);
    for (uint32_t i = 0; i < 3; i++)
        CHECK_EQ(hr_snapshot_process(snapshot, i)->settled, i != 1 || !has_seqlock);
    CHECK_EQ(hr_snapshot_usage(snapshot, 1, 1)->total, usage.total);
    free(snapshot);
    usage.module += 4096;
    poke_usage(file, 1, 1, &usage);
    snapshot = take_exact(region);
    CHECK_EQ(snapshot->settled, 1);
    free(snapshot);
    close_and_free(region);
}

/* Sums wrap, as libvgpu adds. */
static void test_sums_are_modulo_64_bits(struct region_file *file)
{
    const uint64_t top = UINT64_MAX - 3, all = top + top;
    const struct hr_usage huge = {top, top, top, top, top, top, top, top, top};
    for (uint32_t slot = 0; slot < 2; slot++) {
        fill_slot(file, slot, 100 + (int32_t)slot, 1, 2);
        poke_usage(file, slot, 0, &huge);
    }
    poke32(file, file->layout->proc_num, 2);
    hr_region *region = open_or_fail(file->path, HR_READ);
    struct hr_snapshot *snapshot = take_exact(region);
    const struct hr_usage sums = {all, all, all, all, all, all, all, all, all};
    CHECK_EQ(memcmp(&hr_snapshot_device(snapshot, 0)->sums, &sums, sizeof sums), 0);
    free(snapshot);
    close_and_free(region);
}

int main(void)
{
    RUN_IN(HR_V1_2, test_snapshot_never_passes_its_buffer);
    RUN(test_a_set_never_passes_its_buffer);
    RUN_FROM(0, test_snapshot_of_a_full_table);
    RUN_FROM(0, test_shown_devices);
    RUN_FROM(HR_V1_1_POSTINIT, test_an_odd_seqlock_is_not_settled);
    RUN_FROM(0, test_broken_lock_is_not_settled);
    RUN_FROM(0, test_torn_total_is_not_settled);
    RUN_IN(HR_V1_1, test_sums_are_modulo_64_bits);
    return check_report("test_snapshot");
}
