#define _GNU_SOURCE
#include "threads.h"

#include <pthread.h>
#include <signal.h>
#include <stddef.h>

#include "cuda_functions.h"

bool hr_start_thread(void *(*work)(void *))
{
    /* The kernel ends a program that blocks what its own instruction causes: the program may have
     * a handler for it, such as that of a sandbox, which answers for system calls (SIGSYS). */
    static const int caused[] = {SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};
    sigset_t sent, before;
    sigfillset(&sent);
    for (size_t at = 0; at < sizeof caused / sizeof caused[0]; at++)
        sigdelset(&sent, caused[at]);
    pthread_sigmask(SIG_SETMASK, &sent, &before);
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    bool is_started = pthread_create(&thread, &attributes, work, NULL) == 0;
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return is_started;
}

int hr_relax_capture(void)
{
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    return HR_CUDA(cuThreadExchangeStreamCaptureMode)(&mode) == CUDA_SUCCESS
               ? mode
               : CU_STREAM_CAPTURE_MODE_RELAXED;
}

void hr_restore_capture(int mode)
{
    if (mode != CU_STREAM_CAPTURE_MODE_RELAXED)
        HR_CUDA(cuThreadExchangeStreamCaptureMode)(&mode);
}
