/* The driver's answers about memory. */
#include "hooks.h"
#include "memory.h"
#include "session.h"

static void apply(int row, struct hr_budget *budget)
{
    hr_region *region = hr_session_region();
    if (row >= 0 && region != NULL)
        hr_apply_budget(region, row, budget);
}

/* Either pointer may be NULL: the driver itself is always given both. */
CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    size_t really_free = 0, really_there = 0;
    CUresult result = HR_CUDA(cuMemGetInfo_v2)(&really_free, &really_there);
    if (result != CUDA_SUCCESS)
        return result;
    struct hr_budget budget = {.total = really_there, .free = really_free};
    struct hr_context context;
    hr_open_session();
    if (hr_current_context(&context))
        apply(context.row, &budget);
    if (free_bytes != NULL)
        *free_bytes = budget.free;
    if (total_bytes != NULL)
        *total_bytes = budget.total;
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    CUresult result = HR_CUDA(cuDeviceTotalMem_v2)(bytes, device);
    if (result != CUDA_SUCCESS)
        return result;
    struct hr_budget budget = {.total = *bytes, .free = *bytes};
    hr_open_session();
    apply(hr_row_of_device(device), &budget);
    *bytes = budget.total;
    return CUDA_SUCCESS;
}
