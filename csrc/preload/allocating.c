#include "allocating.h"

#include "charges.h"
#include "complaints.h"
#include "pools.h"
#include "session.h"

CUresult hr_take_memory(int row, uint64_t bytes)
{
    CUresult result = hr_take_bytes(row, HR_DATA, bytes);
    if (__builtin_expect(result == CUDA_ERROR_OUT_OF_MEMORY, 0) && hr_trim_pools(row))
        result = hr_take_bytes(row, HR_DATA, bytes);
    return result;
}

CUresult hr_begin_allocation(struct hr_allocation *allocation, uint64_t bytes)
{
    if (__builtin_expect((hr_current_holds() & HR_HOLD_SUSPENDED) != 0, 0))
        hr_wait_while_suspended();
    if (__builtin_expect(hr_attach_session() == HR_SESSION_REFUSED, 0))
        return CUDA_ERROR_NOT_PERMITTED;
    allocation->bytes = bytes;
    if (!hr_current_context(&allocation->context))
        allocation->context.row = HR_NO_ROW;
    hr_begin_change(allocation->context.row);
    CUresult result = hr_take_memory(allocation->context.row, bytes);
    if (__builtin_expect(result != CUDA_SUCCESS, 0))
        hr_end_change(allocation->context.row);
    return result;
}

CUresult hr_adjust_allocation(struct hr_allocation *allocation, uint64_t bytes)
{
    CUresult result = CUDA_SUCCESS;
    if (bytes > allocation->bytes)
        result = hr_take_memory(allocation->context.row, bytes - allocation->bytes);
    else
        hr_give_back_bytes(allocation->context.row, HR_DATA, allocation->bytes - bytes);
    if (result == CUDA_SUCCESS)
        allocation->bytes = bytes;
    return result;
}

void hr_give_back_entry(const struct hr_entry *entry)
{
    if (!entry->in_pool) {
        hr_give_back_bytes(entry->row, HR_DATA, entry->bytes);
        return;
    }
    hr_take_back_promise((int)entry->owner, entry->bytes);
    hr_settle_pool((int)entry->owner);
}

void hr_enter_allocation(const struct hr_entry *entry)
{
    struct hr_entry displaced;
    if (!hr_enter_book(entry, &displaced)) {
        hr_complain("there is no memory to note an allocation; it is not counted");
        hr_give_back_entry(entry);
    } else if (__builtin_expect(displaced.space != HR_NOTHING, 0)) {
        hr_give_back_entry(&displaced);
    }
}

CUresult hr_end_allocation(const struct hr_allocation *allocation, CUresult result,
                           enum hr_space space, uint64_t key)
{
    int row = allocation->context.row;
    if (row < 0)
        return result;
    const struct hr_entry entry = {.key = key,
                                   .bytes = allocation->bytes,
                                   .owner = allocation->context.owner,
                                   .row = (int16_t)row,
                                   .space = (uint8_t)space};
    if (result == CUDA_SUCCESS)
        hr_enter_allocation(&entry);
    else
        hr_give_back_bytes(row, HR_DATA, allocation->bytes);
    hr_end_change(row);
    return result;
}

void hr_begin_freeing(struct hr_freeing *freeing, enum hr_space space, uint64_t key)
{
    freeing->is_ours = hr_take_from_books(space, key, &freeing->entry);
    if (freeing->is_ours)
        hr_begin_change(freeing->entry.row);
}

/* Also where the driver does not know it any more: it went away with its context. */
static bool is_gone(CUresult result)
{
    return result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_VALUE ||
           result == CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult hr_end_freeing(const struct hr_freeing *freeing, CUresult result)
{
    if (!freeing->is_ours)
        return result;
    if (is_gone(result))
        hr_give_back_entry(&freeing->entry);
    else
        hr_enter_allocation(&freeing->entry);
    hr_end_change(freeing->entry.row);
    return result;
}
