/*
 * Physical memory, and where it is mapped (cuMemCreate, cuMemMap).  It stays until its last handle
 * is released and its last mapping is gone, in whatever order that happens.  What was imported from
 * another process is counted by the process that made it.
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
    uint32_t handles; /* how often cuMemRelease() may still be called */
    uint32_t mappings;
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

/* With one handle.  NO_MEMORY: there is no room to note it. */
static uint32_t add_memory(int row, uint64_t bytes)
{
    pthread_mutex_lock(&changing);
    uint32_t number = NO_MEMORY;
    if (first_free != NO_MEMORY || make_room()) {
        number = first_free;
        first_free = memories[number - 1].next_free;
        memories[number - 1] = (struct memory){.bytes = bytes, .row = row, .handles = 1};
    }
    pthread_mutex_unlock(&changing);
    return number;
}

/* Add to its handles and mappings, or take away.  Memory without any is given back.  Returns the
 * number of its handles. */
static uint32_t change_memory(uint32_t number, int handles, int mappings)
{
    if (number == NO_MEMORY)
        return 0;
    pthread_mutex_lock(&changing);
    struct memory *memory = &memories[number - 1];
    memory->handles += (uint32_t)handles;
    memory->mappings += (uint32_t)mappings;
    struct memory left = *memory;
    bool is_over = left.handles == 0 && left.mappings == 0;
    if (is_over) {
        memory->next_free = first_free;
        first_free = number;
    }
    pthread_mutex_unlock(&changing);
    if (is_over)
        hr_give_back_memory(left.row, left.bytes);
    return left.handles;
}

static uint32_t count_handles(uint32_t number)
{
    pthread_mutex_lock(&changing);
    uint32_t handles = memories[number - 1].handles;
    pthread_mutex_unlock(&changing);
    return handles;
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
    if (displaced.space != HR_NOTHING && displaced.owner != number)
        change_memory(displaced.owner, -1, 0);
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
        change_memory(number, -1, 0);
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
    if (!hr_table_find(HR_HANDLE, handle, &entry))
        return HR_CUDA(cuMemRelease)(handle);
    /* Before the driver may give other memory the same handle. */
    bool is_last = count_handles(entry.owner) == 1;
    if (is_last && !hr_table_take(HR_HANDLE, handle, &entry))
        return HR_CUDA(cuMemRelease)(handle);
    CUresult result = HR_CUDA(cuMemRelease)(handle);
    if (result != CUDA_SUCCESS) {
        if (is_last)
            enter_handle(handle, entry.owner);
        return result;
    }
    if (change_memory(entry.owner, -1, 0) == 0 && !is_last)
        hr_table_take(HR_HANDLE, handle, &entry);
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
    change_memory(number, 0, 1);
    CUresult result = HR_CUDA(cuMemMap)(address, bytes, offset, handle, flags);
    if (result != CUDA_SUCCESS) {
        change_memory(number, 0, -1);
        return result;
    }
    const struct hr_entry entry = {
        .key = address, .bytes = bytes, .owner = number, .row = HR_NO_ROW, .space = HR_MAPPING};
    if (!hr_table_put(&entry, &displaced))
        change_memory(number, 0, -1);
    else if (displaced.space != HR_NOTHING)
        change_memory(displaced.owner, 0, -1);
    return result;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes)
{
    CUresult result = HR_CUDA(cuMemUnmap)(address, bytes);
    /* Several mappings may go at once, one behind the other. */
    uint64_t at = address, end = address + bytes;
    struct hr_entry entry;
    while (result == CUDA_SUCCESS && at < end && hr_table_take(HR_MAPPING, at, &entry)) {
        change_memory(entry.owner, 0, -1);
        at += entry.bytes;
    }
    return result;
}

struct search {
    uint64_t address;
    uint32_t number;
};

/* Chooses nothing: it only looks. */
static bool look_for_address(const struct hr_entry *entry, void *argument)
{
    struct search *search = argument;
    if (entry->space == HR_MAPPING && search->address - entry->key < entry->bytes)
        search->number = entry->owner;
    return false;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *address)
{
    CUresult result = HR_CUDA(cuMemRetainAllocationHandle)(out, address);
    if (result != CUDA_SUCCESS)
        return result;
    struct search search = {.address = (uintptr_t)address, .number = NO_MEMORY};
    struct hr_entry entry;
    if (hr_table_find(HR_HANDLE, *out, &entry))
        search.number = entry.owner;
    else
        hr_table_sweep(look_for_address, NULL, &search);
    if (search.number != NO_MEMORY) {
        change_memory(search.number, 1, 0);
        enter_handle(*out, search.number);
    }
    return result;
}
