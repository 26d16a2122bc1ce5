/* SIGBUS: at our mappings an error, anywhere else somebody else's. */
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "guard.h"
#include "region_file.h"
#include "snapshot_view.h"

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

/* The guard looks again at handler and mask when a few microseconds have passed. */
static void let_a_burst_end(void)
{
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do
        clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - begin.tv_sec) * 1000000000 + now.tv_nsec - begin.tv_nsec < 20000);
}

static void restore(const struct region_file *file)
{
    NEED(ftruncate(file->fd, (off_t)file->size) == 0);
    poke32(file, 4, file->layout->major_version);
    poke32(file, 8, file->layout->minor_version);
    poke32(file, 0, HR_MAGIC);
}

/* Our guard works, here and now: for reads of each kind, and for a write. */
static void check_guarded(const struct region_file *file, hr_region *region)
{
    let_a_burst_end();
    NEED(ftruncate(file->fd, 0) == 0);
    CHECK_EQ(hr_snapshot(region, buffer, sizeof buffer), HR_ESTALE);
    CHECK_EQ(last_detail().reason, HR_REASON_TRUNCATED);
    let_a_burst_end();
    CHECK_EQ(hr_get(region, HR_VALUE_MEMORY_LIMIT, 0), HR_NO_VALUE);
    CHECK_EQ(last_detail().code, HR_ESTALE);
    let_a_burst_end();
    struct hr_set_size size;
    CHECK_EQ(hr_read_set(&region, 1, buffer, sizeof buffer, &size), 1);
    CHECK_EQ(set_snapshot(buffer, 0)->code, HR_ESTALE);
    let_a_burst_end();
    int32_t before;
    CHECK_EQ(set_value(region, HR_PRIORITY, 1, 0, 0, &before), HR_ESTALE);
}

/* ---- In children, because the first hr_open() of a process is what counts ---- */

enum { CHILD_SURVIVED = 0, CHILD_FAILED = 1 };

/* Shared with the child: all went well until the SIGBUS that is to end it. */
static volatile bool *came_to_the_end;

static void check_died_at_the_end(int status)
{
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
    CHECK(*came_to_the_end);
    *came_to_the_end = false;
}

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
        hr_region *region = open_or_fail(file.path, HR_WRITE);
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

static volatile sig_atomic_t counted;

static void count(int number)
{
    (void)number;
    counted = counted + 1;
}

static volatile sig_atomic_t others_counted;

static void count_as_another(int number)
{
    (void)number;
    others_counted = others_counted + 1;
}

static void install(void (*handler)(int), int flags)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    sigemptyset(&action.sa_mask);
    NEED(sigaction(SIGBUS, &action, NULL) == 0);
}

