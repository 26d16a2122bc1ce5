/*
 * `pool_ends ROUNDS`: one thread makes, uses and destroys a pool in each round, while two others
 * have the library look at all pools.
 */
#include "calls.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

static CUcontext context;
static _Atomic bool is_over;

static const CUmemPoolProps properties = {
    .allocType = 1, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};

static void *look(void *argument)
{
    CUmemoryPool pool;
    (void)argument;
    MUST(cuCtxSetCurrent(context));
    MUST(cuMemPoolCreate(&pool, &properties));
    while (!is_over)
        MUST(cuMemPoolTrimTo(pool, 0));
    MUST(cuMemPoolDestroy(pool));
    return NULL;
}

int main(int count, char **arguments)
{
    pthread_t lookers[2];
    check_usage(count == 2, "pool_ends ROUNDS");
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    for (int at = 0; at < 2; at++)
        pthread_create(&lookers[at], NULL, look, NULL);
    for (long round = atol(arguments[1]); round > 0; round--) {
        CUmemoryPool pool;
        CUdeviceptr memory;
        MUST(cuMemPoolCreate(&pool, &properties));
        MUST(cuMemAllocFromPoolAsync(&memory, 1 << 20, pool, NULL));
        MUST(cuMemFreeAsync(memory, NULL));
        MUST(cuMemPoolDestroy(pool));
    }
    is_over = true;
    for (int at = 0; at < 2; at++)
        pthread_join(lookers[at], NULL);
    return 0;
}
