/*
 * The steps of every allocation: charge, let the driver allocate, enter it in the books; and of
 * every release: strike out, let the driver free, give back.  No lock is held while the driver
 * works.
 */
#ifndef HR_ALLOCATING_H
#define HR_ALLOCATING_H

#include <stdbool.h>

#include "books.h"
#include "context_table.h"
#include "cuda_api.h"

/* Charge memory on a row; before it is refused, trim this process's pools there. */
CUresult hr_take_memory(int row, uint64_t bytes);

struct hr_allocation {
    struct hr_context context;
    uint64_t bytes;
};

/*
 * Before the driver allocates `bytes` in the current context.  Waits while this process is
 * suspended.  Anything but CUDA_SUCCESS is what the program is to get.
 */
CUresult hr_begin_allocation(struct hr_allocation *allocation, uint64_t bytes);

/*
 * The driver took more or less than was asked for: charge the difference.  Where that is refused,
 * the caller frees what the driver gave, and ends the allocation with this result.
 */
CUresult hr_adjust_allocation(struct hr_allocation *allocation, uint64_t bytes);

/* After the driver's `result`: enter what it gave, or give back.  Returns the result. */
CUresult hr_end_allocation(const struct hr_allocation *allocation, CUresult result,
                           enum hr_space space, uint64_t key);

/* Enter something, and give back what stood there: the driver has freed it unseen. */
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

#endif
