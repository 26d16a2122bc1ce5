/*
 * The driver of numbered_driver.h as far as it gives out memory: blocks, arrays, physical memory,
 * pools and the memory of graphs.
 */
#ifndef NUMBERED_MEMORY_H
#define NUMBERED_MEMORY_H

#include "../../csrc/preload/graph_memory.h"
#include "../../csrc/preload/pools.h"
#include "numbered_driver.h"

enum { SIZE = 3 * 4096, HEIGHT = 12, WIDTH = 1000 };

static size_t row_pitch = 1024;
static bool is_capturing;
static CUstream asked_stream;
static uint64_t physical_address;

static CUresult allocate(CUdeviceptr *out, size_t bytes)
{
    uint64_t key = 0;
    CUresult result = give_out(&key, bytes, current == NULL ? 0 : current->device, current);
    *out = key;
    return result;
}

static CUresult allocate_managed(CUdeviceptr *out, size_t bytes, unsigned flags)
{
    MUST(flags == 1);
    return allocate(out, bytes);
}

static CUresult allocate_pitch(CUdeviceptr *out, size_t *pitch, size_t width, size_t height,
                               unsigned element)
{
    MUST(width == WIDTH && element == 4);
    *pitch = row_pitch;
    return allocate(out, row_pitch * height);
}

static CUresult free_memory(CUdeviceptr pointer)
{
    return take_back(pointer);
}

static CUresult create_array(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *array)
{
    CUdeviceptr key;
    CUresult result = allocate(&key, array->Width * array->Height * 4);
    *out = (CUarray)(uintptr_t)key;
    return result;
}

static CUresult create_array3d(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *array)
{
    CUdeviceptr key;
    CUresult result = allocate(&key, array->Width * array->Height * 4);
    *out = (CUarray)(uintptr_t)key;
    return result;
}

static CUresult create_mipmapped(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *array,
                                 unsigned levels)
{
    CUdeviceptr key;
    MUST(levels == 2);
    CUresult result = allocate(&key, array->Width * array->Height * 5);
    *out = (CUmipmappedArray)(uintptr_t)key;
    return result;
}

static CUresult destroy_array(CUarray array)
{
    return take_back((uintptr_t)array);
}

static CUresult destroy_mipmapped(CUmipmappedArray array)
{
    return take_back((uintptr_t)array);
}

static CUresult create_physical(CUmemGenericAllocationHandle *out, size_t bytes,
                                const CUmemAllocationProp *properties, unsigned long long flags)
{
    uint64_t key = 0;
    MUST(flags == 0);
    CUresult result = give_out(&key, bytes, properties->location.id, NULL);
    *out = key;
    return result;
}

static CUresult release_physical(CUmemGenericAllocationHandle handle)
{
    return take_back(handle);
}

static uint64_t kept; /* by a pool that nobody uses, until it is trimmed */
/* What a pool takes besides with the next allocation; it cannot be trimmed before that is freed. */
static uint64_t grows_by, pinned;

static CUresult allocate_from(CUdeviceptr *out, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    uint64_t key = 0;
    uint64_t reused = kept < bytes ? kept : bytes;
    asked_stream = stream;
    there[pool->device] -= reused;
    CUresult result = give_out(&key, bytes, pool->device, NULL);
    if (result != CUDA_SUCCESS) {
        there[pool->device] += reused;
    } else {
        find_block(key)->pool = pool;
        kept -= reused;
        pool->held -= reused;
        pool->held += bytes + grows_by;
        there[pool->device] += grows_by;
        pinned += grows_by;
        grows_by = 0;
    }
    *out = key;
    return result;
}

static CUresult allocate_async(CUdeviceptr *out, size_t bytes, CUstream stream)
{
    return allocate_from(out, bytes, &defaults[current == NULL ? 0 : current->device], stream);
}

static CUresult free_async(CUdeviceptr pointer, CUstream stream)
{
    (void)stream;
    kept += pinned;
    pinned = 0;
    return take_back(pointer);
}

static CUresult get_pool(CUmemoryPool *out, CUdevice device)
{
    *out = &defaults[device];
    return CUDA_SUCCESS;
}

static CUresult count_devices(int *out)
{
    *out = DEVICES;
    return CUDA_SUCCESS;
}

