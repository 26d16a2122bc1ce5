/*
 * Launches of kernels and graphs.  Without an SM limit a launch costs one load and a branch more;
 * with one, it pays with tokens of its device's row (limits.h).
 */
#include "driver.h"
#include "graphs.h"
#include "hooks.h"
#include "limits.h"
#include "session.h"

/*
 * A hook that makes a launch by `call`.  Its size is found and paid for only while something holds
 * launches up; a launch that the driver then refuses costs nothing.  Apart, so that the other way
 * is a jump that keeps no register.
 */
#define LAUNCH_HOOK(name, parameters, arguments, call, size_, stream_)                             \
    __attribute__((noinline)) static CUresult held_##name parameters                               \
    {                                                                                              \
        const struct hr_graph_size size = size_;                                                   \
        struct hr_row *payer = hr_wait_to_launch(size, stream_);                                   \
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

#define KERNEL_HOOK(name, parameters, arguments, meant)                                            \
    LAUNCH_HOOK(name, parameters, arguments, HR_CUDA(name) arguments,                              \
                size_of_kernel(grid_x, grid_y, grid_z), meant)
KERNEL_HOOK(cuLaunchKernel, HR_KERNEL_PARAMETERS, HR_KERNEL_ARGUMENTS, stream)
KERNEL_HOOK(cuLaunchKernel_ptsz, HR_KERNEL_PARAMETERS, HR_KERNEL_ARGUMENTS, hr_own_default(stream))
KERNEL_HOOK(cuLaunchCooperativeKernel, HR_COOPERATIVE_PARAMETERS, HR_COOPERATIVE_ARGUMENTS, stream)
KERNEL_HOOK(cuLaunchCooperativeKernel_ptsz, HR_COOPERATIVE_PARAMETERS, HR_COOPERATIVE_ARGUMENTS,
            hr_own_default(stream))

/* Of none, which the driver refuses, too. */
static inline struct hr_graph_size size_of_config(const CUlaunchConfig *config)
{
    return config == NULL ? size_of_kernel(0, 0, 0)
                          : size_of_kernel(config->gridDimX, config->gridDimY, config->gridDimZ);
}

#define CONFIG_HOOK(name, meant)                                                                   \
    LAUNCH_HOOK(                                                                                   \
        name,                                                                                      \
        (const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra),      \
        (config, function, parameters, extra), HR_CUDA(name)(config, function, parameters, extra), \
        size_of_config(config), meant(config == NULL ? NULL : config->hStream))
CONFIG_HOOK(cuLaunchKernelEx, )
CONFIG_HOOK(cuLaunchKernelEx_ptsz, hr_own_default)

#define GRAPH_HOOK(name, meant)                                                                    \
    LAUNCH_HOOK(name, (CUgraphExec exec, CUstream stream), (exec, stream),                         \
                hr_launch_graph(HR_CUDA(name), exec, stream), hr_size_of_graph(exec), meant)
GRAPH_HOOK(cuGraphLaunch, stream)
GRAPH_HOOK(cuGraphLaunch_ptsz, hr_own_default(stream))

/* It takes a graph's memory before the launch, and runs nothing. */
CUresult cuGraphUpload(CUgraphExec exec, CUstream stream)
{
    return hr_launch_graph(HR_CUDA(cuGraphUpload), exec, stream);
}

CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream)
{
    return hr_launch_graph(HR_CUDA(cuGraphUpload_ptsz), exec, stream);
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
