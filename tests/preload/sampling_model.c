/*
 * Who measures, what the slots then say, and which pid is this process's, by an NVML and a region
 * that show what is asked for here: `sampling_model`. It ends the program if something is wrong.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../csrc/internal.h"
#include "../../csrc/lock.h"
#include "../../csrc/preload/crowd.h"
#include "../../csrc/preload/nvml.h"
#include "../../csrc/preload/own_pid.h"
#include "../../csrc/preload/sampler.h"
#include "../../csrc/preload/session.h"
#include "../../csrc/preload/shared_figures.h"
#include "../../csrc/preload/snapshots.h"
#include "../../csrc/proc.h"
#include "../../csrc/region.h"

#include "must.h"

/* What a forked child forgets is the parent's, and lost. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "detect_leaks=0";
}

#define SECOND UINT64_C(1000000000)
enum { ROWS = 2, PROCESSES = 12, MOST = 200, NOBODY = 99999990 };

/* ---- What NVML shows ------------------------------------------------------------------ */

static nvmlProcessInfo_t listed[MOST];
static unsigned listed_count, lists_made;
static nvmlProcessUtilizationSample_t samples[MOST];
static unsigned sample_count;
static uint64_t asked_since_us;
static bool is_silent, has_no_list, has_no_nvml, has_no_device;
static const char *asked_uuid;
static unsigned learnt_pid;
static uint64_t now_ns = 1000 * SECOND;

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

static nvmlReturn_t give_handle(const char *uuid, nvmlDevice_t *out)
{
    asked_uuid = uuid;
    *out = NULL;
    return has_no_device ? NVML_ERROR_UNINITIALIZED : NVML_SUCCESS;
}

static unsigned device_percent, device_asked;
static bool is_device_silent;

static nvmlReturn_t give_rates(nvmlDevice_t device, nvmlUtilization_t *out)
{
    (void)device;
    device_asked++;
    *out = (nvmlUtilization_t){.gpu = device_percent, .memory = 77};
    return is_device_silent ? NVML_ERROR_UNINITIALIZED : NVML_SUCCESS;
}

const struct hr_nvml_functions *hr_nvml(void)
{
    static const struct hr_nvml_functions functions = {
        .nvmlDeviceGetHandleByUUID = give_handle,
        .nvmlDeviceGetProcessUtilization = give,
        .nvmlDeviceGetUtilizationRates = give_rates,
        .nvmlDeviceGetProcessesUtilizationInfo = give_newer,
    };
    return has_no_nvml ? NULL : &functions;
}

bool hr_nvml_device(CUdevice device, nvmlDevice_t *out)
{
    *out = NULL;
    return device == 5 && !has_no_device;
}

nvmlProcessInfo_t *hr_nvml_processes(nvmlDevice_t device, unsigned *count)
{
    (void)device;
    if (has_no_list)
        return NULL;
    lists_made++;
    nvmlProcessInfo_t *list = calloc(MOST, sizeof *list);
    memcpy(list, listed, listed_count * sizeof *list);
    *count = listed_count;
    return list;
}

unsigned hr_own_nvml_pid(void)
{
    return learnt_pid == 0 ? (unsigned)getpid() : learnt_pid;
}

void hr_set_own_nvml_pid(unsigned pid)
{
    learnt_pid = pid;
}

static void show_process(unsigned pid, uint64_t bytes)
{
    listed[listed_count++] = (nvmlProcessInfo_t){.pid = pid, .usedGpuMemory = bytes};
}

static void show_work(unsigned pid, unsigned percent)
{
    samples[sample_count++] =
        (nvmlProcessUtilizationSample_t){.pid = pid, .timeStamp = now_ns / 1000, .smUtil = percent};
}

uint64_t hr_clock_ns(int clock)
{
    (void)clock;
    return now_ns;
}

/* ---- The region ----------------------------------------------------------------------- */

