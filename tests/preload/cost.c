/*
 * What a driver call costs: `cost WHAT LIVE ROUNDS CALLS DEVICE WARM_UP_S [SIZE]`. Prints, for each
 * round, the nanoseconds of one call: of WHAT `pair` an allocation and its free, `alloc` and `free`
 * each of CALLS in a row, `refused` an allocation of SIZE, which is too large, `launch` a launch;
 * LIVE allocations are there all the time. On stderr it says what it was told of the device: its
 * memory, and how much of that is not free. `spaced-alloc` and `spaced-info` (of cuMemGetInfo) are
 * single calls with 20 us of other work between them, as programs make them: the median of CALLS,
 * the clock included. At least one round, and WARM_UP_S seconds of them, come before the first.
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

static size_t refused_size = (size_t)1 << 44;

static void refuse(long calls)
{
    CUdeviceptr address;
    for (long call = 0; call < calls; call++)
        if (cuMemAlloc_v2(&address, refused_size) != CUDA_ERROR_OUT_OF_MEMORY)
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

#define SPACE_NS 20000

/* Other work: it takes the processor's time, and its caches. */
static void do_other_work(void)
{
    static unsigned char touched[1 << 18];
    double until = now_ns() + SPACE_NS;
    for (size_t at = 0; now_ns() < until; at += 64)
        touched[at % sizeof touched]++;
}

static int compare(const void *one, const void *other)
{
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

static double time_of_spaced(const char *what, long calls)
{
    double *times = calloc((size_t)calls, sizeof *times);
    for (long call = 0; call < calls; call++) {
        CUdeviceptr address = 0;
        size_t free_bytes, total;
        do_other_work();
        double before = now_ns();
        if (strcmp(what, "spaced-alloc") == 0)
            MUST(cuMemAlloc_v2(&address, SIZE));
        else
            MUST(cuMemGetInfo_v2(&free_bytes, &total));
        times[call] = now_ns() - before;
        do_other_work();
        MUST(cuMemFree_v2(address));
    }
    qsort(times, (size_t)calls, sizeof *times, compare);
    double median = times[calls / 2];
    free(times);
    return median;
}

static double time_of(void (*what)(long), long calls)
{
    double before = now_ns();
    what(calls);
    return (now_ns() - before) / (double)calls;
}

int main(int count, char **arguments)
{
    if (count != 7 && count != 8) {
        fprintf(stderr, "usage: cost WHAT LIVE ROUNDS CALLS DEVICE WARM_UP_S [SIZE]\n");
        return 2;
    }
    const char *what = arguments[1];
    long live = atol(arguments[2]), rounds = atol(arguments[3]), calls = atol(arguments[4]);
    CUcontext context;
    CUmodule module;
    size_t free_bytes, total;
    if (count == 8)
        refused_size = strtoull(arguments[7], NULL, 10);
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
        } else if (strncmp(what, "spaced-", 7) == 0) {
            ns = time_of_spaced(what, calls);
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
    MUST(cuMemGetInfo_v2(&free_bytes, &total));
    fprintf(stderr, "%zu %zu\n", total, total - free_bytes);
    return 0;
}
