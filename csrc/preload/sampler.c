#define _GNU_SOURCE
#include "sampler.h"

#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "../internal.h"
#include "../lock.h"
#include "../region.h"
#include "busy_figures.h"
#include "crowd.h"
#include "nvml.h"
#include "session.h"
#include "shared_figures.h"
#include "snapshots.h"

#define ELECTION_NS 500000000u
#define MEMORY_NS 1000000000u /* between two looks at how much memory the processes use */
#define EDIT_NS 100000000u    /* how long to wait for the region's lock */

/* A process that is not the sampler compares the slots with what NVML says to it so often.  Where
 * they differ by that much so many times in a row, the sampler is stopped, or kept from working:
 * then this process measures for itself, before it compares again. */
#define COMPARISON_NS 300000000u /* of many processes, all together as often as HR_CROWD do */
#define OLD_FIGURES_NS 5000000000u
enum { MOST_PERCENT_APART = 10, MOST_TIMES_APART = 3 };

/* Where the sampler of many processes has told no figures for this time, another process samples in
 * its place, and no sooner than after this time again. */
#define UNTOLD_NS 200000000u
/* The figure of a device is asked for again after this; older than that it is of no use. */
#define RECENT_NS 20000000u
#define LATEST_NS 500000000u

/* The figures are averages of that much time; at least three samples, where they are that many. */
#define WINDOW_US 500000u
#define LONGEST_WINDOW_US 1100000u
#define SAMPLES_IN_WINDOW 3u

/* What is known of the device of a row. */
struct sampled_row {
    nvmlDevice_t device;
    bool is_known;
    struct hr_sample_period period;
    uint32_t beside; /* percent, for processes that are not of the region */
    uint64_t next_comparison_ns;
    unsigned times_apart; /* comparisons in a row in which the slots were wrong */
};

static struct sampled_row sampled[HR_DEVICES];
static struct hr_byte_lock service;
static uint64_t next_election_ns, next_memory_ns;
static struct hr_busy_figures figures;

/* ---- Devices -------------------------------------------------------------------------- */

static bool find_device(const struct hr_snapshot *snapshot, int row, nvmlDevice_t *out)
{
    const char *uuid =
        (uint32_t)row < snapshot->span ? hr_snapshot_device(snapshot, (uint32_t)row)->uuid : "";
    if (hr_nvml() == NULL)
        return false;
    if (uuid[0] != '\0')
        return hr_nvml()->nvmlDeviceGetHandleByUUID(uuid, out) == NVML_SUCCESS;
    CUdevice device = hr_device_of_row(row);
    return device >= 0 && hr_nvml_device(device, out);
}

static struct sampled_row *look_up(const struct hr_snapshot *snapshot, int row)
{
    struct sampled_row *one = &sampled[row];
    if (!one->is_known)
        one->is_known = find_device(snapshot, row, &one->device);
    return one->is_known ? one : NULL;
}

bool hr_sampled_device(const struct hr_snapshot *snapshot, int row, nvmlDevice_t *out)
{
    const struct sampled_row *one = look_up(snapshot, row);
    if (one != NULL)
        *out = one->device;
    return one != NULL;
}

static uint64_t now_us(void)
{
    return hr_clock_ns(CLOCK_REALTIME) / 1000;
}

bool hr_can_sample(hr_region *region, const struct hr_snapshot *snapshot, int row)
{
    struct hr_info info;
    hr_get_info(region, &info);
    const struct sampled_row *one = look_up(snapshot, row);
    return info.layout != HR_UNVERSIONED_NO_UTIL && one != NULL &&
           hr_read_busy_figures(one->device, now_us() - LONGEST_WINDOW_US, &figures);
}

/* ---- Election ------------------------------------------------------------------------- */

static bool is_elected(const hr_region *region)
{
    uint64_t now_ns = hr_clock_ns(CLOCK_MONOTONIC);
    if (service.page != NULL)
        return true;
    if (now_ns < next_election_ns)
        return false;
    next_election_ns = now_ns + ELECTION_NS;
    return hr_lock_bytes(region, F_WRLCK, HR_SAMPLER_BYTE, 1, &service) == HR_OK;
}

void hr_resign_sampler(hr_region *region)
{
    hr_unlock_bytes(region, &service);
}

void hr_forget_sampler(void)
{
    /* The page is not in the child, and the lists may be half made. */
    service = (struct hr_byte_lock){.page = NULL};
    figures = (struct hr_busy_figures){.list = NULL};
    next_election_ns = next_memory_ns = 0;
}

/* ---- Slots ---------------------------------------------------------------------------- */

unsigned hr_slot_nvml_pid(const struct hr_process *process)
{
    return (unsigned)(process->host_pid > 0 ? process->host_pid : process->pid);
}

