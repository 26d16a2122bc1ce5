#define _GNU_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <sys/sysmacros.h>

#include "lock.h"

/* ---- Own mappings ------------------------------------------------------------------ */

struct own_maps {
    const hr_region *region;
    struct hr_file_id file;
    bool by_another;
};

static bool look_up_address(void *argument, const struct hr_mapping *mapping)
{
    struct own_maps *own = argument;
    if (mapping->start != (uint64_t)(uintptr_t)own->region->base)
        return true;
    own->file = mapping->file;
    return false;
}

static bool look_for_another(void *argument, const struct hr_mapping *mapping)
{
    struct own_maps *own = argument;
    own->by_another = own->by_another || (mapping->writable &&
                                          hr_is_same_file(&mapping->file, &own->region->in_maps) &&
                                          !hr_is_mapped_by_handle(mapping->start));
    return !own->by_another;
}

static int read_own_maps(hr_take_mapping *take, struct own_maps *own)
{
    struct hr_maps_reader reader = {.take = take, .argument = own, .deadline_ns = UINT64_MAX};
    errno = 0;
    if (hr_read_maps(AT_FDCWD, "/proc/self/maps", &reader) == HR_REFUSED &&
        (errno == EMFILE || errno == ENFILE || errno == ENOMEM))
        return hr_fail_errno(HR_ESYSTEM, errno);
    return HR_OK;
}

int hr_own_mapping(hr_region *region, bool *by_another)
{
    struct own_maps own = {
        .region = region,
        .file = {major(region->device_id), minor(region->device_id), region->inode}};
    int code = HR_OK;
    /* So that no handle is opened or closed meanwhile. */
    hr_fork_lock();
    if (region->in_maps.inode == 0)
        code = read_own_maps(look_up_address, &own);
    if (code == HR_OK && region->in_maps.inode == 0)
        region->in_maps = own.file;
    if (code == HR_OK && by_another != NULL) {
        code = read_own_maps(look_for_another, &own);
        *by_another = own.by_another;
    }
    hr_fork_unlock();
    return code;
}

int hr_get_file_id(hr_region *region, struct hr_file_id *out, struct hr_error *error)
{
    int code = hr_enter(region);
    if (code != HR_OK)
        return hr_report(error, code);
    code = hr_own_mapping(region, NULL);
    if (code == HR_OK)
        *out = region->in_maps;
    return hr_report(error, hr_leave_after(region, code));
}

/* ---- Searching --------------------------------------------------------------------- */

struct copy_call {
    const hr_region *region;
    struct hr_slot_pids *out;
};

static int copy_slot_pids(void *argument)
{
    struct copy_call *call = argument;
    const hr_region *region = call->region;
    int32_t count;
    int code = hr_checked_proc_num(region, &count);
    for (int32_t i = 0; code == HR_OK && i < count; i++) {
        const unsigned char *slot = hr_slot(region, (uint32_t)i);
        int32_t pid = hr_load_i32(slot + region->layout->slot_pid, memory_order_relaxed);
        if (pid != 0)
            call->out->pids[call->out->count++] = pid;
    }
    return code;
}

int hr_read_slot_pids(const hr_region *region, struct hr_slot_pids *out)
{
    struct copy_call call = {.region = region, .out = out};
    out->count = 0;
    out->any_level = false;
    return hr_run_entered(region, copy_slot_pids, &call);
}

int hr_prepare_search(hr_region *region, struct hr_search *search)
{
    bool by_another;
    int code = hr_own_mapping(region, &by_another);
    if (code != HR_OK)
        return code;
    /* Where they cannot be read they prove no namespace. */
    if (hr_read_slot_pids(region, &search->slots) != HR_OK)
        search->slots.count = 0;
    search->file = (struct hr_asked_file){.file = region->in_maps,
                                          .bytes = region->mapped_bytes,
                                          .has_own_pages = region->has_own_pages};
    search->counts_self = by_another || hr_is_used_by_process(region, search->without_own_handle);
    search->is_namespace_of_slots =
        region->own.pid != 0 && hr_names_slot(&search->slots, region->own.pid);
    return HR_OK;
}
