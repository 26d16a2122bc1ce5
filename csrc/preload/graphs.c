#include "graphs.h"

#include <stdlib.h>

#include "hooks.h"
#include "memory.h"

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

/* ---- For the hooks -------------------------------------------------------------------- */

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

void hr_remember_graph(CUgraphExec exec, CUgraph graph)
{
    struct hr_graph_size size = {0};
    add_graph(graph, 0, &size);
    hr_forget_graph(exec);
    enter(HR_GRAPH, exec, size.kernels, size.blocks);
    if (size.memory == 0)
        return;
    enter(HR_GRAPH_MEMORY, exec, 0, size.memory);
    atomic_store_explicit(&graphs_allocate, true, memory_order_relaxed);
}

void hr_forget_graph(CUgraphExec exec)
{
    struct hr_entry gone;
    hr_table_take(HR_GRAPH, (uint64_t)(uintptr_t)exec, &gone);
    hr_table_take(HR_GRAPH_MEMORY, (uint64_t)(uintptr_t)exec, &gone);
}

struct hr_graph_size hr_size_of_graph(CUgraphExec exec)
{
    struct hr_graph_size size = {.kernels = 1, .blocks = 1};
    struct hr_entry entry;
    if (hr_table_find(HR_GRAPH, (uint64_t)(uintptr_t)exec, &entry)) {
        size.kernels = entry.owner;
        size.blocks = entry.bytes;
    }
    return size;
}

CUresult hr_launch_graph(hr_graph_call *launch, CUgraphExec exec, CUstream stream)
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
