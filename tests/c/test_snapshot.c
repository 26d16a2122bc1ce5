/* A snapshot holds exactly what stands in the file, and says what it could not settle. */
#include <time.h>

#include "call_error.h"
#include "check.h"
#include "region_file.h"
#include "snapshot_view.h"

/* Exactly as large as the snapshot, so that the sanitizer sees one byte too many. */
static struct hr_snapshot *take_exact(hr_region *region)
{
    struct hr_snapshot *small = malloc(sizeof *small);
    NEED(small != NULL);
    CHECK_EQ(hr_snapshot(region, small, sizeof *small, &call_error), HR_ENOSPACE);
    const struct hr_error detail = last_detail();
    CHECK_EQ(detail.code, HR_ENOSPACE);
    free(small);
    CHECK(detail.wanted <= HR_SNAPSHOT_MAX_BYTES);
    struct hr_snapshot *snapshot = malloc(detail.wanted);
    NEED(snapshot != NULL);
    CHECK_EQ(hr_snapshot(region, snapshot, detail.wanted, &call_error), HR_OK);
    CHECK_EQ(hr_snapshot_bytes(snapshot), detail.wanted);
    return snapshot;
}

static void check_usage(const struct hr_usage *found, const struct hr_usage *expected)
{
    CHECK_EQ(found->context, expected->context);
    CHECK_EQ(found->module, expected->module);
    CHECK_EQ(found->data, expected->data);
    CHECK_EQ(found->offset, expected->offset);
    CHECK_EQ(found->total, expected->total);
    CHECK_EQ(found->monitor, expected->monitor);
    CHECK_EQ(found->dec, expected->dec);
    CHECK_EQ(found->enc, expected->enc);
    CHECK_EQ(found->sm, expected->sm);
}

/* Each field of each slot and device comes from its own place. */
static void test_snapshot_holds_every_field(void)
{
    for (uint32_t id = 0; id < HR_LAYOUTS; id++) {
        struct region_file file;
        region_file_make(&file, id);
        const struct hr_layout *layout = file.layout;
        const uint32_t processes = 5;
        for (uint32_t slot = 0; slot < processes; slot++)
            fill_slot(&file, slot, (int32_t)(100 + slot), slot + 1, HR_DEVICES);
        poke32(&file, layout->proc_num, processes);
        poke64(&file, layout->device_num, HR_DEVICES);
        poke32(&file, layout->utilization_switch, 1);
        poke32(&file, layout->recent_kernel, (uint32_t)-1);
        poke32(&file, layout->priority, 7);
        poke32(&file, slot_at(&file, 3, layout->slot_status), 2);
        if (layout->last_kernel_time != HR_ABSENT)
            poke64(&file, layout->last_kernel_time, 1790000000);

        hr_region *region = open_or_fail(file.path, HR_READ);
        struct timespec before;
        clock_gettime(CLOCK_REALTIME, &before);
        struct hr_snapshot *snapshot = take_exact(region);
        const uint64_t before_ns = (uint64_t)before.tv_sec * 1000000000u + (uint64_t)before.tv_nsec;
        CHECK(snapshot->taken_at_ns >= before_ns);
        CHECK(snapshot->taken_at_ns < before_ns + 60000000000u);
        CHECK_EQ(snapshot->owner_pid, 0);
        CHECK_EQ(snapshot->semaphore, 1);
        CHECK_EQ(snapshot->settled, 1);
        CHECK_EQ(snapshot->span, HR_DEVICES);
        CHECK_EQ(snapshot->shown, 0xffff);
        CHECK_EQ(snapshot->device_num, HR_DEVICES);
        CHECK_EQ(snapshot->proc_num, processes);
        CHECK_EQ(snapshot->priority, 7);
        CHECK_EQ(snapshot->utilization_switch, 1);
        CHECK_EQ(snapshot->recent_kernel, -1);
        CHECK_EQ(snapshot->last_kernel_time,
                 layout->last_kernel_time != HR_ABSENT ? 1790000000 : 0);

        for (uint32_t device = 0; device < HR_DEVICES; device++) {
            const struct hr_device *shown = hr_snapshot_device(snapshot, device);
            CHECK_EQ(shown->limit, device == 0 ? 4 * GIB : device == 1 ? 8 * GIB : 0);
            CHECK_EQ(shown->sm_limit, device == 0 ? 50 : device == 1 ? 60 : 100);
            struct hr_usage sums;
            sums_of_slots(layout, processes, device, &sums);
            check_usage(&shown->sums, &sums);
            CHECK_EQ(memcmp(shown->uuid,
                            file.bytes + layout->uuids + (size_t)device * HR_UUID_BYTES,
                            HR_UUID_BYTES),
                     0);
        }
        for (uint32_t slot = 0; slot < processes; slot++) {
            const struct hr_process *process = hr_snapshot_process(snapshot, slot);
            CHECK_EQ(process->pid, 100 + slot);
            CHECK_EQ(process->host_pid, 1000100 + slot);
            CHECK_EQ(process->status, slot == 3 ? 2 : 1);
            CHECK_EQ(process->settled, 1);
            for (uint32_t device = 0; device < HR_DEVICES; device++) {
                struct hr_usage expected;
                usage_of_number(layout, slot + 1, device, &expected);
                check_usage(hr_snapshot_usage(snapshot, slot, device), &expected);
            }
        }
        free(snapshot);
        close_and_free(region);
        region_file_remove(&file);
    }
}

