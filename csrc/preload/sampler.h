/*
 * The sampler: one process of the region asks NVML how busy each of its processes keeps the GPUs,
 * and writes that into their slots for all of them, as libvgpu does: device_util and monitorused.
 *
 * The sampler is the process that holds a lock on one byte of the region's file, far behind its
 * end.  The kernel drops the lock when that process ends, also by kill -9, and another process
 * takes it within half a second.  One that is stopped keeps it: so the others compare its figures
 * with NVML's, and whoever finds them old goes by his own.
 *
 * Of many processes on a device (HR_CROWD or more) each needs the device's figure, too: one asks
 * for all (shared_figures.h).  Where the sampler tells nothing for a fifth of a second, another one
 * samples once in its place; and the more there are, the more seldom each of them compares.  So
 * however many they are, the driver is asked about as often.
 */
#ifndef HR_SAMPLER_H
#define HR_SAMPLER_H

#include <stdbool.h>

#include "../region.h"
#include "cuda_api.h"

/* Beside the bytes of ../region.h, and below those that are locked to look for other handles. */
#define HR_SAMPLER_BYTE 0x48000000

/*
 * Whether NVML tells how busy the processes on a row are, and the region has room for it: asked
 * with a snapshot, which knows the row's device by its uuid.
 */
bool hr_can_sample(hr_region *region, const struct hr_snapshot *snapshot, int row);

/* The pid that NVML knows the process of a slot by, as far as the slot tells. */
unsigned hr_slot_nvml_pid(const struct hr_process *process);

/* NVML's handle of the row's device.  False: it has none. */
bool hr_sampled_device(const struct hr_snapshot *snapshot, int row, nvmlDevice_t *out);

/* How busy a row's device is, in percent of the time. */
struct hr_device_figures {
    uint32_t device; /* for everybody, over the last sample */
    uint32_t beside; /* as far as that is shown, for processes that are not of the region */
    double sample_s; /* how often NVML takes samples; 0 = not known */
};

/* What any process of the region has asked lately, or ask for all, after hr_sample().  False: NVML
 * does not tell, as on MIG devices. */
bool hr_read_device_figures(hr_region *region, const struct hr_snapshot *snapshot, int row,
                            struct hr_device_figures *out);

/* If this process is the sampler or can become it: measure the rows of `rows`, one bit each, and
 * write what has changed into the slots and into the snapshot.  Else see that the sampler does. */
void hr_sample(hr_region *region, struct hr_snapshot *snapshot, uint32_t rows);

/* Serve no longer, because the region is gone. */
void hr_resign_sampler(hr_region *region);

/* In a forked child: it is the parent who serves. */
void hr_forget_sampler(void);

#endif
