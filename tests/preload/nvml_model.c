/*
 * What is asked of NVML, and what its answers mean, by an NVML of a few functions here:
 * `nvml_model`.  It ends the program if something is wrong.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../csrc/preload/find.h"
#include "../../csrc/preload/nvml.h"
#include "../../csrc/preload/uuids.h"

#define MUST_SHOW "loads %d, questions %d", loads, questions
#include "must.h"

enum { MOST = 400 };

static int loads, questions, inits;
static bool is_absent, has_no_uuid;
static const char *without = ""; /* the name of a function that this NVML does not have */
static const char *kind = "GPU"; /* of device */
static nvmlReturn_t init_result, list_result;
static unsigned processes, more_each_time;
static char version;
static char device_[1];
static uint64_t bytes_of_last;

/* ---- NVML ----------------------------------------------------------------------------- */

static nvmlReturn_t init(void)
{
    inits++;
    return init_result;
}

static nvmlReturn_t find_device(const char *uuid, nvmlDevice_t *out)
{
    char wanted[64];
    snprintf(wanted, sizeof wanted, "%s-the-uuid", kind);
    *out = (nvmlDevice_t)(void *)device_;
    return strcmp(uuid, wanted) == 0 ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

static nvmlReturn_t list(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *out)
{
    MUST(device == (nvmlDevice_t)(void *)device_);
    questions++;
    processes += more_each_time;
    if (list_result != NVML_SUCCESS)
        return list_result;
    unsigned room = *count;
    *count = processes;
    if (processes > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memset(out, 0, room * sizeof *out); /* all of what was promised is there */
    for (unsigned at = 0; at < processes; at++)
        out[at] = (nvmlProcessInfo_t){.pid = 100000000 + at, .usedGpuMemory = 1000 + at};
    if (processes > 0)
        out[processes - 1].usedGpuMemory = bytes_of_last;
    return NVML_SUCCESS;
}

static nvmlReturn_t list_2(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *out)
{
    version = '2';
    return list(device, count, out);
}

static nvmlReturn_t list_3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *out)
{
    version = '3';
    return list(device, count, out);
}

static void *find(void *library, const char *name)
{
    MUST(library == device_);
    if (strcmp(name, without) == 0)
        return NULL;
    if (strcmp(name, "nvmlInit_v2") == 0)
        return (void *)init;
    if (strcmp(name, "nvmlDeviceGetHandleByUUID") == 0)
        return (void *)find_device;
    if (strcmp(name, "nvmlDeviceGetComputeRunningProcesses_v2") == 0)
        return (void *)list_2;
    return strcmp(name, "nvmlDeviceGetComputeRunningProcesses_v3") == 0 ? (void *)list_3 : NULL;
}

hr_dlsym_function *hr_real_dlsym(void)
{
    return find;
}

void *dlopen(const char *name, int flags)
{
    MUST(strcmp(name, "libnvidia-ml.so.1") == 0 && (flags & RTLD_NODELETE) != 0);
    loads++;
    return is_absent ? NULL : device_;
}

bool hr_uuid_of_device(CUdevice device, char *text)
{
    MUST(device == 3);
    strcpy(text, "the-uuid");
    return !has_no_uuid;
}

/* ---- Checks --------------------------------------------------------------------------- */

static void check_absence(void)
{
    nvmlDevice_t device;
    uint64_t bytes = 77;
    is_absent = true;
    MUST(hr_nvml() == NULL && hr_nvml() == NULL && loads == 1 && inits == 0);
    MUST(!hr_nvml_device(3, &device) && hr_nvml_own_bytes(3, &bytes) == HR_NVML_SILENT);
}

static void check_failure(void)
{
    init_result = NVML_ERROR_UNINITIALIZED;
    MUST(hr_nvml() == NULL && hr_nvml() == NULL && loads == 1 && inits == 1);
}

static void check_missing_init(void)
{
    without = "nvmlInit_v2";
    MUST(hr_nvml() == NULL && inits == 0);
}

static void check_older(void)
{
    unsigned count;
    without = "nvmlDeviceGetComputeRunningProcesses_v3";
    processes = 3;
    nvmlProcessInfo_t *found = hr_nvml_processes((nvmlDevice_t)(void *)device_, &count);
    MUST(hr_nvml() != NULL && found != NULL && count == 3 && version == '2' && found[2].pid != 0);
    free(found);
    list_result = NVML_ERROR_FUNCTION_NOT_FOUND;
    MUST(hr_nvml_processes((nvmlDevice_t)(void *)device_, &count) == NULL);
}

static void check_devices(void)
{
    nvmlDevice_t device = NULL;
    MUST(hr_nvml() != NULL && hr_nvml() == hr_nvml() && loads == 1 && inits == 1);
    MUST(hr_nvml_device(3, &device) && device == (nvmlDevice_t)(void *)device_);
    kind = "MIG";
    MUST(hr_nvml_device(3, &device));
    kind = "ABC";
    MUST(!hr_nvml_device(3, &device));
    kind = "GPU";
    has_no_uuid = true;
    MUST(!hr_nvml_device(3, &device));
    /* What this NVML does not have can be called. */
    MUST(hr_nvml()->nvmlDeviceGetUtilizationRates(device, NULL) == NVML_ERROR_FUNCTION_NOT_FOUND);
}

static void check_lists(void)
{
    static const unsigned sizes[] = {0, 1, 63, 64, 65, 80, 200, MOST};
    nvmlDevice_t device = (nvmlDevice_t)(void *)device_;
    unsigned count;
    for (size_t at = 0; at < sizeof sizes / sizeof *sizes; at++) {
        processes = sizes[at];
        questions = 0;
        nvmlProcessInfo_t *found = hr_nvml_processes(device, &count);
        MUST(found != NULL && count == processes && version == '3');
        MUST(questions == (processes <= 64 ? 1 : 2));
        for (unsigned each = 0; each < count; each++)
            MUST(found[each].pid == 100000000 + each);
        free(found);
    }
    /* The list may outgrow what was asked for, but is not asked for without an end. */
    for (more_each_time = 16; more_each_time <= 17; more_each_time++) {
        processes = 65;
        questions = 0;
        nvmlProcessInfo_t *found = hr_nvml_processes(device, &count);
        MUST((found != NULL) == (more_each_time == 16));
        MUST(questions == (more_each_time == 16 ? 2 : 4));
        free(found);
    }
    more_each_time = 0;
    list_result = NVML_ERROR_UNINITIALIZED;
    questions = 0;
    MUST(hr_nvml_processes(device, &count) == NULL && questions == 1);
}

static void check_own_bytes(void)
{
    uint64_t bytes = 77;
    processes = 70;
    bytes_of_last = 4096;
    MUST(hr_nvml_own_bytes(3, &bytes) == HR_NVML_ABSENT && bytes == 77);
    hr_set_own_nvml_pid(100000000);
    MUST(hr_nvml_own_bytes(3, &bytes) == HR_NVML_FOUND && bytes == 1000);
    hr_set_own_nvml_pid(100000069);
    MUST(hr_nvml_own_bytes(3, &bytes) == HR_NVML_FOUND && bytes == 4096);
    hr_set_own_nvml_pid(100000070);
    MUST(hr_nvml_own_bytes(3, &bytes) == HR_NVML_ABSENT);
    hr_set_own_nvml_pid(100000069);
    bytes_of_last = UINT64_MAX;
    MUST(hr_nvml_own_bytes(3, &bytes) == HR_NVML_ABSENT && bytes == 4096);
    list_result = NVML_ERROR_UNINITIALIZED;
    MUST(hr_nvml_own_bytes(3, &bytes) == HR_NVML_SILENT);
    list_result = NVML_SUCCESS;
    has_no_uuid = true;
    MUST(hr_nvml_own_bytes(3, &bytes) == HR_NVML_SILENT && bytes == 4096);
}

static void in_child(void (*check)(void))
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        check();
        _exit(0);
    }
    MUST(waitpid(child, &status, 0) == child && status == 0);
}

/* What a process has learnt of itself is not true of its children. */
static void check_own_pid(void)
{
    MUST(hr_own_nvml_pid() == (unsigned)getpid());
}

int main(void)
{
    void (*const checks[])(void) = {check_absence, check_failure, check_missing_init, check_older,
                                    check_devices, check_lists,   check_own_bytes};
    for (size_t at = 0; at < sizeof checks / sizeof *checks; at++)
        in_child(checks[at]);
    check_own_pid();
    hr_set_own_nvml_pid(4000000000u);
    MUST(hr_own_nvml_pid() == 4000000000u);
    in_child(check_own_pid);
    return 0;
}
