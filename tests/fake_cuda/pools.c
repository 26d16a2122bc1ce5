#define _GNU_SOURCE
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>

/* The pool takes memory of its device in pieces of this size, as the real driver does. */
#define PIECE (32ull << 20)

struct pool {
    int device;
    bool is_default, is_destroyed;
    uint64_t threshold, used, used_high, reserved, reserved_high;
    struct pool *next;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* over all pools; taken before others */
static struct pool defaults[MAX_GPUS];
static struct pool *chosen[MAX_GPUS]; /* by cuDeviceSetMemPool */
static struct pool *made;

static uint64_t pieces(uint64_t bytes)
{
    return (bytes + PIECE - 1) / PIECE * PIECE;
}

static CUresult reserve(struct pool *pool, uint64_t bytes)
{
    uint64_t wanted = pieces(pool->used + bytes);
    if (wanted > pool->reserved) {
        CUresult code = charge(pool->device, wanted - pool->reserved);
        if (code != CUDA_SUCCESS)
            return code;
        pool->reserved = wanted;
    }
    pool->used += bytes;
    pool->used_high = pool->used > pool->used_high ? pool->used : pool->used_high;
    pool->reserved_high =
        pool->reserved > pool->reserved_high ? pool->reserved : pool->reserved_high;
    return CUDA_SUCCESS;
}

static void trim(struct pool *pool, uint64_t keep)
{
    uint64_t least = pool->used > keep ? pieces(pool->used) : keep;
    if (least < pool->reserved) {
        discharge(pool->device, pool->reserved - least);
        pool->reserved = least;
    }
}

void pool_give_back(CUmemoryPool pool, uint64_t bytes)
{
    pthread_mutex_lock(&mutex);
    pool->used -= bytes;
    if (pool->is_destroyed)
        trim(pool, 0);
    pthread_mutex_unlock(&mutex);
}

void trim_pools(int device, bool heeding_thresholds)
{
    pthread_mutex_lock(&mutex);
    for (struct pool *pool = &defaults[device]; pool != NULL;
         pool = pool == &defaults[device] ? made : pool->next)
        if (pool->device == device)
            trim(pool, heeding_thresholds ? pool->threshold : 0);
    pthread_mutex_unlock(&mutex);
}

API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice device)
{
    CUresult code = check_device(device);
    if (code != CUDA_SUCCESS)
        return code;
    pthread_mutex_lock(&mutex);
    if (!defaults[device].is_default)
        defaults[device] = (struct pool){.device = device, .is_default = true};
    pthread_mutex_unlock(&mutex);
    *out = &defaults[device];
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice device)
{
    CUresult code = cuDeviceGetDefaultMemPool(out, device);
    pthread_mutex_lock(&mutex);
    if (code == CUDA_SUCCESS && chosen[device] != NULL)
        *out = chosen[device];
    pthread_mutex_unlock(&mutex);
    return code;
}

API CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
    CUresult code = check_device(device);
    pthread_mutex_lock(&mutex);
    if (code == CUDA_SUCCESS)
        chosen[device] = pool;
    pthread_mutex_unlock(&mutex);
    return code;
}

API CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *properties)
{
    if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_NOT_SUPPORTED;
    CUresult code = check_device(properties->location.id);
    if (code != CUDA_SUCCESS)
        return code;
    struct pool *pool = calloc(1, sizeof *pool);
    pool->device = properties->location.id;
    pthread_mutex_lock(&mutex);
    pool->next = made;
    made = pool;
    pthread_mutex_unlock(&mutex);
    *out = pool;
    return CUDA_SUCCESS;
}

/* The pool stays until all that it has given out is back. */
API CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    CUresult code = check_initialised();
    if (code != CUDA_SUCCESS)
        return code;
    if (pool == NULL || pool->is_default)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    pool->is_destroyed = true;
    pool->threshold = 0;
    trim(pool, 0);
    if (chosen[pool->device] == pool)
        chosen[pool->device] = NULL;
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

