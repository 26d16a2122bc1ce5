/*
 * A second writer between the check of an edit and its store.  The core calls back before
 * each of its loads (load_hook.h), and the writer acts at a chosen one.
 */
#include "check.h"
#include "region_file.h"

enum { DEVICES = 3, MOST_LOADS = 2000 };

static struct {
    const struct region_file *file;
    void (*act)(void);
    uint32_t loads, at; /* so far in this call, and the one that `act` comes before */
    bool armed;
} hook;

/* Nothing here waits. */
int hooked_clock_gettime(clockid_t clock, struct timespec *now)
{
    (void)clock;
    *now = (struct timespec){0};
    return 0;
}

void before_load(void)
{
    if (!hook.armed || hook.loads++ != hook.at)
        return;
    hook.armed = false;
    hook.act();
    hook.armed = true;
}

/* One call, with the writer before its load number `at`. */
static int edit_at(hr_region *region, struct hr_edit *edits, uint32_t count, uint32_t at,
                   void (*act)(void))
{
    hook.act = act;
    hook.loads = 0;
    hook.at = at;
    hook.armed = true;
    const int code = hr_edit(region, edits, count, HR_EDITS_MAX, 0, &call_error);
    hook.armed = false;
    return code;
}

static size_t limit_at(uint32_t device)
{
    return hook.file->layout->limit + (size_t)device * 8;
}

static void name_third_device(const struct region_file *file)
{
    memcpy(file->bytes + file->layout->uuids + 2 * HR_UUID_BYTES, "GPU-third", 10);
    poke64(file, file->layout->device_num, DEVICES);
    hook.file = file;
}

static void reset_limits(void)
{
    for (uint32_t device = 0; device < DEVICES; device++)
        poke64(hook.file, limit_at(device), 4 * GIB);
}

static struct {
    uint32_t seen_half_done, overtaken;
} moments;

static void take_the_second(void)
{
    poke64(hook.file, limit_at(1), 7 * GIB);
}

/* Also changes the first one again, if that has been stored already. */
static void take_both(void)
{
    if (peek64(hook.file, limit_at(0)) == 5 * GIB) {
        moments.seen_half_done++;
        poke64(hook.file, limit_at(0), 9 * GIB);
    }
}

/* Where a compare-and-set loses halfway, the devices before it are put back. */
static void test_what_loses_halfway_is_undone(struct region_file *file)
{
    name_third_device(file);
    hr_region *region = open_or_fail(file->path, HR_WRITE);
    struct hr_edit edits[HR_EDITS_MAX];
    uint32_t conflicts = 0, after_checks = 0, at = 0;
    for (bool reached = true; reached && at < MOST_LOADS; at++) {
        reset_limits();
        edits[0] = (struct hr_edit){.kind = HR_MEMORY,
                                    .device = HR_ALL_DEVICES,
                                    .flags = HR_EXPECT,
                                    .value = 5 * GIB,
                                    .expected = 4 * GIB};
        const int code = edit_at(region, edits, 1, at, take_the_second);
        reached = hook.loads > at;
        if (!reached) {
            CHECK_EQ(code, DEVICES);
            break;
        }
        CHECK_EQ(code, HR_ECONFLICT);
        CHECK_EQ(call_error.device, 1);
        CHECK_EQ(call_error.found, 7 * GIB);
        CHECK_EQ(call_error.wanted, 4 * GIB);
        CHECK_EQ(peek64(file, limit_at(0)), 4 * GIB);
        CHECK_EQ(peek64(file, limit_at(1)), 7 * GIB);
        CHECK_EQ(peek64(file, limit_at(2)), 4 * GIB);
        conflicts++;
        /* Its own check had passed, so the store of the first one was made and undone. */
        after_checks += edits[2].before == 4 * GIB;
    }
    CHECK(conflicts > 0 && after_checks > 0 && at < MOST_LOADS);
    close_and_free(region);
}

static void take_the_second_then_both(void)
{
    /* Before the second one's store; the call looks at it once more, and then comes the next. */
    if (moments.overtaken++ == 0) {
        take_the_second();
        hook.at = hook.loads;
    } else if (peek64(hook.file, limit_at(0)) != 5 * GIB) {
        hook.at = hook.loads;
    } else {
        take_both();
    }
}

