/* The driver's functions that the C programs here are linked with, by the names
 * of its exports. */
#ifndef CALLS_H
#define CALLS_H

#include "../fake_cuda/cuda_types.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

CUresult cuInit(unsigned flags);
CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device);
CUresult cuCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice device);
CUresult cuCtxDestroy_v2(CUcontext context);
CUresult cuCtxPopCurrent_v2(CUcontext *context);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxSynchronize(void);
CUresult cuMemGetInfo_v2(size_t *free, size_t *total);
CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t size);
CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height,
                            unsigned element);
CUresult cuMemAllocManaged(CUdeviceptr *out, size_t size, unsigned flags);
CUresult cuMemAllocAsync(CUdeviceptr *out, size_t size, CUstream stream);
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream stream);
CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *properties);
CUresult cuMemPoolDestroy(CUmemoryPool pool);
CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep);
CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice device);
CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream);
CUresult cuMemFree_v2(CUdeviceptr address);
CUresult cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *wanted);
CUresult cuArrayDestroy(CUarray array);
CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t size,
                     const CUmemAllocationProp *wanted, unsigned long long flags);
CUresult cuMemRelease(CUmemGenericAllocationHandle handle);
CUresult cuModuleLoadData(CUmodule *out, const void *image);
CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name);
CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                        CUstream stream, void **parameters, void **extra);
CUresult cuGraphCreate(CUgraph *out, unsigned flags);
CUresult cuGraphAddChildGraphNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
                                  size_t count, CUgraph child);
CUresult cuGraphAddKernelNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
                                 size_t count, const CUDA_KERNEL_NODE_PARAMS *wanted);
/* Newer drivers do not have the oldest of these, nor older ones the newest. */
CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags);
CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream);
CUresult cuGraphExecDestroy(CUgraphExec exec);
CUresult cuGraphDestroy(CUgraph graph);

/* Kernels for a real GPU; the fake driver reads the time that one takes from
 * its name. */
#define SPIN(name, ns)                                                                             \
    ".visible .entry " name "() {\n"                                                               \
    ".reg .u64 %begin, %now, %past;\n"                                                             \
    ".reg .pred %more;\n"                                                                          \
    "mov.u64 %begin, %globaltimer;\n"                                                              \
    "AGAIN:\n"                                                                                     \
    "mov.u64 %now, %globaltimer;\n"                                                                \
    "sub.u64 %past, %now, %begin;\n"                                                               \
    "setp.lt.u64 %more, %past, " ns ";\n"                                                          \
    "@%more bra AGAIN;\n"                                                                          \
    "ret;\n}\n"
#define KERNELS                                                                                    \
    ".version 6.0\n.target sm_50\n.address_size 64\n"                                              \
    ".visible .entry nothing() { ret; }\n" SPIN("busy_100us", "100000")                            \
        SPIN("busy_1ms", "1000000")

/* End the program unless it was given what it needs. */
static inline void check_usage(int is_right, const char *usage)
{
    if (is_right)
        return;
    fprintf(stderr, "usage: %s\n", usage);
    exit(2);
}

/* End the program unless the call has succeeded. */
#define MUST(call)                                                                                 \
    do {                                                                                           \
        CUresult code_ = (call);                                                                   \
        if (code_ != CUDA_SUCCESS) {                                                               \
            fprintf(stderr, "%s:%d: %s gives %d\n", __FILE__, __LINE__, #call, (int)code_);        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#endif
