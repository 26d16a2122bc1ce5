/*
 * What a reader makes of stores between its loads, and how often it loads at all:
 * counted, where a clock would depend on the machine (load_hook.h).
 */
#include <time.h>

#include "check.h"
#include "region_file.h"
#include "snapshot_view.h"

static uint64_t buffer[(HR_SNAPSHOT_MAX_BYTES + 7) / 8];

/* Before load number `store_at` of a reader, `store` is called. */
static uint32_t loads, store_at;
static void (*store)(const struct region_file *file);
static const struct region_file *stored_file;

/* A load takes 10 ns, and so does a look at the clock, whatever else the machine does. */
static uint64_t clock_ns;

int hooked_clock_gettime(clockid_t clock, struct timespec *now)
{
    (void)clock;
    clock_ns += 10;
    *now = (struct timespec){(time_t)(clock_ns / 1000000000), (long)(clock_ns % 1000000000)};
    return 0;
}

void before_load(void)
{
    if (store != NULL && loads == store_at)
        store(stored_file);
    loads++;
    clock_ns += 10;
}

static int snapshot_code(hr_region *region)
{
    loads = 0;
    return hr_snapshot(region, buffer, sizeof buffer, &call_error);
}

static const struct hr_snapshot *snapshot_of(hr_region *region)
{
    CHECK_EQ(snapshot_code(region), HR_OK);
    return (const struct hr_snapshot *)(const void *)buffer;
}

static uint32_t loads_of_snapshot(hr_region *region, bool settled)
{
    CHECK_EQ(snapshot_of(region)->settled, settled);
    return loads;
}

static void fill(const struct region_file *file, uint32_t slots, uint32_t devices)
{
    for (uint32_t slot = 0; slot < slots; slot++)
        fill_slot(file, slot, (int32_t)(100 + slot), slot + 1, devices);
    poke32(file, file->layout->proc_num, slots);
    poke64(file, file->layout->device_num, devices);
}

/* A holder or writer that leaves within the budget is waited for. */
static void leave(const struct region_file *file)
{
    poke64(file, file->layout->owner_pid, 0);
    poke32(file, file->layout->sem, 1);
    if (file->layout->slot_seqlock != HR_ABSENT)
        poke64(file, slot_at(file, 1, file->layout->slot_seqlock), 12);
}

static void test_waited_for(struct region_file *file)
{
    fill(file, 4, 2);
    hr_region *region = open_or_fail(file->path, HR_READ);
    const uint32_t usual = loads_of_snapshot(region, true);
    store = leave;
    stored_file = file;
    for (store_at = 0; store_at < 3 * usual; store_at++) {
        poke64(file, file->layout->owner_pid, 100);
        poke32(file, file->layout->sem, 0);
        CHECK_EQ(snapshot_of(region)->settled, 1);
        if (file->layout->slot_seqlock == HR_ABSENT || store_at >= usual)
            continue;
        poke64(file, slot_at(file, 1, file->layout->slot_seqlock), 11);
        CHECK_EQ(snapshot_of(region)->settled, 1);
    }
    store = NULL;
    close_and_free(region);
}

/* One tool that edits everything at one moment: a settled snapshot has all of it or nothing. */
static void edit_everything(const struct region_file *file)
{
    const struct hr_layout *layout = file->layout;
    for (uint32_t device = 0; device < 2; device++) {
        poke64(file, layout->limit + device * 8, 77);
        poke64(file, layout->sm_limit + device * 8, 77);
    }
    poke32(file, layout->priority, 77);
    poke32(file, layout->utilization_switch, 77);
    poke32(file, layout->recent_kernel, 77);
    if (layout->last_kernel_time != HR_ABSENT)
        poke64(file, layout->last_kernel_time, 77);
    poke64(file, layout->device_num, 1);
}

static uint32_t new_values(const struct hr_snapshot *snapshot)
{
    uint32_t found = snapshot->priority == 77;
    found += snapshot->utilization_switch == 77;
    found += snapshot->recent_kernel == 77;
    found += snapshot->last_kernel_time == 77;
    found += snapshot->device_num == 1;
    for (uint32_t device = 0; device < snapshot->span; device++) {
        found += hr_snapshot_device(snapshot, device)->limit == 77;
        found += hr_snapshot_device(snapshot, device)->sm_limit == 77;
    }
    return found;
}

static void test_edits_during_a_read(struct region_file *file)
{
    fill(file, 2, 2);
    uint8_t *before = region_file_copy(file);
    hr_region *region = open_or_fail(file->path, HR_READ);
    const uint32_t usual = loads_of_snapshot(region, true);
    close_and_free(region);
    const uint32_t all = file->layout->last_kernel_time == HR_ABSENT ? 6 : 7;
    uint32_t old = 0;
    stored_file = file;
    for (store_at = 0; store_at < usual; store_at++) {
        memcpy(file->bytes, before, file->size);
        region = open_or_fail(file->path, HR_READ);
        store = edit_everything;
        const struct hr_snapshot *snapshot = snapshot_of(region);
        store = NULL;
        CHECK_EQ(snapshot->settled, 1);
        const uint32_t found = new_values(snapshot);
        CHECK(found == 0 || found == all);
        old += found == 0;
        close_and_free(region);
    }
    /* A late act comes after the second read of the bytes that it changes. */
    CHECK(old > 0 && old < usual);
    free(before);
}

