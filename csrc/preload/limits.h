/*
 * The launch gate: it holds a program's launches to the SM limits of its region, as the thread of
 * thread.c has read them.
 *
 * A launch that something holds up (hr_holds is not 0) comes here.  The row of its device says what
 * is to be done: nothing, wait, or pay with tokens, which come at the rate of the control law.
 */
#ifndef HR_LIMITS_H
#define HR_LIMITS_H

#include "../region.h"
#include "api.h"
#include "bucket.h"

/* How much a launch does. */
struct hr_graph_size {
    uint64_t kernels;
    uint64_t blocks; /* of all of them */
    uint64_t memory; /* bytes that its nodes allocate */
};

/* What a launch on a row has to do. */
enum hr_row_rule {
    HR_ROW_FREE,   /* nothing: there is no limit, or it cannot be held */
    HR_ROW_NEW,    /* wait until the thread has begun with this row */
    HR_ROW_PACED,  /* take tokens */
    HR_ROW_STOPPED /* wait: HAMi's feedback lets nothing through */
};

struct hr_row {
    struct hr_bucket bucket;
    _Atomic int rule;           /* enum hr_row_rule */
    _Atomic uint32_t limit;     /* percent; HR_NO_LIMIT if none is in force */
    _Atomic uint32_t unit_cost; /* of a kernel besides its blocks: the multiprocessors */
};

#define HR_NO_LIMIT 100u

extern struct hr_row hr_rows[HR_DEVICES];

/* Whether the region lets programs use idle time, as hr_read_limits() has last seen it. */
extern _Atomic bool hr_is_burst;

/*
 * A launch while hr_holds is not 0; returns when it may be made.  Nothing is allocated on the way,
 * and nothing is printed unless it is the first one of the process.  Returns the row whose tokens
 * it has taken, or NULL.
 */
struct hr_row *hr_wait_to_launch(struct hr_graph_size size, CUstream stream);

/* The driver has refused that launch: it costs nothing. */
void hr_give_back_tokens(struct hr_row *row, struct hr_graph_size size);

/*
 * Read the limits and what else holds launches up, and report launches that were made to the
 * region: twice a second, or more often.  HR_OK, or why the region cannot be read.
 */
int hr_read_limits(hr_region *region);

/* How a row's limit is held from now on: HR_ROW_NEW, HR_ROW_PACED; or that it cannot be,
 * HR_ROW_FREE. */
void hr_set_rule(int row, enum hr_row_rule rule);

/* Let every launch through, because the region is gone or the process ends. */
void hr_open_gate(void);

#endif
