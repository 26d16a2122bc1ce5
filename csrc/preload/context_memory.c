/*
 * What the driver uses for itself on behalf of this process: contexts, code, local memory.  NVML
 * alone says it, in one figure with what the process has allocated.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdbool.h>
#include <time.h>

#include "memory.h"
#include "session.h"

/* How often the driver is asked for a figure that belongs to one moment: by the thread that looks
 * around, and, every millisecond, by one that has just made a context. */
enum { TRIES = 3, PATIENT_TRIES = 100 };
#define NAP_NS 1000000

/* A driver that no longer answers holds up no thread for longer. */
#define LONGEST_MEASURE_S 10

/* Of each row, under `measuring`. */
static uint64_t charged[HR_DEVICES];  /* bytes */
static bool has_contexts[HR_DEVICES]; /* this process has made some, and not seen their end */

/* The driver's last figure. */
static _Atomic uint64_t driver_bytes[HR_DEVICES];

/* Held while the driver is asked and the answer counted, so that each answer is counted once. */
static pthread_mutex_t measuring = PTHREAD_MUTEX_INITIALIZER;

/* ---- The driver's figure ------------------------------------------------------------ */

/* The bounds of what the driver uses for itself. */
struct bounds {
    uint64_t least, most;
};

static uint64_t without(uint64_t bytes, uint64_t part)
{
    return bytes > part ? bytes - part : 0;
}

/*
 * Managed memory may be on the device or not, so all of it, or nothing, may be in NVML's figure.
 * While allocations go on, no more than was charged at most can be in it: that is a lower bound.
 */
static struct bounds bounds_of(uint64_t counted, const struct hr_row_state *state, bool is_quiet)
{
    uint64_t bytes = is_quiet ? state->bytes : state->most_bytes;
    uint64_t most = without(counted, bytes);
    return (struct bounds){.least = without(most, state->managed_bytes),
                           .most = is_quiet ? most : UINT64_MAX};
}

/* False: NVML does not say. */
static bool read_bounds(int row, nvmlDevice_t device, int tries, struct bounds *out)
{
    const struct timespec nap = {.tv_nsec = NAP_NS};
    for (int number = 1;; number++) {
        uint64_t counted;
        hr_watch_most_bytes(row);
        struct hr_row_state before = hr_state_of_row(row);
        if (!hr_nvml_own_bytes(row, device, has_contexts[row], &counted))
            return false;
        atomic_store_explicit(&driver_bytes[row], counted, memory_order_relaxed);
        struct hr_row_state after = hr_state_of_row(row);
        bool is_quiet = before.ended == before.begun && after.begun == before.begun;
        if (is_quiet || number == tries) {
            *out = bounds_of(counted, &after, is_quiet);
            return true;
        }
        if (number >= TRIES)
            nanosleep(&nap, NULL);
    }
}

/* ---- Counting it -------------------------------------------------------------------- */

static CUresult charge_more(int row, uint64_t bytes, bool may_refuse)
{
    if (may_refuse) {
        CUresult result = hr_take_bytes(row, HR_CONTEXT, bytes);
        if (result != CUDA_SUCCESS)
            return result;
    } else {
        hr_count_bytes(row, HR_CONTEXT, bytes);
    }
    charged[row] += bytes;
    return CUDA_SUCCESS;
}

static bool is_above_limit(int row)
{
    hr_region *region = hr_session_region();
    return region != NULL && hr_passes_limit(region, row);
}

static CUresult measure(int row, nvmlDevice_t device, bool is_new)
{
    struct bounds bounds;
    if (!read_bounds(row, device, is_new ? PATIENT_TRIES : TRIES, &bounds))
        return CUDA_SUCCESS;
    if (bounds.least > charged[row])
        return charge_more(row, bounds.least - charged[row], is_new);
    if (bounds.most < charged[row]) {
        hr_give_back_bytes(row, HR_CONTEXT, charged[row] - bounds.most);
        charged[row] = bounds.most;
    }
    /* Another thread may have counted the new one already, whatever the limit. */
    return is_new && is_above_limit(row) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static CUresult measure_alone(int row, bool is_new)
{
    int state;
    nvmlDevice_t device;
    /* Loads NVML, and so takes the loader's lock, under which another thread may be waiting here.
     */
    if (!hr_nvml_device(row, &device))
        return CUDA_SUCCESS;
    /* A thread that is cancelled as it asks would keep the lock. */
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
    CUresult result = CUDA_SUCCESS;
    struct timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += LONGEST_MEASURE_S;
    if (pthread_mutex_timedlock(&measuring, &deadline) == 0) {
        has_contexts[row] = has_contexts[row] || is_new;
        result = measure(row, device, is_new);
        pthread_mutex_unlock(&measuring);
    }
    pthread_setcancelstate(state, NULL);
    return result;
}

CUresult hr_admit_context(int row)
{
    return measure_alone(row, true);
}

uint64_t hr_measure_contexts(int row)
{
    measure_alone(row, false);
    return row < 0 ? 0 : atomic_load_explicit(&driver_bytes[row], memory_order_relaxed);
}
