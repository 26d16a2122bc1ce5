/*
 * Counting memory in the region, for this process.
 *
 * Before the driver is asked for memory it is charged, and given back where the driver has none:
 * so what all processes have together never passes the limit.  Before a charge is refused, the
 * neighbours that are dead are reaped.
 */
#ifndef HR_CHARGES_H
#define HR_CHARGES_H

#include <stdbool.h>

#include "../region.h"
#include "cuda_api.h"

/*
 * Charge bytes of one kind (enum hr_kind) on a row, HR_NO_ROW for a device that is not limited.
 * Attaches if need be.
 *
 * CUDA_ERROR_OUT_OF_MEMORY: it would pass the limit.
 * CUDA_ERROR_NOT_PERMITTED: there is no region to charge, and the policy refuses then.
 */
CUresult hr_take_bytes(int row, enum hr_kind kind, uint64_t bytes);

/* Count what is there already, whatever the limit: the driver has taken it without being asked. */
void hr_count_bytes(int row, enum hr_kind kind, uint64_t bytes);

/* Give back what was charged. */
void hr_give_back_bytes(int row, enum hr_kind kind, uint64_t bytes);

/*
 * Reap the neighbours that are dead: of those whose pid is gone or a zombie's, and where
 * `look_at_all` is set of all, also those whose process lives on as another program.
 */
void hr_reap_neighbours(hr_region *region, bool look_at_all);

/*
 * Of a row, in bytes of memory that is not a context's, what this process has charged; and how
 * many calls that change it have begun and have ended.  Where both counts are the same before and
 * after the driver was asked for its own figure, the two figures are of one moment.
 */
struct hr_row_state {
    uint64_t bytes;
    uint64_t begun, ended;
};
struct hr_row_state hr_state_of_row(int row);

/* Around each call that charges a row, asks the driver, and may give back. */
void hr_begin_change(int row);
void hr_end_change(int row);

#endif
