#include "budget.h"

/* False: the row has no limit, or cannot be read. */
static bool read_row(hr_region *region, int row, uint64_t *limit, uint64_t *used)
{
    return hr_get(region, HR_MEMORY, (uint32_t)row, limit, NULL) == HR_OK && *limit != 0 &&
           hr_get(region, HR_VALUE_MEMORY_USED, (uint32_t)row, used, NULL) == HR_OK;
}

bool hr_passes_limit(hr_region *region, int row)
{
    uint64_t limit, used;
    return read_row(region, row, &limit, &used) && used > limit;
}

void hr_apply_budget(hr_region *region, int row, struct hr_budget *budget)
{
    uint64_t limit, used;
    if (!read_row(region, row, &limit, &used))
        return;
    if (limit < budget->total)
        budget->total = limit;
    /* A limit may be lowered below what is in use. */
    if (used > budget->total)
        used = budget->total;
    uint64_t left = budget->total - used;
    if (left < budget->free)
        budget->free = left;
    budget->used = used;
}
