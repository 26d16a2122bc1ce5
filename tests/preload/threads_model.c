/*
 * The library's threads take no signal that is sent to the program, and what they ask of the driver
 * spoils no capture: `threads_model`.  It ends the program if something is wrong.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "../../csrc/preload/cuda_functions.h"
#include "../../csrc/preload/threads.h"

#include "must.h"

static int mode, exchanges, failing;

static CUresult exchange(int *wanted)
{
    int before = mode;
    exchanges++;
    if (failing)
        return CUDA_ERROR_NOT_INITIALIZED;
    mode = *wanted;
    *wanted = before;
    return CUDA_SUCCESS;
}

struct hr_cuda_functions hr_cuda = {.cuThreadExchangeStreamCaptureMode = exchange};

/* ---- Signals -------------------------------------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t has_run = PTHREAD_COND_INITIALIZER;
static sigset_t blocked;
static bool is_detached, runs;

static void *work(void *argument)
{
    pthread_attr_t attributes;
    int state = PTHREAD_CREATE_JOINABLE;
    MUST(argument == NULL && pthread_getattr_np(pthread_self(), &attributes) == 0);
    pthread_attr_getdetachstate(&attributes, &state);
    pthread_attr_destroy(&attributes);
    pthread_mutex_lock(&lock);
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    is_detached = state == PTHREAD_CREATE_DETACHED;
    runs = true;
    pthread_cond_signal(&has_run);
    pthread_mutex_unlock(&lock);
    return NULL;
}

static void check_signals(void)
{
    static const int caused[] = {SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};
    sigset_t before, after;
    sigemptyset(&before);
    sigaddset(&before, SIGUSR2);
    sigaddset(&before, SIGBUS);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    MUST(hr_start_thread(work));
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    pthread_mutex_lock(&lock);
    while (!runs)
        pthread_cond_wait(&has_run, &lock);
    pthread_mutex_unlock(&lock);
    MUST(is_detached);
    for (int number = 1; number <= SIGRTMAX; number++) {
        bool is_caused = number == SIGKILL || number == SIGSTOP;
        /* Those between are the C library's own. */
        if (number >= 32 && number < SIGRTMIN)
            continue;
        MUST(sigismember(&before, number) == sigismember(&after, number));
        for (size_t at = 0; at < sizeof caused / sizeof *caused; at++)
            is_caused = is_caused || caused[at] == number;
        MUST(sigismember(&blocked, number) == !is_caused);
    }
}

/* ---- Captures ------------------------------------------------------------------------- */

static void check_captures(void)
{
    for (int own = 0; own <= 2; own++) {
        mode = own;
        exchanges = 0;
        int kept = hr_relax_capture();
        MUST(mode == CU_STREAM_CAPTURE_MODE_RELAXED && exchanges == 1);
        hr_restore_capture(kept);
        MUST(mode == own && exchanges == 1 + (own != CU_STREAM_CAPTURE_MODE_RELAXED));
    }
    /* A driver that knows no modes has none to go back to. */
    failing = true;
    exchanges = 0;
    hr_restore_capture(hr_relax_capture());
    MUST(exchanges == 1);
}

int main(void)
{
    check_signals();
    check_captures();
    return 0;
}
