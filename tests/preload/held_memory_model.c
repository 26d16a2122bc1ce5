/*
 * What is held beyond an allocation: physical memory that is mapped, and what pools and graphs
 * keep; with the driver and the region of numbered_memory.h.  `held_memory_model` ends the program
 * where the region does not count what the driver has given out.
 */
#include "numbered_memory.h"

static CUresult make_physical(uint64_t *out)
{
    CUmemGenericAllocationHandle handle = 0;
    const CUmemAllocationProp properties = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = chosen}};
    CUresult result = cuMemCreate(&handle, SIZE, &properties, 0);
    *out = handle;
    return result;
}

/* The driver lets go of another handle of the same memory. */
static void find_or_make(uint64_t key)
{
    if (find_block(key) == NULL)
        blocks[0] = (struct block){.key = key};
}

/* Physical memory stays until its last handle is released and its last mapping is gone. */
static void check_mappings(void)
{
    const CUdeviceptr at = UINT64_C(1) << 33;
    CUmemGenericAllocationHandle again;
    uint64_t handle, other;
    begin_on(0);
    MUST(make_physical(&handle) == CUDA_SUCCESS && make_physical(&other) == CUDA_SUCCESS);
    const uint64_t size = SIZE, both = 2 * size;
#define MUST_COUNT(bytes) MUST(charged[1] == (bytes) && changes[1] == 0)
    MUST(cuMemMap(at, size, 0, handle, 0) == CUDA_SUCCESS);
    MUST(cuMemMap(at + size, size, 0, other, 0) == CUDA_SUCCESS);
    MUST(cuMemMap(at + 2 * size, size, 0, handle, 0) == CUDA_SUCCESS);
    MUST(cuMemRelease(handle) == CUDA_SUCCESS && cuMemRelease(other) == CUDA_SUCCESS);
    MUST_COUNT(both);
    /* A driver that does not unmap has it still; and what it has not mapped is no mapping. */
    next_result = CUDA_ERROR_INVALID_VALUE;
    MUST(cuMemUnmap(at, 3 * size) == CUDA_ERROR_INVALID_VALUE);
    MUST_COUNT(both);
    /* Several at once, one behind the other, and no more than was asked for. */
    MUST(cuMemUnmap(at, 2 * size) == CUDA_SUCCESS);
    MUST_COUNT(size);
    MUST(cuMemUnmap(at + 2 * size, size) == CUDA_SUCCESS);
    MUST_COUNT(0);
    begin_on(0);
    MUST(make_physical(&handle) == CUDA_SUCCESS && make_physical(&other) == CUDA_SUCCESS);
    next_result = CUDA_ERROR_INVALID_VALUE;
    MUST(cuMemMap(at, size, 0, handle, 0) == CUDA_ERROR_INVALID_VALUE);
    MUST(cuMemRelease(handle) == CUDA_SUCCESS);
    MUST_COUNT(size);
    /* Mapped where the driver has taken another mapping back unseen. */
    MUST(make_physical(&handle) == CUDA_SUCCESS);
    MUST(cuMemMap(at, size, 0, handle, 0) == CUDA_SUCCESS && cuMemRelease(handle) == CUDA_SUCCESS);
    MUST_COUNT(both);
    MUST(cuMemMap(at, size, 0, other, 0) == CUDA_SUCCESS);
    MUST_COUNT(size);
    MUST(cuMemRelease(other) == CUDA_SUCCESS);
    MUST_COUNT(size);
    /* A handle by an address in it, which then is released once more. */
    physical_address = other;
    MUST(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(at + size - 1)) == CUDA_SUCCESS);
    MUST(again == other && cuMemUnmap(at, size) == CUDA_SUCCESS);
    MUST_COUNT(size);
    MUST(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)at) == CUDA_SUCCESS);
    next_result = CUDA_ERROR_INVALID_VALUE;
    MUST(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)at) == CUDA_ERROR_INVALID_VALUE);
    find_or_make(other);
    next_result = CUDA_ERROR_NOT_INITIALIZED;
    MUST(cuMemRelease(other) == CUDA_ERROR_NOT_INITIALIZED);
    find_or_make(other);
    MUST(cuMemRelease(other) == CUDA_SUCCESS);
    MUST_COUNT(size);
    find_or_make(other);
    MUST(cuMemRelease(other) == CUDA_SUCCESS);
    MUST_COUNT(0);
    /* An address that is in no mapping, one that is none of ours, and one past the end. */
    begin_on(0);
    MUST(make_physical(&handle) == CUDA_SUCCESS);
    MUST(cuMemMap(at, size, 0, handle, 0) == CUDA_SUCCESS && cuMemRelease(handle) == CUDA_SUCCESS);
    physical_address = 77;
    MUST(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(at + size)) == CUDA_SUCCESS);
    MUST(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(at - 1)) == CUDA_SUCCESS);
    MUST(cuMemUnmap(at, size) == CUDA_SUCCESS);
    MUST_COUNT(0);
    /* What was imported from another process is that one's. */
    MUST(cuMemMap(at, size, 0, 4711, 0) == CUDA_SUCCESS && cuMemUnmap(at, size) == CUDA_SUCCESS);
    MUST_COUNT(0);
}

