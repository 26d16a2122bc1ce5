#include "graph_sizes.h"

#include <stdlib.h>

#include "books.h"
#include "cuda_functions.h"
#include "graph_memory.h"

enum { MOST_DEPTH = 16 };

_Atomic bool hr_graphs_allocate;

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

/* What its bodies launch, each of them once: how often each runs is known when it has run.  Of one
 * that was copied, the bodies are not known: then as much as one kernel. */
static void add_conditional(CUgraphNode node, unsigned depth, struct hr_graph_size *size)
{
    struct hr_entry entry;
    uint64_t before = size->kernels;
    if (hr_find_in_books(HR_CONDITIONAL, (uintptr_t)node, &entry)) {
        const CUgraph *bodies = (const CUgraph *)(uintptr_t)entry.bytes;
        for (uint32_t body = 0; body < entry.owner; body++)
            add_graph(bodies[body], depth + 1, size);
    }
    if (size->kernels == before) {
        size->kernels++;
        size->blocks++;
    }
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
        add_conditional(node, depth, size);
    else if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
        size->memory += hr_memory_of_node(node);
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

/* ---- Conditional nodes ---------------------------------------------------------------- */

/* Whether there was ever one: only then what is destroyed is looked up. */
static _Atomic bool has_conditionals;

static CUresult remember_node(CUresult result, const CUgraphNode *out,
                              const CUgraphNodeParams *wanted)
{
    if (result != CUDA_SUCCESS || out == NULL || wanted == NULL ||
        wanted->type != CU_GRAPH_NODE_TYPE_CONDITIONAL)
        return result;
    struct hr_entry displaced, entry = {.space = HR_CONDITIONAL,
                                        .key = (uintptr_t)*out,
                                        .owner = wanted->conditional.size,
                                        .bytes = (uintptr_t)wanted->conditional.bodies};
    hr_enter_book(&entry, &displaced);
    atomic_store_explicit(&has_conditionals, true, memory_order_relaxed);
    return result;
}

CUresult cuGraphAddNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count,
                        CUgraphNodeParams *wanted)
{
    return remember_node(HR_CUDA(cuGraphAddNode)(out, graph, after, count, wanted), out, wanted);
}

CUresult cuGraphAddNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
                           const void *edges, size_t count, CUgraphNodeParams *wanted)
{
    return remember_node(HR_CUDA(cuGraphAddNode_v2)(out, graph, after, edges, count, wanted), out,
                         wanted);
}

static void forget_nodes(CUgraph graph, unsigned depth);

/* Before the driver frees its bodies, and may give another node the same address. */
static void forget_node(CUgraphNode node, unsigned depth)
{
    struct hr_entry gone;
    if (!hr_take_from_books(HR_CONDITIONAL, (uintptr_t)node, &gone))
        return;
    const CUgraph *bodies = (const CUgraph *)(uintptr_t)gone.bytes;
    for (uint32_t body = 0; body < gone.owner; body++)
        forget_nodes(bodies[body], depth + 1);
}

static void forget_nodes(CUgraph graph, unsigned depth)
{
    size_t nodes = 0;
    CUgraphNode *list = depth == MOST_DEPTH ? NULL : list_nodes(graph, &nodes);
    for (size_t at = 0; list != NULL && at < nodes; at++)
        forget_node(list[at], depth);
    free(list);
}

CUresult cuGraphDestroyNode(CUgraphNode node)
{
    if (atomic_load_explicit(&has_conditionals, memory_order_relaxed))
        forget_node(node, 0);
    return HR_CUDA(cuGraphDestroyNode)(node);
}

CUresult cuGraphDestroy(CUgraph graph)
{
    if (atomic_load_explicit(&has_conditionals, memory_order_relaxed) && graph != NULL)
        forget_nodes(graph, 0);
    return HR_CUDA(cuGraphDestroy)(graph);
}

/* ---- For the hooks -------------------------------------------------------------------- */

/* A graph stands in the books with its kernels as `owner` and its blocks as `bytes`; what its nodes
 * allocate stands beside it, where they do.  Nobody sweeps either away. */
static void enter(enum hr_space space, CUgraphExec exec, uint64_t kernels, uint64_t bytes)
{
    struct hr_entry displaced,
        entry = {.space = space,
                 .key = (uint64_t)(uintptr_t)exec,
                 .owner = kernels < UINT32_MAX ? (uint32_t)kernels : UINT32_MAX,
                 .bytes = bytes};
    hr_enter_book(&entry, &displaced);
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
    atomic_store_explicit(&hr_graphs_allocate, true, memory_order_relaxed);
}

void hr_forget_graph(CUgraphExec exec)
{
    struct hr_entry gone;
    hr_take_from_books(HR_GRAPH, (uint64_t)(uintptr_t)exec, &gone);
    hr_take_from_books(HR_GRAPH_MEMORY, (uint64_t)(uintptr_t)exec, &gone);
}

struct hr_graph_size hr_size_of_graph(CUgraphExec exec)
{
    struct hr_graph_size size = {.kernels = 1, .blocks = 1};
    struct hr_entry entry;
    if (hr_find_in_books(HR_GRAPH, (uint64_t)(uintptr_t)exec, &entry)) {
        size.kernels = entry.owner;
        size.blocks = entry.bytes;
    }
    if (atomic_load_explicit(&hr_graphs_allocate, memory_order_relaxed) &&
        hr_find_in_books(HR_GRAPH_MEMORY, (uint64_t)(uintptr_t)exec, &entry))
        size.memory = entry.bytes;
    return size;
}
