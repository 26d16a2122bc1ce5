/* What is done with memory: copies and fills. */
#include "fake.h"

#include <string.h>

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
