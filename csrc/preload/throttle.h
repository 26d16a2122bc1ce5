/*
 * The throttle: what holds a program's launches to the SM limits of its region.
 *
 * A launch that something holds up (hr_holds is not 0) comes here.  The row of its device says what
 * is to be done: nothing, wait, or pay with tokens.  Two rules bring the tokens:
 *
 * - alone, where all processes of the region run under this library: a pace that follows what the
 *   kernels were measured to cost (pace.h);
 * - beside libvgpu: HAMi's own arithmetic (../region.h), so that both sides react alike.
 *
 * regulator.c is the thread that does so; it starts with the first launch under a limit.
 */
#ifndef HR_THROTTLE_H
#define HR_THROTTLE_H

#include "../region.h"
#include "bucket.h"
#include "cuda_api.h"
#include "graph_sizes.h"
#include "session.h"

/* What a launch on a row has to do. */
enum hr_throttle_state {
    HR_ROW_FREE,    /* nothing: there is no limit, or it cannot be held */
    HR_ROW_NEW,     /* wait until the regulator has begun with this row */
    HR_ROW_PACED,   /* take tokens for its kernels from the bucket */
    HR_ROW_BESIDE,  /* take tokens for its blocks from the limiter */
    HR_ROW_STOPPED, /* wait: HAMi's feedback lets nothing through */
    HR_ROW_STATES
};

struct hr_row {
    struct hr_bucket bucket;
    _Atomic int state;             /* enum hr_throttle_state */
    _Atomic uint32_t limit;        /* percent; HR_NO_LIMIT where none is in force */
    _Atomic uint32_t sm_count;     /* of the row's device; what a kernel costs beside its blocks */
    _Atomic(hr_limiter *) limiter; /* NULL until it is needed; lives as long as the process */
};

#define HR_NO_LIMIT 100u

extern struct hr_row hr_rows[HR_DEVICES];

/* Whether the limits of the region are soft, as hr_look_at_limits() has last seen it. */
extern _Atomic bool hr_is_burst;

/*
 * A launch while hr_holds is not 0; returns when it may be made.  Nothing is allocated on the way
 * and nothing is printed, unless it is the first one of the process.  Returns the row whose tokens
 * it has taken, or NULL.
 */
struct hr_row *hr_throttle(struct hr_graph_size size, CUstream stream);

/* The driver has refused that launch: it costs nothing, whatever size it would have had. */
void hr_give_back_tokens(struct hr_row *row, struct hr_graph_size size);

/*
 * Read the limits and what else holds launches up, and tell the region of launches that were made:
 * once a second, or more often.  HR_OK, or why the region cannot be read.
 */
int hr_look_at_limits(hr_region *region);

/* For the regulator: how a row's limit is held from now on, HR_ROW_NEW, HR_ROW_PACED or
 * HR_ROW_BESIDE; or that it cannot be, HR_ROW_FREE. */
void hr_set_rule(int row, enum hr_throttle_state rule);

/* Let every launch through, because the region is gone or the process ends. */
void hr_end_throttle(void);

#endif
