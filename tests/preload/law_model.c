/*
 * How well the control law holds a limit, on two models of a GPU: `law_model NAME=VALUE...`, one
 * line of output: the percent of the time for which the GPU was busy for the processes, the highest
 * and the lowest that of any two seconds, the smallest part of an even share that a process had,
 * and the longest time for which one waited, all from the fifth second on.
 *
 * Each process keeps up to `pending` kernels queued, as far as its bucket lets it, and makes a
 * launch that has waited for ten seconds.  The GPU works
 * for all of them in time slices, or for all at once (`sharing=1`).  NVML samples it every
 * `sample_ms`; the figures are whole percents, the mean of the samples since the last question or
 * (`last=1`) the newest one, `late_ms` old, and lack processes that were idle.  Each process asks
 * every tenth of a second, as the library does.
 *
 * Every `change_s` seconds the cost of a kernel becomes ten times as high, or again what it was.
 * In the twentieth second the clock is set back by `back_s`.
 * With `ranks=1` each process waits after each of its kernels until all have done as many, as
 * programs with collectives do; such a wait keeps the GPU busy.
 */
#include "../../csrc/preload/bucket.h"
#include "../../csrc/preload/law.h"
#include "../../csrc/preload/samples.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEP_NS 1000000u
#define SLICE_NS 2000000u
#define PASS_NS 100000000u
#define SECOND_NS UINT64_C(1000000000)
#define EPOCH_US UINT64_C(1700000000000000)
#define LONGEST_WAIT_NS (10 * SECOND_NS)
#define COST 133 /* tokens of a kernel: 132 multiprocessors and one block */
#define FIRST_PID 1000u

enum { MOST_PROCESSES = 40, MOST_SAMPLES = 4096, MOST_SPANS = 200 };

struct process {
    struct hr_bucket bucket;
    struct hr_law law;
    struct hr_samples samples;
    uint64_t queued, done_ns, next_pass_ns; /* kernels; how much of the first one is done */
    uint64_t kernels;                       /* finished */
    uint64_t busy_ns, sampled_ns;
    uint64_t idle_ns, longest_idle_ns; /* without anything queued */
    uint8_t shown[MOST_SAMPLES];       /* percent */
};

static struct process processes[MOST_PROCESSES];
static uint64_t sample_at_ns[MOST_SAMPLES], sample_count;
static uint8_t device_shown[MOST_SAMPLES];
static uint64_t kernel_ns;
static struct {
    const char *name;
    uint64_t value;
} settings[] = {{"limit", 50},      {"kernel_us", 1000}, {"pending", 1000}, {"processes", 1},
                {"sample_ms", 166}, {"sharing", 0},      {"last", 0},       {"late_ms", 0},
                {"change_s", 0},    {"ranks", 0},        {"span_s", 60},    {"back_s", 0}};
enum {
    LIMIT,
    KERNEL_US,
    PENDING,
    PROCESSES,
    SAMPLE_MS,
    SHARING,
    LAST,
    LATE_MS,
    CHANGE_S,
    RANKS,
    SPAN_S,
    BACK_S,
    SETTINGS
};
#define SET(name) (settings[name].value)

static uint64_t clock_us(uint64_t at_ns)
{
    uint64_t back_s = at_ns < 20 * SECOND_NS ? 0 : SET(BACK_S);
    return EPOCH_US + at_ns / 1000 - back_s * 1000000;
}

static void launch(struct process *process, uint64_t now_ns)
{
    uint64_t patience_ns;
    while (process->queued < SET(PENDING) &&
           (hr_take_tokens(&process->bucket, COST) ||
            hr_refill_and_take(&process->bucket, COST, now_ns, &patience_ns)))
        process->queued++;
    if (process->queued == 0 && process->idle_ns >= LONGEST_WAIT_NS) {
        hr_pay_tokens(&process->bucket, COST);
        process->queued++;
    }
    process->idle_ns = process->queued > 0 ? 0 : process->idle_ns + STEP_NS;
    if (process->idle_ns > process->longest_idle_ns)
        process->longest_idle_ns = process->idle_ns;
}

static uint64_t fewest_kernels(void)
{
    uint64_t fewest = UINT64_MAX;
    for (uint64_t at = 0; at < SET(PROCESSES); at++)
        fewest = processes[at].kernels < fewest ? processes[at].kernels : fewest;
    return fewest;
}

