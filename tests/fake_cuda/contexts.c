#define _GNU_SOURCE
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DRIVER_VERSION 13000
#define STACK_DEPTH 64

struct fake fake = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static struct context primaries[MAX_GPUS];
static struct context *_Atomic created;
static __thread struct context *stack[STACK_DEPTH];
static __thread int depth;

/* ---- start ---- */

static void forget_parent(void)
{
    if (fake.initialised != 1)
        return;
    fake.initialised = -1;
    state_abandon();
}

static int gpu_of_word(const char *word)
{
    if (strncmp(word, "GPU-", 4) == 0) {
        for (unsigned gpu = 0; gpu < fake.state->gpu_count; gpu++) {
            unsigned char bytes[16];
            char text[40];
            state_uuid(gpu, bytes);
            int at = 0;
            for (int number = 0; number < 16; number++)
                at += snprintf(text + at, sizeof text - (size_t)at, "%s%02x",
                               number == 4 || number == 6 || number == 8 || number == 10 ? "-" : "",
                               bytes[number]);
            if (strncmp(text, word + 4, strlen(word + 4)) == 0)
                return (int)gpu;
        }
        return -1;
    }
    char *end;
    long index = strtol(word, &end, 10);
    return end == word || *end != '\0' || index >= (long)fake.state->gpu_count ? -1 : (int)index;
}

/* CUDA_VISIBLE_DEVICES: indices or uuids, up to the first that there is not. */
static void choose_devices(void)
{
    const char *wanted = getenv("CUDA_VISIBLE_DEVICES");
    if (wanted == NULL) {
        for (unsigned gpu = 0; gpu < fake.state->gpu_count; gpu++)
            fake.gpus[fake.device_count++] = gpu;
        return;
    }
    char *copy = strdup(wanted), *rest = copy, *word;
    while ((word = strsep(&rest, ",")) != NULL && fake.device_count < MAX_GPUS) {
        int gpu = gpu_of_word(word);
        if (gpu < 0)
            break;
        fake.gpus[fake.device_count++] = (unsigned)gpu;
    }
    free(copy);
}

/* The process as /proc names it, which is how all namespaces that share it know it. */
static int32_t own_pid(void)
{
    char text[32] = "";
    ssize_t length = readlink("/proc/self", text, sizeof text - 1);
    return length > 0 ? (int32_t)atoi(text) : (int32_t)getpid();
}

static CUresult start(void)
{
    static bool is_watching_forks;
    if (fake.initialised != 0)
        return fake.initialised == 1 ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
    if (fake.state == NULL)
        fake.state = state_open();
    if (fake.state == NULL || fake.state->gpu_count == 0)
        return CUDA_ERROR_NO_DEVICE;
    fake.device_count = 0;
    choose_devices();
    if (fake.device_count == 0)
        return CUDA_ERROR_NO_DEVICE;
    state_lock(fake.state);
    fake.self = state_join(fake.state, own_pid());
    state_unlock(fake.state);
    if (fake.self == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (int device = 0; device < fake.device_count; device++)
        primaries[device] = (struct context){.device = device, .is_primary = true};
    if (!is_watching_forks)
        pthread_atfork(NULL, NULL, forget_parent);
    is_watching_forks = true;
    fake.initialised = 1;
    return CUDA_SUCCESS;
}

/* With FAKE_CUDA_END_MS: as the program ends, before any destructor. Whoever calls a driver that
 * takes itself down does so at his own risk. */
static _Atomic bool is_ending;

static void end(void)
{
    is_ending = true;
    usleep((useconds_t)atoi(getenv("FAKE_CUDA_END_MS")) * 1000);
}

API CUresult cuInit(unsigned flags)
{
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fake.mutex);
    bool is_first = fake.initialised == 0;
    CUresult code = start();
    pthread_mutex_unlock(&fake.mutex);
    if (is_first && getenv("FAKE_CUDA_END_MS") != NULL)
        atexit(end);
    return code;
}

CUresult check_initialised(void)
{
    if (is_ending) {
        fprintf(stderr, "the driver is called as it ends\n");
        abort();
    }
    return fake.initialised == 1 ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult check_device(CUdevice device)
{
    CUresult code = check_initialised();
    if (code == CUDA_SUCCESS && (device < 0 || device >= fake.device_count))
        code = CUDA_ERROR_INVALID_DEVICE;
    return code;
}

API CUresult cuDriverGetVersion(int *version)
{
    if (version == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *version = DRIVER_VERSION;
    return CUDA_SUCCESS;
}

/* ---- devices ---- */

API CUresult cuDeviceGetCount(int *count)
{
    CUresult code = check_initialised();
    if (code == CUDA_SUCCESS)
        *count = fake.device_count;
    return code;
}

API CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    CUresult code = check_device(ordinal);
    if (code == CUDA_SUCCESS)
        *device = ordinal;
    return code;
}

API CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
    CUresult code = check_device(device);
    if (code == CUDA_SUCCESS)
        snprintf(name, (size_t)length, "NVIDIA Fake GPU");
    return code;
}

