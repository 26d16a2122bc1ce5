/* Edits: what is stored, what is refused, and that nothing else moves. */
#include "check.h"
#include "region_file.h"

/* Every byte but [from, to) is as it was. */
static void check_untouched(const struct region_file *file, const uint8_t *before, size_t from,
                            size_t to)
{
    CHECK_EQ(memcmp(file->bytes, before, from), 0);
    CHECK_EQ(memcmp(file->bytes + to, before + to, file->size - to), 0);
}

/* One device: one word changes, and the edit tells both of its values. */
static void test_sets_one_limit(void)
{
    for (uint32_t id = 0; id < HR_LAYOUTS; id++) {
        struct region_file file;
        region_file_make(&file, id);
        hr_region *region = open_or_fail(file.path, HR_WRITE);
        struct hr_edit edits[HR_DEVICES];
        for (uint32_t kind = HR_MEMORY; kind <= HR_SM; kind++) {
            const uint32_t table = kind == HR_MEMORY ? file.layout->limit : file.layout->sm_limit;
            for (uint32_t device = 0; device < HR_DEVICES; device++) {
                uint8_t *before = region_file_copy(&file);
                const size_t at = table + (size_t)device * 8;
                const uint64_t old = peek64(&file, at);
                const uint64_t value = kind == HR_MEMORY ? device * GIB + 1 : device + 1;
                CHECK_EQ(set_limits(region, kind, (int32_t)device, value, 0, HR_FORCE, edits), 1);
                CHECK_EQ(edits[0].device, (int32_t)device);
                CHECK_EQ(edits[0].before, old);
                CHECK_EQ(edits[0].after, value);
                CHECK_EQ(peek64(&file, at), value);
                CHECK_EQ(hr_get(region,
                                kind == HR_MEMORY ? HR_VALUE_MEMORY_LIMIT : HR_VALUE_SM_LIMIT,
                                device),
                         value);
                check_untouched(&file, before, at, at + 8);
                free(before);
            }
        }
        close_and_free(region);
        region_file_remove(&file);
    }
}

/* All devices are those that the region has: what stands beyond them stays as it is. */
static void test_sets_all_limits(void)
{
    for (uint32_t id = 0; id < HR_LAYOUTS; id++) {
        struct region_file file;
        region_file_make(&file, id);
        const struct hr_layout *layout = file.layout;
        hr_region *region = open_or_fail(file.path, HR_WRITE);
        struct hr_edit edits[HR_DEVICES];

        CHECK_EQ(set_limits(region, HR_MEMORY, HR_ALL_DEVICES, 2 * GIB, 0, 0, edits), 2);
        CHECK_EQ(edits[0].before, 4 * GIB);
        CHECK_EQ(edits[1].before, 8 * GIB);
        CHECK_EQ(edits[1].device, 1);
        CHECK_EQ(peek64(&file, layout->limit), 2 * GIB);
        CHECK_EQ(peek64(&file, layout->limit + 8), 2 * GIB);
        CHECK_EQ(peek64(&file, layout->limit + 16), 0);

        fill_slot(&file, 0, 100, 1, 0);
        poke_usage(&file, 0, 9, &(struct hr_usage){.total = 5});
        poke32(&file, layout->proc_num, 1);
        CHECK_EQ(set_limits(region, HR_SM, HR_ALL_DEVICES, 30, 0, 0, edits), 2);
        CHECK_EQ(peek64(&file, layout->sm_limit + 8), 30);
        CHECK_EQ(peek64(&file, layout->sm_limit + 9 * 8), 100);

        /* Room for fewer than there are. */
        edits[0] = (struct hr_edit){.kind = HR_SM, .device = HR_ALL_DEVICES, .value = 40};
        CHECK_EQ(hr_edit(region, edits, 1, 1, 0), HR_ENOSPACE);
        CHECK_EQ(last_detail().wanted, HR_EDITS_MAX);
        CHECK_EQ(peek64(&file, layout->sm_limit), 30);
        close_and_free(region);
        region_file_remove(&file);
    }
}

