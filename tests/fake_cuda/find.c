#define _GNU_SOURCE
#include "fake.h"

#include <string.h>

enum { FOUND, NOT_FOUND, VERSION_TOO_LOW };
enum { LEGACY_STREAM = 1, PER_THREAD_STREAM = 2 };

/* The newest function of a name that is not newer than the version; for the per-thread default
 * stream, its variant where there is one. */
API CUresult cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags,
                                 int *status)
{
    if (flags > PER_THREAD_STREAM)
        return CUDA_ERROR_INVALID_VALUE;
    int found = NOT_FOUND;
    unsigned best = 0;
    *out = NULL;
    for (const struct answer *answer = answers; answer->name != NULL; answer++) {
        if (strcmp(answer->name, name) != 0)
            continue;
        if (found == NOT_FOUND)
            found = VERSION_TOO_LOW;
        bool is_wanted = !answer->is_per_thread || flags == PER_THREAD_STREAM;
        unsigned rank = answer->version * 2 + answer->is_per_thread;
        if (answer->version > (unsigned)version || !is_wanted || rank < best)
            continue;
        found = FOUND;
        best = rank;
        *out = answer->function;
    }
    if (status != NULL)
        *status = found;
    return CUDA_SUCCESS;
}

API CUresult cuGetProcAddress(const char *name, void **out, int version, uint64_t flags)
{
    void *found;
    CUresult code = cuGetProcAddress_v2(name, &found, version, flags, NULL);
    if (code == CUDA_SUCCESS && found == NULL)
        code = CUDA_ERROR_NOT_FOUND;
    if (code == CUDA_SUCCESS)
        *out = found;
    return code;
}
