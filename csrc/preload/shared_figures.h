/*
 * What one process of a region has asked the driver about a device, told to all others: else each
 * of a thousand would ask for itself, ten times a second, and all programs on a GPU share its
 * driver.
 *
 * It stands behind the region's file, in the page that the structure ends in: every mapping of the
 * region shows the same page, and nothing of it is ever written to the file.  The system may empty
 * it at any time; and whatever a process stores there, nobody believes for longer than a second,
 * and no more of it than crowd.h says.
 */
#ifndef HR_SHARED_FIGURES_H
#define HR_SHARED_FIGURES_H

#include <stdbool.h>
#include <stdint.h>

#include "../region.h"

enum hr_figure {
    HR_FIGURE_DEVICE, /* how busy a device is: percent, or HR_NOT_TOLD */
    HR_FIGURE_BESIDE, /* what the sampler knows of others: hr_pack_beside() */
    HR_FIGURES
};

#define HR_NOT_TOLD 255u /* the driver has no figure of the whole device, as on MIG devices */

/* The percent of the time that a device is busy for processes that are not of the region, and how
 * often NVML takes samples; 0 = not known.  A period of more than four seconds is kept as that. */
static inline uint32_t hr_pack_beside(uint32_t percent, uint64_t period_us)
{
    uint64_t period_ms = period_us / 1000;
    return percent << 12 | (uint32_t)(period_ms < 0xfff ? period_ms : 0xfff);
}

static inline uint32_t hr_beside_percent(uint32_t packed)
{
    return packed >> 12 < 100 ? packed >> 12 : 100;
}

static inline double hr_beside_sample_s(uint32_t packed)
{
    return (packed & 0xfff) / 1e3;
}

/* Tell a figure of a row's device to all processes of the region: up to 24 bits. */
void hr_share_figure(hr_region *region, int row, enum hr_figure figure, uint32_t value);

/* The one that was told last.  False: none was, or it is older than that. */
bool hr_find_figure(hr_region *region, int row, enum hr_figure figure, uint64_t oldest_ns,
                    uint32_t *out);

/* Whether it is for this process to ask now: it is for one of all, and not again for that time. */
bool hr_claim_figure(hr_region *region, int row, enum hr_figure figure, uint64_t period_ns);

#endif
