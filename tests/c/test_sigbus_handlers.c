/* SIGBUS: handlers that come after ours, and go, and come in front of it. */
#define _GNU_SOURCE
#include "sigbus.h"

/* ---- Handlers that come and go after ours ------------------------------------- */

static volatile sig_atomic_t late_calls;
static struct sigaction late_before;

/* What faulthandler does: say something, give the signal back, raise it again. */
static void late_handler(int number)
{
    late_calls = late_calls + 1;
    sigaction(SIGBUS, &late_before, NULL);
    raise(number);
}

static void enable_late(void)
{
    struct sigaction late = {.sa_handler = late_handler, .sa_flags = SA_NODEFER | SA_ONSTACK};
    sigemptyset(&late.sa_mask);
    NEED(sigaction(SIGBUS, &late, &late_before) == 0);
}

static volatile sig_atomic_t others_counted;

static void count_as_another(int number)
{
    (void)number;
    others_counted = others_counted + 1;
}

/* Whoever takes the signal, and however often: we are on top, and he has what is not ours. */
static void take_it_from_us(struct region_file *file, hr_region *region)
{
    check_guarded(file, region);
    for (int i = 1; i <= 50; i++) {
        install(count_as_another, i % 2 != 0 ? SA_RESTART : 0);
        check_guarded(file, region);
        raise(SIGBUS);
        CHECK_EQ(others_counted, i);
        install(SIG_IGN, 0);
        check_guarded(file, region);
        raise(SIGBUS);
        CHECK_EQ(others_counted, i);
        CHECK_EQ(counted, i - 1);
        install(count, 0);
        check_guarded(file, region);
        raise(SIGBUS);
        CHECK_EQ(counted, i);
    }
    install(SIG_DFL, 0);
    check_guarded(file, region);
    *came_to_the_end = atomic_load(&check_failures) == 0;
    raise(SIGBUS);
}

static void test_handlers_that_replace_ours(void)
{
    check_died_at_the_end(in_child(take_it_from_us, set_default));
}

/* One that comes and goes by restoring ours leaves ours at work. */
static void enable_and_disable(struct region_file *file, hr_region *region)
{
    check_guarded(file, region);
    for (int i = 1; i <= 20; i++) {
        enable_late();
        check_guarded(file, region);
        NEED(sigaction(SIGBUS, &late_before, NULL) == 0);
        check_guarded(file, region);
    }
    CHECK_EQ(late_calls, 0);
    /* While it is there it gets what is not ours, and hands it down: the process ends. */
    enable_late();
    check_guarded(file, region);
    *came_to_the_end = atomic_load(&check_failures) == 0;
    raise(SIGBUS);
}

static void test_handler_that_comes_and_goes(void)
{
    check_died_at_the_end(in_child(enable_and_disable, set_counting));
}

/* signal() knows nothing of flags: what it puts back lacks those that ours needs. */
static void put_back_by_signal(struct region_file *file, hr_region *region)
{
    check_guarded(file, region);
    void (*before)(int) = signal(SIGBUS, count_as_another);
    signal(SIGBUS, before);
    check_guarded(file, region);
    raise(SIGBUS);
    CHECK_EQ(counted, 1);
    CHECK_EQ(others_counted, 0);
}

static void test_ours_put_back_without_its_flags(void)
{
    CHECK_EQ(in_child(put_back_by_signal, set_counting), 0);
}

static struct sigaction chained;
static volatile sig_atomic_t chain_calls;

/* Ordinary chaining: one's own business first, then the handler from before. */
static void chaining_handler(int number, siginfo_t *info, void *context)
{
    chain_calls = chain_calls + 1;
    if (chain_calls > 100)
        _exit(CHILD_FAILED);
    chained.sa_sigaction(number, info, context);
}

static void install_chaining(void)
{
    struct sigaction front = {.sa_sigaction = chaining_handler, .sa_flags = SA_SIGINFO};
    sigfillset(&front.sa_mask);
    NEED(sigaction(SIGBUS, &front, &chained) == 0);
}

/* Over ours a second time, it hands the signal back to the one that called it. */
static void chain_in_a_circle(struct region_file *file, hr_region *region)
{
    check_guarded(file, region);
    install_chaining();
    check_guarded(file, region);
    install_chaining();
    check_guarded(file, region);
    CHECK_EQ(chain_calls, 0);
    *came_to_the_end = atomic_load(&check_failures) == 0;
    *gone_page() = 1;
}

static void test_chain_that_runs_in_a_circle_ends(void)
{
    check_died_at_the_end(in_child(chain_in_a_circle, set_default));
}

/* ---- Handlers that are installed while the work runs ------------------------------ */

static volatile char *intruded;

static int intrude(void *argument)
{
    ((void (*)(void))argument)();
    *intruded = 1;
    return 7;
}

static int run_intruded(void (*installs)(void))
{
    return hr_guard_run((const void *)intruded, 4096, intrude, (void *)installs);
}

static void in_front_for_once(struct region_file *file, hr_region *region)
{
    intruded = gone_page();
    for (int i = 1; i <= 3; i++) {
        CHECK_EQ(run_intruded(enable_late), HR_ESTALE);
        CHECK_EQ(late_calls, i);
        check_guarded(file, region);
    }
    CHECK_EQ(late_calls, 3);
}

/* A handler in front of ours that hands the signal down does not break the guard. */
static void test_handler_in_front(void)
{
    CHECK_EQ(in_child(in_front_for_once, set_default), 0);
}

static void chain_in_front(struct region_file *file, hr_region *region)
{
    intruded = gone_page();
    sigset_t before;
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    for (int i = 1; i <= 3; i++) {
        CHECK_EQ(run_intruded(install_chaining), HR_ESTALE);
        CHECK_EQ(chain_calls, i);
        /* The mask of the handler in front must not outlive the jump out of it. */
        check_same_mask(&before);
        check_guarded(file, region);
        NEED(sigaction(SIGBUS, &chained, NULL) == 0);
    }
}

static void test_chaining_handler_in_front(void)
{
    CHECK_EQ(in_child(chain_in_front, set_default), 0);
}

int main(void)
{
    share_with_children();
    RUN(test_handlers_that_replace_ours);
    RUN(test_handler_that_comes_and_goes);
    RUN(test_ours_put_back_without_its_flags);
    RUN(test_chain_that_runs_in_a_circle_ends);
    RUN(test_handler_in_front);
    RUN(test_chaining_handler_in_front);
    return check_report("test_sigbus_handlers");
}
