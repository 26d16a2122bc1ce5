/*
 * Launches of kernels and graphs.  Without an SM limit a launch costs one load and a branch more;
 * with one, it pays with tokens of its device's row (throttle.h).
 */
#include "cuda_functions.h"
#include "graph_memory.h"
#include "graph_sizes.h"
#include "throttle.h"

/*
 * A hook that makes a launch by `call`.  Only where something holds launches up its size is looked
 * up, and paid for; what the driver then refuses costs nothing.  Apart, so that the other way is a
 * jump that keeps no register.
 */
#define LAUNCH_HOOK(name, parameters, arguments, call, size_, stream_)                             \
    __attribute__((noinline)) static CUresult held_##name parameters                               \
    {                                                                                              \
        const struct hr_graph_size size = size_;                                                   \
        struct hr_row *payer = hr_throttle(size, stream_);                                         \
        CUresult result = call;                                                                    \
        if (payer != NULL && result != CUDA_SUCCESS)                                               \
            hr_give_back_tokens(payer, size);                                                      \
        return result;                                                                             \
    }                                                                                              \
    CUresult name parameters                                                                       \
    {                                                                                              \
        return __builtin_expect(hr_current_holds() == 0, 1) ? call : held_##name arguments;        \
    }

static inline struct hr_graph_size size_of_kernel(unsigned x, unsigned y, unsigned z)
{
    return (struct hr_graph_size){.kernels = 1, .blocks = (uint64_t)x * y * z};
}

#define KERNEL_HOOK(name, parameters, arguments)                                                   \
    LAUNCH_HOOK(name, parameters, arguments, HR_CUDA(name) arguments,                              \
                size_of_kernel(grid_x, grid_y, grid_z), stream)
KERNEL_HOOK(cuLaunchKernel, HR_KERNEL_PARAMETERS, HR_KERNEL_ARGUMENTS)
KERNEL_HOOK(cuLaunchKernel_ptsz, HR_KERNEL_PARAMETERS, HR_KERNEL_ARGUMENTS)
KERNEL_HOOK(cuLaunchCooperativeKernel, HR_COOPERATIVE_PARAMETERS, HR_COOPERATIVE_ARGUMENTS)
KERNEL_HOOK(cuLaunchCooperativeKernel_ptsz, HR_COOPERATIVE_PARAMETERS, HR_COOPERATIVE_ARGUMENTS)

/* Of none, which the driver refuses, too. */
static inline struct hr_graph_size size_of_config(const CUlaunchConfig *config)
{
    return config == NULL ? size_of_kernel(0, 0, 0)
                          : size_of_kernel(config->gridDimX, config->gridDimY, config->gridDimZ);
}

#define CONFIG_HOOK(name)                                                                          \
    LAUNCH_HOOK(                                                                                   \
        name,                                                                                      \
        (const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra),      \
        (config, function, parameters, extra), HR_CUDA(name)(config, function, parameters, extra), \
        size_of_config(config), config == NULL ? NULL : config->hStream)
CONFIG_HOOK(cuLaunchKernelEx)
CONFIG_HOOK(cuLaunchKernelEx_ptsz)

/* One block, or a plane of them. */
LAUNCH_HOOK(cuLaunch, (CUfunction function), (function), HR_CUDA(cuLaunch)(function),
            size_of_kernel(1, 1, 1), NULL)

static inline struct hr_graph_size size_of_plane(int width, int height)
{
    return size_of_kernel((unsigned)width, (unsigned)height, 1);
}
LAUNCH_HOOK(cuLaunchGrid, (CUfunction function, int width, int height), (function, width, height),
            HR_CUDA(cuLaunchGrid)(function, width, height), size_of_plane(width, height), NULL)
LAUNCH_HOOK(cuLaunchGridAsync, (CUfunction function, int width, int height, CUstream stream),
            (function, width, height, stream),
            HR_CUDA(cuLaunchGridAsync)(function, width, height, stream),
            size_of_plane(width, height), stream)

