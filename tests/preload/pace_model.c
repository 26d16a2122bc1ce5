/*
 * How well the pace holds a limit, on a model of a GPU instead of a clock:
 * `pace_model LIMIT KERNEL_US PENDING PROCESSES SAMPLE_MS [BESIDE LAST_S DEVICE SPAN_S ACTIVE]`.
 * It prints the percent of the time for which the GPU was busy for the processes from the second
 * second on, the most work that was queued then, in seconds, and the least that one of the
 * processes that want to work had, as a part of an even share.
 *
 * Each process keeps up to PENDING kernels queued, as far as its bucket lets it.  The GPU works for
 * all of them in turn, and is sampled as NVML does it: the figures are the average of the samples
 * of the last half second, or of the last one, read every tenth of a second, in whole percent.
 *
 * A program that is not of their region works for BESIDE percent of the time.  The last process
 * begins LAST_S seconds after the others, and the time that counts two seconds later; it lasts
 * SPAN_S, ten unless told otherwise.  Only ACTIVE of the processes ever launch anything.
 *
 * What NVML says of the whole device is of its last sample, which ends half a sample before those
 * of the processes do, and a percent more or less.  Whoever finds it RECENT_NS old asks again.
 * DEVICE is "none" where it says nothing, and "hidden" where it does not show who works beside the
 * region.
 */
#include "../../csrc/preload/bucket.h"
#include "../../csrc/preload/crowd.h"
#include "../../csrc/preload/pace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEP_NS 1000000u
#define SLICE_NS 2000000u
#define PASS_NS 100000000u
#define RECENT_NS 20000000u
#define WINDOW_NS 500000000u
#define BESIDE_NS 20000000u
#define SECOND_NS UINT64_C(1000000000)
#define COST 133 /* tokens of a kernel: 132 multiprocessors and one block */

enum { MOST_PROCESSES = 48, MOST_SAMPLES = 1024 };

struct process {
    struct hr_bucket bucket;
    struct hr_pace pace;
    struct hr_crowd crowd;
    uint64_t queued, begun_ns; /* kernels; how much of the first one is done */
    uint64_t start_ns, next_pass_ns;
};

/* What the GPU does for somebody. */
struct work {
    uint64_t busy_ns, sampled_ns;
    uint32_t samples[MOST_SAMPLES], percent;
};

static struct process processes[MOST_PROCESSES];
/* For each process, and then for who is beside them. */
static struct work works[MOST_PROCESSES + 1];
static uint32_t count, active, limit, device_percent, asked_percent, beside_percent;
static uint64_t kernel_ns, pending, sample_ns, samples, beside_left_ns, device_sampled_ns, asked_ns;
static bool is_device_silent, is_beside_hidden;

static void launch(struct process *process, uint64_t now_ns)
{
    uint64_t patience_ns;
    while (process - processes < active && now_ns >= process->start_ns &&
           process->queued < pending &&
           (hr_take_tokens(&process->bucket, COST) ||
            hr_wait_for_tokens(&process->bucket, COST, now_ns, &patience_ns)))
        process->queued++;
}

/* Up to so much of somebody's work; returns how much there was. */
static uint64_t work_for(uint32_t number, uint64_t span_ns)
{
    struct process *process = &processes[number];
    uint64_t left_ns =
        number == count ? beside_left_ns : process->queued * kernel_ns - process->begun_ns;
    uint64_t done_ns = left_ns < span_ns ? left_ns : span_ns;
    works[number].busy_ns += done_ns;
    if (number == count) {
        beside_left_ns -= done_ns;
        return done_ns;
    }
    process->begun_ns += done_ns;
    process->queued -= process->begun_ns / kernel_ns;
    process->begun_ns %= kernel_ns;
    return done_ns;
}

static void work(void)
{
    static uint32_t turn;
    uint64_t left_ns = STEP_NS;
    for (uint32_t idle = 0; left_ns > 0 && idle <= count; turn++) {
        uint64_t slice_ns = left_ns < SLICE_NS ? left_ns : SLICE_NS;
        uint64_t done_ns = work_for(turn % (count + 1), slice_ns);
        left_ns -= done_ns;
        idle = done_ns == 0 ? idle + 1 : 0;
    }
}

static uint64_t queued_ns(void)
{
    uint64_t sum_ns = 0;
    for (uint32_t at = 0; at < count; at++)
        sum_ns += processes[at].queued * kernel_ns - processes[at].begun_ns;
    return sum_ns;
}

static uint64_t busy_ns(uint32_t up_to)
{
    uint64_t sum_ns = 0;
    for (uint32_t at = 0; at < up_to; at++)
        sum_ns += works[at].busy_ns;
    return sum_ns;
}

static void take_sample(void)
{
    for (uint32_t at = 0; at <= count; at++) {
        struct work *one = &works[at];
        uint64_t worked_ns = one->busy_ns - one->sampled_ns;
        one->samples[samples % MOST_SAMPLES] = (uint32_t)(worked_ns * 100 / sample_ns);
        one->sampled_ns = one->busy_ns;
    }
    samples++;
}

static void take_sample_of_device(void)
{
    static uint32_t noise = 1;
    noise = noise * 1664525 + 1013904223;
    uint64_t worked_ns = busy_ns(count + 1) - device_sampled_ns;
    int percent = (int)(worked_ns * 100 / sample_ns) + (int)(noise >> 24) % 3 - 1;
    device_percent = percent < 0 ? 0 : percent > 100 ? 100 : (uint32_t)percent;
    device_sampled_ns = busy_ns(count + 1);
}