static const struct {
    int type;
    CUdevice device;
    int row;
} pool_cases[] = {{CU_MEM_LOCATION_TYPE_DEVICE, 0, 1},
                  {CU_MEM_LOCATION_TYPE_DEVICE, 1, 0},
                  {CU_MEM_LOCATION_TYPE_DEVICE, NO_ROW_DEVICE, HR_NO_ROW},
                  {2, 0, HR_NO_ROW},
                  {3, 0, HR_NO_ROW}};

/* A pool is where it was made, and the host's is nobody's, whichever stream uses it. */
static void check_pools(void)
{
    for (size_t at = 0; at < sizeof pool_cases / sizeof *pool_cases; at++) {
        const CUmemPoolProps properties = {
            .location = {.type = pool_cases[at].type, .id = pool_cases[at].device}};
        int row = pool_cases[at].row;
        CUmemoryPool pool = NULL;
        CUdeviceptr pointer;
        begin_on(0);
        next_result = CUDA_ERROR_INVALID_VALUE;
        MUST(cuMemPoolCreate(&pool, &properties) == CUDA_ERROR_INVALID_VALUE && pool == NULL);
        MUST(cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS && pool == &own_pool);
        own_pool.device = pool_cases[at].device;
        is_uncounted = row < 0;
        MUST(cuMemAllocFromPoolAsync(&pointer, SIZE, pool, NULL) == CUDA_SUCCESS);
        MUST(charged[1] == (row == 1 ? SIZE : 0) && charged[0] == (row == 0 ? SIZE : 0));
        /* A driver that does not destroy it has it still. */
        next_result = CUDA_ERROR_INVALID_VALUE;
        MUST(cuMemPoolDestroy(pool) == CUDA_ERROR_INVALID_VALUE);
        MUST(cuMemAllocFromPoolAsync(&pointer, SIZE, pool, NULL) == CUDA_SUCCESS);
        MUST(charged[1] == (row == 1 ? 2 * SIZE : 0) && charged[0] == (row == 0 ? 2 * SIZE : 0));
        MUST(cuMemFreeAsync(pointer, NULL) == CUDA_SUCCESS);
        MUST(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
        MUST(charged[1] == (row == 1 ? SIZE : 0) && charged[0] == (row == 0 ? SIZE : 0));
    }
    /* What a pool only keeps is given back as it is trimmed, by whichever call. */
    CUdeviceptr pointer;
    begin_on(0);
    MUST(cuMemAllocAsync(&pointer, SIZE, NULL) == CUDA_SUCCESS);
    kept = SIZE;
    defaults[0].held += kept;
    there[0] += kept;
    hr_settle_pools();
    MUST(charged[1] == 2 * SIZE);
    MUST(cuMemPoolTrimTo(&defaults[0], 0) == CUDA_SUCCESS && charged[1] == SIZE);
    MUST_AGREE();
    held_by_graphs[0] = SIZE;
    there[0] += SIZE;
    hr_settle_pools();
    MUST(charged[1] == 2 * SIZE);
    MUST(cuDeviceGraphMemTrim(0) == CUDA_SUCCESS && charged[1] == SIZE);
    MUST_AGREE();
}

/* A pool takes a whole piece of the device's memory: if that is too much, none of it stays. */
static void check_growth(void)
{
    const uint64_t limit = 2 * SIZE;
    for (uint64_t short_by = 0; short_by < 2; short_by++) {
        CUdeviceptr pointer;
        begin_on(0);
        limits[1] = limit - short_by;
        grows_by = SIZE;
        MUST(cuMemAllocAsync(&pointer, SIZE, NULL) ==
             (short_by == 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY));
        MUST(there[0] == (short_by == 0 ? limit : 0));
        MUST_AGREE();
    }
}

/* A launch of a graph whose memory stays in its device's pool. */
static CUresult launch_graph(CUgraphExec exec, CUstream stream)
{
    int device = (uintptr_t)stream < 100 ? current->device : (int)((uintptr_t)stream - 100);
    MUST((uintptr_t)exec == 5);
    CUresult result = take_result();
    if (result != CUDA_SUCCESS)
        return result;
    there[device] += 2 * SIZE - held_by_graphs[device];
    held_by_graphs[device] = 2 * SIZE;
    return CUDA_SUCCESS;
}

static void check_graphs(void)
{
    CUgraphExec exec = (CUgraphExec)(uintptr_t)5;
    const CUstream elsewhere = (CUstream)(uintptr_t)101;
    MUST(hr_memory_of_node(NULL) == SIZE && hr_memory_of_node((CUgraphNode)exec) == 0);
    begin_on(0);
    MUST(hr_launch_with_memory(launch_graph, SIZE, exec, NULL) == CUDA_SUCCESS);
    MUST(charged[1] == 2 * SIZE && held_by_graphs[0] == 2 * SIZE);
    MUST_AGREE();
    next_result = CUDA_ERROR_INVALID_VALUE;
    MUST(hr_launch_with_memory(launch_graph, SIZE, exec, NULL) == CUDA_ERROR_INVALID_VALUE);
    MUST_AGREE();
    /* What the graphs hold is used again. */
    limits[1] = 2 * SIZE;
    MUST(hr_launch_with_memory(launch_graph, 2 * SIZE, exec, NULL) == CUDA_SUCCESS);
    MUST_AGREE();
    calls = 0;
    MUST(hr_launch_with_memory(launch_graph, 3 * SIZE, exec, NULL) == CUDA_ERROR_OUT_OF_MEMORY);
    is_refused = true;
    MUST(hr_launch_with_memory(launch_graph, SIZE, exec, NULL) == CUDA_ERROR_NOT_PERMITTED);
    is_refused = false;
    MUST(calls == 0);
    MUST_AGREE();
    /* On the device of the stream, and on one that has no row. */
    primaries[1].is_alive = true;
    hr_add_context(&primaries[1], 1, 0);
    MUST(hr_launch_with_memory(launch_graph, SIZE, exec, elsewhere) == CUDA_SUCCESS);
    MUST(charged[0] == 2 * SIZE);
    MUST_AGREE();
    begin_on(NO_ROW_DEVICE);
    MUST(hr_launch_with_memory(launch_graph, SIZE, exec, NULL) == CUDA_SUCCESS && calls == 1);
    MUST(charged[0] == 0 && charged[1] == 0);
}

int main(void)
{
    subject = "mappings";
    check_mappings();
    subject = "pools";
    check_pools();
    check_growth();
    subject = "graphs";
    check_graphs();
}
