#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdio.h>

#include "budget.h"
#include "driver.h"
#include "hooks.h"
#include "session.h"

enum { MOST_DEVICES = 64 };

/* As the session began. */
static struct hr_snapshot *region_rows;

/* Row + 2 of each device; 0: not asked yet. */
static _Atomic int rows[MOST_DEVICES];

bool hr_read_rows(hr_region *region)
{
    int code;
    region_rows = hr_new_snapshot(region, &code);
    return region_rows != NULL;
}

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

int hr_row_of_device(CUdevice device)
{
    if (device < 0 || device >= MOST_DEVICES || hr_session_region() == NULL)
        return HR_NO_ROW;
    int known = atomic_load_explicit(&rows[device], memory_order_relaxed);
    if (__builtin_expect(known != 0, 1))
        return known - 2;
    char uuid[HR_UUID_TEXT] = "";
    bool is_known = hr_uuid_of_device(device, uuid);
    int row = hr_row_of_uuid(region_rows, uuid, (unsigned)device);
    /* A driver that does not say now may do so later. */
    if (is_known || row != HR_NO_ROW)
        atomic_store_explicit(&rows[device], row + 2, memory_order_relaxed);
    return row;
}

CUdevice hr_device_of_row(int row)
{
    for (int device = 0; row >= 0 && device < MOST_DEVICES; device++) {
        if (atomic_load_explicit(&rows[device], memory_order_relaxed) == row + 2)
            return device;
    }
    return -1;
}

CUdevice hr_device_of_location(int type, int id)
{
    if (type == CU_MEM_LOCATION_TYPE_LOCALIZED)
        return id & 0xff;
    return type == CU_MEM_LOCATION_TYPE_DEVICE ? id : -1;
}

int hr_relax_capture(void)
{
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    return HR_CUDA(cuThreadExchangeStreamCaptureMode)(&mode) == CUDA_SUCCESS
               ? mode
               : CU_STREAM_CAPTURE_MODE_RELAXED;
}

void hr_restore_capture(int mode)
{
    if (mode != CU_STREAM_CAPTURE_MODE_RELAXED)
        HR_CUDA(cuThreadExchangeStreamCaptureMode)(&mode);
}

bool hr_is_captured(CUstream stream)
{
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    return HR_CUDA(cuStreamIsCapturing)(stream, &status) == CUDA_SUCCESS &&
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}
