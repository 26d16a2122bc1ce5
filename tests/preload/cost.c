/*
 * What a driver call costs: `cost WHAT LIVE ROUNDS CALLS DEVICE WARM_UP_S`. Prints, for each round,
 * the nanoseconds of one call: of WHAT `pair` an allocation and its free, `alloc` and `free` each
 * of CALLS in a row, `refused` an allocation that is too large, `launch` a launch; LIVE allocations
 * are there all the time. At least one round, and WARM_UP_S seconds of them, come before the first.
 */
#include "calls.h"

#include <stdbool.h>
#include <string.h>
#include <time.h>

#define SIZE 512

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static CUfunction kernel;

static void launch(long calls)
{
    for (long call = 0; call < calls; call++)
        MUST(cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
}

static void pair(long calls)
{
    CUdeviceptr address;
    for (long call = 0; call < calls; call++) {
        MUST(cuMemAlloc_v2(&address, SIZE));
        MUST(cuMemFree_v2(address));
    }
}

static void refuse(long calls)
{
    CUdeviceptr address;
    for (long call = 0; call < calls; call++)
        if (cuMemAlloc_v2(&address, (size_t)1 << 44) != CUDA_ERROR_OUT_OF_MEMORY)
            exit(1);
}

static CUdeviceptr *taken;

static void take(long calls)
{
    for (long call = 0; call < calls; call++)
        MUST(cuMemAlloc_v2(&taken[call], SIZE));
}

static void give(long calls)
{
    for (long call = 0; call < calls; call++)
        MUST(cuMemFree_v2(taken[call]));
}

static double time_of(void (*what)(long), long calls)
{
    double before = now_ns();
    what(calls);
    return (now_ns() - before) / (double)calls;
}

int main(int count, char **arguments)
{
    if (count != 7) {
        fprintf(stderr, "usage: cost WHAT LIVE ROUNDS CALLS DEVICE WARM_UP_S\n");
        return 2;
    }
    const char *what = arguments[1];
    long live = atol(arguments[2]), rounds = atol(arguments[3]), calls = atol(arguments[4]);
    CUcontext context;
    CUmodule module;
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, atoi(arguments[5])));
    MUST(cuCtxSetCurrent(context));
    MUST(cuModuleLoadData(&module, KERNELS));
    MUST(cuModuleGetFunction(&kernel, module, "nothing"));
    for (long number = 0; number < live; number++) {
        CUdeviceptr address;
        MUST(cuMemAlloc_v2(&address, SIZE));
    }
    taken = calloc((size_t)calls, sizeof *taken);
    double warm_ns = now_ns() + atof(arguments[6]) * 1e9;
    for (long round = -1; round < rounds; round++) {
        double ns, back = 0;
        bool is_warm = round >= 0 || now_ns() >= warm_ns;
        if (strcmp(what, "launch") == 0) {
            ns = time_of(launch, calls);
        } else if (strcmp(what, "pair") == 0) {
            ns = time_of(pair, calls);
        } else if (strcmp(what, "refused") == 0) {
            ns = time_of(refuse, calls);
        } else {
            ns = time_of(take, calls);
            back = time_of(give, calls);
        }
        if (!is_warm)
            round--;
        else if (round >= 0)
            printf("%.2f\n", strcmp(what, "free") == 0 ? back : ns);
    }
    free(taken);
    return 0;
}
