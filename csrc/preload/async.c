/*
 * Memory that is allocated and freed in the order of a stream, and the pools that it comes from.
 */
#include "allocating.h"
#include "charges.h"
#include "cuda_functions.h"
#include "pools.h"
#include "session.h"

typedef CUresult free_async(CUdeviceptr pointer, CUstream stream);

/* While a stream is captured, an allocation becomes a node of the graph, whose memory is the
 * graphs' (pools.h). */
static bool is_captured(CUstream stream)
{
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    return HR_CUDA(cuStreamIsCapturing)(stream, &status) == CUDA_SUCCESS &&
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* What the functions of a program mean whose default stream is each thread's own. */
static CUstream own_default(CUstream stream)
{
    return stream == NULL ? CU_STREAM_PER_THREAD : stream;
}

/* The pool is asked what it holds now; false: that is more than the limit allows. */
static bool is_allowed(int pool)
{
    CUresult result = hr_admit_pool(pool);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && hr_trim_pools(hr_row_of_pool(pool)))
        result = hr_admit_pool(pool);
    return result == CUDA_SUCCESS;
}

/* `result` and `pointer` are what the driver gave, for a promise of so many bytes. */
static CUresult end_allocation(int pool, uint64_t bytes, CUresult result,
                               const CUdeviceptr *pointer, CUstream stream, free_async *undo)
{
    int row = hr_row_of_pool(pool);
    bool is_undone = result == CUDA_SUCCESS && !is_allowed(pool);
    if (is_undone) {
        undo(*pointer, stream);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result == CUDA_SUCCESS) {
        const struct hr_entry entry = {.key = *pointer,
                                       .bytes = bytes,
                                       .owner = (uint32_t)pool,
                                       .row = (int16_t)row,
                                       .space = HR_POINTER,
                                       .in_pool = 1};
        hr_enter_allocation(&entry);
    } else {
        hr_take_back_promise(pool, bytes);
        hr_settle_pool(pool);
        if (is_undone)
            /* It would keep what it took for that. */
            hr_trim_pools(row);
    }
    hr_end_change(row);
    return result;
}

/* Charge an allocation of the pool.  `number` -1 afterwards: it is not counted. */
static CUresult begin_allocation(CUmemoryPool pool, CUdevice device, uint64_t bytes, int *number)
{
    *number = hr_enter_pool(pool, device);
    int row = hr_row_of_pool(*number);
    if (row < 0) {
        *number = -1;
        return CUDA_SUCCESS;
    }
    hr_begin_change(row);
    CUresult result = hr_promise(*number, bytes);
    if (result != CUDA_SUCCESS)
        hr_end_change(row);
    return result;
}

/* What every allocation begins with.  False: it is not counted. */
static CUresult enter(CUstream stream, struct hr_context *context, bool *is_counted)
{
    if (__builtin_expect((hr_current_holds() & HR_HOLD_SUSPENDED) != 0, 0))
        hr_wait_while_suspended();
    if (__builtin_expect(hr_attach_session() == HR_SESSION_REFUSED, 0))
        return CUDA_ERROR_NOT_PERMITTED;
    *is_counted = hr_stream_context(stream, context) && !is_captured(stream);
    return CUDA_SUCCESS;
}

#define ALLOCATE_ASYNC(name, undo, meant)                                                          \
    CUresult name(CUdeviceptr *out, size_t bytes, CUstream stream)                                 \
    {                                                                                              \
        struct hr_context context;                                                                 \
        bool is_counted;                                                                           \
        CUmemoryPool pool;                                                                         \
        int number = -1;                                                                           \
        CUresult result = enter(meant, &context, &is_counted);                                     \
        if (result == CUDA_SUCCESS && is_counted &&                                                \
            HR_CUDA(cuDeviceGetMemPool)(&pool, context.device) == CUDA_SUCCESS)                    \
            result = begin_allocation(pool, context.device, bytes, &number);                       \
        if (result != CUDA_SUCCESS)                                                                \
            return result;                                                                         \
        result = HR_CUDA(name)(out, bytes, stream);                                                \
        return number < 0 ? result                                                                 \
                          : end_allocation(number, bytes, result, out, stream, HR_CUDA(undo));     \
    }
ALLOCATE_ASYNC(cuMemAllocAsync, cuMemFreeAsync, stream)
ALLOCATE_ASYNC(cuMemAllocAsync_ptsz, cuMemFreeAsync_ptsz, own_default(stream))

#define ALLOCATE_FROM_POOL(name, undo, meant)                                                      \
    CUresult name(CUdeviceptr *out, size_t bytes, CUmemoryPool pool, CUstream stream)              \
    {                                                                                              \
        struct hr_context context;                                                                 \
        bool is_counted;                                                                           \
        int number = -1;                                                                           \
        CUresult result = enter(meant, &context, &is_counted);                                     \
        if (result == CUDA_SUCCESS && is_counted && pool != NULL)                                  \
            result = begin_allocation(pool, context.device, bytes, &number);                       \
        if (result != CUDA_SUCCESS)                                                                \
            return result;                                                                         \
        result = HR_CUDA(name)(out, bytes, pool, stream);                                          \
        return number < 0 ? result                                                                 \
                          : end_allocation(number, bytes, result, out, stream, HR_CUDA(undo));     \
    }
ALLOCATE_FROM_POOL(cuMemAllocFromPoolAsync, cuMemFreeAsync, stream)
ALLOCATE_FROM_POOL(cuMemAllocFromPoolAsync_ptsz, cuMemFreeAsync_ptsz, own_default(stream))

#define FREE_ASYNC(name)                                                                           \
    CUresult name(CUdeviceptr pointer, CUstream stream)                                            \
    {                                                                                              \
        struct hr_freeing freeing;                                                                 \
        hr_begin_freeing(&freeing, HR_POINTER, pointer);                                           \
        return hr_end_freeing(&freeing, HR_CUDA(name)(pointer, stream));                           \
    }
FREE_ASYNC(cuMemFreeAsync)
FREE_ASYNC(cuMemFreeAsync_ptsz)

CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *properties)
{
    CUresult result = HR_CUDA(cuMemPoolCreate)(out, properties);
    if (result != CUDA_SUCCESS)
        return result;
    if (properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE)
        hr_enter_pool(*out, properties->location.id);
    else
        hr_enter_host_pool(*out);
    return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    /* Before the driver may give another pool the same handle. */
    int number = hr_end_pool(pool);
    CUresult result = HR_CUDA(cuMemPoolDestroy)(pool);
    if (number < 0)
        return result;
    if (result == CUDA_SUCCESS)
        hr_settle_pool(number);
    else
        hr_undo_end_of_pool(number);
    return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    CUresult result = HR_CUDA(cuMemPoolTrimTo)(pool, keep);
    hr_settle_pools();
    return result;
}

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    CUresult result = HR_CUDA(cuDeviceGraphMemTrim)(device);
    hr_settle_pools();
    return result;
}
