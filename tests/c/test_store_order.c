/*
 * What others may do, or see, between two loads of a writer: each of its loads calls back
 * (load_hook.h).
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "check.h"
#include "region.h"
#include "region_file.h"
#include "slots.h"

/* A pid that no process has: above every pid_max, below the signatures of this library. */
#define DEAD 5000001
#define LIVE_NUMBER (HR_FOREIGN_OWNER + 99 * HR_TURNS)

static uint32_t loads, act_at;
static void (*act)(const struct region_file *file);
static const struct region_file *acted_file;

int hooked_clock_gettime(clockid_t clock, struct timespec *now)
{
    return (int)syscall(SYS_clock_gettime, clock, now);
}

void before_load(void)
{
    /* The act's own loads are none of the writer's. */
    static bool is_acting;
    if (is_acting)
        return;
    is_acting = true;
    if (act != NULL && loads == act_at)
        act(acted_file);
    is_acting = false;
    loads++;
}

/* ---- Recovery ------------------------------------------------------------------------ */

static bool has_taken;

/* Another writer takes over from the dead one: it finds the signature that it has judged. */
static void take_over(const struct region_file *file)
{
    if (peek64(file, file->layout->owner_pid) != DEAD)
        return;
    poke64(file, file->layout->owner_pid, LIVE_NUMBER);
    has_taken = true;
}

/* A /proc of the first pid namespace with nobody in it but its first process. */
static void make_proc(const char *path)
{
    char command[1024];
    const int length = snprintf(command, sizeof command,
                                "cd '%s' && mkdir -p 1/ns && ln -s '%s' 1/ns/pid && "
                                ": >1/maps && printf 'Name:\\tx\\nNSpid:\\t1\\n' >1/status",
                                path, hr_initial_pid_namespace());
    NEED(length < (int)sizeof command && system(command) == 0);
}

static void remove_proc(const char *path)
{
    char command[512];
    snprintf(command, sizeof command, "rm -r '%s'", path);
    NEED(system(command) == 0);
}

static int lock_live_byte(const struct region_file *file)
{
    struct flock byte = {.l_type = F_WRLCK,
                         .l_whence = SEEK_SET,
                         .l_start = HR_NUMBER_BYTE + 99 * HR_TURNS,
                         .l_len = 1};
    int fd = open(file->path, O_RDWR | O_CLOEXEC);
    NEED(fd >= 0 && fcntl(fd, F_OFD_SETLK, &byte) == 0);
    return fd;
}

/* Whoever takes over from the dead one at any moment of a recovery is not robbed by it. */
static void test_a_lock_that_changes_hands_is_not_robbed(void)
{
    char proc[DIRECTORY_ROOM];
    make_directory(proc);
    make_proc(proc);
    for (uint32_t id = HR_V1_1; id < HR_LAYOUTS; id++) {
        uint32_t all = 1, robbers = 0;
        for (act_at = 0; act_at < all; act_at++) {
            struct region_file file;
            region_file_make(&file, id);
            poke32(&file, file.layout->sem, 0);
            poke64(&file, file.layout->owner_pid, DEAD);
            int live = lock_live_byte(&file);
            hr_region *region = open_or_fail(file.path, HR_WRITE);
            struct hr_recovery progress = {0};
            acted_file = &file;
            has_taken = false;
            loads = 0;
            act = take_over;
            int code = hr_recover_lock(region, proc, 0, &progress, &call_error);
            act = NULL;
            if (!has_taken)
                CHECK_EQ(code, HR_OK);
            else
                CHECK_EQ(peek64(&file, file.layout->owner_pid), LIVE_NUMBER);
            robbers += has_taken;
            if (loads > all)
                all = loads;
            close(live);
            close_and_free(region);
            region_file_remove(&file);
        }
        CHECK(robbers > 0 && robbers < all);
    }
    remove_proc(proc);
}

/* ---- Emptying a slot ------------------------------------------------------------------- */

/* A load of the seqlock comes right before it is made even. */
static void check_emptied(const struct region_file *file)
{
    const struct hr_layout *layout = file->layout;
    for (uint32_t device = 0; device < HR_DEVICES; device++) {
        const size_t used = slot_at(file, 0, layout->slot_used) + device * layout->slot_used_stride;
        for (uint32_t field = 0; field < 5; field++)
            CHECK_EQ(peek64(file, used + field * 8), 0);
    }
}

typedef void emptying(const hr_region *region, int32_t index);

struct work {
    const hr_region *region;
    emptying *empty;
};

static int watch_emptying(void *argument)
{
    const struct work *work = argument;
    loads = act_at = 0;
    act = check_emptied;
    work->empty(work->region, 0);
    act = NULL;
    /* One load: what a second one finds even was made so before. */
    CHECK_EQ(loads, 1);
    return HR_OK;
}

static void test_a_seqlock_is_made_even_after_all_else(void)
{
    emptying *const ways[] = {hr_empty_slot, hr_clear_usage};
    for (uint32_t id = HR_V1_1; id < HR_LAYOUTS; id++) {
        if (hr_layouts[id].slot_seqlock == HR_ABSENT)
            continue;
        for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
            struct region_file file;
            region_file_make(&file, id);
            fill_slot(&file, 0, 100, 1, HR_DEVICES);
            poke64(&file, slot_at(&file, 0, file.layout->slot_seqlock), 11);
            hr_region *region = open_or_fail(file.path, HR_WRITE);
            struct work work = {region, ways[i]};
            acted_file = &file;
            CHECK_EQ(hr_run_write(region, watch_emptying, &work), HR_OK);
            CHECK_EQ(peek64(&file, slot_at(&file, 0, file.layout->slot_seqlock)), 12);
            close_and_free(region);
            region_file_remove(&file);
        }
    }
}

int main(void)
{
    RUN(test_a_lock_that_changes_hands_is_not_robbed);
    RUN(test_a_seqlock_is_made_even_after_all_else);
    return check_report("test_store_order");
}
