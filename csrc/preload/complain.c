#define _GNU_SOURCE
#include "complain.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../region.h"

enum { MOST_LINES = 3, LINE_BYTES = 320 };

/* One write, so that lines of several processes do not mix.  A failure is ignored, and ends no
 * program: a pipe whose reader has ended must not raise SIGPIPE. */
static void write_line(const char *line, size_t bytes)
{
    const struct timespec at_once = {0};
    sigset_t broken_pipe, pending, before;
    sigemptyset(&broken_pipe);
    sigaddset(&broken_pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &broken_pipe, &before);
    sigpending(&pending);
    if (write(STDERR_FILENO, line, bytes) < 0 && errno == EPIPE &&
        sigismember(&pending, SIGPIPE) == 0)
        sigtimedwait(&broken_pipe, NULL, &at_once);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void hr_complain(const char *format, ...)
{
    static _Atomic int lines;
    static const char prefix[] = "libhamiregion: ";
    int saved_errno = errno;
    if (atomic_load_explicit(&lines, memory_order_relaxed) < MOST_LINES &&
        atomic_fetch_add_explicit(&lines, 1, memory_order_relaxed) < MOST_LINES) {
        char line[LINE_BYTES];
        memcpy(line, prefix, sizeof prefix);
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(line + sizeof prefix - 1, sizeof line - sizeof prefix, format, arguments);
        va_end(arguments);
        size_t length = strlen(line);
        line[length] = '\n';
        write_line(line, length + 1);
    }
    errno = saved_errno;
}

const char *hr_code_text(int code)
{
    switch (code) {
    case HR_ENOTFOUND:
        return "there is no such file";
    case HR_EACCESS:
        return "the system refuses access";
    case HR_ENOTREGION:
        return "it is not a region";
    case HR_ENOTREADY:
        return "it is still being made";
    case HR_EAMBIGUOUS:
        return "it may have several layouts";
    case HR_ECORRUPT:
        return "it is corrupt";
    case HR_ESTALE:
        return "it was truncated or replaced";
    case HR_ETIMEOUT:
        return "its lock is not free";
    case HR_EFULL:
        return "all of its slots are taken";
    case HR_EATTACHED:
        return "another library in this process uses it already";
    default:
        return "the system reports an error";
    }
}
