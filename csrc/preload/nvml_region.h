/*
 * The region as NVML's callers see it: read only.  A program that asks NVML is not a process of
 * the region for that.
 */
#ifndef HR_NVML_REGION_H
#define HR_NVML_REGION_H

#include "../region.h"

/* NULL: none that can be read. */
hr_region *hr_nvml_region(void);

/* The row of the device with this uuid, or with this index where the region names no device; -1:
 * none. */
int hr_nvml_row(hr_region *region, const char *uuid, unsigned index);

#endif