static struct {
    struct hr_snapshot head;
    struct hr_device devices[ROWS];
    struct {
        struct hr_process process;
        struct hr_usage usage[ROWS];
    } slots[PROCESSES];
} region = {.head = {.span = ROWS}};

static hr_region *const handle = (hr_region *)(void *)&region;
static bool has_no_region, has_no_snapshot;
static uint32_t layout = HR_V1_2;
static CUdevice device_of_row = 5;

/* What was last written, in the slots of whom, and how often anything was. */
static struct hr_slot_edit written[2 * PROCESSES];
static int32_t written_pids[2 * PROCESSES];
static unsigned writes;

/* hr_edit_slot() and others stand for functions of which each keeps the details. */
#undef hr_edit_slot
#undef hr_get_info
#undef hr_lock_bytes

int hr_edit_slot(hr_region *of, int32_t pid, struct hr_slot_edit *edits, uint32_t count,
                 uint32_t dry_run, uint64_t timeout_ns, struct hr_error *error)
{
    (void)error;
    MUST(of == handle && dry_run == 0 && timeout_ns > 0);
    for (uint32_t at = 0; at < count; at++) {
        written[writes] = edits[at];
        written_pids[writes++] = pid;
    }
    return HR_OK;
}

void hr_get_info(const hr_region *of, struct hr_info *out)
{
    (void)of;
    *out = (struct hr_info){.layout = layout};
}

static bool is_taken;
static unsigned elections;

int hr_lock_bytes(const hr_region *of, short type, off_t start, off_t length,
                  struct hr_byte_lock *out)
{
    (void)of, (void)type, (void)start;
    MUST(length == 1);
    elections++;
    if (!is_taken)
        out->page = &region;
    return is_taken ? HR_EBUSY : HR_OK;
}

void hr_unlock_bytes(const hr_region *of, struct hr_byte_lock *lock)
{
    (void)of;
    lock->page = NULL;
}

hr_region *hr_session_region(void)
{
    return has_no_region ? NULL : handle;
}

CUdevice hr_device_of_row(int row)
{
    return row == 0 ? device_of_row : -1;
}

struct hr_snapshot *hr_new_snapshot(hr_region *of, int *code)
{
    *code = HR_ESYSTEM;
    (void)of;
    if (has_no_snapshot)
        return NULL;
    struct hr_snapshot *copy = malloc(sizeof region);
    memcpy(copy, &region, sizeof region);
    return copy;
}

/* What the processes have told each other of row 0: when, in ns, and what. */
static struct {
    uint64_t at_ns, claimed_ns;
    uint32_t value;
} told[HR_FIGURES];
static unsigned told_times[HR_FIGURES];

void hr_share_figure(hr_region *of, int row, enum hr_figure figure, uint32_t value)
{
    MUST(of == handle && row == 0);
    told[figure].at_ns = now_ns;
    told[figure].value = value;
    told_times[figure]++;
}

bool hr_find_figure(hr_region *of, int row, enum hr_figure figure, uint64_t oldest_ns,
                    uint32_t *out)
{
    MUST(of == handle && row == 0);
    *out = told[figure].value;
    return told[figure].at_ns != 0 && now_ns - told[figure].at_ns < oldest_ns;
}

bool hr_claim_figure(hr_region *of, int row, enum hr_figure figure, uint64_t period_ns)
{
    MUST(of == handle && row == 0);
    if (told[figure].claimed_ns != 0 && now_ns - told[figure].claimed_ns < period_ns)
        return false;
    told[figure].claimed_ns = now_ns;
    return true;
}

static struct hr_mapper self;
static enum hr_seen self_seen = HR_MAPS;

enum hr_seen hr_read_pids(int directory, const char *status, struct hr_mapper *out)
{
    (void)directory;
    MUST(strcmp(status, "/proc/self/status") == 0);
    *out = self;
    return self_seen;
}