/* What somebody else has stored since is not put back. */
static void test_undo_takes_back_its_own_only(struct region_file *file)
{
    name_third_device(file);
    hr_region *region = open_or_fail(file->path, HR_WRITE);
    struct hr_edit edits[HR_EDITS_MAX];
    moments.seen_half_done = 0;
    for (uint32_t at = 0; at < MOST_LOADS; at++) {
        reset_limits();
        moments.overtaken = 0;
        const uint32_t seen = moments.seen_half_done;
        edits[0] = (struct hr_edit){.kind = HR_MEMORY,
                                    .device = HR_ALL_DEVICES,
                                    .flags = HR_EXPECT,
                                    .value = 5 * GIB,
                                    .expected = 4 * GIB};
        const int code = edit_at(region, edits, 1, at, take_the_second_then_both);
        if (moments.overtaken == 0)
            break;
        CHECK_EQ(code, HR_ECONFLICT);
        const bool half_done = moments.seen_half_done > seen;
        CHECK_EQ(peek64(file, limit_at(0)), half_done ? 9 * GIB : 4 * GIB);
        CHECK_EQ(peek64(file, limit_at(1)), 7 * GIB);
        CHECK_EQ(peek64(file, limit_at(2)), 4 * GIB);
    }
    CHECK(moments.seen_half_done > 0);
    close_and_free(region);
}

static void halve(void)
{
    poke64(hook.file, limit_at(0), 2 * GIB);
}

/* A percentage is of what it replaces, whenever that came to stand there. */
static void test_a_percentage_is_of_what_it_replaces(struct region_file *file)
{
    name_third_device(file);
    hr_region *region = open_or_fail(file->path, HR_WRITE);
    struct hr_edit edits[HR_EDITS_MAX];
    for (uint32_t at = 0; at < MOST_LOADS; at++) {
        reset_limits();
        edits[0] = (struct hr_edit){.kind = HR_MEMORY, .flags = HR_PERCENT, .value = 50};
        CHECK_EQ(edit_at(region, edits, 1, at, halve), 1);
        if (hook.loads <= at)
            break;
        CHECK_EQ(edits[0].before, 2 * GIB);
        CHECK_EQ(peek64(file, limit_at(0)), GIB);
    }
    CHECK_EQ(peek64(file, limit_at(0)), 2 * GIB);
    close_and_free(region);
}

static void lift_sm_limit(void)
{
    poke64(hook.file, hook.file->layout->sm_limit, 100);
}

/* A level becomes a new limit where somebody lifts the old one just then. */
static void test_a_limit_lifted_meanwhile_is_judged_again(struct region_file *file)
{
    name_third_device(file);
    fill_slot(file, 0, 100, 1, 0);
    poke32(file, file->layout->proc_num, 1);
    hr_region *region = open_or_fail(file->path, HR_WRITE);
    struct hr_edit edits[HR_EDITS_MAX];
    uint32_t at = 0;
    for (; at < MOST_LOADS; at++) {
        poke64(file, file->layout->sm_limit, 50);
        edits[0] = (struct hr_edit){.kind = HR_SM, .value = 30};
        const int code = edit_at(region, edits, 1, at, lift_sm_limit);
        if (hook.loads <= at)
            break;
        CHECK_EQ(code, HR_EUNWATCHED);
        CHECK_EQ(peek64(file, file->layout->sm_limit), 100);
    }
    CHECK(at > 0 && at < MOST_LOADS);
    close_and_free(region);
}

static uint64_t next_value;

static void write_another(void)
{
    poke64(hook.file, limit_at(0), ++next_value);
    hook.at = hook.loads; /* and before the next load, too */
}

/* Where others write without end, an edit gives up. */
static void test_no_edit_tries_for_ever(struct region_file *file)
{
    name_third_device(file);
    hr_region *region = open_or_fail(file->path, HR_WRITE);
    struct hr_edit edits[HR_EDITS_MAX];
    next_value = GIB;
    edits[0] = (struct hr_edit){.kind = HR_MEMORY, .value = 8 * GIB};
    /* After the value, each try also loads what is used: the writer comes before that, too. */
    CHECK_EQ(edit_at(region, edits, 1, 0, write_another), HR_ECONFLICT);
    CHECK_EQ(peek64(file, limit_at(0)), next_value);
    close_and_free(region);
}

int main(void)
{
    RUN_IN(HR_V1_2, test_what_loses_halfway_is_undone);
    RUN_IN(HR_V1_2, test_undo_takes_back_its_own_only);
    RUN_IN(HR_V1_2, test_a_percentage_is_of_what_it_replaces);
    RUN_IN(HR_UNVERSIONED, test_a_limit_lifted_meanwhile_is_judged_again);
    RUN_IN(HR_V1_2, test_no_edit_tries_for_ever);
    return check_report("test_edit_races");
}
