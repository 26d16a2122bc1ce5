/*
 * Each way to allocate, with a driver and a region that grant, refuse and fail: what the region
 * counts is what the driver has given out.  `allocations_model` ends the program where it is not.
 */
#include <stdlib.h>

/* Where the books find no memory to grow. */
static int has_no_memory;
static void *allocate_or_not(size_t count, size_t size)
{
    return has_no_memory ? NULL : calloc(count, size);
}
#define calloc allocate_or_not
#include "../../csrc/preload/books.c"
#undef calloc

#include "numbered_memory.h"

/* ---- Ways to allocate ----------------------------------------------------------------- */

static CUresult make_linear(uint64_t *out)
{
    CUdeviceptr pointer = 0;
    CUresult result = cuMemAlloc_v2(&pointer, SIZE);
    *out = pointer;
    return result;
}

static CUresult make_managed(uint64_t *out)
{
    CUdeviceptr pointer = 0;
    CUresult result = cuMemAllocManaged(&pointer, SIZE, 1);
    *out = pointer;
    return result;
}

static CUresult make_pitch(uint64_t *out)
{
    CUdeviceptr pointer = 0;
    size_t pitch;
    CUresult result = cuMemAllocPitch_v2(&pointer, &pitch, WIDTH, HEIGHT, 4);
    *out = pointer;
    return result;
}

static CUresult make_array(uint64_t *out)
{
    const CUDA_ARRAY_DESCRIPTOR array = {96, 32, 0x20, 1};
    CUarray made = NULL;
    CUresult result = cuArrayCreate_v2(&made, &array);
    *out = (uintptr_t)made;
    return result;
}

static CUresult make_array3d(uint64_t *out)
{
    const CUDA_ARRAY3D_DESCRIPTOR array = {96, 32, 0, 0x20, 1, 0};
    CUarray made = NULL;
    CUresult result = cuArray3DCreate_v2(&made, &array);
    *out = (uintptr_t)made;
    return result;
}

static CUresult make_mipmapped(uint64_t *out)
{
    const CUDA_ARRAY3D_DESCRIPTOR array = {96, 32, 0, 0x20, 1, 0};
    CUmipmappedArray made = NULL;
    CUresult result = cuMipmappedArrayCreate(&made, &array, 2);
    *out = (uintptr_t)made;
    return result;
}

static CUresult make_physical(uint64_t *out)
{
    CUmemGenericAllocationHandle handle = 0;
    const CUmemAllocationProp properties = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = chosen}};
    CUresult result = cuMemCreate(&handle, SIZE, &properties, 0);
    *out = handle;
    return result;
}

#define MAKE_ASYNC(name, call)                                                                     \
    static CUresult name(uint64_t *out)                                                            \
    {                                                                                              \
        CUdeviceptr pointer = 0;                                                                   \
        CUresult result = call;                                                                    \
        *out = pointer;                                                                            \
        return result;                                                                             \
    }
MAKE_ASYNC(make_async, cuMemAllocAsync(&pointer, SIZE, NULL))
MAKE_ASYNC(make_async_ptsz, cuMemAllocAsync_ptsz(&pointer, SIZE, NULL))
MAKE_ASYNC(make_from_pool, cuMemAllocFromPoolAsync(&pointer, SIZE, &defaults[chosen], NULL))
MAKE_ASYNC(make_from_pool_ptsz,
           cuMemAllocFromPoolAsync_ptsz(&pointer, SIZE, &defaults[chosen], NULL))

static CUresult end_linear(uint64_t key)
{
    return cuMemFree_v2(key);
}

static CUresult end_async(uint64_t key)
{
    return cuMemFreeAsync(key, NULL);
}

static CUresult end_async_ptsz(uint64_t key)
{
    return cuMemFreeAsync_ptsz(key, NULL);
}

static CUresult end_array(uint64_t key)
{
    return cuArrayDestroy((CUarray)(uintptr_t)key);
}

static CUresult end_mipmapped(uint64_t key)
{
    return cuMipmappedArrayDestroy((CUmipmappedArray)(uintptr_t)key);
}

static CUresult end_physical(uint64_t key)
{
    return cuMemRelease(key);
}

