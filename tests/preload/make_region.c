/* Makes a region: `make_region PATH LIMIT SM_LIMIT UUID...`, the same limits for each device. */
#include "../../csrc/region.h"

#include <stdio.h>
#include <stdlib.h>

int main(int count, char **arguments)
{
    if (count < 5 || count - 4 > HR_DEVICES) {
        fprintf(stderr, "usage: make_region PATH LIMIT SM_LIMIT UUID...\n");
        return 2;
    }
    struct hr_create_spec spec = {.layout = HR_V1_2, .device_num = (uint32_t)count - 4};
    for (uint32_t device = 0; device < spec.device_num; device++) {
        spec.limit[device] = strtoull(arguments[2], NULL, 10);
        spec.sm_limit[device] = strtoull(arguments[3], NULL, 10);
        snprintf(spec.uuids[device], HR_UUID_BYTES, "%s", arguments[device + 4]);
    }
    int code = hr_create(arguments[1], &spec, NULL);
    if (code != HR_OK)
        fprintf(stderr, "hr_create gives %d\n", code);
    return code != HR_OK;
}