static uint32_t devices_of(hr_region *region)
{
    uint64_t devices;
    CHECK_EQ(hr_read_value(region, HR_VALUE_DEVICES, 0, &devices), HR_OK);
    return (uint32_t)devices;
}

/* Until device_num is known, limits and use tell how many devices there are. */
static void test_devices_that_have_not_been_counted(void)
{
    for (uint32_t id = 0; id < HR_LAYOUTS; id++) {
        struct region_file file;
        region_file_make(&file, id);
        const struct hr_layout *layout = file.layout;
        hr_region *region = open_or_fail(file.path, HR_WRITE);
        struct hr_edit edits[HR_DEVICES];
        CHECK_EQ(devices_of(region), 3);
        memset(file.bytes + layout->uuids, 0, HR_DEVICES * HR_UUID_BYTES);
        poke64(&file, layout->device_num, 0);
        for (uint32_t device = 0; device < HR_DEVICES; device++) {
            poke64(&file, layout->limit + device * 8, 0);
            poke64(&file, layout->sm_limit + device * 8, 100);
        }
        CHECK_EQ(devices_of(region), 0xffff);
        poke64(&file, layout->limit + 2 * 8, GIB);
        CHECK_EQ(devices_of(region), 7);
        CHECK_EQ(set_limits(region, HR_MEMORY, HR_ALL_DEVICES, GIB, 0, 0, edits), 3);
        CHECK_EQ(set_limits(region, HR_MEMORY, 3, GIB, 0, 0, edits), HR_ENODEVICE);

        /* One SM limit for all 16 says nothing; one of its own does. */
        for (uint32_t device = 0; device < HR_DEVICES; device++)
            poke64(&file, layout->sm_limit + device * 8, 50);
        CHECK_EQ(devices_of(region), 7);
        for (uint32_t device = 5; device < HR_DEVICES; device++)
            poke64(&file, layout->sm_limit + device * 8, device % 2 == 0 ? 0 : 100);
        CHECK_EQ(devices_of(region), 0x1f);

        fill_slot(&file, 0, 100, 1, 0);
        poke_usage(&file, 0, 9, &(struct hr_usage){.total = 5});
        poke32(&file, layout->proc_num, 1);
        CHECK_EQ(devices_of(region), 0x3ff);

        /* One memory limit for however many devices there are. */
        for (uint32_t device = 0; device < HR_DEVICES; device++)
            poke64(&file, layout->limit + device * 8, 3 * GIB);
        CHECK_EQ(set_limits(region, HR_MEMORY, HR_ALL_DEVICES, GIB, 0, 0, edits), HR_DEVICES);
        for (int32_t device = 0; device < HR_DEVICES; device++) {
            CHECK_EQ(peek64(&file, layout->limit + (size_t)device * 8), GIB);
            CHECK_EQ(edits[device].device, device);
            CHECK_EQ(edits[device].before, 3 * GIB);
        }
        close_and_free(region);
        region_file_remove(&file);
    }
}

