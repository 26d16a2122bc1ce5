/* Columns hold the same as snapshots, region after region; and single live values do. */
#include "check.h"
#include "region_file.h"

/* Four tables behind each other, at their capacities. */
struct tables {
    struct hr_rows capacity;
    uint64_t *arena;
    uint64_t *regions, *devices, *processes, *usages;
};

static void tables_make(struct tables *tables, struct hr_rows capacity)
{
    const size_t regions = (size_t)capacity.regions * HR_REGION_COLUMNS;
    const size_t devices = (size_t)capacity.devices * HR_DEVICE_COLUMNS;
    const size_t processes = (size_t)capacity.processes * HR_PROCESS_COLUMNS;
    const size_t usages = (size_t)capacity.usages * HR_USAGE_COLUMNS;
    tables->capacity = capacity;
    tables->arena = malloc((regions + devices + processes + usages) * 8);
    NEED(tables->arena != NULL);
    tables->regions = tables->arena;
    tables->devices = tables->regions + regions;
    tables->processes = tables->devices + devices;
    tables->usages = tables->processes + processes;
}

static uint64_t scratch[(HR_SNAPSHOT_MAX_BYTES + 7) / 8];

#define REGION_CELL(t, column, row) ((t)->regions[(column) * (t)->capacity.regions + (row)])
#define DEVICE_CELL(t, column, row) ((t)->devices[(column) * (t)->capacity.devices + (row)])
#define PROCESS_CELL(t, column, row) ((t)->processes[(column) * (t)->capacity.processes + (row)])
#define USAGE_CELL(t, column, row) ((t)->usages[(column) * (t)->capacity.usages + (row)])

static const char *uuid_of_row(const struct tables *tables, uint32_t row)
{
    return (const char *)(tables->devices + (size_t)HR_DEVICE_UUID * tables->capacity.devices) +
           (size_t)row * HR_UUID_BYTES;
}

