/*
 * Who else uses a GPU, by an NVML that shows what is asked for here: `neighbours_model`. The names
 * of threads are those of real processes. It ends the program if an answer is wrong.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../csrc/internal.h"
#include "../../csrc/preload/neighbours.h"
#include "../../csrc/preload/nvml.h"
#include "../../csrc/preload/sampler.h"

#define MUST_SHOW "own %u, soft %u, disturbed %d", seen.own, seen.soft, seen.is_disturbed
#include "must.h"

#define SECOND UINT64_C(1000000000)
enum { ROW = HR_DEVICES - 1, MOST = 200, NOBODY = 99999999 };

static struct hr_neighbours seen;
static uint64_t now_ns = 1000 * SECOND;

/* ---- What NVML shows ------------------------------------------------------------------ */

static unsigned with_context[MOST], contexts;
static nvmlProcessUtilizationSample_t samples[MOST];
static unsigned sample_count;
static unsigned whole;
static bool is_silent, is_whole_silent;
static unsigned own_pid;
static uint64_t asked_since_us;

static nvmlReturn_t give(nvmlDevice_t device, nvmlProcessUtilizationSample_t *out, unsigned *count,
                         unsigned long long since_us)
{
    (void)device;
    asked_since_us = since_us;
    if (is_silent)
        return NVML_ERROR_UNINITIALIZED;
    memcpy(out, samples, sample_count * sizeof *samples);
    *count = sample_count;
    return sample_count == 0 ? NVML_ERROR_NOT_FOUND : NVML_SUCCESS;
}

static nvmlReturn_t give_newer(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *info)
{
    (void)device, (void)info;
    return NVML_ERROR_FUNCTION_NOT_FOUND;
}

static nvmlReturn_t give_whole(nvmlDevice_t device, nvmlUtilization_t *out)
{
    (void)device;
    out->gpu = whole;
    return is_whole_silent ? NVML_ERROR_UNINITIALIZED : NVML_SUCCESS;
}

const struct hr_nvml_functions *hr_nvml(void)
{
    static const struct hr_nvml_functions functions = {
        .nvmlDeviceGetProcessUtilization = give,
        .nvmlDeviceGetProcessesUtilizationInfo = give_newer,
        .nvmlDeviceGetUtilizationRates = give_whole,
    };
    return &functions;
}

nvmlProcessInfo_t *hr_nvml_processes(nvmlDevice_t device, unsigned *count)
{
    (void)device;
    nvmlProcessInfo_t *list = calloc(MOST, sizeof *list);
    for (unsigned at = 0; at < contexts; at++)
        list[at].pid = with_context[at];
    *count = contexts;
    return list;
}

unsigned hr_own_nvml_pid(void)
{
    return own_pid;
}

unsigned hr_slot_nvml_pid(const struct hr_process *process)
{
    return (unsigned)(process->host_pid > 0 ? process->host_pid : process->pid);
}

uint64_t hr_clock_ns(int clock)
{
    (void)clock;
    return now_ns;
}

/* ---- The region, and looks at the GPU ------------------------------------------------- */

static struct {
    struct hr_snapshot head;
    struct hr_process processes[4];
} region;

static bool look(uint64_t later_ns)
{
    now_ns += later_ns;
    seen = (struct hr_neighbours){.own = 12345, .soft = 12345, .is_disturbed = true};
    return hr_look_at_neighbours(&region.head, ROW, NULL, now_ns, &seen);
}

static void show_work(unsigned pid, unsigned percent)
{
    samples[sample_count++] =
        (nvmlProcessUtilizationSample_t){.pid = pid, .timeStamp = now_ns / 1000, .smUtil = percent};
}

/* Nobody is there, and nobody ever was. */
static void begin(void)
{
    contexts = sample_count = whole = 0;
    own_pid = (unsigned)getpid();
    is_silent = is_whole_silent = false;
    region.head.proc_num = 0;
    now_ns += 100 * SECOND;
    hr_forget_neighbours(ROW);
}

