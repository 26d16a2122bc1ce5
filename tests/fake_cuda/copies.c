/* What is done with memory: copies, fills, and questions about pointers. */
#include "fake.h"

#include <string.h>

/* ---- copies ---- */

API CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t size)
{
    CUcontext context;
    CUresult code = current_context(&context);
    if (code == CUDA_SUCCESS)
        memmove((void *)to, (const void *)from, size);
    return code;
}
ALSO(cuMemcpy_ptds, cuMemcpy);
ALSO(cuMemcpyDtoD_v2, cuMemcpy);
ALSO(cuMemcpyDtoD_v2_ptds, cuMemcpy);

API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size)
{
    return cuMemcpy(to, (CUdeviceptr)from, size);
}
ALSO(cuMemcpyHtoD_v2_ptds, cuMemcpyHtoD_v2);

API CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size)
{
    return cuMemcpy((CUdeviceptr)to, from, size);
}
ALSO(cuMemcpyDtoH_v2_ptds, cuMemcpyDtoH_v2);

API CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream)
{
    (void)stream;
    return cuMemcpy(to, from, size);
}
ALSO(cuMemcpyAsync_ptsz, cuMemcpyAsync);
ALSO(cuMemcpyDtoDAsync_v2, cuMemcpyAsync);
ALSO(cuMemcpyDtoDAsync_v2_ptsz, cuMemcpyAsync);

API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream)
{
    return cuMemcpyAsync(to, (CUdeviceptr)from, size, stream);
}
ALSO(cuMemcpyHtoDAsync_v2_ptsz, cuMemcpyHtoDAsync_v2);

API CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream)
{
    return cuMemcpyAsync((CUdeviceptr)to, from, size, stream);
}
ALSO(cuMemcpyDtoHAsync_v2_ptsz, cuMemcpyDtoHAsync_v2);

API CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count)
{
    CUcontext context;
    CUresult code = current_context(&context);
    if (code == CUDA_SUCCESS)
        memset((void *)to, value, count);
    return code;
}
ALSO(cuMemsetD8_v2_ptds, cuMemsetD8_v2);

API CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream)
{
    (void)stream;
    return cuMemsetD8_v2(to, value, count);
}
ALSO(cuMemsetD8Async_ptsz, cuMemsetD8Async);

API CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count)
{
    CUcontext context;
    CUresult code = current_context(&context);
    for (size_t number = 0; code == CUDA_SUCCESS && number < count; number++)
        ((unsigned *)to)[number] = value;
    return code;
}
ALSO(cuMemsetD32_v2_ptds, cuMemsetD32_v2);

API CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream)
{
    (void)stream;
    return cuMemsetD32_v2(to, value, count);
}
ALSO(cuMemsetD32Async_ptsz, cuMemsetD32Async);

/* ---- what a pointer is ---- */

enum {
    ATTRIBUTE_CONTEXT = 1,
    ATTRIBUTE_MEMORY_TYPE,
    ATTRIBUTE_DEVICE_POINTER,
    ATTRIBUTE_HOST_POINTER,
    ATTRIBUTE_IS_MANAGED = 8,
    ATTRIBUTE_DEVICE_ORDINAL,
    ATTRIBUTE_RANGE_START = 11,
    ATTRIBUTE_RANGE_SIZE,
    ATTRIBUTE_MAPPED
};

API CUresult cuPointerGetAttribute(void *out, int attribute, CUdeviceptr address)
{
    struct block block;
    CUresult code = check_initialised();
    if (code == CUDA_SUCCESS && !find_block(address, true, &block))
        code = CUDA_ERROR_INVALID_VALUE;
    if (code != CUDA_SUCCESS)
        return code;
    switch (attribute) {
    case ATTRIBUTE_CONTEXT:
        *(CUcontext *)out = block.context;
        break;
    case ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)out = block.is_host ? 1 : 2;
        break;
    case ATTRIBUTE_DEVICE_POINTER:
    case ATTRIBUTE_HOST_POINTER:
        *(CUdeviceptr *)out = address;
        break;
    case ATTRIBUTE_IS_MANAGED:
        *(unsigned char *)out = block.is_managed;
        break;
    case ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)out = block.device;
        break;
    case ATTRIBUTE_RANGE_START:
        *(CUdeviceptr *)out = block.address;
        break;
    case ATTRIBUTE_RANGE_SIZE:
        *(size_t *)out = block.size;
        break;
    case ATTRIBUTE_MAPPED:
        *(unsigned char *)out = 1;
        break;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}

API CUresult cuPointerGetAttributes(unsigned count, const int *wanted, void **out,
                                    CUdeviceptr address)
{
    for (unsigned number = 0; number < count; number++)
        (void)cuPointerGetAttribute(out[number], wanted[number], address);
    return check_initialised();
}
