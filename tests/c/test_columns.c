/* Columns hold the same as snapshots, region after region; and single live values do. */
#include "call_error.h"
#include "check.h"
#include "region_file.h"
#include "snapshot_view.h"

/* A buffer that is a byte too small is refused, and nothing is written behind its end. */
static void test_no_byte_is_written_behind_the_buffer(void)
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
    CHECK_EQ(hr_read_set(NULL, 0, NULL, 0, UINT32_MAX, &size, &call_error), 0);
    CHECK_EQ(size.bytes, 0);

    for (uint32_t row = 0; row < ROWS; row++)
        if (regions[row] != NULL)
            close_and_free(regions[row]);
    for (uint32_t id = 0; id < HR_LAYOUTS; id++)
        region_file_remove(&files[id]);
}

/* Before the devices are declared, those that left traces have rows, and those between have none.
 */
static void test_columns_of_undeclared_devices(void)
{
    struct region_file file;
    struct hr_set_size size;
    uint64_t set[1024], usages[HR_USAGE_COLUMNS * 6];
    char uuids[3 * HR_UUID_BYTES];
    region_file_make(&file, HR_V1_2);
    fill_slot(&file, 0, 100, 1, 1);
    fill_slot(&file, 1, 101, 2, 1);
    poke32(&file, file.layout->proc_num, 2);
    poke64(&file, file.layout->device_num, 0);
    memset(file.bytes + file.layout->uuids, 0, HR_DEVICES * HR_UUID_BYTES);
    memset(file.bytes + file.layout->limit, 0, HR_DEVICES * 8);
    poke_usage(&file, 1, 11, &(struct hr_usage){.data = 7, .total = 7});
    strcpy((char *)file.bytes + file.layout->uuids + 14 * HR_UUID_BYTES, "GPU-14");
    hr_region *region = open_or_fail(file.path, HR_READ);
    CHECK_EQ(hr_read_set(&region, 1, set, sizeof set, UINT32_MAX, &size, &call_error), HR_OK);
    NEED(size.devices == 3 && size.usages == 6);
    hr_columns(set, 1, HR_TABLE_USAGES, usages, 6);
    hr_columns(set, 1, HR_TABLE_UUIDS, uuids, 0);
    const uint32_t listed[] = {0, 11, 14};
    for (uint32_t row = 0; row < 6; row++) {
        CHECK_EQ(usages[row], row / 3);
        CHECK_EQ(usages[6 + row], listed[row % 3]);
        CHECK_EQ(usages[5 * 6 + row], row == 0 ? 1003 : row == 3 ? 2003 : row == 4 ? 7 : 0);
    }
    CHECK_STR(uuids + 2 * HR_UUID_BYTES, "GPU-14");

    /* Once they are, what stands beyond them is left over. */
    poke64(&file, file.layout->device_num, 1);
    CHECK_EQ(hr_read_set(&region, 1, set, sizeof set, UINT32_MAX, &size, &call_error), HR_OK);
    CHECK_EQ(size.devices, 1);
    close_and_free(region);
    region_file_remove(&file);
}

static void test_live_values(void)
{
    for (uint32_t id = 0; id < HR_LAYOUTS; id++) {
        struct region_file file;
        region_file_make(&file, id);
        const struct hr_layout *layout = file.layout;
        for (uint32_t slot = 0; slot < 4; slot++)
            fill_slot(&file, slot, (int32_t)(100 + slot), slot + 1, HR_DEVICES);
        poke32(&file, slot_at(&file, 2, layout->slot_status), 0);
        poke32(&file, layout->proc_num, 4);
        poke32(&file, layout->recent_kernel, (uint32_t)-1);
        poke32(&file, layout->utilization_switch, 1);
        if (layout->last_kernel_time != HR_ABSENT)
            poke64(&file, layout->last_kernel_time, 1790000001);

        hr_region *region = open_or_fail(file.path, HR_READ);
        CHECK_EQ(live_value(region, HR_MEMORY, 0), 4 * GIB);
        CHECK_EQ(live_value(region, HR_MEMORY, 1), 8 * GIB);
        CHECK_EQ(live_value(region, HR_MEMORY, 15), 0);
        CHECK_EQ(live_value(region, HR_SM, 1), 60);
        for (uint32_t device = 0; device < HR_DEVICES; device++)
            /* Every slot below proc_num, whatever its status. */
            CHECK_EQ(live_value(region, HR_VALUE_MEMORY_USED, device),
                     3 * (1000 + 2000 + 3000 + 4000 + 4 * device * 10) + 4 * 6);
        CHECK_EQ(live_value(region, HR_PRIORITY, 0), 1);
        CHECK_EQ(live_value(region, HR_SWITCH, 0), 1);
        CHECK_EQ(live_value(region, HR_VALUE_DEVICE_NUM, 0), 2);
        CHECK_EQ(live_value(region, HR_VALUE_PROC_NUM, 0), 4);
        /* -1 and "no value" are the same bits: the detail tells them apart. */
        CHECK_EQ(live_value(region, HR_RECENT_KERNEL, 0), -1);
        CHECK_EQ(last_detail().code, HR_OK);
        if (layout->last_kernel_time != HR_ABSENT) {
            CHECK_EQ(live_value(region, HR_VALUE_LAST_KERNEL_TIME, 0), 1790000001);
        } else {
            CHECK_EQ(live_value(region, HR_VALUE_LAST_KERNEL_TIME, 0), NO_VALUE);
            CHECK_EQ(last_detail().code, HR_EINVAL);
        }
        const uint32_t per_device[] = {HR_MEMORY, HR_SM, HR_VALUE_MEMORY_USED};
        for (size_t i = 0; i < 3; i++) {
            CHECK_EQ(live_value(region, per_device[i], HR_DEVICES), NO_VALUE);
            CHECK_EQ(last_detail().code, HR_EINVAL);
            CHECK_EQ(live_value(region, per_device[i], UINT32_MAX), NO_VALUE);
            CHECK_EQ(last_detail().code, HR_EINVAL);
        }
        CHECK_EQ(live_value(region, HR_VALUE_BURST + 1, 0), NO_VALUE);
        CHECK_EQ(last_detail().code, HR_EINVAL);

        /* The sum is modulo 2^64. */
        poke_usage(&file, 0, 0, &(struct hr_usage){.total = 0});
        const uint64_t others = live_value(region, HR_VALUE_MEMORY_USED, 0);
        CHECK(others > 11);
        poke_usage(&file, 0, 0, &(struct hr_usage){.total = UINT64_MAX - 10});
        CHECK_EQ(live_value(region, HR_VALUE_MEMORY_USED, 0), others - 11);
        poke_usage(&file, 0, 0, &(struct hr_usage){.total = UINT64_MAX - others});
        CHECK_EQ(live_value(region, HR_VALUE_MEMORY_USED, 0), UINT64_MAX);
        CHECK_EQ(last_detail().code, HR_OK);
        close_and_free(region);
        region_file_remove(&file);
    }
}

int main(void)
{
    RUN(test_no_byte_is_written_behind_the_buffer);
    RUN(test_columns_of_undeclared_devices);
    RUN(test_live_values);
    return check_report("test_columns");
}
