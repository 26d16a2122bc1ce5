/*
 * How busy each process keeps a GPU, as NVML measures it.
 *
 * NVML takes a sample of each process that has worked, between one and six times a second, and
 * answers with the average of those since a given time.  Older drivers and the newest ones have
 * different functions for that; some, as on MIG devices and under WSL, have none that works.
 */
#ifndef HR_BUSY_FIGURES_H
#define HR_BUSY_FIGURES_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_api.h"

struct hr_busy_figures {
    nvmlProcessUtilizationSample_t *list;
    unsigned count, room;
    nvmlProcessUtilizationInfo_t *newer; /* the same as the newer function has it; of `room` too */
};

/* How often NVML takes samples of a device. */
struct hr_sample_period {
    uint64_t newest_us;   /* the newest sample that was seen */
    uint64_t shortest_us; /* the shortest time seen between two; 0 = none */
};

/* What NVML has measured since then, in microseconds of Unix time.  False: this NVML or this
 * device does not tell, or there is no memory; the figures are as they were. */
bool hr_read_busy_figures(nvmlDevice_t device, uint64_t since_us, struct hr_busy_figures *figures);

/* Percent; 0 where the process has no figure, or one that cannot be. */
uint32_t hr_busy_percent(const struct hr_busy_figures *figures, unsigned pid);

/* The same of all processes together, which may be more than 100. */
uint64_t hr_busy_percent_of_all(const struct hr_busy_figures *figures);

/* When the newest of the samples was taken; 0 where there is none. */
uint64_t hr_newest_sample_us(const struct hr_busy_figures *figures);

/* Learn from what was just read. */
void hr_note_sample_period(struct hr_sample_period *period, const struct hr_busy_figures *figures);

#endif
