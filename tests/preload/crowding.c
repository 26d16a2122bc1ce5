/*
 * Processes that make a context one after the other: `crowding COUNT`. None may both have one and
 * be granted memory in it; the exit status is 1 if one was.
 */
#define _GNU_SOURCE
#include "calls.h"

#include <sys/wait.h>
#include <unistd.h>

static int crowd(void)
{
    CUcontext context;
    CUdeviceptr address;
    MUST(cuInit(0));
    CUresult code = cuDevicePrimaryCtxRetain(&context, 0);
    if (code == CUDA_ERROR_OUT_OF_MEMORY)
        return 0;
    MUST(code);
    MUST(cuCtxSetCurrent(context));
    if (cuMemAlloc_v2(&address, 1) == CUDA_ERROR_OUT_OF_MEMORY)
        return 0;
    fprintf(stderr, "granted\n");
    return 1;
}

int main(int count, char **arguments)
{
    check_usage(count == 2, "crowding COUNT");
    int failed = 0;
    for (int number = 0; number < atoi(arguments[1]); number++) {
        int status = 1;
        if (fork() == 0)
            exit(crowd());
        wait(&status);
        failed |= status != 0;
    }
    return failed;
}
