/*
 * What each way to launch pays for: `launch_sizes_model DRIVER`. The hooks of launches.c and the
 * counting of graph_sizes.c on the fake driver, with a till in the place of throttle.c that writes
 * down what it is asked for. It ends the program if that is wrong.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../csrc/preload/books.h"
#include "../../csrc/preload/cuda_functions.h"
#include "../../csrc/preload/graph_memory.h"
#include "../../csrc/preload/graph_sizes.h"
#include "../../csrc/preload/session.h"
#include "../../csrc/preload/throttle.h"

#define MUST_SHOW                                                                                  \
    "paid for %llu kernels, %llu blocks", (unsigned long long)paid.kernels,                        \
        (unsigned long long)paid.blocks
#include "must.h"

/* ---- The till ------------------------------------------------------------------------- */

_Atomic unsigned hr_holds;
static struct hr_row row;
static bool is_free; /* what is launched costs nothing */
static struct hr_graph_size paid;
static CUstream paid_stream;
static int payments, refunds;

struct hr_row *hr_throttle(struct hr_graph_size size, CUstream stream)
{
    paid = size;
    paid_stream = stream;
    payments++;
    return is_free ? NULL : &row;
}

void hr_give_back_tokens(struct hr_row *payer, struct hr_graph_size size)
{
    MUST(payer == &row && size.kernels == paid.kernels && size.blocks == paid.blocks);
    refunds++;
}

/* ---- Memory of graphs ----------------------------------------------------------------- */

static uint64_t launched_bytes;
static int launches_with_memory;
static bool is_full;

uint64_t hr_memory_of_node(CUgraphNode node)
{
    CUDA_MEM_ALLOC_NODE_PARAMS memory = {.bytesize = 0};
    HR_CUDA(cuGraphMemAllocNodeGetParams)(node, &memory);
    return memory.bytesize;
}

CUresult hr_launch_with_memory(hr_launch_graph *launch, uint64_t bytes, CUgraphExec exec,
                               CUstream stream)
{
    launches_with_memory++;
    if (is_full)
        return CUDA_ERROR_OUT_OF_MEMORY;
    launched_bytes += bytes;
    return launch(exec, stream);
}

/* ---- The driver ----------------------------------------------------------------------- */

struct hr_cuda_functions hr_cuda;
static CUresult (*init)(unsigned flags);
static CUresult (*retain)(CUcontext *out, CUdevice device);
static CUresult (*set_current)(CUcontext context);
static CUresult (*load)(void **out, const void *image);
static CUresult (*get_function)(CUfunction *out, void *module, const char *name);
static CUresult (*create_stream)(CUstream *out, unsigned flags);
static CUresult (*create_graph)(CUgraph *out, unsigned flags);
static CUresult (*add_kernel)(CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
                              size_t count, const CUDA_KERNEL_NODE_PARAMS *wanted);
static CUresult (*add_empty)(CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
                             size_t count);
static CUresult (*add_child)(CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
                             size_t count, CUgraph child);
static CUresult (*add_allocation)(CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
                                  size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *wanted);

static void find(void *driver, void *where, const char *name)
{
    void *found = dlsym(driver, name);
    MUST(found != NULL);
    memcpy(where, &found, sizeof found);
}

static void *driver;

static CUresult missing(void)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}

static void *find_or_missing(const char *name)
{
    void *found = dlsym(driver, name);
    return found != NULL ? found : (void *)missing;
}

