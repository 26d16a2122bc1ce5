/*
 * Linear and managed memory, and arrays.  Managed memory counts in full, though it need not be on
 * the device.
 *
 * The driver says what an array takes only for sparse ones, which have no memory of their own: so
 * it is computed from the size of a point, without the padding that the hardware wants.
 */
#include "hooks.h"
#include "memory.h"

/* The largest number if the product is larger. */
static uint64_t multiply(uint64_t one, uint64_t other)
{
    uint64_t product;
    return __builtin_mul_overflow(one, other, &product) ? UINT64_MAX : product;
}

/* A row of pitched memory, with the padding that it has on today's devices. */
static uint64_t pitched(uint64_t width)
{
    const uint64_t unit = 512;
    return width > UINT64_MAX - unit ? UINT64_MAX : (width + unit - 1) / unit * unit;
}

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

static uint64_t bytes_of_flat(const CUDA_ARRAY_DESCRIPTOR *array)
{
    if (array == NULL)
        return 0;
    const CUDA_ARRAY3D_DESCRIPTOR same = {array->Width,  array->Height,      0,
                                          array->Format, array->NumChannels, 0};
    return bytes_of_levels(&same, 1);
}

/* ---- The hooks ------------------------------------------------------------------------- */

#define ALLOCATION_HOOK(name, parameters, arguments, size, space, managed)                         \
    CUresult name parameters                                                                       \
    {                                                                                              \
        struct hr_allocation allocation = {.bytes = size, .is_managed = managed};                  \
        CUresult result = hr_begin_allocation(&allocation);                                        \
        if (result != CUDA_SUCCESS)                                                                \
            return result;                                                                         \
        result = HR_CUDA(name) arguments;                                                          \
        return hr_end_allocation(&allocation, result, space,                                       \
                                 result == CUDA_SUCCESS ? (uintptr_t)*out : 0);                    \
    }
ALLOCATION_HOOK(cuMemAlloc_v2, (CUdeviceptr * out, size_t bytes), (out, bytes), bytes, HR_POINTER,
                false)
ALLOCATION_HOOK(cuMemAllocManaged, (CUdeviceptr * out, size_t bytes, unsigned flags),
                (out, bytes, flags), bytes, HR_POINTER, true)
ALLOCATION_HOOK(cuMemAllocPitch_v2,
                (CUdeviceptr * out, size_t *pitch, size_t width, size_t height, unsigned element),
                (out, pitch, width, height, element), multiply(pitched(width), height), HR_POINTER,
                false)
ALLOCATION_HOOK(cuArrayCreate_v2, (CUarray * out, const CUDA_ARRAY_DESCRIPTOR *array), (out, array),
                bytes_of_flat(array), HR_ARRAY, false)
ALLOCATION_HOOK(cuArray3DCreate_v2, (CUarray * out, const CUDA_ARRAY3D_DESCRIPTOR *array),
                (out, array), bytes_of_levels(array, 1), HR_ARRAY, false)
ALLOCATION_HOOK(cuMipmappedArrayCreate,
                (CUmipmappedArray * out, const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned levels),
                (out, array, levels), bytes_of_levels(array, levels), HR_MIPMAPPED, false)

#define FREE_HOOK(name, parameters, arguments, space, key)                                         \
    CUresult name parameters                                                                       \
    {                                                                                              \
        struct hr_freeing freeing;                                                                 \
        hr_begin_freeing(&freeing, space, key);                                                    \
        return hr_end_freeing(&freeing, HR_CUDA(name) arguments);                                  \
    }
FREE_HOOK(cuMemFree_v2, (CUdeviceptr pointer), (pointer), HR_POINTER, pointer)
FREE_HOOK(cuMemFreeAsync, (CUdeviceptr pointer, CUstream stream), (pointer, stream), HR_POINTER,
          pointer)
FREE_HOOK(cuMemFreeAsync_ptsz, (CUdeviceptr pointer, CUstream stream), (pointer, stream),
          HR_POINTER, pointer)
FREE_HOOK(cuArrayDestroy, (CUarray array), (array), HR_ARRAY, (uintptr_t)array)
FREE_HOOK(cuMipmappedArrayDestroy, (CUmipmappedArray array), (array), HR_MIPMAPPED,
          (uintptr_t)array)
