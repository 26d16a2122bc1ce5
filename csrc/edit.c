#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "slots.h"

struct edit_call {
    const hr_region *region;
    struct hr_edit *edits;
    uint32_t count, room, flags;
};

/* ---- Which values ------------------------------------------------------------ */

static uint64_t load(const hr_region *region, const struct hr_edit *edit)
{
    return hr_load_value(region, edit->kind, (uint32_t)edit->device);
}

/* `found` takes what was found when this fails. */
static bool swap(const hr_region *region, const struct hr_edit *edit, uint64_t *found, uint64_t to)
{
    unsigned char *at = hr_value_at(region, edit->kind, (uint32_t)edit->device);
    if (hr_is_per_device(edit->kind))
        return hr_swap_u64(at, found, to);
    int32_t narrow = (int32_t)*found;
    bool swapped = hr_swap_i32(at, &narrow, (int32_t)to);
    *found = (uint64_t)(int64_t)narrow;
    return swapped;
}

/* ---- Which devices ----------------------------------------------------------- */

static int refuse(int code, const struct hr_edit *edit, uint64_t found, uint64_t wanted)
{
    return HR_FAIL_OF(code, edit->device, HR_LAYOUTS, .found = found, .wanted = wanted,
                      .kind = edit->kind);
}

/* The devices that an edit means, one bit each; the first for what has no device. */
static int find_devices(const struct edit_call *call, const struct hr_edit *edit, uint32_t *out)
{
    *out = 1;
    if (!hr_is_per_device(edit->kind))
        return hr_check_end(call->region);
    uint32_t devices;
    int32_t processes;
    int code = hr_region_devices(call->region, &devices);
    /* No limit is stored in a region whose counts are damaged, needed or not. */
    if (code == HR_OK)
        code = hr_checked_proc_num(call->region, &processes);
    if (code != HR_OK)
        return code;
    *out = devices;
    if (edit->device == HR_ALL_DEVICES)
        return HR_OK;
    *out = 1u << edit->device;
    if ((devices & *out) != 0 || (call->flags & HR_FORCE) != 0)
        return HR_OK;
    return HR_FAIL_OF(HR_ENODEVICE, edit->device, HR_LAYOUTS, .candidates = devices);
}

/* Put one edit for each device concerned in the place of those that were given. */
static int spread(struct edit_call *call)
{
    struct hr_edit given[HR_EDITS_MAX];
    const uint32_t count = call->count;
    uint32_t edited[HR_EDIT_KINDS] = {0};
    memcpy(given, call->edits, count * sizeof given[0]);
    call->count = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t devices;
        int code = find_devices(call, &given[i], &devices);
        if (code != HR_OK)
            return code;
        for (int32_t device = 0; device < HR_DEVICES; device++) {
            if ((devices & 1u << device) == 0)
                continue;
            given[i].device = device;
            if ((edited[given[i].kind] & 1u << device) != 0)
                return refuse(HR_EINVAL, &given[i], 0, 0);
            edited[given[i].kind] |= 1u << device;
            if (call->count == call->room) {
                return HR_FAIL(HR_ENOSPACE, .wanted = HR_EDITS_MAX);
            }
            call->edits[call->count++] = given[i];
        }
    }
    return HR_OK;
}

/* ---- Whether they may be changed ----------------------------------------------- */

static bool is_expected(const struct hr_edit *edit, uint64_t found)
{
    bool both_unlimited =
        edit->kind == HR_SM && !hr_is_limited_sm(found) && !hr_is_limited_sm(edit->expected);
    return (edit->flags & HR_EXPECT) == 0 || found == edit->expected || both_unlimited;
}

/*
 * libvgpu's launches look at device 0's SM limit each time, for all devices, up to 2.8.0.
 * What fills a process's bucket is started with the process, and only where it finds a
 * limit: below 100 up to 2.4.0, up to 100 afterwards.  So a limit that comes later finds
 * a bucket that is never filled.
 */
