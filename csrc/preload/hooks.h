/*
 * The functions of the CUDA driver that this library stands in for, and those that it calls: each
 * stands in one of the lists below, once, and its declaration, its place in the table of the
 * driver's functions and the way from its address to its hook are all made from that line.
 *
 * A new hook is a line here and a function of that name.
 */
#ifndef HR_HOOKS_H
#define HR_HOOKS_H

#include <stdatomic.h>

#include "api.h"

#define HR_EXPORT __attribute__((visibility("default")))

/* hooks.c */
#define HR_FINDING_HOOKS(X)                                                                        \
    X(cuGetProcAddress, (const char *symbol, void **found, int version, uint64_t flags),           \
      (symbol, found, version, flags))                                                             \
    X(cuGetProcAddress_v2,                                                                         \
      (const char *symbol, void **found, int version, uint64_t flags, int *status),                \
      (symbol, found, version, flags, status))

/* context_hooks.c */
#define HR_CREATION_HOOKS(X)                                                                       \
    X(cuCtxCreate_v2, (CUcontext * out, unsigned flags, CUdevice device), (out, flags, device))    \
    X(cuCtxCreate_v3,                                                                              \
      (CUcontext * out, void *affinity, int count, unsigned flags, CUdevice device),               \
      (out, affinity, count, flags, device))
#define HR_NEW_CREATION_HOOKS(X)                                                                   \
    X(cuCtxCreate_v4, (CUcontext * out, void *parameters, unsigned flags, CUdevice device),        \
      (out, parameters, flags, device))

#define HR_CONTEXT_HOOKS(X)                                                                        \
    X(cuDevicePrimaryCtxRetain, (CUcontext * out, CUdevice device), (out, device))                 \
    X(cuDevicePrimaryCtxRelease, (CUdevice device), (device))                                      \
    X(cuDevicePrimaryCtxRelease_v2, (CUdevice device), (device))                                   \
    X(cuDevicePrimaryCtxReset, (CUdevice device), (device))                                        \
    X(cuDevicePrimaryCtxReset_v2, (CUdevice device), (device))                                     \
    HR_CREATION_HOOKS(X)                                                                           \
    X(cuCtxDestroy_v2, (CUcontext context), (context))                                             \
    X(cuCtxDetach, (CUcontext context), (context))

/* linear.c */
#define HR_MEMORY_HOOKS(X)                                                                         \
    X(cuMemAlloc_v2, (CUdeviceptr * out, size_t bytes), (out, bytes))                              \
    X(cuMemAllocPitch_v2,                                                                          \
      (CUdeviceptr * out, size_t *pitch, size_t width, size_t height, unsigned element),           \
      (out, pitch, width, height, element))                                                        \
    X(cuMemAllocManaged, (CUdeviceptr * out, size_t bytes, unsigned flags), (out, bytes, flags))   \
    X(cuMemFree_v2, (CUdeviceptr pointer), (pointer))

#define HR_ARRAY_HOOKS(X)                                                                          \
    X(cuArrayCreate_v2, (CUarray * out, const CUDA_ARRAY_DESCRIPTOR *array), (out, array))         \
    X(cuArray3DCreate_v2, (CUarray * out, const CUDA_ARRAY3D_DESCRIPTOR *array), (out, array))     \
    X(cuArrayDestroy, (CUarray array), (array))                                                    \
    X(cuMipmappedArrayCreate,                                                                      \
      (CUmipmappedArray * out, const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned levels),             \
      (out, array, levels))                                                                        \
    X(cuMipmappedArrayDestroy, (CUmipmappedArray array), (array))

/* async.c */
#define HR_ASYNC_HOOKS(X)                                                                          \
    X(cuMemAllocAsync, (CUdeviceptr * out, size_t bytes, CUstream stream), (out, bytes, stream))   \
    X(cuMemAllocAsync_ptsz, (CUdeviceptr * out, size_t bytes, CUstream stream),                    \
      (out, bytes, stream))                                                                        \
    X(cuMemAllocFromPoolAsync,                                                                     \
      (CUdeviceptr * out, size_t bytes, CUmemoryPool pool, CUstream stream),                       \
      (out, bytes, pool, stream))                                                                  \
    X(cuMemAllocFromPoolAsync_ptsz,                                                                \
      (CUdeviceptr * out, size_t bytes, CUmemoryPool pool, CUstream stream),                       \
      (out, bytes, pool, stream))                                                                  \
    X(cuMemFreeAsync, (CUdeviceptr pointer, CUstream stream), (pointer, stream))                   \
    X(cuMemFreeAsync_ptsz, (CUdeviceptr pointer, CUstream stream), (pointer, stream))              \
    X(cuMemPoolCreate, (CUmemoryPool * out, const CUmemPoolProps *properties), (out, properties))  \
    X(cuMemPoolDestroy, (CUmemoryPool pool), (pool))                                               \
    X(cuMemPoolTrimTo, (CUmemoryPool pool, size_t keep), (pool, keep))                             \
    X(cuDeviceGraphMemTrim, (CUdevice device), (device))

