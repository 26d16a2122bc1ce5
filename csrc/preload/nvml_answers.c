/*
 * NVML's answers about memory.  NVML's order of devices is not CUDA's: a region that names no
 * device is taken to be in NVML's order here, as its first writer would have named them.
 *
 * The region is opened for reading only: a program that asks NVML is not a process of the region.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "../internal.h"
#include "api.h"
#include "budget.h"
#include "find.h"

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

/* ---- The region ------------------------------------------------------------------------- */

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(hr_region *) opened;

static void before_fork(void)
{
    pthread_mutex_lock(&opening);
}

static void after_fork_in_parent(void)
{
    pthread_mutex_unlock(&opening);
}

static void after_fork_in_child(void)
{
    /* The handle is the parent's.  It is left alone, as a thread may have been using it. */
    atomic_store_explicit(&opened, NULL, memory_order_relaxed);
    pthread_mutex_unlock(&opening);
}

static void watch_forks(void)
{
    /* Before ours: a fork then takes `opening` first and the core's lock after it, as below. */
    hr_watch_forks();
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

/* NULL: none that can be read. */
static hr_region *nvml_region(void)
{
    static pthread_once_t fork_watch = PTHREAD_ONCE_INIT;
    hr_region *region = atomic_load_explicit(&opened, memory_order_acquire);
    if (region != NULL)
        return region;
    const char *path = getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE");
    if (path == NULL || path[0] == '\0')
        return NULL;
    pthread_once(&fork_watch, watch_forks);
    pthread_mutex_lock(&opening);
    region = atomic_load_explicit(&opened, memory_order_acquire);
    /* A failure is no complaint of NVML's: the next question tries again. */
    if (region == NULL && hr_open(path, HR_READ, HR_LAYOUTS, 0, &region, NULL) >= 0)
        atomic_store_explicit(&opened, region, memory_order_release);
    pthread_mutex_unlock(&opening);
    return region;
}

/* The row of the device with this uuid, or with this index if the region names no device; -1: none.
 */
static int nvml_row(hr_region *region, const char *uuid, unsigned index)
{
    int code;
    struct hr_snapshot *snapshot = hr_new_snapshot(region, &code);
    if (snapshot == NULL)
        return -1;
    int row = -1;
    bool names_devices = false;
    for (uint32_t at = 0; at < snapshot->span; at++) {
        names_devices = names_devices || hr_snapshot_device(snapshot, at)->uuid[0] != '\0';
        if (row < 0 &&
            strncasecmp(hr_snapshot_device(snapshot, at)->uuid, uuid, HR_UUID_BYTES) == 0)
            row = (int)at;
    }
    free(snapshot);
    if (names_devices)
        return row;
    return index < HR_DEVICES ? (int)index : -1;
}

/* ---- Answers ---------------------------------------------------------------------------- */

static void apply(nvmlDevice_t device, struct hr_budget *budget)
{
    char uuid[HR_UUID_BYTES] = "";
    unsigned index = HR_DEVICES;
    hr_region *region = nvml_region();
    if (region == NULL || ((get_uuid *)real_uuid)(device, uuid, sizeof uuid) != NVML_SUCCESS)
        return;
    ((get_index *)real_index)(device, &index);
    int row = nvml_row(region, uuid, index);
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