/* Another device is refused, and nothing of it is written, unless forced. */
static void test_a_device_is_one_that_the_region_has(void)
{
    struct region_file file;
    region_file_make(&file, HR_V1_2);
    hr_region *region = open_or_fail(file.path, HR_WRITE);
    struct hr_edit edits[HR_DEVICES];
    uint8_t *before = region_file_copy(&file);
    for (int32_t device = 2; device < HR_DEVICES; device++) {
        CHECK_EQ(set_limits(region, HR_MEMORY, device, GIB, 0, 0, edits), HR_ENODEVICE);
        CHECK_EQ(last_detail().device, device);
        CHECK_EQ(last_detail().candidates, 3);
        CHECK_EQ(set_limits(region, HR_SM, device, 50, 0, HR_DRY_RUN, edits), HR_ENODEVICE);
    }
    struct hr_edit named = {.kind = HR_MEMORY, .value = GIB, .uuid = "GPU-of-nobody"};
    CHECK_EQ(hr_edit(region, &named, 1, 1, 0), HR_ENODEVICE);
    CHECK_EQ(last_detail().device, -1);
    CHECK_EQ(hr_edit(region, &named, 1, 1, HR_FORCE), HR_ENODEVICE);
    named.uuid = "";
    CHECK_EQ(hr_edit(region, &named, 1, 1, HR_FORCE), HR_ENODEVICE);
    check_untouched(&file, before, 0, 0);

    memcpy(file.bytes + file.layout->uuids + HR_UUID_BYTES, "GPU-second", 11);
    named.uuid = "GPU-second";
    CHECK_EQ(hr_edit(region, &named, 1, 1, 0), 1);
    CHECK_EQ(named.device, 1);
    CHECK_EQ(peek64(&file, file.layout->limit + 8), GIB);
    /* The same one twice, by two names. */
    struct hr_edit twice[] = {named, {.kind = HR_MEMORY, .device = 1, .value = 2 * GIB}};
    CHECK_EQ(hr_edit(region, twice, 2, 2, 0), HR_EINVAL);
    CHECK_EQ(last_detail().device, 1);
    CHECK_EQ(set_limits(region, HR_MEMORY, 15, GIB, 0, HR_FORCE, edits), 1);
    CHECK_EQ(peek64(&file, file.layout->limit + 15 * 8), GIB);
    free(before);
    close_and_free(region);
    region_file_remove(&file);
}

/* Part of what stands there; of no limit there is no part. */
static void test_percentages_of_a_limit(void)
{
    struct region_file file;
    region_file_make(&file, HR_V1_2);
    hr_region *region = open_or_fail(file.path, HR_WRITE);
    struct hr_edit edits[HR_DEVICES];
    CHECK_EQ(set_limits(region, HR_MEMORY, HR_ALL_DEVICES, 50, 0, HR_PERCENT, edits), 2);
    CHECK_EQ(edits[0].after, 2 * GIB);
    CHECK_EQ(peek64(&file, file.layout->limit), 2 * GIB);
    CHECK_EQ(peek64(&file, file.layout->limit + 8), 4 * GIB);
    poke64(&file, file.layout->limit + 8, 0);
    CHECK_EQ(set_limits(region, HR_MEMORY, HR_ALL_DEVICES, 50, 0, HR_PERCENT, edits), HR_EINVAL);
    CHECK_EQ(last_detail().device, 1);
    CHECK_EQ(last_detail().found, 0);
    CHECK_EQ(last_detail().wanted, 50);
    CHECK_EQ(peek64(&file, file.layout->limit), 2 * GIB);
    poke64(&file, file.layout->limit, UINT64_MAX);
    CHECK_EQ(set_limits(region, HR_MEMORY, 0, 101, 0, HR_PERCENT, edits), HR_EINVAL);
    poke64(&file, file.layout->limit, 9);
    CHECK_EQ(set_limits(region, HR_MEMORY, 0, 11, 0, HR_PERCENT, edits), HR_EINVAL);
    CHECK_EQ(set_limits(region, HR_SM, 0, 50, 0, HR_PERCENT, edits), HR_EINVAL);
    close_and_free(region);
    region_file_remove(&file);
}

