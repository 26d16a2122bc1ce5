/*
 * Physical memory, and where it is mapped (cuMemCreate, cuMemMap).  It counts until its handle is
 * released and its last mapping is gone, in whatever order that happens.  A second handle to it is
 * not known: what it alone keeps counts as context memory.  What was imported from another process
 * is counted by the process that made it.
 */
#define _GNU_SOURCE
#include <pthread.h>

#include "complain.h"
#include "hooks.h"
#include "memory.h"
#include "session.h"

/* ---- The memory ------------------------------------------------------------------------ */

/* Each has a number, and under that an entry whose `owner` is how many use it: its handle and its
 * mappings. */
enum { NO_MEMORY = 0 };

static uint32_t last_number;
static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER; /* the numbers of users */

/* With its handle as the only user.  NO_MEMORY: there is no room to note it. */
static uint32_t add_memory(int row, uint64_t bytes)
{
    struct hr_entry none,
        entry = {.space = HR_MEMORY_OF_NUMBER, .bytes = bytes, .row = (int16_t)row, .owner = 1};
    pthread_mutex_lock(&changing);
    entry.key = ++last_number;
    bool is_noted = hr_table_put(&entry, &none);
    pthread_mutex_unlock(&changing);
    return is_noted ? (uint32_t)entry.key : NO_MEMORY;
}

/* Memory without any user is given back.  NO_MEMORY is not in the table. */
static void change_users(uint32_t number, int32_t more)
{
    struct hr_entry none, entry;
    pthread_mutex_lock(&changing);
    bool is_over = hr_table_take(HR_MEMORY_OF_NUMBER, number, &entry);
    if (is_over) {
        entry.owner += (uint32_t)more;
        is_over = entry.owner == 0 || !hr_table_put(&entry, &none);
    }
    pthread_mutex_unlock(&changing);
    if (is_over)
        hr_give_back_memory(entry.row, entry.bytes);
}

/* ---- Its handles ------------------------------------------------------------------------ */

/* False: there is no room to note it. */
static bool enter_handle(CUmemGenericAllocationHandle handle, uint32_t number)
{
    const struct hr_entry entry = {
        .key = handle, .owner = number, .row = HR_NO_ROW, .space = HR_HANDLE};
    struct hr_entry displaced;
    if (!hr_table_put(&entry, &displaced))
        return false;
    /* The driver has taken the other one back unseen. */
    if (displaced.space != HR_NOTHING)
        change_users(displaced.owner, -1);
    return true;
}

static void enter_memory(int row, uint64_t bytes, CUmemGenericAllocationHandle handle)
{
    uint32_t number = add_memory(row, bytes);
    if (number != NO_MEMORY && enter_handle(handle, number))
        return;
    hr_complain("there is no memory to note an allocation; it is not counted");
    if (number == NO_MEMORY)
        hr_give_back_memory(row, bytes);
    else
        change_users(number, -1);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t bytes,
                     const CUmemAllocationProp *properties, unsigned long long flags)
{
    CUresult result = hr_enter_memory_call();
    if (result != CUDA_SUCCESS)
        return result;
    int row = HR_NO_ROW;
    if (properties != NULL)
        row = hr_row_of_device(
            hr_device_of_location(properties->location.type, properties->location.id));
    if (row < 0)
        return HR_CUDA(cuMemCreate)(out, bytes, properties, flags);
    hr_begin_change(row);
    result = hr_take_memory(row, bytes);
    if (result == CUDA_SUCCESS) {
        result = HR_CUDA(cuMemCreate)(out, bytes, properties, flags);
        if (result == CUDA_SUCCESS)
            enter_memory(row, bytes, *out);
        else
            hr_give_back_memory(row, bytes);
    }
    hr_end_change(row);
    return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    struct hr_entry entry;
    /* Before the driver may give other memory the same handle. */
    bool is_ours = hr_table_take(HR_HANDLE, handle, &entry);
    CUresult result = HR_CUDA(cuMemRelease)(handle);
    if (is_ours && result == CUDA_SUCCESS)
        change_users(entry.owner, -1);
    else if (is_ours)
        enter_handle(handle, entry.owner);
    return result;
}

/* ---- Its mappings ----------------------------------------------------------------------- */

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    struct hr_entry of_handle, displaced;
    uint32_t number = NO_MEMORY;
    if (hr_table_find(HR_HANDLE, handle, &of_handle))
        number = of_handle.owner;
    /* First, so that a release at the same time is not the end of it. */
    change_users(number, 1);
    CUresult result = HR_CUDA(cuMemMap)(address, bytes, offset, handle, flags);
    if (result != CUDA_SUCCESS) {
        change_users(number, -1);
        return result;
    }
    const struct hr_entry entry = {
        .key = address, .bytes = bytes, .owner = number, .row = HR_NO_ROW, .space = HR_MAPPING};
    if (!hr_table_put(&entry, &displaced))
        change_users(number, -1);
    else if (displaced.space != HR_NOTHING)
        change_users(displaced.owner, -1);
    return result;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes)
{
    CUresult result = HR_CUDA(cuMemUnmap)(address, bytes);
    /* Several mappings may go at once, one behind the other. */
    uint64_t at = address, end = address + bytes;
    struct hr_entry entry;
    while (result == CUDA_SUCCESS && at < end && hr_table_take(HR_MAPPING, at, &entry)) {
        change_users(entry.owner, -1);
        at += entry.bytes;
    }
    return result;
}
