/*
 * Burst: while no other program wants a GPU, the processes of a region have no SM limit there.
 *
 * A process shows first by its context, which takes a while to make, and only then by its work.  So
 * a new one counts for five seconds, whatever it does.  Work that NVML shows for no process counts
 * as others'.
 */
#ifndef HR_BURST_H
#define HR_BURST_H

#include <stdbool.h>

#include "samples.h"

enum { HR_BURST_PIDS = 64 };

struct hr_burst {
    bool has_begun;
    unsigned known[HR_BURST_PIDS], count; /* other programs' processes with a context */
    double newcomer_until_s;
};

void hr_start_burst(struct hr_burst *burst);

/* Whether no other program wants the GPU, by a new sample.  `contexts` are the processes with a
 * context there. */
bool hr_is_unwanted(struct hr_burst *burst, const struct hr_figures *figures,
                    const nvmlProcessInfo_t *contexts, unsigned count, double now_s);

#endif