/* Up to so much of a process's work; returns how much there was. */
static uint64_t work_for(struct process *process, uint64_t span_ns)
{
    /* A rank that is ahead spins in the collective: the GPU is busy, and nothing is done. */
    if (SET(RANKS) && process->kernels > fewest_kernels()) {
        process->busy_ns += span_ns;
        return span_ns;
    }
    uint64_t left_ns = process->queued * kernel_ns;
    left_ns = left_ns > process->done_ns ? left_ns - process->done_ns : 0;
    if (SET(RANKS) && left_ns > kernel_ns - process->done_ns)
        left_ns = kernel_ns - process->done_ns;
    uint64_t part_ns = left_ns < span_ns ? left_ns : span_ns;
    process->busy_ns += part_ns;
    process->done_ns += part_ns;
    uint64_t finished = process->done_ns / kernel_ns;
    finished = finished < process->queued ? finished : process->queued;
    process->queued -= finished;
    process->kernels += finished;
    process->done_ns = process->queued == 0 ? 0 : process->done_ns - finished * kernel_ns;
    return part_ns;
}

/* One GPU for each rank, else one for all. */
static void work(void)
{
    static uint64_t turn;
    const uint64_t count = SET(PROCESSES);
    uint64_t left_ns = STEP_NS;
    if (SET(RANKS)) {
        for (uint64_t at = 0; at < count; at++)
            work_for(&processes[at], STEP_NS);
        return;
    }
    for (uint64_t idle = 0; left_ns > 0 && idle < count; turn++) {
        uint64_t slice_ns = SET(SHARING) ? STEP_NS / count / 4 : SLICE_NS;
        uint64_t done_ns =
            work_for(&processes[turn % count], left_ns < slice_ns ? left_ns : slice_ns);
        left_ns -= done_ns;
        idle = done_ns == 0 ? idle + 1 : 0;
    }
}

static void take_sample(uint64_t now_ns)
{
    uint64_t sampled_ns = 0;
    for (uint64_t at = 0; at < SET(PROCESSES); at++) {
        struct process *one = &processes[at];
        uint64_t percent = (one->busy_ns - one->sampled_ns) * 100 / (SET(SAMPLE_MS) * 1000000);
        one->shown[sample_count % MOST_SAMPLES] = (uint8_t)percent;
        sampled_ns += one->busy_ns - one->sampled_ns;
        one->sampled_ns = one->busy_ns;
    }
    device_shown[sample_count % MOST_SAMPLES] =
        (uint8_t)(sampled_ns * 100 / (SET(SAMPLE_MS) * 1000000));
    sample_at_ns[sample_count++ % MOST_SAMPLES] = now_ns;
}

/* What NVML answers about one process: the samples that are newer than that, and visible. */
static bool answer(const struct process *process, uint64_t since_us, uint64_t now_ns,
                   nvmlProcessUtilizationSample_t *out)
{
    uint64_t sum = 0, count = 0, newest_ns = 0;
    for (uint64_t at = sample_count; at > 0 && sample_count - at < MOST_SAMPLES; at--) {
        uint64_t at_ns = sample_at_ns[(at - 1) % MOST_SAMPLES];
        if (at_ns + SET(LATE_MS) * 1000000 > now_ns)
            continue;
        if (clock_us(at_ns) <= since_us || (SET(LAST) && count > 0))
            break;
        newest_ns = newest_ns == 0 ? at_ns : newest_ns;
        sum += process->shown[(at - 1) % MOST_SAMPLES];
        count++;
    }
    if (count == 0 || sum == 0)
        return false;
    *out = (nvmlProcessUtilizationSample_t){.timeStamp = clock_us(newest_ns),
                                            .smUtil = (unsigned)(sum / count)};
    return true;
}

/* The device's newest visible sample.  A rank has a device of its own, and needs no such figure. */
static unsigned device_percent(uint64_t now_ns)
{
    for (uint64_t at = sample_count; !SET(RANKS) && at > 0; at--) {
        if (sample_at_ns[(at - 1) % MOST_SAMPLES] + SET(LATE_MS) * 1000000 <= now_ns)
            return device_shown[(at - 1) % MOST_SAMPLES];
    }
    return 0;
}

static void pass(uint64_t number, uint64_t now_ns)
{
    struct process *process = &processes[number];
    const uint64_t now_us = clock_us(now_ns);
    const uint64_t first = SET(RANKS) ? number : 0;
    const uint64_t last = SET(RANKS) ? number + 1 : SET(PROCESSES);
    nvmlProcessUtilizationSample_t list[MOST_PROCESSES];
    unsigned pids[MOST_PROCESSES];
    struct hr_figures figures = {.list = list, .pids = pids, .own = FIRST_PID + (unsigned)number};
    struct hr_law_view view = {.limit = (double)SET(LIMIT) / 100};
    hr_note_units(&process->samples, now_us, (double)hr_taken_tokens(&process->bucket));
    if (!hr_is_sample_due(&process->samples, now_us))
        return;
    for (uint64_t at = first; at < last; at++) {
        pids[figures.pid_count++] = FIRST_PID + (unsigned)at;
        if (answer(&processes[at], process->samples.newest_us, now_ns, &list[figures.count]))
            list[figures.count++].pid = FIRST_PID + (unsigned)at;
    }
    figures.device_percent = device_percent(now_ns);
    if (!hr_take_sample(&process->samples, &figures, now_us, &view))
        return;
    view.has_waited = atomic_exchange(&process->bucket.has_waited, false);
    hr_set_rate(&process->bucket, hr_step_law(&process->law, &view));
    if (process->law.units <= 0)
        hr_grant_launch(&process->bucket);
}

