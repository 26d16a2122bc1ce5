/* Columns hold the same as snapshots, region after region; and single live values do. */
#include "call_error.h"
#include "check.h"
#include "region_file.h"
#include "snapshot_view.h"

/* What was read, in a buffer that is exactly as large, and its columns likewise. */
struct tables {
    void *set;
    struct hr_set_size size;
    uint64_t *regions, *devices, *processes, *usages;
    char *uuids;
    size_t region_step, device_step, process_step, usage_step;
};

static uint64_t *columns_of(const struct tables *tables, uint32_t count, uint32_t table,
                            size_t cells, size_t step)
{
    uint64_t *made = malloc(cells * sizeof *made + 1);
    NEED(made != NULL);
    hr_columns(tables->set, count, table, made, step);
    return made;
}

/* Returns what hr_read_set() did.  Columns lie `apart` cells further from each other than they
 * must. */
static int tables_read(struct tables *tables, hr_region *const *regions, uint32_t count,
                       size_t apart)
{
    struct hr_set_size *size = &tables->size;
    CHECK_EQ(hr_read_set(regions, count, NULL, 0, UINT32_MAX, size, &call_error),
             count == 0 ? 0 : HR_ENOSPACE);
    const uint64_t wanted = size->bytes;
    tables->set = malloc(wanted + 1);
    NEED(tables->set != NULL);
    const int failed =
        hr_read_set(regions, count, tables->set, wanted, UINT32_MAX, size, &call_error);
    CHECK_EQ(size->bytes, wanted);
    tables->region_step = count + apart;
    tables->device_step = size->devices + apart;
    tables->process_step = size->processes + apart;
    tables->usage_step = size->usages + apart;
    tables->regions = columns_of(tables, count, HR_TABLE_REGIONS,
                                 HR_REGION_COLUMNS * tables->region_step, tables->region_step);
    tables->devices = columns_of(tables, count, HR_TABLE_DEVICES,
                                 HR_DEVICE_COLUMNS * tables->device_step, tables->device_step);
    tables->uuids = (char *)columns_of(tables, count, HR_TABLE_UUIDS,
                                       size->devices * (size_t)HR_UUID_BYTES / 8, 0);
    tables->processes = columns_of(tables, count, HR_TABLE_PROCESSES,
                                   HR_PROCESS_COLUMNS * tables->process_step, tables->process_step);
    tables->usages = columns_of(tables, count, HR_TABLE_USAGES,
                                HR_USAGE_COLUMNS * tables->usage_step, tables->usage_step);
    return failed;
}

static void tables_free(struct tables *tables)
{
    free(tables->set);
    free(tables->regions);
    free(tables->devices);
    free(tables->uuids);
    free(tables->processes);
    free(tables->usages);
}