API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    CUresult code = check_device(device);
    if (code == CUDA_SUCCESS)
        state_uuid(fake.gpus[device], uuid->bytes);
    return code;
}
ALSO(cuDeviceGetUuid_v2, cuDeviceGetUuid);

API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    CUresult code = check_device(device);
    if (code == CUDA_SUCCESS)
        *bytes = fake.state->memory_bytes;
    return code;
}

/* CUdevice_attribute and its value; those that are not here are 0. */
static const int attributes[][2] = {
    {1, 1024},     {2, 1024},  {3, 1024},  {4, 64},   {5, 2147483647},  {6, 65535},
    {7, 65535},    {8, 49152}, {9, 65536}, {10, 32},  {11, 2147483647}, {12, 65536},
    {13, 1400000}, {14, 512},  {15, 1},    {16, 80},  {18, 0},          {19, 1},
    {31, 1},       {32, 0},    {34, 0},    {35, 0},   {36, 877000},     {37, 4096},
    {38, 6291456}, {39, 2048}, {40, 2},    {41, 1},   {50, 0},          {75, 8},
    {76, 0},       {78, 1},    {79, 1},    {80, 1},   {81, 167936},     {82, 65536},
    {83, 1},       {84, 0},    {88, 1},    {89, 1},   {90, 1},          {95, 1},
    {97, 166912},  {102, 1},   {103, 1},   {106, 32}, {111, 1024},      {115, 1},
    {117, 1},      {119, 1},
};

API CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    CUresult code = check_device(device);
    if (code != CUDA_SUCCESS)
        return code;
    *value = attribute == 33 ? (int)fake.gpus[device] + 1 : 0;
    for (size_t number = 0; number < sizeof attributes / sizeof attributes[0]; number++)
        if (attributes[number][0] == attribute)
            *value = attributes[number][1];
    return CUDA_SUCCESS;
}

API CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
{
    CUresult code = cuDeviceGetAttribute(major, 75, device);
    return code == CUDA_SUCCESS ? cuDeviceGetAttribute(minor, 76, device) : code;
}

API CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    CUresult code =
        check_device(device) == CUDA_SUCCESS ? check_device(peer) : check_device(device);
    if (code == CUDA_SUCCESS)
        *can = device != peer;
    return code;
}

/* ---- contexts ---- */

static CUresult bring_to_life(struct context *context)
{
    CUresult code = charge(context->device, fake.state->context_bytes);
    if (code != CUDA_SUCCESS)
        return code;
    state_lock(fake.state);
    fake.self->contexts[fake.gpus[context->device]]++;
    state_unlock(fake.state);
    context->is_alive = true;
    return CUDA_SUCCESS;
}

/* Everything that was allocated in it goes with it. */
static void destroy(struct context *context)
{
    free_blocks_of(context);
    trim_pools(context->device, false);
    context->is_alive = false;
    context->retained = 0;
    state_lock(fake.state);
    fake.self->contexts[fake.gpus[context->device]]--;
    state_unlock(fake.state);
    discharge(context->device, fake.state->context_bytes);
}

static pthread_mutex_t life = PTHREAD_MUTEX_INITIALIZER; /* over contexts' beginnings and ends */

API CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device)
{
    CUresult code = check_device(device);
    if (code != CUDA_SUCCESS)
        return code;
    pthread_mutex_lock(&life);
    struct context *primary = &primaries[device];
    if (!primary->is_alive)
        code = bring_to_life(primary);
    if (code == CUDA_SUCCESS) {
        primary->retained++;
        *out = primary;
    }
    pthread_mutex_unlock(&life);
    return code;
}

API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    CUresult code = check_device(device);
    if (code != CUDA_SUCCESS)
        return code;
    pthread_mutex_lock(&life);
    struct context *primary = &primaries[device];
    if (primary->retained == 0)
        code = CUDA_ERROR_INVALID_CONTEXT;
    else if (--primary->retained == 0)
        destroy(primary);
    pthread_mutex_unlock(&life);
    return code;
}
ALSO(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2);

API CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    CUresult code = check_device(device);
    if (code != CUDA_SUCCESS)
        return code;
    pthread_mutex_lock(&life);
    if (primaries[device].is_alive)
        destroy(&primaries[device]);
    pthread_mutex_unlock(&life);
    return CUDA_SUCCESS;
}
ALSO(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2);

API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
    CUresult code = check_device(device);
    if (code == CUDA_SUCCESS) {
        *flags = primaries[device].flags;
        *active = primaries[device].is_alive;
    }
    return code;
}

API CUresult cuCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice device)
{
    CUresult code = check_device(device);
    if (code != CUDA_SUCCESS)
        return code;
    if (depth == STACK_DEPTH)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&life);
    struct context *context = calloc(1, sizeof *context);
    context->device = device;
    context->flags = flags;
    code = bring_to_life(context);
    if (code != CUDA_SUCCESS) {
        free(context);
    } else {
        context->next = created;
        created = context;
        stack[depth++] = context;
        *out = context;
    }
    pthread_mutex_unlock(&life);
    return code;
}