/* A buffer one byte too small is refused untouched, and told how large it should be. */
static void test_snapshot_never_passes_its_buffer(void)
{
    struct region_file file;
    region_file_make(&file, HR_V1_2);
    fill_slot(&file, 0, 100, 1, 2);
    fill_slot(&file, 1, 101, 2, 2);
    poke32(&file, file.layout->proc_num, 2);
    hr_region *region = open_or_fail(file.path, HR_READ);
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
        CHECK_EQ(last_detail().wanted, wanted);
        CHECK_EQ(exact[bytes], 0x5a);
        free(exact);
    }
    CHECK_EQ(hr_snapshot(region, NULL, 0, &call_error), HR_ENOSPACE);
    close_and_free(region);
    region_file_remove(&file);
}

/* A full table fits the largest snapshot there is. */
static void test_snapshot_of_a_full_table(void)
{
    for (uint32_t id = 0; id < HR_LAYOUTS; id++) {
        struct region_file file;
        region_file_make(&file, id);
        for (uint32_t slot = 0; slot < HR_SLOTS; slot++)
            fill_slot(&file, slot, (int32_t)(slot + 1), slot, HR_DEVICES);
        poke32(&file, file.layout->proc_num, HR_SLOTS);
        poke64(&file, file.layout->device_num, HR_DEVICES);
        hr_region *region = open_or_fail(file.path, HR_READ);
        struct hr_snapshot *snapshot = take_exact(region);
        CHECK_EQ(hr_snapshot_bytes(snapshot), HR_SNAPSHOT_MAX_BYTES);
        for (uint32_t slot = 0; slot < HR_SLOTS; slot++) {
            struct hr_usage expected;
            usage_of_number(file.layout, slot, HR_DEVICES - 1, &expected);
            check_usage(hr_snapshot_usage(snapshot, slot, HR_DEVICES - 1), &expected);
        }
        free(snapshot);
        close_and_free(region);
        region_file_remove(&file);
    }
}

struct shown_case {
    uint64_t device_num;
    uint64_t limits[3];
    int64_t used_device; /* or -1 */
    int64_t uuid_device; /* or -1 */
    uint32_t shown;
};

