/*
 * Contexts: where a process joins its region, and what goes away with one.
 */
#define _GNU_SOURCE
#include <stdbool.h>

#include "hooks.h"
#include "memory.h"
#include "session.h"

static CUresult enter(CUdevice device)
{
    CUresult result = hr_enter_memory_call();
    if (result == CUDA_SUCCESS)
        hr_note_others(device);
    return result;
}

/* Count a context that was just made; before that is refused, this process's pools are trimmed. */
static CUresult count_context(CUdevice device)
{
    int row = hr_row_of_device(device);
    CUresult result = hr_admit_context(row);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && hr_trim_pools(row))
        result = hr_admit_context(row);
    return result;
}

/* The driver has ended one that was refused, which may have been counted meanwhile. */
static CUresult refuse_context(CUdevice device, CUresult result)
{
    hr_measure_contexts(hr_row_of_device(device));
    return hr_count_refusal(result);
}

/* Also if the driver does not say: then nothing is taken for freed. */
static bool is_primary_active(CUdevice device)
{
    unsigned flags;
    int is_active = 0;
    return HR_CUDA(cuDevicePrimaryCtxGetState)(device, &flags, &is_active) != CUDA_SUCCESS ||
           is_active != 0;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device)
{
    CUresult result = enter(device);
    if (result != CUDA_SUCCESS)
        return result;
    bool was_active = is_primary_active(device);
    result = HR_CUDA(cuDevicePrimaryCtxRetain)(out, device);
    if (result != CUDA_SUCCESS)
        return result;
    hr_add_context(*out, device, 0);
    if (was_active)
        return CUDA_SUCCESS;
    result = count_context(device);
    if (result == CUDA_SUCCESS)
        return CUDA_SUCCESS;
    HR_CUDA(cuDevicePrimaryCtxRelease_v2)(device);
    return refuse_context(device, result);
}

static CUresult count_new_context(CUresult result, const CUcontext *out, CUdevice device)
{
    if (result != CUDA_SUCCESS)
        return result;
    hr_add_context(*out, device, hr_new_owner());
    result = count_context(device);
    if (result == CUDA_SUCCESS)
        return CUDA_SUCCESS;
    hr_remove_context(*out);
    HR_CUDA(cuCtxDestroy_v2)(*out);
    return refuse_context(device, result);
}

/* Each is one driver function, so that a program gets the context that it asks for. */
#define CREATE(name, parameters, arguments)                                                        \
    CUresult name parameters                                                                       \
    {                                                                                              \
        CUresult result = enter(device);                                                           \
        if (result != CUDA_SUCCESS)                                                                \
            return result;                                                                         \
        return count_new_context(HR_CUDA(name) arguments, out, device);                            \
    }
HR_CREATION_HOOKS(CREATE)
HR_NEW_CREATION_HOOKS(CREATE)

static CUcontext context_of_green(CUgreenCtx green)
{
    CUcontext context = NULL;
    return HR_CUDA(cuCtxFromGreenCtx)(&context, green) == CUDA_SUCCESS ? context : NULL;
}

/* A green context uses its device's primary context, with which its memory ends. */
CUresult cuGreenCtxCreate(CUgreenCtx *out, CUdevResourceDesc resources, CUdevice device,
                          unsigned flags)
{
    CUresult result = enter(device);
    if (result != CUDA_SUCCESS)
        return result;
    result = HR_CUDA(cuGreenCtxCreate)(out, resources, device, flags);
    if (result != CUDA_SUCCESS)
        return result;
    result = count_context(device);
    if (result == CUDA_SUCCESS) {
        CUcontext context = context_of_green(*out);
        if (context != NULL)
            hr_add_context(context, device, 0);
        return CUDA_SUCCESS;
    }
    HR_CUDA(cuGreenCtxDestroy)(*out);
    return refuse_context(device, result);
}

/* ---- Ending them -------------------------------------------------------------------- */

static bool ended_with(const struct hr_entry *entry, uint32_t owner)
{
    bool is_of_context =
        entry->space == HR_POINTER || entry->space == HR_ARRAY || entry->space == HR_MIPMAPPED;
    return is_of_context && !entry->in_pool && hr_is_ended(entry->owner, owner);
}

static void forget_owner(uint32_t owner, CUdevice device)
{
    hr_table_sweep(ended_with, owner, hr_give_back_entry);
    hr_empty_pools(device);
    hr_measure_contexts(hr_row_of_device(device));
}

/* A release may leave it to other users; a reset ends what it has allocated in any case. */
#define PRIMARY_HOOK(name, may_stay)                                                               \
    CUresult name(CUdevice device)                                                                 \
    {                                                                                              \
        uint32_t owner = hr_end_life(device);                                                      \
        CUresult result = HR_CUDA(name)(device);                                                   \
        if (result == CUDA_SUCCESS && owner != 0 && !(may_stay && is_primary_active(device)))      \
            forget_owner(owner, device);                                                           \
        return result;                                                                             \
    }
PRIMARY_HOOK(cuDevicePrimaryCtxRelease, true)
PRIMARY_HOOK(cuDevicePrimaryCtxRelease_v2, true)
PRIMARY_HOOK(cuDevicePrimaryCtxReset, false)
PRIMARY_HOOK(cuDevicePrimaryCtxReset_v2, false)

static bool is_current(CUcontext context)
{
    CUcontext current = NULL;
    return HR_CUDA(cuCtxGetCurrent)(&current) == CUDA_SUCCESS && current == context;
}

/* `may_stay`: not each call ends the context, which is then still the current one. */
static CUresult destroy_context(CUcontext context, CUresult (*destroy)(CUcontext context),
                                bool may_stay)
{
    struct hr_context known;
    if (context == NULL || !hr_find_context(context, &known))
        return destroy(context);
    /* Before the driver may give another context the same address. */
    hr_remove_context(context);
    CUresult result = destroy(context);
    if (result == CUDA_SUCCESS && !(may_stay && is_current(context)))
        forget_owner(known.owner, known.device);
    else
        hr_add_context(context, known.device,
                       (known.owner & HR_PRIMARY_OWNER) != 0 ? 0 : known.owner);
    return result;
}

CUresult cuCtxDestroy_v2(CUcontext context)
{
    return destroy_context(context, HR_CUDA(cuCtxDestroy_v2), false);
}

/* The current context; it ends unless another call has attached to it (cuCtxAttach). */
CUresult cuCtxDetach(CUcontext context)
{
    return destroy_context(context, HR_CUDA(cuCtxDetach), true);
}

CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
    struct hr_context known;
    CUcontext context = context_of_green(green);
    bool is_known = context != NULL && hr_find_context(context, &known);
    /* Before the driver may give another context the same address. */
    if (is_known)
        hr_remove_context(context);
    CUresult result = HR_CUDA(cuGreenCtxDestroy)(green);
    if (result != CUDA_SUCCESS && is_known)
        hr_add_context(context, known.device, 0);
    for (int row = 0; result == CUDA_SUCCESS && row < HR_DEVICES; row++)
        hr_measure_contexts(row);
    return result;
}