/* Five regions of five layouts, one NULL and one closed handle, in one call. */
static void test_columns(void)
{
    enum { ROWS = HR_LAYOUTS + 2 };
    struct region_file files[HR_LAYOUTS];
    hr_region *regions[ROWS] = {0};
    for (uint32_t id = 0; id < HR_LAYOUTS; id++) {
        region_file_make(&files[id], id);
        for (uint32_t slot = 0; slot <= id; slot++)
            fill_slot(&files[id], slot, (int32_t)(100 * id + slot + 1), slot + 1, 2);
        poke32(&files[id], files[id].layout->proc_num, id + 1);
        poke32(&files[id], files[id].layout->recent_kernel, (uint32_t)-1);
        regions[id] = open_or_fail(files[id].path, HR_READ);
    }
    regions[HR_LAYOUTS + 1] = open_or_fail(files[0].path, HR_READ);
    hr_close(regions[HR_LAYOUTS + 1]);

    struct hr_rows filled;
    struct tables tables;
    const struct hr_rows exact = {ROWS, 2 * HR_LAYOUTS, 15, 30};
    const struct hr_rows tight[] = {{ROWS, 0, 0, 0},
                                    {ROWS, exact.devices - 1, exact.processes, exact.usages},
                                    {ROWS, exact.devices, exact.processes - 1, exact.usages},
                                    {ROWS, exact.devices, exact.processes, exact.usages - 1}};
    for (size_t i = 0; i < sizeof tight / sizeof tight[0]; i++) {
        tables_make(&tables, tight[i]);
        CHECK_EQ(hr_read_set(regions, &tight[i], tables.arena, scratch, &filled), HR_ENOSPACE);
        CHECK(filled.devices >= exact.devices);
        CHECK(filled.processes >= exact.processes);
        CHECK(filled.usages >= exact.usages);
        free(tables.arena);
    }

    const struct hr_rows roomy = {ROWS, exact.devices + 3, exact.processes + 5, exact.usages + 7};
    const struct hr_rows capacities[] = {exact, roomy};
    for (size_t i = 0; i < 2; i++) {
        tables_make(&tables, capacities[i]);
        CHECK_EQ(hr_read_set(regions, &capacities[i], tables.arena, scratch, &filled), 2);
        CHECK_EQ(filled.regions, ROWS);
        CHECK_EQ(filled.devices, exact.devices);
        CHECK_EQ(filled.processes, exact.processes);
        CHECK_EQ(filled.usages, exact.usages);
        uint32_t process = 0, usage = 0;
        for (uint32_t id = 0; id < HR_LAYOUTS; id++) {
            const struct tables *t = &tables;
            const struct hr_layout *layout = &hr_layouts[id];
            CHECK_EQ(REGION_CELL(t, HR_REGION_CODE, id), HR_OK);
            CHECK_EQ(REGION_CELL(t, HR_REGION_LAYOUT, id), id);
            CHECK(REGION_CELL(t, HR_REGION_TAKEN_AT_NS, id) > 0);
            CHECK_EQ(REGION_CELL(t, HR_REGION_SETTLED, id), 1);
            CHECK_EQ(REGION_CELL(t, HR_REGION_DEVICE_COUNT, id), 2);
            CHECK_EQ(REGION_CELL(t, HR_REGION_PROCESS_COUNT, id), id + 1);
            CHECK_EQ(REGION_CELL(t, HR_REGION_PRIORITY, id), 1);
            CHECK_EQ(REGION_CELL(t, HR_REGION_RECENT_KERNEL, id), -1);
            CHECK_EQ(REGION_CELL(t, HR_REGION_OWNER_PID, id), 0);
            CHECK_EQ(REGION_CELL(t, HR_REGION_SEMAPHORE, id), 1);
            CHECK_EQ(REGION_CELL(t, HR_REGION_FIRST_DEVICE, id), 2 * id);
            CHECK_EQ(REGION_CELL(t, HR_REGION_DEVICE_ROWS, id), 2);
            CHECK_EQ(REGION_CELL(t, HR_REGION_FIRST_PROCESS, id), process);
            for (uint32_t device = 0; device < 2; device++) {
                const uint32_t row = 2 * id + device;
                struct hr_usage sum;
                sums_of_slots(layout, id + 1, device, &sum);
                CHECK_EQ(DEVICE_CELL(t, HR_DEVICE_REGION, row), id);
                CHECK_EQ(DEVICE_CELL(t, HR_DEVICE_INDEX, row), device);
                CHECK_EQ(DEVICE_CELL(t, HR_DEVICE_LIMIT, row), (device + 1) * 4 * GIB);
                CHECK_EQ(DEVICE_CELL(t, HR_DEVICE_SM_LIMIT, row), 50 + 10 * device);
                CHECK_EQ(DEVICE_CELL(t, HR_DEVICE_TOTAL, row), sum.total);
                CHECK_EQ(DEVICE_CELL(t, HR_DEVICE_CONTEXT, row), sum.context);
                CHECK_EQ(DEVICE_CELL(t, HR_DEVICE_MODULE, row), sum.module);
                CHECK_EQ(DEVICE_CELL(t, HR_DEVICE_DATA, row), sum.data);
                CHECK_EQ(DEVICE_CELL(t, HR_DEVICE_OFFSET, row), sum.offset);
                CHECK_EQ(DEVICE_CELL(t, HR_DEVICE_MONITOR, row), sum.monitor);
                CHECK_EQ(DEVICE_CELL(t, HR_DEVICE_SM, row), sum.sm);
                CHECK_EQ(DEVICE_CELL(t, HR_DEVICE_ENC, row), sum.enc);
                CHECK_EQ(DEVICE_CELL(t, HR_DEVICE_DEC, row), sum.dec);
                CHECK_STR(uuid_of_row(t, row), device == 0
                                                   ? "GPU-00000000-aaaa-bbbb-cccc-000000000001"
                                                   : "MIG-00000000-aaaa-bbbb-cccc-000000000002");
            }
            for (uint32_t slot = 0; slot <= id; slot++, process++) {
                CHECK_EQ(PROCESS_CELL(t, HR_PROCESS_REGION, process), id);
                CHECK_EQ(PROCESS_CELL(t, HR_PROCESS_PID, process), 100 * id + slot + 1);
                CHECK_EQ(PROCESS_CELL(t, HR_PROCESS_HOST_PID, process),
                         1000000 + 100 * id + slot + 1);
                CHECK_EQ(PROCESS_CELL(t, HR_PROCESS_STATUS, process), 1);
                CHECK_EQ(PROCESS_CELL(t, HR_PROCESS_SETTLED, process), 1);
                CHECK_EQ(PROCESS_CELL(t, HR_PROCESS_FIRST_USAGE, process), usage);
                for (uint32_t device = 0; device < 2; device++, usage++) {
                    struct hr_usage expected;
                    usage_of_number(layout, slot + 1, device, &expected);
                    CHECK_EQ(USAGE_CELL(t, HR_USAGE_PROCESS, usage), process);
                    CHECK_EQ(USAGE_CELL(t, HR_USAGE_DEVICE, usage), device);
                    CHECK_EQ(USAGE_CELL(t, HR_USAGE_TOTAL, usage), expected.total);
                    CHECK_EQ(USAGE_CELL(t, HR_USAGE_CONTEXT, usage), expected.context);
                    CHECK_EQ(USAGE_CELL(t, HR_USAGE_MODULE, usage), expected.module);
                    CHECK_EQ(USAGE_CELL(t, HR_USAGE_DATA, usage), expected.data);
                    CHECK_EQ(USAGE_CELL(t, HR_USAGE_OFFSET, usage), expected.offset);
                    CHECK_EQ(USAGE_CELL(t, HR_USAGE_MONITOR, usage), expected.monitor);
                    CHECK_EQ(USAGE_CELL(t, HR_USAGE_SM, usage), expected.sm);
                    CHECK_EQ(USAGE_CELL(t, HR_USAGE_ENC, usage), expected.enc);
                    CHECK_EQ(USAGE_CELL(t, HR_USAGE_DEC, usage), expected.dec);
                }
            }
        }
        for (uint32_t row = HR_LAYOUTS; row < ROWS; row++) {
            CHECK_EQ(REGION_CELL(&tables, HR_REGION_CODE, row), HR_ECLOSED);
            for (uint32_t column = HR_REGION_CODE + 1; column < HR_REGION_FIRST_DEVICE; column++)
                CHECK_EQ(REGION_CELL(&tables, column, row), 0);
            CHECK_EQ(REGION_CELL(&tables, HR_REGION_DEVICE_ROWS, row), 0);
        }
        free(tables.arena);
    }

    /* One that turned bad is told, and the others are still read. */
    tables_make(&tables, exact);
    poke32(&files[2], files[2].layout->proc_num, 5000);
    poke64(&files[3], files[3].layout->device_num, UINT64_MAX);
    CHECK_EQ(hr_read_set(regions, &exact, tables.arena, scratch, &filled), 4);
    CHECK_EQ(REGION_CELL(&tables, HR_REGION_CODE, 2), HR_ECORRUPT);
    CHECK_EQ(REGION_CELL(&tables, HR_REGION_CODE, 3), HR_ECORRUPT);
    CHECK_EQ(REGION_CELL(&tables, HR_REGION_CODE, 4), HR_OK);
    CHECK_EQ(filled.devices, 6);
    CHECK_EQ(filled.processes, 1 + 2 + 5);
    CHECK_EQ(filled.usages, 2 * (1 + 2 + 5));
    CHECK_EQ(PROCESS_CELL(&tables, HR_PROCESS_PID, 3), 401);
    free(tables.arena);

    const struct hr_rows nothing = {0, 0, 0, 0};
    CHECK_EQ(hr_read_set(NULL, &nothing, scratch, scratch, &filled), HR_OK);
    CHECK_EQ(filled.regions, 0);

    for (uint32_t row = 0; row < ROWS; row++)
        if (regions[row] != NULL)
            close_and_free(regions[row]);
    for (uint32_t id = 0; id < HR_LAYOUTS; id++)
        region_file_remove(&files[id]);
}

