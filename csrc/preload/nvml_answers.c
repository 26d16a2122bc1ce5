/*
 * NVML's answers about memory.  NVML's order of devices is not CUDA's: a region that names no
 * device is taken to be in NVML's order here, as its first writer would have named them.
 */
#define _GNU_SOURCE
#include "budget.h"
#include "cuda_api.h"
#include "find.h"
#include "nvml_region.h"

#define HR_EXPORT __attribute__((visibility("default")))

HR_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory);
HR_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory);

typedef nvmlReturn_t memory_info(nvmlDevice_t device, nvmlMemory_t *memory);
typedef nvmlReturn_t memory_info_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory);
typedef nvmlReturn_t get_uuid(nvmlDevice_t device, char *text, unsigned bytes);
typedef nvmlReturn_t get_index(nvmlDevice_t device, unsigned *out);

static nvmlReturn_t missing(void)
{
    return NVML_ERROR_FUNCTION_NOT_FOUND;
}

static _Atomic(void *) real_memory_info, real_memory_info_v2, real_uuid, real_index;

static const struct hr_function functions[] = {
    {"nvmlDeviceGetMemoryInfo", (void *)nvmlDeviceGetMemoryInfo, (void *)missing,
     &real_memory_info},
    {"nvmlDeviceGetMemoryInfo_v2", (void *)nvmlDeviceGetMemoryInfo_v2, (void *)missing,
     &real_memory_info_v2},
    {"nvmlDeviceGetUUID", NULL, (void *)missing, &real_uuid},
    {"nvmlDeviceGetIndex", NULL, (void *)missing, &real_index},
};

struct hr_library hr_nvml_library = {
    .stand_in_for = "libnvidia-ml-real.so.1",
    .name = "libnvidia-ml.so.1",
    .functions = functions,
    .count = sizeof functions / sizeof functions[0],
};

static void apply(nvmlDevice_t device, struct hr_budget *budget)
{
    char uuid[HR_UUID_BYTES] = "";
    unsigned index = HR_DEVICES;
    hr_region *region = hr_nvml_region();
    if (region == NULL || ((get_uuid *)real_uuid)(device, uuid, sizeof uuid) != NVML_SUCCESS)
        return;
    ((get_index *)real_index)(device, &index);
    int row = hr_nvml_row(region, uuid, index);
    if (row >= 0)
        hr_apply_budget(region, row, budget);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    if (!hr_find_library(&hr_nvml_library))
        return NVML_ERROR_UNINITIALIZED;
    nvmlReturn_t result = ((memory_info *)real_memory_info)(device, memory);
    if (result != NVML_SUCCESS)
        return result;
    struct hr_budget budget = {memory->total, memory->free, memory->used};
    apply(device, &budget);
    *memory = (nvmlMemory_t){budget.total, budget.free, budget.used};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    if (!hr_find_library(&hr_nvml_library))
        return NVML_ERROR_UNINITIALIZED;
    nvmlReturn_t result = ((memory_info_v2 *)real_memory_info_v2)(device, memory);
    if (result != NVML_SUCCESS)
        return result;
    struct hr_budget budget = {memory->total, memory->free, memory->used};
    apply(device, &budget);
    memory->total = budget.total;
    memory->free = budget.free;
    memory->used = budget.used;
    return NVML_SUCCESS;
}
