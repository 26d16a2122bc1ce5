/*
 * The memory that the nodes of a graph allocate.  The driver takes it when the graph is launched or
 * uploaded, and keeps it for later launches in a pool that each device has for its graphs
 * (pools.h).
 */
#ifndef HR_GRAPH_MEMORY_H
#define HR_GRAPH_MEMORY_H

#include <stdint.h>

#include "cuda_api.h"

/* The bytes that a node allocates; 0 for a node of another kind. */
uint64_t hr_memory_of_node(CUgraphNode node);

/*
 * Launch or upload a graph whose nodes allocate so many bytes, as far as is known, by the driver's
 * function. They are charged before, as far as the pool does not hold them already; afterwards the
 * pool is asked.  CUDA_ERROR_OUT_OF_MEMORY: they would pass the limit, and the driver was not
 * asked.
 */
typedef CUresult hr_launch_graph(CUgraphExec exec, CUstream stream);
CUresult hr_launch_with_memory(hr_launch_graph *launch, uint64_t bytes, CUgraphExec exec,
                               CUstream stream);

#endif