#define REGION_CELL(t, column, row) ((t)->regions[(column) * (t)->region_step + (row)])
#define DEVICE_CELL(t, column, row) ((t)->devices[(column) * (t)->device_step + (row)])
#define PROCESS_CELL(t, column, row) ((t)->processes[(column) * (t)->process_step + (row)])
#define USAGE_CELL(t, column, row) ((t)->usages[(column) * (t)->usage_step + (row)])

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
    hr_close(regions[HR_LAYOUTS + 1], &call_error);

    struct tables tables;
    struct hr_set_size size;
    tables_read(&tables, regions, ROWS, 0);
    const uint64_t wanted = tables.size.bytes;
    tables_free(&tables);
    /* A byte too few is told, and nothing is written behind the end. */
    for (uint64_t bytes = 0; bytes < wanted; bytes++) {
        char *exact = malloc(bytes + 1);
        NEED(exact != NULL);
        exact[bytes] = 0x5a;
        CHECK_EQ(hr_read_set(regions, ROWS, exact, bytes, UINT32_MAX, &size, &call_error),
                 HR_ENOSPACE);
        CHECK_EQ(size.bytes, wanted);
        CHECK_EQ(exact[bytes], 0x5a);
        free(exact);
    }

    for (size_t apart = 0; apart < 10; apart += 9) {
        CHECK_EQ(tables_read(&tables, regions, ROWS, apart), 2);
        CHECK_EQ(tables.size.devices, 2 * HR_LAYOUTS);
        CHECK_EQ(tables.size.processes, 15);
        CHECK_EQ(tables.size.usages, 30);
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
                CHECK_STR(t->uuids + row * HR_UUID_BYTES,
                          device == 0 ? "GPU-00000000-aaaa-bbbb-cccc-000000000001"
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
            CHECK_EQ(set_failure(tables.set, row)->code, HR_ECLOSED);
            for (uint32_t column = HR_REGION_CODE + 1; column < HR_REGION_FIRST_DEVICE; column++)
                CHECK_EQ(REGION_CELL(&tables, column, row), 0);
            CHECK_EQ(REGION_CELL(&tables, HR_REGION_DEVICE_ROWS, row), 0);
        }
        tables_free(&tables);
    }

    /* One that turned bad is told, with what is wrong, and the others are still read. */
    poke32(&files[2], files[2].layout->proc_num, 5000);
    poke64(&files[3], files[3].layout->device_num, UINT64_MAX);
    CHECK_EQ(tables_read(&tables, regions, ROWS, 0), 4);
    CHECK_EQ(REGION_CELL(&tables, HR_REGION_CODE, 2), HR_ECORRUPT);
    CHECK_EQ(REGION_CELL(&tables, HR_REGION_CODE, 3), HR_ECORRUPT);
    CHECK_EQ(REGION_CELL(&tables, HR_REGION_CODE, 4), HR_OK);
    CHECK_EQ(set_failure(tables.set, 2)->reason, HR_REASON_PROC_NUM);
    CHECK_EQ(set_failure(tables.set, 2)->found, 5000);
    CHECK_EQ(set_failure(tables.set, 3)->reason, HR_REASON_DEVICE_NUM);
    CHECK_EQ(tables.size.devices, 6);
    CHECK_EQ(tables.size.processes, 1 + 2 + 5);
    CHECK_EQ(tables.size.usages, 2 * (1 + 2 + 5));
    CHECK_EQ(PROCESS_CELL(&tables, HR_PROCESS_PID, 3), 401);
    tables_free(&tables);

    CHECK_EQ(tables_read(&tables, NULL, 0, 0), 0);
    CHECK_EQ(tables.size.bytes, 0);
    tables_free(&tables);

    for (uint32_t row = 0; row < ROWS; row++)
        if (regions[row] != NULL)
            close_and_free(regions[row]);
    for (uint32_t id = 0; id < HR_LAYOUTS; id++)
        region_file_remove(&files[id]);
}

/* Sums wrap, as libvgpu adds. */
static void test_column_sums_are_modulo_64_bits(void)
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
    CHECK_EQ(tables_read(&tables, &region, 1, 0), HR_OK);
    for (uint32_t column = HR_DEVICE_TOTAL; column <= HR_DEVICE_DEC; column++)
        CHECK_EQ(DEVICE_CELL(&tables, column, 0), top + top);
    tables_free(&tables);
    close_and_free(region);
    region_file_remove(&file);
}

/* Before the devices are declared, those that left traces have rows, and those between have none.
 */
