/*
 * Keeps a device busy: `busy STYLE KERNEL BLOCKS PENDING DEVICE`, until it is killed. STYLE is
 * kernel, graph (each a graph of ten kernels, in another graph), or unknown: kernels in a context
 * that is made by a function of the fake driver which no library hooks. KERNEL is a name that tells
 * the fake driver how long one takes. After PENDING launches it waits for the device.
 */
#define _GNU_SOURCE
#include "calls.h"

#include <dlfcn.h>
#include <string.h>

#define NODES 10

int main(int count, char **arguments)
{
    check_usage(count == 6, "busy STYLE KERNEL BLOCKS PENDING DEVICE");
    unsigned blocks = (unsigned)atoi(arguments[3]);
    int pending = atoi(arguments[4]), device = atoi(arguments[5]);
    CUcontext context;
    CUmodule module;
    CUfunction kernel;
    MUST(cuInit(0));
    if (strcmp(arguments[1], "unknown") == 0) {
        CUresult (*create)(CUcontext *, unsigned, CUdevice) =
            (CUresult (*)(CUcontext *, unsigned, CUdevice))dlsym(RTLD_DEFAULT,
                                                                 "fake_cuda_create_context");
        MUST(create(&context, 0, device));
    } else {
        MUST(cuDevicePrimaryCtxRetain(&context, device));
    }
    MUST(cuCtxSetCurrent(context));
    MUST(cuModuleLoadData(&module, KERNELS));
    MUST(cuModuleGetFunction(&kernel, module, arguments[2]));
    CUgraph graph, outer;
    CUgraphNode child;
    CUgraphExec exec;
    CUDA_KERNEL_NODE_PARAMS node = {.func = kernel,
                                    .gridDimX = blocks,
                                    .gridDimY = 1,
                                    .gridDimZ = 1,
                                    .blockDimX = 32,
                                    .blockDimY = 1,
                                    .blockDimZ = 1};
    MUST(cuGraphCreate(&graph, 0));
    for (int number = 0; number < NODES; number++) {
        CUgraphNode added;
        MUST(cuGraphAddKernelNode_v2(&added, graph, NULL, 0, &node));
    }
    MUST(cuGraphCreate(&outer, 0));
    MUST(cuGraphAddChildGraphNode(&child, outer, NULL, 0, graph));
    MUST(cuGraphInstantiateWithFlags(&exec, outer, 0));
    int is_graph = strcmp(arguments[1], "graph") == 0;
    puts("started");
    fflush(stdout);
    for (;;) {
        for (int number = 0; number < pending; number++)
            if (is_graph)
                MUST(cuGraphLaunch(exec, NULL));
            else
                MUST(cuLaunchKernel(kernel, blocks, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
        MUST(cuCtxSynchronize());
    }
}
