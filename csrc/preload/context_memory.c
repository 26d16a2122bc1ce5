#define _GNU_SOURCE
#include "context_memory.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "charges.h"
#include "forks.h"
#include "nvml.h"
#include "session.h"

enum { TRIES = 3 };

/* Of each row, in bytes: what is charged, and what is about to be; under `changing`. */
static uint64_t charged[HR_DEVICES], pending[HR_DEVICES];
static _Atomic bool was_found[HR_DEVICES]; /* by NVML, under the pid that this process has there */
static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER;

void hr_fork_context_memory(enum hr_fork at)
{
    if (at == HR_BEFORE_FORK) {
        pthread_mutex_lock(&changing);
        return;
    }
    if (at == HR_IN_CHILD) {
        memset(charged, 0, sizeof charged);
        memset(pending, 0, sizeof pending);
        memset(was_found, 0, sizeof was_found);
    }
    pthread_mutex_unlock(&changing);
}

static CUresult count_contexts(int row, uint64_t bytes)
{
    pthread_mutex_lock(&changing);
    uint64_t covered = charged[row] + pending[row];
    uint64_t more = bytes > covered ? bytes - covered : 0;
    uint64_t less = bytes < charged[row] ? charged[row] - bytes : 0;
    pending[row] += more;
    charged[row] -= less;
    pthread_mutex_unlock(&changing);
    hr_give_back_bytes(row, HR_CONTEXT, less);
    if (more == 0)
        return CUDA_SUCCESS;
    CUresult result = hr_take_bytes(row, HR_CONTEXT, more);
    pthread_mutex_lock(&changing);
    pending[row] -= more;
    if (result == CUDA_SUCCESS)
        charged[row] += more;
    pthread_mutex_unlock(&changing);
    return result;
}

/* False: NVML does not tell.  Once it has named this process, not to name it means nothing used. */
static bool read_own_bytes(int row, CUdevice device, uint64_t *out)
{
    enum hr_nvml_answer answer = hr_nvml_own_bytes(device, out);
    if (answer == HR_NVML_FOUND)
        atomic_store_explicit(&was_found[row], true, memory_order_relaxed);
    else
        *out = 0;
    return answer == HR_NVML_FOUND || (answer == HR_NVML_ABSENT &&
                                       atomic_load_explicit(&was_found[row], memory_order_relaxed));
}

CUresult hr_measure_contexts(int row)
{
    CUdevice device = row < 0 ? -1 : hr_device_of_row(row);
    uint64_t counted;
    if (device < 0)
        return CUDA_SUCCESS;
    for (int tries = 0; tries < TRIES; tries++) {
        struct hr_row_state before = hr_state_of_row(row);
        if (!read_own_bytes(row, device, &counted))
            return CUDA_SUCCESS;
        struct hr_row_state after = hr_state_of_row(row);
        if (before.ended == before.begun && after.begun == before.begun)
            return count_contexts(row, counted > after.bytes ? counted - after.bytes : 0);
    }
    return CUDA_SUCCESS;
}
