#define _GNU_SOURCE
#include "fake.h"

#include <stdlib.h>
#include <string.h>

enum kind { KERNEL, MEMCPY, MEMSET, HOST, GRAPH, EMPTY, MEM_ALLOC = 10, MEM_FREE };

struct graph_node {
    enum kind kind;
    CUDA_KERNEL_NODE_PARAMS kernel;
    CUDA_MEM_ALLOC_NODE_PARAMS memory;
    CUgraph child;
    struct graph_node *next;
};

struct graph {
    struct graph_node *nodes;
};

/* What a launch does: so much work, and these allocations. */
struct graph_exec {
    uint64_t ns;
    struct graph_node *nodes; /* copies of the memory nodes */
};

static pthread_mutex_t mutex =
    PTHREAD_MUTEX_INITIALIZER; /* over graph memory; taken before others */

/* A device keeps what graphs have allocated until it is trimmed. */
static struct {
    uint64_t used, used_high, reserved, reserved_high;
} memory[MAX_GPUS];

/* An address that a graph allocates at each launch. */
struct graph_address {
    CUdeviceptr address;
    uint64_t size;
    int device;
    bool is_allocated;
    struct graph_address *next;
};
static struct graph_address *addresses;

/* ---- making ---- */

API CUresult cuGraphCreate(CUgraph *out, unsigned flags)
{
    CUresult code = check_initialised();
    if (code == CUDA_SUCCESS && flags != 0)
        code = CUDA_ERROR_INVALID_VALUE;
    if (code == CUDA_SUCCESS)
        *out = calloc(1, sizeof **out);
    return code;
}

static void free_nodes(struct graph_node *node)
{
    while (node != NULL) {
        struct graph_node *next = node->next;
        free(node);
        node = next;
    }
}

API CUresult cuGraphDestroy(CUgraph graph)
{
    CUresult code = check_initialised();
    if (code != CUDA_SUCCESS)
        return code;
    free_nodes(graph->nodes);
    free(graph);
    return CUDA_SUCCESS;
}

static CUresult add_node(CUgraph graph, CUgraphNode *out, struct graph_node wanted)
{
    CUresult code = check_initialised();
    if (code != CUDA_SUCCESS)
        return code;
    if (graph == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    struct graph_node *node = malloc(sizeof *node), **last = &graph->nodes;
    *node = wanted;
    while (*last != NULL)
        last = &(*last)->next;
    *last = node;
    if (out != NULL)
        *out = node;
    return CUDA_SUCCESS;
}

CUresult capture_kernel(CUgraph graph, CUfunction function, uint64_t blocks)
{
    struct graph_node node = {.kind = KERNEL,
                              .kernel = {.func = function,
                                         .gridDimX = (unsigned)blocks,
                                         .gridDimY = 1,
                                         .gridDimZ = 1,
                                         .blockDimX = 1,
                                         .blockDimY = 1,
                                         .blockDimZ = 1}};
    return add_node(graph, NULL, node);
}

API CUresult cuGraphAddKernelNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
                                     size_t count, const CUDA_KERNEL_NODE_PARAMS *wanted)
{
    (void)after, (void)count;
    if (wanted->func == NULL && wanted->kern == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    struct graph_node node = {.kind = KERNEL, .kernel = *wanted};
    if (node.kernel.func == NULL)
        node.kernel.func = node.kernel.kern;
    return add_node(graph, out, node);
}

API CUresult cuGraphAddKernelNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
                                  size_t count, const CUDA_KERNEL_NODE_PARAMS *wanted)
{
    CUDA_KERNEL_NODE_PARAMS all = {0};
    memcpy(&all, wanted, offsetof(CUDA_KERNEL_NODE_PARAMS, kern));
    return cuGraphAddKernelNode_v2(out, graph, after, count, &all);
}

