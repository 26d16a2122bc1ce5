/* SIGBUS in tests: pages that raise it, handlers that count it, and children to end by it. */
#ifndef HR_TEST_SIGBUS_H
#define HR_TEST_SIGBUS_H

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "internal.h"
#include "region_file.h"
#include "snapshot_view.h"

/* A mapping whose file has lost its pages: touching it raises SIGBUS. */
static inline volatile char *gone_page(void)
{
    const int fd = memfd_create("gone", MFD_CLOEXEC);
    NEED(fd >= 0 && ftruncate(fd, 4096) == 0);
    volatile char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    NEED(page != MAP_FAILED && ftruncate(fd, 0) == 0);
    close(fd);
    return page;
}

static uint64_t buffer[(HR_SNAPSHOT_MAX_BYTES + 7) / 8];

static inline void restore(const struct region_file *file)
{
    NEED(ftruncate(file->fd, (off_t)file->size) == 0);
    poke32(file, 4, file->layout->major_version);
    poke32(file, 8, file->layout->minor_version);
    poke32(file, 0, HR_MAGIC);
}

/* Our guard works, here and now: for reads of each kind, and for a write. */
static inline void check_guarded(const struct region_file *file, hr_region *region)
{
    NEED(ftruncate(file->fd, 0) == 0);
    CHECK_EQ(hr_snapshot(region, buffer, sizeof buffer, &call_error), HR_ESTALE);
    CHECK_EQ(call_error.reason, HR_REASON_TRUNCATED);
    CHECK_EQ(live_value(region, HR_MEMORY, 0), NO_VALUE);
    CHECK_EQ(call_error.code, HR_ESTALE);
    struct hr_set_size size;
    CHECK_EQ(hr_read_set(&region, 1, buffer, sizeof buffer, UINT32_MAX, &size, &call_error), 1);
    CHECK_EQ(set_snapshot(buffer, 0)->code, HR_ESTALE);
    int32_t before;
    CHECK_EQ(set_value(region, HR_PRIORITY, 1, 0, 0, &before), HR_ESTALE);
}

/* Bodies run in children, because the first hr_open() of a process is what counts. */

enum { CHILD_SURVIVED = 0, CHILD_FAILED = 1 };

/* Shared with the child: all went well until the SIGBUS that is to end it. */
static volatile bool *came_to_the_end;

static inline void check_died_at_the_end(int status)
{
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
    CHECK(*came_to_the_end);
    *came_to_the_end = false;
}

static inline int in_child(void (*body)(struct region_file *, hr_region *), void (*before)(void))
{
    struct region_file file;
    region_file_make(&file, HR_V1_2);
    fflush(NULL);
    const pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
        const struct rlimit no_core = {0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        atomic_store(&check_failures, 0);
        alarm(20);
        if (before != NULL)
            before();
        hr_region *region = open_or_fail(file.path, HR_WRITE);
        body(&file, region);
        _exit(atomic_load(&check_failures) == 0 ? CHILD_SURVIVED : CHILD_FAILED);
    }
    int status;
    NEED(waitpid(child, &status, 0) == child);
    region_file_remove(&file);
    return status;
}

static inline void set_default(void)
{
    signal(SIGBUS, SIG_DFL);
}

static volatile sig_atomic_t counted;

static inline void count(int number)
{
    (void)number;
    counted = counted + 1;
}

static inline void install(void (*handler)(int), int flags)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    sigemptyset(&action.sa_mask);
    NEED(sigaction(SIGBUS, &action, NULL) == 0);
}

static inline void set_counting(void)
{
    install(count, 0);
}

static inline void check_same_mask(const sigset_t *before)
{
    sigset_t after;
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    for (int number = 1; number < 32; number++)
        CHECK_EQ(sigismember(&after, number), sigismember(before, number));
}

static inline void share_with_children(void)
{
    came_to_the_end = share_memory(sizeof *came_to_the_end);
}

#endif
