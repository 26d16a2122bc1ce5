/*
 * The fields of a mapped region, each checked where it is read; and how a call runs
 * that touches the mapping.  Internal to the core.
 */
#ifndef HR_FIELDS_H
#define HR_FIELDS_H

#include <sys/stat.h>

#include "handle.h"

/* Enter, run the work inside the fault guard, leave. */
int hr_run(hr_region *region, hr_guarded_work *work, void *argument);

/* Run the work inside the fault guard, for a call that has entered. */
int hr_run_entered(const hr_region *region, hr_guarded_work *work, void *argument);

/* The same, but what the fault guard returned is for the caller to explain, once it holds no lock
 * that a look at a file system could keep. */
int hr_run_unexplained(const hr_region *region, hr_guarded_work *work, void *argument);

/*
 * What the fault guard returned, or HR_ESYSTEM with ENOSPC: SIGBUS also comes where a
 * page of a sparse file is touched for the first time and the file system is full.
 */
int hr_explain_fault(const hr_region *region, int code);

/* Whether the file with this status is the region's, at its full length. */
bool hr_is_whole(const hr_region *region, const struct stat *status);

/* Look at what the region's path leads to.  HR_OK, HR_ENOTFOUND, or a code of hr_open_directory().
 */
int hr_stat_file(const hr_region *region, struct stat *status);

/*
 * Before the number at `offset`, one of those behind the slots, is trusted or replaced.  Where a
 * file was cut within its last page there is no signal: that page's rest reads as 0, and takes what
 * is stored.  So where it is 0, and all that follows, this looks at the file: HR_ESTALE if it is
 * too short.
 */
int hr_check_end(const hr_region *region, uint32_t offset);

/* Run a call that stores: HR_EREADONLY through a read-only handle. */
int hr_run_write(hr_region *region, hr_guarded_work *work, void *argument);

/* HR_ESTALE if the file under the mapping has become another or is being remade. */
int hr_check_header(const hr_region *region);

/* proc_num and device_num, checked for their range: HR_OK or HR_ECORRUPT.  HR_ESTALE where the
 * file was cut before proc_num: hr_check_end(). */
int hr_checked_proc_num(const hr_region *region, int32_t *out);
int hr_checked_device_num(const hr_region *region, uint32_t *out);

/* The devices that device_num or, while it is 0, the memory limits speak of. */
uint32_t hr_counted_devices(const hr_region *region, uint32_t device_num);

/* The devices that the region has, one bit each, as hr_edit() says. */
int hr_region_devices(const hr_region *region, uint32_t *out);

static inline bool hr_is_limited_sm(uint64_t percent)
{
    return percent > 0 && percent < 100;
}

/* Of the devices from `count` on, as bits, those with a uuid; those that a slot uses. */
uint32_t hr_undeclared_uuids(const hr_region *region, uint32_t count);
uint32_t hr_undeclared_usage(const hr_region *region, unsigned char *slot, uint32_t count);

/* The enforced sum of `total` over all slots below proc_num, modulo 2^64 as libvgpu adds. */
int hr_sum_used(const hr_region *region, uint32_t device, uint64_t *out);

/* Of `total` in a `used` record. */
enum { HR_TOTAL_OFFSET = 32 };

static inline unsigned char *hr_slot(const hr_region *region, uint32_t index)
{
    return region->base + region->layout->procs + (size_t)index * region->layout->slot_stride;
}

static inline unsigned char *hr_used(const hr_region *region, unsigned char *slot, uint32_t device)
{
    return slot + region->layout->slot_used + (size_t)device * region->layout->slot_used_stride;
}

#endif