API CUresult cuGraphAddEmptyNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
                                 size_t count)
{
    (void)after, (void)count;
    return add_node(graph, out, (struct graph_node){.kind = EMPTY});
}

API CUresult cuGraphAddChildGraphNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
                                      size_t count, CUgraph child)
{
    (void)after, (void)count;
    return add_node(graph, out, (struct graph_node){.kind = GRAPH, .child = child});
}

API CUresult cuGraphAddMemAllocNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
                                    size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *wanted)
{
    (void)after, (void)count;
    int device = wanted->poolProps.location.id;
    CUresult code = check_device(device);
    if (code != CUDA_SUCCESS)
        return code;
    struct block block = {.size = wanted->bytesize, .device = device};
    code = add_block(block, &wanted->dptr);
    if (code != CUDA_SUCCESS)
        return code;
    struct graph_address *address = calloc(1, sizeof *address);
    address->address = wanted->dptr;
    address->size = wanted->bytesize;
    address->device = device;
    pthread_mutex_lock(&mutex);
    address->next = addresses;
    addresses = address;
    pthread_mutex_unlock(&mutex);
    return add_node(graph, out, (struct graph_node){.kind = MEM_ALLOC, .memory = *wanted});
}

API CUresult cuGraphAddMemFreeNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
                                   size_t count, CUdeviceptr address)
{
    (void)after, (void)count;
    struct graph_node node = {.kind = MEM_FREE, .memory = {.dptr = address}};
    return add_node(graph, out, node);
}

API CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    size_t found = 0;
    for (struct graph_node *node = graph->nodes; node != NULL; node = node->next, found++)
        if (nodes != NULL && found < *count)
            nodes[found] = node;
    if (nodes == NULL || found < *count)
        *count = found;
    return check_initialised();
}

API CUresult cuGraphNodeGetType(CUgraphNode node, int *type)
{
    *type = (int)node->kind;
    return check_initialised();
}

/* What a node of one kind holds. */
#define HELD(name, type, of_kind, field)                                                           \
    API CUresult name(CUgraphNode node, type *out)                                                 \
    {                                                                                              \
        if (node->kind != of_kind)                                                                 \
            return CUDA_ERROR_INVALID_VALUE;                                                       \
        *out = node->field;                                                                        \
        return check_initialised();                                                                \
    }
HELD(cuGraphKernelNodeGetParams_v2, CUDA_KERNEL_NODE_PARAMS, KERNEL, kernel)
HELD(cuGraphChildGraphNodeGetGraph, CUgraph, GRAPH, child)
HELD(cuGraphMemAllocNodeGetParams, CUDA_MEM_ALLOC_NODE_PARAMS, MEM_ALLOC, memory)

API CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *out)
{
    if (node->kind != KERNEL)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(out, &node->kernel, offsetof(CUDA_KERNEL_NODE_PARAMS, kern));
    return check_initialised();
}

/* ---- capture ---- */

enum { MODE_GLOBAL, MODE_RELAXED = 2 };

static _Atomic int global_captures;    /* that are going on */
static _Atomic unsigned invalidations; /* of captures, by calls that are not safe in one */
static _Thread_local int thread_mode = MODE_GLOBAL;

API CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
    int before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return check_initialised();
}

