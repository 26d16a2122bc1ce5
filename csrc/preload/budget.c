#include "budget.h"

#include <stdlib.h>
#include <strings.h>

struct hr_snapshot *hr_new_snapshot(hr_region *region, int *code)
{
    size_t bytes = 16384;
    /* A process may start between two tries, and the snapshot outgrow the size just reported. */
    for (int tries = 0; tries < 4; tries++) {
        struct hr_error error;
        struct hr_snapshot *snapshot = malloc(bytes);
        *code = snapshot == NULL ? HR_ESYSTEM : hr_snapshot(region, snapshot, bytes, &error);
        if (snapshot == NULL || *code == HR_OK)
            return snapshot;
        free(snapshot);
        if (*code != HR_ENOSPACE)
            return NULL;
        bytes = error.wanted + 8192;
    }
    return NULL;
}

int hr_row_of_uuid(const struct hr_snapshot *snapshot, const char *uuid, unsigned index)
{
    enum { KIND_BYTES = 4 };
    bool names_devices = false;
    for (uint32_t row = 0; row < snapshot->span; row++) {
        const char *named = hr_snapshot_device(snapshot, row)->uuid;
        if (named[0] == '\0')
            continue;
        names_devices = true;
        if (strncasecmp(named + KIND_BYTES, uuid, HR_UUID_BYTES - KIND_BYTES) == 0)
            return (int)row;
    }
    return names_devices || index >= HR_DEVICES ? -1 : (int)index;
}

/* False: the row has no limit, or cannot be read. */
static bool read_row(hr_region *region, int row, uint64_t *limit, uint64_t *used)
{
    return hr_get(region, HR_MEMORY, (uint32_t)row, limit, NULL) == HR_OK && *limit != 0 &&
           hr_get(region, HR_VALUE_MEMORY_USED, (uint32_t)row, used, NULL) == HR_OK;
}

bool hr_passes_limit(hr_region *region, int row)
{
    uint64_t limit, used;
    return read_row(region, row, &limit, &used) && used > limit;
}

void hr_apply_budget(hr_region *region, int row, struct hr_budget *budget)
{
    uint64_t limit, used;
    if (!read_row(region, row, &limit, &used))
        return;
    if (limit < budget->total)
        budget->total = limit;
    /* A limit may be lowered below what is in use. */
    if (used > budget->total)
        used = budget->total;
    uint64_t left = budget->total - used;
    if (left < budget->free)
        budget->free = left;
    budget->used = used;
}
