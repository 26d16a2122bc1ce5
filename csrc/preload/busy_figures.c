#include "busy_figures.h"

#include <stdlib.h>

#include "nvml.h"

/* The driver keeps a hundred samples, and wants room for all of them. */
enum { FIRST_ROOM = 128, MOST_TRIES = 4, MOST_PERCENT = 100 };

static bool make_room(struct hr_busy_figures *figures, unsigned room)
{
    if (room <= figures->room)
        return true;
    nvmlProcessUtilizationSample_t *list = realloc(figures->list, room * sizeof *list);
    if (list != NULL)
        figures->list = list;
    nvmlProcessUtilizationInfo_t *newer = realloc(figures->newer, room * sizeof *newer);
    if (newer != NULL)
        figures->newer = newer;
    if (list == NULL || newer == NULL)
        return false;
    figures->room = room;
    return true;
}

static nvmlReturn_t ask(nvmlDevice_t device, uint64_t since_us, struct hr_busy_figures *figures,
                        unsigned *count)
{
    *count = figures->room;
    return hr_nvml()->nvmlDeviceGetProcessUtilization(device, figures->list, count, since_us);
}

static nvmlReturn_t ask_newer(nvmlDevice_t device, uint64_t since_us,
                              struct hr_busy_figures *figures, unsigned *count)
{
    nvmlProcessesUtilizationInfo_t info = {
        .version = sizeof info | 1u << 24,
        .processSamplesCount = figures->room,
        .lastSeenTimeStamp = since_us,
        .procUtilArray = figures->newer,
    };
    nvmlReturn_t result = hr_nvml()->nvmlDeviceGetProcessesUtilizationInfo(device, &info);
    *count = info.processSamplesCount;
    for (unsigned at = 0; result == NVML_SUCCESS && at < *count && at < figures->room; at++) {
        const nvmlProcessUtilizationInfo_t *from = &figures->newer[at];
        figures->list[at] = (nvmlProcessUtilizationSample_t){
            .pid = from->pid, .timeStamp = from->timeStamp, .smUtil = from->smUtil};
    }
    return result;
}

typedef nvmlReturn_t ask_function(nvmlDevice_t device, uint64_t since_us,
                                  struct hr_busy_figures *figures, unsigned *count);

static bool read_with(ask_function *function, nvmlDevice_t device, uint64_t since_us,
                      struct hr_busy_figures *figures)
{
    unsigned count = 0, room = FIRST_ROOM;
    nvmlReturn_t result = NVML_ERROR_INSUFFICIENT_SIZE;
    for (int tries = 0; tries < MOST_TRIES && result == NVML_ERROR_INSUFFICIENT_SIZE; tries++) {
        if (!make_room(figures, room))
            return false;
        result = function(device, since_us, figures, &count);
        room = (count > figures->room ? count : figures->room) + FIRST_ROOM;
    }
    /* No process has worked since then. */
    if (result == NVML_ERROR_NOT_FOUND)
        count = 0;
    else if (result != NVML_SUCCESS)
        return false;
    figures->count = count < figures->room ? count : figures->room;
    return true;
}

static bool shows_work(const struct hr_busy_figures *figures)
{
    for (unsigned at = 0; at < figures->count; at++) {
        if (figures->list[at].smUtil != 0)
            return true;
    }
    return false;
}

bool hr_read_busy_figures(nvmlDevice_t device, uint64_t since_us, struct hr_busy_figures *figures)
{
    if (hr_nvml() == NULL)
        return false;
    bool is_read = read_with(ask, device, since_us, figures);
    if (is_read && shows_work(figures))
        return true;
    /* With Blackwell GPUs the older function shows nobody at work. */
    return read_with(ask_newer, device, since_us, figures) || is_read;
}

uint32_t hr_busy_percent(const struct hr_busy_figures *figures, unsigned pid)
{
    uint32_t percent = 0;
    for (unsigned at = 0; at < figures->count; at++) {
        if (figures->list[at].pid == pid && figures->list[at].smUtil <= MOST_PERCENT)
            percent += figures->list[at].smUtil;
    }
    return percent < MOST_PERCENT ? percent : MOST_PERCENT;
}

uint64_t hr_busy_percent_of_all(const struct hr_busy_figures *figures)
{
    uint64_t percent = 0;
    for (unsigned at = 0; at < figures->count; at++) {
        if (figures->list[at].smUtil <= MOST_PERCENT)
            percent += figures->list[at].smUtil;
    }
    return percent;
}

uint64_t hr_newest_sample_us(const struct hr_busy_figures *figures)
{
    uint64_t newest = 0;
    for (unsigned at = 0; at < figures->count; at++) {
        if (figures->list[at].timeStamp > newest)
            newest = figures->list[at].timeStamp;
    }
    return newest;
}

void hr_note_sample_period(struct hr_sample_period *period, const struct hr_busy_figures *figures)
{
    uint64_t newest_us = hr_newest_sample_us(figures);
    if (newest_us <= period->newest_us)
        return;
    uint64_t span_us = newest_us - period->newest_us;
    if (period->newest_us != 0 && (period->shortest_us == 0 || span_us < period->shortest_us))
        period->shortest_us = span_us;
    period->newest_us = newest_us;
}
