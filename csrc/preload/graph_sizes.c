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

static void add_node(CUgraphNode node, unsigned depth, struct hr_graph_size *size)
{
    int type;
    CUgraph child;
    if (HR_CUDA(cuGraphNodeGetType)(node, &type) != CUDA_SUCCESS)
        return;
    if (type == CU_GRAPH_NODE_TYPE_KERNEL)
        add_kernel(node, size);
    else if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
        size->memory += hr_memory_of_node(node);
    else if (type == CU_GRAPH_NODE_TYPE_GRAPH &&
             HR_CUDA(cuGraphChildGraphNodeGetGraph)(node, &child) == CUDA_SUCCESS)
        add_graph(child, depth + 1, size);
}

static void add_graph(CUgraph graph, unsigned depth, struct hr_graph_size *size)
{
    size_t nodes = 0;
    if (depth == MOST_DEPTH || HR_CUDA(cuGraphGetNodes)(graph, NULL, &nodes) != CUDA_SUCCESS ||
        nodes == 0)
        return;
    CUgraphNode *list = calloc(nodes, sizeof *list);
    if (list != NULL && HR_CUDA(cuGraphGetNodes)(graph, list, &nodes) == CUDA_SUCCESS) {
        for (size_t at = 0; at < nodes; at++)
            add_node(list[at], depth, size);
    }
    free(list);
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
