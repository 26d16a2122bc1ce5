/*
 * `launchers THREADS LAUNCHES`: threads that launch kernels and graphs on two devices, each graph
 * one that is made for a single launch, while the program forks children that exit at once.
 */
#include "calls.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#define GRAPH_EACH 20
#define NODES 3
#define FORK_EACH_US 100000

static CUcontext contexts[2];
static CUfunction kernel;
static long launches;
static _Atomic long running;

static void launch_graph(void)
{
    CUDA_KERNEL_NODE_PARAMS node = {.func = kernel,
                                    .gridDimX = 4,
                                    .gridDimY = 1,
                                    .gridDimZ = 1,
                                    .blockDimX = 32,
                                    .blockDimY = 1,
                                    .blockDimZ = 1};
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode added;
    MUST(cuGraphCreate(&graph, 0));
    for (int number = 0; number < NODES; number++)
        MUST(cuGraphAddKernelNode_v2(&added, graph, NULL, 0, &node));
    MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
    MUST(cuGraphLaunch(exec, NULL));
    MUST(cuGraphExecDestroy(exec));
    MUST(cuGraphDestroy(graph));
}

static void *run(void *argument)
{
    MUST(cuCtxSetCurrent(*(CUcontext *)argument));
    for (long number = 0; number < launches; number++) {
        MUST(cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
        if (number % GRAPH_EACH == 0)
            launch_graph();
    }
    running--;
    return NULL;
}

int main(int count, char **arguments)
{
    check_usage(count == 3, "launchers THREADS LAUNCHES");
    long threads = atol(arguments[1]);
    launches = atol(arguments[2]);
    CUmodule module;
    MUST(cuInit(0));
    for (int device = 0; device < 2; device++)
        MUST(cuDevicePrimaryCtxRetain(&contexts[device], device));
    MUST(cuCtxSetCurrent(contexts[0]));
    MUST(cuModuleLoadData(&module, "any image"));
    MUST(cuModuleGetFunction(&kernel, module, "busy_1ms"));
    pthread_t *started = calloc((size_t)threads, sizeof *started);
    running = threads;
    for (long number = 0; number < threads; number++)
        pthread_create(&started[number], NULL, run, &contexts[number % 2]);
    while (running > 0) {
        usleep(FORK_EACH_US);
        pid_t child = fork();
        if (child == 0)
            exit(0);
        waitpid(child, NULL, 0);
    }
    for (long number = 0; number < threads; number++)
        pthread_join(started[number], NULL);
    free(started);
    return 0;
}
