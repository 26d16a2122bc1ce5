#define _GNU_SOURCE
#include "neighbours.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../internal.h"
#include "busy_figures.h"
#include "nvml.h"
#include "sampler.h"

/* How long a process counts as working after it has come, or was seen to work. */
#define HOLD_NS 5000000000u

/* Less is a desktop, or nothing. */
#define WORKING_PERCENT 3u

/* What the figures are of: the last sample, and mostly the one before it. */
#define FRESH_US 250000u

#define NAME_NS 500000000u /* between two looks for the name of a thread */

/* The GPU is busier, by so much and in so many looks in a row, than all processes that are shown
 * keep it: there are others that are not shown. */
enum { HIDDEN_PERCENT = 25, HIDDEN_LOOKS = 5 };

enum { MOST_NEIGHBOURS = 64, MOST_THREADS = 4096 };

struct neighbour {
    unsigned pid; /* 0: free */
    bool is_seen; /* in this look */
    bool has_context;
    bool is_soft;
    uint32_t percent;
    uint64_t until_ns; /* it counts as working */
    uint64_t next_name_ns;
    int thread; /* that had the name; 0: none */
};

struct row {
    bool has_begun;
    bool is_full; /* there are more than the list has room for */
    struct hr_sample_period period;
    uint64_t hidden_until_ns;
    unsigned hidden_looks;
    struct neighbour list[MOST_NEIGHBOURS];
};

static struct row rows[HR_DEVICES];
static struct hr_busy_figures figures;

/* ---- Names of threads ----------------------------------------------------------------- */

static bool has_soft_name(unsigned pid, int thread)
{
    char path[64], name[32];
    snprintf(path, sizeof path, "/proc/%u/task/%d/comm", pid, thread);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return false;
    ssize_t length = read(file, name, sizeof name);
    close(file);
    const size_t wanted = sizeof HR_SOFT_THREAD - 1;
    return length == (ssize_t)wanted + 1 && memcmp(name, HR_SOFT_THREAD, wanted) == 0;
}

static int find_soft_thread(unsigned pid)
{
    char path[32];
    snprintf(path, sizeof path, "/proc/%u/task", pid);
    DIR *tasks = opendir(path);
    int found = 0, left = MOST_THREADS;
    for (struct dirent *entry; tasks != NULL && found == 0 && left-- > 0;) {
        entry = readdir(tasks);
        if (entry == NULL)
            break;
        int thread = atoi(entry->d_name);
        if (thread > 0 && has_soft_name(pid, thread))
            found = thread;
    }
    if (tasks != NULL)
        closedir(tasks);
    return found;
}

static void look_at_name(struct neighbour *one, uint64_t now_ns)
{
    /* NVML's pids mean nothing in this namespace. */
    if (hr_own_nvml_pid() != (unsigned)getpid() || now_ns < one->next_name_ns)
        return;
    one->next_name_ns = now_ns + NAME_NS;
    if (one->thread == 0 || !has_soft_name(one->pid, one->thread))
        one->thread = find_soft_thread(one->pid);
    one->is_soft = one->thread != 0;
}

/* ---- Who is there --------------------------------------------------------------------- */

static bool is_of_region(const struct hr_snapshot *snapshot, unsigned pid)
{
    for (uint32_t number = 0; number < (uint32_t)snapshot->proc_num; number++) {
        if (hr_slot_nvml_pid(hr_snapshot_process(snapshot, number)) == pid)
            return true;
    }
    return pid == hr_own_nvml_pid();
}

/* NULL: it is of this region, or the list is full. */
static struct neighbour *see(struct row *here, const struct hr_snapshot *snapshot, unsigned pid)
{
    struct neighbour *free_one = NULL;
    if (pid == 0 || is_of_region(snapshot, pid))
        return NULL;
    for (int at = 0; at < MOST_NEIGHBOURS; at++) {
        struct neighbour *one = &here->list[at];
        if (one->pid == pid) {
            one->is_seen = true;
            return one;
        }
        if (one->pid == 0 && free_one == NULL)
            free_one = one;
    }
    here->is_full = here->is_full || free_one == NULL;
    if (free_one != NULL)
        *free_one = (struct neighbour){.pid = pid, .is_seen = true};
    return free_one;
}