enum kind { OF_CONTEXT, OF_DEVICE, OF_POOL };
static const struct way {
    const char *name;
    CUresult (*make)(uint64_t *out);
    CUresult (*end)(uint64_t key);
    uint64_t bytes;
    enum kind kind;
    CUstream stream; /* that a default one means */
} ways[] = {
    {"linear", make_linear, end_linear, SIZE, OF_CONTEXT, NULL},
    {"managed", make_managed, end_linear, SIZE, OF_CONTEXT, NULL},
    {"linear, freed async", make_linear, end_async, SIZE, OF_CONTEXT, NULL},
    {"rows", make_pitch, end_linear, 1024 * HEIGHT, OF_CONTEXT, NULL},
    {"array", make_array, end_array, SIZE, OF_CONTEXT, NULL},
    {"3D array", make_array3d, end_array, SIZE, OF_CONTEXT, NULL},
    {"mipmapped array", make_mipmapped, end_mipmapped, SIZE / 4 * 5, OF_CONTEXT, NULL},
    {"physical", make_physical, end_physical, SIZE, OF_DEVICE, NULL},
    {"async", make_async, end_async, SIZE, OF_POOL, NULL},
    {"async, freed at once", make_async, end_linear, SIZE, OF_POOL, NULL},
    {"async, ptsz", make_async_ptsz, end_async_ptsz, SIZE, OF_POOL, CU_STREAM_PER_THREAD},
    {"from a pool", make_from_pool, end_async, SIZE, OF_POOL, NULL},
    {"from a pool, ptsz", make_from_pool_ptsz, end_async_ptsz, SIZE, OF_POOL, CU_STREAM_PER_THREAD},
};
enum { WAYS = sizeof ways / sizeof *ways };

/* ---- Checks --------------------------------------------------------------------------- */

static void check_counting(const struct way *way)
{
    uint64_t first = 0, second = 0;
    for (CUdevice device = 0; device < DEVICES; device++) {
        begin_on(device);
        MUST(way->make(&first) == CUDA_SUCCESS && there[device] == way->bytes && calls == 1);
        if (device == NO_ROW_DEVICE) {
            MUST(charged[0] == 0 && charged[1] == 0);
            MUST(way->end(first) == CUDA_SUCCESS && there[device] == 0 && charged[0] == 0);
            continue;
        }
        MUST_AGREE();
        MUST(way->make(&second) == CUDA_SUCCESS && charged[1 - device] == 2 * way->bytes);
        MUST_AGREE();
        /* A driver that refuses for now still has it. */
        next_result = CUDA_ERROR_NOT_INITIALIZED;
        MUST(way->end(first) == CUDA_ERROR_NOT_INITIALIZED && there[device] == 2 * way->bytes);
        MUST_AGREE();
        MUST(way->end(first) == CUDA_SUCCESS && there[device] == way->bytes);
        MUST_AGREE();
        /* What was freed already is not ours any more. */
        MUST(way->end(first) == CUDA_ERROR_INVALID_VALUE);
        MUST_AGREE();
        MUST(way->end(second) == CUDA_SUCCESS && there[device] == 0);
        MUST_AGREE();
    }
    MUST(complaints == 0 && waits == 0);
}

/* It went away with something that the library knows nothing of. */
static void check_gone(const struct way *way)
{
    static const CUresult gone[] = {CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_CONTEXT_IS_DESTROYED};
    uint64_t key = 0;
    for (size_t at = 0; way->end != end_physical && at < sizeof gone / sizeof *gone; at++) {
        begin_on(0);
        MUST(way->make(&key) == CUDA_SUCCESS);
        next_result = gone[at];
        MUST(way->end(key) == gone[at] && there[0] == 0);
        MUST_AGREE();
    }
}

static void check_refusals(const struct way *way)
{
    static const CUresult results[] = {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_INVALID_VALUE};
    uint64_t key = 0;
    for (CUdevice device = 0; device < DEVICES; device++) {
        for (int at = 0; at < 2; at++) {
            /* By the driver. */
            begin_on(device);
            next_result = results[at];
            MUST(way->make(&key) == results[at] && calls == 1 && there[device] == 0);
            MUST_AGREE();
        }
        if (device == NO_ROW_DEVICE)
            continue;
        /* By the region: the driver is not asked. */
        begin_on(device);
        limits[1 - device] = way->bytes - 1;
        MUST(way->make(&key) == CUDA_ERROR_OUT_OF_MEMORY && calls == 0);
        MUST_AGREE();
        limits[1 - device] = way->bytes;
        MUST(way->make(&key) == CUDA_SUCCESS);
        MUST_AGREE();
        MUST(way->make(&key) == CUDA_ERROR_OUT_OF_MEMORY && calls == 1);
        MUST_AGREE();
    }
    begin_on(0);
    is_refused = true;
    MUST(way->make(&key) == CUDA_ERROR_NOT_PERMITTED && calls == 0);
    MUST_AGREE();
    /* A pool that keeps what nobody uses gives it up first. */
    begin_on(0);
    MUST(make_async(&key) == CUDA_SUCCESS);
    kept = 8 * SIZE;
    defaults[0].held += kept;
    there[0] += kept;
    hr_settle_pools();
    MUST_AGREE();
    limits[1] = 9 * SIZE;
    MUST(way->make(&key) == CUDA_SUCCESS && there[0] == (uint64_t)SIZE + way->bytes + kept);
    MUST_AGREE();
}

