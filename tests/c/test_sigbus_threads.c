/* SIGBUS among threads: those that block it, and handlers that are installed meanwhile. */
#define _GNU_SOURCE
#include "sigbus.h"

static void block(int how, bool all)
{
    sigset_t set;
    sigfillset(&set);
    if (!all) {
        sigemptyset(&set);
        sigaddset(&set, SIGBUS);
    }
    pthread_sigmask(how, &set, NULL);
}

struct threads_part {
    struct region_file *file;
    hr_region *region;
};

static void *blocked_in_a_thread(void *argument)
{
    const struct threads_part *part = argument;
    for (int all = 0; all <= 1; all++) {
        restore(part->file);
        /* Found unblocked just before. */
        CHECK_EQ(hr_snapshot(part->region, buffer, sizeof buffer, &call_error), HR_OK);
        block(SIG_BLOCK, all != 0);
        sigset_t before;
        pthread_sigmask(SIG_SETMASK, NULL, &before);
        for (int i = 0; i < 3; i++) {
            check_guarded(part->file, part->region);
            check_same_mask(&before);
        }
        restore(part->file);
        CHECK_EQ(hr_snapshot(part->region, buffer, sizeof buffer, &call_error), HR_OK);
        check_same_mask(&before);
        block(SIG_UNBLOCK, true);
        pthread_sigmask(SIG_SETMASK, NULL, &before);
        check_guarded(part->file, part->region);
        check_same_mask(&before);
    }
    return NULL;
}

static void blocked_everywhere(struct region_file *file, hr_region *region)
{
    struct threads_part part = {file, region};
    blocked_in_a_thread(&part);
    pthread_t thread;
    NEED(pthread_create(&thread, NULL, blocked_in_a_thread, &part) == 0);
    NEED(pthread_join(thread, NULL) == 0);
    /* A child begins with the mask of the thread that made it. */
    block(SIG_BLOCK, true);
    check_guarded(file, region);
    NEED(pthread_create(&thread, NULL, blocked_in_a_thread, &part) == 0);
    NEED(pthread_join(thread, NULL) == 0);
    check_guarded(file, region);
}

static void test_blocked_signal(void)
{
    CHECK_EQ(in_child(blocked_everywhere, set_default), 0);
    CHECK_EQ(in_child(blocked_everywhere, set_counting), 0);
}

static int touch(void *argument)
{
    *(volatile char *)argument = 1;
    return 7;
}

static int run_nested(void *argument)
{
    return hr_guard_run(argument, 4096, touch, argument);
}

/* What a guard inside found is no news for the next one: the outer one blocks it again. */
static void nested_while_blocked(struct region_file *file, hr_region *region)
{
    (void)file;
    (void)region;
    block(SIG_BLOCK, false);
    void *page = (void *)gone_page();
    for (int i = 0; i < 100; i++) {
        CHECK_EQ(hr_guard_run(page, 4096, run_nested, page), HR_ESTALE);
        CHECK_EQ(hr_guard_run(page, 4096, touch, page), HR_ESTALE);
    }
}

static void test_nested_while_blocked(void)
{
    CHECK_EQ(in_child(nested_while_blocked, set_default), 0);
}

/* ---- A handler that is installed while the work runs, beside another thread -------- */

static volatile char *intruded;

static int intrude(void *argument)
{
    (void)argument;
    set_counting();
    *intruded = 1;
    return 7;
}

static atomic_bool over;

static void *run_another(void *argument)
{
    while (counted == 0)
        nap_us(20);
    while (!atomic_load(&over))
        CHECK_EQ(hr_snapshot(argument, buffer, sizeof buffer, &call_error), HR_OK);
    return NULL;
}

static void in_front_and_returning(struct region_file *file, hr_region *region)
{
    (void)file;
    intruded = gone_page();
    pthread_t thread;
    NEED(pthread_create(&thread, NULL, run_another, region) == 0);
    CHECK_EQ(hr_guard_run((const void *)intruded, 4096, intrude, NULL), HR_ESTALE);
    CHECK(counted > 0);
    atomic_store(&over, true);
    NEED(pthread_join(thread, NULL) == 0);
}

/* One that just returns is called again and again, until another thread begins to read. */
static void test_returning_handler_in_front(void)
{
    CHECK_EQ(in_child(in_front_and_returning, set_default), 0);
}

int main(void)
{
    RUN(test_blocked_signal);
    RUN(test_nested_while_blocked);
    RUN(test_returning_handler_in_front);
    return check_report("test_sigbus_threads");
}