/* A limit that comes to processes that began without one, where nothing fills their bucket. */
static void test_sm_limits_that_would_stop_processes(void)
{
    for (uint32_t id = 0; id < HR_LAYOUTS; id++) {
        for (uint64_t was = 0; was < 3; was++) {
            const uint64_t unlimited[] = {100, 0, 100000};
            const bool stops = id == HR_UNVERSIONED_NO_UTIL || id == HR_UNVERSIONED ||
                               (id == HR_V1_1 && unlimited[was] != 100);
            struct region_file file;
            region_file_make(&file, id);
            const struct hr_layout *layout = file.layout;
            hr_region *region = open_or_fail(file.path, HR_WRITE);
            struct hr_edit edits[HR_DEVICES];
            poke64(&file, layout->sm_limit, unlimited[was]);
            /* Nothing runs there. */
            CHECK_EQ(set_limits(region, HR_SM, 0, 30, 0, HR_DRY_RUN, edits), 1);
            CHECK_EQ(edits[0].stops_launches, 0);
            fill_slot(&file, 0, 100, 1, 0);
            poke32(&file, layout->proc_num, 1);
            uint8_t *before = region_file_copy(&file);
            const int expected = stops ? HR_EUNWATCHED : 2;
            CHECK_EQ(set_limits(region, HR_SM, 0, 30, 0, HR_DRY_RUN, edits),
                     stops ? HR_EUNWATCHED : 1);
            CHECK_EQ(set_limits(region, HR_SM, HR_ALL_DEVICES, 30, 0, 0, edits), expected);
            if (stops) {
                const struct hr_detail detail = last_detail();
                CHECK_EQ(detail.device, 0);
                CHECK_EQ(detail.found, 1);
                CHECK_EQ(detail.wanted, 30);
                check_untouched(&file, before, 0, 0);
                /* Device 0 decides for all; and off, or another level, stops nothing. */
                CHECK_EQ(set_limits(region, HR_SM, 1, 30, 0, 0, edits), 1);
                CHECK_EQ(set_limits(region, HR_SM, 0, 30, 0, HR_FORCE, edits), 1);
                CHECK_EQ(edits[0].stops_launches, 1);
                CHECK_EQ(set_limits(region, HR_SM, 0, 40, 0, 0, edits), 1);
                CHECK_EQ(set_limits(region, HR_SM, 0, 100, 0, 0, edits), 1);
                CHECK_EQ(edits[0].stops_launches, 0);
            }
            free(before);
            close_and_free(region);
            region_file_remove(&file);
        }
    }
}

/* Compare-and-set stores in all devices or in none. */
static void test_expected_values(void)
{
    struct region_file file;
    region_file_make(&file, HR_V1_2);
    const struct hr_layout *layout = file.layout;
    hr_region *region = open_or_fail(file.path, HR_WRITE);
    struct hr_edit edits[HR_DEVICES];

    CHECK_EQ(set_limits(region, HR_MEMORY, 0, 5 * GIB, 3 * GIB, HR_EXPECT, edits), HR_ECONFLICT);
    struct hr_detail detail = last_detail();
    CHECK_EQ(detail.code, HR_ECONFLICT);
    CHECK_EQ(detail.device, 0);
    CHECK_EQ(detail.found, 4 * GIB);
    CHECK_EQ(detail.wanted, 3 * GIB);
    CHECK_EQ(peek64(&file, layout->limit), 4 * GIB);

    uint8_t *before = region_file_copy(&file);
    CHECK_EQ(set_limits(region, HR_MEMORY, HR_ALL_DEVICES, 5 * GIB, 4 * GIB, HR_EXPECT, edits),
             HR_ECONFLICT);
    detail = last_detail();
    CHECK_EQ(detail.device, 1);
    CHECK_EQ(detail.found, 8 * GIB);
    check_untouched(&file, before, 0, 0);
    free(before);

    CHECK_EQ(set_limits(region, HR_MEMORY, 0, 5 * GIB, 4 * GIB, HR_EXPECT, edits), 1);
    CHECK_EQ(peek64(&file, layout->limit), 5 * GIB);

    /* 0 and anything from 100 on are the same SM limit: none. */
    poke64(&file, layout->sm_limit, 100);
    poke64(&file, layout->sm_limit + 8, 0);
    CHECK_EQ(set_limits(region, HR_SM, HR_ALL_DEVICES, 40, 0, HR_EXPECT, edits), 2);
    CHECK_EQ(edits[0].before, 100);
    CHECK_EQ(edits[1].before, 0);
    CHECK_EQ(set_limits(region, HR_SM, HR_ALL_DEVICES, 50, 100, HR_EXPECT, edits), HR_ECONFLICT);
    CHECK_EQ(set_limits(region, HR_SM, HR_ALL_DEVICES, 50, 40, HR_EXPECT, edits), 2);
    CHECK_EQ(peek64(&file, layout->sm_limit + 8), 50);
    close_and_free(region);
    region_file_remove(&file);
}