#define EXPECT(later_ns, own_, soft_, disturbed_)                                                  \
    do {                                                                                           \
        MUST(look(later_ns));                                                                      \
        MUST(seen.own == (own_) && seen.soft == (soft_) && seen.is_disturbed == (disturbed_));     \
    } while (0)

/* ---- Who comes, works and goes -------------------------------------------------------- */

static void check_newcomers(void)
{
    begin();
    with_context[contexts++] = NOBODY;
    /* Those that were there before show by what they do. */
    EXPECT(0, 0, 0, false);
    with_context[contexts++] = NOBODY + 1;
    EXPECT(SECOND, 0, 0, true);
    EXPECT(5 * SECOND - 1, 0, 0, true);
    EXPECT(1, 0, 0, false);
    with_context[contexts++] = NOBODY + 2;
    EXPECT(SECOND, 0, 0, true);
    /* One that has ended disturbs nobody. */
    contexts--;
    EXPECT(1, 0, 0, false);
    with_context[contexts++] = 0;
    EXPECT(SECOND, 0, 0, false);
}

static void check_work(void)
{
    begin();
    with_context[contexts++] = NOBODY;
    show_work(NOBODY, 2);
    EXPECT(0, 0, 0, false);
    samples[0].smUtil = 3;
    EXPECT(SECOND, 0, 0, true);
    sample_count = 0;
    EXPECT(5 * SECOND - 1, 0, 0, true);
    EXPECT(1, 0, 0, false);
    /* Without a context there is no other sign of its end than that it works no more. */
    begin();
    show_work(NOBODY, 50);
    EXPECT(0, 0, 0, true);
    sample_count = 0;
    EXPECT(5 * SECOND - 1, 0, 0, true);
    EXPECT(1, 0, 0, false);
    show_work(NOBODY, 50);
    EXPECT(SECOND, 0, 0, true);
    begin();
    EXPECT(0, 0, 0, false);
    is_silent = true;
    MUST(!look(SECOND));
}

static void check_own(void)
{
    begin();
    region.head.proc_num = 2;
    region.processes[0] = (struct hr_process){.pid = 77, .host_pid = NOBODY};
    region.processes[1] = (struct hr_process){.pid = NOBODY + 1};
    EXPECT(0, 0, 0, false);
    with_context[contexts++] = NOBODY;
    with_context[contexts++] = NOBODY + 1;
    with_context[contexts++] = own_pid;
    show_work(NOBODY, 30);
    show_work(NOBODY + 1, 40);
    EXPECT(SECOND, 70, 0, false);
    samples[1].smUtil = 90;
    EXPECT(SECOND, 100, 0, false);
    /* The pid of a slot whose host pid is another one is a stranger's. */
    show_work(77, 10);
    EXPECT(SECOND, 100, 0, true);
}

/* The samples of a quarter of a second, or of one and a half of the driver's periods. */
static void check_window(void)
{
    begin();
    EXPECT(0, 0, 0, false);
    MUST(asked_since_us == now_ns / 1000 - 250000);
    for (int sample = 0; sample < 3; sample++) {
        sample_count = 0;
        now_ns += SECOND;
        show_work(NOBODY, 1);
        MUST(look(0));
    }
    MUST(look(0) && asked_since_us == now_ns / 1000 - 1500000);
}

/* ---- What nobody is shown for --------------------------------------------------------- */

static void check_hidden(void)
{
    begin();
    region.head.proc_num = 1;
    region.processes[0] = (struct hr_process){.pid = (int)own_pid};
    show_work(own_pid, 30);
    show_work(NOBODY, 2);
    whole = 30 + 2 + 24;
    for (int looks = 0; looks < 20; looks++)
        EXPECT(SECOND / 10, 30, 0, false);
    whole++;
    for (int looks = 0; looks < 4; looks++)
        EXPECT(SECOND / 10, 30, 0, false);
    whole--;
    EXPECT(SECOND / 10, 30, 0, false);
    whole++;
    for (int looks = 0; looks < 4; looks++)
        EXPECT(SECOND / 10, 30, 0, false);
    EXPECT(SECOND / 10, 30, 0, true);
    whole = 32;
    EXPECT(5 * SECOND - 1, 30, 0, true);
    EXPECT(1, 30, 0, false);
    whole = 101; /* such a figure cannot be */
    for (int looks = 0; looks < 10; looks++)
        EXPECT(SECOND / 10, 30, 0, false);
    whole = 100;
    for (int looks = 0; looks < 5; looks++)
        EXPECT(SECOND / 10, 30, 0, looks == 4);
    EXPECT(10 * SECOND, 30, 0, true);
    is_whole_silent = true;
    EXPECT(5 * SECOND, 30, 0, false);
    for (int looks = 0; looks < 10; looks++)
        EXPECT(SECOND / 10, 30, 0, false);
}

