/*
 * Memory that is allocated and freed in the order of a stream, and the pools that it comes from.
 */
#include "hooks.h"
#include "memory.h"
#include "session.h"

typedef CUresult free_async(CUdeviceptr pointer, CUstream stream);

/* An allocation from a pool. */
struct from_pool {
    int pool; /* -1: it is not counted */
    uint64_t bytes;
    bool has_grown;
};

/* `result` and `pointer` are what the driver gave. */
static CUresult end_allocation(const struct from_pool *from, CUresult result,
                               const CUdeviceptr *pointer, CUstream stream, free_async *undo)
{
    if (from->pool < 0)
        return result;
    int row = hr_row_of_pool(from->pool);
    bool is_undone = false;
    if (result == CUDA_SUCCESS && from->has_grown) {
        result = hr_admit_pool(from->pool);
        is_undone = result != CUDA_SUCCESS;
        if (is_undone)
            undo(*pointer, stream);
    }
    if (result == CUDA_SUCCESS) {
        const struct hr_entry entry = {.key = *pointer,
                                       .bytes = from->bytes,
                                       .owner = (uint32_t)from->pool,
                                       .row = (int16_t)row,
                                       .space = HR_POINTER,
                                       .in_pool = 1};
        hr_enter_allocation(&entry);
    } else {
        hr_take_back_promise(from->pool, from->bytes);
        hr_reconcile_pool(from->pool);
        if (is_undone)
            /* It would keep what it took for that. */
            hr_trim_pools(row);
    }
    hr_end_change(row);
    return result;
}

/* Charge an allocation; `pool` NULL means that of the stream's device.  An allocation in a capture
 * becomes a node of the graph, whose memory is the graphs' (memory.h). */
static CUresult begin_allocation(CUmemoryPool pool, uint64_t bytes, CUstream stream,
                                 struct from_pool *from)
{
    struct hr_context context;
    CUresult result = hr_enter_memory_call();
    *from = (struct from_pool){.pool = -1, .bytes = bytes};
    if (result != CUDA_SUCCESS || !hr_stream_context(stream, &context) || hr_is_captured(stream))
        return result;
    if (pool == NULL && HR_CUDA(cuDeviceGetMemPool)(&pool, context.device) != CUDA_SUCCESS)
        return CUDA_SUCCESS;
    int number = hr_enter_pool(pool, context.device), row = hr_row_of_pool(number);
    if (row < 0)
        return CUDA_SUCCESS;
    hr_begin_change(row);
    result = hr_promise(number, bytes, &from->has_grown);
    if (result == CUDA_SUCCESS)
        from->pool = number;
    else
        hr_end_change(row);
    return result;
}

#define ALLOCATE(name, parameters, arguments, undo, of_pool, meant)                                \
    CUresult name parameters                                                                       \
    {                                                                                              \
        struct from_pool from;                                                                     \
        CUresult result = begin_allocation(of_pool, bytes, meant, &from);                          \
        if (result != CUDA_SUCCESS)                                                                \
            return result;                                                                         \
        return end_allocation(&from, HR_CUDA(name) arguments, out, stream, HR_CUDA(undo));         \
    }
#define ALLOCATE_ASYNC(name, undo, meant)                                                          \
    ALLOCATE(name, (CUdeviceptr * out, size_t bytes, CUstream stream), (out, bytes, stream), undo, \
             NULL, meant)
#define ALLOCATE_FROM_POOL(name, undo, meant)                                                      \
    ALLOCATE(name, (CUdeviceptr * out, size_t bytes, CUmemoryPool pool, CUstream stream),          \
             (out, bytes, pool, stream), undo, pool, meant)
ALLOCATE_ASYNC(cuMemAllocAsync, cuMemFreeAsync, stream)
ALLOCATE_ASYNC(cuMemAllocAsync_ptsz, cuMemFreeAsync_ptsz, hr_own_default(stream))
ALLOCATE_FROM_POOL(cuMemAllocFromPoolAsync, cuMemFreeAsync, stream)
ALLOCATE_FROM_POOL(cuMemAllocFromPoolAsync_ptsz, cuMemFreeAsync_ptsz, hr_own_default(stream))

CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *properties)
{
    CUresult result = HR_CUDA(cuMemPoolCreate)(out, properties);
    if (result != CUDA_SUCCESS)
        return result;
    hr_open_session();
    /* Before its handle is used with a stream of another device. */
    hr_enter_pool(*out, hr_device_of_location(properties->location.type, properties->location.id));
    return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    return hr_destroy_pool(pool);
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    CUresult result = HR_CUDA(cuMemPoolTrimTo)(pool, keep);
    if (result == CUDA_SUCCESS)
        hr_reconcile_pools();
    return result;
}

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    CUresult result = HR_CUDA(cuDeviceGraphMemTrim)(device);
    if (result == CUDA_SUCCESS)
        hr_reconcile_pools();
    return result;
}