static void set_slot(unsigned number, int32_t pid, int32_t host_pid)
{
    region.slots[number].process = (struct hr_process){.pid = pid, .host_pid = host_pid};
    memset(region.slots[number].usage, 0, sizeof region.slots[number].usage);
    if (region.head.proc_num <= (int32_t)number)
        region.head.proc_num = (int32_t)number + 1;
}

/* Nothing was shown, learnt or written. */
static void begin(void)
{
    listed_count = sample_count = writes = elections = lists_made = 0;
    is_silent = has_no_list = has_no_nvml = has_no_device = false;
    has_no_region = has_no_snapshot = is_taken = false;
    learnt_pid = 0;
    region.head.proc_num = 0;
    memset(told, 0, sizeof told);
    now_ns += 100 * SECOND;
    hr_resign_sampler(handle);
    hr_forget_sampler();
    hr_forget_own_pid();
}

/* ---- Which pid is this process's ------------------------------------------------------- */

static bool find(void)
{
    writes = 0;
    return hr_find_own_pid(handle, &region.head, 0, NULL);
}

static void check_own_pid(void)
{
    begin();
    set_slot(0, getpid(), 0);
    show_process(NOBODY, 1);
    show_process((unsigned)getpid(), 1);
    /* As itself: nothing is to be learnt, whoever else is there. */
    MUST(find() && learnt_pid == 0 && writes == 0);
    listed_count--;
    MUST(find() && learnt_pid == NOBODY && writes == 1);
    MUST(written_pids[0] == getpid() && written[0].to == NOBODY);
    MUST(written[0].value == HR_SLOT_HOST_PID);
    /* One of two it may be either. */
    begin();
    show_process(NOBODY, 1);
    show_process(NOBODY + 1, 1);
    MUST(!find() && learnt_pid == 0 && writes == 0);
    /* Not the one that another slot has claimed, */
    set_slot(0, 1, 0);
    set_slot(1, 2, NOBODY + 1);
    MUST(find() && learnt_pid == NOBODY);
    /* nor one that is a process here, */
    begin();
    show_process(NOBODY, 1);
    show_process((unsigned)getppid(), 1);
    MUST(find() && learnt_pid == NOBODY);
    /* nor one that was there before. */
    begin();
    show_process(NOBODY, 1);
    show_process(NOBODY + 2, 1);
    hr_note_others(0, 5);
    show_process(NOBODY + 1, 1);
    MUST(find() && learnt_pid == NOBODY + 1);
    begin();
    has_no_list = true;
    MUST(!find());
}

/* Those that are there are asked for once for a row, and not where it is of no use. */
static void check_others(void)
{
    begin();
    hr_note_others(-1, 5);
    hr_note_others(0, 4);
    MUST(lists_made == 0);
    has_no_list = true;
    hr_note_others(0, 5);
    has_no_list = false;
    show_process(NOBODY, 1);
    hr_note_others(0, 5);
    hr_note_others(0, 5);
    MUST(lists_made == 1);
    hr_note_others(1, 5);
    MUST(lists_made == 2);
    hr_forget_own_pid();
    MUST(!hr_is_own_pid_known());
    hr_confirm_own_pid();
    MUST(hr_is_own_pid_known());
    hr_note_others(0, 5);
    MUST(lists_made == 2);
}

static void check_learning(void)
{
    begin();
    set_slot(0, getpid(), 0);
    show_process(NOBODY, 1);
    has_no_region = true;
    MUST(!hr_learn_own_pid(0, 5));
    has_no_region = false;
    has_no_snapshot = true;
    MUST(!hr_learn_own_pid(0, 5));
    has_no_snapshot = false;
    MUST(!hr_learn_own_pid(0, 4) && learnt_pid == 0);
    MUST(hr_learn_own_pid(0, 5) && learnt_pid == NOBODY);
    hr_confirm_own_pid();
    MUST(!hr_learn_own_pid(0, 5));
}