static void set_counting(void)
{
    install(count, 0);
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

/* More of them than there are layers: the latest one gets its signals. */
static void take_it_in_many_ways(struct region_file *file, hr_region *region)
{
    for (int i = 1; i <= 40; i++) {
        struct sigaction action = {.sa_handler = count};
        sigemptyset(&action.sa_mask);
        sigaddset(&action.sa_mask, i + 20);
        NEED(sigaction(SIGBUS, &action, NULL) == 0);
        check_guarded(file, region);
        raise(SIGBUS);
        CHECK_EQ(counted, i);
    }
}

static void test_more_handlers_than_layers(void)
{
    CHECK_EQ(in_child(take_it_in_many_ways, set_default), 0);
}

/* One that was over ours and is gone, by putting ours back, is not asked any more. */
static void enable_and_disable(struct region_file *file, hr_region *region)
{
    check_guarded(file, region);
    for (int i = 1; i <= 20; i++) {
        enable_late();
        check_guarded(file, region);
        NEED(sigaction(SIGBUS, &late_before, NULL) == 0);
        check_guarded(file, region);
        raise(SIGBUS);
        CHECK_EQ(counted, i);
    }
    CHECK_EQ(late_calls, 0);
    /* While it is there it is asked first, and hands down to who was there before. */
    enable_late();
    check_guarded(file, region);
    raise(SIGBUS);
    CHECK_EQ(late_calls, 1);
    CHECK_EQ(counted, 21);
    check_guarded(file, region);
}

static void test_handler_that_comes_and_goes(void)
{
    CHECK_EQ(in_child(enable_and_disable, set_counting), 0);
}

/* signal() knows nothing of flags: what it puts back lacks those that ours needs. */
static void put_back_by_signal(struct region_file *file, hr_region *region)
{
    check_guarded(file, region);
    void (*before)(int) = signal(SIGBUS, count_as_another);
    signal(SIGBUS, before);
    check_guarded(file, region);
    struct sigaction now;
    NEED(sigaction(SIGBUS, NULL, &now) == 0);
    CHECK((now.sa_flags & (SA_SIGINFO | SA_ONSTACK)) == (SA_SIGINFO | SA_ONSTACK));
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

/* Over ours a second time, it hands the signal back to the layer that covers it. */
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

/* A handler that asked to be called once is. */
static void handle_once(struct region_file *file, hr_region *region)
{
    install(count, (int)SA_RESETHAND);
    check_guarded(file, region);
    raise(SIGBUS);
    CHECK_EQ(counted, 1);
    check_guarded(file, region);
    *came_to_the_end = atomic_load(&check_failures) == 0;
    raise(SIGBUS);
}

static void test_one_shot_handler(void)
{
    check_died_at_the_end(in_child(handle_once, set_default));
}

/* ---- Handlers that another thread installs while the work runs -------------------- */

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
        let_a_burst_end();
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

static void check_same_mask(const sigset_t *before)
{
    sigset_t after;
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    for (int number = 1; number < 32; number++)
        CHECK_EQ(sigismember(&after, number), sigismember(before, number));
}

static void chain_in_front(struct region_file *file, hr_region *region)
{
    intruded = gone_page();
    sigset_t before;
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    for (int i = 1; i <= 3; i++) {
        let_a_burst_end();
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

static atomic_bool over;

static void *run_another(void *argument)
{
    while (counted == 0)
        let_a_burst_end();
    while (!atomic_load(&over)) {
        let_a_burst_end();
        CHECK_EQ(hr_snapshot(argument, buffer, sizeof buffer), HR_OK);
    }
    return NULL;
}

static void in_front_and_returning(struct region_file *file, hr_region *region)
{
    (void)file;
    intruded = gone_page();
    pthread_t thread;
    NEED(pthread_create(&thread, NULL, run_another, region) == 0);
    CHECK_EQ(run_intruded(set_counting), HR_ESTALE);
    CHECK(counted > 0);
    atomic_store(&over, true);
    NEED(pthread_join(thread, NULL) == 0);
}

/* One that just returns is called again and again, until another thread begins to read. */
static void test_returning_handler_in_front(void)
{
    CHECK_EQ(in_child(in_front_and_returning, set_default), 0);
}

/* ---- Threads that block SIGBUS ---------------------------------------------------- */

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
        /* Found unblocked, in a burst, just before. */
        for (int i = 0; i < 1000; i++)
            CHECK_EQ(hr_snapshot(part->region, buffer, sizeof buffer), HR_OK);
        block(SIG_BLOCK, all != 0);
        sigset_t before;
        pthread_sigmask(SIG_SETMASK, NULL, &before);
        for (int i = 0; i < 3; i++) {
            check_guarded(part->file, part->region);
            check_same_mask(&before);
        }
        restore(part->file);
        CHECK_EQ(hr_snapshot(part->region, buffer, sizeof buffer), HR_OK);
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

static bool is_pending(void)
{
    sigset_t pending;
    NEED(sigpending(&pending) == 0);
    return sigismember(&pending, SIGBUS) == 1;
}

enum { BEFORE_THE_WORK, IN_THE_WORK };

static void send_by_kill(void)
{
    NEED(kill(getpid(), SIGBUS) == 0);
}

static void send_with_a_value(void)
{
    NEED(sigqueue(getpid(), SIGBUS, (union sigval){.sival_int = 4711}) == 0);
}

static void send_to_the_thread(void)
{
    NEED(pthread_kill(pthread_self(), SIGBUS) == 0);
}

static int send_in_work(void *argument)
{
    ((void (*)(void))argument)();
    return 7;
}

static int look_inside(void *argument)
{
    (void)argument;
    return 7;
}

/* Sent while it is blocked, it stays for sigwaitinfo(), with all that its sender said. */
static void *sent_while_blocked(void *argument)
{
    const struct threads_part *part = argument;
    block(SIG_BLOCK, false);
    sigset_t only;
    sigemptyset(&only);
    sigaddset(&only, SIGBUS);
    const struct {
        void (*send)(void);
        int when, code;
    } cases[] = {
        {send_by_kill, BEFORE_THE_WORK, SI_USER},
        {send_with_a_value, BEFORE_THE_WORK, SI_QUEUE},
        {send_to_the_thread, BEFORE_THE_WORK, SI_USER},
        {send_by_kill, IN_THE_WORK, SI_USER},
        {send_with_a_value, IN_THE_WORK, SI_QUEUE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK(!is_pending());
        hr_guarded_work *work = cases[i].when == IN_THE_WORK ? send_in_work : look_inside;
        if (cases[i].when == BEFORE_THE_WORK)
            cases[i].send();
        CHECK_EQ(hr_guard_run(part->file, 1, work, (void *)cases[i].send), 7);
        CHECK(is_pending());
        /* The next call leaves it where it is, and a fault of ours does not use it up. */
        check_guarded(part->file, part->region);
        CHECK(is_pending());
        siginfo_t info;
        const struct timespec soon = {.tv_sec = 10};
        CHECK_EQ(sigtimedwait(&only, &info, &soon), SIGBUS);
        CHECK_EQ(info.si_code, cases[i].code);
        CHECK_EQ(info.si_pid, getpid());
        if (info.si_code == SI_QUEUE)
            CHECK_EQ(info.si_value.sival_int, 4711);
    }
    CHECK_EQ(counted, 0);
    return NULL;
}

static void sent_while_all_block_it(struct region_file *file, hr_region *region)
{
    struct threads_part part = {file, region};
    block(SIG_BLOCK, false);
    sent_while_blocked(&part);
    pthread_t thread;
    NEED(pthread_create(&thread, NULL, sent_while_blocked, &part) == 0);
    NEED(pthread_join(thread, NULL) == 0);
}

static void test_sent_while_blocked(void)
{
    CHECK_EQ(in_child(sent_while_all_block_it, set_default), 0);
    CHECK_EQ(in_child(sent_while_all_block_it, set_counting), 0);
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
    struct nested nested = {.outer = gone_page(), .inner = gone_page(), .bytes = 4096};
    CHECK_EQ(hr_guard_run((const void *)nested.outer, 4096, outer_work, &nested), 9);
    CHECK_EQ(nested.inner_code, 7);

    nested.touch_inner = true;
    CHECK_EQ(hr_guard_run((const void *)nested.outer, 4096, outer_work, &nested), 9);
    CHECK_EQ(nested.inner_code, HR_ESTALE);
    CHECK_EQ(last_detail().reason, HR_REASON_TRUNCATED);

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
    came_to_the_end = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(came_to_the_end != MAP_FAILED);

    /* First: these need a process that has not opened anything. */
    RUN(test_default_action_still_kills);
    RUN(test_ignored_stays_ignored);
    RUN(test_plain_handler_gets_its_own);
    RUN(test_handlers_that_replace_ours);
    RUN(test_more_handlers_than_layers);
    RUN(test_handler_that_comes_and_goes);
    RUN(test_ours_put_back_without_its_flags);
    RUN(test_chain_that_runs_in_a_circle_ends);
    RUN(test_one_shot_handler);
    RUN(test_handler_in_front);
    RUN(test_chaining_handler_in_front);
    RUN(test_returning_handler_in_front);
    RUN(test_blocked_signal);
    RUN(test_nested_while_blocked);
    RUN(test_sent_while_blocked);

    struct sigaction ours = {.sa_sigaction = info_handler, .sa_flags = SA_SIGINFO};
    sigemptyset(&ours.sa_mask);
    NEED(sigaction(SIGBUS, &ours, NULL) == 0);
    RUN(test_previous_handler_gets_its_own);
    RUN(test_nested_guards);
    return check_report("test_signals");
}
