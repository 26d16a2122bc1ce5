/*
 * A program that does a little of everything once, and ends: what it takes from start to end is
 * what a library adds to each program. Says how much memory it was told that its device has.
 */
#include "calls.h"

int main(void)
{
    CUcontext context;
    CUdeviceptr address;
    CUmodule module;
    CUfunction kernel;
    size_t free_bytes, total;
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    MUST(cuMemAlloc_v2(&address, 1 << 20));
    MUST(cuModuleLoadData(&module, KERNELS));
    MUST(cuModuleGetFunction(&kernel, module, "nothing"));
    MUST(cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    MUST(cuCtxSynchronize());
    MUST(cuMemGetInfo_v2(&free_bytes, &total));
    MUST(cuMemFree_v2(address));
    printf("%zu\n", total);
    return 0;
}
