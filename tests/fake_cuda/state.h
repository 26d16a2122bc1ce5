/*
 * The GPUs of the fake driver, in one file that all its processes map: who uses how much memory,
 * and who has how much work to do. The file is named by FAKE_CUDA_STATE; the first process that
 * opens it makes it, after these variables:
 *
 *   FAKE_CUDA_DEVICES       number of GPUs; 2
 *   FAKE_CUDA_MEMORY        bytes of each; 16 GiB
 *   FAKE_CUDA_CONTEXT       bytes that one context takes; 256 MiB
 *   FAKE_CUDA_LAUNCH_NS     time that each launch takes; 0
 *   FAKE_CUDA_BLOCK_NS      time that each of its blocks takes on top; 0
 *   FAKE_CUDA_SAMPLE_MS     period of the utilisation samples; 166
 *   FAKE_CUDA_PID_OFFSET    what NVML's pids are above those of the processes, as in a container
 *                           whose driver shows the pids of the host; 0
 *
 * FAKE_CUDA_END_MS is a process's own: how long the driver takes to end with it.
 *
 * A GPU works for all processes with queued work at once, each at an equal share of its speed.
 * Nothing runs in the background: whoever looks first advances the GPU to the present.
 */
#ifndef FAKE_CUDA_STATE_H
#define FAKE_CUDA_STATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define MAX_GPUS 8
#define MAX_CLIENTS 1024
#define SAMPLES_KEPT 128

/* A process that has initialised the driver. It holds a lock on the byte of its number in the
 * state file for as long as it lives and has not called exec. */
struct client {
    int32_t pid; /* 0: free */
    uint64_t used[MAX_GPUS];
    uint64_t contexts[MAX_GPUS];     /* number of contexts */
    uint64_t submitted_ns[MAX_GPUS]; /* all work ever queued, and how much of it is done */
    uint64_t done_ns[MAX_GPUS];
    uint64_t sampled_ns[MAX_GPUS];                   /* done_ns at the last sample */
    uint64_t sample_at_ns[MAX_GPUS];                 /* the last sample in which it had worked */
    uint8_t samples_percent[MAX_GPUS][SAMPLES_KEPT]; /* by the number of the sample */
};

struct gpu {
    uint64_t now_ns; /* CLOCK_MONOTONIC up to which the work is done */
    uint64_t next_sample_ns;
    uint64_t busy_ns;
    uint64_t used_high; /* the most that has been in use at one time */
    uint64_t sampled_ns;
    uint32_t sample_percent;
    uint64_t sample_count; /* taken so far */
    /* How often the fake libnvidia-ml.so.1 was asked how busy it or its processes are. */
    _Atomic uint64_t nvml_questions;
};

struct state {
    uint64_t ready;
    pthread_mutex_t mutex; /* robust; over everything below; driver.py reads its owner */
    uint32_t gpu_count;
    uint32_t client_count; /* clients at and above this number are free */
    uint64_t memory_bytes, context_bytes, launch_ns, block_ns, sample_ns, pid_offset;
    struct gpu gpus[MAX_GPUS];
    struct client clients[MAX_CLIENTS];
};

/* Map the file that FAKE_CUDA_STATE names, and make it if it is not there. NULL: no driver. */
struct state *state_open(void);

/* For the child after fork: the parent's lock stays the parent's. */
void state_abandon(void);

void state_lock(struct state *state);
void state_unlock(struct state *state);

/* All of these are called with the state locked. */
struct client *state_join(struct state *state, int32_t pid); /* NULL: the table is full */
void state_reap(struct state *state);
uint64_t state_used(const struct state *state, unsigned gpu);
void state_advance(struct state *state, unsigned gpu, uint64_t now_ns);
/* The average of a client's samples since then, of those that are kept: the zeros count too. */
unsigned state_percent(const struct state *state, const struct client *client, unsigned gpu,
                       uint64_t since_ns);
/* How many processes have work on a GPU. */
unsigned state_working(const struct state *state, unsigned gpu);

void state_uuid(unsigned gpu, unsigned char uuid[16]);
uint64_t state_clock_ns(void);

#endif
