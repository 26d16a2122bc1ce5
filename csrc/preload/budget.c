#include "budget.h"

void hr_apply_budget(hr_region *region, int row, struct hr_budget *budget)
{
    uint64_t limit, used;
    if (hr_read_value(region, HR_VALUE_MEMORY_LIMIT, (uint32_t)row, &limit) != HR_OK ||
        limit == 0 || hr_read_value(region, HR_VALUE_MEMORY_USED, (uint32_t)row, &used) != HR_OK)
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
