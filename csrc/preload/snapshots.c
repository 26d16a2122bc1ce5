#include "snapshots.h"

#include <stdlib.h>

struct hr_snapshot *hr_new_snapshot(hr_region *region, int *code)
{
    size_t bytes = 16384;
    /* A process may start between two tries, and the snapshot outgrow the size just reported. */
    for (int tries = 0; tries < 4; tries++) {
        struct hr_snapshot *snapshot = malloc(bytes);
        if (snapshot == NULL) {
            *code = HR_ESYSTEM;
            return NULL;
        }
        struct hr_error error;
        *code = hr_snapshot(region, snapshot, bytes, &error);
        if (*code == HR_OK)
            return snapshot;
        free(snapshot);
        if (*code != HR_ENOSPACE)
            return NULL;
        bytes = error.wanted + 8192;
    }
    return NULL;
}
