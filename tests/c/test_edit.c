/* Edits that only C can ask for; what Python can is tested there. */
#include "call_error.h"
#include "check.h"
#include "region_file.h"

struct scene {
    struct region_file file;
    hr_region *region;
    uint8_t *before;
};

static void begin(struct scene *scene)
{
    region_file_make(&scene->file, HR_V1_2);
    scene->region = open_or_fail(scene->file.path, HR_WRITE);
    scene->before = region_file_copy(&scene->file);
}

static void check_untouched(const struct scene *scene)
{
    CHECK_EQ(memcmp(scene->file.bytes, scene->before, scene->file.size), 0);
}

static void end(struct scene *scene)
{
    free(scene->before);
    close_and_free(scene->region);
    region_file_remove(&scene->file);
}

static void test_refuses_what_is_no_edit(void)
{
    struct scene scene;
    begin(&scene);
    hr_region *region = scene.region;
    struct hr_edit edits[HR_DEVICES];
    int32_t value;
    CHECK_EQ(set_limits(region, HR_MEMORY, HR_DEVICES, 1, 0, 0, edits), HR_EINVAL);
    CHECK_EQ(set_limits(region, HR_MEMORY, -2, 1, 0, 0, edits), HR_EINVAL);
    CHECK_EQ(set_limits(region, HR_MEMORY, INT32_MIN, 1, 0, 0, edits), HR_EINVAL);
    CHECK_EQ(set_limits(region, HR_EDIT_KINDS, 0, 1, 0, 0, edits), HR_EINVAL);
    CHECK_EQ(set_limits(region, HR_MEMORY, 0, 1, 0, 16, edits), HR_EINVAL);
    CHECK_EQ(set_limits(region, HR_SM, 0, 50, 0, HR_PERCENT, edits), HR_EINVAL);
    CHECK_EQ(set_value(region, HR_EDIT_KINDS, 1, 0, 0, &value), HR_EINVAL);
    struct hr_edit wide = {.kind = HR_PRIORITY, .value = UINT64_C(1) << 31};
    CHECK_EQ(hr_edit(region, &wide, 1, 1, 0, &call_error), HR_EINVAL);
    wide = (struct hr_edit){
        .kind = HR_PRIORITY, .flags = HR_EXPECT, .expected = UINT64_C(1) << 31, .value = 1};
    CHECK_EQ(hr_edit(region, &wide, 1, 1, 0, &call_error), HR_EINVAL);
    struct hr_edit flagged = {.kind = HR_PRIORITY, .flags = HR_FORCE};
    CHECK_EQ(hr_edit(region, &flagged, 1, 1, 0, &call_error), HR_EINVAL);
    flagged.flags = 0;
    CHECK_EQ(hr_edit(region, &flagged, 1, 1, HR_EXPECT, &call_error), HR_EINVAL);
    check_untouched(&scene);
    end(&scene);
}

/* Each call takes so many edits at most, and each device needs room for its own. */
static void test_an_array_has_room_for_what_is_done(void)
{
    struct scene scene;
    begin(&scene);
    struct hr_edit many[HR_EDITS_MAX + 1] = {{.kind = HR_PRIORITY}};
    CHECK_EQ(hr_edit(scene.region, many, HR_EDITS_MAX + 1, HR_EDITS_MAX + 1, 0, &call_error),
             HR_EINVAL);
    CHECK_EQ(hr_edit(scene.region, many, 2, 1, 0, &call_error), HR_EINVAL);
    CHECK_EQ(hr_edit(scene.region, many, 0, 0, 0, &call_error), 0);
    struct hr_edit all = {.kind = HR_MEMORY, .device = HR_ALL_DEVICES, .value = GIB};
    CHECK_EQ(hr_edit(scene.region, &all, 1, 1, 0, &call_error), HR_ENOSPACE);
    CHECK_EQ(last_detail().wanted, HR_EDITS_MAX);
    check_untouched(&scene);
    end(&scene);
}

/* More than a hundred percent may be more than there are numbers. */
static void test_a_share_that_no_number_holds(void)
{
    struct scene scene;
    begin(&scene);
    struct hr_edit edits[HR_DEVICES];
    poke64(&scene.file, scene.file.layout->limit, UINT64_MAX);
    CHECK_EQ(set_limits(scene.region, HR_MEMORY, 0, 101, 0, HR_PERCENT, edits), HR_EINVAL);
    CHECK_EQ(peek64(&scene.file, scene.file.layout->limit), UINT64_MAX);
    end(&scene);
}

int main(void)
{
    RUN(test_refuses_what_is_no_edit);
    RUN(test_an_array_has_room_for_what_is_done);
    RUN(test_a_share_that_no_number_holds);
    return check_report("test_edit");
}
