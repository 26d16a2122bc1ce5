/*
 * One consistent read of a region, and where it puts what it finds.  Internal to
 * the core: hr_snapshot() wants rows, hr_read_set() wants columns, and both get
 * them from the same code, which stores each figure where it stays.
 */
#ifndef HR_READING_H
#define HR_READING_H

#include "fields.h"

/* The figures of struct hr_usage, in its order and in that of the usage columns. */
#define HR_FIGURES 9

/* Those of struct hr_device before its uuid: two limits, then the sums. */
#define HR_DEVICE_FIGURES (2 + HR_FIGURES)

struct hr_reading;

/*
 * Called when the head's counts are known, in each round anew: fill the second
 * half of the reading.  HR_OK or HR_ENOSPACE.
 */
typedef int hr_place(struct hr_reading *reading);

/* Where a device's figures lie in a slot: bytes from its start. */
struct hr_device_offsets {
    uint32_t used, monitor, util;
};

struct hr_reading {
    hr_region *region;
    struct hr_snapshot *head;
    hr_place *place;
    bool thorough;        /* look for usage and uuids beyond the counted devices */
    uint32_t far;         /* such devices, as bits, found so far */
    uint64_t deadline_ns; /* 0 until somebody had to wait */
    uint64_t taken_at_ns;

    /* Where the copies go.  Steps between figures are counted in cells of 64 bits. */
    uint32_t device_count;
    uint8_t listed[HR_DEVICES]; /* which devices these are */
    struct hr_device_offsets offsets[HR_DEVICES];
    uint64_t *limits; /* and the sums, HR_DEVICE_FIGURES per listed device */
    size_t limit_step, device_limits;
    unsigned char *uuids;
    size_t uuid_step;         /* bytes */
    unsigned char *processes; /* struct hr_process */
    size_t process_step;      /* bytes */
    uint64_t *figures;
    size_t figure_step, device_figures, process_figures;

    uint64_t any_figure; /* all figures copied, or-ed: how large they can be */
    uint32_t bad_uuid;   /* first device with an implausible one, or HR_DEVICES */
    uint64_t seqlocks[HR_SLOTS];
};

static inline struct hr_process *hr_copy_of_process(const struct hr_reading *reading,
                                                    uint32_t index)
{
    return (struct hr_process *)(void *)(reading->processes + index * reading->process_step);
}

/* Read one region; an hr_guarded_work, its argument a struct hr_reading. */
int hr_read_consistently(void *reading);

/* HR_ENOSPACE, and the bytes that would do. */
int hr_no_space(uint64_t wanted);

#endif
