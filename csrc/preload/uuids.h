/* A CUDA device's uuid as text, without what stands before it ("GPU-" or "MIG-"). */
#ifndef HR_UUIDS_H
#define HR_UUIDS_H

#include <stdbool.h>

#include "cuda_api.h"

enum { HR_UUID_TEXT = 37 }; /* bytes, with the NUL */

/* False: the driver does not tell. */
bool hr_uuid_of_device(CUdevice device, char *text);

#endif
