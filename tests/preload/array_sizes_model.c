/*
 * What each array is charged for: `array_sizes_model`. The hooks of arrays.c before a till that
 * writes down how many bytes it is asked for and refuses them, so that no driver is called. It ends
 * the program if one is wrong.
 */
#include <stdio.h>
#include <stdlib.h>

#include "../../csrc/preload/allocating.h"
#include "../../csrc/preload/cuda_functions.h"

#define MUST_SHOW "asked for %llu bytes", (unsigned long long)asked
#include "must.h"

/* ---- The till ------------------------------------------------------------------------- */

static uint64_t asked;
struct hr_cuda_functions hr_cuda;

CUresult hr_begin_allocation(struct hr_allocation *allocation, uint64_t bytes)
{
    (void)allocation;
    asked = bytes;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static void never(void)
{
    fprintf(stderr, "what was refused goes on\n");
    exit(1);
}

CUresult hr_end_allocation(const struct hr_allocation *allocation, CUresult result,
                           enum hr_space space, uint64_t key)
{
    (void)allocation, (void)space, (void)key;
    never();
    return result;
}

void hr_begin_freeing(struct hr_freeing *freeing, enum hr_space space, uint64_t key)
{
    (void)freeing, (void)space, (void)key;
    never();
}

CUresult hr_end_freeing(const struct hr_freeing *freeing, CUresult result)
{
    (void)freeing;
    never();
    return result;
}

/* ---- Arrays --------------------------------------------------------------------------- */

static uint64_t size_of(CUDA_ARRAY3D_DESCRIPTOR array)
{
    CUarray out;
    asked = 12345;
    MUST(cuArray3DCreate_v2(&out, &array) == CUDA_ERROR_OUT_OF_MEMORY);
    return asked;
}

static uint64_t size_of_levels(CUDA_ARRAY3D_DESCRIPTOR array, unsigned levels)
{
    CUmipmappedArray out;
    asked = 12345;
    MUST(cuMipmappedArrayCreate(&out, &array, levels) == CUDA_ERROR_OUT_OF_MEMORY);
    return asked;
}

enum { BYTE = 0x01, FLOAT = 0x20, NV12 = 0xb0, BC1 = 0x91, BC7 = 0x9e };

/* Bits of a point of one channel, by CUarray_format; 0 where there is no such format. */
static const struct {
    int first, last;
    unsigned bits;
} formats[] = {
    {0x01, 0x01, 8},  {0x02, 0x02, 16}, {0x03, 0x03, 32}, {0x08, 0x08, 8},  {0x09, 0x09, 16},
    {0x0a, 0x0a, 32}, {0x10, 0x10, 16}, {0x20, 0x20, 32}, {0xc0, 0xc2, 8},  {0xc3, 0xc5, 16},
    {0xc6, 0xc8, 8},  {0xc9, 0xcb, 16}, {0x90, 0x90, 32}, {0x9f, 0x9f, 32},
};

static void check_formats(void)
{
    for (size_t at = 0; at < sizeof formats / sizeof formats[0]; at++) {
        for (int format = formats[at].first; format <= formats[at].last; format++) {
            CUDA_ARRAY3D_DESCRIPTOR array = {.Width = 48, .Height = 10, .Format = format};
            for (array.NumChannels = 0; array.NumChannels <= 4; array.NumChannels++) {
                unsigned channels = array.NumChannels == 0 ? 1 : array.NumChannels;
                MUST(size_of(array) == 480 * formats[at].bits / 8 * channels);
            }
        }
    }
    /* A plane of points and one of a quarter as many, with two channels: never more for channels.
     */
    CUDA_ARRAY3D_DESCRIPTOR array = {.Width = 48, .Height = 10, .Format = NV12};
    for (array.NumChannels = 0; array.NumChannels <= 3; array.NumChannels++)
        MUST(size_of(array) == 480 * 3 / 2);
    array = (CUDA_ARRAY3D_DESCRIPTOR){.Width = 3, .Format = NV12, .NumChannels = 3};
    MUST(size_of(array) == 4);
}

static void check_blocks(void)
{
    for (int format = BC1; format <= BC7; format++) {
        uint64_t each =
            format == 0x91 || format == 0x92 || format == 0x97 || format == 0x98 ? 8 : 16;
        CUDA_ARRAY3D_DESCRIPTOR array = {.Width = 8, .Height = 12, .Format = format};
        MUST(size_of(array) == 2 * 3 * each);
        array.Width = 9;
        MUST(size_of(array) == 3 * 3 * each);
        array.Height = 13;
        MUST(size_of(array) == 3 * 4 * each);
        array.Depth = 5;
        MUST(size_of(array) == 3 * 4 * 5 * each);
        /* Levels of 9 x 13, 4 x 6, 2 x 3 and 1 x 1, the depth of layers staying as it is. */
        array.Flags = CUDA_ARRAY3D_LAYERED;
        MUST(size_of_levels(array, 4) == (12 + 2 + 1 + 1) * 5 * each);
        array.Flags = 0;
        MUST(size_of_levels(array, 4) == (12 * 5 + 2 * 2 + 1 + 1) * each);
    }
}

static void check_shapes(void)
{
    CUDA_ARRAY3D_DESCRIPTOR array = {.Width = 100, .Format = FLOAT, .NumChannels = 1};
    MUST(size_of(array) == 400);
    array.Height = 7;
    MUST(size_of(array) == 2800);
    array.Depth = 3;
    MUST(size_of(array) == 8400);
    MUST(size_of_levels(array, 0) == 0);
    MUST(size_of_levels(array, 1) == 8400);
    MUST(size_of_levels(array, 2) == 8400 + 50 * 3 * 1 * 4);
    MUST(size_of_levels(array, 3) == 8400 + (50 * 3 + 25) * 4);
    /* Levels behind the last one, of a point each; more than the width of a number has none. */
    MUST(size_of_levels(array, 9) == 8400 + (50 * 3 + 25 + 12 + 6 + 3 + 1 + 1 + 1) * 4);
    MUST(size_of_levels(array, 32) == size_of_levels(array, 1000));
    MUST(size_of_levels(array, 32) == size_of_levels(array, 9) + 23 * 4);
    const unsigned layers[] = {CUDA_ARRAY3D_LAYERED, CUDA_ARRAY3D_CUBEMAP};
    for (int at = 0; at < 2; at++) {
        array.Flags = layers[at];
        MUST(size_of_levels(array, 2) == 8400 + 50 * 3 * 3 * 4);
    }
    const unsigned without[] = {CUDA_ARRAY3D_SPARSE, CUDA_ARRAY3D_DEFERRED_MAPPING};
    for (int at = 0; at < 2; at++) {
        array.Flags = without[at];
        MUST(size_of(array) == 0);
        MUST(size_of_levels(array, 2) == 0);
    }
    MUST(size_of((CUDA_ARRAY3D_DESCRIPTOR){.Format = BYTE, .NumChannels = 1}) == 1);
    array = (CUDA_ARRAY3D_DESCRIPTOR){.Format = FLOAT, .NumChannels = 1, .Depth = 6};
    array.Flags = CUDA_ARRAY3D_LAYERED;
    MUST(size_of(array) == 24);
    array.Depth = 0;
    MUST(size_of(array) == 4);
}

/* More bytes than can be counted are all there can be, not few. */
static void check_overflows(void)
{
    CUDA_ARRAY3D_DESCRIPTOR array = {.Format = FLOAT, .NumChannels = 4};
    const uint64_t large = UINT64_C(1) << 63;
    array.Width = large;
    MUST(size_of(array) == UINT64_MAX);
    array.Width = large - 1, array.Format = BYTE, array.NumChannels = 1;
    MUST(size_of(array) == large - 1);
    array.Height = 3;
    MUST(size_of(array) == UINT64_MAX);
    array.Height = 1, array.Depth = 3;
    MUST(size_of(array) == UINT64_MAX);
    array.Depth = 1;
    MUST(size_of_levels(array, 2) == large - 1 + (large - 1) / 2);
    MUST(size_of_levels(array, 32) < UINT64_MAX);
    array.Height = 2;
    array.Flags = 0;
    MUST(size_of_levels(array, 8) == UINT64_MAX);
    array = (CUDA_ARRAY3D_DESCRIPTOR){.Width = large, .Height = large, .Format = BC7};
    MUST(size_of(array) == UINT64_MAX);
}

static void check_plain_arrays(void)
{
    CUarray out;
    CUDA_ARRAY_DESCRIPTOR array = {.Width = 10, .Height = 20, .Format = FLOAT, .NumChannels = 2};
    MUST(cuArrayCreate_v2(&out, &array) == CUDA_ERROR_OUT_OF_MEMORY && asked == 1600);
    array.Height = 0;
    MUST(cuArrayCreate_v2(&out, &array) == CUDA_ERROR_OUT_OF_MEMORY && asked == 80);
    MUST(cuArrayCreate_v2(&out, NULL) == CUDA_ERROR_OUT_OF_MEMORY && asked == 0);
    MUST(cuArray3DCreate_v2(&out, NULL) == CUDA_ERROR_OUT_OF_MEMORY && asked == 0);
}

int main(void)
{
    check_formats();
    check_blocks();
    check_shapes();
    check_overflows();
    check_plain_arrays();
    return 0;
}