/* A memory limit under what is used makes a program's free memory enormous. */
static void test_refuses_limits_below_use(void)
{
    for (uint32_t id = 0; id < HR_LAYOUTS; id++) {
        struct region_file file;
        region_file_make(&file, id);
        const struct hr_layout *layout = file.layout;
        fill_slot(&file, 0, 100, 1, 0);
        fill_slot(&file, 1, 101, 1, 0);
        poke_usage(&file, 0, 1, &(struct hr_usage){.total = GIB});
        poke_usage(&file, 1, 1, &(struct hr_usage){.total = GIB});
        poke32(&file, slot_at(&file, 1, layout->slot_status), 0);
        poke32(&file, layout->proc_num, 2);
        hr_region *region = open_or_fail(file.path, HR_WRITE);
        struct hr_edit edits[HR_DEVICES];
        uint8_t *before = region_file_copy(&file);

        CHECK_EQ(set_limits(region, HR_MEMORY, 1, 2 * GIB - 1, 0, 0, edits), HR_EBELOWUSE);
        struct hr_detail detail = last_detail();
        CHECK_EQ(detail.device, 1);
        CHECK_EQ(detail.found, 2 * GIB);
        CHECK_EQ(detail.wanted, 2 * GIB - 1);
        CHECK_EQ(set_limits(region, HR_MEMORY, HR_ALL_DEVICES, GIB, 0, 0, edits), HR_EBELOWUSE);
        CHECK_EQ(last_detail().device, 1);
        CHECK_EQ(set_limits(region, HR_MEMORY, HR_ALL_DEVICES, GIB, 0, HR_DRY_RUN, edits),
                 HR_EBELOWUSE);
        check_untouched(&file, before, 0, 0);

        /* As much as is used, or no limit at all, is not below. A dry run stores nothing. */
        CHECK_EQ(set_limits(region, HR_MEMORY, 1, 2 * GIB, 0, HR_DRY_RUN, edits), 1);
        CHECK_EQ(edits[0].before, 8 * GIB);
        CHECK_EQ(edits[0].after, 2 * GIB);
        CHECK_EQ(set_limits(region, HR_SM, HR_ALL_DEVICES, 1, 0, HR_DRY_RUN, edits), 2);
        check_untouched(&file, before, 0, 0);
        CHECK_EQ(set_limits(region, HR_MEMORY, 1, 2 * GIB, 0, 0, edits), 1);
        CHECK_EQ(set_limits(region, HR_MEMORY, 1, 0, 0, 0, edits), 1);
        CHECK_EQ(peek64(&file, layout->limit + 8), 0);
        CHECK_EQ(set_limits(region, HR_MEMORY, HR_ALL_DEVICES, 7, 0, HR_FORCE, edits), 2);
        CHECK_EQ(peek64(&file, layout->limit), 7);
        CHECK_EQ(peek64(&file, layout->limit + 8), 7);
        free(before);
        close_and_free(region);
        region_file_remove(&file);
    }
}

