#define _GNU_SOURCE
#include "nvml.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "cuda_functions.h"
#include "find.h"
#include "uuids.h"

static nvmlReturn_t missing(void)
{
    return NVML_ERROR_FUNCTION_NOT_FOUND;
}

static void *find_or_missing(void *library, const char *name)
{
    void *found = hr_real_dlsym()(library, name);
    return found != NULL ? found : (void *)missing;
}

/* What is published where NVML cannot be used. */
static const struct hr_nvml_functions none;

static const struct hr_nvml_functions *load(void)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_NODELETE);
    struct hr_nvml_functions *found = library == NULL ? NULL : malloc(sizeof *found);
    if (found != NULL) {
#define FIND(name, parameters)                                                                     \
    found->name = (nvmlReturn_t(*) parameters)find_or_missing(library, #name);
        HR_NVML_CALLED(FIND)
#undef FIND
    }
    dlerror();
    if (found != NULL && found->nvmlInit_v2() == NVML_SUCCESS)
        return found;
    free(found);
    return &none;
}

const struct hr_nvml_functions *hr_nvml(void)
{
    /* Stored with release and read with acquire: the functions were stored before. */
    static _Atomic(const struct hr_nvml_functions *) loaded;
    const struct hr_nvml_functions *known = atomic_load_explicit(&loaded, memory_order_acquire);
    if (__builtin_expect(known == NULL, 0)) {
        /* No lock: dlopen() takes the loader's, under which others may be calling us. */
        const struct hr_nvml_functions *mine = load();
        if (atomic_compare_exchange_strong_explicit(&loaded, &known, mine, memory_order_acq_rel,
                                                    memory_order_acquire))
            known = mine;
        else if (mine != &none)
            free((void *)(uintptr_t)mine);
    }
    return known == &none ? NULL : known;
}

bool hr_nvml_device(CUdevice device, nvmlDevice_t *out)
{
    const struct hr_nvml_functions *nvml = hr_nvml();
    char uuid[HR_UUID_TEXT + 4] = "GPU-";
    if (nvml == NULL || !hr_uuid_of_device(device, uuid + 4))
        return false;
    if (nvml->nvmlDeviceGetHandleByUUID(uuid, out) == NVML_SUCCESS)
        return true;
    uuid[0] = 'M';
    uuid[1] = 'I';
    uuid[2] = 'G';
    return nvml->nvmlDeviceGetHandleByUUID(uuid, out) == NVML_SUCCESS;
}

static nvmlReturn_t list_processes(const struct hr_nvml_functions *nvml, nvmlDevice_t device,
                                   unsigned *count, nvmlProcessInfo_t *list)
{
    nvmlReturn_t result = nvml->nvmlDeviceGetComputeRunningProcesses_v3(device, count, list);
    if (result == NVML_ERROR_FUNCTION_NOT_FOUND)
        result = nvml->nvmlDeviceGetComputeRunningProcesses_v2(device, count, list);
    return result;
}

nvmlProcessInfo_t *hr_nvml_processes(nvmlDevice_t device, unsigned *count)
{
    unsigned room = 64;
    nvmlProcessInfo_t *list = NULL;
    nvmlReturn_t result = NVML_ERROR_INSUFFICIENT_SIZE;
    /* A process may start between two tries, so the list may outgrow what was asked for. */
    for (int tries = 0; tries < 4 && result == NVML_ERROR_INSUFFICIENT_SIZE; tries++) {
        nvmlProcessInfo_t *more = realloc(list, room * sizeof *list);
        if (more == NULL)
            break;
        list = more;
        *count = room;
        result = list_processes(hr_nvml(), device, count, list);
        room = *count + 16;
    }
    if (result == NVML_SUCCESS)
        return list;
    free(list);
    return NULL;
}

enum hr_nvml_answer hr_nvml_own_bytes(CUdevice device, uint64_t *out)
{
    nvmlDevice_t handle;
    unsigned count;
    if (!hr_nvml_device(device, &handle))
        return HR_NVML_SILENT;
    nvmlProcessInfo_t *list = hr_nvml_processes(handle, &count);
    enum hr_nvml_answer answer = list != NULL ? HR_NVML_ABSENT : HR_NVML_SILENT;
    for (unsigned at = 0; list != NULL && at < count; at++) {
        if (list[at].pid == hr_own_nvml_pid() && list[at].usedGpuMemory != UINT64_MAX) {
            *out = list[at].usedGpuMemory;
            answer = HR_NVML_FOUND;
        }
    }
    free(list);
    return answer;
}

/* Together with the pid that it is for: a forked child starts anew. */
static _Atomic uint64_t learnt;

unsigned hr_own_nvml_pid(void)
{
    unsigned own = (unsigned)getpid();
    uint64_t known = atomic_load_explicit(&learnt, memory_order_relaxed);
    return (unsigned)(known >> 32) == own ? (unsigned)known : own;
}

void hr_set_own_nvml_pid(unsigned pid)
{
    atomic_store_explicit(&learnt, (uint64_t)getpid() << 32 | pid, memory_order_relaxed);
}
