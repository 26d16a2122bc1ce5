#include "uuids.h"

#include <stdio.h>

#include "cuda_functions.h"

bool hr_uuid_of_device(CUdevice device, char *text)
{
    CUuuid uuid;
    /* The second version knows the uuids of MIG devices. */
    if (HR_CUDA(cuDeviceGetUuid_v2)(&uuid, device) != CUDA_SUCCESS &&
        HR_CUDA(cuDeviceGetUuid)(&uuid, device) != CUDA_SUCCESS)
        return false;
    for (size_t at = 0; at < sizeof uuid.bytes; at++) {
        if (at == 4 || at == 6 || at == 8 || at == 10)
            *text++ = '-';
        text += snprintf(text, 3, "%02x", uuid.bytes[at]);
    }
    return true;
}
