/*
 * NVML's answers about memory.  NVML's order of devices is not CUDA's: a region that names no
 * device is taken to be in NVML's order here, as its first writer would have named them.
 *
 * The region is opened for reading only, and for one answer: a program that asks NVML is not a
 * process of the region.
 */
#include <stdatomic.h>
#include <stdlib.h>

#include "api.h"
#include "budget.h"
#include "find.h"

#define HR_EXPORT __attribute__((visibility("default")))

HR_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory);
HR_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory);

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

/* ---- The region ------------------------------------------------------------------------- */

static int nvml_row(hr_region *region, const char *uuid, unsigned index)
{
    int code;
    struct hr_snapshot *snapshot = hr_new_snapshot(region, &code);
    /* Its uuid begins with "GPU-" or "MIG-". */
    int row = snapshot == NULL ? -1 : hr_row_of_uuid(snapshot, uuid + 4, index);
    free(snapshot);
    return row;
}

/* ---- Answers ---------------------------------------------------------------------------- */

static void apply(nvmlDevice_t device, struct hr_budget *budget)
{
    char uuid[HR_UUID_BYTES] = "";
    unsigned index = HR_DEVICES;
    const char *path = getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE");
    hr_region *region;
    /* A failure is no complaint of NVML's: the next question tries again. */
    if (path == NULL || path[0] == '\0' ||
        ((get_uuid *)real_uuid)(device, uuid, sizeof uuid) != NVML_SUCCESS ||
        hr_open(path, HR_READ, HR_LAYOUTS, 0, &region, NULL) < 0)
        return;
    ((get_index *)real_index)(device, &index);
    int row = nvml_row(region, uuid, index);
    if (row >= 0)
        hr_apply_budget(region, row, budget);
    hr_free(&region);
}

#define ANSWER(name, type, real)                                                                   \
    nvmlReturn_t name(nvmlDevice_t device, type *memory)                                           \
    {                                                                                              \
        if (!hr_find_library(&hr_nvml_library))                                                    \
            return NVML_ERROR_UNINITIALIZED;                                                       \
        nvmlReturn_t result = ((nvmlReturn_t (*)(nvmlDevice_t, type *))real)(device, memory);      \
        if (result != NVML_SUCCESS)                                                                \
            return result;                                                                         \
        struct hr_budget budget = {memory->total, memory->free, memory->used};                     \
        apply(device, &budget);                                                                    \
        memory->total = budget.total;                                                              \
        memory->free = budget.free;                                                                \
        memory->used = budget.used;                                                                \
        return NVML_SUCCESS;                                                                       \
    }
ANSWER(nvmlDeviceGetMemoryInfo, nvmlMemory_t, real_memory_info)
ANSWER(nvmlDeviceGetMemoryInfo_v2, nvmlMemory_v2_t, real_memory_info_v2)
