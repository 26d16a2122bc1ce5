/*
 * A search for the owners of slots with pid 0 that is cut short again and again, in a /proc of the
 * test's own: a call is given so many looks at its budget instead of time.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include "check.h"
#include "handle.h"
#include "region.h"
#include "process_stats.h"
#include "region_file.h"
#include "search_round.h"
#include "testpoint.h"

#define ONE_SECOND UINT64_C(1000000000)
enum {
    WORKER = 600,
    FIRST = 1000,
    CROWD = 20,
    TOTAL = 32,
    /* Each entry of the directory is one look: processes, the first one, and two dots. */
    LISTING = CROWD + 4,
    LOOKS_FOR_ONE = 6,
    LOOKS = LISTING + 20,
    MOST_CALLS = 2 * CROWD
};

static struct region_file file;
static hr_region *region;
static char proc[sizeof file.directory + 8];
static struct hr_slot_repair repaired[HR_SLOTS];
static struct hr_reap reaped[HR_SLOTS];

/* ---- Processes ----------------------------------------------------------------------- */

static const char *path_in_proc(int pid, const char *name)
{
    static char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%d%s", proc, pid, name);
    return path;
}

static void write_in_proc(int pid, const char *name, const char *text)
{
    FILE *stream = fopen(path_in_proc(pid, name), "we");
    NEED(stream != NULL && fputs(text, stream) >= 0 && fclose(stream) == 0);
}

static void add_process(int pid, const char *maps)
{
    char text[256];
    NEED(mkdir(path_in_proc(pid, ""), 0700) == 0);
    snprintf(text, sizeof text, "Name:\tx\nNSpid:\t%d\n", pid);
    write_in_proc(pid, "/status", text);
    snprintf(text, sizeof text, "%d (x) S 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 100 0 0 0 0 0 0\n",
             pid);
    write_in_proc(pid, "/stat", text);
    write_in_proc(pid, "/maps", maps);
}

/* As this process maps it, which is how the file is called in everybody's maps. */
static const char *maps_of_region(void)
{
    static char line[PATH_MAX];
    FILE *maps = fopen("/proc/self/maps", "re");
    NEED(maps != NULL);
    bool found = false;
    while (!found && fgets(line, sizeof line, maps) != NULL)
        found = strstr(line, file.path) != NULL && strstr(line, " rw-s ") != NULL;
    fclose(maps);
    NEED(found);
    return line;
}

static void make_proc(void)
{
    static const char line[] = "7f0000000000-7f0000001000 rw-s 00000000 00:01 1 /dev/nvidia0\n";
    static char long_maps[100 * sizeof line];
    long_maps[0] = '\0';
    for (int i = 0; i < 100; i++)
        strcat(long_maps, line);
    snprintf(proc, sizeof proc, "%s/proc", file.directory);
    NEED(mkdir(proc, 0700) == 0);
    add_process(1, "");
    NEED(mkdir(path_in_proc(1, "/ns"), 0700) == 0);
    NEED(symlink("pid:[4026531836]", path_in_proc(1, "/ns/pid")) == 0);
    for (int pid = FIRST; pid < FIRST + CROWD; pid++)
        add_process(pid, long_maps);
    add_process(WORKER, maps_of_region());
}

static void remove_process(int pid)
{
    unlink(path_in_proc(pid, "/status"));
    unlink(path_in_proc(pid, "/stat"));
    unlink(path_in_proc(pid, "/maps"));
    rmdir(path_in_proc(pid, ""));
}

static void remove_proc(void)
{
    unlink(path_in_proc(1, "/ns/pid"));
    rmdir(path_in_proc(1, "/ns"));
    remove_process(1);
    remove_process(WORKER);
    for (int pid = FIRST; pid < FIRST + CROWD; pid++)
        remove_process(pid);
    rmdir(proc);
}

/* ---- Slots --------------------------------------------------------------------------- */

static void put_slot(uint32_t slot, int pid, uint64_t bytes, uint64_t seqlock)
{
    poke32(&file, slot_at(&file, slot, file.layout->slot_pid), (uint32_t)pid);
    poke64(&file, slot_at(&file, slot, file.layout->slot_used) + TOTAL, bytes);
    poke64(&file, slot_at(&file, slot, file.layout->slot_seqlock), seqlock);
}

static uint64_t total_in(uint32_t slot)
{
    return peek64(&file, slot_at(&file, slot, file.layout->slot_used) + TOTAL);
}