static void read_figures(void)
{
    uint64_t wanted = WINDOW_NS / sample_ns > 0 ? WINDOW_NS / sample_ns : 1;
    for (uint32_t at = 0; at <= count; at++) {
        uint64_t sum = 0, found = 0;
        while (found < wanted && found < samples)
            sum += works[at].samples[(samples - ++found) % MOST_SAMPLES];
        works[at].percent = found == 0 ? 0 : (uint32_t)(sum / found);
    }
}

static void regulate(struct process *process, uint64_t now_ns)
{
    const double now_s = (double)now_ns / 1e9;
    struct hr_pace_view view = {.now_s = now_s,
                                .launched = (double)hr_taken_tokens(&process->bucket),
                                .limit = limit,
                                .own = works[process - processes].percent,
                                .has_waited = atomic_exchange(&process->bucket.has_waited, false)};
    uint32_t started = 0;
    for (uint32_t at = 0; at < count; at++) {
        started += now_ns >= processes[at].start_ns;
        view.all += works[at].percent;
        view.users += &processes[at] == process || works[at].percent > 0;
    }
    if (view.all > 100)
        view.all = 100;
    /* One asks for all. */
    if (now_ns >= asked_ns + RECENT_NS) {
        asked_percent = device_percent;
        asked_ns = now_ns;
    }
    if (started >= HR_CROWD && !is_device_silent)
        hr_note_crowd(&process->crowd, now_s, asked_percent,
                      is_beside_hidden ? 0 : works[count].percent);
    view.sample_s = (double)sample_ns / 1e9;
    hr_complete_view(&process->crowd, started, process->pace.rate <= 0, &view);
    hr_set_rate(&process->bucket, hr_step_pace(&process->pace, &view));
}

int main(int arguments, char **values)
{
    if (arguments < 6 || arguments > 11) {
        fprintf(stderr, "usage: pace_model LIMIT KERNEL_US PENDING PROCESSES SAMPLE_MS "
                        "[BESIDE LAST_S DEVICE SPAN_S ACTIVE]\n");
        return 2;
    }
    limit = (uint32_t)atoi(values[1]);
    kernel_ns = (uint64_t)atoll(values[2]) * 1000;
    pending = (uint64_t)atoll(values[3]);
    count = (uint32_t)atoi(values[4]);
    sample_ns = (uint64_t)atoll(values[5]) * 1000000;
    active = arguments > 10 ? (uint32_t)atoi(values[10]) : count;
    beside_percent = arguments > 6 ? (uint32_t)atoi(values[6]) : 0;
    const uint64_t last_ns = (arguments > 7 ? (uint64_t)atoll(values[7]) : 0) * SECOND_NS;
    const uint64_t span_ns = (arguments > 9 ? (uint64_t)atoll(values[9]) : 10) * SECOND_NS;
    is_device_silent = arguments > 8 && strcmp(values[8], "none") == 0;
    is_beside_hidden = arguments > 8 && strcmp(values[8], "hidden") == 0;
    processes[count - 1].start_ns = last_ns;
    for (uint32_t at = 0; at < count; at++) {
        struct process *process = &processes[at];
        hr_reset_bucket(&process->bucket, process->start_ns);
        hr_start_pace(&process->pace, (double)process->start_ns / 1e9);
        process->next_pass_ns = process->start_ns + (at + 1) * PASS_NS / (count + 1);
    }
    const uint64_t begin_ns = last_ns + 2 * SECOND_NS, end_ns = begin_ns + span_ns;
    uint64_t before_ns[MOST_PROCESSES] = {0}, all_before_ns = 0, deepest_ns = 0;
    for (uint64_t now_ns = 0; now_ns < end_ns; now_ns += STEP_NS) {
        if (now_ns % PASS_NS == PASS_NS / 2)
            read_figures();
        if (now_ns % BESIDE_NS == 0)
            beside_left_ns = BESIDE_NS * beside_percent / 100;
        for (uint32_t at = 0; at < count; at++) {
            struct process *process = &processes[at];
            if (now_ns >= process->next_pass_ns) {
                regulate(process, now_ns);
                process->next_pass_ns += PASS_NS;
            }
            launch(process, now_ns);
        }
        work();
        if ((now_ns + STEP_NS) % sample_ns == 0)
            take_sample();
        if ((now_ns + STEP_NS) % sample_ns == sample_ns / 2 / STEP_NS * STEP_NS)
            take_sample_of_device();
        for (uint32_t at = 0; at < count && now_ns == begin_ns; at++)
            before_ns[at] = works[at].busy_ns;
        if (now_ns == begin_ns)
            all_before_ns = busy_ns(count);
        if (now_ns >= begin_ns && queued_ns() > deepest_ns)
            deepest_ns = queued_ns();
    }
    double all_ns = (double)(busy_ns(count) - all_before_ns), least = 1e9;
    for (uint32_t at = 0; at < active; at++) {
        double part = (double)(works[at].busy_ns - before_ns[at]) * active / all_ns;
        least = part < least ? part : least;
    }
    printf("%.1f %.2f %.2f\n", all_ns * 100 / (double)(end_ns - begin_ns), (double)deepest_ns / 1e9,
           least);
    return 0;
}
