/*
 * Memory from pools (cuMemAllocAsync and its relatives), and the memory of graphs.
 *
 * A pool keeps what was freed, so what it holds is what counts: RESERVED_MEM_CURRENT, and not the
 * sum of the allocations.  An allocation is charged only as far as what the pool holds already
 * does not cover it; afterwards the pool is asked, and the charge settled.  Before an allocation of
 * any sort is refused, this process's pools are trimmed.
 *
 * Memory that the nodes of a graph allocate belongs to a pool that each device has for its graphs
 * (graph_memory.h).
 */
#ifndef HR_POOLS_H
#define HR_POOLS_H

#include <stdbool.h>

#include "cuda_api.h"

/*
 * The number of a pool, entered if it is not known yet: on the device whose default pool it is,
 * else on the one named.  -1: the table is full.  `handle` NULL: the device's graph memory.
 */
int hr_enter_pool(CUmemoryPool handle, CUdevice device);

/* A pool that is not on a device: nothing of it counts. */
void hr_enter_host_pool(CUmemoryPool handle);

/* The row of a pool. */
int hr_row_of_pool(int number);

/* Charge an allocation that is about to be made, as hr_take_bytes() does, after the pools of the
 * row were trimmed if need be; and take that back. */
CUresult hr_promise(int number, uint64_t bytes);
void hr_take_back_promise(int number, uint64_t bytes);

/* Ask the pool what it holds, and count that, whatever the limit: it is there. */
void hr_settle_pool(int number);

/*
 * The same after an allocation that can be undone.  CUDA_ERROR_OUT_OF_MEMORY: the pool holds more
 * than the limit allows; the caller undoes, trims and settles.
 */
CUresult hr_admit_pool(int number);

/* Settle all pools.  True: some hold more than is in use, which the
 * driver may take from them at any moment. */
bool hr_settle_pools(void);

/* Make this process's pools of a row give up what nobody uses.  True: there are some, and trying
 * again may help; another thread may have trimmed them a moment ago. */
bool hr_trim_pools(int row);

/* The device's primary context has ended: strike out what went with it. */
void hr_empty_pools(CUdevice device);

/* The program destroys a pool: what it holds stays until the last of it is freed.  Returns its
 * number, -1 if it is not known, for hr_undo_end_of_pool() where the driver then refuses. */
int hr_end_pool(CUmemoryPool handle);
void hr_undo_end_of_pool(int number);

#endif