static void test_columns_of_undeclared_devices(void)
{
    struct region_file file;
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
    struct tables tables;
    CHECK_EQ(tables_read(&tables, &region, 1, 0), HR_OK);
    CHECK_EQ(tables.size.devices, 3);
    CHECK_EQ(tables.size.usages, 6);
    const uint32_t listed[] = {0, 11, 14};
    for (uint32_t row = 0; row < 6; row++) {
        CHECK_EQ(USAGE_CELL(&tables, HR_USAGE_PROCESS, row), row / 3);
        CHECK_EQ(USAGE_CELL(&tables, HR_USAGE_DEVICE, row), listed[row % 3]);
        CHECK_EQ(USAGE_CELL(&tables, HR_USAGE_DATA, row), row == 0   ? 1003
                                                          : row == 3 ? 2003
                                                          : row == 4 ? 7
                                                                     : 0);
    }
    for (uint32_t row = 0; row < 3; row++)
        CHECK_EQ(DEVICE_CELL(&tables, HR_DEVICE_INDEX, row), listed[row]);
    CHECK_EQ(DEVICE_CELL(&tables, HR_DEVICE_TOTAL, 1), 7);
    CHECK_STR(tables.uuids + 2 * HR_UUID_BYTES, "GPU-14");
    CHECK_EQ(PROCESS_CELL(&tables, HR_PROCESS_FIRST_USAGE, 1), 3);
    tables_free(&tables);

    /* Once they are, what stands beyond them is left over. */
    poke64(&file, file.layout->device_num, 1);
    CHECK_EQ(tables_read(&tables, &region, 1, 0), HR_OK);
    CHECK_EQ(tables.size.devices, 1);
    tables_free(&tables);
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
        CHECK_EQ(live_value(region, HR_VALUE_MEMORY_LIMIT, 0), 4 * GIB);
        CHECK_EQ(live_value(region, HR_VALUE_MEMORY_LIMIT, 1), 8 * GIB);
        CHECK_EQ(live_value(region, HR_VALUE_MEMORY_LIMIT, 15), 0);
        CHECK_EQ(live_value(region, HR_VALUE_SM_LIMIT, 1), 60);
        for (uint32_t device = 0; device < HR_DEVICES; device++)
            /* Every slot below proc_num, whatever its status. */
            CHECK_EQ(live_value(region, HR_VALUE_MEMORY_USED, device),
                     3 * (1000 + 2000 + 3000 + 4000 + 4 * device * 10) + 4 * 6);
        CHECK_EQ(live_value(region, HR_VALUE_PRIORITY, 0), 1);
        CHECK_EQ(live_value(region, HR_VALUE_UTILIZATION_SWITCH, 0), 1);
        CHECK_EQ(live_value(region, HR_VALUE_DEVICE_NUM, 0), 2);
        CHECK_EQ(live_value(region, HR_VALUE_PROC_NUM, 0), 4);
        /* -1 and "no value" are the same bits: the detail tells them apart. */
        CHECK_EQ(live_value(region, HR_VALUE_RECENT_KERNEL, 0), -1);
        CHECK_EQ(last_detail().code, HR_OK);
        if (layout->last_kernel_time != HR_ABSENT) {
            CHECK_EQ(live_value(region, HR_VALUE_LAST_KERNEL_TIME, 0), 1790000001);
        } else {
            CHECK_EQ(live_value(region, HR_VALUE_LAST_KERNEL_TIME, 0), NO_VALUE);
            CHECK_EQ(last_detail().code, HR_EINVAL);
        }
        const uint32_t per_device[] = {HR_VALUE_MEMORY_LIMIT, HR_VALUE_SM_LIMIT,
                                       HR_VALUE_MEMORY_USED};
        for (size_t i = 0; i < 3; i++) {
            CHECK_EQ(live_value(region, per_device[i], HR_DEVICES), NO_VALUE);
            CHECK_EQ(last_detail().code, HR_EINVAL);
            CHECK_EQ(live_value(region, per_device[i], UINT32_MAX), NO_VALUE);
            CHECK_EQ(last_detail().code, HR_EINVAL);
        }
        CHECK_EQ(live_value(region, HR_VALUE_DEVICES + 1, 0), NO_VALUE);
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
    RUN(test_columns);
    RUN(test_column_sums_are_modulo_64_bits);
    RUN(test_columns_of_undeclared_devices);
    RUN(test_live_values);
    return check_report("test_columns");
}