static void test_refuses_bad_edits(void)
{
    struct region_file file;
    region_file_make(&file, HR_V1_2);
    hr_region *region = open_or_fail(file.path, HR_WRITE);
    hr_region *reader = open_or_fail(file.path, HR_READ);
    struct hr_edit edits[HR_DEVICES];
    int32_t value;
    uint8_t *before = region_file_copy(&file);
    CHECK_EQ(set_limits(region, HR_MEMORY, HR_DEVICES, 1, 0, 0, edits), HR_EINVAL);
    CHECK_EQ(set_limits(region, HR_MEMORY, -2, 1, 0, 0, edits), HR_EINVAL);
    CHECK_EQ(set_limits(region, HR_MEMORY, INT32_MIN, 1, 0, 0, edits), HR_EINVAL);
    CHECK_EQ(set_limits(region, HR_EDIT_KINDS, 0, 1, 0, 0, edits), HR_EINVAL);
    CHECK_EQ(set_limits(region, HR_MEMORY, 0, 1, 0, 16, edits), HR_EINVAL);
    CHECK_EQ(set_value(region, HR_EDIT_KINDS, 1, 0, 0, &value), HR_EINVAL);
    struct hr_edit wide = {.kind = HR_PRIORITY, .value = UINT64_C(1) << 31};
    CHECK_EQ(hr_edit(region, &wide, 1, 1, 0), HR_EINVAL);
    struct hr_edit flagged = {.kind = HR_PRIORITY, .flags = HR_FORCE};
    CHECK_EQ(hr_edit(region, &flagged, 1, 1, 0), HR_EINVAL);
    struct hr_edit many[HR_EDITS_MAX + 1] = {{.kind = HR_PRIORITY}};
    CHECK_EQ(hr_edit(region, many, HR_EDITS_MAX + 1, HR_EDITS_MAX + 1, 0), HR_EINVAL);
    CHECK_EQ(hr_edit(region, many, 2, 1, 0), HR_EINVAL);
    CHECK_EQ(hr_edit(region, many, 0, 0, 0), 0);
    CHECK_EQ(set_limits(reader, HR_MEMORY, 0, 1, 0, 0, edits), HR_EREADONLY);
    CHECK_EQ(last_detail().code, HR_EREADONLY);
    CHECK_EQ(set_value(reader, HR_PRIORITY, 1, 0, 0, &value), HR_EREADONLY);
    check_untouched(&file, before, 0, 0);
    free(before);
    close_and_free(reader);
    close_and_free(region);
    region_file_remove(&file);
}

static void test_sets_values(void)
{
    for (uint32_t id = 0; id < HR_LAYOUTS; id++) {
        struct region_file file;
        region_file_make(&file, id);
        const uint32_t kinds[] = {HR_PRIORITY, HR_SWITCH, HR_RECENT_KERNEL};
        const uint32_t values[] = {HR_VALUE_PRIORITY, HR_VALUE_UTILIZATION_SWITCH,
                                   HR_VALUE_RECENT_KERNEL};
        const uint32_t offsets[] = {file.layout->priority, file.layout->utilization_switch,
                                    file.layout->recent_kernel};
        hr_region *region = open_or_fail(file.path, HR_WRITE);
        for (size_t i = 0; i < 3; i++) {
            int32_t replaced = 12345;
            const int32_t old = (int32_t)peek32(&file, offsets[i]);
            uint8_t *before = region_file_copy(&file);
            CHECK_EQ(set_value(region, kinds[i], -1, 0, 0, &replaced), HR_OK);
            CHECK_EQ(replaced, old);
            CHECK_EQ((int32_t)peek32(&file, offsets[i]), -1);
            CHECK_EQ(set_value(region, kinds[i], 2, 0, 0, &replaced), HR_OK);
            CHECK_EQ(replaced, -1);
            CHECK_EQ(hr_get(region, values[i], 0), 2);
            check_untouched(&file, before, offsets[i], offsets[i] + 4);
            free(before);
        }
        close_and_free(region);
        region_file_remove(&file);
    }
}

static struct hr_edit edit_of(uint32_t kind, uint32_t device, uint64_t expected, uint64_t value)
{
    struct hr_edit edit = {.kind = kind,
                           .device = (int32_t)device,
                           .flags = HR_EXPECT,
                           .expected = expected,
                           .value = value};
    return edit;
}

