#include "snapshots.h"

#include <errno.h>
#include <stdlib.h>

#include "../base.h"

struct hr_snapshot *hr_new_snapshot(hr_region *region)
{
    size_t bytes = 16384;
    /* A process may start between two tries, and the snapshot outgrow the size just reported. */
    for (int tries = 0; tries < 4; tries++) {
        struct hr_snapshot *snapshot = malloc(bytes);
        if (snapshot == NULL) {
            hr_fail_errno(HR_ESYSTEM, ENOMEM);
            return NULL;
        }
        int code = hr_snapshot(region, snapshot, bytes);
        if (code == HR_OK)
            return snapshot;
        free(snapshot);
        if (code != HR_ENOSPACE)
            return NULL;
        struct hr_detail detail;
        hr_last_detail(&detail);
        bytes = detail.wanted + 8192;
    }
    return NULL;
}
