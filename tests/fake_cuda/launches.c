#define _GNU_SOURCE
#include "fake.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* How many launches may wait on one device; the next one waits until the first of them is done. */
#define QUEUE 1024u

struct module {
    struct module *next;
};

struct event {
    CUcontext context;
    uint64_t target_ns;
    bool is_recorded;
};

struct queue {
    uint64_t targets_ns[QUEUE];
    uint64_t count;
};
static struct queue queues[MAX_GPUS]; /* under the state's mutex */

/* ---- modules and functions ---- */

/* Any image will do: what a function costs is in its name. */
API CUresult cuModuleLoadData(CUmodule *out, const void *image)
{
    CUcontext context;
    CUresult code = current_context(&context);
    if (code != CUDA_SUCCESS)
        return code;
    if (image == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *out = calloc(1, sizeof **out);
    return CUDA_SUCCESS;
}

API CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned count, int *options,
                                void **values)
{
    (void)count, (void)options, (void)values;
    return cuModuleLoadData(out, image);
}
ALSO(cuModuleLoadFatBinary, cuModuleLoadData);

API CUresult cuModuleUnload(CUmodule module)
{
    CUresult code = check_initialised();
    if (code == CUDA_SUCCESS)
        free(module);
    return code;
}

API CUresult cuLibraryLoadData(CUmodule *out, const void *image, int *options, void **values,
                               unsigned count, int *others, void **other_values,
                               unsigned other_count)
{
    (void)options, (void)values, (void)count, (void)others, (void)other_values, (void)other_count;
    CUresult code = check_initialised();
    if (code == CUDA_SUCCESS && image == NULL)
        code = CUDA_ERROR_INVALID_VALUE;
    if (code == CUDA_SUCCESS)
        *out = calloc(1, sizeof **out);
    return code;
}
ALSO(cuLibraryUnload, cuModuleUnload);

/* A name that ends in _250us takes so long at each launch; _9ns_block, for each of its blocks. */
static void read_name(struct function *function)
{
    static const struct {
        const char *unit;
        int64_t ns;
    } units[] = {{"ns", 1}, {"us", 1000}, {"ms", 1000000}};
    function->launch_ns = (int64_t)fake.state->launch_ns;
    function->block_ns = (int64_t)fake.state->block_ns;
    size_t length = strlen(function->name);
    bool is_per_block = length > 6 && strcmp(function->name + length - 6, "_block") == 0;
    char name[sizeof function->name];
    snprintf(name, sizeof name, "%.*s", (int)(length - (is_per_block ? 6 : 0)), function->name);
    const char *last = strrchr(name, '_');
    long long number;
    char unit[3];
    if (last == NULL || sscanf(last, "_%lld%2s", &number, unit) != 2)
        return;
    for (int at = 0; at < 3; at++)
        if (strcmp(unit, units[at].unit) == 0) {
            function->launch_ns = is_per_block ? 0 : number * units[at].ns;
            function->block_ns = is_per_block ? number * units[at].ns : 0;
        }
}

API CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name)
{
    CUresult code = check_initialised();
    if (code != CUDA_SUCCESS)
        return code;
    if (out == NULL || module == NULL || name == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    struct function *function = calloc(1, sizeof *function);
    snprintf(function->name, sizeof function->name, "%s", name);
    read_name(function);
    *out = function;
    return CUDA_SUCCESS;
}
ALSO(cuLibraryGetKernel, cuModuleGetFunction);

API CUresult cuKernelGetFunction(CUfunction *out, CUfunction kernel)
{
    *out = kernel;
    return check_initialised();
}

/* ---- time ---- */

uint64_t kernel_ns(CUfunction function, uint64_t blocks)
{
    return (uint64_t)function->launch_ns + (uint64_t)function->block_ns * blocks;
}

static void nap(uint64_t ns)
{
    struct timespec span = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    nanosleep(&span, NULL);
}

/* Wait until a device has done so much work for this process; with the state locked. */
static void wait_until_done(unsigned gpu, uint64_t target_ns)
{
    while (fake.self->done_ns[gpu] < target_ns) {
        uint64_t left = target_ns - fake.self->done_ns[gpu];
        state_unlock(fake.state);
        nap(left);
        state_lock(fake.state);
        state_advance(fake.state, gpu, state_clock_ns());
    }
}

CUresult submit(struct stream *stream, uint64_t ns)
{
    if (ns == 0)
        return CUDA_SUCCESS;
    unsigned gpu = fake.gpus[stream->context->device];
    struct queue *queue = &queues[gpu];
    state_lock(fake.state);
    state_advance(fake.state, gpu, state_clock_ns());
    wait_until_done(gpu, queue->targets_ns[queue->count % QUEUE]);
    fake.self->submitted_ns[gpu] += ns;
    stream->target_ns = fake.self->submitted_ns[gpu];
    queue->targets_ns[queue->count++ % QUEUE] = stream->target_ns;
    state_unlock(fake.state);
    return CUDA_SUCCESS;
}

static bool is_done(CUcontext context, uint64_t target_ns)
{
    unsigned gpu = fake.gpus[context->device];
    state_lock(fake.state);
    state_advance(fake.state, gpu, state_clock_ns());
    bool done = fake.self->done_ns[gpu] >= target_ns;
    state_unlock(fake.state);
    return done;
}

static CUresult synchronise(CUcontext context, uint64_t target_ns)
{
    unsigned gpu = fake.gpus[context->device];
    state_lock(fake.state);
    state_advance(fake.state, gpu, state_clock_ns());
    wait_until_done(gpu, target_ns);
    state_unlock(fake.state);
    trim_pools(context->device, true);
    return CUDA_SUCCESS;
}

API CUresult cuCtxSynchronize(void)
{
    CUcontext context;
    CUresult code = current_context(&context);
    return code == CUDA_SUCCESS
               ? synchronise(context, fake.self->submitted_ns[fake.gpus[context->device]])
               : code;
}

/* ---- streams ---- */

/* Work on a default stream is waited for as all work of its device is, which the fake does in the
 * order of its launches anyhow. */
static __thread struct stream default_stream;

CUresult resolve_stream(CUstream stream, struct stream **out)
{
    if (stream > CU_STREAM_PER_THREAD) {
        *out = stream;
        return stream->context->is_alive ? check_initialised() : CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    CUcontext context;
    CUresult code = current_context(&context);
    if (code == CUDA_SUCCESS) {
        if (default_stream.context != context)
            default_stream = (struct stream){.context = context};
        *out = &default_stream;
    }
    return code;
}

API CUresult cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority)
{
    (void)flags, (void)priority;
    CUcontext context;
    CUresult code = current_context(&context);
    if (code != CUDA_SUCCESS)
        return code;
    *out = calloc(1, sizeof **out);
    **out = (struct stream){.context = context};
    return CUDA_SUCCESS;
}

API CUresult cuStreamCreate(CUstream *out, unsigned flags)
{
    return cuStreamCreateWithPriority(out, flags, 0);
}

API CUresult cuStreamDestroy_v2(CUstream stream)
{
    CUresult code = check_initialised();
    if (code == CUDA_SUCCESS && stream <= CU_STREAM_PER_THREAD)
        code = CUDA_ERROR_INVALID_HANDLE;
    if (code == CUDA_SUCCESS)
        free(stream);
    return code;
}
ALSO(cuStreamDestroy, cuStreamDestroy_v2);

API CUresult cuStreamSynchronize(CUstream stream)
{
    struct stream *on;
    CUresult code = resolve_stream(stream, &on);
    if (code == CUDA_SUCCESS && stream <= CU_STREAM_PER_THREAD)
        return cuCtxSynchronize();
    return code == CUDA_SUCCESS ? synchronise(on->context, on->target_ns) : code;
}
ALSO(cuStreamSynchronize_ptsz, cuStreamSynchronize);

API CUresult cuStreamQuery(CUstream stream)
{
    struct stream *on;
    CUresult code = resolve_stream(stream, &on);
    if (code == CUDA_SUCCESS && !is_done(on->context, on->target_ns))
        code = CUDA_ERROR_NOT_READY;
    return code;
}
ALSO(cuStreamQuery_ptsz, cuStreamQuery);

/* All that is launched is done in order: whoever waits for an event waits for less than that. */
API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    (void)event, (void)flags;
    struct stream *on;
    return resolve_stream(stream, &on);
}
ALSO(cuStreamWaitEvent_ptsz, cuStreamWaitEvent);