/* Where /proc has the pid of the first namespace, the slot gets that one. */
static void check_telling(void)
{
    begin();
    self = (struct hr_mapper){.pids = {getpid(), 1}, .levels = 2};
    hr_tell_host_pid(handle);
    MUST(learnt_pid == 0 && writes == 1 && written[0].to == (uint64_t)getpid());
    self.pids[0] = NOBODY;
    hr_tell_host_pid(handle);
    MUST(learnt_pid == NOBODY && writes == 2 && written[1].to == NOBODY);
    begin();
    self.levels = 0;
    hr_tell_host_pid(handle);
    self.levels = 1;
    self_seen = HR_GONE;
    hr_tell_host_pid(handle);
    self_seen = HR_MAPS;
    MUST(learnt_pid == 0 && writes == 2);
}

/* ---- Measuring for all ----------------------------------------------------------------- */

static void sample(uint64_t later_ns)
{
    now_ns += later_ns;
    writes = 0;
    hr_sample(handle, &region.head, 1);
}

static void check_service(void)
{
    begin();
    set_slot(0, getpid(), 0);
    set_slot(1, 77, NOBODY);
    set_slot(2, NOBODY + 1, 0);
    show_work((unsigned)getpid(), 20);
    show_work(NOBODY, 30);
    show_work(77, 99);
    show_process(NOBODY, 4096);
    show_process(NOBODY + 1, UINT64_MAX); /* not known */
    show_process(NOBODY + 1, 8192);
    sample(0);
    MUST(elections == 1 && asked_since_us == now_ns / 1000 - 500000);
    MUST(writes == 4);
    MUST(written_pids[0] == getpid() && written[0].value == HR_SLOT_SM && written[0].to == 20);
    MUST(written_pids[1] == 77 && written[1].value == HR_SLOT_SM && written[1].to == 30);
    MUST(written_pids[2] == 77 && written[2].value == HR_SLOT_MONITOR_USED);
    MUST(written[2].to == 4096 && written[2].device == 0);
    MUST(written_pids[3] == NOBODY + 1 && written[3].to == 8192);
    MUST(region.slots[1].usage[0].sm == 30 && region.slots[1].usage[0].monitor == 4096);
    MUST(region.slots[1].usage[1].sm == 0);
    /* What has not changed is not written; memory is asked for once a second. */
    listed[0].usedGpuMemory = 1;
    sample(SECOND / 10);
    MUST(writes == 0 && elections == 1 && lists_made == 1);
    samples[1].smUtil = 31;
    sample(SECOND);
    MUST(writes == 2 && written[0].to == 31 && written[1].to == 1 && lists_made == 2);
    /* Without a list memory stays what it was. */
    has_no_list = true;
    sample(SECOND);
    MUST(writes == 0);
    /* A row that is not asked for, or has no figures, is left alone. */
    samples[1].smUtil = 50;
    hr_sample(handle, &region.head, 0);
    is_silent = true;
    sample(SECOND / 10);
    MUST(writes == 0);
    is_silent = false;
    sample(SECOND / 10);
    MUST(writes == 1);
    /* Whoever has resigned has to be elected again. */
    hr_resign_sampler(handle);
    sample(SECOND);
    MUST(elections == 2);
}

/* Samples that come seldom are averaged over three of them, but not over more than 1.1 s. */
static void check_windows(uint64_t period_ns, uint64_t wanted_us)
{
    begin();
    set_slot(0, getpid(), 0);
    for (int round = 0; round < 3; round++) {
        sample_count = 0;
        now_ns += period_ns;
        show_work((unsigned)getpid(), 20);
        sample(0);
    }
    sample(1000);
    /* What was learnt of a device stays; the shortest period counts. */
    MUST(asked_since_us == now_ns / 1000 - wanted_us);
}

static void check_elections(void)
{
    begin();
    is_taken = true;
    set_slot(0, getpid(), 0);
    show_work((unsigned)getpid(), 20);
    sample(0);
    sample(SECOND / 2 - 1);
    MUST(elections == 1);
    sample(1);
    MUST(elections == 2 && writes == 0);
    is_taken = false;
    sample(SECOND / 2);
    MUST(elections == 3 && writes == 1);
}

