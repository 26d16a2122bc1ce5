/*
 * What a driver call costs: `cost WHAT ROUNDS CALLS WARM_UP_S`. Prints, for each round, the
 * nanoseconds of one call: `alloc` and `launch` are CALLS in a row, `async` are allocations with
 * their ends, `spaced-alloc` is the median of CALLS with 20 us of other work between them, as
 * programs make them, the clock included. On stderr it says what it was told of the device: its
 * memory, and how much of that is not free. At least one round, and WARM_UP_S seconds of them, come
 * before the first.
 */
#include "calls.h"

#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SIZE 512

static CUfunction kernel;
static CUdeviceptr *taken;

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static double time_of_launches(long calls)
{
    double before = now_ns();
    for (long call = 0; call < calls; call++)
        MUST(cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    return (now_ns() - before) / (double)calls;
}

static double time_of_allocations(long calls)
{
    double before = now_ns();
    for (long call = 0; call < calls; call++)
        MUST(cuMemAlloc_v2(&taken[call], SIZE));
    double ns = (now_ns() - before) / (double)calls;
    for (long call = 0; call < calls; call++)
        MUST(cuMemFree_v2(taken[call]));
    return ns;
}

static double time_of_pairs(long calls)
{
    double before = now_ns();
    for (long call = 0; call < calls; call++) {
        MUST(cuMemAllocAsync(&taken[0], SIZE, NULL));
        MUST(cuMemFreeAsync(taken[0], NULL));
    }
    return (now_ns() - before) / (double)calls;
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

static double time_of_spaced(long calls)
{
    double *times = calloc((size_t)calls, sizeof *times);
    for (long call = 0; call < calls; call++) {
        do_other_work();
        double before = now_ns();
        MUST(cuMemAlloc_v2(&taken[0], SIZE));
        times[call] = now_ns() - before;
        do_other_work();
        MUST(cuMemFree_v2(taken[0]));
    }
    qsort(times, (size_t)calls, sizeof *times, compare);
    double median = times[calls / 2];
    free(times);
    return median;
}

/* A process with one thread has cheaper locks, in the driver too; no CUDA program is one. */
static void *wait_for_ever(void *argument)
{
    for (;;)
        pause();
    return argument;
}

int main(int count, char **arguments)
{
    check_usage(count == 5, "cost WHAT ROUNDS CALLS WARM_UP_S");
    const char *what = arguments[1];
    long rounds = atol(arguments[2]), calls = atol(arguments[3]);
    CUcontext context;
    CUmodule module;
    CUmemoryPool pool;
    pthread_t second;
    size_t free_bytes, total;
    MUST(pthread_create(&second, NULL, wait_for_ever, NULL));
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    MUST(cuModuleLoadData(&module, KERNELS));
    MUST(cuModuleGetFunction(&kernel, module, "nothing"));
    taken = calloc((size_t)calls, sizeof *taken);
    double (*time_of)(long) = strcmp(what, "launch") == 0         ? time_of_launches
                              : strcmp(what, "spaced-alloc") == 0 ? time_of_spaced
                              : strcmp(what, "async") == 0        ? time_of_pairs
                                                                  : time_of_allocations;
    double warm_ns = now_ns() + atof(arguments[4]) * 1e9;
    do
        time_of(calls);
    while (now_ns() < warm_ns);
    for (long round = 0; round < rounds; round++)
        printf("%.2f\n", time_of(calls));
    free(taken);
    MUST(cuDeviceGetDefaultMemPool(&pool, 0));
    MUST(cuMemPoolTrimTo(pool, 0));
    MUST(cuMemGetInfo_v2(&free_bytes, &total));
    fprintf(stderr, "%zu %zu\n", total, total - free_bytes);
    return 0;
}
