/*
 * Answers requests as an interactive program does: `answering KERNEL PAUSE_MS REQUESTS` launches a
 * kernel, waits for it, pauses, and so on; prints the microseconds that each of them took.
 */
#include "calls.h"

#include <time.h>
#include <unistd.h>

static uint64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

int main(int count, char **arguments)
{
    if (count != 4) {
        fprintf(stderr, "usage: answering KERNEL PAUSE_MS REQUESTS\n");
        return 2;
    }
    CUcontext context;
    CUmodule module;
    CUfunction kernel;
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    MUST(cuModuleLoadData(&module, KERNELS));
    MUST(cuModuleGetFunction(&kernel, module, arguments[1]));
    for (int left = atoi(arguments[3]); left > 0; left--) {
        uint64_t begun_us = now_us();
        MUST(cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
        MUST(cuCtxSynchronize());
        printf("%llu\n", (unsigned long long)(now_us() - begun_us));
        usleep((useconds_t)atoi(arguments[2]) * 1000);
    }
    return 0;
}
