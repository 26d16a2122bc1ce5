/*
 * Samples of Prometheus' text format, written from the columns of hr_columns().
 *
 * hr_write_samples() writes "name{labels} number\n" for every sample of many families,
 * piece by piece: it stops before the line that the buffer has no room for, and goes on
 * there at the next call.  hr_sum_slots() adds up what a choice of slots uses per device,
 * hr_sum_figures() what the driver says of processes.
 *
 * The cells are numbers that the caller owns; no region is read here.  Threads: no state
 * of its own; calls with places and buffers of their own may run at once.
 */
#ifndef HR_SAMPLES_H
#define HR_SAMPLES_H

#include <stddef.h>
#include <stdint.h>

/* How a cell becomes a number of the text. */
enum hr_write_as {
    HR_WRITE_UNSIGNED,
    HR_WRITE_SIGNED,
    HR_WRITE_RATIO,    /* percent as a ratio: 37 is 0.37 */
    HR_WRITE_SM_LIMIT, /* as a ratio; no sample where there is no limit: 0, and 100 and above */
    HR_WRITE_SINCE,    /* seconds from then until `now`, 0 if later; no sample for 0 */
    HR_WRITE_NEGATIVE, /* 1 if it is below 0, else 0 */
    HR_WRITE_DOUBLE,   /* the cells are doubles: the shortest form that reads back the same */
    HR_WRITE_ONE,      /* 1 for each label text; the cells are not looked at */
};

/* In `rows`: this label text has no sample. */
#define HR_NO_ROW UINT32_MAX

/*
 * Some samples of one family.  A line is head, label text, tail and number.  Label texts
 * stand one after the other in `labels`; `ends` says where each ends.
 */
struct hr_samples {
    const char *before; /* the comment lines; once for each run of the same pointer */
    const char *head;
    const char *tail;
    const char *labels;
    const uint32_t *ends;
    const uint32_t *rows; /* the cell of each label text; NULL: its own number */
    const void *cells;
    uint32_t before_bytes, head_bytes, tail_bytes;
    uint32_t count;      /* of label texts */
    uint32_t cell_count; /* a row from here on has no sample */
    uint32_t write_as;
    uint64_t now;
};

/* How far the text has come; all zero at first. */
struct hr_place_in_text {
    uint32_t samples;
    uint32_t row;
    const char *begun; /* whose comment lines have been written */
};

/*
 * Writes lines into `out` until all are written or the next one does not fit, and moves
 * `place` on.  Returns the bytes written; all is written once place->samples is `count`.
 * A call that returns 0 before that needs more room: 128 KiB hold any line of ours.
 */
size_t hr_write_samples(const struct hr_samples *samples, uint32_t count,
                        struct hr_place_in_text *place, char *out, size_t room);

/* Columns of one read that tell which usages belong to which device; see hr_columns(). */
struct hr_slot_columns {
    const uint64_t *region;       /* of processes */
    const uint64_t *first_usage;  /* of processes */
    const uint64_t *first_device; /* of regions */
    const uint64_t *device_rows;  /* of regions */
    uint32_t processes, regions, usages, devices;
};

/*
 * Adds up the usages of the processes whose byte in `chosen` is not 0, each on the row of
 * its device.  `usages` is a column of HR_TABLE_USAGES, `sums` has a cell per device and is
 * overwritten.  Sums are modulo 2^64, as those of a snapshot are.
 */
void hr_sum_slots(const struct hr_slot_columns *columns, const unsigned char *chosen,
                  const uint64_t *usages, uint64_t *sums);

/*
 * Adds up a figure of `count` pairs of a process and a device.  devices[i] is the row of the
 * pair's device, rows[i] that of its figure; a row that there is not, and a figure below 0, are
 * not known.
 *
 * sums and users have a cell per device and are added to: the figures, and how many
 * pairs.  Where a figure is not known, the device's cell in `known` becomes HR_NO_ROW.
 */
void hr_sum_figures(const uint32_t *devices, const uint32_t *rows, uint32_t count,
                    const int64_t *figures, uint32_t figure_count, uint64_t *sums, uint32_t *users,
                    uint32_t *known, uint32_t device_count);

#endif
