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
 * Look for this process among those that use a row's device.  One that was not there before this
 * process had a context, that no process here has and no other slot of the region claims, is this
 * process if it is the only one: then its pid is remembered (hr_set_own_nvml_pid) and written into
 * the slot.  False: it was not found.
 */
bool hr_find_own_pid(hr_region *region, const struct hr_snapshot *snapshot, int row,
                     nvmlDevice_t device);

/*
 * Before a context is made: remember who uses the device already, and so is not this process.
 * Nothing is asked once its pid is known.
 */
void hr_note_others(int row, CUdevice device);

/* NVML does not name this process on a device on which it has a context: look for the pid that it
 * is named by there, as above.  False: it was not found. */
bool hr_learn_own_pid(int row, CUdevice device);

/* NVML has named this process, by hr_own_nvml_pid(); whether it ever has; and, in a forked child,
 * that it has not. */
void hr_confirm_own_pid(void);
bool hr_is_own_pid_known(void);
void hr_forget_own_pid(void);

/* Write the pid that processes around this one's namespace know it by into the slot, as far as
 * /proc tells. */
void hr_tell_host_pid(hr_region *region);

#endif
