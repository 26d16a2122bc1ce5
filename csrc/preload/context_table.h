/*
 * The contexts of this process: which device each is on, and whose memory an allocation is.
 *
 * An allocation goes away with its context, so each context has a number, its *owner* number,
 * under which the books keep what was allocated in it.  A primary context gets another one each
 * time that it is released or reset.
 */
#ifndef HR_CONTEXT_TABLE_H
#define HR_CONTEXT_TABLE_H

#include <stdbool.h>

#include "cuda_api.h"

struct hr_context {
    CUdevice device;
    int row; /* or HR_NO_ROW */
    uint32_t owner;
};

/* The calling thread's context.  False: it has none, and the driver will say so itself. */
bool hr_current_context(struct hr_context *out);

/* The context of a stream: the current one for a stream that is not one by itself. */
bool hr_stream_context(CUstream stream, struct hr_context *out);

/* A context that was made; `owner` 0 means that it is its device's primary one. */
void hr_add_context(CUcontext context, CUdevice device, uint32_t owner);
bool hr_find_context(CUcontext context, struct hr_context *out);
void hr_remove_context(CUcontext context);

/* Set in the owner numbers of primary contexts. */
#define HR_PRIMARY_OWNER 0x80000000u

/* For a context that is not a primary one. */
uint32_t hr_new_owner(void);

/*
 * Begin another life of the device's primary context, and return the owner number of the one so
 * far; 0 for no device.  To be called before the driver ends it, so that nothing that is allocated
 * afterwards looks like a part of it.
 */
uint32_t hr_end_life(CUdevice device);

/* Whether what has an owner went away when another one ended: its own, or a later life of the same
 * primary context, as not each release ends it. */
bool hr_is_ended(uint32_t owner, uint32_t ended);

#endif