static void find_driver(const char *path)
{
    driver = dlopen(path, RTLD_NOW);
    MUST(driver != NULL);
#define FIND(name, parameters, arguments)                                                          \
    atomic_store(&hr_cuda.name, (CUresult(*) parameters)find_or_missing(#name));
    HR_CUDA_HOOKS(FIND)
    HR_CUDA_CALLED(FIND)
#undef FIND
    find(driver, &init, "cuInit");
    find(driver, &retain, "cuDevicePrimaryCtxRetain");
    find(driver, &set_current, "cuCtxSetCurrent");
    find(driver, &load, "cuModuleLoadData");
    find(driver, &get_function, "cuModuleGetFunction");
    find(driver, &create_stream, "cuStreamCreate");
    find(driver, &create_graph, "cuGraphCreate");
    find(driver, &add_kernel, "cuGraphAddKernelNode_v2");
    find(driver, &add_empty, "cuGraphAddEmptyNode");
    find(driver, &add_child, "cuGraphAddChildGraphNode");
    find(driver, &add_allocation, "cuGraphAddMemAllocNode");
}

static CUfunction kernel;
static CUstream stream;

/* ---- Checks --------------------------------------------------------------------------- */

static void expect(uint64_t kernels, uint64_t blocks, CUstream on)
{
    MUST(payments == 1 && refunds == 0 && paid.kernels == kernels && paid.blocks == blocks);
    MUST(paid_stream == on);
    payments = 0;
}

static void check_kernels(void)
{
    CUlaunchConfig config = {
        .gridDimX = 2, .gridDimY = 3, .gridDimZ = 5, .blockDimX = 1, .hStream = stream};
    CUresult(*const plain[]) HR_KERNEL_PARAMETERS = {cuLaunchKernel, cuLaunchKernel_ptsz};
    CUresult(*const cooperative[])
        HR_COOPERATIVE_PARAMETERS = {cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz};
    for (int at = 0; at < 2; at++) {
        MUST(plain[at](kernel, 2, 3, 5, 1, 1, 1, 0, stream, NULL, NULL) == CUDA_SUCCESS);
        expect(1, 30, stream);
        MUST(cooperative[at](kernel, 7, 3, 2, 1, 1, 1, 0, stream, NULL) == CUDA_SUCCESS);
        expect(1, 42, stream);
    }
    MUST(cuLaunchKernelEx(&config, kernel, NULL, NULL) == CUDA_SUCCESS);
    expect(1, 30, stream);
    MUST(cuLaunchKernelEx_ptsz(&config, kernel, NULL, NULL) == CUDA_SUCCESS);
    expect(1, 30, stream);
    MUST(cuLaunch(kernel) == CUDA_SUCCESS);
    expect(1, 1, NULL);
    MUST(cuLaunchGrid(kernel, 11, 13) == CUDA_SUCCESS);
    expect(1, 143, NULL);
    MUST(cuLaunchGridAsync(kernel, 11, 2, stream) == CUDA_SUCCESS);
    expect(1, 22, stream);
    /* More blocks than 32 bits can count. */
    MUST(cuLaunchKernel(kernel, 1u << 31, 1u << 15, 4, 1, 1, 1, 0, stream, NULL, NULL) ==
         CUDA_SUCCESS);
    expect(1, 1ull << 48, stream);
}

/* A launch that the driver refuses is paid back, if it was paid for. */
static void check_refusals(void)
{
    CUDA_LAUNCH_PARAMS launches[] = {
        {.function = kernel, .gridDimX = 2, .gridDimY = 3, .gridDimZ = 4},
        {.function = kernel, .gridDimX = 9}};
    MUST(cuLaunchKernel(NULL, 2, 3, 5, 1, 1, 1, 0, stream, NULL, NULL) != CUDA_SUCCESS);
    MUST(payments == 1 && refunds == 1 && paid.blocks == 30);
    /* The fake driver knows no launch on several devices. */
    MUST(cuLaunchCooperativeKernelMultiDevice(launches, 2, 0) != CUDA_SUCCESS);
    MUST(payments == 2 && refunds == 2 && paid.kernels == 1 && paid.blocks == 24);
    cuLaunchCooperativeKernelMultiDevice(launches, 0, 0);
    MUST(refunds == 3 && paid.blocks == 0);
    cuLaunchCooperativeKernelMultiDevice(NULL, 2, 0);
    MUST(refunds == 4 && paid.blocks == 0);
    is_free = true;
    MUST(cuLaunchKernel(NULL, 2, 3, 5, 1, 1, 1, 0, stream, NULL, NULL) != CUDA_SUCCESS);
    MUST(payments == 5 && refunds == 4);
    is_free = false;
    payments = refunds = 0;
}

static CUgraph new_graph(void)
{
    CUgraph graph;
    MUST(create_graph(&graph, 0) == CUDA_SUCCESS);
    return graph;
}

static void add_kernels(CUgraph graph, int count, unsigned x, unsigned y, unsigned z)
{
    const CUDA_KERNEL_NODE_PARAMS wanted = {
        .func = kernel, .gridDimX = x, .gridDimY = y, .gridDimZ = z, .blockDimX = 1};
    CUgraphNode node;
    for (int at = 0; at < count; at++)
        MUST(add_kernel(&node, graph, NULL, 0, &wanted) == CUDA_SUCCESS);
}

static struct hr_graph_size size_of(CUgraph graph)
{
    CUgraphExec exec;
    MUST(cuGraphInstantiateWithFlags(&exec, graph, 0) == CUDA_SUCCESS);
    struct hr_graph_size size = hr_size_of_graph(exec);
    MUST(cuGraphExecDestroy(exec) == CUDA_SUCCESS);
    struct hr_graph_size unknown = hr_size_of_graph(exec);
    MUST(unknown.kernels == 1 && unknown.blocks == 1 && unknown.memory == 0);
    return size;
}

#define EXPECT_SIZE(graph, kernels_, blocks_, memory_)                                             \
    do {                                                                                           \
        paid = size_of(graph);                                                                     \
        MUST(paid.kernels == (kernels_) && paid.blocks == (blocks_) && paid.memory == (memory_));  \
    } while (0)

static void check_graphs(void)
{
    CUgraphNode node;
    CUgraph graph = new_graph(), child = new_graph(), grandchild = new_graph();
    EXPECT_SIZE(graph, 0, 0, 0);
    add_kernels(graph, 3, 2, 3, 5);
    MUST(add_empty(&node, graph, NULL, 0) == CUDA_SUCCESS);
    EXPECT_SIZE(graph, 3, 90, 0);
    add_kernels(child, 2, 7, 1, 1);
    add_kernels(grandchild, 1, 100, 10, 2);
    MUST(add_child(&node, child, NULL, 0, grandchild) == CUDA_SUCCESS);
    MUST(add_child(&node, graph, NULL, 0, child) == CUDA_SUCCESS);
    EXPECT_SIZE(graph, 6, 90 + 14 + 2000, 0);
    /* Else each launch would ask whether its graph allocates. */
    MUST(!hr_graphs_allocate);
    CUDA_MEM_ALLOC_NODE_PARAMS memory = {.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE};
    for (memory.bytesize = 4096; memory.bytesize <= 8192; memory.bytesize += 4096)
        MUST(add_allocation(&node, grandchild, NULL, 0, &memory) == CUDA_SUCCESS);
    EXPECT_SIZE(graph, 6, 90 + 14 + 2000, 12288);
    EXPECT_SIZE(child, 3, 14 + 2000, 12288);
    MUST(cuGraphDestroy(graph) == CUDA_SUCCESS);
}

static CUgraphNode add_conditional(CUgraph graph, unsigned bodies, CUgraph **out, bool by_first);

/* A graph that holds itself, in the end, is no endless one. */
static void check_depth(void)
{
    CUgraphNode node;
    CUgraph *bodies, body, graph = new_graph();
    add_kernels(graph, 1, 1, 1, 1);
    for (int depth = 1; depth < 40; depth++) {
        CUgraph outer = new_graph();
        add_kernels(outer, 1, 1, 1, 1);
        MUST(add_child(&node, outer, NULL, 0, graph) == CUDA_SUCCESS);
        graph = outer;
        uint64_t seen = depth + 1 < 16 ? (uint64_t)depth + 1 : 16;
        EXPECT_SIZE(graph, seen, seen, 0);
    }
    body = graph = new_graph();
    for (int depth = 1; depth < 40; depth++) {
        add_kernels(body, 1, 1, 1, 1);
        add_conditional(body, 1, &bodies, false);
        body = bodies[0];
    }
    /* The last one that is looked into counts as a kernel: nobody knows what it runs. */
    EXPECT_SIZE(graph, 17, 17, 0);
}

static CUgraphNode add_conditional(CUgraph graph, unsigned bodies, CUgraph **out, bool by_first)
{
    CUgraphNode node;
    CUgraphNodeParams wanted = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL,
                                .conditional = {.size = bodies}};
    if (by_first)
        MUST(cuGraphAddNode(&node, graph, NULL, 0, &wanted) == CUDA_SUCCESS);
    else
        MUST(cuGraphAddNode_v2(&node, graph, NULL, NULL, 0, &wanted) == CUDA_SUCCESS);
    *out = wanted.conditional.bodies;
    return node;
}

static bool is_known(CUgraphNode node)
{
    struct hr_entry entry;
    return hr_find_in_books(HR_CONDITIONAL, (uintptr_t)node, &entry);
}

static void check_conditionals(void)
{
    CUgraph *bodies, *inner, *ignored, graph = new_graph();
    CUgraphNode outer_node = add_conditional(graph, 2, &bodies, true);
    /* As one kernel where they run nothing. */
    EXPECT_SIZE(graph, 1, 1, 0);
    add_kernels(bodies[0], 2, 5, 1, 1);
    add_kernels(bodies[1], 1, 3, 1, 1);
    EXPECT_SIZE(graph, 3, 13, 0);
    CUgraphNode inner_node = add_conditional(bodies[1], 1, &inner, false);
    add_kernels(inner[0], 4, 10, 1, 1);
    EXPECT_SIZE(graph, 7, 53, 0);
    add_kernels(graph, 1, 100, 1, 1);
    EXPECT_SIZE(graph, 8, 153, 0);
    MUST(is_known(outer_node) && is_known(inner_node));
    MUST(cuGraphDestroy(graph) == CUDA_SUCCESS);
    /* The driver gives their addresses to others. */
    MUST(!is_known(outer_node) && !is_known(inner_node));
    /* What was not made is not remembered. */
    CUgraphNodeParams wanted = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL,
                                .conditional = {.size = 1000}};
    CUgraphNode node = outer_node;
    graph = new_graph();
    MUST(cuGraphAddNode(&node, graph, NULL, 0, &wanted) != CUDA_SUCCESS);
    MUST(!is_known(node));
    node = add_conditional(graph, 1, &ignored, true);
    /* The fake driver destroys no single node. */
    cuGraphDestroyNode(node);
    MUST(!is_known(node));
    MUST(cuGraphDestroy(graph) == CUDA_SUCCESS);
}

