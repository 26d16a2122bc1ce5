/* SIGBUS: at our mappings an error, anywhere else somebody else's. */
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "guard.h"
#include "region_file.h"

/* A mapping whose file has lost its pages: touching it raises SIGBUS. */
static volatile char *gone_page(void)
{
    const int fd = memfd_create("gone", MFD_CLOEXEC);
    NEED(fd >= 0 && ftruncate(fd, 4096) == 0);
    volatile char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    NEED(page != MAP_FAILED && ftruncate(fd, 0) == 0);
    close(fd);
    return page;
}

static uint64_t buffer[(HR_SNAPSHOT_MAX_BYTES + 7) / 8];

/* Our guard works, here and now. */
static void check_guarded(const struct region_file *file, hr_region *region)
{
    NEED(ftruncate(file->fd, 0) == 0);
    CHECK_EQ(hr_snapshot(region, buffer, sizeof buffer), HR_ESTALE);
    CHECK_EQ(last_detail().why, HR_WHY_TRUNCATED);
}

/* ---- In children, because the first hr_open() of a process is what counts ---- */

enum { CHILD_SURVIVED = 0, CHILD_FAILED = 1 };

static int in_child(void (*body)(struct region_file *, hr_region *), void (*before)(void))
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
        hr_region *region = open_or_fail(file.path, HR_READ);
        body(&file, region);
        _exit(atomic_load(&check_failures) == 0 ? CHILD_SURVIVED : CHILD_FAILED);
    }
    int status;
    NEED(waitpid(child, &status, 0) == child);
    region_file_remove(&file);
    return status;
}

static void set_default(void)
{
    signal(SIGBUS, SIG_DFL);
}

static void set_ignored(void)
{
    signal(SIGBUS, SIG_IGN);
}

static void touch_a_gone_page(struct region_file *file, hr_region *region)
{
    check_guarded(file, region);
    *gone_page() = 1;
}

static void raise_sigbus(struct region_file *file, hr_region *region)
{
    check_guarded(file, region);
    raise(SIGBUS);
}

static void send_sigbus(struct region_file *file, hr_region *region)
{
    check_guarded(file, region);
    kill(getpid(), SIGBUS);
    /* The signal may be delivered on the way out of any later call. */
    for (int i = 0; i < 1000; i++)
        usleep(1000);
}

static void survive_sigbus(struct region_file *file, hr_region *region)
{
    check_guarded(file, region);
    raise(SIGBUS);
    kill(getpid(), SIGBUS);
    check_guarded(file, region);
}

/* Nobody handled it before us: it still ends the process, as the system would. */
static void test_default_action_still_kills(void)
{
    int status = in_child(touch_a_gone_page, set_default);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
    status = in_child(raise_sigbus, set_default);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
    status = in_child(send_sigbus, set_default);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
}

/* One that is sent stays ignored; one that the process causes cannot be. */
static void test_ignored_stays_ignored(void)
{
    int status = in_child(survive_sigbus, set_ignored);
    CHECK_EQ(status, 0);
    status = in_child(touch_a_gone_page, set_ignored);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
}

static volatile sig_atomic_t plain_calls;
static sigjmp_buf plain_return;

static void plain_handler(int number)
{
    (void)number;
    plain_calls = plain_calls + 1;
    siglongjmp(plain_return, 1);
}

static void set_plain(void)
{
    signal(SIGBUS, plain_handler);
}

static void touch_and_return(struct region_file *file, hr_region *region)
{
    /* volatile: longjmp() goes past them. */
    for (volatile int i = 1; i <= 3; i++) {
        if (sigsetjmp(plain_return, 1) == 0) {
            *gone_page() = 1;
            CHECK(!"a gone page can be written");
        }
        CHECK_EQ(plain_calls, i);
        check_guarded(file, region);
        CHECK_EQ(plain_calls, i);
    }
}

/* A handler of the one-argument kind. */
static void test_plain_handler_gets_its_own(void)
{
    CHECK_EQ(in_child(touch_and_return, set_plain), 0);
}

static hr_region *late_region;
static volatile sig_atomic_t late_calls;
static struct sigaction late_before;

/* What faulthandler does: say something, give the signal back, raise it again. */
static void late_handler(int number)
{
    late_calls = late_calls + 1;
    sigaction(SIGBUS, &late_before, NULL);
    raise(number);
}

static void set_on_top(struct region_file *file, hr_region *region)
{
    struct sigaction late = {.sa_handler = late_handler, .sa_flags = SA_NODEFER | SA_ONSTACK};
    sigemptyset(&late.sa_mask);
    NEED(sigaction(SIGBUS, &late, &late_before) == 0);
    late_region = region;
    check_guarded(file, region);
    CHECK_EQ(late_calls, 1);
    /* It took itself off: the second one is ours alone. */
    check_guarded(file, region);
    CHECK_EQ(late_calls, 1);
}

/* A handler that came after ours and hands the signal down does not break the guard. */
static void test_handler_on_top(void)
{
    CHECK_EQ(in_child(set_on_top, set_default), 0);
}

static struct sigaction chained;
static volatile sig_atomic_t chain_calls;

/* Ordinary chaining: one's own business first, then the handler from before. */
static void chaining_handler(int number, siginfo_t *info, void *context)
{
    chain_calls = chain_calls + 1;
    chained.sa_sigaction(number, info, context);
}

