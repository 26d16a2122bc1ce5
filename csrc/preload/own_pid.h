/*
 * The pid by which NVML knows this process, where that is not its own: in a container whose driver
 * shows the host's pids.
 */
#ifndef HR_OWN_PID_H
#define HR_OWN_PID_H

#include <stdbool.h>

#include "../region.h"
#include "cuda_api.h"

/*
 * Look for this process among those that use a device.  One that no process here has, and no other
 * slot of the region claims, is this process if it is the only one: then its pid is remembered
 * (hr_set_own_nvml_pid) and written into the slot.  False: it was not found.
 */
bool hr_find_own_pid(hr_region *region, const struct hr_snapshot *snapshot, nvmlDevice_t device);

/* Write the pid that processes around this one's namespace know it by into the slot, as far as
 * /proc tells. */
void hr_tell_host_pid(hr_region *region);

#endif
