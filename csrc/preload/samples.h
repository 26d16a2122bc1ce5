/*
 * NVML's samples of a GPU, as the control law wants them.
 *
 * NVML samples each process that works one to fifty times a second, stamps the samples, and answers
 * with the mean (some drivers: the last) of those newer than a given stamp.  Processes that did
 * nothing may be missing.  So a window lasts from one newest stamp to the next; if nothing newer
 * comes and the device's own figure is 0, or for long enough, the GPU was idle.  Answers can be
 * late: what this process launched is remembered, and counted for the window in which it was
 * launched.
 */
#ifndef HR_SAMPLES_H
#define HR_SAMPLES_H

#include <stdbool.h>
#include <stdint.h>

#include "../region.h"
#include "api.h"
#include "law.h"

enum { HR_POINTS = 48 };

struct hr_samples {
    uint64_t newest_us; /* the newest stamp, or the end of an idle window */
    uint64_t stamp_us;  /* the newest stamp; 0: none was seen */
    uint64_t period_us; /* the shortest time seen between two stamps, */
    uint64_t late_us;   /* and from one until its answer */
    struct {
        uint64_t at_us;
        double units; /* launched up to then */
    } points[HR_POINTS];
    unsigned point_count;
    struct {
        unsigned pid; /* 0: free */
        uint64_t until_us;
    } users[HR_SLOTS]; /* processes of the region that have worked of late */
};

/* What NVML says at one moment. */
struct hr_figures {
    const nvmlProcessUtilizationSample_t *list; /* those newer than hr_samples.newest_us */
    unsigned count;
    unsigned device_percent; /* 0 if unknown */
    const unsigned *pids;    /* of the region, as NVML has them, */
    unsigned pid_count;
    unsigned own; /* and of this process */
};

void hr_start_samples(struct hr_samples *samples, uint64_t now_us);

/* Remember how many units were launched in all up to now. */
void hr_note_units(struct hr_samples *samples, uint64_t now_us, double units);

/* Whether NVML may have a new sample. */
bool hr_is_sample_due(const struct hr_samples *samples, uint64_t now_us);

/* Fill in a view from what NVML says.  False: there is no new sample. */
bool hr_take_sample(struct hr_samples *samples, const struct hr_figures *figures, uint64_t now_us,
                    struct hr_law_view *out);

/* Whether a pid is among these; and the percent that NVML shows for it, 0 if it shows none. */
bool hr_has_pid(const unsigned *pids, unsigned count, unsigned pid);
unsigned hr_busy_percent(const struct hr_figures *figures, unsigned pid);

#endif