static bool leaves_bucket_unfilled(const struct edit_call *call, const struct hr_edit *edit)
{
    if (edit->kind != HR_SM || edit->device != 0 || !hr_is_limited_sm(edit->after))
        return false;
    switch (call->region->layout->id) {
    case HR_UNVERSIONED_NO_UTIL:
    case HR_UNVERSIONED:
        return !hr_is_limited_sm(edit->before);
    case HR_V1_1:
        return edit->before == 0 || edit->before > 100;
    default:
        return false;
    }
}

static int check_running_processes(const struct edit_call *call, struct hr_edit *edit)
{
    int32_t slots;
    uint64_t processes = 0;
    edit->stops_launches = 0;
    if (!leaves_bucket_unfilled(call, edit))
        return HR_OK;
    int code = hr_checked_proc_num(call->region, &slots);
    for (int32_t i = 0; code == HR_OK && i < slots; i++)
        processes += !hr_is_emptied(call->region, i);
    if (code != HR_OK || processes == 0)
        return code;
    edit->stops_launches = 1;
    if ((call->flags & HR_FORCE) != 0)
        return HR_OK;
    return refuse(HR_EUNWATCHED, edit, processes, edit->after);
}

static int check_use(const struct edit_call *call, const struct hr_edit *edit)
{
    uint64_t used;
    if (edit->kind != HR_MEMORY || edit->after == 0 || (call->flags & HR_FORCE) != 0)
        return HR_OK;
    int code = hr_sum_used(call->region, (uint32_t)edit->device, &used);
    return code == HR_OK && used > edit->after ? refuse(HR_EBELOWUSE, edit, used, edit->after)
                                               : code;
}

static int check_edit(const struct edit_call *call, struct hr_edit *edit)
{
    edit->before = load(call->region, edit);
    edit->after = edit->value;
    if (!is_expected(edit, edit->before))
        return refuse(HR_ECONFLICT, edit, edit->before, edit->expected);
    if ((edit->flags & HR_PERCENT) != 0) {
        unsigned __int128 share = (unsigned __int128)edit->before * edit->value / 100;
        if (share == 0 || share > UINT64_MAX)
            return refuse(HR_EINVAL, edit, edit->before, edit->value);
        edit->after = (uint64_t)share;
    }
    int code = check_running_processes(call, edit);
    return code == HR_OK ? check_use(call, edit) : code;
}

/* ---- Storing ------------------------------------------------------------------- */

/*
 * Write to its page, and change nothing.  The first store to a page of a file waits for
 * the kernel, and a process that is killed meanwhile never makes it: with all pages at
 * hand there are some 100 ns between the first store and the last.
 */
static void fetch_page(const hr_region *region, const struct hr_edit *edit)
{
    uint64_t found = edit->before;
    swap(region, edit, &found, found);
}

/* Another writer cannot win each time, unless it means to. */
#define STORE_TRIES 64

/*
 * A value is only replaced by one that was judged beside it: where it is another one by
 * now, the edit is judged anew, or refused if that one was not expected.
 */
static int store(const struct edit_call *call, struct hr_edit *edit)
{
    for (int tries = 0; tries < STORE_TRIES; tries++) {
        uint64_t found = edit->before;
        if (swap(call->region, edit, &found, edit->after))
            return HR_OK;
        int code = check_edit(call, edit);
        if (code != HR_OK)
            return code;
    }
    return refuse(HR_ECONFLICT, edit, load(call->region, edit), edit->before);
}