/* A container that names its devices while they are read: no text that never stood there. */
static void name_devices(const struct region_file *file)
{
    static const char NAMED[] = "MIG-GPU-77777777-7777-7777-7777-777777777777/7/7 and 45 "
                                "characters more, as nobody has them";
    for (uint32_t device = 0; device < 2; device++)
        memcpy(file->bytes + file->layout->uuids + device * HR_UUID_BYTES, NAMED, sizeof NAMED);
}

/* One that has the usual 40 bytes gets more behind them. */
static void lengthen_names(const struct region_file *file)
{
    for (uint32_t device = 0; device < 2; device++)
        memcpy(file->bytes + file->layout->uuids + device * HR_UUID_BYTES + 40, "/1", 2);
}

/* A long one changes in its last bytes alone. */
static void change_last_bytes(const struct region_file *file)
{
    for (uint32_t device = 0; device < 2; device++)
        memcpy(file->bytes + file->layout->uuids + device * HR_UUID_BYTES + 72, "other", 5);
}

static void check_uuids_that_change(struct region_file *file,
                                    void (*change)(const struct region_file *))
{
    uint8_t *before = region_file_copy(file);
    const uint8_t *uuids = file->bytes + file->layout->uuids;
    stored_file = file;
    uint32_t usual = 1, old = 0;
    for (store_at = 0; store_at < usual; store_at++) {
        memcpy(file->bytes, before, file->size);
        hr_region *region = open_or_fail(file->path, HR_READ);
        usual = loads_of_snapshot(region, true);

        char texts[2][2 * HR_UUID_BYTES];
        memcpy(texts[0], uuids, sizeof texts[0]);
        store = change;
        const struct hr_snapshot *snapshot = snapshot_of(region);
        store = NULL;
        memcpy(texts[1], uuids, sizeof texts[1]);
        CHECK_EQ(snapshot->settled, 1);
        const bool is_old = strcmp(hr_snapshot_device(snapshot, 0)->uuid, texts[0]) == 0;
        for (uint32_t device = 0; device < 2; device++)
            CHECK(memcmp(hr_snapshot_device(snapshot, device)->uuid,
                         texts[!is_old] + device * HR_UUID_BYTES, HR_UUID_BYTES) == 0);
        old += is_old;
        close_and_free(region);
    }
    /* The second read of the texts can be the very last load. */
    CHECK(old < usual);
    memcpy(file->bytes, before, file->size);
    free(before);
}

static void test_uuids_that_change_during_a_read(struct region_file *file)
{
    fill(file, 2, 2);
    check_uuids_that_change(file, name_devices);
    check_uuids_that_change(file, lengthen_names);
    name_devices(file);
    check_uuids_that_change(file, change_last_bytes);
}

/* A count that is out of range for a moment is not a corrupt region. */
static void mend(const struct region_file *file)
{
    poke32(file, file->layout->proc_num, 2);
    poke64(file, file->layout->device_num, 2);
}

static void test_count_out_of_range_is_read_again(struct region_file *file)
{
    fill(file, 2, 2);
    hr_region *region = open_or_fail(file->path, HR_READ);
    const uint32_t usual = loads_of_snapshot(region, true);
    stored_file = file;
    for (uint32_t which = 0; which < 2; which++) {
        store = NULL;
        if (which == 0)
            poke32(file, file->layout->proc_num, 5000);
        else
            poke64(file, file->layout->device_num, 17);
        CHECK_EQ(snapshot_code(region), HR_ECORRUPT);
        bool read_again = false;
        for (store_at = 0; store_at < 12; store_at++) {
            store = mend;
            CHECK_EQ(snapshot_code(region), HR_OK);
            read_again = read_again || loads > usual;
            store = NULL;
            if (which == 0)
                poke32(file, file->layout->proc_num, 5000);
            else
                poke64(file, file->layout->device_num, 17);
        }
        CHECK(read_again);
        mend(file);
    }
    close_and_free(region);
}

/*
 * A writer that does not leave is waited for 0.1 ms, be it for one region or for all
 * of a set together.  A number, not the constant: it is the constant that is tested.
 */
static void test_budget(void)
{
    enum { COUNT = 16 };
    const uint64_t budget_ns = 100000;
    struct region_file files[COUNT];
    hr_region *regions[COUNT];
    for (uint32_t i = 0; i < COUNT; i++) {
        region_file_make(&files[i], HR_V1_2);
        fill(&files[i], 4, 2);
        regions[i] = open_or_fail(files[i].path, HR_READ);
    }
    const uint32_t usual = loads_of_snapshot(regions[0], true);
    for (uint32_t i = 0; i < COUNT; i++)
        poke32(&files[i], files[i].layout->sem, 0);
    uint64_t before = clock_ns;
    loads_of_snapshot(regions[0], false);
    CHECK(clock_ns - before >= budget_ns);
    CHECK(clock_ns - before <= budget_ns + 10 * (usual + 10));
    before = clock_ns;
    struct hr_set_size size;
    CHECK_EQ(hr_read_set(regions, COUNT, buffer, sizeof buffer, UINT32_MAX, &size, &call_error), 0);
    CHECK(clock_ns - before >= budget_ns);
    CHECK(clock_ns - before <= budget_ns + COUNT * 10 * (usual + 10));
    for (uint32_t i = 0; i < COUNT; i++) {
        close_and_free(regions[i]);
        region_file_remove(&files[i]);
    }
}

int main(void)
{
    RUN(test_budget);
    RUN_FROM(0, test_waited_for);
    RUN_FROM(0, test_edits_during_a_read);
    RUN_FROM(0, test_uuids_that_change_during_a_read);
    RUN_FROM(0, test_count_out_of_range_is_read_again);
    return check_report("test_reading");
}