/* The handle of a pool is a pointer: the real driver reads memory that is not there any more. */
static void end_if_destroyed(const struct pool *pool)
{
    if (pool->is_destroyed) {
        fprintf(stderr, "a pool is named that was destroyed\n");
        abort();
    }
}

API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    CUresult code = check_initialised();
    if (code == CUDA_SUCCESS)
        code = check_capture();
    if (code != CUDA_SUCCESS)
        return code;
    pthread_mutex_lock(&mutex);
    end_if_destroyed(pool);
    trim(pool, keep);
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

static uint64_t *attribute_of(struct pool *pool, int attribute)
{
    switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        return &pool->threshold;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
        return &pool->reserved;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        return &pool->reserved_high;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        return &pool->used;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        return &pool->used_high;
    default:
        return NULL;
    }
}

API CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value)
{
    CUresult code = check_initialised();
    if (code == CUDA_SUCCESS)
        code = check_capture();
    if (code != CUDA_SUCCESS)
        return code;
    pthread_mutex_lock(&mutex);
    end_if_destroyed(pool);
    const uint64_t *found = attribute_of(pool, attribute);
    if (found != NULL)
        *(uint64_t *)value = *found;
    else if (attribute == CU_MEMPOOL_ATTR_LOCATION_ID)
        *(int *)value = pool->device;
    else if (attribute == CU_MEMPOOL_ATTR_LOCATION_TYPE)
        *(int *)value = pool->device < 0 ? 2 : CU_MEM_LOCATION_TYPE_DEVICE; /* 2: of the host */
    else
        *(int *)value = 1; /* how memory may be used again: as by default */
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

API CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value)
{
    CUresult code = check_initialised();
    if (code != CUDA_SUCCESS)
        return code;
    if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT ||
        attribute == CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    uint64_t *found = attribute_of(pool, attribute);
    if (found == &pool->threshold)
        *found = *(const uint64_t *)value;
    else if (found == &pool->used_high)
        *found = pool->used; /* a high-water mark can only be begun anew */
    else if (found == &pool->reserved_high)
        *found = pool->reserved;
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t size, CUmemoryPool pool,
                                     CUstream stream)
{
    struct stream *on;
    CUresult code = resolve_stream(stream, &on);
    if (code != CUDA_SUCCESS)
        return code;
    if (out == NULL || size == 0 || pool == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (on->capturing != NULL)
        return capture_allocation(on->capturing, pool->device, size, out);
    pthread_mutex_lock(&mutex);
    code = reserve(pool, size);
    pthread_mutex_unlock(&mutex);
    if (code != CUDA_SUCCESS)
        return code;
    struct block block = {
        .size = size, .device = pool->device, .context = on->context, .pool = pool};
    code = add_block(block, out);
    if (code != CUDA_SUCCESS)
        pool_give_back(pool, size);
    return code;
}
ALSO(cuMemAllocFromPoolAsync_ptsz, cuMemAllocFromPoolAsync);

API CUresult cuMemAllocAsync(CUdeviceptr *out, size_t size, CUstream stream)
{
    struct stream *on;
    CUmemoryPool pool;
    CUresult code = resolve_stream(stream, &on);
    if (code == CUDA_SUCCESS)
        code = cuDeviceGetMemPool(&pool, on->context->device);
    return code == CUDA_SUCCESS ? cuMemAllocFromPoolAsync(out, size, pool, stream) : code;
}
ALSO(cuMemAllocAsync_ptsz, cuMemAllocAsync);

API CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
    struct stream *on;
    CUresult code = resolve_stream(stream, &on);
    if (code != CUDA_SUCCESS)
        return code;
    return graph_free(address) ? CUDA_SUCCESS : free_block(address);
}
ALSO(cuMemFreeAsync_ptsz, cuMemFreeAsync);

/* Let a pool hold so much, as the driver may by itself. */
API CUresult fake_cuda_grow_pool(CUmemoryPool pool, uint64_t bytes)
{
    pthread_mutex_lock(&mutex);
    CUresult code = charge(pool->device, bytes - pool->reserved);
    if (code == CUDA_SUCCESS)
        pool->reserved = bytes;
    pthread_mutex_unlock(&mutex);
    return code;
}
