/*
 * Checks that say where they failed and what they saw, and go on: one run shows
 * every broken promise, not the first.
 */
#ifndef CHECK_H
#define CHECK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

/* Long loops and crowds are divided by it; the Makefile sets it where time is short. */
#ifndef SHARE_OF_WORK
#define SHARE_OF_WORK 1
#endif

/* Threads check too. */
static atomic_ulong check_count;
static atomic_ulong check_failures;

/* A broken loop should not bury its first report. */
enum { CHECK_REPORTS = 50 };

#define CHECK_FAILED(...)                                                                          \
    do {                                                                                           \
        if (atomic_fetch_add(&check_failures, 1) < CHECK_REPORTS) {                                \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, __func__);                          \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fputc('\n', stderr);                                                                   \
        }                                                                                          \
    } while (0)

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        atomic_fetch_add(&check_count, 1);                                                         \
        if (!(condition))                                                                          \
            CHECK_FAILED("%s", #condition);                                                        \
    } while (0)

/* Numbers up to 64 bits, shown as signed: codes are negative. */
#define CHECK_EQ(found, expected)                                                                  \
    do {                                                                                           \
        const int64_t check_found = (int64_t)(found), check_expected = (int64_t)(expected);        \
        atomic_fetch_add(&check_count, 1);                                                         \
        if (check_found != check_expected)                                                         \
            CHECK_FAILED("%s is %lld, not %lld", #found, (long long)check_found,                   \
                         (long long)check_expected);                                               \
    } while (0)

/* For what the test itself needs: without it nothing that follows means anything. */
#define NEED(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: cannot go on without %s: ", __FILE__, __LINE__, #condition);   \
            perror(NULL);                                                                          \
            exit(2);                                                                               \
        }                                                                                          \
    } while (0)

#define RUN_CALL(name, call)                                                                       \
    do {                                                                                           \
        const unsigned long check_before = atomic_load(&check_failures);                           \
        call;                                                                                      \
        if (atomic_load(&check_failures) != check_before)                                          \
            fprintf(stderr, "FAILED %s\n", name);                                                  \
    } while (0)

#define RUN(test) RUN_CALL(#test, test())

/* ---- What tests of threads and processes need --------------------------------- */

#define ONE_SECOND UINT64_C(1000000000)

static inline uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * ONE_SECOND + (uint64_t)now.tv_nsec;
}

static inline void nap_us(uint64_t us)
{
    const struct timespec nap = {.tv_sec = (time_t)(us / 1000000),
                                 .tv_nsec = (long)(us % 1000000) * 1000};
    nanosleep(&nap, NULL);
}

static inline uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

/* Zeros that children write for their parent. */
static inline void *share_memory(size_t bytes)
{
    void *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(shared != MAP_FAILED);
    return shared;
}

/* Waiting in the kernel. */
static inline bool is_asleep(int pid)
{
    char path[64], state = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *stat = fopen(path, "re");
    if (stat == NULL)
        return false;
    const int fields = fscanf(stat, "%*d (%*[^)]) %c", &state);
    fclose(stat);
    return fields == 1 && state == 'S';
}

/* ---- The end -------------------------------------------------------------------- */

static inline int check_report(const char *name)
{
    const unsigned long failures = atomic_load(&check_failures);
    printf("%s: %lu checks, %lu failed\n", name, atomic_load(&check_count), failures);
    return failures != 0;
}

#endif