API CUresult cuStreamGetCtx(CUstream stream, CUcontext *context)
{
    struct stream *on;
    CUresult code = resolve_stream(stream, &on);
    if (code == CUDA_SUCCESS)
        *context = on->context;
    return code;
}
ALSO(cuStreamGetCtx_ptsz, cuStreamGetCtx);

/* ---- events ---- */

API CUresult cuEventCreate(CUevent *out, unsigned flags)
{
    (void)flags;
    CUcontext context;
    CUresult code = current_context(&context);
    if (code != CUDA_SUCCESS)
        return code;
    *out = calloc(1, sizeof **out);
    (*out)->context = context;
    return CUDA_SUCCESS;
}

API CUresult cuEventDestroy_v2(CUevent event)
{
    CUresult code = check_initialised();
    if (code == CUDA_SUCCESS)
        free(event);
    return code;
}
ALSO(cuEventDestroy, cuEventDestroy_v2);

API CUresult cuEventRecord(CUevent event, CUstream stream)
{
    struct stream *on;
    CUresult code = resolve_stream(stream, &on);
    if (code == CUDA_SUCCESS) {
        event->target_ns = on->target_ns;
        event->is_recorded = true;
    }
    return code;
}
ALSO(cuEventRecord_ptsz, cuEventRecord);

API CUresult cuEventQuery(CUevent event)
{
    CUresult code = check_initialised();
    if (code == CUDA_SUCCESS && !is_done(event->context, event->target_ns))
        code = CUDA_ERROR_NOT_READY;
    return code;
}

API CUresult cuEventSynchronize(CUevent event)
{
    CUresult code = check_initialised();
    return code == CUDA_SUCCESS ? synchronise(event->context, event->target_ns) : code;
}

/* The work between two events, as if the device had done nothing else. */
API CUresult cuEventElapsedTime(float *milliseconds, CUevent first, CUevent last)
{
    CUresult code = check_initialised();
    if (code != CUDA_SUCCESS)
        return code;
    if (!first->is_recorded || !last->is_recorded)
        return CUDA_ERROR_INVALID_HANDLE;
    *milliseconds = (float)(last->target_ns - first->target_ns) / 1e6f;
    return CUDA_SUCCESS;
}
ALSO(cuEventElapsedTime_v2, cuEventElapsedTime);

/* ---- launches ---- */

static CUresult launch(CUfunction function, uint64_t blocks, CUstream stream)
{
    struct stream *on;
    CUresult code = resolve_stream(stream, &on);
    if (code != CUDA_SUCCESS)
        return code;
    if (function == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (blocks == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (on->capturing != NULL)
        return capture_kernel(on->capturing, function, blocks);
    return submit(on, kernel_ns(function, blocks));
}

API CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                            unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                            CUstream stream, void **parameters, void **extra)
{
    (void)block_x, (void)block_y, (void)block_z, (void)shared, (void)parameters, (void)extra;
    return launch(function, (uint64_t)grid_x * grid_y * grid_z, stream);
}
ALSO(cuLaunchKernel_ptsz, cuLaunchKernel);

API CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                                       unsigned grid_z, unsigned block_x, unsigned block_y,
                                       unsigned block_z, unsigned shared, CUstream stream,
                                       void **parameters)
{
    return cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared,
                          stream, parameters, NULL);
}
ALSO(cuLaunchCooperativeKernel_ptsz, cuLaunchCooperativeKernel);

API CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters,
                              void **extra)
{
    return cuLaunchKernel(function, config->gridDimX, config->gridDimY, config->gridDimZ,
                          config->blockDimX, config->blockDimY, config->blockDimZ,
                          config->sharedMemBytes, config->hStream, parameters, extra);
}
ALSO(cuLaunchKernelEx_ptsz, cuLaunchKernelEx);
