#include "slots.h"

struct edit_call {
    hr_region *region;
    int32_t pid;
    struct hr_slot_edit *edits;
    uint32_t count;
    uint32_t dry_run;
};

static bool is_edit_valid(const hr_region *region, const struct hr_slot_edit *edit)
{
    switch (edit->value) {
    case HR_SLOT_HOST_PID:
    case HR_SLOT_STATUS:
        return edit->to <= INT32_MAX;
    case HR_SLOT_MONITOR_USED:
        return edit->device < HR_DEVICES;
    case HR_SLOT_SM:
    case HR_SLOT_ENC:
    case HR_SLOT_DEC:
        return edit->device < HR_DEVICES && region->layout->slot_util != HR_ABSENT;
    default:
        return false;
    }
}

static unsigned char *value_at(const struct hr_layout *layout, unsigned char *slot,
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

static int edit_work(void *argument)
{
    struct edit_call *call = argument;
    const hr_region *region = call->region;
    int32_t count;
    int code = hr_check_header(region);
    if (code == HR_OK)
        code = hr_checked_proc_num(region, &count);
    if (code != HR_OK)
        return code;
    int32_t index = hr_find_slot(region, call->pid, count);
    if (index < 0)
        return hr_no_process(call->pid);
    unsigned char *slot = hr_slot(region, (uint32_t)index);
    for (uint32_t i = 0; i < call->count; i++) {
        struct hr_slot_edit *edit = &call->edits[i];
        unsigned char *at = value_at(region->layout, slot, edit);
        const bool is_narrow = edit->value == HR_SLOT_HOST_PID || edit->value == HR_SLOT_STATUS;
        edit->before = is_narrow ? (uint64_t)(int64_t)hr_load_i32(at, memory_order_relaxed)
                                 : hr_load_u64(at, memory_order_relaxed);
        if (call->dry_run)
            continue;
        if (is_narrow)
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
        if (!is_edit_valid(region, &edits[i]))
            return hr_report(error, hr_fail_code(HR_EINVAL));
    }
    struct edit_call call = {
        .region = region, .pid = pid, .edits = edits, .count = count, .dry_run = dry_run};
    return hr_report(error, hr_run_locked(region, edit_work, &call, timeout_ns));
}
