#include "complain.h"
#include "memory.h"
#include "session.h"

/* ---- Charges of this process ----------------------------------------------------------- */

/* On lines of their own: rows belong to different devices and so, often, to different threads. */
static struct {
    _Atomic uint64_t bytes, most_bytes, managed_bytes, begun, ended;
} __attribute__((aligned(64))) row_states[HR_DEVICES];

struct hr_row_state hr_state_of_row(int row)
{
    /* `ended` first: a call that begins and ends in between must not look like none. */
    uint64_t ended = atomic_load_explicit(&row_states[row].ended, memory_order_acquire);
    return (struct hr_row_state){
        .bytes = atomic_load_explicit(&row_states[row].bytes, memory_order_relaxed),
        .most_bytes = atomic_load_explicit(&row_states[row].most_bytes, memory_order_relaxed),
        .managed_bytes = atomic_load_explicit(&row_states[row].managed_bytes, memory_order_relaxed),
        .begun = atomic_load_explicit(&row_states[row].begun, memory_order_acquire),
        .ended = ended,
    };
}

void hr_watch_most_bytes(int row)
{
    /* Sequentially consistent, as raise_most(): a charge is in the one or in the other word. */
    atomic_store(&row_states[row].most_bytes, 0);
    uint64_t bytes = atomic_load(&row_states[row].bytes);
    uint64_t most = 0;
    while (most < bytes && !atomic_compare_exchange_weak(&row_states[row].most_bytes, &most, bytes))
        continue;
}

void hr_begin_change(int row)
{
    if (row >= 0)
        atomic_fetch_add_explicit(&row_states[row].begun, 1, memory_order_acq_rel);
}

void hr_end_change(int row)
{
    if (row >= 0)
        atomic_fetch_add_explicit(&row_states[row].ended, 1, memory_order_acq_rel);
}

static void note_bytes(int row, uint64_t bytes)
{
    if (row < 0)
        return;
    uint64_t now = atomic_fetch_add(&row_states[row].bytes, bytes) + bytes;
    uint64_t most = atomic_load(&row_states[row].most_bytes);
    while (most < now && !atomic_compare_exchange_weak(&row_states[row].most_bytes, &most, now))
        continue;
}

/* Managed memory is in `managed_bytes` instead; 0 - bytes takes it away again. */
static void move_to_managed(int row, uint64_t bytes)
{
    if (row < 0)
        return;
    atomic_fetch_add_explicit(&row_states[row].managed_bytes, bytes, memory_order_relaxed);
    atomic_fetch_sub_explicit(&row_states[row].bytes, bytes, memory_order_relaxed);
}

CUresult hr_charge_memory(int row, uint64_t bytes)
{
    CUresult result = hr_take_bytes(row, HR_DATA, bytes);
    if (result == CUDA_SUCCESS)
        note_bytes(row, bytes);
    return result;
}

CUresult hr_take_memory(int row, uint64_t bytes)
{
    CUresult result = hr_charge_memory(row, bytes);
    if (__builtin_expect(result == CUDA_ERROR_OUT_OF_MEMORY, 0) && hr_trim_pools(row))
        result = hr_charge_memory(row, bytes);
    return __builtin_expect(result == CUDA_SUCCESS, 1) ? result : hr_count_refusal(result);
}

void hr_count_memory(int row, uint64_t bytes)
{
    hr_count_bytes(row, HR_DATA, bytes);
    note_bytes(row, bytes);
}

void hr_give_back_memory(int row, uint64_t bytes)
{
    hr_give_back_bytes(row, HR_DATA, bytes);
    if (row >= 0)
        atomic_fetch_sub_explicit(&row_states[row].bytes, bytes, memory_order_relaxed);
}

/* ---- Allocations ----------------------------------------------------------------------- */

CUresult hr_enter_memory_call(void)
{
    if (__builtin_expect((hr_current_holds() & HR_HOLD_SUSPENDED) != 0, 0))
        hr_wait_while_suspended();
    return hr_session_result(hr_attach_session());
}

CUresult hr_begin_allocation(struct hr_allocation *allocation)
{
    CUresult result = hr_enter_memory_call();
    if (result != CUDA_SUCCESS)
        return result;
    if (!hr_current_context(&allocation->context))
        allocation->context.row = HR_NO_ROW;
    hr_begin_change(allocation->context.row);
    result = hr_take_memory(allocation->context.row, allocation->bytes);
    if (__builtin_expect(result != CUDA_SUCCESS, 0))
        hr_end_change(allocation->context.row);
    return result;
}

void hr_give_back_entry(const struct hr_entry *entry)
{
    if (entry->in_pool) {
        hr_take_back_promise((int)entry->owner, entry->bytes);
        return;
    }
    if (entry->managed)
        move_to_managed(entry->row, 0 - entry->bytes);
    hr_give_back_memory(entry->row, entry->bytes);
}

void hr_enter_allocation(const struct hr_entry *entry)
{
    struct hr_entry displaced;
    if (!hr_table_put(entry, &displaced)) {
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
                                   .space = (uint8_t)space,
                                   .managed = allocation->is_managed};
    if (result == CUDA_SUCCESS && allocation->is_managed)
        move_to_managed(row, allocation->bytes);
    if (result == CUDA_SUCCESS)
        hr_enter_allocation(&entry);
    else
        hr_give_back_memory(row, allocation->bytes);
    hr_end_change(row);
    return result;
}

void hr_begin_freeing(struct hr_freeing *freeing, enum hr_space space, uint64_t key)
{
    freeing->is_ours = hr_table_take(space, key, &freeing->entry);
    if (freeing->is_ours)
        hr_begin_change(freeing->entry.row);
}

/* Also if the driver does not know it any more: it ended with its context. */
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