/* Which devices deserve a line: see struct hr_snapshot. */
static void test_shown_devices(void)
{
    const struct shown_case cases[] = {
        {2, {0, 0, 0}, -1, -1, 0x0003},
        {16, {0, 0, 0}, -1, -1, 0xffff},
        {0, {5, 0, 0}, -1, -1, 0x0001},
        {0, {5, 6, 0}, -1, -1, 0x0003},
        {0, {0, 0, 7}, -1, -1, 0x0007},
        {1, {5, 6, 7}, -1, -1, 0x0001},
        {0, {0, 0, 0}, 9, -1, 0x0201},
        {0, {0, 0, 0}, -1, 15, 0x8001},
        {0, {5, 0, 0}, 15, 4, 0x8011},
        {0, {0, 0, 0}, 15, 14, 0xc001},
        {2, {0, 0, 0}, 1, 0, 0x0003},
        /* What stands beyond those that the container has declared is left over. */
        {1, {0, 0, 0}, 9, -1, 0x0001},
        {1, {0, 0, 0}, 15, 14, 0x0001},
    };
    for (uint32_t id = 0; id < HR_LAYOUTS; id++) {
        struct region_file file;
        region_file_make(&file, id);
        const struct hr_layout *layout = file.layout;
        uint8_t *uuids = file.bytes + layout->uuids;
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            const struct shown_case *this = &cases[i];
            memset(uuids, 0, HR_DEVICES * HR_UUID_BYTES);
            poke64(&file, layout->device_num, this->device_num);
            for (uint32_t device = 0; device < 3; device++)
                poke64(&file, layout->limit + device * 8, this->limits[device]);
            for (uint32_t device = 0; device < HR_DEVICES; device++)
                poke_usage(&file, 0, device, &(struct hr_usage){0});
            fill_slot(&file, 0, 100, 1, 0);
            poke32(&file, layout->proc_num, 1);
            if (this->used_device >= 0)
                poke_usage(&file, 0, (uint32_t)this->used_device,
                           &(struct hr_usage){.context = 1, .total = 1});
            if (this->uuid_device >= 0)
                strcpy((char *)uuids + this->uuid_device * HR_UUID_BYTES, "GPU-1");

            hr_region *region = NULL;
            CHECK_EQ(hr_open(file.path, HR_READ, id, 0, &region, &call_error), id);
            if (region == NULL)
                continue;
            struct hr_snapshot *snapshot = take_exact(region);
            CHECK_EQ(snapshot->shown, this->shown);
            CHECK_EQ(snapshot->span, 32 - __builtin_clz(this->shown));
            CHECK_EQ(snapshot->device_num, this->device_num);
            free(snapshot);
            close_and_free(region);
        }
        region_file_remove(&file);
    }
}

/* While device_num is 0, 16 equal limits do not mean 16 devices. */
static void test_one_limit_for_all_shows_one_device(void)
{
    for (uint32_t id = 0; id < HR_LAYOUTS; id++) {
        struct region_file file;
        region_file_make(&file, id);
        memset(file.bytes + file.layout->uuids, 0, HR_DEVICES * HR_UUID_BYTES);
        poke64(&file, file.layout->device_num, 0);
        for (uint32_t device = 0; device < HR_DEVICES; device++)
            poke64(&file, file.layout->limit + device * 8, 3 * GIB);
        hr_region *region = NULL;
        CHECK_EQ(hr_open(file.path, HR_READ, id, 0, &region, &call_error), id);
        struct hr_snapshot *snapshot = take_exact(region);
        CHECK_EQ(snapshot->shown, 1);
        CHECK_EQ(snapshot->span, 1);
        free(snapshot);
        close_and_free(region);
        region_file_remove(&file);
    }
}

/* A slot inside its seqlock, or a taken semaphore, is returned and marked. */
static void test_unsettled(void)
{
    for (uint32_t id = 0; id < HR_LAYOUTS; id++) {
        struct region_file file;
        region_file_make(&file, id);
        const struct hr_layout *layout = file.layout;
        for (uint32_t slot = 0; slot < 3; slot++)
            fill_slot(&file, slot, (int32_t)(100 + slot), slot + 1, 2);
        poke32(&file, layout->proc_num, 3);
        hr_region *region = open_or_fail(file.path, HR_READ);
        struct hr_snapshot *snapshot;

        if (layout->slot_seqlock != HR_ABSENT) {
            poke64(&file, slot_at(&file, 1, layout->slot_seqlock), 7);
            snapshot = take_exact(region);
            CHECK_EQ(snapshot->settled, 0);
            CHECK_EQ(hr_snapshot_process(snapshot, 0)->settled, 1);
            CHECK_EQ(hr_snapshot_process(snapshot, 1)->settled, 0);
            CHECK_EQ(hr_snapshot_process(snapshot, 2)->settled, 1);
            CHECK_EQ(hr_snapshot_usage(snapshot, 1, 0)->total, 6006);
            free(snapshot);
            poke64(&file, slot_at(&file, 1, layout->slot_seqlock), 8);
            snapshot = take_exact(region);
            CHECK_EQ(snapshot->settled, 1);
            free(snapshot);
        }

        poke64(&file, layout->owner_pid, 101);
        poke32(&file, layout->sem, 0);
        snapshot = take_exact(region);
        CHECK_EQ(snapshot->settled, 0);
        CHECK_EQ(snapshot->owner_pid, 101);
        CHECK_EQ(snapshot->semaphore, 0);
        CHECK_EQ(snapshot->proc_num, 3);
        CHECK_EQ(hr_snapshot_usage(snapshot, 2, 1)->total, 9036);
        free(snapshot);

        poke64(&file, layout->owner_pid, 0);
        poke32(&file, layout->sem, 1);
        snapshot = take_exact(region);
        CHECK_EQ(snapshot->settled, 1);
        free(snapshot);
        close_and_free(region);
        region_file_remove(&file);
    }
}

