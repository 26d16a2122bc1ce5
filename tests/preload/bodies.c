/*
 * Graphs with conditional nodes that are made, instantiated and destroyed:
 * `bodies ROUNDS`.
 */
#include "calls.h"

CUresult cuGraphAddEmptyNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
                             size_t count);

static void add_conditional(CUgraph graph, CUcontext context, unsigned bodies)
{
    CUgraphNode node, inside;
    CUgraphNodeParams wanted = {.type = 13, .conditional = {.size = bodies, .context = context}};
    MUST(cuGraphConditionalHandleCreate(&wanted.conditional.handle, graph, context, 1, 1));
    MUST(cuGraphAddNode_v2(&node, graph, NULL, NULL, 0, &wanted));
    for (unsigned body = 0; body < bodies; body++)
        MUST(cuGraphAddEmptyNode(&inside, wanted.conditional.bodies[body], NULL, 0));
}

int main(int count, char **arguments)
{
    CUcontext context;
    if (count != 2) {
        fprintf(stderr, "usage: bodies ROUNDS\n");
        return 2;
    }
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    for (int round = 0; round < atoi(arguments[1]); round++) {
        CUgraph graph;
        CUgraphExec exec;
        CUgraphNode node;
        MUST(cuGraphCreate(&graph, 0));
        add_conditional(graph, context, 1 + (unsigned)round % 4);
        MUST(cuGraphAddEmptyNode(&node, graph, NULL, 0));
        MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
        MUST(cuGraphExecDestroy(exec));
        MUST(cuGraphDestroy(graph));
    }
    return 0;
}
