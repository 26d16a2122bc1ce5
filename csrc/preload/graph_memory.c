#include "graph_memory.h"

#include "charges.h"
#include "context_table.h"
#include "cuda_functions.h"
#include "pools.h"
#include "session.h"

uint64_t hr_memory_of_node(CUgraphNode node)
{
    CUDA_MEM_ALLOC_NODE_PARAMS memory = {.bytesize = 0};
    return HR_CUDA(cuGraphMemAllocNodeGetParams)(node, &memory) == CUDA_SUCCESS ? memory.bytesize
                                                                                : 0;
}

CUresult hr_launch_with_memory(hr_launch_graph *launch, uint64_t bytes, CUgraphExec exec,
                               CUstream stream)
{
    struct hr_context context;
    int pool = -1;
    if (hr_attach_session() == HR_SESSION_REFUSED)
        return CUDA_ERROR_NOT_PERMITTED;
    if (hr_stream_context(stream, &context) && context.row >= 0)
        pool = hr_enter_pool(NULL, context.device);
    if (pool < 0)
        return launch(exec, stream);
    hr_begin_change(context.row);
    CUresult result = hr_promise(pool, bytes);
    if (result == CUDA_SUCCESS) {
        result = launch(exec, stream);
        hr_take_back_promise(pool, bytes);
        /* What it holds beyond the promise cannot be undone. */
        hr_settle_pool(pool);
    }
    hr_end_change(context.row);
    return result;
}
