/*
 * CUDA arrays.  The driver tells what an array takes only for sparse ones, which have no memory of
 * their own: so it is computed, without the padding that the hardware wants.
 */
#include "allocating.h"
#include "cuda_functions.h"

/* Of one channel; 0: the format is compressed in blocks of 4 x 4. */
static uint64_t bits_of_channel(int format)
{
    switch (format) {
    case 0x01: /* 8 bits, unsigned and signed; normalised formats of 1, 2 and 4 channels */
    case 0x08:
    case 0xc0:
    case 0xc1:
    case 0xc2:
    case 0xc6:
    case 0xc7:
    case 0xc8:
        return 8;
    case 0xb0: /* NV12: a plane of full and one of quarter size, with two channels */
        return 12;
    case 0x02: /* 16 bits, half floats and normalised formats among them */
    case 0x09:
    case 0x10:
    case 0xc3:
    case 0xc4:
    case 0xc5:
    case 0xc9:
    case 0xca:
    case 0xcb:
        return 16;
    default:
        return format >= 0x91 && format <= 0x9e ? 0 : 32;
    }
}

/* BC1 and BC4 take 8 bytes for a block, the others 16. */
static uint64_t bytes_of_block(int format)
{
    return format == 0x91 || format == 0x92 || format == 0x97 || format == 0x98 ? 8 : 16;
}

static uint64_t at_least_one(uint64_t size)
{
    return size == 0 ? 1 : size;
}

/* All there can be, where that is more. */
static uint64_t multiply(uint64_t one, uint64_t other)
{
    uint64_t product;
    return __builtin_mul_overflow(one, other, &product) ? UINT64_MAX : product;
}

static uint64_t bytes_of_level(const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned level)
{
    const unsigned layered = CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP;
    uint64_t width = at_least_one(array->Width >> level);
    uint64_t height = at_least_one(array->Height >> level);
    /* The depth of layers is how many there are. */
    uint64_t depth = (array->Flags & layered) != 0 ? at_least_one(array->Depth)
                                                   : at_least_one(array->Depth >> level);
    uint64_t bits = bits_of_channel(array->Format);
    if (bits == 0)
        return multiply(multiply(width / 4 + (width % 4 != 0), height / 4 + (height % 4 != 0)),
                        multiply(depth, bytes_of_block(array->Format)));
    uint64_t points = multiply(multiply(width, height), depth);
    uint64_t point_bits = bits * (array->Format == 0xb0 ? 1 : at_least_one(array->NumChannels));
    return point_bits % 8 == 0 ? multiply(points, point_bits / 8)
                               : multiply(points, point_bits) / 8;
}

static uint64_t bytes_of_levels(const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned levels)
{
    const unsigned without_memory = CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING;
    const unsigned most_levels = 32;
    uint64_t bytes = 0;
    if (array == NULL || (array->Flags & without_memory) != 0)
        return 0;
    for (unsigned level = 0; level < levels && level < most_levels; level++) {
        if (__builtin_add_overflow(bytes, bytes_of_level(array, level), &bytes))
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