/* The slots are wrong three times in a row: whoever writes them is stopped. */
static void check_comparisons(void)
{
    begin();
    is_taken = true;
    set_slot(0, getpid(), 0);
    set_slot(1, 77, NOBODY);
    show_work((unsigned)getpid(), 40);
    show_work(NOBODY, 10);
    region.slots[0].usage[0].sm = 30;
    region.slots[1].usage[0].sm = 20;
    /* By ten points they may differ, in either direction. */
    for (int at = 0; at < 10; at++)
        sample(SECOND);
    MUST(writes == 0 && region.slots[0].usage[0].sm == 30);
    region.slots[1].usage[0].sm = 21;
    sample(SECOND);
    sample(SECOND * 3 / 10 - 1); /* too soon to be another comparison */
    sample(1);
    MUST(writes == 0);
    region.slots[1].usage[0].sm = 20; /* in between they are right */
    sample(SECOND * 3 / 10);
    region.slots[0].usage[0].sm = 29;
    sample(SECOND * 3 / 10);
    sample(SECOND * 3 / 10);
    MUST(writes == 0 && region.slots[0].usage[0].sm == 29);
    sample(SECOND * 3 / 10);
    /* Each writes its own slot, and takes the figures of all. */
    MUST(writes == 1 && written_pids[0] == getpid() && written[0].to == 40);
    MUST(region.slots[0].usage[0].sm == 40 && region.slots[1].usage[0].sm == 10);
    /* For five seconds nobody compares; then it takes three times again. */
    samples[0].smUtil = 60;
    sample(5 * SECOND - 1);
    MUST(writes == 1 && region.slots[0].usage[0].sm == 60);
    region.slots[1].usage[0].sm = 99;
    sample(1);
    MUST(writes == 0 && region.slots[1].usage[0].sm == 99);
    sample(SECOND * 3 / 10);
    sample(SECOND * 3 / 10);
    MUST(writes == 0);
    sample(SECOND * 3 / 10);
    MUST(region.slots[1].usage[0].sm == 10);
}

/* This first: what is known of a device is kept. */
static void check_devices(void)
{
    nvmlDevice_t device;
    begin();
    set_slot(0, getpid(), 0);
    has_no_nvml = true;
    MUST(!hr_can_sample(handle, &region.head, 0) && !hr_sampled_device(&region.head, 0, &device));
    has_no_nvml = false;
    has_no_device = true;
    MUST(!hr_can_sample(handle, &region.head, 0));
    has_no_device = false;
    device_of_row = -1;
    MUST(!hr_can_sample(handle, &region.head, 0));
    device_of_row = 5;
    is_silent = true;
    MUST(!hr_can_sample(handle, &region.head, 0));
    is_silent = false;
    layout = HR_UNVERSIONED_NO_UTIL;
    MUST(!hr_can_sample(handle, &region.head, 0));
    layout = HR_V1_2;
    MUST(hr_can_sample(handle, &region.head, 0) && asked_uuid == NULL);
    MUST(asked_since_us == now_ns / 1000 - 1100000);
    MUST(hr_sampled_device(&region.head, 0, &device));
    /* By its uuid where the region has one. */
    MUST(!hr_sampled_device(&region.head, 1, &device));
    strcpy(region.devices[1].uuid, "GPU-1");
    MUST(hr_sampled_device(&region.head, 1, &device) && strcmp(asked_uuid, "GPU-1") == 0);
    /* A row that the region does not have. */
    MUST(!hr_sampled_device(&region.head, ROWS, &device));
}

/* So many processes of the region with a context; the first one is this. */
static void crowd(unsigned processes)
{
    begin();
    set_slot(0, getpid(), 0);
    for (unsigned number = 1; number < processes; number++) {
        set_slot(number, (int32_t)(NOBODY + 100 + number), 0);
        region.slots[number].usage[0].total = 1;
    }
    show_work((unsigned)getpid(), 20);
}

