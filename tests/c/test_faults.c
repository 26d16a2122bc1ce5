/* SIGBUS: at our mappings an error, anywhere else somebody else's. */
#define _GNU_SOURCE
#include <fcntl.h>
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

static hr_region *open_or_fail(const char *path, uint32_t flags)
{
    hr_region *region = NULL;
    NEED(hr_open(path, flags, HR_LAYOUTS, &region) >= 0);
    return region;
}

static struct hr_detail last_detail(void)
{
    struct hr_detail detail;
    hr_last_detail(&detail);
    return detail;
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
    hr_close(region);
    hr_free(region);
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

/* ---- Truncation under readers ---------------------------------------------- */

enum { TRUNCATIONS = 10000, READERS = 3 };

struct storm {
    struct region_file file;
    uint8_t *content;
    hr_region *shared;
    atomic_bool over;
    atomic_ulong good, stale, reopened;
};

/* What a reader may be told while the file is cut and made whole again. */
static bool is_expected_in_a_storm(int code)
{
    return code == HR_OK || code == HR_ESTALE || code == HR_ECORRUPT;
}

static void count_code(struct storm *storm, int code)
{
    if (code == HR_ESTALE)
        atomic_fetch_add(&storm->stale, 1);
    else if (code == HR_OK)
        atomic_fetch_add(&storm->good, 1);
}

static void *read_in_a_storm(void *argument)
{
    struct storm *storm = argument;
    uint64_t *own = malloc(HR_SNAPSHOT_MAX_BYTES);
    NEED(own != NULL);
    struct hr_limit_edit edits[HR_DEVICES];
    while (!atomic_load(&storm->over)) {
        int code = hr_snapshot(storm->shared, own, HR_SNAPSHOT_MAX_BYTES);
        CHECK(is_expected_in_a_storm(code));
        count_code(storm, code);
        if (hr_get(storm->shared, HR_VALUE_MEMORY_USED, 1) == HR_NO_VALUE)
            CHECK(is_expected_in_a_storm(last_detail().code));
        code = hr_set_limits(storm->shared, HR_SM, HR_ALL_DEVICES, 50, 0, 0, edits);
        CHECK(code > 0 || is_expected_in_a_storm(code));

        hr_region *fresh = NULL;
        code = hr_open(storm->file.path, HR_READ, HR_LAYOUTS, &fresh);
        if (code >= 0) {
            atomic_fetch_add(&storm->reopened, 1);
            for (int i = 0; i < 3; i++) {
                code = hr_snapshot(fresh, own, HR_SNAPSHOT_MAX_BYTES);
                CHECK(is_expected_in_a_storm(code));
                count_code(storm, code);
            }
            const int stale = hr_is_stale(fresh);
            CHECK(stale == 0 || stale == 1);
            hr_close(fresh);
            hr_free(fresh);
        } else {
            CHECK(code == HR_ENOTREADY || code == HR_ESTALE || code == HR_ECORRUPT);
        }
    }
    free(own);
    return NULL;
}

/* Ten thousand truncations under three readers: errors, and no dead process. */
static void test_truncation_under_readers(void)
{
    static struct storm storm;
    region_file_make(&storm.file, HR_V1_2);
    for (uint32_t slot = 0; slot < 20; slot++)
        fill_slot(&storm.file, slot, (int32_t)slot + 1, slot, 2);
    poke32(&storm.file, storm.file.layout->proc_num, 20);
    storm.content = region_file_copy(&storm.file);
    storm.shared = open_or_fail(storm.file.path, HR_WRITE);

    pthread_t readers[READERS];
    for (int i = 0; i < READERS; i++)
        NEED(pthread_create(&readers[i], NULL, read_in_a_storm, &storm) == 0);
    const size_t head = 64 * 1024;
    const size_t tail = storm.file.layout->proc_num & ~(size_t)4095;
    uint32_t random = 1;
    for (int i = 0; i < TRUNCATIONS; i++) {
        random = random * 1664525 + 1013904223;
        const off_t cut = i % 4 == 0 ? 0 : (off_t)((random >> 8) % storm.file.size);
        NEED(ftruncate(storm.file.fd, cut) == 0);
        if (i % 8 == 0)
            sched_yield();
        NEED(ftruncate(storm.file.fd, (off_t)storm.file.size) == 0);
        NEED(pwrite(storm.file.fd, storm.content + tail, storm.file.size - tail, (off_t)tail) > 0);
        NEED(pwrite(storm.file.fd, storm.content, head, 0) == (ssize_t)head);
        if (i % 8 == 4)
            sched_yield();
    }
    atomic_store(&storm.over, true);
    for (int i = 0; i < READERS; i++)
        pthread_join(readers[i], NULL);
    CHECK(atomic_load(&storm.good) > 0);
    CHECK(atomic_load(&storm.stale) > 0);
    CHECK(atomic_load(&storm.reopened) > 0);

    /* Whole again, it works again, for the old handle and for a new one. */
    CHECK_EQ(hr_snapshot(storm.shared, buffer, sizeof buffer), HR_OK);
    CHECK_EQ(hr_is_stale(storm.shared), 0);
    hr_region *fresh = open_or_fail(storm.file.path, HR_READ);
    CHECK_EQ(hr_snapshot(fresh, buffer, sizeof buffer), HR_OK);
    hr_close(fresh);
    hr_free(fresh);
    hr_close(storm.shared);
    hr_free(storm.shared);
    free(storm.content);
    region_file_remove(&storm.file);
}

/* Each call on a file that is gone gives an error, from every layout and each cut. */
static void test_every_call_on_a_truncated_file(void)
{
    for (uint32_t id = 0; id < HR_LAYOUTS; id++) {
        struct region_file file;
        region_file_make(&file, id);
        hr_region *region = open_or_fail(file.path, HR_WRITE);
        struct hr_limit_edit edits[HR_DEVICES];
        int32_t before;
        NEED(ftruncate(file.fd, 0) == 0);
        CHECK_EQ(hr_is_stale(region), 1);
        CHECK_EQ(hr_snapshot(region, buffer, sizeof buffer), HR_ESTALE);
        for (uint32_t value = 0; value <= HR_VALUE_PROC_NUM; value++) {
            CHECK_EQ(hr_get(region, value, 0), HR_NO_VALUE);
            CHECK_EQ(last_detail().code, HR_ESTALE);
        }
        CHECK_EQ(hr_set_limits(region, HR_MEMORY, 0, GIB, 0, 0, edits), HR_ESTALE);
        CHECK_EQ(hr_set_limits(region, HR_SM, HR_ALL_DEVICES, 10, 0, 0, edits), HR_ESTALE);
        CHECK_EQ(hr_set_value(region, HR_VALUE_PRIORITY, 1, &before), HR_ESTALE);
        uint64_t arena[HR_REGION_COLUMNS];
        const struct hr_rows capacity = {1, 0, 0, 0};
        struct hr_rows filled;
        CHECK_EQ(hr_read_set(&region, &capacity, arena, buffer, &filled), 1);
        CHECK_EQ(arena[HR_REGION_CODE], HR_ESTALE);

        /* Only the head is left: what lies in the tail is missed at its use. */
        NEED(ftruncate(file.fd, 4096) == 0);
        poke32(&file, 0, HR_MAGIC);
        poke32(&file, 4, file.layout->major_version);
        poke32(&file, 8, file.layout->minor_version);
        CHECK_EQ(hr_snapshot(region, buffer, sizeof buffer), HR_ESTALE);
        CHECK_EQ(last_detail().why, HR_WHY_TRUNCATED);
        CHECK_EQ(hr_set_value(region, HR_VALUE_PRIORITY, 1, &before), HR_ESTALE);
        CHECK_EQ(hr_set_limits(region, HR_MEMORY, 0, GIB, 0, 0, edits), HR_ESTALE);
        CHECK_EQ(peek64(&file, file.layout->limit), 0);
        hr_close(region);
        hr_free(region);
        region_file_remove(&file);
    }
}

/* The old mapping shows the old file; staleness tells, and the next open finds the new one. */
static void test_replacement(void)
{
    struct region_file file;
    region_file_make(&file, HR_V1_1);
    hr_region *region = open_or_fail(file.path, HR_READ);
    for (uint32_t round = 0; round < 100; round++) {
        struct hr_create_spec spec;
        region_file_spec(&spec, round % HR_LAYOUTS);
        spec.limit[0] = (round + 10) * GIB;
        CHECK_EQ(hr_is_stale(region), 0);
        const uint64_t old_limit = hr_get(region, HR_VALUE_MEMORY_LIMIT, 0);
        NEED(unlink(file.path) == 0);
        CHECK_EQ(hr_is_stale(region), 1);
        CHECK_EQ(hr_create(file.path, &spec), HR_OK);
        CHECK_EQ(hr_is_stale(region), 1);
        CHECK_EQ(hr_get(region, HR_VALUE_MEMORY_LIMIT, 0), old_limit);
        hr_close(region);
        hr_free(region);
        region = open_or_fail(file.path, HR_READ);
        struct hr_info info;
        hr_get_info(region, &info);
        CHECK_EQ(info.layout, round % HR_LAYOUTS);
        CHECK_EQ(hr_get(region, HR_VALUE_MEMORY_LIMIT, 0), (round + 10) * GIB);
    }
    hr_close(region);
    hr_free(region);
    region_file_remove(&file);
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
    RUN(test_every_call_on_a_truncated_file);
    RUN(test_replacement);
    RUN(test_truncation_under_readers);
    return check_report("test_faults");
}
