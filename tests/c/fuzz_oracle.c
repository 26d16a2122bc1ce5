#include "fuzz_oracle.h"

#include "lock.h"
#include "snapshot_view.h"

static struct hr_usage usage_at(const struct view *view, uint32_t slot, uint32_t device)
{
    const struct hr_layout *layout = view->layout;
    const size_t at = slot_at(view, slot);
    const size_t used = at + layout->slot_used + (size_t)device * layout->slot_used_stride;
    struct hr_usage usage = {.context = get64(view, used),
                             .module = get64(view, used + 8),
                             .data = get64(view, used + 16),
                             .offset = get64(view, used + 24),
                             .total = get64(view, used + 32),
                             .monitor = get64(view, at + layout->slot_monitorused + device * 8)};
    if (layout->slot_util != HR_ABSENT) {
        const size_t util = at + layout->slot_util + (size_t)device * layout->slot_util_stride;
        usage.dec = get64(view, util);
        usage.enc = get64(view, util + 8);
        usage.sm = get64(view, util + 16);
    }
    return usage;
}

static bool is_good_uuid(const uint8_t *uuid)
{
    uint32_t length = 0;
    while (length < HR_UUID_BYTES && uuid[length] >= ' ' && uuid[length] <= '~')
        length++;
    for (uint32_t i = length; i < HR_UUID_BYTES; i++)
        if (uuid[i] != 0)
            return false;
    return length == 0 || (length < HR_UUID_BYTES &&
                           (memcmp(uuid, "GPU-", 4) == 0 || memcmp(uuid, "MIG-", 4) == 0));
}

static bool has_good_counts(const struct view *view)
{
    const int32_t proc_num = get32(view, view->layout->proc_num);
    return get64(view, view->layout->device_num) <= HR_DEVICES && proc_num >= 0 &&
           proc_num <= HR_SLOTS;
}

uint64_t oracle_version(const struct view *view)
{
    const uint64_t major = (uint32_t)get32(view, 4), minor = (uint32_t)get32(view, 8);
    return view->layout->major_version == 0 ? 0 : major << 32 | minor;
}

bool oracle_good_header(const struct view *view)
{
    return get32(view, 0) == HR_MAGIC && oracle_version(view) == view->version;
}

bool oracle_is_newer(const struct view *view)
{
    return view->layout->id == HR_V1_2 && oracle_version(view) > (UINT64_C(1) << 32 | 2) &&
           oracle_version(view) < UINT64_C(2) << 32;
}

static bool is_marked_shared(const struct view *view, uint32_t semaphore)
{
    return get32(view, semaphore + 4) == 128 || get32(view, semaphore + 8) == 128;
}

bool oracle_passes_for_newest(const struct view *view)
{
    const struct hr_layout *layout = view->layout;
    bool passes = has_good_counts(view) && is_marked_shared(view, layout->sem) &&
                  is_marked_shared(view, layout->sem_postinit);
    for (uint32_t device = 0; device < HR_DEVICES; device++)
        passes = passes && get64(view, layout->sm_limit + device * 8) <= 1u << 20 &&
                 is_good_uuid(view->bytes + layout->uuids + (size_t)device * HR_UUID_BYTES);
    return passes;
}

static uint32_t shown_devices(const struct view *view)
{
    const struct hr_layout *layout = view->layout;
    uint64_t count = get64(view, layout->device_num);
    if (count != 0)
        return (1u << count) - 1;
    bool equal = true;
    count = 1;
    for (uint32_t device = 1; device < HR_DEVICES; device++) {
        const uint64_t limit = get64(view, layout->limit + device * 8);
        equal = equal && limit == get64(view, layout->limit);
        if (limit != 0)
            count = device + 1;
    }
    if (equal)
        count = 1;
    uint32_t shown = (1u << count) - 1;
    for (uint32_t device = 0; device < HR_DEVICES; device++)
        if (get64(view, layout->uuids + device * HR_UUID_BYTES) != 0)
            shown |= 1u << device;
    for (int32_t slot = 0; slot < get32(view, layout->proc_num); slot++)
        for (uint32_t device = 0; device < HR_DEVICES; device++) {
            const size_t used = slot_at(view, (uint32_t)slot) + layout->slot_used +
                                (size_t)device * layout->slot_used_stride;
            uint64_t any = 0;
            for (uint32_t part = 0; part < 5; part++)
                any |= get64(view, used + part * 8);
            if (any != 0)
                shown |= 1u << device;
        }
    return shown;
}

int oracle_snapshot_code(const struct view *view, size_t bytes, size_t *wanted)
{
    if (!oracle_good_header(view))
        return HR_ESTALE;
    if (!has_good_counts(view))
        return HR_ECORRUPT;
    const uint32_t span = 32 - (uint32_t)__builtin_clz(shown_devices(view));
    const struct hr_snapshot head = {.span = span,
                                     .process_count = get32(view, view->layout->proc_num)};
    *wanted = hr_snapshot_bytes(&head);
    if (bytes < *wanted)
        return HR_ENOSPACE;
    for (uint32_t device = 0; device < span; device++)
        if (!is_good_uuid(view->bytes + view->layout->uuids + (size_t)device * HR_UUID_BYTES))
            return HR_ECORRUPT;
    return HR_OK;
}

