#include "fake.h"

#include <stdlib.h>

extern CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t size);

struct array {
    int device;
    uint64_t size;
    CUdeviceptr address; /* of the block that its memory is */
};

/* Bytes of one element: CU_AD_FORMAT_UNSIGNED_INT8 is 1, HALF 0x10, FLOAT 0x20. */
static uint64_t element_bytes(int format, unsigned channels)
{
    uint64_t bytes = format == 0x01 || format == 0x08                     ? 1
                     : format == 0x02 || format == 0x09 || format == 0x10 ? 2
                                                                          : 4;
    return bytes * channels;
}

static uint64_t level_bytes(CUDA_ARRAY3D_DESCRIPTOR wanted, uint64_t width, uint64_t height,
                            uint64_t depth)
{
    height = height == 0 ? 1 : height;
    depth = depth == 0 ? 1 : depth;
    /* BC1 to BC7: blocks of 4 x 4, of 8 bytes in BC1 and BC4, of 16 in the others. */
    int format = wanted.Format;
    if (format >= 0x91 && format <= 0x9e)
        return (width + 3) / 4 * ((height + 3) / 4) * depth *
               (format <= 0x92 || format == 0x97 || format == 0x98 ? 8 : 16);
    return width * height * depth * element_bytes(format, wanted.NumChannels);
}

static CUresult make_array(CUarray *out, CUDA_ARRAY3D_DESCRIPTOR wanted, unsigned levels)
{
    uint64_t width = wanted.Width, height = wanted.Height, depth = wanted.Depth, bytes = 0;
    for (unsigned level = 0; level < levels; level++) {
        bytes += level_bytes(wanted, width, height, depth);
        width = width > 1 ? width / 2 : 1;
        height /= height > 1 ? 2 : 1;
        depth /= depth > 1 ? 2 : 1;
    }
    struct array *array = calloc(1, sizeof *array);
    array->size = bytes;
    CUresult code = wanted.NumChannels == 0 ? CUDA_ERROR_INVALID_VALUE
                                            : cuMemAlloc_v2(&array->address, array->size);
    if (code == CUDA_SUCCESS)
        *out = array;
    else
        free(array);
    return code;
}

API CUresult cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *wanted)
{
    return make_array(out, *wanted, 1);
}

API CUresult cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *wanted)
{
    CUDA_ARRAY3D_DESCRIPTOR all = {.Width = wanted->Width,
                                   .Height = wanted->Height,
                                   .Format = wanted->Format,
                                   .NumChannels = wanted->NumChannels};
    return make_array(out, all, 1);
}

API CUresult cuMipmappedArrayCreate(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *wanted,
                                    unsigned levels)
{
    return make_array(out, *wanted, levels);
}

API CUresult cuArrayDestroy(CUarray array)
{
    CUresult code = check_initialised();
    if (code == CUDA_SUCCESS)
        code = array == NULL ? CUDA_ERROR_INVALID_HANDLE : free_block(array->address);
    /* A context that has ended took the memory; the handle ends here all the same. */
    free(code == CUDA_ERROR_NOT_INITIALIZED ? NULL : array);
    return code;
}
ALSO(cuMipmappedArrayDestroy, cuArrayDestroy);
