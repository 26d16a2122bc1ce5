/*
 * A library that ends the program where it unlocks a mutex that nobody has locked. Loaded before
 * others, it sees the locks that a fork takes before and gives back after it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#if defined(__x86_64__)
#define OLDEST "GLIBC_2.2.5"
#else
#define OLDEST "GLIBC_2.17"
#endif

__attribute__((visibility("default"))) int pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    static int (*real)(pthread_mutex_t *mutex);
    static const char text[] = "a mutex was unlocked that was not locked\n";
    if (real == NULL)
        real = (int (*)(pthread_mutex_t *))dlvsym(RTLD_NEXT, "pthread_mutex_unlock", OLDEST);
    if (mutex->__data.__lock == 0) {
        if (write(STDERR_FILENO, text, sizeof text - 1) < 0)
            _exit(2);
        abort();
    }
    return real(mutex);
}