static bool is_free(const struct view *view)
{
    return get32(view, view->layout->sem) == 1 && get64(view, view->layout->owner_pid) == 0;
}

/* An even seqlock, and totals that are the sums of their kinds. */
static bool slot_is_whole(const struct view *view, uint32_t slot, uint32_t span)
{
    const uint32_t seqlock = view->layout->slot_seqlock;
    if (seqlock == HR_ABSENT)
        return true;
    bool whole = get64(view, slot_at(view, slot) + seqlock) % 2 == 0;
    for (uint32_t device = 0; device < span; device++) {
        const struct hr_usage usage = usage_at(view, slot, device);
        whole = whole && usage.total == usage.context + usage.module + usage.data;
    }
    return whole;
}

/* It holds its pids and an even seqlock, and nothing else; what pads its status is no field. */
static bool slot_is_emptied(const struct view *view, uint32_t slot)
{
    const struct hr_layout *layout = view->layout;
    const size_t start = slot_at(view, slot);
    bool empty =
        layout->slot_seqlock == HR_ABSENT || get64(view, start + layout->slot_seqlock) % 2 == 0;
    for (uint32_t at = 0; empty && at < layout->slot_stride; at += 4) {
        const bool is_free = at == layout->slot_pid || at == layout->slot_hostpid ||
                             at == layout->slot_status + 4 || at / 8 * 8 == layout->slot_seqlock;
        empty = is_free || get32(view, start + at) == 0;
    }
    return empty;
}

void oracle_require_same(const struct hr_snapshot *snapshot, const struct view *view)
{
    const struct hr_layout *layout = view->layout;
    REQUIRE(snapshot->shown == shown_devices(view));
    REQUIRE(snapshot->owner_pid == hr_owner_pid(get64(view, layout->owner_pid)));
    REQUIRE(snapshot->semaphore == get64(view, layout->sem));
    REQUIRE(snapshot->last_kernel_time ==
            (layout->last_kernel_time == HR_ABSENT ? 0 : get64(view, layout->last_kernel_time)));
    REQUIRE(snapshot->device_num == get64(view, layout->device_num));
    REQUIRE(snapshot->slot_count == (uint32_t)get32(view, layout->proc_num));
    REQUIRE(snapshot->priority == get32(view, layout->priority));
    REQUIRE(snapshot->utilization_switch == get32(view, layout->utilization_switch));
    REQUIRE(snapshot->recent_kernel == get32(view, layout->recent_kernel));

    struct hr_usage sums[HR_DEVICES] = {0};
    bool settled = is_free(view);
    uint32_t i = 0;
    for (uint32_t slot = 0; slot < snapshot->slot_count; slot++) {
        if (slot_is_emptied(view, slot))
            continue;
        REQUIRE(i < (uint32_t)snapshot->process_count);
        const struct hr_process *process = hr_snapshot_process(snapshot, i);
        const size_t at = slot_at(view, slot);
        REQUIRE(process->slot == slot);
        REQUIRE(process->pid == get32(view, at + layout->slot_pid));
        REQUIRE(process->host_pid == get32(view, at + layout->slot_hostpid));
        REQUIRE(process->status == get32(view, at + layout->slot_status));
        REQUIRE(process->settled == (is_free(view) && slot_is_whole(view, slot, snapshot->span)));
        settled = settled && process->settled;
        for (uint32_t device = 0; device < snapshot->span; device++) {
            const struct hr_usage expected = usage_at(view, slot, device);
            REQUIRE(memcmp(hr_snapshot_usage(snapshot, i, device), &expected, sizeof expected) ==
                    0);
            add_usage(&sums[device], &expected);
        }
        i++;
    }
    REQUIRE(i == (uint32_t)snapshot->process_count);
    REQUIRE(snapshot->settled == settled);
    for (uint32_t device = 0; device < snapshot->span; device++) {
        const struct hr_device *shown = hr_snapshot_device(snapshot, device);
        REQUIRE(shown->limit == get64(view, layout->limit + device * 8));
        REQUIRE(shown->sm_limit == get64(view, layout->sm_limit + device * 8));
        REQUIRE(memcmp(shown->uuid, view->bytes + layout->uuids + (size_t)device * HR_UUID_BYTES,
                       HR_UUID_BYTES) == 0);
        REQUIRE(memcmp(&shown->sums, &sums[device], sizeof shown->sums) == 0);
    }
}

void oracle_require_sane(const struct hr_snapshot *snapshot, size_t bytes)
{
    REQUIRE(snapshot->settled <= 1);
    REQUIRE(snapshot->device_num <= HR_DEVICES);
    REQUIRE(snapshot->slot_count <= HR_SLOTS && !snapshot->truncated);
    REQUIRE(snapshot->process_count >= 0 &&
            (uint32_t)snapshot->process_count <= snapshot->slot_count);
    REQUIRE(snapshot->span >= 1 && snapshot->span <= HR_DEVICES);
    REQUIRE(snapshot->shown >> snapshot->span == 0);
    REQUIRE((snapshot->shown >> (snapshot->span - 1)) == 1);
    REQUIRE(hr_snapshot_bytes(snapshot) <= bytes);
    for (uint32_t i = 0; i < (uint32_t)snapshot->process_count; i++) {
        REQUIRE(hr_snapshot_process(snapshot, i)->settled <= 1);
        REQUIRE(hr_snapshot_process(snapshot, i)->settled || !snapshot->settled);
    }
}

