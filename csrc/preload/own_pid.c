/* The pid by which NVML knows this process, where that is not its own: in a container whose driver
 * shows the host's pids. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "../proc.h"
#include "../region.h"
#include "budget.h"
#include "driver.h"
#include "session.h"

#define EDIT_NS 100000000u

static void write_pid(hr_region *region)
{
    struct hr_slot_edit edit = {.value = HR_SLOT_HOST_PID, .to = hr_own_nvml_pid()};
    /* Where it fails, figures are looked for by the slot's own pid, mostly the same. */
    hr_edit_slot(region, getpid(), &edit, 1, 0, EDIT_NS, NULL);
}

void hr_report_host_pid(hr_region *region)
{
    struct hr_mapper self = {.levels = 0};
    if (hr_read_pids(AT_FDCWD, "/proc/self/status", &self) == HR_MAPS && self.levels > 0 &&
        self.pids[0] != getpid())
        hr_set_own_nvml_pid((unsigned)self.pids[0]);
    write_pid(region);
}

static bool is_claimed(const struct hr_snapshot *snapshot, unsigned pid)
{
    for (uint32_t number = 0; number < (uint32_t)snapshot->process_count; number++) {
        if (hr_snapshot_process(snapshot, number)->host_pid == (int32_t)pid)
            return true;
    }
    return false;
}

static bool is_here(unsigned pid)
{
    return kill((pid_t)pid, 0) == 0 || errno != ESRCH;
}

/* ---- Who was there before ------------------------------------------------------------- */

struct others {
    unsigned count;
    unsigned pids[];
};

/* By row; NULL: not asked yet.  Published with release, and never changed or freed. */
static _Atomic(const struct others *) others_of_rows[HR_DEVICES];
static _Atomic bool is_known;

void hr_confirm_own_pid(void)
{
    atomic_store_explicit(&is_known, true, memory_order_relaxed);
}

bool hr_is_own_pid_known(void)
{
    return atomic_load_explicit(&is_known, memory_order_relaxed);
}

void hr_note_others(CUdevice device)
{
    nvmlDevice_t handle;
    int row = hr_row_of_device(device);
    unsigned count = 0;
    const struct others *none = NULL;
    if (row < 0 || hr_is_own_pid_known() ||
        atomic_load_explicit(&others_of_rows[row], memory_order_relaxed) != NULL ||
        !hr_nvml_device(row, &handle))
        return;
    nvmlProcessInfo_t *list = hr_nvml_processes(handle, &count);
    struct others *others =
        list == NULL ? NULL : malloc(sizeof *others + count * sizeof others->pids[0]);
    if (others != NULL) {
        others->count = count;
        for (unsigned at = 0; at < count; at++)
            others->pids[at] = list[at].pid;
        if (!atomic_compare_exchange_strong_explicit(&others_of_rows[row], &none, others,
                                                     memory_order_release, memory_order_relaxed))
            free(others);
    }
    free(list);
}

static bool was_there(int row, unsigned pid)
{
    const struct others *others = atomic_load_explicit(&others_of_rows[row], memory_order_acquire);
    for (unsigned at = 0; others != NULL && at < others->count; at++) {
        if (others->pids[at] == pid)
            return true;
    }
    return false;
}

/* ---- Looking for it ------------------------------------------------------------------- */

bool hr_find_own_pid(hr_region *region, const struct hr_snapshot *snapshot, int row,
                     nvmlDevice_t device)
{
    unsigned count = 0, strangers = 0, stranger = 0;
    nvmlProcessInfo_t *list = hr_nvml_processes(device, &count);
    bool found = false;
    for (unsigned at = 0; list != NULL && at < count; at++) {
        unsigned pid = list[at].pid;
        if (pid == hr_own_nvml_pid()) {
            found = true;
        } else if (!was_there(row, pid) && !is_claimed(snapshot, pid) && !is_here(pid)) {
            strangers++;
            stranger = pid;
        }
    }
    free(list);
    if (!found && strangers == 1) {
        hr_set_own_nvml_pid(stranger);
        write_pid(region);
        found = true;
    }
    return found;
}

bool hr_learn_own_pid(int row, nvmlDevice_t device)
{
    int code;
    hr_region *region = hr_session_region();
    if (hr_is_own_pid_known() || region == NULL)
        return false;
    struct hr_snapshot *snapshot = hr_new_snapshot(region, &code);
    bool found = snapshot != NULL && hr_find_own_pid(region, snapshot, row, device);
    free(snapshot);
    return found;
}