/* Several devices run it at once; the current one's row pays, for what one of them runs. */
static inline struct hr_graph_size size_of_first(const CUDA_LAUNCH_PARAMS *launches, unsigned count)
{
    return launches == NULL || count == 0
               ? size_of_kernel(0, 0, 0)
               : size_of_kernel(launches->gridDimX, launches->gridDimY, launches->gridDimZ);
}
LAUNCH_HOOK(cuLaunchCooperativeKernelMultiDevice,
            (CUDA_LAUNCH_PARAMS * launches, unsigned count, unsigned flags),
            (launches, count, flags),
            HR_CUDA(cuLaunchCooperativeKernelMultiDevice)(launches, count, flags),
            size_of_first(launches, count), NULL)

/* A graph that allocates has to ask for its memory too. */
static CUresult launch_graph(hr_launch_graph *launch, CUgraphExec exec, CUstream stream)
{
    if (__builtin_expect(atomic_load_explicit(&hr_graphs_allocate, memory_order_relaxed), 0)) {
        uint64_t bytes = hr_size_of_graph(exec).memory;
        if (bytes != 0)
            return hr_launch_with_memory(launch, bytes, exec, stream);
    }
    return launch(exec, stream);
}

#define GRAPH_HOOK(name)                                                                           \
    LAUNCH_HOOK(name, (CUgraphExec exec, CUstream stream), (exec, stream),                         \
                launch_graph(HR_CUDA(name), exec, stream), hr_size_of_graph(exec), stream)
GRAPH_HOOK(cuGraphLaunch)
GRAPH_HOOK(cuGraphLaunch_ptsz)

/* It takes a graph's memory before the launch, and runs nothing. */
CUresult cuGraphUpload(CUgraphExec exec, CUstream stream)
{
    return launch_graph(HR_CUDA(cuGraphUpload), exec, stream);
}

CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream)
{
    return launch_graph(HR_CUDA(cuGraphUpload_ptsz), exec, stream);
}

/* ---- Graphs that are made ----------------------------------------------------------------- */

static CUresult remember(CUresult result, CUgraph graph, const CUgraphExec *out)
{
    if (result == CUDA_SUCCESS)
        hr_remember_graph(*out, graph);
    return result;
}

CUresult cuGraphInstantiate(CUgraphExec *out, CUgraph graph, CUgraphNode *bad, char *text,
                            size_t bytes)
{
    return remember(HR_CUDA(cuGraphInstantiate)(out, graph, bad, text, bytes), graph, out);
}

CUresult cuGraphInstantiate_v2(CUgraphExec *out, CUgraph graph, CUgraphNode *bad, char *text,
                               size_t bytes)
{
    return remember(HR_CUDA(cuGraphInstantiate_v2)(out, graph, bad, text, bytes), graph, out);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags)
{
    return remember(HR_CUDA(cuGraphInstantiateWithFlags)(out, graph, flags), graph, out);
}

/* An upload that is asked for with it takes memory: so it is made by a call that can be refused. */
#define INSTANTIATE_HOOK(name, upload)                                                             \
    CUresult name(CUgraphExec *out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *how)             \
    {                                                                                              \
        unsigned long long flags = how == NULL ? 0 : how->flags;                                   \
        if ((flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) == 0)                                     \
            return remember(HR_CUDA(name)(out, graph, how), graph, out);                           \
        how->flags = flags & ~(unsigned long long)CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;              \
        CUresult result = remember(HR_CUDA(name)(out, graph, how), graph, out);                    \
        how->flags = flags;                                                                        \
        if (result != CUDA_SUCCESS)                                                                \
            return result;                                                                         \
        result = upload(*out, how->hUploadStream);                                                 \
        if (result != CUDA_SUCCESS)                                                                \
            cuGraphExecDestroy(*out);                                                              \
        return result;                                                                             \
    }
INSTANTIATE_HOOK(cuGraphInstantiateWithParams, cuGraphUpload)
INSTANTIATE_HOOK(cuGraphInstantiateWithParams_ptsz, cuGraphUpload_ptsz)

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    hr_forget_graph(exec);
    return HR_CUDA(cuGraphExecDestroy)(exec);
}