CUresult check_capture(void)
{
    if (thread_mode == MODE_RELAXED || global_captures == 0)
        return CUDA_SUCCESS;
    invalidations++;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

API CUresult cuStreamBeginCapture_v2(CUstream stream, int mode)
{
    struct stream *on;
    CUresult code = resolve_stream(stream, &on);
    if (code != CUDA_SUCCESS)
        return code;
    if (stream <= CU_STREAM_LEGACY)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    on->capture_is_global = mode == MODE_GLOBAL;
    global_captures += on->capture_is_global;
    on->invalidations = invalidations;
    return cuGraphCreate(&on->capturing, 0);
}
ALSO(cuStreamBeginCapture_v2_ptsz, cuStreamBeginCapture_v2);

API CUresult cuStreamEndCapture(CUstream stream, CUgraph *out)
{
    struct stream *on;
    CUresult code = resolve_stream(stream, &on);
    if (code != CUDA_SUCCESS)
        return code;
    if (on->capturing == NULL)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    *out = on->capturing;
    on->capturing = NULL;
    global_captures -= on->capture_is_global;
    if (on->capture_is_global && on->invalidations != invalidations)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    return CUDA_SUCCESS;
}
ALSO(cuStreamEndCapture_ptsz, cuStreamEndCapture);

/* The default stream of all threads is never captured. */
API CUresult cuStreamIsCapturing(CUstream stream, int *status)
{
    struct stream *on;
    CUresult code = resolve_stream(stream, &on);
    if (code == CUDA_SUCCESS)
        *status = stream > CU_STREAM_LEGACY && on->capturing != NULL;
    return code;
}

API CUresult cuStreamIsCapturing_ptsz(CUstream stream, int *status)
{
    return cuStreamIsCapturing(stream == NULL ? CU_STREAM_PER_THREAD : stream, status);
}

CUresult capture_allocation(CUgraph graph, int device, uint64_t size, CUdeviceptr *out)
{
    CUDA_MEM_ALLOC_NODE_PARAMS wanted = {.poolProps.location.id = device, .bytesize = size};
    CUresult code = cuGraphAddMemAllocNode(NULL, graph, NULL, 0, &wanted);
    *out = wanted.dptr;
    return code;
}

/* ---- running ---- */

static uint64_t graph_ns(const struct graph *graph)
{
    uint64_t ns = 0;
    for (const struct graph_node *node = graph->nodes; node != NULL; node = node->next) {
        const CUDA_KERNEL_NODE_PARAMS *kernel = &node->kernel;
        if (node->kind == KERNEL)
            ns += kernel_ns(kernel->func,
                            (uint64_t)kernel->gridDimX * kernel->gridDimY * kernel->gridDimZ);
        else if (node->kind == GRAPH)
            ns += graph_ns(node->child);
    }
    return ns;
}

API CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags)
{
    (void)flags;
    CUresult code = check_initialised();
    if (code != CUDA_SUCCESS)
        return code;
    if (out == NULL || graph == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    struct graph_exec *exec = calloc(1, sizeof *exec);
    exec->ns = graph_ns(graph);
    struct graph_node **last = &exec->nodes;
    for (const struct graph_node *node = graph->nodes; node != NULL; node = node->next) {
        if (node->kind != MEM_ALLOC && node->kind != MEM_FREE)
            continue;
        *last = malloc(sizeof **last);
        **last = *node;
        (*last)->next = NULL;
        last = &(*last)->next;
    }
    *out = exec;
    return CUDA_SUCCESS;
}

API CUresult cuGraphInstantiate_v2(CUgraphExec *out, CUgraph graph, CUgraphNode *bad, char *log,
                                   size_t size)
{
    (void)bad, (void)log, (void)size;
    return cuGraphInstantiateWithFlags(out, graph, 0);
}
ALSO(cuGraphInstantiate, cuGraphInstantiate_v2);

API CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    CUresult code = check_initialised();
    if (code != CUDA_SUCCESS)
        return code;
    free_nodes(exec->nodes);
    free(exec);
    return CUDA_SUCCESS;
}

/* For other arguments of the same kernel, whose work stays the same. */
API CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                            const CUDA_KERNEL_NODE_PARAMS *wanted)
{
    if (exec == NULL || node->kind != KERNEL || node->kernel.func != wanted->func)
        return CUDA_ERROR_INVALID_VALUE;
    return check_initialised();
}

/* With the mutex held. */
static struct graph_address *address_of(CUdeviceptr wanted)
{
    struct graph_address *address = addresses;
    while (address != NULL && address->address != wanted)
        address = address->next;
    return address;
}