static void read_settings(int count, char **arguments)
{
    for (int at = 1; at < count; at++) {
        char *equals = strchr(arguments[at], '=');
        int found = 0;
        for (int each = 0; equals != NULL && each < SETTINGS; each++) {
            if (strncmp(arguments[at], settings[each].name, strlen(settings[each].name)) == 0 &&
                equals == arguments[at] + strlen(settings[each].name)) {
                settings[each].value = strtoull(equals + 1, NULL, 10);
                found = 1;
            }
        }
        if (!found) {
            fprintf(stderr, "law_model: no setting %s\n", arguments[at]);
            exit(2);
        }
    }
}

static uint64_t all_busy_ns(void)
{
    uint64_t sum = 0;
    for (uint64_t at = 0; at < SET(PROCESSES); at++)
        sum += processes[at].busy_ns;
    return sum;
}

int main(int count, char **arguments)
{
    read_settings(count, arguments);
    const uint64_t begin_ns = 5 * SECOND_NS, end_ns = begin_ns + SET(SPAN_S) * SECOND_NS;
    const uint64_t processes_count = SET(PROCESSES), devices = SET(RANKS) ? processes_count : 1;
    for (uint64_t at = 0; at < processes_count; at++) {
        hr_reset_bucket(&processes[at].bucket, 0);
        hr_start_law(&processes[at].law, (double)EPOCH_US / 1e6);
        hr_start_samples(&processes[at].samples, EPOCH_US);
        processes[at].next_pass_ns = (at + 1) * PASS_NS / (processes_count + 1);
    }
    uint64_t before_ns[MOST_PROCESSES] = {0}, all_before_ns = 0, span_ns = 0, kernels = 0;
    double highest = 0, lowest = 1e9;
    for (uint64_t now_ns = 0; now_ns < end_ns; now_ns += STEP_NS) {
        kernel_ns = SET(KERNEL_US) * 1000;
        if (SET(CHANGE_S) && now_ns / SECOND_NS / SET(CHANGE_S) % 2)
            kernel_ns *= 10;
        for (uint64_t at = 0; at < processes_count; at++) {
            if (now_ns >= processes[at].next_pass_ns) {
                pass(at, now_ns);
                processes[at].next_pass_ns += PASS_NS;
            }
            launch(&processes[at], now_ns);
        }
        if (now_ns >= begin_ns && (now_ns - begin_ns) % (2 * SECOND_NS) == 0) {
            double percent = (double)(all_busy_ns() - span_ns) / (double)(SECOND_NS * devices) * 50;
            if (now_ns == begin_ns) {
                all_before_ns = all_busy_ns();
                for (uint64_t at = 0; at < processes_count; at++) {
                    before_ns[at] = processes[at].busy_ns;
                    processes[at].longest_idle_ns = 0;
                    kernels += processes[at].kernels;
                }
            } else {
                highest = percent > highest ? percent : highest;
                lowest = percent < lowest ? percent : lowest;
            }
            span_ns = all_busy_ns();
        }
        work();
        if ((now_ns + STEP_NS) % (SET(SAMPLE_MS) * 1000000) == 0)
            take_sample(now_ns + STEP_NS);
    }
    double all_ns = (double)(all_busy_ns() - all_before_ns), least = 1e9, wait_s = 0;
    uint64_t finished = 0;
    for (uint64_t at = 0; at < processes_count; at++) {
        double part = (double)(processes[at].busy_ns - before_ns[at]) * (double)processes_count;
        least = part / all_ns < least ? part / all_ns : least;
        finished += processes[at].kernels;
        if ((double)processes[at].longest_idle_ns / 1e9 > wait_s)
            wait_s = (double)processes[at].longest_idle_ns / 1e9;
    }
    double span_all_ns = (double)(end_ns - begin_ns) * (double)devices;
    double progress = (double)(finished - kernels) * (double)SET(KERNEL_US) * 1e3 / span_all_ns;
    printf("%.1f %.1f %.1f %.2f %.1f %.1f\n", all_ns * 100 / span_all_ns, highest, lowest, least,
           wait_s, progress * 100);
    return 0;
}