static int edit_work(void *argument)
{
    struct edit_call *call = argument;
    int code = hr_check_header(call->region);
    if (code == HR_OK)
        code = spread(call);
    for (uint32_t i = 0; code == HR_OK && i < call->count; i++)
        code = check_edit(call, &call->edits[i]);
    if (code != HR_OK || (call->flags & HR_DRY_RUN) != 0)
        return code;

    for (uint32_t i = 0; call->count > 1 && i < call->count; i++)
        fetch_page(call->region, &call->edits[i]);
    for (uint32_t i = 0; i < call->count; i++) {
        code = store(call, &call->edits[i]);
        if (code == HR_OK)
            continue;
        /* Put back what was stored, unless somebody has stored something else since. */
        while (i-- > 0) {
            struct hr_edit *done = &call->edits[i];
            uint64_t ours = done->after;
            swap(call->region, done, &ours, done->before);
        }
        return code;
    }
    return HR_OK;
}

static bool is_valid(const struct hr_edit *edit)
{
    const bool percent = (edit->flags & HR_PERCENT) != 0;
    if (edit->kind >= HR_EDIT_KINDS || (edit->flags & ~(uint32_t)(HR_EXPECT | HR_PERCENT)) != 0 ||
        (percent && edit->kind != HR_MEMORY))
        return false;
    if (!hr_is_per_device(edit->kind)) {
        return (int64_t)edit->value == (int32_t)edit->value &&
               (int64_t)edit->expected == (int32_t)edit->expected;
    }
    return edit->device >= HR_ALL_DEVICES && edit->device < HR_DEVICES;
}

int hr_edit(hr_region *region, struct hr_edit *edits, uint32_t count, uint32_t room, uint32_t flags,
            struct hr_error *error)
{
    if ((flags & ~(uint32_t)(HR_FORCE | HR_DRY_RUN)) != 0 || count > HR_EDITS_MAX || count > room)
        return hr_report(error, hr_fail_code(HR_EINVAL));
    for (uint32_t i = 0; i < count; i++) {
        if (!is_valid(&edits[i]))
            return hr_report(error, hr_fail_code(HR_EINVAL));
    }
    struct edit_call call = {
        .region = region, .edits = edits, .count = count, .room = room, .flags = flags};
    /* A read-only handle can check an edit. */
    int code = flags & HR_DRY_RUN ? hr_run(region, edit_work, &call)
                                  : hr_run_write(region, edit_work, &call);
    return hr_report(error, code == HR_OK ? (int)call.count : code);
}

/* ---- Behind the structure ------------------------------------------------------ */

/* Not through the mapping, which would not make the file longer. */
static int write_behind(hr_region *region, uint32_t at, int32_t word)
{
    int fd = hr_open_again(region, HR_WRITE), code = HR_OK;
    if (fd < 0)
        return fd;
    if (pwrite(fd, &word, sizeof word, at) != (ssize_t)sizeof word)
        code = hr_fail_errno(HR_ESYSTEM, errno);
    close(fd);
    return code;
}

static int set_burst(hr_region *region, bool on, bool is_dry_run)
{
    const int32_t word = on ? HR_BURST_ON : 0;
    uint64_t before;
    if (!hr_has_burst(region->layout))
        return hr_fail_code(HR_EINVAL);
    int code = hr_get(region, HR_VALUE_BURST, 0, &before, NULL);
    if (code != HR_OK || before == on || is_dry_run)
        return code == HR_OK ? (int)before : code;
    code = write_behind(region, hr_burst_at(region->layout), word);
    return code == HR_OK ? (int)before : code;
}

int hr_set_burst(hr_region *region, int on, uint32_t flags, struct hr_error *error)
{
    int code = hr_enter_to_write(region);
    if (code == HR_OK)
        code = hr_leave_after(region, set_burst(region, on != 0, (flags & HR_DRY_RUN) != 0));
    return hr_report(error, code);
}

/* ---- Editing a slot, under the lock ------------------------------------------------- */

struct slot_edit_call {
    hr_region *region;
    int32_t pid;
    struct hr_slot_edit *edits;
    uint32_t count;
    uint32_t dry_run;
};

static bool is_narrow(const struct hr_slot_edit *edit)
{
    return edit->value == HR_SLOT_HOST_PID || edit->value == HR_SLOT_STATUS;
}

