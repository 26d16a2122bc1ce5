/* A region's figures, for the answers of CUDA and of NVML. */
#ifndef HR_BUDGET_H
#define HR_BUDGET_H

#include <stdbool.h>

#include "../region.h"

/* A snapshot of a region of any size; the caller frees it.  NULL: the region cannot be read, or
 * there is no memory, as `code` says. */
struct hr_snapshot *hr_new_snapshot(hr_region *region, int *code);

/* The row that names a device with this uuid, behind "GPU-" or "MIG-"; in a region that names no
 * device, the one at `index`.  -1: there is none. */
int hr_row_of_uuid(const struct hr_snapshot *snapshot, const char *uuid, unsigned index);

/* What a program is shown as the memory of a device: the limit of its row as the total, and never
 * more free memory than the limit leaves, nor than there really is. */
struct hr_budget {
    uint64_t total, free, used; /* bytes */
};

/* `budget` holds the driver's figures, and gets the row's if that has a limit. */
void hr_apply_budget(hr_region *region, int row, struct hr_budget *budget);

/* Whether the row has a limit and counts more than that. */
bool hr_passes_limit(hr_region *region, int row);

#endif