static CUresult get_attribute(CUmemoryPool pool, int attribute, void *value)
{
    MUST(relaxed == 1 && attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    *(uint64_t *)value = pool->held;
    return CUDA_SUCCESS;
}

static uint64_t held_by_graphs[DEVICES];

static CUresult get_graph_attribute(CUdevice device, int attribute, void *value)
{
    MUST(relaxed == 1 && attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
    *(uint64_t *)value = held_by_graphs[device];
    return CUDA_SUCCESS;
}

static CUresult trim_pool(CUmemoryPool pool, size_t keep)
{
    MUST(keep == 0 && relaxed <= 1);
    pool->held -= kept;
    there[pool->device] -= kept;
    kept = 0;
    return CUDA_SUCCESS;
}

static CUresult trim_graphs(CUdevice device)
{
    there[device] -= held_by_graphs[device];
    held_by_graphs[device] = 0;
    return CUDA_SUCCESS;
}

static CUresult create_pool(CUmemoryPool *out, const CUmemPoolProps *properties)
{
    MUST(properties->location.id >= 0);
    CUresult result = take_result();
    if (result == CUDA_SUCCESS)
        *out = &own_pool;
    return result;
}

static CUresult destroy_pool(CUmemoryPool pool)
{
    MUST(pool == &own_pool);
    return take_result();
}

static CUresult tell_capture(CUstream stream, int *status)
{
    asked_stream = stream;
    *status = is_capturing ? 1 : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

/* Streams are the numbers of devices, from a hundred on. */
static CUresult get_stream_context(CUstream stream, CUcontext *out)
{
    if ((uintptr_t)stream < 100)
        return CUDA_ERROR_INVALID_VALUE;
    *out = &primaries[(uintptr_t)stream - 100];
    return CUDA_SUCCESS;
}

static CUresult read_node(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *out)
{
    out->bytesize = SIZE;
    return node == NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult map(CUdeviceptr address, size_t bytes, size_t offset,
                    CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    (void)address, (void)bytes, (void)offset, (void)handle, (void)flags;
    return take_result();
}

static CUresult unmap(CUdeviceptr address, size_t bytes)
{
    (void)address, (void)bytes;
    return take_result();
}

static CUresult retain_handle(CUmemGenericAllocationHandle *out, void *address)
{
    (void)address;
    *out = physical_address;
    return take_result();
}

struct hr_cuda_functions hr_cuda = {
    .cuMemAlloc_v2 = allocate,
    .cuMemAllocManaged = allocate_managed,
    .cuMemAllocPitch_v2 = allocate_pitch,
    .cuMemFree_v2 = free_memory,
    .cuArrayCreate_v2 = create_array,
    .cuArray3DCreate_v2 = create_array3d,
    .cuMipmappedArrayCreate = create_mipmapped,
    .cuArrayDestroy = destroy_array,
    .cuMipmappedArrayDestroy = destroy_mipmapped,
    .cuMemCreate = create_physical,
    .cuMemRelease = release_physical,
    .cuMemAllocAsync = allocate_async,
    .cuMemAllocAsync_ptsz = allocate_async,
    .cuMemAllocFromPoolAsync = allocate_from,
    .cuMemAllocFromPoolAsync_ptsz = allocate_from,
    .cuMemFreeAsync = free_async,
    .cuMemFreeAsync_ptsz = free_async,
    .cuGraphMemAllocNodeGetParams = read_node,
    .cuDeviceGetMemPool = get_pool,
    .cuDeviceGetDefaultMemPool = get_pool,
    .cuDeviceGetCount = count_devices,
    .cuMemPoolGetAttribute = get_attribute,
    .cuDeviceGetGraphMemAttribute = get_graph_attribute,
    .cuMemPoolCreate = create_pool,
    .cuMemPoolDestroy = destroy_pool,
    .cuMemPoolTrimTo = trim_pool,
    .cuDeviceGraphMemTrim = trim_graphs,
    .cuStreamIsCapturing = tell_capture,
    .cuStreamGetCtx = get_stream_context,
    .cuCtxGetCurrent = get_current,
    .cuCtxGetDevice = get_device,
    .cuMemMap = map,
    .cuMemUnmap = unmap,
    .cuMemRetainAllocationHandle = retain_handle,
};

static CUdevice chosen; /* the device of what is not the current context's */

/* With a context there, and nothing else. */
static void begin_on(CUdevice device)
{
    begin();
    is_capturing = false;
    row_pitch = 1024;
    kept = grows_by = pinned = 0;
    memset(held_by_graphs, 0, sizeof held_by_graphs);
    chosen = device;
    current = &primaries[device];
    current->is_alive = true;
    hr_add_context(current, device, 0);
}

#endif
