#define _GNU_SOURCE
#include "scene.h"

#include "../fake_cuda/state.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static struct state *state;

static void show_device(struct scene *scene, unsigned gpu)
{
    unsigned char bytes[16];
    struct device device = {.exists = true, .total = state->memory_bytes};
    device.used = state_used(state, gpu);
    device.gpu_percent = state->gpus[gpu].sample_percent;
    state_uuid(gpu, bytes);
    int at = snprintf(device.uuid, sizeof device.uuid, "GPU-");
    for (int number = 0; number < 16; number++)
        at += snprintf(device.uuid + at, sizeof device.uuid - (size_t)at, "%s%02x",
                       number == 4 || number == 6 || number == 8 || number == 10 ? "-" : "",
                       bytes[number]);
    snprintf(device.name, sizeof device.name, "NVIDIA Fake GPU");
    scene->devices[gpu][0] = device;
}

static void show_client(struct scene *scene, const struct client *client, unsigned gpu,
                        uint64_t now_ns)
{
    struct place place = {(int)gpu, WHOLE};
    unsigned pid = (unsigned)client->pid + (unsigned)state->pid_offset;
    if (scene->is_private && client->pid != getpid())
        return;
    if (client->contexts[gpu] > 0 && scene->process_count < PROCESSES)
        scene->processes[scene->process_count++] =
            (struct process){place, COMPUTE, pid, client->used[gpu]};
    if (client->sample_at_ns[gpu] != 0 && scene->sample_count < SAMPLES)
        scene->samples[scene->sample_count++] = (struct sample){
            .place = place, .pid = pid, .age_us = (now_ns - client->sample_at_ns[gpu]) / 1000};
}

bool show_live(struct scene *scene)
{
    if (state == NULL)
        state = state_open();
    if (state == NULL)
        return false;
    scene->is_live = true;
    scene->process_count = scene->sample_count = 0;
    if (scene->driver[0] == '\0')
        snprintf(scene->driver, sizeof scene->driver, "580.0-fake");
    state_lock(state);
    state_reap(state);
    for (unsigned gpu = 0; gpu < state->gpu_count; gpu++) {
        uint64_t now_ns = state_clock_ns();
        state_advance(state, gpu, now_ns);
        show_device(scene, gpu);
        for (uint32_t number = 0; number < state->client_count; number++)
            if (state->clients[number].pid != 0)
                show_client(scene, &state->clients[number], gpu, now_ns);
    }
    state_unlock(state);
    return true;
}

void count_live_question(unsigned gpu)
{
    atomic_fetch_add(&state->gpus[gpu].nvml_questions, 1);
}

unsigned live_percent(unsigned gpu, unsigned pid, uint64_t since_us)
{
    struct timespec now;
    unsigned percent = 0;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t now_us = (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
    uint64_t now_ns = state_clock_ns(), age_ns = (now_us - since_us) * 1000u;
    state_lock(state);
    for (uint32_t number = 0; number < state->client_count; number++)
        if (state->clients[number].pid == (int32_t)(pid - state->pid_offset))
            percent = state_percent(state, &state->clients[number], gpu,
                                    age_ns < now_ns ? now_ns - age_ns : 0);
    state_unlock(state);
    return percent;
}