static void test_edits_all_values_or_none(void)
{
    for (uint32_t id = 0; id < HR_LAYOUTS; id++) {
        struct region_file file;
        region_file_make(&file, id);
        const struct hr_layout *layout = file.layout;
        poke64(&file, layout->limit, 4 * GIB);
        poke64(&file, layout->limit + 8, 3 * GIB);
        poke64(&file, layout->sm_limit + 8, 0);
        poke32(&file, layout->priority, 1);
        hr_region *region = open_or_fail(file.path, HR_WRITE);

        struct hr_edit edits[] = {edit_of(HR_MEMORY, 0, 4 * GIB, 5 * GIB),
                                  edit_of(HR_SM, 1, 100, 30), /* stands as 0: unlimited, too */
                                  edit_of(HR_PRIORITY, 0, 1, 0)};
        uint8_t *before = region_file_copy(&file);
        CHECK_EQ(hr_edit(region, edits, 3, 3, HR_DRY_RUN), 3);
        check_untouched(&file, before, 0, 0);
        CHECK_EQ(hr_edit(region, edits, 3, 3, 0), 3);
        CHECK_EQ(peek64(&file, layout->limit), 5 * GIB);
        CHECK_EQ(peek64(&file, layout->sm_limit + 8), 30);
        CHECK_EQ(peek32(&file, layout->priority), 0);
        CHECK_EQ(edits[0].before, 4 * GIB);
        CHECK_EQ(edits[1].before, 0);
        CHECK_EQ(edits[2].before, 1);
        free(before);

        before = region_file_copy(&file);
        struct hr_edit late[] = {edit_of(HR_MEMORY, 0, 5 * GIB, 6 * GIB),
                                 edit_of(HR_PRIORITY, 0, 7, 1)};
        CHECK_EQ(hr_edit(region, late, 2, 2, 0), HR_ECONFLICT);
        CHECK_EQ(last_detail().kind, HR_PRIORITY);
        CHECK_EQ(last_detail().found, 0);
        CHECK_EQ(last_detail().wanted, 7);
        late[1] = edit_of(HR_PRIORITY, 0, 0, UINT64_C(1) << 31);
        CHECK_EQ(hr_edit(region, late, 2, 2, 0), HR_EINVAL);
        late[1] = edit_of(HR_SM, HR_DEVICES, 0, 1);
        CHECK_EQ(hr_edit(region, late, 2, 2, 0), HR_EINVAL);
        late[1] = edit_of(HR_EDIT_KINDS, 0, 0, 1);
        CHECK_EQ(hr_edit(region, late, 2, 2, 0), HR_EINVAL);
        CHECK_EQ(hr_edit(region, late, 1, 1, HR_EXPECT), HR_EINVAL);
        check_untouched(&file, before, 0, 0);
        free(before);
        close_and_free(region);
        region_file_remove(&file);
    }
}

static void test_replaces_an_expected_value_only(void)
{
    struct region_file file;
    region_file_make(&file, HR_LAYOUTS - 1);
    hr_region *region = open_or_fail(file.path, HR_WRITE);
    int32_t found;
    CHECK_EQ(set_value(region, HR_RECENT_KERNEL, -1, 0, 0, &found), HR_OK);
    CHECK_EQ(set_value(region, HR_RECENT_KERNEL, 1, 2, HR_EXPECT, &found), HR_ECONFLICT);
    CHECK_EQ(found, -1);
    CHECK_EQ((int64_t)last_detail().found, -1);
    CHECK_EQ(last_detail().wanted, 2);
    CHECK_EQ(set_value(region, HR_RECENT_KERNEL, 1, -1, HR_EXPECT | HR_DRY_RUN, &found), HR_OK);
    CHECK_EQ((int32_t)peek32(&file, file.layout->recent_kernel), -1);
    CHECK_EQ(set_value(region, HR_RECENT_KERNEL, 1, -1, HR_EXPECT, &found), HR_OK);
    CHECK_EQ((int32_t)peek32(&file, file.layout->recent_kernel), 1);
    close_and_free(region);
    region_file_remove(&file);
}

int main(void)
{
    RUN(test_sets_one_limit);
    RUN(test_sets_all_limits);
    RUN(test_devices_that_have_not_been_counted);
    RUN(test_a_device_is_one_that_the_region_has);
    RUN(test_percentages_of_a_limit);
    RUN(test_sm_limits_that_would_stop_processes);
    RUN(test_expected_values);
    RUN(test_refuses_limits_below_use);
    RUN(test_refuses_bad_edits);
    RUN(test_sets_values);
    RUN(test_edits_all_values_or_none);
    RUN(test_replaces_an_expected_value_only);
    return check_report("test_edit");
}