/* Nobody may be taken to be outside who came in while the semaphore excluded nobody. */
static void test_broken_lock_is_not_settled(void)
{
    for (uint32_t id = 0; id < HR_LAYOUTS; id++) {
        struct region_file file;
        region_file_make(&file, id);
        const struct hr_layout *layout = file.layout;
        fill_slot(&file, 0, 100, 1, 2);
        poke32(&file, layout->proc_num, 1);
        hr_region *region = open_or_fail(file.path, HR_READ);
        const struct {
            uint32_t value;
            uint64_t owner;
            bool settled;
        } cases[] = {{1, 0, true},  {0, 0, false}, {0, 100, false},        {1, 100, false},
                     {2, 0, false}, {1, 0, true},  {1, 1u << 30, false},   {3, 100, false},
                     {1, 0, true},  {2, 7, false}, {1, UINT64_MAX, false}, {1, 0, true}};
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            poke32(&file, layout->sem, cases[i].value);
            poke64(&file, layout->owner_pid, cases[i].owner);
            struct hr_snapshot *snapshot = take_exact(region);
            CHECK_EQ(snapshot->settled, cases[i].settled);
            CHECK_EQ(hr_snapshot_process(snapshot, 0)->settled, cases[i].settled);
            free(snapshot);
        }
        /* Who waits does not matter. */
        poke32(&file, layout->sem + 4, 3);
        struct hr_snapshot *snapshot = take_exact(region);
        CHECK_EQ(snapshot->settled, 1);
        free(snapshot);
        close_and_free(region);
        region_file_remove(&file);
    }
}

/* Two threads that are killed inside one seqlock leave it even, and the total apart. */
static void test_torn_total_is_not_settled(void)
{
    for (uint32_t id = 0; id < HR_LAYOUTS; id++) {
        struct region_file file;
        region_file_make(&file, id);
        const bool has_seqlock = file.layout->slot_seqlock != HR_ABSENT;
        for (uint32_t slot = 0; slot < 3; slot++)
            fill_slot(&file, slot, (int32_t)(100 + slot), slot + 1, 2);
        poke32(&file, file.layout->proc_num, 3);
        hr_region *region = open_or_fail(file.path, HR_READ);
        struct hr_usage usage;
        usage_of_number(file.layout, 2, 1, &usage);
        usage.total += 4096;
        poke_usage(&file, 1, 1, &usage);
        struct hr_snapshot *snapshot = take_exact(region);
        CHECK_EQ(snapshot->settled, !has_seqlock);
        for (uint32_t i = 0; i < 3; i++)
            CHECK_EQ(hr_snapshot_process(snapshot, i)->settled, i != 1 || !has_seqlock);
        CHECK_EQ(hr_snapshot_usage(snapshot, 1, 1)->total, usage.total);
        free(snapshot);
        usage.module += 4096;
        poke_usage(&file, 1, 1, &usage);
        snapshot = take_exact(region);
        CHECK_EQ(snapshot->settled, 1);
        free(snapshot);
        close_and_free(region);
        region_file_remove(&file);
    }
}

