/*
 * How much each executable graph launches: counted once, when the driver has made it, as its nodes
 * can be asked for only while the graph that it was made from is there.
 */
#ifndef HR_GRAPH_SIZES_H
#define HR_GRAPH_SIZES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "cuda_api.h"

struct hr_graph_size {
    uint64_t kernels;
    uint64_t blocks; /* of all of them */
    uint64_t memory; /* bytes that its nodes allocate */
};

/* Whether any graph of this process allocates memory: only then its launches have to ask. */
extern _Atomic bool hr_graphs_allocate;

/* Count the kernels of a graph, child graphs included, and remember them for `exec`. */
void hr_remember_graph(CUgraphExec exec, CUgraph graph);
void hr_forget_graph(CUgraphExec exec);

/* The size of a graph that is not known, because memory was short, is that of one kernel with one
 * block. */
struct hr_graph_size hr_size_of_graph(CUgraphExec exec);

#endif
