/* What is read of processes is theirs, whatever they are called, and an error where there is none.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "process_stats.h"

static char directory[4096];

/* A /proc of our own, with a stat of one process; without a text an empty file. */
static int made(uint32_t pid, const char *text)
{
    char path[64];
    snprintf(path, sizeof path, "%u", pid);
    int proc = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    NEED(proc >= 0 && mkdirat(proc, path, 0700) == 0);
    snprintf(path, sizeof path, "%u/stat", pid);
    int fd = openat(proc, path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    NEED(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
    return proc;
}

static void removed(int proc, uint32_t pid)
{
    char path[64];
    snprintf(path, sizeof path, "%u/stat", pid);
    NEED(unlinkat(proc, path, 0) == 0);
    snprintf(path, sizeof path, "%u", pid);
    NEED(unlinkat(proc, path, AT_REMOVEDIR) == 0);
    close(proc);
}

static struct hr_process_stat of(uint32_t pid, const char *text)
{
    struct hr_process_stat found;
    int proc = made(pid, text);
    hr_read_process_stats(proc, &pid, 1, &found);
    removed(proc, pid);
    return found;
}

#define BEHIND_THE_NAME                                                                            \
    " S 4 5 6 7 -1 9 10 11 12 13 14 15 16 17 -18 19 20 21 18446744073709551615 23 24 25 26 27 28 " \
    "29 30\n"

static void test_the_fields_are_those_of_proc_5(void)
{
    static const char *const names[] = {"(a)", "(a b)", "(a) S 1 2 3)", "(\n)", "()"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char text[512];
        snprintf(text, sizeof text, "4294967295 %s" BEHIND_THE_NAME, names[i]);
        struct hr_process_stat found = of(UINT32_MAX, text);
        CHECK_EQ(found.error, 0);
        CHECK_EQ(found.minor_faults, 10);
        CHECK_EQ(found.major_faults, 12);
        CHECK_EQ(found.start_time_ticks, UINT64_MAX);
        CHECK_EQ(found.address_space_bytes, 23);
        CHECK_EQ(found.stack, 28);
    }
}

static void test_what_is_no_line_of_stat_is_an_error(void)
{
    static const char *const texts[] = {"", "1", "1 (a", "1 (a) S", "1 (a) S 4 5 6 7 8 9 10 11 12"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        CHECK_EQ(of(7, texts[i]).error, EBADMSG);
}

/* In a directory that is no /proc: nobody writes to it. */
static void test_a_stat_that_is_a_pipe_is_not_waited_for(void)
{
    const uint32_t pid = 7;
    struct hr_process_stat found;
    int proc = made(pid, "");
    NEED(unlinkat(proc, "7/stat", 0) == 0 && mkfifoat(proc, "7/stat", 0600) == 0);
    hr_read_process_stats(proc, &pid, 1, &found);
    CHECK_EQ(found.error, EBADMSG);
    CHECK_EQ(hr_read_start_time(proc, pid), 0);
    removed(proc, pid);
}

static void test_a_start_is_that_of_the_stat(void)
{
    char text[512];
    snprintf(text, sizeof text, "7 (1 (a)\n) S 1 2)" BEHIND_THE_NAME);
    int proc = made(7, text);
    CHECK_EQ(hr_read_start_time(proc, 7), UINT64_MAX);
    CHECK_EQ(hr_read_start_time(proc, 8), 0);
    removed(proc, 7);
    proc = made(7, "7 (a) S 1 2");
    CHECK_EQ(hr_read_start_time(proc, 7), 0);
    removed(proc, 7);
}

static void test_real_ones(void)
{
    int ends[2];
    char byte;
    NEED(pipe(ends) == 0);
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        prctl(PR_SET_NAME, ") S 1 (");
        char *volatile pages = malloc(1 << 20);
        if (pages != NULL)
            memset(pages, 1, 1 << 20);
        if (write(ends[1], "", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    NEED(read(ends[0], &byte, 1) == 1);
    int proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    NEED(proc >= 0);
    /* Between them one that cannot be. */
    uint32_t pids[] = {(uint32_t)getpid(), UINT32_MAX, (uint32_t)child};
    struct hr_process_stat found[3], again[3];
    hr_read_process_stats(proc, pids, 3, found);
    CHECK_EQ(found[0].error, 0);
    CHECK_EQ(found[1].error, ENOENT);
    CHECK_EQ(found[2].error, 0);
    CHECK(found[0].start_time_ticks > 0);
    CHECK(found[0].start_time_ticks <= found[2].start_time_ticks);
    CHECK(found[2].address_space_bytes > 1 << 20);
    /* At least one for each of its pages, but for huge ones. */
    CHECK(found[2].minor_faults > 0);
    hr_read_process_stats(proc, pids, 3, again);
    CHECK_EQ(again[2].start_time_ticks, found[2].start_time_ticks);
    CHECK(again[2].minor_faults >= found[2].minor_faults);
    NEED(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    hr_read_process_stats(proc, pids, 3, found);
    CHECK_EQ(found[2].error, ENOENT);
    close(proc);
    close(ends[0]);
    close(ends[1]);
}

int main(void)
{
    const char *parent = getenv("TMPDIR");
    snprintf(directory, sizeof directory, "%s/hr-test-XXXXXX", parent != NULL ? parent : "/tmp");
    NEED(mkdtemp(directory) != NULL);
    RUN(test_the_fields_are_those_of_proc_5);
    RUN(test_what_is_no_line_of_stat_is_an_error);
    RUN(test_a_stat_that_is_a_pipe_is_not_waited_for);
    RUN(test_a_start_is_that_of_the_stat);
    RUN(test_real_ones);
    NEED(rmdir(directory) == 0);
    return check_report("test_process_stats");
}
