/*
 * How busy a GPU is for the many processes of a region, whose figures are whole percents each: a
 * hundred processes with nearly one percent each show none.
 *
 * What the figures of the processes leave out shows in that of the device, less what is shown for
 * processes that are not of the region.  It is believed only as far as it can be what is rounded
 * off: a process that NVML does not show, or a figure that is wrong, does no more harm than that.
 */
#ifndef HR_CROWD_H
#define HR_CROWD_H

#include <stdbool.h>
#include <stdint.h>

#include "pace.h"

/* The figures of fewer processes on a device tell enough. */
enum { HR_CROWD = 4, HR_CROWD_FIGURES = 16 };

struct hr_crowd {
    /* What the device did for the region: the last figures, oldest first, in percent. */
    struct {
        double at_s, percent;
    } figures[HR_CROWD_FIGURES];
    uint32_t count;

    double stepped_s, age_s; /* when a view was completed last, and for how long they have been */
    double left;             /* percent of the time that those have who show nothing, on average */
    double users;            /* processes that work, or have of late */

    /* What the device is taken to do for somebody who is not shown, in percent, and until when;
     * since when the region has launched nothing, and the least that the device did meanwhile. */
    double hidden, hidden_until_s;
    double stopped_s, least;
};

/* Nothing is known of the device any more. */
void hr_forget_crowd(struct hr_crowd *crowd);

/* What the device shows now, and the processes that are not of the region: percent of the time. */
void hr_note_crowd(struct hr_crowd *crowd, double now_s, uint32_t device, uint32_t beside);

/*
 * Complete a view that has what the processes of the region show, in `own`, `all` and `users`.
 * `processes` is how many there are on the device, with those that show nothing; `has_stopped`:
 * this one may launch nothing.  Nothing is changed for fewer than HR_CROWD.
 */
void hr_complete_view(struct hr_crowd *crowd, uint32_t processes, bool has_stopped,
                      struct hr_pace_view *view);

#endif