/* mapped.c */
#define HR_PHYSICAL_HOOKS(X)                                                                       \
    X(cuMemCreate,                                                                                 \
      (CUmemGenericAllocationHandle * out, size_t bytes, const CUmemAllocationProp *properties,    \
       unsigned long long flags),                                                                  \
      (out, bytes, properties, flags))                                                             \
    X(cuMemRelease, (CUmemGenericAllocationHandle handle), (handle))                               \
    X(cuMemMap,                                                                                    \
      (CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,      \
       unsigned long long flags),                                                                  \
      (address, bytes, offset, handle, flags))                                                     \
    X(cuMemUnmap, (CUdeviceptr address, size_t bytes), (address, bytes))

/* answers.c */
#define HR_ANSWER_HOOKS(X)                                                                         \
    X(cuMemGetInfo_v2, (size_t *free_bytes, size_t *total_bytes), (free_bytes, total_bytes))       \
    X(cuDeviceTotalMem_v2, (size_t *bytes, CUdevice device), (bytes, device))

/* launches.c */
#define HR_KERNEL_PARAMETERS                                                                       \
    (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,     \
     unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream,                   \
     void **parameters, void **extra)
#define HR_KERNEL_ARGUMENTS                                                                        \
    (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream,            \
     parameters, extra)
#define HR_COOPERATIVE_PARAMETERS                                                                  \
    (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,     \
     unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream,                   \
     void **parameters)
#define HR_COOPERATIVE_ARGUMENTS                                                                   \
    (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters)
#define HR_INSTANTIATION_HOOKS(X)                                                                  \
    X(cuGraphInstantiate,                                                                          \
      (CUgraphExec * out, CUgraph graph, CUgraphNode * bad, char *text, size_t bytes),             \
      (out, graph, bad, text, bytes))                                                              \
    X(cuGraphInstantiate_v2,                                                                       \
      (CUgraphExec * out, CUgraph graph, CUgraphNode * bad, char *text, size_t bytes),             \
      (out, graph, bad, text, bytes))                                                              \
    X(cuGraphInstantiateWithFlags, (CUgraphExec * out, CUgraph graph, unsigned long long flags),   \
      (out, graph, flags))
#define HR_LAUNCH_HOOKS(X)                                                                         \
    X(cuLaunchKernel, HR_KERNEL_PARAMETERS, HR_KERNEL_ARGUMENTS)                                   \
    X(cuLaunchKernel_ptsz, HR_KERNEL_PARAMETERS, HR_KERNEL_ARGUMENTS)                              \
    X(cuLaunchKernelEx,                                                                            \
      (const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra),        \
      (config, function, parameters, extra))                                                       \
    X(cuLaunchKernelEx_ptsz,                                                                       \
      (const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra),        \
      (config, function, parameters, extra))                                                       \
    X(cuLaunchCooperativeKernel, HR_COOPERATIVE_PARAMETERS, HR_COOPERATIVE_ARGUMENTS)              \
    X(cuLaunchCooperativeKernel_ptsz, HR_COOPERATIVE_PARAMETERS, HR_COOPERATIVE_ARGUMENTS)         \
    X(cuGraphLaunch, (CUgraphExec exec, CUstream stream), (exec, stream))                          \
    X(cuGraphLaunch_ptsz, (CUgraphExec exec, CUstream stream), (exec, stream))                     \
    X(cuGraphUpload, (CUgraphExec exec, CUstream stream), (exec, stream))                          \
    X(cuGraphUpload_ptsz, (CUgraphExec exec, CUstream stream), (exec, stream))                     \
    HR_INSTANTIATION_HOOKS(X)                                                                      \
    X(cuGraphExecDestroy, (CUgraphExec exec), (exec))

/*
 * What a driver of CUDA 11 lacks.  Not exported, so that dlsym() finds it only where the driver has
 * it; hooked by cuGetProcAddress() and the preload's dlsym().
 */
#define HR_NEW_HOOKS(X)                                                                            \
    HR_NEW_CREATION_HOOKS(X)                                                                       \
    X(cuGreenCtxCreate,                                                                            \
      (CUgreenCtx * out, CUdevResourceDesc resources, CUdevice device, unsigned flags),            \
      (out, resources, device, flags))                                                             \
    X(cuGreenCtxDestroy, (CUgreenCtx context), (context))                                          \
    X(cuGraphInstantiateWithParams,                                                                \
      (CUgraphExec * out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS * how), (out, graph, how))  \
    X(cuGraphInstantiateWithParams_ptsz,                                                           \
      (CUgraphExec * out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS * how), (out, graph, how))