/* Counts that change after the open are checked at each use. */
static void test_counts_turn_bad(void)
{
    static uint64_t buffer[(HR_SNAPSHOT_MAX_BYTES + 7) / 8];
    for (uint32_t id = 0; id < HR_LAYOUTS; id++) {
        struct region_file file;
        region_file_make(&file, id);
        const struct hr_layout *layout = file.layout;
        hr_region *region = open_or_fail(file.path, HR_WRITE);
        struct hr_edit edits[HR_DEVICES];

        const uint32_t bad_counts[] = {1025, UINT32_MAX, 1u << 31, 1u << 20};
        for (size_t i = 0; i < sizeof bad_counts / sizeof bad_counts[0]; i++) {
            poke32(&file, layout->proc_num, bad_counts[i]);
            CHECK_EQ(hr_snapshot(region, buffer, sizeof buffer, &call_error), HR_ECORRUPT);
            const struct hr_error detail = last_detail();
            CHECK_EQ(detail.reason, HR_REASON_PROC_NUM);
            CHECK_EQ(detail.found, (int64_t)(int32_t)bad_counts[i]);
            CHECK_EQ(live_value(region, HR_VALUE_MEMORY_USED, 0), NO_VALUE);
            CHECK_EQ(last_detail().code, HR_ECORRUPT);
            CHECK_EQ(set_limits(region, HR_MEMORY, 0, GIB, 0, 0, edits), HR_ECORRUPT);
            CHECK_EQ(peek64(&file, layout->limit), 4 * GIB);
        }
        poke32(&file, layout->proc_num, 0);

        poke64(&file, layout->device_num, 17);
        CHECK_EQ(hr_snapshot(region, buffer, sizeof buffer, &call_error), HR_ECORRUPT);
        CHECK_EQ(last_detail().reason, HR_REASON_DEVICE_NUM);
        CHECK_EQ(last_detail().found, 17);
        CHECK_EQ(set_limits(region, HR_MEMORY, HR_ALL_DEVICES, GIB, 0, 0, edits), HR_ECORRUPT);
        poke64(&file, layout->device_num, 2);

        memset(file.bytes + layout->uuids + HR_UUID_BYTES, 0xee, HR_UUID_BYTES);
        CHECK_EQ(hr_snapshot(region, buffer, sizeof buffer, &call_error), HR_ECORRUPT);
        CHECK_EQ(last_detail().reason, HR_REASON_UUID);
        CHECK_EQ(last_detail().device, 1);
        memset(file.bytes + layout->uuids + HR_UUID_BYTES, 0, HR_UUID_BYTES);
        CHECK_EQ(hr_snapshot(region, buffer, sizeof buffer, &call_error), HR_OK);

        poke32(&file, 0, 0);
        CHECK_EQ(hr_snapshot(region, buffer, sizeof buffer, &call_error), HR_ESTALE);
        CHECK_EQ(last_detail().reason, HR_REASON_REPLACED);
        poke32(&file, 0, HR_MAGIC);
        CHECK_EQ(hr_snapshot(region, buffer, sizeof buffer, &call_error), HR_OK);
        close_and_free(region);
        region_file_remove(&file);
    }
}

/* Sums wrap, as libvgpu adds. */
static void test_sums_are_modulo_64_bits(void)
{
    struct region_file file;
    region_file_make(&file, HR_V1_1);
    const uint64_t top = UINT64_MAX - 3, all = top + top;
    const struct hr_usage huge = {top, top, top, top, top, top, top, top, top};
    for (uint32_t slot = 0; slot < 2; slot++) {
        fill_slot(&file, slot, 100 + (int32_t)slot, 1, 2);
        poke_usage(&file, slot, 0, &huge);
    }
    poke32(&file, file.layout->proc_num, 2);
    hr_region *region = open_or_fail(file.path, HR_READ);
    struct hr_snapshot *snapshot = take_exact(region);
    check_usage(&hr_snapshot_device(snapshot, 0)->sums,
                &(struct hr_usage){all, all, all, all, all, all, all, all, all});
    free(snapshot);
    close_and_free(region);
    region_file_remove(&file);
}

int main(void)
{
    RUN(test_snapshot_holds_every_field);
    RUN(test_snapshot_never_passes_its_buffer);
    RUN(test_snapshot_of_a_full_table);
    RUN(test_shown_devices);
    RUN(test_one_limit_for_all_shows_one_device);
    RUN(test_unsettled);
    RUN(test_broken_lock_is_not_settled);
    RUN(test_torn_total_is_not_settled);
    RUN(test_counts_turn_bad);
    RUN(test_sums_are_modulo_64_bits);
    return check_report("test_snapshot");
}
