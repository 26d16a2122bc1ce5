/*
 * One consistent read of a region.  Internal to the core: hr_snapshot() makes one,
 * hr_read_set() one after another.
 */
#ifndef HR_READING_H
#define HR_READING_H

#include "fields.h"

struct hr_reading {
    hr_region *region;
    struct hr_snapshot *head; /* where the snapshot goes; anything while `bytes` is 0 */
    size_t bytes;             /* room for it */
    size_t wanted;            /* out: what it takes, with HR_OK and HR_ENOSPACE */
    uint64_t taken_at_ns;
    uint64_t deadline_ns; /* 0 until somebody had to wait */

    /* The parts behind the head, once they are measured. */
    struct hr_device *devices;
    unsigned char *processes;
    size_t process_bytes;
    uint64_t seqlocks[HR_SLOTS];
};

/* Read one region; an hr_guarded_work, its argument a struct hr_reading. */
int hr_read_consistently(void *reading);

#endif
