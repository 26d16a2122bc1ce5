/*
 * A libnvidia-ml.so.1 without a GPU: the functions that this project asks of nvidia-ml-py, with the
 * driver's manners, playing the scene of scene.h. Types as NVML's binary interface has them.
 */
#define _GNU_SOURCE
#include "scene.h"

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    ARGUMENT_VERSION_MISMATCH = 25,
};

#define NO_INSTANCE 0xFFFFFFFFu

/* How many samples the real driver makes room for when it is asked for the number. */
#define SAMPLE_ROOM 100u

typedef char *device_handle;

struct memory_info {
    unsigned long long total, free, used;
};

struct memory_info_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

struct pci_info {
    char short_id[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char id[32];
};

struct utilization_rates {
    unsigned gpu, memory;
};

struct process_info {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};

/* What the third version of the list functions wrote in drivers 535.43 to 535.86. */
struct wide_process_info {
    struct process_info info;
    unsigned long long protected_memory;
};

struct utilization_sample {
    unsigned pid;
    unsigned long long time_stamp;
    unsigned sm, memory, enc, dec;
};

struct newer_sample {
    unsigned long long time_stamp;
    unsigned pid, sm, memory, enc, dec, jpg, ofa;
};

struct newer_samples {
    unsigned version, count;
    unsigned long long last_seen;
    struct newer_sample *list;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct scene scene; /* under the mutex */
static int initialised;    /* under the mutex */
static char handles[DEVICES][1 + MIG_SLOTS];

static const struct place NOWHERE = {-1, WHOLE};

static struct place place_of(device_handle handle)
{
    ptrdiff_t at = handle - &handles[0][0];
    if (handle == NULL || at < 0 || at >= (ptrdiff_t)sizeof handles)
        return NOWHERE;
    return (struct place){(int)at / (1 + MIG_SLOTS), (int)at % (1 + MIG_SLOTS) - 1};
}

static device_handle handle_of(struct place place)
{
    return &handles[place.device][place.slot + 1];
}

/* Takes the mutex, whatever it returns; finish() gives it back. */
static int begin_anytime(const char *function, struct place place)
{
    pthread_mutex_lock(&mutex);
    return read_scene(&scene) ? ruled(&scene, function, place, false) : DRIVER_NOT_LOADED;
}

static int begin(const char *function, struct place place)
{
    int code = begin_anytime(function, place);
    return code == SUCCESS && initialised == 0 ? UNINITIALIZED : code;
}

static int begin_device(const char *function, struct place place)
{
    int code = begin(function, place);
    if (code == SUCCESS && (place.device < 0 || !device_at(&scene, place)->exists))
        code = INVALID_ARGUMENT;
    return code;
}

static int begin_utilization(const char *function, struct place place)
{
    int code = begin_device(function, place);
    if (code == SUCCESS && scene.is_live)
        count_live_question((unsigned)place.device);
    if (code == SUCCESS && (place.slot != WHOLE || device_at(&scene, place)->mode == MIG_ON))
        code = NOT_SUPPORTED;
    return code;
}

static int finish(int code)
{
    pthread_mutex_unlock(&mutex);
    return code;
}

static int put_text(const char *text, char *out, unsigned size)
{
    if (strlen(text) >= size)
        return INSUFFICIENT_SIZE;
    memcpy(out, text, strlen(text) + 1);
    return SUCCESS;
}

/* ---- the library ---- */

API int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    int code = begin_anytime(__func__, NOWHERE);
    if (code == SUCCESS)
        initialised++;
    return finish(code);
}

API int nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

API int nvmlShutdown(void)
{
    int code = begin(__func__, NOWHERE);
    if (code == SUCCESS)
        initialised--;
    return finish(code);
}

/* For tests: initialisations that have not been given back. */
API int fake_nvml_initialised(void)
{
    pthread_mutex_lock(&mutex);
    return finish(initialised);
}

API const char *nvmlErrorString(int code)
{
    static __thread char text[64];
    snprintf(text, sizeof text, "fake NVML error %d", code);
    return text;
}

API int nvmlSystemGetDriverVersion(char *version, unsigned size)
{
    int code = begin(__func__, NOWHERE);
    return finish(code == SUCCESS ? put_text(scene.driver, version, size) : code);
}

API int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    int code = begin(__func__, NOWHERE);
    if (code == SUCCESS)
        *version = 13000;
    return finish(code);
}