static uint64_t memory_of(unsigned pid, const nvmlProcessInfo_t *list, unsigned count)
{
    for (unsigned at = 0; at < count; at++) {
        if (list[at].pid == pid && list[at].usedGpuMemory != UINT64_MAX)
            return list[at].usedGpuMemory;
    }
    return 0;
}

static void write_slot(hr_region *region, const struct hr_process *process, int row,
                       const struct hr_usage *before, const struct hr_usage *now)
{
    struct hr_slot_edit edits[2];
    uint32_t count = 0;
    if (now->sm != before->sm)
        edits[count++] =
            (struct hr_slot_edit){.value = HR_SLOT_SM, .device = (uint32_t)row, .to = now->sm};
    if (now->monitor != before->monitor)
        edits[count++] = (struct hr_slot_edit){
            .value = HR_SLOT_MONITOR_USED, .device = (uint32_t)row, .to = now->monitor};
    /* What cannot be written now is tried again with the next figure. */
    if (count > 0)
        hr_edit_slot(region, process->pid, edits, count, 0, EDIT_NS, NULL);
}

static uint64_t window_us(const struct sampled_row *one)
{
    uint64_t wanted = one->period.shortest_us * SAMPLES_IN_WINDOW;
    if (wanted < WINDOW_US)
        return WINDOW_US;
    return wanted < LONGEST_WINDOW_US ? wanted : LONGEST_WINDOW_US;
}

/* What was just read, less what is of the region. */
static uint32_t percent_beside(const struct hr_snapshot *snapshot)
{
    uint64_t all = hr_busy_percent_of_all(&figures), own = 0;
    for (uint32_t number = 0; number < (uint32_t)snapshot->proc_num; number++)
        own += hr_busy_percent(&figures, hr_slot_nvml_pid(hr_snapshot_process(snapshot, number)));
    uint64_t beside = all > own ? all - own : 0;
    return beside < 100 ? (uint32_t)beside : 100;
}

/* Read a row's figures.  NULL: the row has none now. */
static struct sampled_row *read_figures(const struct hr_snapshot *snapshot, int row)
{
    struct sampled_row *one = look_up(snapshot, row);
    if (one == NULL || (uint32_t)row >= snapshot->span ||
        !hr_read_busy_figures(one->device, now_us() - window_us(one), &figures))
        return NULL;
    hr_note_sample_period(&one->period, &figures);
    one->beside = percent_beside(snapshot);
    return one;
}

static uint32_t ask_device(const struct sampled_row *one)
{
    nvmlUtilization_t whole;
    bool is_told = hr_nvml()->nvmlDeviceGetUtilizationRates(one->device, &whole) == NVML_SUCCESS &&
                   whole.gpu <= 100;
    return is_told ? whole.gpu : HR_NOT_TOLD;
}

/* What was asked a moment ago; or is asked now, for all; or somebody else is asking for all. */
static bool find_device_figure(hr_region *region, const struct sampled_row *one, int row,
                               uint32_t *out)
{
    if (hr_find_figure(region, row, HR_FIGURE_DEVICE, RECENT_NS, out))
        return true;
    if (!hr_claim_figure(region, row, HR_FIGURE_DEVICE, RECENT_NS))
        return hr_find_figure(region, row, HR_FIGURE_DEVICE, LATEST_NS, out);
    *out = ask_device(one);
    hr_share_figure(region, row, HR_FIGURE_DEVICE, *out);
    return true;
}

/* What was just read of others. */
static uint32_t pack_beside(const struct sampled_row *one)
{
    return hr_pack_beside(one->beside, one->period.shortest_us);
}

bool hr_read_device_figures(hr_region *region, const struct hr_snapshot *snapshot, int row,
                            struct hr_device_figures *out)
{
    uint32_t percent, beside;
    const struct sampled_row *one = look_up(snapshot, row);
    if (one == NULL || !find_device_figure(region, one, row, &percent) || percent > 100)
        return false;
    if (!hr_find_figure(region, row, HR_FIGURE_BESIDE, LATEST_NS, &beside))
        beside = pack_beside(one);
    *out = (struct hr_device_figures){.device = percent,
                                      .beside = hr_beside_percent(beside),
                                      .sample_s = hr_beside_sample_s(beside)};
    return true;
}

