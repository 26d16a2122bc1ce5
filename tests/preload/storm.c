/*
 * Many processes and threads that allocate and free: `storm SEED PROCESSES THREADS ROUNDS CALLS
 * LARGEST WAYS EXECS`. WAYS is the number of the ways to allocate that are used, in the order of
 * `enum way`. Each process is forked before it uses CUDA; with EXECS 1, it becomes a new program
 * in every other round. Threads of a process share its primary context; between rounds
 * it is released, reset or left with all that was allocated in it. In the end nothing is left but
 * what the driver gives back when a process ends.
 *
 * A refused allocation is expected; any other error ends the storm with exit status 1.
 */
#define _GNU_SOURCE
#include "calls.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define HELD 32

struct storm {
    uint64_t seed;
    int processes, threads, rounds, calls;
    size_t largest;
    int ways;
    bool execs;
};

static struct storm storm;
static CUcontext primary;
static _Atomic long refused, granted;

static uint64_t next(uint64_t *seed)
{
    *seed += 0x9e3779b97f4a7c15u;
    uint64_t mixed = *seed;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
    return mixed ^ (mixed >> 31);
}

/* ---- one thread ---- */

/* What is charged before the driver is asked, and then what is measured afterwards. */
enum way { LINEAR, PITCHED, ARRAY, PHYSICAL, ASYNC, CONTEXT };

struct held {
    enum way way;
    uint64_t what; /* an address or a handle; 0: nothing */
};

static CUresult take(struct held *held, size_t size)
{
    CUDA_ARRAY3D_DESCRIPTOR array = {.Width = size / 4096 + 1,
                                     .Height = 1024,
                                     .Format = 0x20, /* 32-bit floats */
                                     .NumChannels = 1};
    CUmemAllocationProp physical = {.type = 1, .location = {1, 0}};
    size_t pitch, granule = 2u << 20;
    switch (held->way) {
    case LINEAR:
        return cuMemAlloc_v2(&held->what, size);
    case PITCHED:
        return cuMemAllocPitch_v2(&held->what, &pitch, 1000, size / 1024 + 1, 4);
    case ASYNC:
        return cuMemAllocAsync(&held->what, size, NULL);
    case ARRAY:
        return cuArray3DCreate_v2((CUarray *)&held->what, &array);
    case PHYSICAL:
        return cuMemCreate(&held->what, (size / granule + 1) * granule, &physical, 0);
    default:
        return cuCtxCreate_v2((CUcontext *)&held->what, 0, 0);
    }
}

static CUresult give(struct held *held)
{
    switch (held->way) {
    case LINEAR:
    case PITCHED:
        return cuMemFree_v2(held->what);
    case ASYNC:
        return cuMemFreeAsync(held->what, NULL);
    case ARRAY:
        return cuArrayDestroy((CUarray)held->what);
    case PHYSICAL:
        return cuMemRelease(held->what);
    default:
        return cuCtxDestroy_v2((CUcontext)held->what);
    }
}

static void step(struct held *held, uint64_t *seed)
{
    if (held->what != 0) {
        MUST(give(held));
        held->what = 0;
        return;
    }
    held->way = (enum way)(next(seed) % (unsigned)storm.ways);
    CUresult code = take(held, next(seed) % storm.largest + 1);
    if (held->way == CONTEXT && code == CUDA_SUCCESS) {
        CUcontext made; /* it stands on top of the one that was current */
        MUST(cuCtxPopCurrent_v2(&made));
    }
    if (code == CUDA_SUCCESS) {
        granted++;
        return;
    }
    held->what = 0;
    if (code != CUDA_ERROR_OUT_OF_MEMORY)
        MUST(code);
    refused++;
}

struct part {
    uint64_t seed;
    bool tidies;
};

static void *play(void *given)
{
    struct part *part = given;
    struct held held[HELD] = {{0}};
    size_t free, total;
    MUST(cuCtxSetCurrent(primary));
    for (int call = 0; call < storm.calls; call++) {
        step(&held[next(&part->seed) % HELD], &part->seed);
        MUST(cuMemGetInfo_v2(&free, &total));
        if (free > total) {
            fprintf(stderr, "%zu bytes free of %zu\n", free, total);
            exit(1);
        }
    }
    /* What belongs to the context may stay; other contexts and physical memory would outlive it. */
    for (int number = 0; number < HELD; number++)
        if (held[number].what != 0 &&
            (part->tidies || held[number].way == PHYSICAL || held[number].way == CONTEXT))
            MUST(give(&held[number]));
    return NULL;
}

/* ---- one process ---- */

static void play_round(uint64_t seed)
{
    pthread_t threads[64];
    struct part parts[64];
    CUresult code = cuDevicePrimaryCtxRetain(&primary, 0);
    if (code == CUDA_ERROR_OUT_OF_MEMORY) {
        refused++;
        return;
    }
    MUST(code);
    int end = (int)(next(&seed) % 3);
    for (int number = 0; number < storm.threads; number++) {
        parts[number] = (struct part){next(&seed), end == 0};
        pthread_create(&threads[number], NULL, play, &parts[number]);
    }
    for (int number = 0; number < storm.threads; number++)
        pthread_join(threads[number], NULL);
    MUST(cuCtxSetCurrent(NULL));
    if (end == 2)
        MUST(cuDevicePrimaryCtxReset_v2(0));
    else
        MUST(cuDevicePrimaryCtxRelease_v2(0));
}

static void become_another(char **arguments, uint64_t seed, int rounds)
{
    char seed_text[32], rounds_text[32];
    snprintf(seed_text, sizeof seed_text, "%llu", (unsigned long long)seed);
    snprintf(rounds_text, sizeof rounds_text, "%d", rounds);
    char *again[] = {arguments[0], seed_text,    "0",          arguments[3], rounds_text,
                     arguments[5], arguments[6], arguments[7], arguments[8], NULL};
    execv("/proc/self/exe", again);
    exit(127);
}

static int play_process(char **arguments, uint64_t seed)
{
    MUST(cuInit(0));
    for (int round = 0; round < storm.rounds; round++) {
        play_round(next(&seed));
        if (storm.execs && round + 1 < storm.rounds && next(&seed) % 2 == 0)
            become_another(arguments, next(&seed), storm.rounds - round - 1);
    }
    fprintf(stderr, "%ld %ld\n", granted, refused);
    return 0;
}

int main(int count, char **arguments)
{
    check_usage(count == 9, "storm SEED PROCESSES THREADS ROUNDS CALLS LARGEST WAYS EXECS");
    storm = (struct storm){strtoull(arguments[1], NULL, 10),
                           atoi(arguments[2]),
                           atoi(arguments[3]),
                           atoi(arguments[4]),
                           atoi(arguments[5]),
                           strtoull(arguments[6], NULL, 10),
                           atoi(arguments[7]),
                           atoi(arguments[8]) != 0};
    if (storm.processes == 0)
        return play_process(arguments, storm.seed);
    int failed = 0;
    for (int number = 0; number < storm.processes; number++) {
        uint64_t seed = next(&storm.seed);
        if (fork() == 0)
            exit(play_process(arguments, seed));
    }
    for (int number = 0; number < storm.processes; number++) {
        int status;
        wait(&status);
        failed |= status != 0;
    }
    return failed;
}