/* ---- devices ---- */

#define VALUE(name, begin, type, value)                                                            \
    API int name(device_handle handle, type *out)                                                  \
    {                                                                                              \
        struct place place = place_of(handle);                                                     \
        int code = begin(__func__, place);                                                         \
        if (code == SUCCESS)                                                                       \
            *out = value;                                                                          \
        return finish(code);                                                                       \
    }
#define NUMBER(name, begin, value) VALUE(name, begin, unsigned, (unsigned)(value))

#define TEXT_OF(name, field)                                                                       \
    API int name(device_handle handle, char *text, unsigned size)                                  \
    {                                                                                              \
        struct place place = place_of(handle);                                                     \
        int code = begin_device(__func__, place);                                                  \
        return finish(code == SUCCESS ? put_text(device_at(&scene, place)->field, text, size)      \
                                      : code);                                                     \
    }

NUMBER(nvmlDeviceGetIndex, begin_device, place.slot == WHOLE ? place.device : place.slot)
NUMBER(nvmlDeviceGetMinorNumber, begin_device, place.device)
NUMBER(nvmlDeviceGetGpuInstanceId, begin_device, device_at(&scene, place)->gpu_instance)
NUMBER(nvmlDeviceGetComputeInstanceId, begin_device, device_at(&scene, place)->compute_instance)
/* The largest number that real hardware has. */
NUMBER(nvmlDeviceGetMaxMigDeviceCount, begin_device, MIG_SLOTS - 1)
TEXT_OF(nvmlDeviceGetUUID, uuid)
TEXT_OF(nvmlDeviceGetName, name)

API int nvmlDeviceGetCount_v2(unsigned *count)
{
    int code = begin(__func__, NOWHERE);
    if (code != SUCCESS)
        return finish(code);
    *count = 0;
    for (int index = 0; index < DEVICES; index++)
        *count += scene.devices[index][0].exists;
    return finish(SUCCESS);
}

API int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_handle *handle)
{
    struct place place = {index < DEVICES ? (int)index : -1, WHOLE};
    int code = begin_device(__func__, place);
    if (code == SUCCESS)
        *handle = handle_of(place);
    return finish(code);
}

API int nvmlDeviceGetHandleByUUID(const char *uuid, device_handle *handle)
{
    int code = begin(__func__, NOWHERE);
    if (code != SUCCESS)
        return finish(code);
    for (int index = 0; index < DEVICES; index++)
        for (int slot = WHOLE; slot < MIG_SLOTS; slot++) {
            struct place place = {index, slot};
            const struct device *device = device_at(&scene, place);
            if (device->exists && strcmp(device->uuid, uuid) == 0) {
                *handle = handle_of(place);
                return finish(SUCCESS);
            }
        }
    return finish(NOT_FOUND);
}

static struct pci_info pci_info_of(struct place place)
{
    struct pci_info info = {.bus = (unsigned)place.device + 1};
    snprintf(info.short_id, sizeof info.short_id, "0000:%02X:00.0", info.bus);
    snprintf(info.id, sizeof info.id, "00000000:%02X:00.0", info.bus);
    return info;
}
VALUE(nvmlDeviceGetPciInfo_v3, begin_device, struct pci_info, pci_info_of(place))

static struct memory_info memory_of(struct place place)
{
    const struct device *device = device_at(&scene, place);
    return (struct memory_info){device->total, device->total - device->used, device->used};
}
VALUE(nvmlDeviceGetMemoryInfo, begin_device, struct memory_info, memory_of(place))

API int nvmlDeviceGetMemoryInfo_v2(device_handle handle, struct memory_info_v2 *info)
{
    struct place place = place_of(handle);
    int code = begin_device(__func__, place);
    if (code == SUCCESS) {
        const struct device *device = device_at(&scene, place);
        info->total = device->total;
        info->reserved = 0;
        info->free = device->total - device->used;
        info->used = device->used;
    }
    return finish(code);
}

static struct utilization_rates rates_of(struct place place)
{
    const struct device *device = device_at(&scene, place);
    return (struct utilization_rates){device->gpu_percent, device->memory_percent};
}
VALUE(nvmlDeviceGetUtilizationRates, begin_utilization, struct utilization_rates, rates_of(place))

