/*
 * Preloaded into a program, it lets one of the program's calls of libc fail: the nth after
 * failing_calls_arm(), with an error of one's choice. So each call can be made to fail in its turn.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static atomic_long left;
static atomic_int armed_thread;
static atomic_int error_given;
static _Atomic(const char *) failed;

void failing_calls_arm(long nth, int error);
const char *failing_calls_disarm(void);

void failing_calls_arm(long nth, int error)
{
    atomic_store(&failed, NULL);
    atomic_store(&error_given, error);
    atomic_store(&armed_thread, gettid());
    atomic_store(&left, nth);
}

/* The name of the call that has failed, NULL if there were not so many. */
const char *failing_calls_disarm(void)
{
    atomic_store(&left, 0);
    return atomic_load(&failed);
}

static int fails(const char *name)
{
    long before = atomic_load(&left);

    while (before > 0)
        if (atomic_compare_exchange_weak(&left, &before, before - 1)) {
            if (before != 1)
                return 0;
            atomic_store(&failed, name);
            errno = atomic_load(&error_given);
            return 1;
        }
    return 0;
}

/* CPython waits for ever for a thread that has no memory to begin with. */
static int mapping_fails(const char *name)
{
    return gettid() == atomic_load(&armed_thread) && fails(name);
}

#define NEXT(name)                                                                                 \
    static __typeof__(name) *next;                                                                 \
    if (next == NULL)                                                                              \
    next = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

/* A function of libc, its parameters, what they are called, and what it returns when it fails. */
#define CALL(type, name, parameters, arguments, failure)                                           \
    type name parameters;                                                                          \
    type name parameters                                                                           \
    {                                                                                              \
        NEXT(name);                                                                                \
        return fails(#name) ? failure : next arguments;                                            \
    }

#define OPENING(name)                                                                              \
    int name(const char *path, int flags, ...)                                                     \
    {                                                                                              \
        va_list more;                                                                              \
        va_start(more, flags);                                                                     \
        mode_t mode = va_arg(more, mode_t);                                                        \
        va_end(more);                                                                              \
        NEXT(name);                                                                                \
        return fails(#name) ? -1 : next(path, flags, mode);                                        \
    }
#define OPENING_AT(name)                                                                           \
    int name(int directory, const char *path, int flags, ...)                                      \
    {                                                                                              \
        va_list more;                                                                              \
        va_start(more, flags);                                                                     \
        mode_t mode = va_arg(more, mode_t);                                                        \
        va_end(more);                                                                              \
        NEXT(name);                                                                                \
        return fails(#name) ? -1 : next(directory, path, flags, mode);                             \
    }
#define CONTROLLING(name, kind)                                                                    \
    int name(int file, kind what, ...)                                                             \
    {                                                                                              \
        va_list more;                                                                              \
        va_start(more, what);                                                                      \
        void *argument = va_arg(more, void *);                                                     \
        va_end(more);                                                                              \
        NEXT(name);                                                                                \
        return fails(#name) ? -1 : next(file, what, argument);                                     \
    }

#define MAPPING(name)                                                                              \
    void *name(void *at, size_t size, int rights, int flags, int file, off_t offset)               \
    {                                                                                              \
        NEXT(name);                                                                                \
        return mapping_fails(#name) ? MAP_FAILED : next(at, size, rights, flags, file, offset);    \
    }

OPENING(open)
OPENING(open64)
OPENING_AT(openat)
OPENING_AT(openat64)
CONTROLLING(fcntl, int)
CONTROLLING(fcntl64, int)
CONTROLLING(ioctl, unsigned long)

CALL(ssize_t, read, (int f, void *to, size_t n), (f, to, n), -1)
CALL(ssize_t, write, (int f, const void *from, size_t n), (f, from, n), -1)
CALL(ssize_t, pread, (int f, void *to, size_t n, off_t at), (f, to, n, at), -1)
CALL(ssize_t, pread64, (int f, void *to, size_t n, off64_t at), (f, to, n, at), -1)
CALL(ssize_t, pwrite, (int f, const void *from, size_t n, off_t at), (f, from, n, at), -1)
CALL(ssize_t, pwrite64, (int f, const void *from, size_t n, off64_t at), (f, from, n, at), -1)
CALL(off_t, lseek, (int f, off_t at, int whence), (f, at, whence), -1)
CALL(off64_t, lseek64, (int f, off64_t at, int whence), (f, at, whence), -1)
MAPPING(mmap)
MAPPING(mmap64)
CALL(int, ftruncate, (int f, off_t n), (f, n), -1)
CALL(int, ftruncate64, (int f, off64_t n), (f, n), -1)
CALL(int, fsync, (int f), (f), -1)
CALL(int, fdatasync, (int f), (f), -1)
CALL(int, dup, (int f), (f), -1)
CALL(int, flock, (int f, int what), (f, what), -1)
CALL(int, fchmod, (int f, mode_t mode), (f, mode), -1)
CALL(int, fchown, (int f, uid_t u, gid_t g), (f, u, g), -1)
CALL(int, stat, (const char *p, struct stat *to), (p, to), -1)
CALL(int, stat64, (const char *p, struct stat64 *to), (p, to), -1)
CALL(int, lstat, (const char *p, struct stat *to), (p, to), -1)
CALL(int, lstat64, (const char *p, struct stat64 *to), (p, to), -1)
CALL(int, fstat, (int f, struct stat *to), (f, to), -1)
CALL(int, fstat64, (int f, struct stat64 *to), (f, to), -1)
CALL(int, fstatat, (int d, const char *p, struct stat *to, int fl), (d, p, to, fl), -1)
CALL(int, fstatat64, (int d, const char *p, struct stat64 *to, int fl), (d, p, to, fl), -1)
CALL(int, statx, (int d, const char *p, int fl, unsigned m, struct statx *to), (d, p, fl, m, to),
     -1)
CALL(ssize_t, readlink, (const char *p, char *to, size_t n), (p, to, n), -1)
CALL(ssize_t, readlinkat, (int d, const char *p, char *to, size_t n), (d, p, to, n), -1)
CALL(int, mkdir, (const char *p, mode_t m), (p, m), -1)
CALL(int, mkdirat, (int d, const char *p, mode_t m), (d, p, m), -1)
CALL(int, link, (const char *p, const char *q), (p, q), -1)
CALL(int, linkat, (int d, const char *p, int e, const char *q, int fl), (d, p, e, q, fl), -1)
CALL(int, rename, (const char *p, const char *q), (p, q), -1)
CALL(int, renameat, (int d, const char *p, int e, const char *q), (d, p, e, q), -1)
CALL(int, unlink, (const char *p), (p), -1)
CALL(int, unlinkat, (int d, const char *p, int fl), (d, p, fl), -1)
CALL(int, poll, (struct pollfd * f, nfds_t n, int ms), (f, n, ms), -1)
CALL(int, socket, (int domain, int type, int protocol), (domain, type, protocol), -1)
CALL(DIR *, opendir, (const char *p), (p), NULL)
CALL(DIR *, fdopendir, (int f), (f), NULL)
CALL(FILE *, fopen, (const char *p, const char *m), (p, m), NULL)
CALL(FILE *, fopen64, (const char *p, const char *m), (p, m), NULL)

/* Linux takes six at most. */
long syscall(long number, ...)
{
    va_list more;
    long a[6];

    va_start(more, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(more, long);
    va_end(more);
    NEXT(syscall);
    return fails("syscall") ? -1 : next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
