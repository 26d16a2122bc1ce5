/*
 * What others do between two stores of ours to the slot table: a child stops at a
 * test point, something happens, and it goes on.
 */
#include "check.h"
#include "region_file.h"
#include "region.h"
#include "stopped_child.h"
#include "slots.h"

enum { DEAD = (1 << 22) + 1, DATA = 16, TOTAL = 32 };

static int attach(hr_region *region)
{
    return hr_attach(region, ONE_SECOND, &call_error);
}

static int attach_and_charge(hr_region *region)
{
    int code = hr_attach(region, ONE_SECOND, &call_error);
    return code == HR_OK ? hr_charge(region, 0, HR_DATA, 1000, 0, ONE_SECOND, &call_error) : code;
}

static int attach_and_detach(hr_region *region)
{
    int code = hr_attach(region, ONE_SECOND, &call_error);
    return code == HR_OK ? hr_detach(region, 0, ONE_SECOND, &call_error) : code;
}

static int32_t pid_in(const struct region_file *file, uint32_t slot)
{
    return (int32_t)peek32(file, slot_at(file, slot, file->layout->slot_pid));
}

static uint64_t total_in(const struct region_file *file, uint32_t slot)
{
    return peek64(file, slot_at(file, slot, file->layout->slot_used) + TOTAL);
}

static uint32_t count_of(const struct region_file *file)
{
    return peek32(file, file->layout->proc_num);
}

/* As libvgpu does beside the lock when it refuses an allocation. */
static void remove_slot(const struct region_file *file, uint32_t hole)
{
    uint32_t last = count_of(file) - 1;
    poke32(file, file->layout->proc_num, last);
    if (hole != last)
        memcpy(file->bytes + slot_at(file, hole, 0), file->bytes + slot_at(file, last, 0),
               file->layout->slot_stride);
}

/* Three slots: a dead process's, and those of two others, which hold something. */
static void fill_three(const struct region_file *file)
{
    for (uint32_t slot = 0; slot < 3; slot++) {
        poke32(file, slot_at(file, slot, file->layout->slot_pid), DEAD + slot);
        poke32(file, slot_at(file, slot, file->layout->slot_status), 1);
        poke64(file, slot_at(file, slot, file->layout->slot_used) + TOTAL, 100 * slot);
    }
    poke32(file, file->layout->proc_num, 3);
}

static void test_attaching_does_not_write_over_a_lowered_number(struct region_file *file)
{
    fill_three(file);
    pid_t pid = start(file, attach, HR_AT_ATTACH_PID_STORED);
    remove_slot(file, 0);
    finish(pid);
    CHECK_EQ(*result, HR_OK);
    CHECK_EQ(count_of(file), 3);
    CHECK_EQ(pid_in(file, 0), DEAD + 2);
    CHECK_EQ(pid_in(file, 1), DEAD + 1);
    CHECK_EQ(pid_in(file, 2), pid);
    CHECK(pid_in(file, 3) == 0);
    end(pid);
}

static void test_detaching_does_not_write_over_a_lowered_number(struct region_file *file)
{
    fill_three(file);
    pid_t pid = start(file, attach_and_detach, HR_AT_REMOVE_USAGE_CLEARED);
    CHECK_EQ(pid_in(file, 3), pid);
    remove_slot(file, 0);
    finish(pid);
    CHECK_EQ(*result, HR_OK);
    CHECK_EQ(count_of(file), 3);
    CHECK_EQ(pid_in(file, 1), DEAD + 1);
    CHECK_EQ(pid_in(file, 2), DEAD + 2);
    end(pid);
}

static int reap(hr_region *region)
{
    static struct hr_slot_result reaped[HR_SLOTS];
    return hr_reap(region, NULL, NULL, 0, 0, ONE_SECOND, reaped, &call_error);
}

static void test_a_slot_that_comes_while_others_are_reaped_stays(struct region_file *file)
{
    fill_three(file);
    pid_t pid = start(file, reap, HR_AT_REMOVE_USAGE_CLEARED);
    poke32(file, slot_at(file, 3, file->layout->slot_pid), (uint32_t)pid);
    poke32(file, file->layout->proc_num, 4);
    finish(pid);
    CHECK_EQ(*result, 2);
    CHECK_EQ(count_of(file), 4);
    CHECK_EQ(pid_in(file, 3), pid);
    for (uint32_t slot = 0; slot < 3; slot++)
        CHECK_EQ(total_in(file, slot), 0);
    end(pid);
}

/* A waiter of libvgpu, whose time is up, takes the lock of one that was stopped. */
static void take_away(const struct region_file *file)
{
    poke64(file, file->layout->owner_pid, 0);
    poke32(file, file->layout->sem, 1);
}

/* No process of libvgpu can start at the same time. */
static void fill_all(const struct region_file *file)
{
    for (uint32_t slot = 0; slot < HR_SLOTS; slot++) {
        poke32(file, slot_at(file, slot, file->layout->slot_pid), DEAD + slot);
        poke64(file, slot_at(file, slot, file->layout->slot_used) + TOTAL, 100);
    }
    poke32(file, file->layout->proc_num, HR_SLOTS);
}