static CUresult allocate_address(struct graph_address *address)
{
    if (address->is_allocated)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t used = memory[address->device].used + address->size;
    if (used > memory[address->device].reserved) {
        CUresult code = charge(address->device, used - memory[address->device].reserved);
        if (code != CUDA_SUCCESS)
            return code;
        memory[address->device].reserved = used;
    }
    memory[address->device].used = used;
    if (memory[address->device].used_high < used)
        memory[address->device].used_high = used;
    if (memory[address->device].reserved_high < memory[address->device].reserved)
        memory[address->device].reserved_high = memory[address->device].reserved;
    address->is_allocated = true;
    return CUDA_SUCCESS;
}

static void free_address(struct graph_address *address)
{
    if (address->is_allocated)
        memory[address->device].used -= address->size;
    address->is_allocated = false;
}

bool graph_free(CUdeviceptr wanted)
{
    pthread_mutex_lock(&mutex);
    struct graph_address *address = address_of(wanted);
    if (address != NULL)
        free_address(address);
    pthread_mutex_unlock(&mutex);
    return address != NULL;
}

/* It takes the memory that a launch would need. */
API CUresult cuGraphUpload(CUgraphExec exec, CUstream stream)
{
    struct stream *on;
    CUresult code = resolve_stream(stream, &on);
    pthread_mutex_lock(&mutex);
    for (const struct graph_node *node = exec->nodes; node != NULL && code == CUDA_SUCCESS;
         node = node->next) {
        struct graph_address *address = address_of(node->memory.dptr);
        if (address == NULL || node->kind != MEM_ALLOC || address->is_allocated)
            continue;
        code = allocate_address(address);
        free_address(address);
    }
    pthread_mutex_unlock(&mutex);
    return code;
}
ALSO(cuGraphUpload_ptsz, cuGraphUpload);

API CUresult cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph graph,
                                          CUDA_GRAPH_INSTANTIATE_PARAMS *how)
{
    CUresult code = cuGraphInstantiateWithFlags(out, graph, 0);
    if (code == CUDA_SUCCESS && (how->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0)
        code = cuGraphUpload(*out, how->hUploadStream);
    return code;
}
ALSO(cuGraphInstantiateWithParams_ptsz, cuGraphInstantiateWithParams);

API CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    struct stream *on;
    CUresult code = resolve_stream(stream, &on);
    if (code != CUDA_SUCCESS)
        return code;
    if (exec == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    for (const struct graph_node *node = exec->nodes; node != NULL && code == CUDA_SUCCESS;
         node = node->next) {
        struct graph_address *address = address_of(node->memory.dptr);
        if (address != NULL && node->kind == MEM_ALLOC)
            code = allocate_address(address);
        else if (address != NULL)
            free_address(address);
    }
    pthread_mutex_unlock(&mutex);
    return code == CUDA_SUCCESS ? submit(on, exec->ns) : code;
}
ALSO(cuGraphLaunch_ptsz, cuGraphLaunch);

API CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    CUresult code = check_device(device);
    if (code != CUDA_SUCCESS)
        return code;
    pthread_mutex_lock(&mutex);
    discharge(device, memory[device].reserved - memory[device].used);
    memory[device].reserved = memory[device].used;
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetGraphMemAttribute(CUdevice device, int attribute, void *value)
{
    CUresult code = check_device(device);
    if (code == CUDA_SUCCESS)
        code = check_capture();
    if (code == CUDA_SUCCESS && (attribute < 0 || attribute > 3))
        code = CUDA_ERROR_INVALID_VALUE;
    if (code != CUDA_SUCCESS)
        return code;
    pthread_mutex_lock(&mutex);
    *(uint64_t *)value = attribute == 0   ? memory[device].used
                         : attribute == 1 ? memory[device].used_high
                         : attribute == 2 ? memory[device].reserved
                                          : memory[device].reserved_high;
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}
