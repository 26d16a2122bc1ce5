/*
 * NVML, for this library's own questions: what the driver says this process uses, and how busy
 * the GPU is.  Loaded and initialised at the first question, which comes with the first context.
 */
#ifndef HR_NVML_H
#define HR_NVML_H

#include <stdbool.h>

#include "cuda_api.h"

#define HR_NVML_CALLED(X)                                                                          \
    X(nvmlInit_v2, (void))                                                                         \
    X(nvmlDeviceGetHandleByUUID, (const char *uuid, nvmlDevice_t *out))                            \
    X(nvmlDeviceGetComputeRunningProcesses_v2,                                                     \
      (nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *out))                              \
    X(nvmlDeviceGetComputeRunningProcesses_v3,                                                     \
      (nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *out))                              \
    X(nvmlDeviceGetProcessUtilization, (nvmlDevice_t device, nvmlProcessUtilizationSample_t * out, \
                                        unsigned *count, unsigned long long since_us))             \
    X(nvmlDeviceGetUtilizationRates, (nvmlDevice_t device, nvmlUtilization_t * out))               \
    X(nvmlDeviceGetProcessesUtilizationInfo,                                                       \
      (nvmlDevice_t device, nvmlProcessesUtilizationInfo_t * out))

struct hr_nvml_functions {
#define HR_NVML_MEMBER(name, parameters) nvmlReturn_t(*name) parameters;
    HR_NVML_CALLED(HR_NVML_MEMBER)
#undef HR_NVML_MEMBER
};

/* The functions, each of them callable: one that this NVML does not have returns
 * NVML_ERROR_FUNCTION_NOT_FOUND.  NULL: there is no NVML, or it does not work. */
const struct hr_nvml_functions *hr_nvml(void);

/* NVML's handle of a CUDA device, MIG devices included.  False: there is none. */
bool hr_nvml_device(CUdevice device, nvmlDevice_t *out);

/* The processes with a context on a device, in a list that the caller frees; NULL: NVML does not
 * tell, or there is no memory. */
nvmlProcessInfo_t *hr_nvml_processes(nvmlDevice_t device, unsigned *count);

/* The bytes that the driver counts for this process on the device.  HR_NVML_ABSENT: it does not
 * name this process: it has no context there, or the driver knows it by another pid. */
enum hr_nvml_answer { HR_NVML_SILENT, HR_NVML_ABSENT, HR_NVML_FOUND };
enum hr_nvml_answer hr_nvml_own_bytes(CUdevice device, uint64_t *out);

/* The pid that NVML knows this process by: its own unless somebody has learnt better, as in a
 * container whose driver shows pids of the host. */
unsigned hr_own_nvml_pid(void);
void hr_set_own_nvml_pid(unsigned pid);

#endif
