/*
 * Memory: what this process has charged on each row, and the steps of every allocation.
 *
 * Before the driver is asked for memory it is charged, and given back if the driver has none: so
 * all processes together never pass the limit.  The table has an entry for each allocation, so that
 * its end gives back what it was charged.  No lock is held while the driver works.
 */
#ifndef HR_MEMORY_H
#define HR_MEMORY_H

#include <stdbool.h>

#include "budget.h"
#include "driver.h"
#include "table.h"

/* ---- Charges (charge.c) --------------------------------------------------------------- */

/*
 * Charge bytes of one kind (enum hr_kind) on a row, HR_NO_ROW for a device that is not limited.
 * Attaches if need be, and reaps dead neighbours before it refuses.
 *
 * CUDA_ERROR_OUT_OF_MEMORY: it would pass the limit.
 * CUDA_ERROR_NOT_PERMITTED: there is no region to charge, and the policy refuses then.
 */
CUresult hr_take_bytes(int row, enum hr_kind kind, uint64_t bytes);

/* Count what is there already, whatever the limit: the driver has taken it without being asked. */
void hr_count_bytes(int row, enum hr_kind kind, uint64_t bytes);

/* Give back what was charged. */
void hr_give_back_bytes(int row, enum hr_kind kind, uint64_t bytes);

/* The program is refused something: count that in the region if it is by the limit.  Returns the
 * result. */
CUresult hr_count_refusal(CUresult result);

/*
 * Reap the neighbours that are dead: of those whose pid is gone or a zombie's, and with
 * `looks_at_all` of all, also those whose process lives on as another program.
 */
void hr_reap_neighbours(hr_region *region, bool looks_at_all);

/* ---- The ledger (ledger.c) ------------------------------------------------------------ */

/* As hr_take_bytes() and so on, for memory that is not a context's; and the same after trimming
 * this process's pools on the row, if it would be refused. */
CUresult hr_charge_memory(int row, uint64_t bytes);
CUresult hr_take_memory(int row, uint64_t bytes);
void hr_count_memory(int row, uint64_t bytes);
void hr_give_back_memory(int row, uint64_t bytes);

/*
 * What this process has charged on a row as memory: now, and the most since the last call of
 * hr_watch_most_bytes().  Managed memory is apart, as the driver need not have it on the device.
 * `begun` and `ended` count the calls that change it: if they are equal, and the same before and
 * after the driver was asked for its figure, all figures are of one moment.
 */
struct hr_row_state {
    uint64_t bytes, most_bytes, managed_bytes;
    uint64_t begun, ended;
};
struct hr_row_state hr_state_of_row(int row);
void hr_watch_most_bytes(int row);

/* Around each call that charges a row, asks the driver, and may give back. */
void hr_begin_change(int row);
void hr_end_change(int row);

struct hr_allocation {
    struct hr_context context;
    uint64_t bytes;
    bool is_managed;
};

/*
 * Before any allocation: wait while this process is suspended, attach.  Anything but CUDA_SUCCESS
 * is the answer for the program.
 */
CUresult hr_enter_memory_call(void);

/* Before the driver allocates `bytes` in the current context; the rest as above.  Fills in the
 * context. */
CUresult hr_begin_allocation(struct hr_allocation *allocation);

/* After the driver's `result`: enter what it gave, or give back.  Returns the result. */
CUresult hr_end_allocation(const struct hr_allocation *allocation, CUresult result,
                           enum hr_space space, uint64_t key);

/* Enter something; an entry of that number whose memory the driver has freed unseen is given back.
 */
void hr_enter_allocation(const struct hr_entry *entry);

/* Give back what an entry counts for: to its pool, or to the region. */
void hr_give_back_entry(const struct hr_entry *entry);

struct hr_freeing {
    struct hr_entry entry;
    bool is_ours;
};

/* Before the driver frees something, which may not be ours; and after it has. */
void hr_begin_freeing(struct hr_freeing *freeing, enum hr_space space, uint64_t key);
CUresult hr_end_freeing(const struct hr_freeing *freeing, CUresult result);

/* ---- Context memory (context_memory.c) ------------------------------------------------ */

/*
 * Count as context what the driver counts for this process on the row, beyond the memory that the
 * process has allocated there, whatever the limit: it is there.  Nothing is changed if NVML does
 * not list this process.  Returns the driver's last figure for all of it, 0 if there is none.
 */
uint64_t hr_measure_contexts(int row);

/*
 * Count a context that was just made.  CUDA_ERROR_OUT_OF_MEMORY: it would pass the limit; the
 * caller ends the context and measures again.
 */
CUresult hr_admit_context(int row);

/* ---- Pools (pools.c) ------------------------------------------------------------------ */

/*
 * A pool keeps what was freed, so what it holds is what counts: RESERVED_MEM_CURRENT, and not the
 * sum of the allocations.  An allocation is charged only as far as the charged size of the pool
 * does not cover it; then the pool is asked for its size afterwards, and the charge corrected.
 *
 * Memory that the nodes of a graph allocate belongs to a pool that each device has for its graphs.
 */

/*
 * The number of a pool, entered if it is not known yet: on the device that the driver names, else
 * on `likely`.  -1: the table is full.  `handle` NULL: the device's graph memory.
 */
int hr_enter_pool(CUmemoryPool handle, CUdevice likely);

/* The row of a pool. */
int hr_row_of_pool(int number);

/* Charge an allocation that is about to be made.  `has_grown`: more was charged, so the pool is to
 * be asked afterwards (hr_admit_pool). */
CUresult hr_promise(int number, uint64_t bytes, bool *has_grown);

/* An allocation has ended, or was not made. */
void hr_take_back_promise(int number, uint64_t bytes);

/* Ask the pool for its size, and count that, whatever the limit: it is there. */
void hr_reconcile_pool(int number);

/*
 * The same after an allocation that can be undone.  CUDA_ERROR_OUT_OF_MEMORY: the pool holds more
 * than the limit allows, also after trimming; the caller undoes, reconciles and trims.
 */
CUresult hr_admit_pool(int number);

void hr_reconcile_pools(void);

/* Make this process's pools of a row give up what is not in use.  True: there are some, and trying
 * again may help; another thread may have trimmed them a moment ago. */
bool hr_trim_pools(int row);

/* The device's primary context has ended: remove the allocations that ended with it. */
void hr_empty_pools(CUdevice device);

/* Destroy a pool: what it holds stays until the last of it is freed. */
CUresult hr_destroy_pool(CUmemoryPool handle);

#endif
