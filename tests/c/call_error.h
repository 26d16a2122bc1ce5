/* Why the last call of the core failed that this thread made. */
#ifndef CALL_ERROR_H
#define CALL_ERROR_H

#include "region.h"

/* One for all files of a program. */
__attribute__((weak)) _Thread_local struct hr_error call_error;

#define NO_VALUE UINT64_MAX

/* One live value, or NO_VALUE with the reason in call_error. */
static inline uint64_t live_value(hr_region *region, uint32_t value, uint32_t device)
{
    uint64_t found;
    int code = hr_get(region, value, device, &found, &call_error);
    if (code == HR_OK)
        call_error.code = HR_OK;
    return code == HR_OK ? found : NO_VALUE;
}

#endif