/* Hooked by no library, as what cuGetExportTable() gives. */
ALSO(fake_cuda_create_context, cuCtxCreate_v2);

API CUresult cuCtxCreate_v3(CUcontext *out, void *affinity, int count, unsigned flags,
                            CUdevice device)
{
    (void)affinity, (void)count;
    return cuCtxCreate_v2(out, flags, device);
}

API CUresult cuCtxCreate_v4(CUcontext *out, void *parameters, unsigned flags, CUdevice device)
{
    (void)parameters;
    return cuCtxCreate_v2(out, flags, device);
}

static bool is_known(CUcontext context)
{
    if (context >= primaries && context < primaries + MAX_GPUS)
        return true;
    for (struct context *known = created; known != NULL; known = known->next)
        if (known == context)
            return true;
    return false;
}

/* What it was stays readable, so that a destroyed context can be told from no context. */
API CUresult cuCtxDestroy_v2(CUcontext context)
{
    CUresult code = check_initialised();
    if (code != CUDA_SUCCESS)
        return code;
    pthread_mutex_lock(&life);
    if (!is_known(context) || context->is_primary)
        code = CUDA_ERROR_INVALID_CONTEXT;
    else if (!context->is_alive)
        code = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    else
        destroy(context);
    pthread_mutex_unlock(&life);
    if (code == CUDA_SUCCESS && depth > 0 && stack[depth - 1] == context)
        depth--;
    return code;
}
ALSO(cuCtxDestroy, cuCtxDestroy_v2);

/* Older programs count the uses of a context, which is the current one. */
API CUresult cuCtxAttach(CUcontext *out, unsigned flags)
{
    CUresult code = flags != 0 ? CUDA_ERROR_INVALID_VALUE : current_context(out);
    if (code == CUDA_SUCCESS)
        (*out)->retained++;
    return code;
}

API CUresult cuCtxDetach(CUcontext context)
{
    CUcontext current;
    CUresult code = current_context(&current);
    if (code == CUDA_SUCCESS && (context != current || context->is_primary))
        code = CUDA_ERROR_INVALID_CONTEXT;
    if (code != CUDA_SUCCESS || context->retained == 0)
        return code == CUDA_SUCCESS ? cuCtxDestroy_v2(context) : code;
    context->retained--;
    return CUDA_SUCCESS;
}

CUresult current_context(CUcontext *context)
{
    if (fake.initialised != 1)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (depth == 0 || stack[depth - 1] == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    *context = stack[depth - 1];
    return (*context)->is_alive ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

API CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    CUresult code = check_initialised();
    if (code != CUDA_SUCCESS)
        return code;
    if (!is_known(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (depth == STACK_DEPTH)
        return CUDA_ERROR_INVALID_VALUE;
    stack[depth++] = context;
    return CUDA_SUCCESS;
}
ALSO(cuCtxPushCurrent, cuCtxPushCurrent_v2);

API CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    CUresult code = check_initialised();
    if (code != CUDA_SUCCESS)
        return code;
    if (depth == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (context != NULL)
        *context = stack[depth];
    return CUDA_SUCCESS;
}
ALSO(cuCtxPopCurrent, cuCtxPopCurrent_v2);

API CUresult cuCtxSetCurrent(CUcontext context)
{
    CUresult code = check_initialised();
    if (code != CUDA_SUCCESS)
        return code;
    if (context != NULL && !is_known(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (context == NULL) {
        depth -= depth > 0;
    } else {
        depth += depth == 0;
        stack[depth - 1] = context;
    }
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetCurrent(CUcontext *context)
{
    CUresult code = check_initialised();
    if (code == CUDA_SUCCESS)
        *context = depth == 0 ? NULL : stack[depth - 1];
    return code;
}

API CUresult cuCtxGetDevice(CUdevice *device)
{
    CUcontext context;
    CUresult code = current_context(&context);
    if (code == CUDA_SUCCESS)
        *device = context->device;
    return code;
}

API CUresult cuCtxSetLimit(int limit, size_t value)
{
    (void)limit, (void)value;
    CUcontext context;
    return current_context(&context);
}

/* ---- what errors say ---- */

static const struct {
    CUresult code;
    const char *text;
} errors[] = {
    {CUDA_SUCCESS, "no error"},
    {CUDA_ERROR_INVALID_VALUE, "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "initialization error"},
    {CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"},
    {CUDA_ERROR_INVALID_CONTEXT, "invalid device context"},
    {CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"},
    {CUDA_ERROR_NOT_FOUND, "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "device not ready"},
    {CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"},
    {CUDA_ERROR_NOT_SUPPORTED, "operation not supported"},
};

API CUresult cuGetErrorString(CUresult code, const char **out)
{
    for (size_t number = 0; number < sizeof errors / sizeof errors[0]; number++)
        if (errors[number].code == code) {
            *out = errors[number].text;
            return CUDA_SUCCESS;
        }
    *out = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}
