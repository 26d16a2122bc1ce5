/* What tests ask about the GPUs, of a driver that need not be initialised; and what it does by
 * itself where they want it. */
#include "fake.h"

static struct state *observed(unsigned gpu)
{
    if (fake.state == NULL)
        fake.state = state_open();
    return fake.state != NULL && gpu < fake.state->gpu_count ? fake.state : NULL;
}

/* The most memory that has been in use at one time. */
API CUresult fake_cuda_used_high(unsigned gpu, uint64_t *bytes)
{
    struct state *state = observed(gpu);
    if (state == NULL)
        return CUDA_ERROR_NO_DEVICE;
    state_lock(state);
    *bytes = state->gpus[gpu].used_high;
    state_unlock(state);
    return CUDA_SUCCESS;
}

/* How long a GPU has worked, for one process or, with pid 0, for all that there ever were. */
API CUresult fake_cuda_busy_ns(unsigned gpu, int pid, uint64_t *ns)
{
    struct state *state = observed(gpu);
    if (state == NULL)
        return CUDA_ERROR_NO_DEVICE;
    state_lock(state);
    state_advance(state, gpu, state_clock_ns());
    *ns = pid == 0 ? state->gpus[gpu].busy_ns : 0;
    for (uint32_t number = 0; number < state->client_count && pid != 0; number++)
        if (state->clients[number].pid == pid)
            *ns = state->clients[number].done_ns[gpu];
    state_unlock(state);
    return CUDA_SUCCESS;
}

/* How often NVML was asked how busy a GPU or its processes are, by all that there ever were. */
API CUresult fake_cuda_nvml_questions(unsigned gpu, uint64_t *count)
{
    struct state *state = observed(gpu);
    if (state == NULL)
        return CUDA_ERROR_NO_DEVICE;
    *count = state->gpus[gpu].nvml_questions;
    return CUDA_SUCCESS;
}

/* Take memory of a device as the driver does for itself: local memory, a device heap, code. */
API CUresult fake_cuda_grow(int device, uint64_t bytes)
{
    CUresult code = check_device(device);
    return code == CUDA_SUCCESS ? charge(device, bytes) : code;
}
