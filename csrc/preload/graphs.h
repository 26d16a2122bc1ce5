/*
 * How much each executable graph launches and allocates: counted once, when the driver has made it,
 * as its nodes can be asked for only while the graph that it was made from is there.
 */
#ifndef HR_GRAPHS_H
#define HR_GRAPHS_H

#include <stdint.h>

#include "api.h"

struct hr_graph_size {
    uint64_t kernels;
    uint64_t blocks; /* of all of them */
    uint64_t memory; /* bytes that its nodes allocate */
};

/* Count the kernels of a graph, child graphs included, and remember them for `exec`. */
void hr_remember_graph(CUgraphExec exec, CUgraph graph);
void hr_forget_graph(CUgraphExec exec);

/* The size of a graph that is not known, because memory was short, is that of one kernel with one
 * block. */
struct hr_graph_size hr_size_of_graph(CUgraphExec exec);

/*
 * Launch or upload a graph by the driver's function.  What its nodes allocate, the driver takes
 * when the graph is launched or uploaded, and keeps for later launches in a pool that each device
 * has for its graphs: it is charged before, as far as that pool does not hold it already.
 * CUDA_ERROR_OUT_OF_MEMORY: it would pass the limit, and the driver was not asked.
 */
typedef CUresult hr_graph_call(CUgraphExec exec, CUstream stream);
CUresult hr_launch_graph(hr_graph_call *launch, CUgraphExec exec, CUstream stream);

#endif