/* ---- sensors ---- */

static int begin_sensor(const char *function, struct place place)
{
    int code = begin_device(function, place);
    if (code == SUCCESS && (place.slot != WHOLE || !device_at(&scene, place)->has_sensors))
        code = NOT_SUPPORTED;
    return code;
}

NUMBER(nvmlDeviceGetPowerUsage, begin_sensor, device_at(&scene, place)->milliwatts)

API int nvmlDeviceGetTemperature(device_handle handle, int sensor, unsigned *celsius)
{
    struct place place = place_of(handle);
    int code = begin_sensor(__func__, place);
    if (code == SUCCESS && sensor != 0)
        code = INVALID_ARGUMENT;
    if (code == SUCCESS)
        *celsius = device_at(&scene, place)->celsius;
    return finish(code);
}

/* Of the two counters the scene has the lifetime's only. */
API int nvmlDeviceGetTotalEccErrors(device_handle handle, int type, int counter,
                                    unsigned long long *errors)
{
    struct place place = place_of(handle);
    int code = begin_sensor(__func__, place);
    if (code == SUCCESS && (type < 0 || type > 1 || counter != 1))
        code = INVALID_ARGUMENT;
    if (code == SUCCESS)
        *errors = device_at(&scene, place)->ecc_errors[type];
    return finish(code);
}

/* ---- MIG ---- */

API int nvmlDeviceGetMigMode(device_handle handle, unsigned *current, unsigned *pending)
{
    struct place place = place_of(handle);
    int code = begin_device(__func__, place);
    if (code == SUCCESS && device_at(&scene, place)->mode == MIG_UNSUPPORTED)
        code = NOT_SUPPORTED;
    if (code == SUCCESS)
        *current = *pending = device_at(&scene, place)->mode == MIG_ON;
    return finish(code);
}

API int nvmlDeviceGetMigDeviceHandleByIndex(device_handle handle, unsigned slot, device_handle *mig)
{
    struct place place = place_of(handle);
    if (slot < MIG_SLOTS)
        place.slot = (int)slot;
    int code = begin(__func__, place);
    if (code == SUCCESS && place.device < 0)
        code = INVALID_ARGUMENT;
    if (code == SUCCESS && (slot >= MIG_SLOTS || !device_at(&scene, place)->exists))
        code = NOT_FOUND;
    if (code == SUCCESS)
        *mig = handle_of(place);
    return finish(code);
}

/* ---- processes ---- */

/* A device's own list takes in those of its MIG devices. */
static bool belongs(struct place what, struct place place)
{
    return what.device == place.device && (place.slot == WHOLE || what.slot == place.slot);
}

static int list_processes(const char *function, device_handle handle, enum process_kind kind,
                          unsigned *count, struct process_info *infos)
{
    struct place place = place_of(handle);
    int code = begin_device(function, place);
    if (code != SUCCESS)
        return finish(code);
    unsigned room = *count, found = 0;
    for (int number = 0; number < scene.process_count; number++) {
        const struct process *process = &scene.processes[number];
        if (process->kind != kind || !belongs(process->place, place))
            continue;
        if (found < room) {
            const struct device *device = device_at(&scene, process->place);
            bool mig = process->place.slot != WHOLE;
            struct process_info info = {process->pid,
                                        scene.is_memory_unknown ? UNAVAILABLE : process->used,
                                        mig ? device->gpu_instance : NO_INSTANCE,
                                        mig ? device->compute_instance : NO_INSTANCE};
            if (scene.wide_lists && strstr(function, "_v3") != NULL)
                ((struct wide_process_info *)infos)[found] =
                    (struct wide_process_info){info, ~0ULL};
            else
                infos[found] = info;
        }
        found++;
    }
    *count = found;
    if (scene.slow_lists)
        usleep(200000);
    bool grown = room > 0 && ruled(&scene, function, place, true) != 0;
    return finish(found > room || grown ? INSUFFICIENT_SIZE : SUCCESS);
}

#define LIST(name, kind)                                                                           \
    API int name(device_handle handle, unsigned *count, struct process_info *infos)                \
    {                                                                                              \
        return list_processes(__func__, handle, kind, count, infos);                               \
    }