static void test_a_full_table_of_dead_processes_survives_a_kill_of_the_reaper(void)
{
    const int points[] = {HR_AT_REMOVE_USAGE_CLEARED, HR_AT_REMOVE_COUNT_STORED};
    for (uint32_t id = HR_V1_1; id < HR_LAYOUTS; id++) {
        for (size_t i = 0; i < sizeof points / sizeof points[0]; i++) {
            struct region_file file;
            region_file_make(&file, id);
            fill_all(&file);
            end(start(&file, reap, points[i]));
            CHECK_EQ(count_of(&file), i == 0 ? HR_SLOTS : 0);
            hr_region *region = open_or_fail(file.path, HR_WRITE);
            CHECK_EQ(hr_lock(region, ONE_SECOND, &call_error), HR_OK);
            CHECK_EQ(hr_unlock(region, &call_error), HR_OK);
            CHECK_EQ(reap(region), i == 0 ? HR_SLOTS - 1 : 0);
            CHECK_EQ(count_of(&file), 0);
            CHECK_EQ(attach(region), HR_OK);
            CHECK_EQ(count_of(&file), 1);
            CHECK_EQ(pid_in(&file, 0), getpid());
            close_and_free(region);
            region_file_remove(&file);
        }
    }
}

/* A newcomer of libvgpu, to which the lock of the stopped reaper has gone. */
static void test_a_newcomer_in_an_emptied_table_keeps_its_slot(struct region_file *file)
{
    fill_all(file);
    pid_t pid = start(file, reap, HR_AT_REMOVE_COUNT_STORED);
    take_away(file);
    poke64(file, slot_at(file, 0, file->layout->slot_used) + TOTAL, 5);
    poke32(file, slot_at(file, 0, file->layout->slot_pid), (uint32_t)pid);
    poke32(file, file->layout->proc_num, 1);
    finish(pid);
    CHECK_EQ(count_of(file), 1);
    CHECK_EQ(pid_in(file, 0), pid);
    CHECK_EQ(total_in(file, 0), 5);
    end(pid);
}

static void test_what_was_charged_is_no_failure_though_the_lock_was_lost(struct region_file *file)
{
    fill_three(file);
    pid_t pid = start(file, attach_and_charge, HR_AT_ACCOUNT_KIND_STORED);
    if (file->layout->slot_seqlock == HR_ABSENT)
        take_away(file);
    finish(pid);
    CHECK_EQ(*result, HR_OK);
    CHECK_EQ(total_in(file, 3), 1000);
    CHECK_EQ(peek64(file, slot_at(file, 3, file->layout->slot_used) + DATA), 1000);
    CHECK_EQ(peek32(file, file->layout->sem), 1);
    end(pid);
}

static void test_who_has_attached_or_detached_has_though_the_lock_was_lost(struct region_file *file)
{
    fill_three(file);
    pid_t pid = start(file, attach, HR_AT_ATTACH_COUNT_STORED);
    take_away(file);
    finish(pid);
    CHECK_EQ(*result, HR_OK);
    CHECK_EQ(pid_in(file, 3), pid);
    end(pid);
    poke32(file, file->layout->proc_num, 3);
    pid = start(file, attach_and_detach, HR_AT_REMOVE_COUNT_STORED);
    take_away(file);
    finish(pid);
    CHECK_EQ(*result, HR_OK);
    CHECK_EQ(count_of(file), 3);
    end(pid);
}

struct clear_call {
    const hr_region *region;
    const struct hr_table_view *view;
};

static int clear_copies(void *argument)
{
    struct clear_call *call = argument;
    return hr_clear_frozen_copies(call->region, call->view, 2, 2, false);
}

/* A process that ends by itself stores pid 0 in the slot that it was seen working in.  Its copy
 * goes all the same, and what another one that is ending still has to give back stays. */
static void test_copies_are_those_of_the_process_that_was_seen(struct region_file *file)
{
    fill_three(file);
    poke64(file, slot_at(file, 0, file->layout->slot_used) + TOTAL, 5);
    poke32(file, slot_at(file, 1, file->layout->slot_pid), 0);
    static struct hr_table_view view;
    for (uint32_t slot = 0; slot < 3; slot++)
        view.seen[slot].pid = pid_in(file, slot);
    view.seen[2].pid = view.seen[0].pid;
    poke32(file, slot_at(file, 2, file->layout->slot_pid), 0);

    hr_region *region = open_or_fail(file->path, HR_WRITE);
    struct clear_call call = {.region = region, .view = &view};
    CHECK_EQ(hr_run_write(region, clear_copies, &call), 1);
    CHECK_EQ(total_in(file, 0), 0);
    CHECK_EQ(pid_in(file, 0), DEAD);
    CHECK_EQ(total_in(file, 1), 100);
    CHECK_EQ(total_in(file, 2), 200);
    close_and_free(region);
}

int main(void)
{
    share_result();
    RUN_FROM(HR_V1_1, test_attaching_does_not_write_over_a_lowered_number);
    RUN_FROM(HR_V1_1, test_detaching_does_not_write_over_a_lowered_number);
    RUN_FROM(HR_V1_1, test_a_slot_that_comes_while_others_are_reaped_stays);
    RUN(test_a_full_table_of_dead_processes_survives_a_kill_of_the_reaper);
    RUN_FROM(HR_V1_1, test_a_newcomer_in_an_emptied_table_keeps_its_slot);
    RUN_FROM(HR_V1_1, test_what_was_charged_is_no_failure_though_the_lock_was_lost);
    RUN_FROM(HR_V1_1, test_who_has_attached_or_detached_has_though_the_lock_was_lost);
    RUN_FROM(HR_V1_1, test_copies_are_those_of_the_process_that_was_seen);
    return check_report("test_slot_races");
}