#define HR_OLD_HOOKS(X)                                                                            \
    HR_FINDING_HOOKS(X)                                                                            \
    HR_CONTEXT_HOOKS(X)                                                                            \
    HR_MEMORY_HOOKS(X)                                                                             \
    HR_ARRAY_HOOKS(X)                                                                              \
    HR_ASYNC_HOOKS(X)                                                                              \
    HR_PHYSICAL_HOOKS(X)                                                                           \
    HR_ANSWER_HOOKS(X)                                                                             \
    HR_LAUNCH_HOOKS(X)
#define HR_CUDA_HOOKS(X) HR_OLD_HOOKS(X) HR_NEW_HOOKS(X)

/* Called, not hooked. */
#define HR_CUDA_CALLED(X)                                                                          \
    X(cuDeviceGetCount, (int *out), (out))                                                         \
    X(cuDeviceGetUuid, (CUuuid * out, CUdevice device), (out, device))                             \
    X(cuDeviceGetUuid_v2, (CUuuid * out, CUdevice device), (out, device))                          \
    X(cuDeviceGetAttribute, (int *out, int attribute, CUdevice device), (out, attribute, device))  \
    X(cuCtxGetCurrent, (CUcontext * out), (out))                                                   \
    X(cuCtxGetDevice, (CUdevice * out), (out))                                                     \
    X(cuCtxFromGreenCtx, (CUcontext * out, CUgreenCtx green), (out, green))                        \
    X(cuDevicePrimaryCtxGetState, (CUdevice device, unsigned *flags, int *active),                 \
      (device, flags, active))                                                                     \
    X(cuStreamGetCtx, (CUstream stream, CUcontext * out), (stream, out))                           \
    X(cuThreadExchangeStreamCaptureMode, (int *mode), (mode))                                      \
    X(cuStreamIsCapturing, (CUstream stream, int *status), (stream, status))                       \
    X(cuGraphMemAllocNodeGetParams, (CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS * out),          \
      (node, out))                                                                                 \
    X(cuGraphGetNodes, (CUgraph graph, CUgraphNode * out, size_t *count), (graph, out, count))     \
    X(cuGraphNodeGetType, (CUgraphNode node, int *out), (node, out))                               \
    X(cuGraphKernelNodeGetParams, (CUgraphNode node, CUDA_KERNEL_NODE_PARAMS * out), (node, out))  \
    X(cuGraphKernelNodeGetParams_v2, (CUgraphNode node, CUDA_KERNEL_NODE_PARAMS * out),            \
      (node, out))                                                                                 \
    X(cuGraphChildGraphNodeGetGraph, (CUgraphNode node, CUgraph * out), (node, out))               \
    X(cuDeviceGetMemPool, (CUmemoryPool * out, CUdevice device), (out, device))                    \
    X(cuDeviceGetDefaultMemPool, (CUmemoryPool * out, CUdevice device), (out, device))             \
    X(cuMemPoolGetAttribute, (CUmemoryPool pool, int attribute, void *value),                      \
      (pool, attribute, value))                                                                    \
    X(cuDeviceGetGraphMemAttribute, (CUdevice device, int attribute, void *value),                 \
      (device, attribute, value))

#define HR_DECLARE_HOOK(name, parameters, arguments) HR_EXPORT CUresult name parameters;
HR_OLD_HOOKS(HR_DECLARE_HOOK)
#undef HR_DECLARE_HOOK
#define HR_DECLARE_HIDDEN(name, parameters, arguments) CUresult name parameters;
HR_NEW_HOOKS(HR_DECLARE_HIDDEN)
#undef HR_DECLARE_HIDDEN

/*
 * The driver's functions.  Until the driver is found, each member leads to a function that looks
 * for it and calls what it finds; afterwards to the driver's own, or, where this driver has none,
 * to one that returns CUDA_ERROR_NOT_SUPPORTED.  So they can always be called, and a call costs
 * one load.
 */
struct hr_cuda_functions {
#define HR_DECLARE_MEMBER(name, parameters, arguments) CUresult(*_Atomic name) parameters;
    HR_CUDA_HOOKS(HR_DECLARE_MEMBER)
    HR_CUDA_CALLED(HR_DECLARE_MEMBER)
#undef HR_DECLARE_MEMBER
};
extern struct hr_cuda_functions hr_cuda;

/* Relaxed: code is all that such a pointer publishes. */
#define HR_CUDA(name) (atomic_load_explicit(&hr_cuda.name, memory_order_relaxed))

#endif