static CUgraphExec instantiate(CUgraph graph, int way)
{
    CUgraphExec exec = NULL;
    if (way == 0)
        MUST(cuGraphInstantiate(&exec, graph, NULL, NULL, 0) == CUDA_SUCCESS);
    else if (way == 1)
        MUST(cuGraphInstantiate_v2(&exec, graph, NULL, NULL, 0) == CUDA_SUCCESS);
    else
        MUST(cuGraphInstantiateWithFlags(&exec, graph, 0) == CUDA_SUCCESS);
    return exec;
}

static void check_launches_of_graphs(void)
{
    CUgraphNode node;
    CUgraph graph = new_graph();
    add_kernels(graph, 3, 4, 1, 1);
    for (int way = 0; way < 3; way++) {
        CUgraphExec exec = instantiate(graph, way);
        MUST(cuGraphLaunch(exec, stream) == CUDA_SUCCESS);
        expect(3, 12, stream);
        MUST(cuGraphLaunch_ptsz(exec, stream) == CUDA_SUCCESS);
        expect(3, 12, stream);
        MUST(launched_bytes == 0);
    }
    CUDA_MEM_ALLOC_NODE_PARAMS memory = {.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE,
                                         .bytesize = 4096};
    CUgraphExec plain = instantiate(graph, 0);
    MUST(add_allocation(&node, graph, NULL, 0, &memory) == CUDA_SUCCESS);
    CUgraphExec exec = instantiate(graph, 0);
    MUST(cuGraphLaunch(plain, stream) == CUDA_SUCCESS && launches_with_memory == 0);
    expect(3, 12, stream);
    /* An upload runs nothing, and so pays for nothing. */
    MUST(cuGraphUpload(exec, stream) == CUDA_SUCCESS && launched_bytes == 4096);
    MUST(cuGraphUpload_ptsz(exec, stream) == CUDA_SUCCESS && launched_bytes == 8192);
    MUST(payments == 0);
    MUST(cuGraphLaunch(exec, stream) == CUDA_SUCCESS && launched_bytes == 12288);
    expect(3, 12, stream);
    /* The address of an executable graph that stands for another one now. */
    hr_remember_graph(exec, new_graph());
    MUST(hr_size_of_graph(exec).memory == 0 && hr_size_of_graph(exec).kernels == 0);
}