/* How busy the device is, and how busy processes that are not of the region keep it. */
static void check_the_device(void)
{
    struct hr_device_figures seen;
    crowd(HR_CROWD);
    show_work(NOBODY, 30);
    show_work(77, 5);
    show_work(NOBODY + 2, 101); /* cannot be */
    set_slot(1, 77, NOBODY);
    device_percent = 63;
    device_asked = 0;
    sample(0);
    MUST(device_asked == 0);
    MUST(hr_read_device_figures(handle, &region.head, 0, &seen) && device_asked == 1);
    MUST(seen.device == 63 && seen.beside == 5);
    /* Nobody else works any more. */
    sample_count = 2;
    sample(SECOND);
    MUST(hr_read_device_figures(handle, &region.head, 0, &seen) && seen.beside == 0);
    /* Where no process has shared what others do, one that is not the sampler takes it from the
     * figures that it compares. */
    begin();
    is_taken = true;
    set_slot(0, getpid(), 0);
    show_work((unsigned)getpid(), 20);
    show_work(NOBODY, 200 / 2);
    sample(0);
    MUST(hr_read_device_figures(handle, &region.head, 0, &seen) && seen.beside == 100);
    now_ns += SECOND;
    device_percent = 101;
    MUST(!hr_read_device_figures(handle, &region.head, 0, &seen));
    now_ns += SECOND;
    device_percent = 100;
    is_device_silent = true;
    MUST(!hr_read_device_figures(handle, &region.head, 0, &seen));
    now_ns += SECOND;
    is_device_silent = false;
    MUST(hr_read_device_figures(handle, &region.head, 0, &seen) && seen.device == 100);
    MUST(!hr_read_device_figures(handle, &region.head, ROWS, &seen));
}

/* One asks for all, and not again for 20 ms, whoever it is and whatever became of it. */
static void check_shared_questions(void)
{
    struct hr_device_figures seen;
    crowd(HR_CROWD);
    is_taken = true;
    device_percent = 40;
    device_asked = 0;
    MUST(hr_read_device_figures(handle, &region.head, 0, &seen) && device_asked == 1);
    device_percent = 60;
    now_ns += 19 * SECOND / 1000;
    MUST(hr_read_device_figures(handle, &region.head, 0, &seen) && device_asked == 1);
    MUST(seen.device == 40);
    now_ns += SECOND / 1000;
    MUST(hr_read_device_figures(handle, &region.head, 0, &seen) && device_asked == 2);
    MUST(seen.device == 60);
    /* Another process is asking the driver: until it has shared the answer, the last figure
     * counts, for half a second. */
    now_ns += SECOND / 5;
    told[HR_FIGURE_DEVICE].claimed_ns = now_ns;
    MUST(hr_read_device_figures(handle, &region.head, 0, &seen) && device_asked == 2);
    MUST(seen.device == 60);
    now_ns += SECOND;
    told[HR_FIGURE_DEVICE].claimed_ns = now_ns;
    MUST(!hr_read_device_figures(handle, &region.head, 0, &seen) && device_asked == 2);
    now_ns += 20 * SECOND / 1000;
    MUST(hr_read_device_figures(handle, &region.head, 0, &seen) && device_asked == 3);
    /* That it has none is told likewise. */
    is_device_silent = true;
    now_ns += SECOND;
    MUST(!hr_read_device_figures(handle, &region.head, 0, &seen) && device_asked == 4);
    MUST(!hr_read_device_figures(handle, &region.head, 0, &seen) && device_asked == 4);
    is_device_silent = false;
    /* What the sampler tells of others counts for more than what this process has compared. */
    now_ns += SECOND;
    told[HR_FIGURE_BESIDE].at_ns = now_ns;
    told[HR_FIGURE_BESIDE].value = hr_pack_beside(17, 250000);
    MUST(hr_read_device_figures(handle, &region.head, 0, &seen));
    MUST(seen.beside == 17 && seen.sample_s == 0.25);
    told[HR_FIGURE_BESIDE].value = hr_pack_beside(3000, 5000000);
    MUST(hr_read_device_figures(handle, &region.head, 0, &seen));
    MUST(seen.beside == 100 && seen.sample_s == 4.095);
}

