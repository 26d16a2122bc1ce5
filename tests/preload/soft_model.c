/*
 * How several regions share a GPU, some of them under soft limits, on a model of a GPU instead of a
 * clock: `soft_model SAMPLE_MS END_S REGION...`, each region as LIMIT,SOFT,KERNEL_US,BEGIN_S; a
 * limit of 100 is none.  Each has one process that keeps a thousand kernels queued as far as it is
 * let. Prints a line for each half second: the percent of it for which the GPU worked for each
 * region.
 *
 * The GPU works for all of them in turn, and is sampled as NVML does it.  Of the others a region
 * knows what neighbours.c would tell it: whether one without a soft limit has come or has worked
 * within the last five seconds.
 */
#include "../../csrc/preload/bucket.h"
#include "../../csrc/preload/pace.h"
#include "../../csrc/preload/soft_limit.h"

#include <stdio.h>
#include <stdlib.h>

#define STEP_NS 1000000u
#define SLICE_NS 2000000u
#define PASS_NS 100000000u
#define WINDOW_NS 500000000u
#define FRESH_NS 250000000u
#define HOLD_NS 5000000000u
#define SHOWN_NS 500000000u
#define COST 133
#define PENDING 1000

enum { MOST_REGIONS = 8, MOST_SAMPLES = 4096 };

struct region {
    uint32_t limit;
    int is_soft;
    uint64_t kernel_ns, begin_ns;
    struct hr_bucket bucket;
    struct hr_pace pace;
    struct hr_soft_limit soft;
    uint64_t queued, begun_ns, busy_ns, sampled_ns, shown_ns, worked_ns;
    uint32_t samples[MOST_SAMPLES];
};

static struct region regions[MOST_REGIONS];
static uint32_t count;
static uint64_t sample_ns, samples;

static void launch(struct region *one, uint64_t now_ns)
{
    uint64_t patience_ns;
    while (now_ns >= one->begin_ns && one->queued < PENDING &&
           (one->limit == 100 || hr_take_tokens(&one->bucket, COST) ||
            hr_wait_for_tokens(&one->bucket, COST, now_ns, &patience_ns)))
        one->queued++;
}

static void work(void)
{
    static uint32_t turn;
    uint64_t left_ns = STEP_NS;
    for (uint32_t idle = 0; left_ns > 0 && idle < count; turn++) {
        struct region *one = &regions[turn % count];
        uint64_t slice_ns = left_ns < SLICE_NS ? left_ns : SLICE_NS;
        uint64_t queued_ns = one->queued * one->kernel_ns - one->begun_ns;
        uint64_t done_ns = queued_ns < slice_ns ? queued_ns : slice_ns;
        one->begun_ns += done_ns;
        one->queued -= one->begun_ns / one->kernel_ns;
        one->begun_ns %= one->kernel_ns;
        one->busy_ns += done_ns;
        left_ns -= done_ns;
        idle = done_ns == 0 ? idle + 1 : 0;
    }
}

static void take_sample(void)
{
    for (uint32_t at = 0; at < count; at++) {
        struct region *one = &regions[at];
        uint64_t worked_ns = one->busy_ns - one->sampled_ns;
        one->samples[samples % MOST_SAMPLES] = (uint32_t)(worked_ns * 100 / sample_ns);
        one->sampled_ns = one->busy_ns;
    }
    samples++;
}

/* The average of the samples of so much time, or of the last one. */
static uint32_t percent(const struct region *one, uint64_t window_ns)
{
    uint64_t wanted = window_ns / sample_ns, sum = 0, found = 0;
    while ((found < wanted || found == 0) && found < samples)
        sum += one->samples[(samples - ++found) % MOST_SAMPLES];
    return found == 0 ? 0 : (uint32_t)(sum / found);
}

static uint32_t allow(struct region *one, double now_s, uint64_t now_ns)
{
    struct hr_soft_view view = {.now_s = now_s, .limit = one->limit, .own = percent(one, FRESH_NS)};
    if (!one->is_soft)
        return one->limit;
    for (uint32_t at = 0; at < count; at++) {
        struct region *other = &regions[at];
        if (other == one || now_ns < other->begin_ns)
            continue;
        if (percent(other, FRESH_NS) >= 3)
            other->worked_ns = now_ns;
        uint64_t last_ns = other->worked_ns > other->begin_ns ? other->worked_ns : other->begin_ns;
        if (other->is_soft)
            view.soft += percent(other, FRESH_NS);
        else if (now_ns < last_ns + HOLD_NS)
            view.is_disturbed = true;
    }
    return hr_step_soft_limit(&one->soft, &view);
}

static void regulate(struct region *one, uint64_t now_ns)
{
    uint32_t own = percent(one, WINDOW_NS);
    struct hr_pace_view view = {.now_s = (double)now_ns / 1e9,
                                .launched = (double)hr_taken_tokens(&one->bucket),
                                .own = own,
                                .all = own,
                                .users = 1,
                                .has_waited = atomic_exchange(&one->bucket.has_waited, false)};
    view.limit = allow(one, view.now_s, now_ns);
    hr_set_rate(&one->bucket, hr_step_pace(&one->pace, &view));
}

static void show(void)
{
    for (uint32_t at = 0; at < count; at++) {
        struct region *one = &regions[at];
        double busy = (double)(one->busy_ns - one->shown_ns) * 100 / SHOWN_NS;
        printf("%s%.1f", at == 0 ? "" : " ", busy);
        one->shown_ns = one->busy_ns;
    }
    printf("\n");
}

int main(int arguments, char **values)
{
    if (arguments < 4 || arguments > 3 + MOST_REGIONS) {
        fprintf(stderr, "usage: soft_model SAMPLE_MS END_S LIMIT,SOFT,KERNEL_US,BEGIN_S...\n");
        return 2;
    }
    sample_ns = (uint64_t)atoll(values[1]) * 1000000;
    const uint64_t end_ns = (uint64_t)atoll(values[2]) * 1000000000;
    for (count = 0; (int)count < arguments - 3; count++) {
        struct region *one = &regions[count];
        double begin_s;
        unsigned kernel_us;
        if (sscanf(values[3 + count], "%u,%d,%u,%lf", &one->limit, &one->is_soft, &kernel_us,
                   &begin_s) != 4)
            return 2;
        one->kernel_ns = kernel_us * 1000ull;
        one->begin_ns = (uint64_t)(begin_s * 1e9);
        hr_reset_bucket(&one->bucket, one->begin_ns);
        hr_start_pace(&one->pace, begin_s);
        hr_start_soft_limit(&one->soft, begin_s);
    }
    for (uint64_t now_ns = 0; now_ns < end_ns; now_ns += STEP_NS) {
        for (uint32_t at = 0; at < count; at++) {
            uint64_t phase_ns = (at + 1) * PASS_NS / (count + 1) / STEP_NS * STEP_NS;
            if (now_ns > regions[at].begin_ns && now_ns % PASS_NS == phase_ns &&
                regions[at].limit < 100)
                regulate(&regions[at], now_ns);
            launch(&regions[at], now_ns);
        }
        work();
        if ((now_ns + STEP_NS) % sample_ns == 0)
            take_sample();
        if ((now_ns + STEP_NS) % SHOWN_NS == 0)
            show();
    }
    return 0;
}
