/*
 * Keeps a device busy: `busy STYLE KERNEL BLOCKS PENDING DEVICE`, until it is killed. STYLE is
 * kernel, grid (the oldest call for one), graph (ten kernels each) or conditional (the same in the
 * body of a conditional node); KERNEL is a name that tells the fake driver how long one
 * takes. After PENDING launches it waits for the device.
 */
#include "calls.h"

#include <string.h>

#define NODES 10

/* The body of a new conditional node, which runs if its condition holds; it does. */
static CUgraph add_body(CUgraph graph, CUcontext context)
{
    CUgraphNode node;
    CUgraphNodeParams wanted = {.type = 13, .conditional = {.size = 1, .context = context}};
    MUST(cuGraphConditionalHandleCreate(&wanted.conditional.handle, graph, context, 1, 1));
    MUST(cuGraphAddNode_v2(&node, graph, NULL, NULL, 0, &wanted));
    return wanted.conditional.bodies[0];
}

int main(int count, char **arguments)
{
    if (count != 6) {
        fprintf(stderr, "usage: busy STYLE KERNEL BLOCKS PENDING DEVICE\n");
        return 2;
    }
    unsigned blocks = (unsigned)atoi(arguments[3]);
    int pending = atoi(arguments[4]), device = atoi(arguments[5]);
    CUcontext context;
    CUmodule module;
    CUfunction kernel;
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    MUST(cuModuleLoadData(&module, KERNELS));
    MUST(cuModuleGetFunction(&kernel, module, arguments[2]));
    CUgraph graph;
    CUgraphExec exec;
    CUDA_KERNEL_NODE_PARAMS node = {.func = kernel,
                                    .gridDimX = blocks,
                                    .gridDimY = 1,
                                    .gridDimZ = 1,
                                    .blockDimX = 32,
                                    .blockDimY = 1,
                                    .blockDimZ = 1};
    MUST(cuGraphCreate(&graph, 0));
    CUgraph with_kernels = graph;
    if (strcmp(arguments[1], "conditional") == 0)
        with_kernels = add_body(graph, context);
    for (int number = 0; number < NODES; number++) {
        CUgraphNode added;
        MUST(cuGraphAddKernelNode_v2(&added, with_kernels, NULL, 0, &node));
    }
    MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
    int is_grid = strcmp(arguments[1], "grid") == 0;
    int is_graph = !is_grid && strcmp(arguments[1], "kernel") != 0;
    puts("started");
    fflush(stdout);
    for (;;) {
        for (int number = 0; number < pending; number++)
            if (is_graph)
                MUST(cuGraphLaunch(exec, NULL));
            else if (is_grid)
                MUST(cuLaunchGrid(kernel, (int)blocks, 1));
            else
                MUST(cuLaunchKernel(kernel, blocks, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
        MUST(cuCtxSynchronize());
    }
}