static void check_crowds(void)
{
    begin();
    for (; contexts < 64; contexts++)
        with_context[contexts] = NOBODY + contexts;
    EXPECT(0, 0, 0, false);
    with_context[contexts++] = NOBODY + 64;
    EXPECT(SECOND, 0, 0, true);
    contexts--;
    EXPECT(10 * SECOND, 0, 0, false);
    /* Places are used again. */
    for (unsigned at = 0; at < contexts; at++)
        with_context[at] = NOBODY + 1000 + at;
    EXPECT(SECOND, 0, 0, true);
    EXPECT(SECOND, 0, 0, true);
    EXPECT(5 * SECOND, 0, 0, false);
}

/* ---- Names ---------------------------------------------------------------------------- */

static int to_child[2], from_child[2];

static void *rename_thread(void *argument)
{
    char name[16] = "", answer = 1;
    (void)argument;
    while (read(to_child[0], name, sizeof name) == sizeof name) {
        pthread_setname_np(pthread_self(), name);
        if (write(from_child[1], &answer, 1) != 1)
            break;
    }
    return NULL;
}

/* A process with a thread beside its first one, which names itself as it is told to. */
static pid_t start_other(void)
{
    MUST(pipe(to_child) == 0 && pipe(from_child) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        pthread_t thread;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(to_child[1]);
        pthread_create(&thread, NULL, rename_thread, NULL);
        pthread_join(thread, NULL);
        _exit(0);
    }
    close(to_child[0]);
    return pid;
}

static void set_name(const char *text)
{
    char name[16] = "", answer;
    snprintf(name, sizeof name, "%s", text);
    MUST(write(to_child[1], name, sizeof name) == sizeof name && read(from_child[0], &answer, 1));
}

static void check_names(unsigned pid)
{
    begin();
    set_name(HR_SOFT_THREAD);
    show_work(pid, 40);
    EXPECT(0, 0, 40, false);
    /* It is not asked each time, */
    set_name(HR_HARD_THREAD);
    EXPECT(SECOND / 2 - 1, 0, 40, false);
    EXPECT(1, 0, 0, true);
    set_name(HR_SOFT_THREAD "2");
    EXPECT(SECOND, 0, 0, true);
    set_name("hami-burs");
    EXPECT(SECOND, 0, 0, true);
    set_name(HR_SOFT_THREAD);
    EXPECT(SECOND, 0, 40, false);
    /* and counts for what it does. */
    samples[0].smUtil = 1;
    EXPECT(SECOND, 0, 1, false);
    show_work(NOBODY, 20);
    EXPECT(SECOND, 0, 1, true);
    samples[0].smUtil = 50;
    sample_count = 1;
    EXPECT(10 * SECOND, 0, 50, false);
    sample_count = 0;
    EXPECT(SECOND, 0, 0, false);
    /* Where NVML has other pids a name is another process's. */
    begin();
    own_pid = NOBODY;
    show_work(pid, 40);
    EXPECT(0, 0, 0, true);
}

static int count_files(void)
{
    int count = 0;
    for (int file = 0; file < 100; file++)
        count += fcntl(file, F_GETFD) >= 0;
    return count;
}

int main(void)
{
    check_newcomers();
    check_work();
    check_own();
    check_window();
    check_hidden();
    check_crowds();
    pid_t other = start_other();
    int files = count_files();
    check_names((unsigned)other);
    MUST(count_files() == files);
    kill(other, SIGKILL);
    waitpid(other, NULL, 0);
    return 0;
}