/* Sums over hostile slots stop at the top here too. */
static void test_column_sums_saturate(void)
{
    struct region_file file;
    region_file_make(&file, HR_V1_1);
    const uint64_t top = UINT64_MAX - 3;
    const struct hr_usage huge = {top, top, top, top, top, top, top, top, top};
    fill_slot(&file, 0, 100, 1, 2);
    fill_slot(&file, 1, 101, 1, 2);
    poke_usage(&file, 0, 0, &huge);
    poke_usage(&file, 1, 0, &huge);
    poke32(&file, file.layout->proc_num, 2);
    hr_region *region = open_or_fail(file.path, HR_READ);
    struct tables tables;
    struct hr_rows filled;
    tables_make(&tables, (struct hr_rows){1, 2, 2, 4});
    CHECK_EQ(hr_read_set(&region, &tables.capacity, tables.arena, scratch, &filled), HR_OK);
    for (uint32_t column = HR_DEVICE_TOTAL; column <= HR_DEVICE_DEC; column++)
        CHECK_EQ(DEVICE_CELL(&tables, column, 0), UINT64_MAX);
    free(tables.arena);
    close_and_free(region);
    region_file_remove(&file);
}

/* Usage beyond device_num is found at once by a snapshot, and soon by columns. */
static void test_columns_find_far_devices(void)
{
    struct region_file file;
    region_file_make(&file, HR_V1_2);
    fill_slot(&file, 0, 100, 1, 2);
    poke32(&file, file.layout->proc_num, 1);
    hr_region *region = open_or_fail(file.path, HR_READ);
    struct tables tables;
    struct hr_rows filled;
    tables_make(&tables, (struct hr_rows){1, HR_DEVICES, 1, HR_DEVICES});
    CHECK_EQ(hr_read_set(&region, &tables.capacity, tables.arena, scratch, &filled), HR_OK);
    CHECK_EQ(filled.devices, 2);
    poke_usage(&file, 0, 11, &(struct hr_usage){.data = 7, .total = 7});
    static uint64_t buffer[512];
    CHECK_EQ(hr_snapshot(region, buffer, sizeof buffer), HR_OK);
    CHECK_EQ(((const struct hr_snapshot *)(const void *)buffer)->shown, 1u << 11 | 3);
    for (int i = 0; i < HR_THOROUGH_EVERY; i++)
        CHECK_EQ(hr_read_set(&region, &tables.capacity, tables.arena, scratch, &filled), HR_OK);
    CHECK_EQ(filled.devices, 3);
    CHECK_EQ(filled.usages, 3);
    CHECK_EQ(DEVICE_CELL(&tables, HR_DEVICE_INDEX, 2), 11);
    CHECK_EQ(DEVICE_CELL(&tables, HR_DEVICE_TOTAL, 2), 7);
    CHECK_EQ(USAGE_CELL(&tables, HR_USAGE_DEVICE, 2), 11);
    CHECK_EQ(USAGE_CELL(&tables, HR_USAGE_DATA, 2), 7);
    free(tables.arena);
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
        CHECK_EQ(hr_get(region, HR_VALUE_MEMORY_LIMIT, 0), 4 * GIB);
        CHECK_EQ(hr_get(region, HR_VALUE_MEMORY_LIMIT, 1), 8 * GIB);
        CHECK_EQ(hr_get(region, HR_VALUE_MEMORY_LIMIT, 15), 0);
        CHECK_EQ(hr_get(region, HR_VALUE_SM_LIMIT, 1), 60);
        for (uint32_t device = 0; device < HR_DEVICES; device++)
            /* Every slot below proc_num, whatever its status. */
            CHECK_EQ(hr_get(region, HR_VALUE_MEMORY_USED, device),
                     1000 + 2000 + 3000 + 4000 + 4 * (device * 10 + 5));
        CHECK_EQ(hr_get(region, HR_VALUE_PRIORITY, 0), 1);
        CHECK_EQ(hr_get(region, HR_VALUE_UTILIZATION_SWITCH, 0), 1);
        CHECK_EQ(hr_get(region, HR_VALUE_DEVICE_NUM, 0), 2);
        CHECK_EQ(hr_get(region, HR_VALUE_PROC_NUM, 0), 4);
        /* -1 and "no value" are the same bits: the detail tells them apart. */
        CHECK_EQ(hr_get(region, HR_VALUE_RECENT_KERNEL, 0), -1);
        CHECK_EQ(last_detail().code, HR_OK);
        if (layout->last_kernel_time != HR_ABSENT) {
            CHECK_EQ(hr_get(region, HR_VALUE_LAST_KERNEL_TIME, 0), 1790000001);
        } else {
            CHECK_EQ(hr_get(region, HR_VALUE_LAST_KERNEL_TIME, 0), HR_NO_VALUE);
            CHECK_EQ(last_detail().code, HR_EINVAL);
        }
        const uint32_t per_device[] = {HR_VALUE_MEMORY_LIMIT, HR_VALUE_SM_LIMIT,
                                       HR_VALUE_MEMORY_USED};
        for (size_t i = 0; i < 3; i++) {
            CHECK_EQ(hr_get(region, per_device[i], HR_DEVICES), HR_NO_VALUE);
            CHECK_EQ(last_detail().code, HR_EINVAL);
            CHECK_EQ(hr_get(region, per_device[i], UINT32_MAX), HR_NO_VALUE);
            CHECK_EQ(last_detail().code, HR_EINVAL);
        }
        CHECK_EQ(hr_get(region, HR_VALUE_DEVICES + 1, 0), HR_NO_VALUE);
        CHECK_EQ(last_detail().code, HR_EINVAL);

        /* Hostile sums stop at the top; they do not wrap to something small. */
        poke_usage(&file, 0, 0, &(struct hr_usage){.total = UINT64_MAX - 10});
        CHECK_EQ(hr_get(region, HR_VALUE_MEMORY_USED, 0), UINT64_MAX);
        CHECK_EQ(last_detail().code, HR_OK);
        close_and_free(region);
        region_file_remove(&file);
    }
}

int main(void)
{
    RUN(test_columns);
    RUN(test_column_sums_saturate);
    RUN(test_columns_find_far_devices);
    RUN(test_live_values);
    return check_report("test_columns");
}