/* The sampler of a crowd is stopped: one of the others samples in its place, once in 200 ms. */
static void check_places(void)
{
    crowd(HR_CROWD);
    sample(0);
    unsigned before = told_times[HR_FIGURE_BESIDE];
    sample(SECOND / 10);
    MUST(told_times[HR_FIGURE_BESIDE] == before + 1);
    /* Now this process is one of the others. */
    hr_resign_sampler(handle);
    is_taken = true;
    before = told_times[HR_FIGURE_BESIDE];
    samples[0].smUtil = 30;
    sample(SECOND / 10);
    MUST(told_times[HR_FIGURE_BESIDE] == before && writes == 0);
    sample(SECOND / 10);
    MUST(told_times[HR_FIGURE_BESIDE] == before + 1);
    MUST(writes == 1 && written_pids[0] == getpid() && written[0].to == 30);
    /* Memory is the sampler's. */
    MUST(lists_made == 1);
    /* Another one does it. */
    now_ns += SECOND;
    told[HR_FIGURE_BESIDE].claimed_ns = now_ns;
    samples[0].smUtil = 35;
    sample(0);
    MUST(told_times[HR_FIGURE_BESIDE] == before + 1 && writes == 0);
    /* Few do not need that. */
    crowd(HR_CROWD - 1);
    is_taken = true;
    before = told_times[HR_FIGURE_BESIDE];
    sample(SECOND);
    is_taken = false;
    sample(SECOND);
    MUST(told_times[HR_FIGURE_BESIDE] == before);
}

/* How often a process of so many compares, and then once it has found a difference. */
static void check_rare_comparisons(unsigned processes, uint64_t period_ns)
{
    crowd(processes);
    is_taken = true;
    region.slots[0].usage[0].sm = 20;
    now_ns += 10 * SECOND;
    for (int comparison = 0; comparison < 3; comparison++) {
        told[HR_FIGURE_BESIDE].at_ns = now_ns; /* the sampler works */
        asked_since_us = 0;
        sample(0);
        MUST(asked_since_us != 0);
        now_ns += period_ns - 1;
        told[HR_FIGURE_BESIDE].at_ns = now_ns;
        asked_since_us = 0;
        sample(0);
        MUST(asked_since_us == 0);
        now_ns++;
    }
    region.slots[0].usage[0].sm = 60;
    for (int comparison = 0; comparison < 3; comparison++) {
        told[HR_FIGURE_BESIDE].at_ns = now_ns;
        MUST(region.slots[0].usage[0].sm == 60);
        sample(0);
        now_ns += 3 * SECOND / 10;
    }
    MUST(region.slots[0].usage[0].sm == 20);
    /* After the five seconds of figures of its own it soon looks again. */
    now_ns += 5 * SECOND;
    told[HR_FIGURE_BESIDE].at_ns = now_ns;
    sample(0);
    asked_since_us = 0;
    told[HR_FIGURE_BESIDE].at_ns = now_ns;
    sample(3 * SECOND / 10);
    MUST(asked_since_us != 0);
}

int main(void)
{
    check_devices();
    check_own_pid();
    check_others();
    check_learning();
    check_telling();
    check_service();
    check_elections();
    check_comparisons();
    check_windows(SECOND, 1100000);
    check_windows(SECOND * 3 / 10, 900000);
    check_windows(SECOND / 10, 500000);
    check_the_device();
    check_shared_questions();
    check_places();
    check_rare_comparisons(1, 3 * SECOND / 10);
    check_rare_comparisons(HR_CROWD, 3 * SECOND / 10);
    check_rare_comparisons(12, 9 * SECOND / 10);
    return 0;
}
