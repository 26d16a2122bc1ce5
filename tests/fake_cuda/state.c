#define _GNU_SOURCE
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* Written last by who makes the file; another one stands in a file of another build. */
#define READY (0x46414b4500000000u + sizeof(struct state))
#define MAKING_BYTE ((off_t)MAX_CLIENTS)

static int state_file = -1;
static struct client *joined; /* as this process; NULL: it only looks */

static uint64_t setting(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text == NULL || *text == '\0' ? otherwise : strtoull(text, NULL, 0);
}

uint64_t state_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Locks belong to the open file: they end with the process, and with exec, which closes it. */
static int byte_lock(int file, int command, short type, off_t byte)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    int result;
    do
        result = fcntl(file, command, &lock);
    while (result != 0 && errno == EINTR);
    return command == F_OFD_GETLK && result == 0 ? lock.l_type : result;
}

static void make(struct state *state)
{
    state->gpu_count = (uint32_t)setting("FAKE_CUDA_DEVICES", 2);
    if (state->gpu_count > MAX_GPUS)
        state->gpu_count = MAX_GPUS;
    state->memory_bytes = setting("FAKE_CUDA_MEMORY", 16ull << 30);
    state->context_bytes = setting("FAKE_CUDA_CONTEXT", 256ull << 20);
    state->launch_ns = setting("FAKE_CUDA_LAUNCH_NS", 0);
    state->block_ns = setting("FAKE_CUDA_BLOCK_NS", 0);
    state->sample_ns = setting("FAKE_CUDA_SAMPLE_MS", 166) * 1000000u;
    state->pid_offset = setting("FAKE_CUDA_PID_OFFSET", 0);
    uint64_t now_ns = state_clock_ns();
    for (unsigned gpu = 0; gpu < state->gpu_count; gpu++) {
        state->gpus[gpu].now_ns = now_ns;
        state->gpus[gpu].next_sample_ns = now_ns + state->sample_ns;
    }
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&state->mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
    state->ready = READY;
}

struct state *state_open(void)
{
    const char *path = getenv("FAKE_CUDA_STATE");
    if (path == NULL || *path == '\0')
        return NULL;
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0)
        return NULL;
    struct state *state = NULL;
    if (byte_lock(file, F_OFD_SETLKW, F_WRLCK, MAKING_BYTE) == 0 &&
        ftruncate(file, sizeof *state) == 0) {
        state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (state != MAP_FAILED && state->ready == 0)
            make(state);
        byte_lock(file, F_OFD_SETLK, F_UNLCK, MAKING_BYTE);
    }
    if (state == NULL || state == MAP_FAILED || state->ready != READY) {
        close(file);
        return NULL;
    }
    state_file = file;
    return state;
}

void state_lock(struct state *state)
{
    /* A process that was killed inside has left single words behind, each old or new. */
    if (pthread_mutex_lock(&state->mutex) == EOWNERDEAD)
        pthread_mutex_consistent(&state->mutex);
}

void state_unlock(struct state *state)
{
    pthread_mutex_unlock(&state->mutex);
}

static bool is_gone(const struct state *state, const struct client *client)
{
    off_t number = client - state->clients;
    return byte_lock(state_file, F_OFD_GETLK, F_WRLCK, number) == F_UNLCK;
}

struct client *state_join(struct state *state, int32_t pid)
{
    state_reap(state);
    for (off_t number = 0; number < MAX_CLIENTS; number++) {
        struct client *client = &state->clients[number];
        if (client->pid != 0 || byte_lock(state_file, F_OFD_SETLK, F_WRLCK, number) != 0)
            continue;
        memset(client, 0, sizeof *client);
        client->pid = pid;
        if (state->client_count <= number)
            state->client_count = (uint32_t)number + 1;
        joined = client;
        return client;
    }
    return NULL;
}

void state_abandon(void)
{
    close(state_file);
    state_file = -1;
    joined = NULL;
}

/* The lock on `joined` is this process's own, which does not show to itself. */
void state_reap(struct state *state)
{
    for (uint32_t number = 0; number < state->client_count; number++) {
        struct client *client = &state->clients[number];
        if (client->pid != 0 && client != joined && is_gone(state, client))
            memset(client, 0, sizeof *client);
    }
    while (state->client_count > 0 && state->clients[state->client_count - 1].pid == 0)
        state->client_count--;
}

