/*
 * What a model holds to be true: MUST() says where it is not, and ends the program at once, also a
 * forked child and beside other threads.
 *
 * A model may define MUST_SHOW before it includes this, a format and its arguments: what is to be
 * said besides; and MUST_FILE, the descriptor that it is said to.
 */
#ifndef MUST_H
#define MUST_H

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#ifndef MUST_SHOW
#define MUST_SHOW "%s", ""
#endif
#ifndef MUST_FILE
#define MUST_FILE STDERR_FILENO
#endif

#define MUST(truth)                                                                                \
    do {                                                                                           \
        if (!(truth))                                                                              \
            must_end(MUST_FILE, __FILE__, __LINE__, #truth, MUST_SHOW);                            \
    } while (0)

__attribute__((format(printf, 5, 6), noreturn)) static inline void
must_end(int out, const char *file, int line, const char *truth, const char *format, ...)
{
    char shown[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(shown, sizeof shown, format, arguments);
    va_end(arguments);
    dprintf(out, "%s:%d: %s%s%s\n", file, line, truth, shown[0] == '\0' ? "" : "; ", shown);
    _exit(1);
}

#endif
