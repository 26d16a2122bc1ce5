#include <sys/stat.h>
#include <unistd.h>

#include "lock.h"

int hr_stat_file(const hr_region *region, struct stat *status)
{
    int held = hr_hold_file(region->path, region->no_link, status);
    if (held < 0)
        return held;
    close(held);
    return HR_OK;
}

int hr_run_entered(const hr_region *region, hr_guarded_work *work, void *argument)
{
    return hr_guard_run(region->base, region->mapped_bytes, work, argument);
}

int hr_run(hr_region *region, hr_guarded_work *work, void *argument)
{
    int code = hr_enter(region);
    if (code != HR_OK)
        return code;
    return hr_leave_after(region, hr_run_entered(region, work, argument));
}

int hr_run_write(hr_region *region, hr_guarded_work *work, void *argument)
{
    /* `writable` never changes after hr_open(). */
    return region->writable ? hr_run(region, work, argument) : hr_fail_code(HR_EREADONLY);
}

int hr_check_header(const hr_region *region)
{
    /* Acquire: what a creator stored before the magic is visible after it. */
    int32_t magic = hr_load_i32(region->base, memory_order_acquire);
    bool same = magic == HR_MAGIC;
    if (region->version != 0) {
        same = same &&
               hr_load_i32(region->base + 4, memory_order_relaxed) ==
                   (int32_t)(region->version >> 32) &&
               hr_load_i32(region->base + 8, memory_order_relaxed) == (int32_t)region->version;
    }
    return same ? HR_OK : hr_fail_reason(HR_ESTALE, HR_REASON_REPLACED);
}

static int corrupt(const hr_region *region, int reason, uint64_t found)
{
    return HR_FAIL_OF(HR_ECORRUPT, -1, region->layout->id, .reason = reason,
                      .file_size = region->layout->size, .found = found);
}

int hr_check_end(const hr_region *region)
{
    const struct hr_layout *layout = region->layout;
    const bool has_time = layout->last_kernel_time != HR_ABSENT;
    const unsigned char *last =
        region->base + (has_time ? layout->last_kernel_time : layout->priority);
    struct stat status;
    if (hr_load_i32(last, memory_order_relaxed) == 0 && hr_stat_file(region, &status) == HR_OK &&
        hr_is_file_of(region, &status) && (uint64_t)status.st_size < layout->size)
        return hr_fail_reason(HR_ESTALE, HR_REASON_TRUNCATED);
    return HR_OK;
}

int hr_checked_proc_num(const hr_region *region, int32_t *out)
{
    /* Acquire pairs with the release of proc_num after a slot has been filled. */
    *out = hr_load_i32(region->base + region->layout->proc_num, memory_order_acquire);
    if (__builtin_expect(*out == 0, 0))
        return hr_check_end(region);
    if (*out >= 0 && *out <= HR_SLOTS)
        return HR_OK;
    return corrupt(region, HR_REASON_PROC_NUM, (uint64_t)(int64_t)*out);
}

int hr_checked_device_num(const hr_region *region, uint32_t *out)
{
    uint64_t count = hr_load_u64(region->base + region->layout->device_num, memory_order_relaxed);
    *out = (uint32_t)count;
    return count <= HR_DEVICES ? HR_OK : corrupt(region, HR_REASON_DEVICE_NUM, count);
}

unsigned char *hr_value_at(const hr_region *region, uint32_t kind, uint32_t device)
{
    const struct hr_layout *layout = region->layout;
    const uint32_t offsets[HR_EDIT_KINDS] = {layout->limit + device * 8,
                                             layout->sm_limit + device * 8, layout->priority,
                                             layout->utilization_switch, layout->recent_kernel};
    return region->base + offsets[kind];
}

uint64_t hr_load_value(const hr_region *region, uint32_t kind, uint32_t device)
{
    const unsigned char *at = hr_value_at(region, kind, device);
    if (hr_is_per_device(kind))
        return hr_load_u64(at, memory_order_relaxed);
    return (uint64_t)(int64_t)hr_load_i32(at, memory_order_relaxed);
}

/* The last device with a limit, as a count.  `alike`: all 16 have the same. */
static uint32_t count_limited(const hr_region *region, uint32_t kind, bool *alike)
{
    uint32_t count = 0;
    *alike = true;
    for (uint32_t device = 0; device < HR_DEVICES; device++) {
        const uint64_t limit = hr_load_value(region, kind, device);
        *alike = *alike && limit == hr_load_value(region, kind, 0);
        if (kind == HR_SM ? hr_is_limited_sm(limit) : limit != 0)
            count = device + 1;
    }
    return count;
}

uint32_t hr_counted_devices(const hr_region *region, uint32_t device_num)
{
    bool alike;
    if (device_num != 0)
        return device_num;
    const uint32_t limited = count_limited(region, HR_MEMORY, &alike);
    return alike || limited == 0 ? 1 : limited;
}

static bool has_usage(const hr_region *region, unsigned char *slot, uint32_t device)
{
    const unsigned char *used = hr_used(region, slot, device);
    uint64_t any = 0;
    for (uint32_t at = 0; at <= HR_TOTAL_OFFSET; at += 8)
        any |= hr_load_u64(used + at, memory_order_relaxed);
    return any != 0;
}