static void check_circumstances(const struct way *way)
{
    uint64_t key = 0;
    begin_on(0);
    hr_holds = HR_HOLD_SUSPENDED | HR_HOLD_LIMITED;
    MUST(way->make(&key) == CUDA_SUCCESS && waits == 1);
    hr_holds = ~(unsigned)HR_HOLD_SUSPENDED;
    MUST(way->make(&key) == CUDA_SUCCESS && waits == 1 && attached >= 2);
    MUST_AGREE();
    if (way->kind == OF_CONTEXT || way->make == make_async || way->make == make_async_ptsz) {
        /* Without a context the driver says so, or gives what nobody counts. */
        begin_on(0);
        current = NULL;
        is_uncounted = true;
        MUST(way->make(&key) == CUDA_SUCCESS && charged[1] == 0 && calls == 1 && changes[1] == 0);
    }
    if (way->kind == OF_POOL) {
        /* What is captured is a node of a graph; and which stream that is. */
        begin_on(0);
        MUST(way->make(&key) == CUDA_SUCCESS && asked_stream == NULL);
        is_capturing = is_uncounted = true;
        limits[1] = SIZE;
        MUST(way->make(&key) == CUDA_SUCCESS && charged[1] == SIZE && changes[1] == 0);
        is_capturing = is_uncounted = false;
        MUST(way->make(&key) == CUDA_ERROR_OUT_OF_MEMORY && asked_stream == way->stream);
    }
    /* There is no memory to note it: the program has it, and it is not counted. */
    begin_on(0);
    has_no_memory = true;
    MUST(way->make(&key) == CUDA_SUCCESS && complaints == 1 && changes[1] == 0);
    MUST(charged[1] == (way->kind == OF_POOL ? way->bytes : 0));
    has_no_memory = false;
    /* The driver freed one unseen, and gives its number again. */
    begin_on(0);
    MUST(way->make(&key) == CUDA_SUCCESS);
    drop(find_block(key));
    next_key = key;
    MUST(way->make(&key) == CUDA_SUCCESS && there[0] == way->bytes);
    MUST_AGREE();
    MUST(way->end(key) == CUDA_SUCCESS && there[0] == 0);
    MUST_AGREE();
}

static void check_pitch(void)
{
    uint64_t key = 0;
    for (row_pitch = 256; row_pitch <= 4096; row_pitch *= 2) {
        size_t pitch = row_pitch;
        begin_on(0);
        row_pitch = pitch;
        is_padded = true;
        limits[1] = pitch < 1024 ? 1024 * HEIGHT : pitch * HEIGHT;
        MUST(make_pitch(&key) == CUDA_SUCCESS && there[0] == pitch * HEIGHT);
        MUST_AGREE();
        MUST(end_linear(key) == CUDA_SUCCESS && there[0] == 0);
        MUST_AGREE();
        limits[1]--;
        MUST(make_pitch(&key) == CUDA_ERROR_OUT_OF_MEMORY && there[0] == 0);
        MUST_AGREE();
    }
    begin_on(0);
    CUdeviceptr pointer;
    size_t pitch;
    /* More than there can be, in one direction or both. */
    MUST(cuMemAllocPitch_v2(&pointer, &pitch, SIZE_MAX, 1, 4) == CUDA_ERROR_OUT_OF_MEMORY);
    MUST(cuMemAllocPitch_v2(&pointer, &pitch, SIZE_MAX - 511, 1, 4) == CUDA_ERROR_OUT_OF_MEMORY);
    MUST(cuMemAllocPitch_v2(&pointer, &pitch, 1ull << 40, 1ull << 30, 4) ==
         CUDA_ERROR_OUT_OF_MEMORY);
    MUST(calls == 0);
    MUST_AGREE();
}

/* Anything in any order. */
static void check_histories(unsigned seed)
{
    enum { MOST = 40 };
    struct {
        const struct way *way;
        uint64_t key;
    } held[MOST] = {0};
    begin_on(0);
    primaries[1].is_alive = true;
    hr_add_context(&primaries[1], 1, 0);
    srand(seed);
    for (int step = 0; step < 3000; step++) {
        int at = rand() % MOST;
        current = &primaries[chosen = rand() % 2];
        limits[0] = limits[1] = (uint64_t)(1 + rand() % 30) * SIZE;
        next_result = rand() % 4 == 0 ? CUDA_ERROR_NOT_INITIALIZED : CUDA_SUCCESS;
        subject = held[at].way != NULL ? held[at].way->name : "a history";
        if (held[at].way == NULL) {
            const struct way *way = &ways[rand() % WAYS];
            if (way->make(&held[at].key) == CUDA_SUCCESS)
                held[at].way = way;
        } else if (held[at].way->end(held[at].key) == CUDA_SUCCESS) {
            held[at].way = NULL;
        }
        next_result = CUDA_SUCCESS;
        MUST_AGREE();
    }
}

int main(void)
{
    for (const struct way *way = ways; way < ways + WAYS; way++) {
        subject = way->name;
        check_counting(way);
        check_gone(way);
        check_refusals(way);
        check_circumstances(way);
    }
    subject = "padding";
    check_pitch();
    for (unsigned seed = 1; seed <= 20; seed++)
        check_histories(seed);
    begin();
    return 0;
}
