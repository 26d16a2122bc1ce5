/*
 * Launches of kernels and graphs.  Without an SM limit a launch costs one load and a branch more;
 * with one, it pays with tokens of its device's row (limits.h).
 */
#include <stdlib.h>

#include "hooks.h"
#include "limits.h"
#include "memory.h"
#include "session.h"

/* ---- How much a graph launches and allocates ---------------------------------------------- */

enum { MOST_DEPTH = 16 };

/* Whether any graph of this process allocates memory: only then a launch looks for it. */
static _Atomic bool graphs_allocate;

/* ---- Counting ------------------------------------------------------------------------- */

static void add_graph(CUgraph graph, unsigned depth, struct hr_graph_size *size);

static void add_kernel(CUgraphNode node, struct hr_graph_size *size)
{
    CUDA_KERNEL_NODE_PARAMS kernel = {.func = NULL};
    /* The first version fills in less of the same. */
    if (HR_CUDA(cuGraphKernelNodeGetParams_v2)(node, &kernel) != CUDA_SUCCESS &&
        HR_CUDA(cuGraphKernelNodeGetParams)(node, &kernel) != CUDA_SUCCESS)
        return;
    size->kernels++;
    size->blocks += (uint64_t)kernel.gridDimX * kernel.gridDimY * kernel.gridDimZ;
}

/* A conditional node: what its bodies launch, and how often, is known when they have run. */
static void add_one_block(struct hr_graph_size *size)
{
    size->kernels++;
    size->blocks++;
}

static uint64_t memory_of_node(CUgraphNode node)
{
    CUDA_MEM_ALLOC_NODE_PARAMS memory = {.bytesize = 0};
    return HR_CUDA(cuGraphMemAllocNodeGetParams)(node, &memory) == CUDA_SUCCESS ? memory.bytesize
                                                                                : 0;
}

static void add_node(CUgraphNode node, unsigned depth, struct hr_graph_size *size)
{
    int type;
    CUgraph child;
    if (HR_CUDA(cuGraphNodeGetType)(node, &type) != CUDA_SUCCESS)
        return;
    if (type == CU_GRAPH_NODE_TYPE_KERNEL)
        add_kernel(node, size);
    else if (type == CU_GRAPH_NODE_TYPE_CONDITIONAL)
        add_one_block(size);
    else if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
        size->memory += memory_of_node(node);
    else if (type == CU_GRAPH_NODE_TYPE_GRAPH &&
             HR_CUDA(cuGraphChildGraphNodeGetGraph)(node, &child) == CUDA_SUCCESS)
        add_graph(child, depth + 1, size);
}

/* The nodes of a graph, in a list that the caller frees; NULL: none, or there is no memory. */
static CUgraphNode *list_nodes(CUgraph graph, size_t *count)
{
    *count = 0;
    if (HR_CUDA(cuGraphGetNodes)(graph, NULL, count) != CUDA_SUCCESS || *count == 0)
        return NULL;
    CUgraphNode *list = calloc(*count, sizeof *list);
    if (list != NULL && HR_CUDA(cuGraphGetNodes)(graph, list, count) == CUDA_SUCCESS)
        return list;
    free(list);
    *count = 0;
    return NULL;
}

static void add_graph(CUgraph graph, unsigned depth, struct hr_graph_size *size)
{
    size_t nodes = 0;
    CUgraphNode *list = depth == MOST_DEPTH ? NULL : list_nodes(graph, &nodes);
    for (size_t at = 0; list != NULL && at < nodes; at++)
        add_node(list[at], depth, size);
    free(list);
}

/* ---- Graphs -------------------------------------------------------------------- */

/* A graph's entry has its kernels as `owner` and its blocks as `bytes`; what its nodes allocate has
 * an entry of its own. */
static void enter(enum hr_space space, CUgraphExec exec, uint64_t kernels, uint64_t bytes)
{
    struct hr_entry displaced,
        entry = {.space = space,
                 .key = (uint64_t)(uintptr_t)exec,
                 .owner = kernels < UINT32_MAX ? (uint32_t)kernels : UINT32_MAX,
                 .bytes = bytes};
    hr_table_put(&entry, &displaced);
}