/* An upload that is asked for as a graph is made is one of its own, that can be refused. */
static void check_uploads(void)
{
    CUresult (*const make[])(CUgraphExec *out, CUgraph graph,
                             CUDA_GRAPH_INSTANTIATE_PARAMS *how) = {
        cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_ptsz};
    CUDA_MEM_ALLOC_NODE_PARAMS memory = {.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE,
                                         .bytesize = 4096};
    const unsigned long long device_launch = 4;
    CUgraphNode node;
    CUgraph graph = new_graph();
    add_kernels(graph, 2, 3, 1, 1);
    MUST(add_allocation(&node, graph, NULL, 0, &memory) == CUDA_SUCCESS);
    for (int way = 0; way < 2; way++) {
        CUgraphExec exec;
        CUDA_GRAPH_INSTANTIATE_PARAMS how = {.flags = device_launch};
        launched_bytes = 0;
        MUST(make[way](&exec, graph, &how) == CUDA_SUCCESS && launched_bytes == 0);
        MUST(hr_size_of_graph(exec).kernels == 2 && hr_size_of_graph(exec).blocks == 6);
        how.flags = device_launch | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
        MUST(make[way](&exec, graph, &how) == CUDA_SUCCESS && launched_bytes == 4096);
        MUST(how.flags == (device_launch | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD));
        MUST(hr_size_of_graph(exec).kernels == 2 && hr_size_of_graph(exec).memory == 4096);
        is_full = true;
        MUST(make[way](&exec, graph, &how) == CUDA_ERROR_OUT_OF_MEMORY);
        /* The program has no graph that it could destroy. */
        MUST(hr_size_of_graph(exec).memory == 0);
        is_full = false;
        MUST(make[way](&exec, NULL, &how) != CUDA_SUCCESS && launched_bytes == 4096);
    }
    MUST(payments == 0);
}

int main(int count, char **arguments)
{
    CUcontext context;
    void *module;
    MUST(count == 2);
    find_driver(arguments[1]);
    MUST(init(0) == CUDA_SUCCESS && retain(&context, 0) == CUDA_SUCCESS);
    MUST(set_current(context) == CUDA_SUCCESS && load(&module, "any image") == CUDA_SUCCESS);
    MUST(get_function(&kernel, module, "nothing") == CUDA_SUCCESS);
    MUST(create_stream(&stream, 1) == CUDA_SUCCESS);
    /* Where nothing holds launches up, nobody pays. */
    MUST(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL) == CUDA_SUCCESS);
    MUST(payments == 0);
    hr_holds = HR_HOLD_LIMITED;
    check_kernels();
    check_refusals();
    check_graphs();
    check_depth();
    check_conditionals();
    check_launches_of_graphs();
    check_uploads();
    return 0;
}
