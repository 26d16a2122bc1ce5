/* SIGBUS: at our mappings an error, anywhere else somebody else's. */
#define _GNU_SOURCE
#include <setjmp.h>

#include "sigbus.h"

static void set_ignored(void)
{
    signal(SIGBUS, SIG_IGN);
}

static void touch_a_gone_page(struct region_file *file, hr_region *region)
{
    check_guarded(file, region);
    *gone_page() = 1;
}

static void send_sigbus(struct region_file *file, hr_region *region)
{
    check_guarded(file, region);
    kill(getpid(), SIGBUS);
    /* The signal may be delivered on the way out of any later call. */
    for (int i = 0; i < 1000; i++)
        nap_us(1000);
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
static void test_previous_handler_gets_its_own(struct region_file *file)
{
    hr_region *region = open_or_fail(file->path, HR_READ);
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
        NEED(ftruncate(file->fd, (off_t)file->size) == 0);
        poke32(file, 0, HR_MAGIC);
        NEED(ftruncate(file->fd, 4096) == 0);
        CHECK(hr_snapshot(region, buffer, sizeof buffer, &call_error) < 0);
        CHECK_EQ(info_calls, before + 1);
    }
    close_and_free(region);
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
    struct nested nested = {.outer = gone_page(), .inner = gone_page(), .bytes = 4096};
    CHECK_EQ(hr_guard_run((const void *)nested.outer, 4096, outer_work, &nested), 9);
    CHECK_EQ(nested.inner_code, 7);

    nested.touch_inner = true;
    CHECK_EQ(hr_guard_run((const void *)nested.outer, 4096, outer_work, &nested), 9);
    CHECK_EQ(nested.inner_code, HR_ESTALE);
    CHECK_EQ(call_error.reason, HR_REASON_TRUNCATED);

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
    share_with_children();
    /* First: these need a process that has not opened anything. */
    RUN(test_default_action_still_kills);
    RUN(test_ignored_stays_ignored);
    RUN(test_plain_handler_gets_its_own);

    struct sigaction ours = {.sa_sigaction = info_handler, .sa_flags = SA_SIGINFO};
    sigemptyset(&ours.sa_mask);
    NEED(sigaction(SIGBUS, &ours, NULL) == 0);
    RUN_IN(HR_V1_1, test_previous_handler_gets_its_own);
    RUN(test_nested_guards);
    return check_report("test_sigbus");
}
