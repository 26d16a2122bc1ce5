/*
 * The figures of how busy each process is, read from an NVML that has more samples each time that
 * it is asked: `figures_model`. It ends the program if a figure is wrong; a sanitizer does if one
 * lies behind the end of its list.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../csrc/preload/busy_figures.h"
#include "../../csrc/preload/nvml.h"

#define MUST_SHOW "with %u samples", samples
#include "must.h"

static unsigned samples; /* that there are, */
static unsigned growth;  /* and how many more at the next question */
static unsigned questions;
static bool is_blackwell, is_liar;

static unsigned percent_of(unsigned pid)
{
    return pid % 101;
}

static nvmlReturn_t end_list(unsigned room, unsigned *count)
{
    unsigned there = samples;
    samples += growth;
    questions++;
    *count = there;
    if (is_liar)
        return NVML_SUCCESS; /* as if all of them had found room */
    if (there > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    return there == 0 ? NVML_ERROR_NOT_FOUND : NVML_SUCCESS;
}

static nvmlReturn_t give(nvmlDevice_t device, nvmlProcessUtilizationSample_t *out, unsigned *count,
                         unsigned long long since_us)
{
    (void)device;
    unsigned room = *count;
    for (unsigned at = 0; at < samples && at < room; at++)
        out[at] = (nvmlProcessUtilizationSample_t){
            .pid = at + 1, .timeStamp = since_us + at, .smUtil = percent_of(at + 1)};
    for (unsigned at = 0; is_blackwell && at < samples && at < room; at++)
        out[at].smUtil = 0;
    return end_list(room, count);
}

static nvmlReturn_t give_newer(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *info)
{
    (void)device;
    unsigned room = info->processSamplesCount;
    for (unsigned at = 0; at < samples && at < room; at++)
        info->procUtilArray[at] = (nvmlProcessUtilizationInfo_t){
            .pid = at + 1, .timeStamp = info->lastSeenTimeStamp + at, .smUtil = percent_of(at + 1)};
    return end_list(room, &info->processSamplesCount);
}

const struct hr_nvml_functions *hr_nvml(void)
{
    static const struct hr_nvml_functions functions = {
        .nvmlDeviceGetProcessUtilization = give,
        .nvmlDeviceGetProcessesUtilizationInfo = give_newer,
    };
    return &functions;
}

static void check(struct hr_busy_figures *figures, unsigned count)
{
    samples = count;
    MUST(hr_read_busy_figures(NULL, 1000, figures));
    unsigned known = figures->count;
    MUST(is_liar ? known <= count : known >= count);
    for (unsigned pid = 1; pid <= known; pid++)
        MUST(hr_busy_percent(figures, pid) == percent_of(pid));
    MUST(hr_busy_percent(figures, known + 1) == 0);
    if (known > 0)
        MUST(hr_newest_sample_us(figures) == 1000 + known - 1);
}

int main(void)
{
    static const unsigned counts[] = {0, 1, 127, 128, 129, 400, 3, 2000, 2001, 0};
    struct hr_busy_figures figures = {.list = NULL};
    for (int kind = 0; kind < 5; kind++) {
        is_blackwell = kind == 1 || kind == 4;
        is_liar = kind == 2 || kind == 4;
        growth = kind == 3 ? 20 : 0;
        for (size_t number = 0; number < sizeof counts / sizeof counts[0]; number++)
            check(&figures, counts[number]);
        /* Anew, so that the first list is the smallest again. */
        free(figures.list);
        free(figures.newer);
        figures = (struct hr_busy_figures){.list = NULL};
    }
    /* Where the room never is enough, both functions are asked four times, and then no more. */
    is_liar = false;
    samples = growth = 200;
    questions = 0;
    MUST(!hr_read_busy_figures(NULL, 1000, &figures));
    MUST(questions == 8);
    free(figures.list);
    free(figures.newer);
    /* Two samples of one process count together, and never more than the whole GPU. */
    nvmlProcessUtilizationSample_t both[] = {{.pid = 7, .smUtil = 60}, {.pid = 7, .smUtil = 60}};
    const struct hr_busy_figures shown = {.list = both, .count = 2, .room = 2};
    MUST(hr_busy_percent(&shown, 7) == 100);
    /* All together count as they are, without those that cannot be. */
    MUST(hr_busy_percent_of_all(&shown) == 120);
    both[1].smUtil = 101;
    MUST(hr_busy_percent_of_all(&shown) == 60);
    return 0;
}