static void sample_row(hr_region *region, struct hr_snapshot *snapshot, int row, bool with_memory)
{
    const struct sampled_row *one = read_figures(snapshot, row);
    if (one == NULL)
        return;
    if (hr_count_users(snapshot, row) >= HR_CROWD)
        hr_share_figure(region, row, HR_FIGURE_BESIDE, pack_beside(one));
    unsigned count = 0;
    nvmlProcessInfo_t *list = with_memory ? hr_nvml_processes(one->device, &count) : NULL;
    for (uint32_t number = 0; number < (uint32_t)snapshot->proc_num; number++) {
        const struct hr_process *process = hr_snapshot_process(snapshot, number);
        const struct hr_usage *before = hr_snapshot_usage(snapshot, number, (uint32_t)row);
        struct hr_usage now = *before;
        now.sm = hr_busy_percent(&figures, hr_slot_nvml_pid(process));
        if (list != NULL)
            now.monitor = memory_of(hr_slot_nvml_pid(process), list, count);
        write_slot(region, process, row, before, &now);
        /* The snapshot is the caller's own memory. */
        *(struct hr_usage *)(uintptr_t)before = now;
    }
    free(list);
}

/* The sampler tells the crowd in each pass.  Where it has not, one other process samples in its
 * place, and leaves the memory alone. */
static void sample_in_its_place(hr_region *region, struct hr_snapshot *snapshot, int row)
{
    uint32_t told;
    if (!hr_find_figure(region, row, HR_FIGURE_BESIDE, UNTOLD_NS, &told) &&
        hr_claim_figure(region, row, HR_FIGURE_BESIDE, UNTOLD_NS))
        sample_row(region, snapshot, row, false);
}

/* ---- Figures of a sampler that is stopped --------------------------------------------- */

/* How wrong the slots of a row are at most. */
static uint64_t percent_apart(const struct hr_snapshot *snapshot, int row)
{
    uint64_t most = 0;
    for (uint32_t number = 0; number < (uint32_t)snapshot->proc_num; number++) {
        uint64_t said = hr_snapshot_usage(snapshot, number, (uint32_t)row)->sm;
        uint64_t seen =
            hr_busy_percent(&figures, hr_slot_nvml_pid(hr_snapshot_process(snapshot, number)));
        uint64_t apart = said > seen ? said - seen : seen - said;
        most = apart > most ? apart : most;
    }
    return most;
}

/* Take the figures as they were just read; of the slots, each process writes its own. */
static void use_figures(hr_region *region, struct hr_snapshot *snapshot, int row)
{
    for (uint32_t number = 0; number < (uint32_t)snapshot->proc_num; number++) {
        const struct hr_process *process = hr_snapshot_process(snapshot, number);
        const struct hr_usage *before = hr_snapshot_usage(snapshot, number, (uint32_t)row);
        struct hr_usage now = *before;
        now.sm = hr_busy_percent(&figures, hr_slot_nvml_pid(process));
        if (process->pid == getpid())
            write_slot(region, process, row, before, &now);
        *(struct hr_usage *)(uintptr_t)before = now;
    }
}

/* When to compare again.  Whoever has found a difference soon knows whether it stays. */
static uint64_t next_comparison_ns(const struct sampled_row *one, bool was_old, uint32_t processes)
{
    if (one->times_apart >= MOST_TIMES_APART)
        return OLD_FIGURES_NS;
    if (one->times_apart > 0 || was_old || processes < HR_CROWD)
        return COMPARISON_NS;
    return (uint64_t)COMPARISON_NS * processes / HR_CROWD;
}

static void compare_row(hr_region *region, struct hr_snapshot *snapshot, int row, uint64_t now_ns)
{
    struct sampled_row *one = look_up(snapshot, row);
    if (one == NULL)
        return;
    bool is_due = now_ns >= one->next_comparison_ns;
    if ((!is_due && one->times_apart < MOST_TIMES_APART) || read_figures(snapshot, row) == NULL)
        return;
    if (is_due) {
        bool is_apart = percent_apart(snapshot, row) > MOST_PERCENT_APART;
        bool was_old = one->times_apart >= MOST_TIMES_APART;
        /* The first one after a while of figures of its own decides nothing. */
        one->times_apart = is_apart && !was_old ? one->times_apart + 1 : 0;
        one->next_comparison_ns =
            now_ns + next_comparison_ns(one, was_old, hr_count_users(snapshot, row));
    }
    if (one->times_apart >= MOST_TIMES_APART)
        use_figures(region, snapshot, row);
}

/* ---- Passes --------------------------------------------------------------------------- */

void hr_sample(hr_region *region, struct hr_snapshot *snapshot, uint32_t rows)
{
    bool serves = is_elected(region);
    uint64_t now_ns = hr_clock_ns(CLOCK_MONOTONIC);
    bool with_memory = serves && now_ns >= next_memory_ns;
    if (with_memory)
        next_memory_ns = now_ns + MEMORY_NS;
    for (int row = 0; row < HR_DEVICES; row++) {
        if ((rows >> row & 1) == 0)
            continue;
        if (serves) {
            sample_row(region, snapshot, row, with_memory);
            continue;
        }
        if (hr_count_users(snapshot, row) >= HR_CROWD)
            sample_in_its_place(region, snapshot, row);
        compare_row(region, snapshot, row, now_ns);
    }
}