LIST(nvmlDeviceGetComputeRunningProcesses_v3, COMPUTE)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, COMPUTE)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, GRAPHICS)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, GRAPHICS)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, MPS)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, MPS)

static unsigned long long now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_nsec / 1000;
}

/* How much room the two functions below want. */
static unsigned sample_room(void)
{
    unsigned wanted = (unsigned)scene.sample_count + scene.stale_samples;
    return wanted < SAMPLE_ROOM ? SAMPLE_ROOM : wanted;
}

static unsigned list_samples(struct place place, unsigned long long last_seen,
                             struct utilization_sample *out)
{
    unsigned found = 0;
    for (int number = 0; number < scene.sample_count; number++) {
        const struct sample *sample = &scene.samples[number];
        unsigned long long time_stamp = now_us() - sample->age_us;
        if (!belongs(sample->place, place) || (time_stamp <= last_seen && !scene.stale_samples))
            continue;
        unsigned sm = scene.is_live ? live_percent((unsigned)place.device, sample->pid, last_seen)
                                    : sample->sm;
        out[found++] = (struct utilization_sample){sample->pid,    time_stamp,  sm,
                                                   sample->memory, sample->enc, sample->dec};
    }
    if (scene.stale_samples)
        out[found++] = (struct utilization_sample){0};
    return found;
}

API int nvmlDeviceGetProcessUtilization(device_handle handle, struct utilization_sample *out,
                                        unsigned *count, unsigned long long last_seen)
{
    struct place place = place_of(handle);
    int code = begin_utilization(__func__, place);
    if (code != SUCCESS)
        return finish(code);
    bool grown = out != NULL && ruled(&scene, __func__, place, true) != 0;
    if (out == NULL || *count < sample_room() || grown) {
        *count = sample_room();
        return finish(INSUFFICIENT_SIZE);
    }
    *count = list_samples(place, last_seen, out);
    for (unsigned at = 0; scene.is_blackwell && at < *count; at++)
        out[at].sm = out[at].memory = out[at].enc = out[at].dec = 0;
    return finish(*count > 0 ? SUCCESS : NOT_FOUND);
}

API int nvmlDeviceGetProcessesUtilizationInfo(device_handle handle, struct newer_samples *asked)
{
    struct place place = place_of(handle);
    int code = begin_utilization(__func__, place);
    if (code == SUCCESS && asked->version != (sizeof *asked | 1u << 24))
        code = ARGUMENT_VERSION_MISMATCH;
    if (code != SUCCESS)
        return finish(code);
    bool grown = asked->list != NULL && ruled(&scene, __func__, place, true) != 0;
    if (asked->list == NULL || asked->count < sample_room() || grown) {
        asked->count = sample_room();
        return finish(INSUFFICIENT_SIZE);
    }
    struct utilization_sample *samples = calloc(sample_room(), sizeof *samples);
    asked->count = list_samples(place, asked->last_seen, samples);
    for (unsigned at = 0; at < asked->count; at++)
        asked->list[at] = (struct newer_sample){.time_stamp = samples[at].time_stamp,
                                                .pid = samples[at].pid,
                                                .sm = samples[at].sm,
                                                .memory = samples[at].memory,
                                                .enc = samples[at].enc,
                                                .dec = samples[at].dec};
    free(samples);
    return finish(asked->count > 0 ? SUCCESS : NOT_FOUND);
}

/* ---- what these devices do not have ---- */

#define REFUSED(name)                                                                              \
    API int name(device_handle handle)                                                             \
    {                                                                                              \
        int code = begin_device(__func__, place_of(handle));                                       \
        return finish(code == SUCCESS ? NOT_SUPPORTED : code);                                     \
    }

REFUSED(nvmlDeviceGetComputeMode)
REFUSED(nvmlDeviceGetDecoderUtilization)
REFUSED(nvmlDeviceGetDisplayActive)
REFUSED(nvmlDeviceGetDriverModel)
REFUSED(nvmlDeviceGetDriverModel_v2)
REFUSED(nvmlDeviceGetEncoderUtilization)
REFUSED(nvmlDeviceGetEnforcedPowerLimit)
REFUSED(nvmlDeviceGetFanSpeed)
REFUSED(nvmlDeviceGetPerformanceState)
REFUSED(nvmlDeviceGetPersistenceMode)
REFUSED(nvmlDeviceGetPowerManagementLimit)
