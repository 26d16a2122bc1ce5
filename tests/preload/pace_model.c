/*
 * How well the pace holds a limit, on a model of a GPU instead of a clock:
 * `pace_model LIMIT KERNEL_US PENDING PROCESSES SAMPLE_MS` prints the percent of the time for which
 * the GPU was busy between the second and the twelfth second, and the most work that was queued
 * then, in seconds.
 *
 * Each process keeps up to PENDING kernels queued, as far as its bucket lets it.  The GPU works for
 * all of them in turn, and is sampled as NVML does it: the figures are the average of the samples
 * of the last half second, read every tenth of a second, in whole percent.
 */
#include "../../csrc/preload/bucket.h"
#include "../../csrc/preload/pace.h"

#include <stdio.h>
#include <stdlib.h>

#define STEP_NS 1000000u
#define SLICE_NS 2000000u
#define PASS_NS 100000000u
#define WINDOW_NS 500000000u
#define BEGIN_NS 2000000000u
#define END_NS 12000000000u
#define COST 133 /* tokens of a kernel: 132 multiprocessors and one block */

enum { MOST_PROCESSES = 48, MOST_SAMPLES = 1024 };

struct process {
    struct hr_bucket bucket;
    struct hr_pace pace;
    uint64_t queued, begun_ns; /* kernels; how much of the first one is done */
    uint64_t busy_ns, sampled_ns;
    uint32_t samples[MOST_SAMPLES], percent;
    uint64_t next_pass_ns;
};

static struct process processes[MOST_PROCESSES];
static uint32_t count, limit;
static uint64_t kernel_ns, pending, sample_ns, samples;

static void launch(struct process *process, uint64_t now_ns)
{
    uint64_t patience_ns;
    while (process->queued < pending &&
           (hr_take_tokens(&process->bucket, COST) ||
            hr_wait_for_tokens(&process->bucket, COST, now_ns, &patience_ns)))
        process->queued++;
}

/* Up to so much of the process's work; returns how much there was. */
static uint64_t work_for(struct process *process, uint64_t span_ns)
{
    uint64_t left_ns = process->queued * kernel_ns - process->begun_ns;
    uint64_t done_ns = left_ns < span_ns ? left_ns : span_ns;
    process->begun_ns += done_ns;
    process->queued -= process->begun_ns / kernel_ns;
    process->begun_ns %= kernel_ns;
    process->busy_ns += done_ns;
    return done_ns;
}

static void work(void)
{
    static uint32_t turn;
    uint64_t left_ns = STEP_NS;
    for (uint32_t idle = 0; left_ns > 0 && idle < count; turn++) {
        uint64_t slice_ns = left_ns < SLICE_NS ? left_ns : SLICE_NS;
        uint64_t done_ns = work_for(&processes[turn % count], slice_ns);
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

static void take_sample(void)
{
    for (uint32_t at = 0; at < count; at++) {
        struct process *process = &processes[at];
        uint64_t worked_ns = process->busy_ns - process->sampled_ns;
        process->samples[samples % MOST_SAMPLES] = (uint32_t)(worked_ns * 100 / sample_ns);
        process->sampled_ns = process->busy_ns;
    }
    samples++;
}

static void read_figures(void)
{
    uint64_t wanted = WINDOW_NS / sample_ns;
    for (uint32_t at = 0; at < count; at++) {
        uint64_t sum = 0, found = 0;
        while (found < wanted && found < samples)
            sum += processes[at].samples[(samples - ++found) % MOST_SAMPLES];
        processes[at].percent = found == 0 ? 0 : (uint32_t)(sum / found);
    }
}

static void regulate(struct process *process, uint64_t now_ns)
{
    struct hr_pace_view view = {.now_s = (double)now_ns / 1e9,
                                .launched = (double)hr_taken_tokens(&process->bucket),
                                .limit = limit,
                                .own = process->percent,
                                .has_waited = atomic_exchange(&process->bucket.has_waited, false)};
    for (uint32_t at = 0; at < count; at++) {
        view.all += processes[at].percent;
        view.users += &processes[at] == process || processes[at].percent > 0;
    }
    hr_set_rate(&process->bucket, hr_step_pace(&process->pace, &view));
}

int main(int arguments, char **values)
{
    if (arguments != 6) {
        fprintf(stderr, "usage: pace_model LIMIT KERNEL_US PENDING PROCESSES SAMPLE_MS\n");
        return 2;
    }
    limit = (uint32_t)atoi(values[1]);
    kernel_ns = (uint64_t)atoll(values[2]) * 1000;
    pending = (uint64_t)atoll(values[3]);
    count = (uint32_t)atoi(values[4]);
    sample_ns = (uint64_t)atoll(values[5]) * 1000000;
    for (uint32_t at = 0; at < count; at++) {
        hr_reset_bucket(&processes[at].bucket, 0);
        hr_start_pace(&processes[at].pace, 0);
        processes[at].next_pass_ns = (at + 1) * PASS_NS / (count + 1);
    }
    uint64_t before_ns = 0, busy_ns = 0, deepest_ns = 0;
    for (uint64_t now_ns = 0; now_ns < END_NS; now_ns += STEP_NS) {
        if (now_ns % PASS_NS == PASS_NS / 2)
            read_figures();
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
        busy_ns = 0;
        for (uint32_t at = 0; at < count; at++)
            busy_ns += processes[at].busy_ns;
        if (now_ns == BEGIN_NS)
            before_ns = busy_ns;
        if (now_ns >= BEGIN_NS && queued_ns() > deepest_ns)
            deepest_ns = queued_ns();
    }
    printf("%.1f %.2f\n", (double)(busy_ns - before_ns) * 100 / (END_NS - BEGIN_NS),
           (double)deepest_ns / 1e9);
    return 0;
}
