/*
 * Physical memory, and where it is mapped (cuMemCreate, cuMemMap).  It counts until its handle is
 * released and its last mapping is gone, in whatever order that happens.  A second handle to it is
 * not known: what it alone keeps counts as context memory.  What was imported from another process
 * is counted by the process that made it.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>

#include "complain.h"
#include "hooks.h"
#include "memory.h"
#include "session.h"

/* ---- The memory ------------------------------------------------------------------------ */

/* Its number in the table is its place and one. */
struct memory {
    uint64_t bytes;
    int row;
    uint32_t users; /* its handle and its mappings */
    uint32_t next_free;
};

enum { NO_MEMORY = 0 };

static struct memory *memories;
static uint32_t room, first_free; /* a number, NO_MEMORY: none */
static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER;

/* Under `changing`. */
static bool make_room(void)
{
    uint32_t more = room == 0 ? 64 : room * 2;
    struct memory *moved = realloc(memories, more * sizeof *moved);
    if (moved == NULL)
        return false;
    memories = moved;
    for (uint32_t at = more; at > room; at--) {
        memories[at - 1].next_free = first_free;
        first_free = at;
    }
    room = more;
    return true;
}

/* With its handle as the only user.  NO_MEMORY: there is no room to note it. */
static uint32_t add_memory(int row, uint64_t bytes)
{
    pthread_mutex_lock(&changing);
    uint32_t number = NO_MEMORY;
    if (first_free != NO_MEMORY || make_room()) {
        number = first_free;
        first_free = memories[number - 1].next_free;
        memories[number - 1] = (struct memory){.bytes = bytes, .row = row, .users = 1};
    }
    pthread_mutex_unlock(&changing);
    return number;
}

static void add_user(uint32_t number)
{
    if (number == NO_MEMORY)
        return;
    pthread_mutex_lock(&changing);
    memories[number - 1].users++;
    pthread_mutex_unlock(&changing);
}

/* Memory without any is given back. */
static void remove_user(uint32_t number)
{
    if (number == NO_MEMORY)
        return;
    pthread_mutex_lock(&changing);
    struct memory *memory = &memories[number - 1];
    struct memory left = *memory;
    memory->users = --left.users;
    if (left.users == 0) {
        memory->next_free = first_free;
        first_free = number;
    }
    pthread_mutex_unlock(&changing);
    if (left.users == 0)
        hr_give_back_memory(left.row, left.bytes);
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
        remove_user(displaced.owner);
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
        remove_user(number);
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
        remove_user(entry.owner);
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
    add_user(number);
    CUresult result = HR_CUDA(cuMemMap)(address, bytes, offset, handle, flags);
    if (result != CUDA_SUCCESS) {
        remove_user(number);
        return result;
    }
    const struct hr_entry entry = {
        .key = address, .bytes = bytes, .owner = number, .row = HR_NO_ROW, .space = HR_MAPPING};
    if (!hr_table_put(&entry, &displaced))
        remove_user(number);
    else if (displaced.space != HR_NOTHING)
        remove_user(displaced.owner);
    return result;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes)
{
    CUresult result = HR_CUDA(cuMemUnmap)(address, bytes);
    /* Several mappings may go at once, one behind the other. */
    uint64_t at = address, end = address + bytes;
    struct hr_entry entry;
    while (result == CUDA_SUCCESS && at < end && hr_table_take(HR_MAPPING, at, &entry)) {
        remove_user(entry.owner);
        at += entry.bytes;
    }
    return result;
}
