/*
 * libconstructing.so: as it is loaded, while the loader is busy with it, it makes a context and has
 * another thread make one.
 */
#define _GNU_SOURCE
#include "calls.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

static _Atomic int started;

static void *retain(void *argument)
{
    CUcontext context;
    (void)argument;
    started = 1;
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    return NULL;
}

__attribute__((constructor)) static void construct(void)
{
    const useconds_t as_far_as_it_comes = 300000;
    CUcontext context;
    pthread_t thread;
    size_t free, total;
    MUST(cuInit(0));
    /* There is no context yet; but the library has found the driver. */
    (void)cuMemGetInfo_v2(&free, &total);
    pthread_create(&thread, NULL, retain, NULL);
    while (!started)
        usleep(1000);
    usleep(as_far_as_it_comes);
    MUST(cuDevicePrimaryCtxRetain(&context, 1));
    pthread_detach(thread);
}
