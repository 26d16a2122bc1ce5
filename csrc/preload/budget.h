/*
 * What a program is shown as the memory of a device: the limit of its row as the total, and never
 * more free memory than the limit leaves, nor than there really is.
 */
#ifndef HR_BUDGET_H
#define HR_BUDGET_H

#include <stdbool.h>

#include "../region.h"

struct hr_budget {
    uint64_t total, free, used; /* bytes */
};

/* `budget` holds the driver's figures, and gets the row's where that has a limit. */
void hr_apply_budget(hr_region *region, int row, struct hr_budget *budget);

/* Whether the row has a limit and counts more than that; false where the region cannot be read. */
bool hr_passes_limit(hr_region *region, int row);

#endif