static uint32_t count(void)
{
    return peek32(&file, file.layout->proc_num);
}

/* Where the worker accounts, from a handler: a signal comes within each nap, however busy the
 * machine is. */
static uint32_t working_slot;

static void account(int number)
{
    (void)number;
    const size_t at = slot_at(&file, working_slot, file.layout->slot_seqlock);
    poke64(&file, at, peek64(&file, at) + 2);
}

static void open_region(uint32_t working_in)
{
    const struct itimerval timer = {.it_interval = {.tv_usec = 1000}, .it_value.tv_usec = 1000};
    struct sigaction action = {.sa_handler = account, .sa_flags = SA_RESTART};
    put_slot(working_in, WORKER, 300, 10);
    region = open_or_fail(file.path, HR_WRITE);
    working_slot = working_in;
    NEED(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

static void begin(uint32_t working_in)
{
    region_file_make(&file, HR_V1_2);
    make_proc();
    open_region(working_in);
}

static void stop_accounting(void)
{
    const struct itimerval none = {.it_value.tv_usec = 0};
    NEED(setitimer(ITIMER_REAL, &none, NULL) == 0);
}

static void end(void)
{
    stop_accounting();
    hr_testpoint_looks_left = -1;
    close_and_free(region);
    remove_proc();
    region_file_remove(&file);
}

/* What is reported of the worker, 0: nothing; nobody else is. */
static uint32_t repair(int looks)
{
    hr_testpoint_looks_left = looks;
    int found = hr_repair_slots(region, proc, 0, ONE_SECOND, repaired);
    CHECK(found == 0 || found == 1);
    CHECK(found != 1 || repaired[0].pid == WORKER);
    return found == 1 ? repaired[0].what : 0;
}

static int repair_until_judged(uint32_t *what)
{
    int calls = 0;
    while ((*what = repair(LOOKS)) == HR_REPAIR_CUT_SHORT && calls < MOST_CALLS)
        calls++;
    return calls;
}

/* ---- Tests --------------------------------------------------------------------------- */

static void a_repair_comes_to_its_end_over_several_calls(void)
{
    uint32_t what;
    begin(2);
    put_slot(0, WORKER, 100, 4);
    put_slot(1, 0, GIB, 2);
    poke32(&file, file.layout->proc_num, 1);
    CHECK_EQ(repair(LOOKS), HR_REPAIR_CUT_SHORT);
    CHECK_EQ(count(), 1);
    CHECK_EQ(total_in(1), GIB);
    CHECK(repair_until_judged(&what) > 1);
    CHECK_EQ(what, HR_REPAIR_DONE);
    CHECK_EQ(count(), 3);
    CHECK_EQ(total_in(0), 0);
    CHECK_EQ(total_in(1), 0);
    CHECK_EQ(total_in(2), 300);
    end();
}

static void a_slot_with_a_pid_does_not_wait_for_those_without(void)
{
    begin(1);
    put_slot(0, WORKER, 100, 4);
    put_slot(2, 0, GIB, 2);
    poke32(&file, file.layout->proc_num, 1);
    CHECK_EQ(repair(LISTING + LOOKS_FOR_ONE), HR_REPAIR_DONE);
    CHECK_EQ(count(), 2);
    CHECK_EQ(total_in(0), 0);
    CHECK_EQ(total_in(2), GIB);
    end();
}

/* Neither somebody at work nor nobody: what it has behind the others, or twice, stays. */
static void a_process_that_was_not_reached_is_told_and_keeps_its_slots(void)
{
    for (uint32_t counting = 1; counting <= 2; counting++) {
        begin(1);
        put_slot(0, WORKER, 100, 4);
        poke32(&file, file.layout->proc_num, counting);
        CHECK_EQ(repair(LISTING), HR_REPAIR_CUT_SHORT);
        CHECK_EQ(count(), counting);
        CHECK_EQ(total_in(0), 100);
        CHECK_EQ(total_in(1), 300);
        CHECK_EQ(repair(-1), HR_REPAIR_DONE);
        CHECK_EQ(count(), 2);
        CHECK_EQ(total_in(0), 0);
        CHECK_EQ(total_in(1), 300);
        end();
    }
}

/* Of the crowd: it is looked at in the first call. */
static int first_listed(void)
{
    int pid = 0;
    DIR *directory = opendir(proc);
    NEED(directory != NULL);
    for (struct dirent *entry; pid < FIRST && (entry = readdir(directory)) != NULL;)
        pid = atoi(entry->d_name);
    closedir(directory);
    NEED(pid >= FIRST);
    return pid;
}

/* Its process may have been ruled out before it had mapped the file. */
static void a_slot_that_has_come_since_is_judged_by_a_search_of_its_own(void)
{
    char maps[2 * PATH_MAX];
    uint32_t what;
    begin(3);
    put_slot(0, WORKER, 100, 4);
    put_slot(1, 0, GIB, 2);
    poke32(&file, file.layout->proc_num, 1);
    CHECK_EQ(repair(LOOKS), HR_REPAIR_CUT_SHORT);
    put_slot(2, 0, GIB, 2);
    snprintf(maps, sizeof maps,
             "%s7f1000000000-7f1000001000 r-xp 00000000 00:01 2 /usr/local/vgpu/libvgpu.so\n",
             maps_of_region());
    write_in_proc(first_listed(), "/maps", maps);
    repair_until_judged(&what);
    CHECK_EQ(what, HR_REPAIR_LEFT);
    CHECK_EQ(count(), 1);
    CHECK_EQ(total_in(1), GIB);
    CHECK_EQ(total_in(2), GIB);
    end();
}

/* An odd seqlock says that it is giving back the last of its memory. */
static void a_process_that_is_about_to_end_keeps_its_slot_until_the_last_store(void)
{
    char maps[2 * PATH_MAX];
    begin(2);
    put_slot(0, WORKER, 100, 4);
    put_slot(1, 0, 0, 3);
    poke32(&file, file.layout->proc_num, 1);
    snprintf(maps, sizeof maps,
             "%s7f1000000000-7f1000001000 r-xp 00000000 00:01 2 /usr/local/vgpu/libvgpu.so\n",
             maps_of_region());
    write_in_proc(FIRST, "/maps", maps);
    CHECK_EQ(repair(-1), HR_REPAIR_LEFT);
    CHECK_EQ(count(), 1);
    put_slot(1, 0, 0, 4);
    CHECK_EQ(repair(-1), HR_REPAIR_DONE);
    CHECK_EQ(count(), 3);
    end();
}

static void a_process_that_counts_in_one_of_its_slots_is_not_said_to_count_twice(void)
{
    begin(HR_SLOTS - 1);
    put_slot(HR_SLOTS - 1, 0, 0, 2);
    put_slot(0, WORKER, 100, 4);
    put_slot(1, WORKER, 0, 4);
    poke32(&file, file.layout->proc_num, 2);
    CHECK_EQ(repair(-1), 0);
    put_slot(1, WORKER, 1, 4);
    CHECK_EQ(repair(-1), HR_REPAIR_LEFT);
    end();
}

/* A node's agent reaps and repairs by turns; one has nothing to do with the slots of the other. */
static void reaping_and_repairing_do_not_end_each_others_search(void)
{
    uint32_t what = 0;
    int calls = 0, freed = 0;
    begin(3);
    put_slot(0, 0, 0, 0);
    put_slot(1, WORKER, 100, 4);
    put_slot(2, 0, GIB, 2);
    poke32(&file, file.layout->proc_num, 2);
    while ((freed == 0 || what != HR_REPAIR_DONE) && calls++ < MOST_CALLS) {
        hr_testpoint_looks_left = LOOKS;
        freed += hr_reap(region, proc, NULL, 0, 0, ONE_SECOND, reaped);
        what = repair(LOOKS);
    }
    CHECK_EQ(freed, 1);
    CHECK_EQ(what, HR_REPAIR_DONE);
    CHECK_EQ(total_in(2), 0);
    end();
}

static void a_search_is_not_made_again_for_a_lock_that_was_not_had_in_time(void)
{
    begin(2);
    put_slot(0, WORKER, 100, 4);
    put_slot(1, 0, GIB, 2);
    poke32(&file, file.layout->proc_num, 1);
    hr_region *holder = open_or_fail(file.path, HR_WRITE);
    CHECK_EQ(hr_lock(holder, NULL, ONE_SECOND), HR_OK);
    hr_testpoint_looks_left = -1;
    CHECK_EQ(hr_repair_slots(region, proc, 0, 1, repaired), HR_ETIMEOUT);
    CHECK_EQ(hr_unlock(holder), HR_OK);
    close_and_free(holder);
    CHECK_EQ(repair(LOOKS), HR_REPAIR_DONE);
    end();
}

/* When it was made; 0 where that is not told. */
static uint64_t birth_of_file(void)
{
    uint64_t born_ns = 0;
#ifdef STATX_BTIME
    struct statx status;
    NEED(statx(file.fd, "", AT_EMPTY_PATH, STATX_BTIME, &status) == 0);
    if ((status.stx_mask & STATX_BTIME) != 0)
        born_ns = (uint64_t)status.stx_btime.tv_sec * ONE_SECOND + status.stx_btime.tv_nsec;
#endif
    return born_ns;
}

/* A process that is ruled out for the one does not map it, and may map the other. */
static void a_round_is_not_another_files_that_has_the_inode_number(void)
{
    struct hr_nameless_slots slots = {.count = 0};
    begin(0);
    CHECK_EQ(region->born_ns, birth_of_file());
    hr_note_nameless(region, 1, &slots);
    const int directory = open(proc, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    NEED(directory >= 0);
    const uint64_t start = hr_read_start_time(directory, 1000);
    for (uint64_t later_ns = 0; later_ns < 2; later_ns++) {
        region->born_ns += later_ns;
        struct hr_round *round = hr_take_round(region, proc, &slots, &slots);
        NEED(round != NULL);
        CHECK(!hr_is_ruled_out(round, directory, 1000));
        hr_note_seen(round, 1000, start, HR_MAPS_NOT);
        hr_end_round(round, true);
        round = hr_take_round(region, proc, &slots, &slots);
        NEED(round != NULL);
        CHECK(hr_is_ruled_out(round, directory, 1000));
        hr_end_round(round, true);
    }
    close(directory);
    end();
}

static uint64_t inode_of_file(void)
{
    struct stat status;
    NEED(fstat(file.fd, &status) == 0);
    return status.st_ino;
}

static void remake(uint32_t working_in)
{
    stop_accounting();
    close_and_free(region);
    region_file_remake(&file);
    open_region(working_in);
}

static void put_repair_beside_a_nameless_slot(void)
{
    put_slot(0, WORKER, 100, 4);
    put_slot(1, 0, GIB, 2);
    poke32(&file, file.layout->proc_num, 1);
}

/* Where nobody else has made a file in between, the new one has the number of the former. */
static void a_file_that_was_made_anew_is_searched_for_anew(void)
{
    char maps[2 * PATH_MAX];
    uint32_t what;
    uint64_t born_ns = 0;
    bool is_remade = false;
    for (int attempt = 0; attempt < 20 && !is_remade; attempt++) {
        begin(2);
        /* Until the clock of the file system has moved on, here and below. */
        while (birth_of_file() == born_ns && born_ns != 0)
            remake(2);
        put_repair_beside_a_nameless_slot();
        CHECK_EQ(repair(LOOKS), HR_REPAIR_CUT_SHORT);
        born_ns = birth_of_file();
        const uint64_t inode = inode_of_file();
        do
            remake(2);
        while (inode_of_file() == inode && birth_of_file() == born_ns && born_ns != 0);
        is_remade = inode_of_file() == inode && birth_of_file() != born_ns;
        if (is_remade) {
            put_repair_beside_a_nameless_slot();
            snprintf(maps, sizeof maps,
                     "%s7f1000000000-7f1000001000 r-xp 00000000 00:01 2 /usr/local/libvgpu.so\n",
                     maps_of_region());
            write_in_proc(first_listed(), "/maps", maps);
            repair_until_judged(&what);
            CHECK_EQ(what, HR_REPAIR_LEFT);
            CHECK_EQ(total_in(1), GIB);
        }
        end();
    }
    if (!is_remade)
        puts("test_search_rounds: no file has got the inode number of a removed one, or this file "
             "system tells no time of birth: not tried with real files");
}

int main(void)
{
    RUN(a_repair_comes_to_its_end_over_several_calls);
    RUN(a_slot_with_a_pid_does_not_wait_for_those_without);
    RUN(a_process_that_was_not_reached_is_told_and_keeps_its_slots);
    RUN(a_slot_that_has_come_since_is_judged_by_a_search_of_its_own);
    RUN(a_process_that_is_about_to_end_keeps_its_slot_until_the_last_store);
    RUN(a_process_that_counts_in_one_of_its_slots_is_not_said_to_count_twice);
    RUN(reaping_and_repairing_do_not_end_each_others_search);
    RUN(a_search_is_not_made_again_for_a_lock_that_was_not_had_in_time);
    RUN(a_round_is_not_another_files_that_has_the_inode_number);
    RUN(a_file_that_was_made_anew_is_searched_for_anew);
    return check_report("test_search_rounds");
}