static void chain_on_top(struct region_file *file, hr_region *region)
{
    struct sigaction front = {.sa_sigaction = chaining_handler, .sa_flags = SA_SIGINFO};
    sigfillset(&front.sa_mask);
    NEED(sigaction(SIGBUS, &front, &chained) == 0);
    sigset_t before, after;
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    for (int i = 1; i <= 3; i++) {
        check_guarded(file, region);
        CHECK_EQ(chain_calls, i);
        /* The mask of the handler in front must not outlive the jump out of it. */
        pthread_sigmask(SIG_SETMASK, NULL, &after);
        for (int number = 1; number < 32; number++)
            CHECK_EQ(sigismember(&after, number), sigismember(&before, number));
    }
}

static void test_chaining_handler_on_top(void)
{
    CHECK_EQ(in_child(chain_on_top, set_default), 0);
}

/* ---- In this process ------------------------------------------------------ */

static volatile sig_atomic_t info_calls;
static void *volatile info_address;
static __thread sigjmp_buf info_return;

static void info_handler(int number, siginfo_t *info, void *context)
{
    (void)number;
    CHECK(context != NULL);
    info_calls = info_calls + 1;
    info_address = info->si_addr;
    siglongjmp(info_return, 1);
}

/* The handler from before gets the address, and may leave by longjmp. */
static void test_previous_handler_gets_its_own(void)
{
    struct region_file file;
    region_file_make(&file, HR_V1_1);
    hr_region *region = open_or_fail(file.path, HR_READ);
    for (volatile int i = 0; i < 100; i++) {
        volatile char *volatile page = gone_page();
        volatile const int before = info_calls;
        if (sigsetjmp(info_return, 1) == 0) {
            page[123] = 1;
            CHECK(!"a gone page can be written");
        }
        CHECK_EQ(info_calls, before + 1);
        CHECK(info_address == page + 123);
        munmap((void *)page, 4096);

        /* Between two of theirs, one of ours, at the page's own end too. */
        NEED(ftruncate(file.fd, (off_t)file.size) == 0);
        poke32(&file, 0, HR_MAGIC);
        NEED(ftruncate(file.fd, 4096) == 0);
        CHECK(hr_snapshot(region, buffer, sizeof buffer) < 0);
        CHECK_EQ(info_calls, before + 1);
    }
    close_and_free(region);
    region_file_remove(&file);
}

struct nested {
    volatile char *outer, *inner;
    size_t bytes;
    int inner_code;
    bool touch_inner, touch_outer, touch_outer_inside, after_inner;
};

static int inner_work(void *argument)
{
    struct nested *nested = argument;
    if (nested->touch_inner)
        *nested->inner = 1;
    if (nested->touch_outer_inside)
        *nested->outer = 1;
    return 7;
}

static int outer_work(void *argument)
{
    struct nested *nested = argument;
    nested->inner_code =
        hr_guard_run((const void *)nested->inner, nested->bytes, inner_work, nested);
    nested->after_inner = true;
    if (nested->touch_outer)
        *nested->outer = 1;
    return 9;
}

/* A guard inside a guard ends the inner one only, and the outer one still guards. */
static void test_nested_guards(void)
{
    NEED(hr_guard_install() == HR_OK);
    struct nested nested = {.outer = gone_page(), .inner = gone_page(), .bytes = 4096};
    CHECK_EQ(hr_guard_run((const void *)nested.outer, 4096, outer_work, &nested), 9);
    CHECK_EQ(nested.inner_code, 7);

    nested.touch_inner = true;
    CHECK_EQ(hr_guard_run((const void *)nested.outer, 4096, outer_work, &nested), 9);
    CHECK_EQ(nested.inner_code, HR_ESTALE);
    CHECK_EQ(last_detail().why, HR_WHY_TRUNCATED);

    nested.touch_outer = true;
    CHECK_EQ(hr_guard_run((const void *)nested.outer, 4096, outer_work, &nested), HR_ESTALE);
    CHECK_EQ(nested.inner_code, HR_ESTALE);

    nested.touch_inner = false;
    nested.inner_code = 0;
    CHECK_EQ(hr_guard_run((const void *)nested.outer, 4096, outer_work, &nested), HR_ESTALE);
    CHECK_EQ(nested.inner_code, 7);

    /* Just outside the range is not ours. */
    volatile const int before = info_calls;
    if (sigsetjmp(info_return, 1) == 0) {
        nested.touch_outer = false;
        nested.touch_inner = true;
        nested.bytes = 0;
        hr_guard_run((const void *)nested.outer, 4096, outer_work, &nested);
        CHECK(!"an empty range guards a page");
    }
    CHECK_EQ(info_calls, before + 1);
    munmap((void *)nested.outer, 4096);
    munmap((void *)nested.inner, 4096);
}

int main(void)
{
    /* First: these need a process that has not opened anything. */
    RUN(test_default_action_still_kills);
    RUN(test_ignored_stays_ignored);
    RUN(test_plain_handler_gets_its_own);
    RUN(test_handler_on_top);
    RUN(test_chaining_handler_on_top);

    struct sigaction ours = {.sa_sigaction = info_handler, .sa_flags = SA_SIGINFO};
    sigemptyset(&ours.sa_mask);
    NEED(sigaction(SIGBUS, &ours, NULL) == 0);
    RUN(test_previous_handler_gets_its_own);
    RUN(test_nested_guards);
    return check_report("test_signals");
}
