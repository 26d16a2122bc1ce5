#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "driver.h"
#include "hooks.h"
#include "session.h"

enum { MOST_DEVICES = 64, MOST_CONTEXTS = 256 };

/* ---- Owners ------------------------------------------------------------------------ */

/*
 * A context that the program makes has a number of its own.  A primary context has one for each
 * of its lives: HR_PRIMARY_OWNER, the device and how often it was released or reset so far.  It
 * changes before the driver is called: what is allocated in the next life never looks like what
 * went with the last one.
 */
#define DEVICE_SHIFT 24
#define LIVES_MASK 0xffffffu

static _Atomic uint32_t lives[MOST_DEVICES];
static _Atomic uint32_t last_owner;

static uint32_t owner_in_life(CUdevice device, uint32_t life)
{
    return HR_PRIMARY_OWNER | (uint32_t)device << DEVICE_SHIFT | (life & LIVES_MASK);
}

static uint32_t primary_owner(CUdevice device)
{
    if (device < 0 || device >= MOST_DEVICES)
        return 0;
    return owner_in_life(device, atomic_load_explicit(&lives[device], memory_order_relaxed));
}

uint32_t hr_new_owner(void)
{
    return (atomic_fetch_add_explicit(&last_owner, 1, memory_order_relaxed) + 1) &
           ~HR_PRIMARY_OWNER;
}

uint32_t hr_end_life(CUdevice device)
{
    if (device < 0 || device >= MOST_DEVICES)
        return 0;
    return owner_in_life(device,
                         atomic_fetch_add_explicit(&lives[device], 1, memory_order_relaxed));
}

bool hr_is_ended(uint32_t owner, uint32_t ended)
{
    if ((ended & HR_PRIMARY_OWNER) == 0)
        return owner == ended;
    uint32_t age = (ended - owner) & LIVES_MASK;
    return (owner & ~LIVES_MASK) == (ended & ~LIVES_MASK) && age <= LIVES_MASK / 2;
}

/* ---- The table of contexts --------------------------------------------------------- */

/*
 * Read without a lock on the way of each allocation.  `context` is stored last and cleared first;
 * a thread that looks for a context while another destroys it gets the one or the other answer,
 * as it would from the driver.
 */
static struct {
    _Atomic(CUcontext) context; /* NULL: free */
    _Atomic uint32_t owner;     /* 0: the primary context's, whatever that is at the moment */
    _Atomic int device;
} contexts[MOST_CONTEXTS];
static _Atomic int contexts_used; /* how many places were ever taken */
static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER;

void hr_add_context(CUcontext context, CUdevice device, uint32_t owner)
{
    pthread_mutex_lock(&changing);
    int place = -1, used = atomic_load_explicit(&contexts_used, memory_order_relaxed);
    for (int at = 0; at < used; at++) {
        CUcontext other = atomic_load_explicit(&contexts[at].context, memory_order_relaxed);
        if (other == context) {
            place = at;
            break;
        }
        if (other == NULL)
            place = at;
    }
    if (place < 0 && used < MOST_CONTEXTS)
        place = used;
    if (place >= 0) {
        atomic_store_explicit(&contexts[place].owner, owner, memory_order_relaxed);
        atomic_store_explicit(&contexts[place].device, device, memory_order_relaxed);
        /* Release: a thread that finds the context also sees its owner and its device. */
        atomic_store_explicit(&contexts[place].context, context, memory_order_release);
        if (place == used)
            atomic_store_explicit(&contexts_used, used + 1, memory_order_release);
    }
    pthread_mutex_unlock(&changing);
}

bool hr_find_context(CUcontext context, struct hr_context *out)
{
    int used = atomic_load_explicit(&contexts_used, memory_order_acquire);
    if (__builtin_expect(hr_session_state() == HR_SESSION_FORKED, 0))
        return false;
    for (int at = 0; at < used; at++) {
        if (atomic_load_explicit(&contexts[at].context, memory_order_acquire) != context)
            continue;
        out->device = atomic_load_explicit(&contexts[at].device, memory_order_relaxed);
        out->owner = atomic_load_explicit(&contexts[at].owner, memory_order_relaxed);
        if (out->owner == 0)
            out->owner = primary_owner(out->device);
        out->row = hr_row_of_device(out->device);
        return true;
    }
    return false;
}

void hr_remove_context(CUcontext context)
{
    pthread_mutex_lock(&changing);
    int used = atomic_load_explicit(&contexts_used, memory_order_relaxed);
    for (int at = 0; at < used; at++) {
        if (atomic_load_explicit(&contexts[at].context, memory_order_relaxed) == context)
            atomic_store_explicit(&contexts[at].context, NULL, memory_order_release);
    }
    pthread_mutex_unlock(&changing);
}

/* A context that was made in a way that is not hooked. */
static bool adopt_context(CUcontext context, struct hr_context *out)
{
    CUdevice device;
    if (HR_CUDA(cuCtxGetDevice)(&device) != CUDA_SUCCESS)
        return false;
    uint32_t owner = hr_new_owner();
    hr_add_context(context, device, owner);
    *out = (struct hr_context){device, hr_row_of_device(device), owner};
    return true;
}

bool hr_current_context(struct hr_context *out)
{
    CUcontext context = NULL;
    if (HR_CUDA(cuCtxGetCurrent)(&context) != CUDA_SUCCESS || context == NULL)
        return false;
    return hr_find_context(context, out) || adopt_context(context, out);
}

bool hr_stream_context(CUstream stream, struct hr_context *out)
{
    /* The first numbers are the default streams, which every context has. */
    const uintptr_t last_default = 2;
    CUcontext context = NULL;
    if ((uintptr_t)stream > last_default &&
        HR_CUDA(cuStreamGetCtx)(stream, &context) == CUDA_SUCCESS && context != NULL &&
        hr_find_context(context, out))
        return true;
    return hr_current_context(out);
}
