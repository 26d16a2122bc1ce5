#define _GNU_SOURCE
#include "own_pid.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "../process_files.h"
#include "../slots.h"
#include "nvml.h"

#define EDIT_NS 100000000u

static void write_pid(hr_region *region)
{
    struct hr_slot_edit edit = {.value = HR_SLOT_HOST_PID, .to = hr_own_nvml_pid()};
    /* Where it fails, figures are looked for by the slot's own pid, mostly the same. */
    hr_edit_slot(region, getpid(), &edit, 1, 0, EDIT_NS);
}

void hr_tell_host_pid(hr_region *region)
{
    struct hr_mapper self = {.levels = 0};
    if (hr_read_pids(AT_FDCWD, "/proc/self/status", &self) == HR_MAPS && self.levels > 0 &&
        self.pids[0] != getpid())
        hr_set_own_nvml_pid((unsigned)self.pids[0]);
    write_pid(region);
}

static bool is_claimed(const struct hr_snapshot *snapshot, unsigned pid)
{
    for (uint32_t number = 0; number < (uint32_t)snapshot->proc_num; number++) {
        if (hr_snapshot_process(snapshot, number)->host_pid == (int32_t)pid)
            return true;
    }
    return false;
}

static bool is_here(unsigned pid)
{
    return kill((pid_t)pid, 0) == 0 || errno != ESRCH;
}

bool hr_find_own_pid(hr_region *region, const struct hr_snapshot *snapshot, nvmlDevice_t device)
{
    unsigned count = 0, strangers = 0, stranger = 0;
    nvmlProcessInfo_t *list = hr_nvml_processes(device, &count);
    bool found = false;
    for (unsigned at = 0; list != NULL && at < count; at++) {
        unsigned pid = list[at].pid;
        if (pid == hr_own_nvml_pid()) {
            found = true;
        } else if (!is_claimed(snapshot, pid) && !is_here(pid)) {
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
