/*
 * Who else uses a GPU: the processes that are not of this region, as NVML shows them.
 *
 * A process shows first by its context, which takes a while to make, and only then by what it does,
 * which NVML samples between one and six times a second.  So one that has come counts as working
 * from the moment on at which it is seen, and one that has worked for as long again.
 *
 * One that keeps to a soft limit of another region is told by the name of its regulator's thread,
 * which /proc shows of every process; whoever forges it gets less of the GPU, not more.  Where NVML
 * has pids of another namespace, all others are taken for processes without one.
 */
#ifndef HR_NEIGHBOURS_H
#define HR_NEIGHBOURS_H

#include <stdbool.h>
#include <stdint.h>

#include "../region.h"
#include "cuda_api.h"

/* The name of the regulator's thread while the limits of its region are soft, and otherwise. */
#define HR_SOFT_THREAD "hami-burst"
#define HR_HARD_THREAD "hami-sm"

struct hr_neighbours {
    bool
        is_disturbed; /* by who works without a soft limit, or may be about to, or cannot be seen */
    uint32_t own;     /* percent of the time that the GPU was busy for this region, */
    uint32_t soft;    /* and for others with a soft limit */
};

/* Look at a row's GPU.  False: NVML does not tell. */
bool hr_look_at_neighbours(const struct hr_snapshot *snapshot, int row, nvmlDevice_t device,
                           uint64_t now_ns, struct hr_neighbours *out);

/* Nobody has been seen: the row begins anew. */
void hr_forget_neighbours(int row);

#endif