uint32_t hr_find_traces(const hr_region *region, int32_t proc_num)
{
    uint32_t found = 0;
    for (uint32_t device = 0; device < HR_DEVICES; device++) {
        const unsigned char *uuid = region->base + region->layout->uuids + device * HR_UUID_BYTES;
        bool has_trace = hr_load_u64(uuid, memory_order_relaxed) != 0;
        for (int32_t i = 0; i < proc_num && !has_trace; i++)
            has_trace = has_usage(region, hr_slot(region, (uint32_t)i), device);
        found |= (uint32_t)has_trace << device;
    }
    return found;
}

int hr_sum_used(const hr_region *region, uint32_t device, uint64_t *out)
{
    int32_t count;
    int code = hr_checked_proc_num(region, &count);
    if (code != HR_OK)
        return code;
    uint64_t sum = 0;
    for (int32_t i = 0; i < count; i++) {
        const unsigned char *used = hr_used(region, hr_slot(region, (uint32_t)i), device);
        sum += hr_load_u64(used + HR_TOTAL_OFFSET, memory_order_relaxed);
    }
    *out = sum;
    return HR_OK;
}

int hr_region_devices(const hr_region *region, uint32_t *out)
{
    uint32_t count;
    int32_t proc_num;
    bool alike;
    int code = hr_checked_device_num(region, &count);
    if (code == HR_OK && count == 0)
        code = hr_checked_proc_num(region, &proc_num);
    if (code != HR_OK)
        return code;
    if (count == 0) {
        const uint32_t traces = hr_find_traces(region, proc_num);
        const uint32_t limited = count_limited(region, HR_MEMORY, &alike);
        const uint32_t sm_limited = count_limited(region, HR_SM, &alike);
        count = traces == 0 ? 0 : 32 - (uint32_t)__builtin_clz(traces);
        count = limited > count ? limited : count;
        /* One SM limit for all 16 says nothing. */
        count = sm_limited > count && !alike ? sm_limited : count;
        count = count == 0 ? HR_DEVICES : count;
    }
    *out = (1u << count) - 1;
    return HR_OK;
}

/* ---- Live values ----------------------------------------------------------- */

struct get_call {
    const hr_region *region;
    uint32_t value;
    uint32_t device;
    uint64_t result;
};

static int get_work(void *argument)
{
    struct get_call *call = argument;
    const hr_region *region = call->region;
    const struct hr_layout *layout = region->layout;
    uint32_t device_num, devices;
    int32_t proc_num;

    int code = hr_check_header(region);
    if (code != HR_OK)
        return code;
    switch (call->value) {
    case HR_MEMORY:
    case HR_SM:
    case HR_PRIORITY:
    case HR_SWITCH:
    case HR_RECENT_KERNEL:
        call->result = hr_load_value(region, call->value, call->device);
        return call->result == 0 && !hr_is_per_device(call->value) ? hr_check_end(region) : HR_OK;
    case HR_VALUE_MEMORY_USED:
        return hr_sum_used(region, call->device, &call->result);
    case HR_VALUE_LAST_KERNEL_TIME:
        if (layout->last_kernel_time == HR_ABSENT)
            return hr_fail_code(HR_EINVAL);
        call->result = hr_load_u64(region->base + layout->last_kernel_time, memory_order_relaxed);
        return call->result == 0 ? hr_check_end(region) : HR_OK;
    case HR_VALUE_DEVICE_NUM:
        code = hr_checked_device_num(region, &device_num);
        call->result = device_num;
        return code;
    case HR_VALUE_PROC_NUM:
        code = hr_checked_proc_num(region, &proc_num);
        call->result = (uint64_t)proc_num;
        return code;
    case HR_VALUE_PIDLESS:
        code = hr_checked_proc_num(region, &proc_num);
        for (int32_t i = 0; code == HR_OK && i < proc_num; i++)
            call->result += hr_load_i32(hr_slot(region, (uint32_t)i) + layout->slot_pid,
                                        memory_order_relaxed) == 0;
        return code;
    case HR_VALUE_DEVICES:
        code = hr_region_devices(region, &devices);
        call->result = devices;
        return code;
    case HR_VALUE_SEM:
        call->result = hr_sem_value(hr_load_u64(hr_sem_at(region), memory_order_acquire));
        return HR_OK;
    case HR_VALUE_POSTINIT:
        call->result = hr_postinit_value(region);
        return call->result == 0 ? hr_check_end(region) : HR_OK;
    case HR_VALUE_SEQLOCK:
        if (layout->major_version == 0)
            return hr_fail_code(HR_EINVAL);
        call->result = hr_seqlock_of(region, (int32_t)call->device);
        return HR_OK;
    case HR_VALUE_BURST:
        call->result = hr_has_burst(layout) && hr_load_i32(region->base + hr_burst_at(layout),
                                                           memory_order_relaxed) == HR_BURST_ON;
        return HR_OK;
    default:
        return hr_fail_code(HR_EINVAL);
    }
}

int hr_get(hr_region *region, uint32_t value, uint32_t device, uint64_t *out,
           struct hr_error *error)
{
    *out = 0;
    if (device >= (value == HR_VALUE_SEQLOCK ? HR_SLOTS : HR_DEVICES))
        return hr_report(error, hr_fail_code(HR_EINVAL));
    struct get_call call = {.region = region, .value = value, .device = device};
    int code = hr_run(region, get_work, &call);
    *out = call.result;
    return hr_report(error, code);
}
