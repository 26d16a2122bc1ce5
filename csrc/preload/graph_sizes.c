#include "graph_sizes.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "cuda_functions.h"
#include "forks.h"
#include "graph_memory.h"

enum { FIRST_ROOM = 64, MOST_DEPTH = 16 };

struct known_graph {
    CUgraphExec exec; /* NULL: free */
    struct hr_graph_size size;
};

/* Open addressing; `room` is a power of two, and at least half of it is free. */
static struct known_graph *graphs;
static size_t room, count;
_Atomic bool hr_graphs_allocate;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/* ---- The table, under the mutex ------------------------------------------------------- */

static size_t first_place(CUgraphExec exec)
{
    return (size_t)(((uint64_t)(uintptr_t)exec * 0x9e3779b97f4a7c15u) >> 32) & (room - 1);
}

/* Where the graph stands, or the free place where it would. */
static struct known_graph *find_place(CUgraphExec exec)
{
    size_t at = first_place(exec);
    while (graphs[at].exec != NULL && graphs[at].exec != exec)
        at = (at + 1) & (room - 1);
    return &graphs[at];
}

static bool make_room(void)
{
    if (room != 0 && count < room / 2)
        return true;
    struct known_graph *old = graphs;
    size_t old_room = room, new_room = room == 0 ? FIRST_ROOM : 2 * room;
    struct known_graph *larger = calloc(new_room, sizeof *larger);
    if (larger == NULL)
        return false;
    graphs = larger;
    room = new_room;
    for (size_t at = 0; at < old_room; at++) {
        if (old[at].exec != NULL)
            *find_place(old[at].exec) = old[at];
    }
    free(old);
    return true;
}

static void enter(CUgraphExec exec, struct hr_graph_size size)
{
    if (!make_room())
        return;
    struct known_graph *place = find_place(exec);
    count += place->exec == NULL;
    *place = (struct known_graph){.exec = exec, .size = size};
}

/* What follows the place that becomes free moves up, so that a search does not end there. */
static void strike_out(struct known_graph *place)
{
    size_t at = (size_t)(place - graphs), next = at;
    for (;;) {
        next = (next + 1) & (room - 1);
        if (graphs[next].exec == NULL)
            break;
        size_t wanted = first_place(graphs[next].exec);
        if (((next - wanted) & (room - 1)) >= ((next - at) & (room - 1))) {
            graphs[at] = graphs[next];
            at = next;
        }
    }
    graphs[at].exec = NULL;
    count--;
}

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

/* ---- Forks ---------------------------------------------------------------------------- */

void hr_fork_graph_sizes(enum hr_fork at)
{
    if (at == HR_BEFORE_FORK)
        pthread_mutex_lock(&mutex);
    else
        pthread_mutex_unlock(&mutex);
}

/* ---- For the hooks -------------------------------------------------------------------- */

void hr_remember_graph(CUgraphExec exec, CUgraph graph)
{
    struct hr_graph_size size = {0};
    add_graph(graph, 0, &size);
    if (size.memory != 0)
        atomic_store_explicit(&hr_graphs_allocate, true, memory_order_relaxed);
    pthread_mutex_lock(&mutex);
    enter(exec, size);
    pthread_mutex_unlock(&mutex);
}

void hr_forget_graph(CUgraphExec exec)
{
    pthread_mutex_lock(&mutex);
    if (room != 0) {
        struct known_graph *place = find_place(exec);
        if (place->exec != NULL)
            strike_out(place);
    }
    pthread_mutex_unlock(&mutex);
}

struct hr_graph_size hr_size_of_graph(CUgraphExec exec)
{
    struct hr_graph_size size = {.kernels = 1, .blocks = 1};
    pthread_mutex_lock(&mutex);
    if (room != 0) {
        const struct known_graph *place = find_place(exec);
        if (place->exec != NULL)
            size = place->size;
    }
    pthread_mutex_unlock(&mutex);
    return size;
}
