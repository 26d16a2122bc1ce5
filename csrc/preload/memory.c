/*
 * Linear and managed memory.  Managed memory counts in full, though it need not be on the device.
 */
#include "allocating.h"
#include "cuda_functions.h"

/* What a row of pitched memory is padded to on today's devices; the driver then tells. */
enum { USUAL_PITCH = 512 };

CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes)
{
    struct hr_allocation allocation;
    CUresult result = hr_begin_allocation(&allocation, bytes);
    if (result != CUDA_SUCCESS)
        return result;
    result = HR_CUDA(cuMemAlloc_v2)(out, bytes);
    return hr_end_allocation(&allocation, result, HR_POINTER, result == CUDA_SUCCESS ? *out : 0);
}

CUresult cuMemAllocManaged(CUdeviceptr *out, size_t bytes, unsigned flags)
{
    struct hr_allocation allocation;
    CUresult result = hr_begin_allocation(&allocation, bytes);
    if (result != CUDA_SUCCESS)
        return result;
    result = HR_CUDA(cuMemAllocManaged)(out, bytes, flags);
    return hr_end_allocation(&allocation, result, HR_POINTER, result == CUDA_SUCCESS ? *out : 0);
}

/* Bytes of `height` rows; all there can be where that is more. */
static uint64_t bytes_of_rows(uint64_t row, uint64_t height)
{
    uint64_t bytes;
    return __builtin_mul_overflow(row, height, &bytes) ? UINT64_MAX : bytes;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height,
                            unsigned element)
{
    struct hr_allocation allocation;
    uint64_t padded = width > UINT64_MAX - USUAL_PITCH
                          ? UINT64_MAX
                          : (width + USUAL_PITCH - 1) / USUAL_PITCH * USUAL_PITCH;
    CUresult result = hr_begin_allocation(&allocation, bytes_of_rows(padded, height));
    if (result != CUDA_SUCCESS)
        return result;
    result = HR_CUDA(cuMemAllocPitch_v2)(out, pitch, width, height, element);
    if (result == CUDA_SUCCESS) {
        result = hr_adjust_allocation(&allocation, bytes_of_rows(*pitch, height));
        if (result != CUDA_SUCCESS)
            HR_CUDA(cuMemFree_v2)(*out);
    }
    return hr_end_allocation(&allocation, result, HR_POINTER, result == CUDA_SUCCESS ? *out : 0);
}

CUresult cuMemFree_v2(CUdeviceptr pointer)
{
    struct hr_freeing freeing;
    hr_begin_freeing(&freeing, HR_POINTER, pointer);
    return hr_end_freeing(&freeing, HR_CUDA(cuMemFree_v2)(pointer));
}