uint64_t state_used(const struct state *state, unsigned gpu)
{
    uint64_t used = 0;
    for (uint32_t number = 0; number < state->client_count; number++)
        used += state->clients[number].used[gpu];
    return used;
}

unsigned state_working(const struct state *state, unsigned gpu)
{
    unsigned working = 0;
    for (uint32_t number = 0; number < state->client_count; number++) {
        const struct client *client = &state->clients[number];
        working += client->submitted_ns[gpu] > client->done_ns[gpu];
    }
    return working;
}

static void take_sample(struct state *state, unsigned gpu)
{
    struct gpu *here = &state->gpus[gpu];
    for (uint32_t number = 0; number < state->client_count; number++) {
        struct client *client = &state->clients[number];
        uint64_t worked = client->done_ns[gpu] - client->sampled_ns[gpu];
        client->sampled_ns[gpu] = client->done_ns[gpu];
        client->samples_percent[gpu][here->sample_count % SAMPLES_KEPT] =
            (uint8_t)((worked * 100 + state->sample_ns / 2) / state->sample_ns);
        if (worked != 0)
            client->sample_at_ns[gpu] = here->next_sample_ns;
    }
    here->sample_percent = (uint32_t)((here->busy_ns - here->sampled_ns) * 100 / state->sample_ns);
    here->sampled_ns = here->busy_ns;
    here->next_sample_ns += state->sample_ns;
    here->sample_count++;
}

/* Samples in which nobody has worked. */
static void take_zeros(struct state *state, unsigned gpu, uint64_t count)
{
    struct gpu *here = &state->gpus[gpu];
    uint64_t kept = count < SAMPLES_KEPT ? count : SAMPLES_KEPT;
    for (uint32_t number = 0; number < state->client_count; number++)
        for (uint64_t at = 0; at < kept; at++)
            state->clients[number].samples_percent[gpu][(here->sample_count + at) % SAMPLES_KEPT] =
                0;
    here->next_sample_ns += count * state->sample_ns;
    here->sample_count += count;
    here->sample_percent = 0;
}

unsigned state_percent(const struct state *state, const struct client *client, unsigned gpu,
                       uint64_t since_ns)
{
    const struct gpu *here = &state->gpus[gpu];
    uint64_t at_ns = here->next_sample_ns - state->sample_ns, sum = 0, count = 0;
    while (count < SAMPLES_KEPT && count < here->sample_count && at_ns > since_ns) {
        count++;
        sum += client->samples_percent[gpu][(here->sample_count - count) % SAMPLES_KEPT];
        at_ns -= state->sample_ns;
    }
    return count == 0 ? 0 : (unsigned)((sum + count / 2) / count);
}

/* Let everybody with work do the same amount: as much as there is time for, but no more than the
 * least that one of them has left. */
static void work(struct state *state, unsigned gpu, uint64_t until_ns)
{
    struct gpu *here = &state->gpus[gpu];
    unsigned working = state_working(state, gpu);
    uint64_t each = working == 0 ? 0 : (until_ns - here->now_ns) / working;
    for (uint32_t number = 0; number < state->client_count; number++) {
        const struct client *client = &state->clients[number];
        uint64_t left = client->submitted_ns[gpu] - client->done_ns[gpu];
        if (left > 0 && left < each)
            each = left;
    }
    if (each == 0) {
        here->now_ns = until_ns;
        return;
    }
    for (uint32_t number = 0; number < state->client_count; number++) {
        struct client *client = &state->clients[number];
        if (client->submitted_ns[gpu] > client->done_ns[gpu])
            client->done_ns[gpu] += each;
    }
    here->busy_ns += each * working;
    here->now_ns += each * working;
}

void state_advance(struct state *state, unsigned gpu, uint64_t now_ns)
{
    struct gpu *here = &state->gpus[gpu];
    while (here->now_ns < now_ns) {
        bool idle = here->busy_ns == here->sampled_ns && state_working(state, gpu) == 0;
        if (idle && here->next_sample_ns < now_ns)
            take_zeros(state, gpu, (now_ns - here->next_sample_ns) / state->sample_ns);
        work(state, gpu, here->next_sample_ns < now_ns ? here->next_sample_ns : now_ns);
        if (here->now_ns >= here->next_sample_ns)
            take_sample(state, gpu);
    }
}

void state_uuid(unsigned gpu, unsigned char uuid[16])
{
    memset(uuid, 0, 16);
    memcpy(uuid, "\xfa\xce\xc0\xda", 4);
    uuid[15] = (unsigned char)(gpu + 1);
}
