/*
 * Linear and managed memory, and arrays.  Managed memory counts in full, though it need not be on
 * the device.
 *
 * The driver says what an array takes only for sparse ones, which have no memory of their own: so
 * it is computed from the size of a point, without the padding that the hardware wants.
 */
#include "hooks.h"
#include "memory.h"

/* The padding of a row of pitched memory on today's devices; the driver then says. */
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
    allocation.is_managed = true;
    result = HR_CUDA(cuMemAllocManaged)(out, bytes, flags);
    return hr_end_allocation(&allocation, result, HR_POINTER, result == CUDA_SUCCESS ? *out : 0);
}

/* The largest number if the product is larger. */
static uint64_t multiply(uint64_t one, uint64_t other)
{
    uint64_t product;
    return __builtin_mul_overflow(one, other, &product) ? UINT64_MAX : product;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height,
                            unsigned element)
{
    struct hr_allocation allocation;
    uint64_t padded = width > UINT64_MAX - USUAL_PITCH
                          ? UINT64_MAX
                          : (width + USUAL_PITCH - 1) / USUAL_PITCH * USUAL_PITCH;
    CUresult result = hr_begin_allocation(&allocation, multiply(padded, height));
    if (result != CUDA_SUCCESS)
        return result;
    result = HR_CUDA(cuMemAllocPitch_v2)(out, pitch, width, height, element);
    if (result == CUDA_SUCCESS) {
        result = hr_adjust_allocation(&allocation, multiply(*pitch, height));
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

/* ---- Arrays ---------------------------------------------------------------------------- */

/* Of one channel; an unknown format counts one byte. */
static uint64_t bytes_of_channel(int format)
{
    switch (format) {
    case 0x02: /* 16 bits, with and without sign, and half floats */
    case 0x09:
    case 0x10:
        return 2;
    case 0x03: /* 32 bits, with and without sign, and floats */
    case 0x0a:
    case 0x20:
        return 4;
    default:
        return 1;
    }
}

static uint64_t at_least_one(uint64_t size)
{
    return size == 0 ? 1 : size;
}

static uint64_t bytes_of_levels(const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned levels)
{
    const unsigned without_memory = CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING;
    const unsigned most_levels = 32;
    uint64_t bytes = 0;
    if (array == NULL || (array->Flags & without_memory) != 0)
        return 0;
    uint64_t point = multiply(bytes_of_channel(array->Format), at_least_one(array->NumChannels));
    /* The depth of layers is their number, which is that of all levels; of others it is a small
     * part of the sum. */
    uint64_t column = multiply(point, at_least_one(array->Depth));
    for (unsigned level = 0; level < levels && level < most_levels; level++) {
        uint64_t points =
            multiply(at_least_one(array->Width >> level), at_least_one(array->Height >> level));
        if (__builtin_add_overflow(bytes, multiply(points, column), &bytes))
            return UINT64_MAX;
    }
    return bytes;
}

CUresult cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *array)
{
    struct hr_allocation allocation;
    CUDA_ARRAY3D_DESCRIPTOR same = {0};
    if (array != NULL)
        same = (CUDA_ARRAY3D_DESCRIPTOR){array->Width,  array->Height,      0,
                                         array->Format, array->NumChannels, 0};
    CUresult result = hr_begin_allocation(&allocation, bytes_of_levels(&same, array != NULL));
    if (result != CUDA_SUCCESS)
        return result;
    result = HR_CUDA(cuArrayCreate_v2)(out, array);
    return hr_end_allocation(&allocation, result, HR_ARRAY,
                             result == CUDA_SUCCESS ? (uintptr_t)*out : 0);
}

CUresult cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *array)
{
    struct hr_allocation allocation;
    CUresult result = hr_begin_allocation(&allocation, bytes_of_levels(array, 1));
    if (result != CUDA_SUCCESS)
        return result;
    result = HR_CUDA(cuArray3DCreate_v2)(out, array);
    return hr_end_allocation(&allocation, result, HR_ARRAY,
                             result == CUDA_SUCCESS ? (uintptr_t)*out : 0);
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *array,
                                unsigned levels)
{
    struct hr_allocation allocation;
    CUresult result = hr_begin_allocation(&allocation, bytes_of_levels(array, levels));
    if (result != CUDA_SUCCESS)
        return result;
    result = HR_CUDA(cuMipmappedArrayCreate)(out, array, levels);
    return hr_end_allocation(&allocation, result, HR_MIPMAPPED,
                             result == CUDA_SUCCESS ? (uintptr_t)*out : 0);
}

CUresult cuArrayDestroy(CUarray array)
{
    struct hr_freeing freeing;
    hr_begin_freeing(&freeing, HR_ARRAY, (uintptr_t)array);
    return hr_end_freeing(&freeing, HR_CUDA(cuArrayDestroy)(array));
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    struct hr_freeing freeing;
    hr_begin_freeing(&freeing, HR_MIPMAPPED, (uintptr_t)array);
    return hr_end_freeing(&freeing, HR_CUDA(cuMipmappedArrayDestroy)(array));
}