static void forget_graph(CUgraphExec exec)
{
    struct hr_entry gone;
    hr_table_take(HR_GRAPH, (uint64_t)(uintptr_t)exec, &gone);
    hr_table_take(HR_GRAPH_MEMORY, (uint64_t)(uintptr_t)exec, &gone);
}

/* Once, when the driver has made it: its nodes can be asked for only while the graph that it was
 * made from is there. */
static void remember_graph(CUgraphExec exec, CUgraph graph)
{
    struct hr_graph_size size = {0};
    add_graph(graph, 0, &size);
    forget_graph(exec);
    enter(HR_GRAPH, exec, size.kernels, size.blocks);
    if (size.memory == 0)
        return;
    enter(HR_GRAPH_MEMORY, exec, 0, size.memory);
    atomic_store_explicit(&graphs_allocate, true, memory_order_relaxed);
}

/* One that is not known, because memory was short, is one kernel with one block. */
static struct hr_graph_size size_of_graph(CUgraphExec exec)
{
    struct hr_graph_size size = {.kernels = 1, .blocks = 1};
    struct hr_entry entry;
    if (hr_table_find(HR_GRAPH, (uint64_t)(uintptr_t)exec, &entry)) {
        size.kernels = entry.owner;
        size.blocks = entry.bytes;
    }
    return size;
}

/*
 * Launch or upload a graph by the driver's function.  What its nodes allocate, the driver takes
 * when the graph is launched or uploaded, and keeps for later launches in a pool that each device
 * has for its graphs: it is charged before, as far as that pool does not hold it already.
 */
typedef CUresult graph_call(CUgraphExec exec, CUstream stream);
static CUresult launch_graph(graph_call *launch, CUgraphExec exec, CUstream stream)
{
    struct hr_context context;
    struct hr_entry memory;
    bool has_grown;
    if (__builtin_expect(!atomic_load_explicit(&graphs_allocate, memory_order_relaxed), 1) ||
        !hr_table_find(HR_GRAPH_MEMORY, (uintptr_t)exec, &memory))
        return launch(exec, stream);
    CUresult result = hr_enter_memory_call();
    if (result != CUDA_SUCCESS)
        return result;
    int pool = -1;
    if (hr_stream_context(stream, &context) && context.row >= 0)
        pool = hr_enter_pool(NULL, context.device);
    if (pool < 0)
        return launch(exec, stream);
    hr_begin_change(context.row);
    result = hr_promise(pool, memory.bytes, &has_grown);
    if (result == CUDA_SUCCESS) {
        result = launch(exec, stream);
        hr_take_back_promise(pool, memory.bytes);
        /* What it holds beyond the promise cannot be undone. */
        hr_reconcile_pool(pool);
    }
    hr_end_change(context.row);
    return result;
}

/* ---- Launches ----------------------------------------------------------------------------- */

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
                launch_graph(HR_CUDA(name), exec, stream), size_of_graph(exec), meant)
GRAPH_HOOK(cuGraphLaunch, stream)
GRAPH_HOOK(cuGraphLaunch_ptsz, hr_own_default(stream))

/* It takes a graph's memory before the launch, and runs nothing. */
#define UPLOAD_HOOK(name)                                                                          \
    CUresult name(CUgraphExec exec, CUstream stream)                                               \
    {                                                                                              \
        return launch_graph(HR_CUDA(name), exec, stream);                                          \
    }
UPLOAD_HOOK(cuGraphUpload)
UPLOAD_HOOK(cuGraphUpload_ptsz)

/* ---- Graphs that are made ----------------------------------------------------------------- */

static CUresult remember(CUresult result, CUgraph graph, const CUgraphExec *out)
{
    if (result == CUDA_SUCCESS)
        remember_graph(*out, graph);
    return result;
}

#define MAKING_HOOK(name, parameters, arguments)                                                   \
    CUresult name parameters                                                                       \
    {                                                                                              \
        return remember(HR_CUDA(name) arguments, graph, out);                                      \
    }
HR_INSTANTIATION_HOOKS(MAKING_HOOK)

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
    forget_graph(exec);
    return HR_CUDA(cuGraphExecDestroy)(exec);
}