/* Every layout with a lock has all of these values. */
static bool is_slot_edit_valid(const struct hr_slot_edit *edit)
{
    if (is_narrow(edit))
        return edit->to <= INT32_MAX;
    return edit->value <= HR_SLOT_DEC && edit->device < HR_DEVICES;
}

static unsigned char *slot_value_at(const struct hr_layout *layout, unsigned char *slot,
                                    const struct hr_slot_edit *edit)
{
    switch (edit->value) {
    case HR_SLOT_HOST_PID:
        return slot + layout->slot_hostpid;
    case HR_SLOT_STATUS:
        return slot + layout->slot_status;
    case HR_SLOT_MONITOR_USED:
        return slot + layout->slot_monitorused + edit->device * 8;
    default: /* dec, enc, sm lie in the reverse order of the enum */
        return slot + layout->slot_util + edit->device * layout->slot_util_stride +
               (HR_SLOT_DEC - edit->value) * 8;
    }
}

static int slot_edit_work(void *argument)
{
    struct slot_edit_call *call = argument;
    const hr_region *region = call->region;
    int32_t count;
    int code = hr_checked_table(region, &count);
    if (code != HR_OK)
        return code;
    int32_t index = hr_find_slot(region, call->pid, count);
    if (index < 0)
        return hr_no_process(call->pid);
    unsigned char *slot = hr_slot(region, (uint32_t)index);
    for (uint32_t i = 0; i < call->count; i++) {
        struct hr_slot_edit *edit = &call->edits[i];
        unsigned char *at = slot_value_at(region->layout, slot, edit);
        edit->before = is_narrow(edit) ? (uint64_t)(int64_t)hr_load_i32(at, memory_order_relaxed)
                                       : hr_load_u64(at, memory_order_relaxed);
        if (call->dry_run)
            continue;
        if (is_narrow(edit))
            hr_store_i32(at, (int32_t)edit->to, memory_order_relaxed);
        else
            hr_store_u64(at, edit->to, memory_order_relaxed);
    }
    return HR_OK;
}

int hr_edit_slot(hr_region *region, int32_t pid, struct hr_slot_edit *edits, uint32_t count,
                 uint32_t dry_run, uint64_t timeout_ns, struct hr_error *error)
{
    for (uint32_t i = 0; i < count; i++) {
        if (!is_slot_edit_valid(&edits[i]))
            return hr_report(error, hr_fail_code(HR_EINVAL));
    }
    struct slot_edit_call call = {
        .region = region, .pid = pid, .edits = edits, .count = count, .dry_run = dry_run};
    return hr_report(error, hr_run_locked(region, slot_edit_work, &call, timeout_ns));
}

struct refusals_call {
    hr_region *region;
    uint64_t count;
};

/* HR_ENOTREADY: they are not counted yet. */
static int refusals_work(void *argument)
{
    const struct refusals_call *call = argument;
    unsigned char *at = call->region->base + hr_refusals_at(call->region->layout);
    if (hr_load_i32(at + 8, memory_order_relaxed) != HR_REFUSALS_COUNTED)
        return HR_ENOTREADY;
    hr_add_u64(at, call->count, memory_order_relaxed);
    return HR_OK;
}

int hr_count_refusals(hr_region *region, uint64_t count, struct hr_error *error)
{
    struct refusals_call call = {.region = region, .count = count};
    if (!hr_has_burst(region->layout))
        return hr_report(error, hr_fail_code(HR_EINVAL));
    int code = hr_enter_to_write(region);
    if (code == HR_OK) {
        code = hr_run_entered(region, refusals_work, &call);
        /* Another process that writes it now writes the same word. */
        if (code == HR_ENOTREADY) {
            code = write_behind(region, hr_refusals_at(region->layout) + 8, HR_REFUSALS_COUNTED);
            if (code == HR_OK)
                code = hr_run_entered(region, refusals_work, &call);
        }
        code = hr_leave_after(region, code);
    }
    return hr_report(error, code);
}
