/*
 * Threads that allocate at once: `together THREADS SIZE`. For each line that it reads all of them
 * allocate, and free again when all have tried; it prints how many were granted.
 */
#define _GNU_SOURCE
#include "calls.h"

#include <pthread.h>

static CUcontext context;
static size_t size;
static pthread_barrier_t begin, tried;
static _Atomic int granted;

static void *take(void *nothing)
{
    CUdeviceptr address;
    MUST(cuCtxSetCurrent(context));
    for (;;) {
        pthread_barrier_wait(&begin);
        CUresult code = cuMemAlloc_v2(&address, size);
        granted += code == CUDA_SUCCESS;
        pthread_barrier_wait(&tried);
        if (code == CUDA_SUCCESS)
            MUST(cuMemFree_v2(address));
        pthread_barrier_wait(&tried);
    }
    return nothing;
}

int main(int count, char **arguments)
{
    char line[16];
    check_usage(count == 3, "together THREADS SIZE");
    int threads = atoi(arguments[1]);
    size = strtoull(arguments[2], NULL, 10);
    pthread_barrier_init(&begin, NULL, (unsigned)threads + 1);
    pthread_barrier_init(&tried, NULL, (unsigned)threads + 1);
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    for (int number = 0; number < threads; number++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, take, NULL) != 0)
            return 1;
    }
    puts("started");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) != NULL) {
        granted = 0;
        pthread_barrier_wait(&begin);
        pthread_barrier_wait(&tried);
        pthread_barrier_wait(&tried);
        printf("%d\n", granted);
        fflush(stdout);
    }
    return 0;
}