static void see_contexts(struct row *here, const struct hr_snapshot *snapshot, nvmlDevice_t device,
                         uint64_t now_ns)
{
    unsigned count = 0;
    nvmlProcessInfo_t *list = hr_nvml_processes(device, &count);
    for (unsigned at = 0; list != NULL && at < count; at++) {
        struct neighbour *one = see(here, snapshot, list[at].pid);
        if (one == NULL || one->has_context)
            continue;
        one->has_context = true;
        /* Those that were there before this process show by what they do. */
        if (here->has_begun)
            one->until_ns = now_ns + HOLD_NS;
    }
    free(list);
}

static void see_work(struct row *here, const struct hr_snapshot *snapshot, uint64_t now_ns)
{
    for (unsigned at = 0; at < figures.count; at++) {
        unsigned pid = figures.list[at].pid;
        struct neighbour *one = see(here, snapshot, pid);
        if (one == NULL)
            continue;
        one->percent = hr_busy_percent(&figures, pid);
        if (one->percent >= WORKING_PERCENT)
            one->until_ns = now_ns + HOLD_NS;
    }
}

static uint32_t busy_for_region(const struct hr_snapshot *snapshot)
{
    uint32_t sum = 0;
    for (uint32_t number = 0; number < (uint32_t)snapshot->proc_num; number++)
        sum += hr_busy_percent(&figures, hr_slot_nvml_pid(hr_snapshot_process(snapshot, number)));
    return sum < 100 ? sum : 100;
}

static uint64_t fresh_us(const struct row *here)
{
    uint64_t wanted = here->period.shortest_us + here->period.shortest_us / 2;
    return wanted > FRESH_US ? wanted : FRESH_US;
}

static void look_for_hidden(struct row *here, nvmlDevice_t device, uint32_t shown, uint64_t now_ns)
{
    nvmlUtilization_t whole;
    bool is_hidden = hr_nvml()->nvmlDeviceGetUtilizationRates(device, &whole) == NVML_SUCCESS &&
                     whole.gpu <= 100 && whole.gpu >= shown + HIDDEN_PERCENT;
    here->hidden_looks = is_hidden ? here->hidden_looks + 1 : 0;
    if (here->hidden_looks >= HIDDEN_LOOKS)
        here->hidden_until_ns = now_ns + HOLD_NS;
}

bool hr_look_at_neighbours(const struct hr_snapshot *snapshot, int row, nvmlDevice_t device,
                           uint64_t now_ns, struct hr_neighbours *out)
{
    struct row *here = &rows[row];
    uint64_t now_us = hr_clock_ns(CLOCK_REALTIME) / 1000;
    if (!hr_read_busy_figures(device, now_us - fresh_us(here), &figures))
        return false;
    hr_note_sample_period(&here->period, &figures);
    here->is_full = false;
    for (int at = 0; at < MOST_NEIGHBOURS; at++) {
        here->list[at].is_seen = false;
        here->list[at].percent = 0;
    }
    see_contexts(here, snapshot, device, now_ns);
    see_work(here, snapshot, now_ns);
    *out = (struct hr_neighbours){.own = busy_for_region(snapshot)};
    uint32_t shown = out->own;
    for (int at = 0; at < MOST_NEIGHBOURS; at++) {
        struct neighbour *one = &here->list[at];
        if (one->pid == 0)
            continue;
        /* One that has ended disturbs nobody; one without a context there is no other sign of. */
        if (!one->is_seen && (one->has_context || now_ns >= one->until_ns)) {
            one->pid = 0;
            continue;
        }
        shown += one->percent;
        if (now_ns < one->until_ns)
            look_at_name(one, now_ns);
        if (one->is_soft)
            out->soft += one->percent;
        else if (now_ns < one->until_ns)
            out->is_disturbed = true;
    }
    look_for_hidden(here, device, shown, now_ns);
    if (here->is_full || now_ns < here->hidden_until_ns)
        out->is_disturbed = true;
    here->has_begun = true;
    return true;
}

void hr_forget_neighbours(int row)
{
    rows[row] = (struct row){.has_begun = false};
}