static bool is_limited(uint64_t percent)
{
    return percent != 0 && percent < 100;
}

/* The last device with a limit, use, or an SM limit unlike another one's; else all. */
static uint64_t uncounted_devices(const struct view *view)
{
    const struct hr_layout *layout = view->layout;
    uint32_t count = 0;
    for (uint32_t device = 0; device < HR_DEVICES; device++) {
        bool counts = get64(view, layout->limit + device * 8) != 0 ||
                      get64(view, layout->uuids + device * HR_UUID_BYTES) != 0;
        const uint64_t percent = get64(view, layout->sm_limit + device * 8);
        for (uint32_t other = 0; other < HR_DEVICES; other++)
            counts = counts ||
                     (is_limited(percent) && get64(view, layout->sm_limit + other * 8) != percent);
        for (int32_t slot = 0; slot < get32(view, layout->proc_num); slot++) {
            const struct hr_usage usage = usage_at(view, (uint32_t)slot, device);
            counts = counts ||
                     (usage.context | usage.module | usage.data | usage.offset | usage.total) != 0;
        }
        if (counts)
            count = device + 1;
    }
    return (UINT64_C(1) << (count == 0 ? HR_DEVICES : count)) - 1;
}

int oracle_value(const struct view *view, uint32_t value, uint32_t device, uint64_t *out)
{
    const struct hr_layout *layout = view->layout;
    *out = 0;
    if (!oracle_good_header(view))
        return HR_ESTALE;
    const int32_t proc_num = get32(view, layout->proc_num);
    const bool counts_devices = value == HR_VALUE_DEVICES && get64(view, layout->device_num) == 0;
    const bool uses_proc_num = value == HR_VALUE_MEMORY_USED || value == HR_VALUE_PROC_NUM ||
                               value == HR_VALUE_PIDLESS || counts_devices;
    if (uses_proc_num && (proc_num < 0 || proc_num > HR_SLOTS))
        return HR_ECORRUPT;
    if ((value == HR_VALUE_DEVICE_NUM || value == HR_VALUE_DEVICES) &&
        get64(view, layout->device_num) > HR_DEVICES)
        return HR_ECORRUPT;
    const bool has_seqlocks = seqlock_offset(layout) != HR_ABSENT;
    if ((value == HR_VALUE_LAST_KERNEL_TIME && layout->last_kernel_time == HR_ABSENT) ||
        (value == HR_VALUE_SEQLOCK && !has_seqlocks))
        return HR_EINVAL;
    switch (value) {
    case HR_MEMORY:
        *out = get64(view, layout->limit + device * 8);
        break;
    case HR_SM:
        *out = get64(view, layout->sm_limit + device * 8);
        break;
    case HR_VALUE_MEMORY_USED:
        for (int32_t slot = 0; slot < proc_num; slot++)
            *out += usage_at(view, (uint32_t)slot, device).total;
        break;
    case HR_PRIORITY:
        *out = (uint64_t)(int64_t)get32(view, layout->priority);
        break;
    case HR_SWITCH:
        *out = (uint64_t)(int64_t)get32(view, layout->utilization_switch);
        break;
    case HR_RECENT_KERNEL:
        *out = (uint64_t)(int64_t)get32(view, layout->recent_kernel);
        break;
    case HR_VALUE_LAST_KERNEL_TIME:
        *out = get64(view, layout->last_kernel_time);
        break;
    case HR_VALUE_DEVICE_NUM:
        *out = get64(view, layout->device_num);
        break;
    case HR_VALUE_PROC_NUM:
        *out = (uint64_t)proc_num;
        break;
    case HR_VALUE_PIDLESS:
        for (int32_t slot = 0; slot < proc_num; slot++)
            *out += get32(view, slot_at(view, (uint32_t)slot) + layout->slot_pid) == 0;
        break;
    case HR_VALUE_DEVICES:
        *out = counts_devices ? uncounted_devices(view)
                              : (UINT64_C(1) << get64(view, layout->device_num)) - 1;
        break;
    case HR_VALUE_SEM:
        *out = (uint32_t)get32(view, layout->sem);
        break;
    case HR_VALUE_POSTINIT:
        *out = 1;
        if (layout->sem_postinit != HR_ABSENT)
            *out = (uint32_t)get32(view, layout->sem_postinit);
        break;
    case HR_VALUE_SEQLOCK:
        *out = get64(view, slot_at(view, device) + seqlock_offset(layout)) & ~(UINT64_C(1) << 62);
        break;
    default:
        REQUIRE(!"a value that does not exist");
    }
    return HR_OK;
}
