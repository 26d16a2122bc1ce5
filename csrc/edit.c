#include "fields.h"

struct limits_call {
    const hr_region *region;
    uint32_t kind;
    int32_t device;
    uint64_t value, expected;
    uint32_t flags;
    struct hr_limit_edit *edits;
    uint32_t count;
};

static unsigned char *limit_at(const struct limits_call *call, uint32_t device)
{
    const struct hr_layout *layout = call->region->layout;
    uint32_t table = call->kind == HR_MEMORY ? layout->limit : layout->sm_limit;
    return call->region->base + table + device * 8;
}

static int choose_devices(struct limits_call *call)
{
    const hr_region *region = call->region;
    uint32_t device_num, chosen;
    int32_t proc_num;
    int code = hr_checked_device_num(region, &device_num);
    if (code == HR_OK)
        code = hr_checked_proc_num(region, &proc_num);
    if (code != HR_OK)
        return code;
    if (call->device != HR_ALL_DEVICES) {
        chosen = 1u << call->device;
    } else if (device_num == 0 && hr_limits_all_equal(region)) {
        chosen = (1u << HR_DEVICES) - 1;
    } else {
        uint32_t count = hr_counted_devices(region, device_num);
        chosen = ((1u << count) - 1) | hr_undeclared_uuids(region, count);
        for (int32_t i = 0; i < proc_num; i++)
            chosen |= hr_undeclared_usage(region, hr_slot(region, (uint32_t)i), count);
    }
    call->count = 0;
    for (uint32_t device = 0; device < HR_DEVICES; device++) {
        if ((chosen & 1u << device) != 0) {
            call->edits[call->count].device = device;
            call->edits[call->count++].after = call->value;
        }
    }
    return HR_OK;
}

static int refuse(int code, uint32_t device, uint64_t found, uint64_t wanted)
{
    struct hr_detail detail = {.code = code,
                               .device = (int32_t)device,
                               .layout = HR_LAYOUTS,
                               .found = found,
                               .wanted = wanted};
    return hr_fail(&detail);
}

static bool is_same(uint32_t kind, uint64_t found, uint64_t expected)
{
    bool both_unlimited =
        kind == HR_SM && (found == 0 || found >= 100) && (expected == 0 || expected >= 100);
    return found == expected || both_unlimited;
}

static bool is_expected(const struct limits_call *call, uint64_t found)
{
    return (call->flags & HR_EXPECT) == 0 || is_same(call->kind, found, call->expected);
}

static int check_edit(const struct limits_call *call, struct hr_limit_edit *edit)
{
    edit->before = hr_load_u64(limit_at(call, edit->device), memory_order_relaxed);
    if (!is_expected(call, edit->before))
        return refuse(HR_ECONFLICT, edit->device, edit->before, call->expected);
    if (call->kind != HR_MEMORY || call->value == 0 || (call->flags & HR_FORCE) != 0)
        return HR_OK;
    uint64_t used;
    int code = hr_sum_used(call->region, edit->device, &used);
    if (code == HR_OK && used > call->value)
        code = refuse(HR_EBELOWUSE, edit->device, used, call->value);
    return code;
}

/* Give back what was stored, unless somebody has stored something else since. */
static void undo(const struct limits_call *call, uint32_t done)
{
    while (done-- > 0) {
        uint64_t ours = call->edits[done].after;
        hr_swap_u64(limit_at(call, call->edits[done].device), &ours, call->edits[done].before);
    }
}

static int set_limits_work(void *argument)
{
    struct limits_call *call = argument;
    int code = hr_check_header(call->region);
    if (code == HR_OK)
        code = choose_devices(call);
    for (uint32_t i = 0; code == HR_OK && i < call->count; i++)
        code = check_edit(call, &call->edits[i]);
    if (code != HR_OK || (call->flags & HR_DRY_RUN) != 0)
        return code;

    for (uint32_t i = 0; i < call->count; i++) {
        struct hr_limit_edit *edit = &call->edits[i];
        unsigned char *at = limit_at(call, edit->device);
        if ((call->flags & HR_EXPECT) == 0) {
            edit->before = hr_exchange_u64(at, call->value);
            continue;
        }
        uint64_t found = edit->before;
        if (!hr_swap_u64(at, &found, call->value)) {
            undo(call, i);
            return refuse(HR_ECONFLICT, edit->device, found, call->expected);
        }
    }
    return HR_OK;
}

int hr_set_limits(hr_region *region, uint32_t kind, int32_t device, uint64_t value,
                  uint64_t expected, uint32_t flags, struct hr_limit_edit *edits)
{
    const uint32_t known = HR_EXPECT | HR_FORCE | HR_DRY_RUN;
    if (kind > HR_SM || device < HR_ALL_DEVICES || device >= HR_DEVICES || (flags & ~known) != 0)
        return hr_fail_code(HR_EINVAL);
    struct limits_call call = {.region = region,
                               .kind = kind,
                               .device = device,
                               .value = value,
                               .expected = expected,
                               .flags = flags,
                               .edits = edits};
    int code = hr_run_write(region, set_limits_work, &call);
    return code == HR_OK ? (int)call.count : code;
}

/* ---- Several values at once -------------------------------------------------- */

struct edits_call {
    const hr_region *region;
    struct hr_edit *edits;
    uint32_t count, flags;
};

static unsigned char *value_at(const hr_region *region, const struct hr_edit *edit)
{
    const struct hr_layout *layout = region->layout;
    if (edit->kind == HR_PRIORITY)
        return region->base + layout->priority;
    return region->base + (edit->kind == HR_MEMORY ? layout->limit : layout->sm_limit) +
           edit->device * 8;
}

static uint64_t load_value(const hr_region *region, const struct hr_edit *edit)
{
    const unsigned char *at = value_at(region, edit);
    if (edit->kind == HR_PRIORITY)
        return (uint64_t)(int64_t)hr_load_i32(at, memory_order_relaxed);
    return hr_load_u64(at, memory_order_relaxed);
}

static bool swap_value(const hr_region *region, const struct hr_edit *edit, uint64_t *found,
                       uint64_t to)
{
    unsigned char *at = value_at(region, edit);
    if (edit->kind != HR_PRIORITY)
        return hr_swap_u64(at, found, to);
    int32_t narrow = (int32_t)*found;
    bool swapped = hr_swap_i32(at, &narrow, (int32_t)to);
    *found = (uint64_t)(int64_t)narrow;
    return swapped;
}

static uint64_t exchange_value(const hr_region *region, const struct hr_edit *edit)
{
    unsigned char *at = value_at(region, edit);
    if (edit->kind == HR_PRIORITY)
        return (uint64_t)(int64_t)hr_exchange_i32(at, (int32_t)edit->value);
    return hr_exchange_u64(at, edit->value);
}

/*
 * Write to its page, and change nothing.  The first store to a page of a file waits for
 * the kernel, and a process that is killed meanwhile never makes it: with all pages at
 * hand there are some 100 ns between the first store and the last.
 */
static void fetch_page(const hr_region *region, const struct hr_edit *edit)
{
    uint64_t found = load_value(region, edit);
    swap_value(region, edit, &found, found);
}

static int check_one_edit(const struct edits_call *call, struct hr_edit *edit, uint32_t number)
{
    edit->before = load_value(call->region, edit);
    if (edit->expect != 0 && !is_same(edit->kind, edit->before, edit->expected))
        return refuse(HR_ECONFLICT, number, edit->before, edit->expected);
    if (edit->kind != HR_MEMORY || edit->value == 0 || (call->flags & HR_FORCE) != 0)
        return HR_OK;
    uint64_t used;
    int code = hr_sum_used(call->region, edit->device, &used);
    if (code == HR_OK && used > edit->value)
        code = refuse(HR_EBELOWUSE, number, used, edit->value);
    return code;
}

static int edit_all_work(void *argument)
{
    const struct edits_call *call = argument;
    int code = hr_check_header(call->region);
    for (uint32_t i = 0; code == HR_OK && i < call->count; i++)
        code = check_one_edit(call, &call->edits[i], i);
    if (code != HR_OK || (call->flags & HR_DRY_RUN) != 0)
        return code;

    for (uint32_t i = 0; i < call->count; i++)
        fetch_page(call->region, &call->edits[i]);
    for (uint32_t i = 0; i < call->count; i++) {
        struct hr_edit *edit = &call->edits[i];
        if (edit->expect == 0) {
            edit->before = exchange_value(call->region, edit);
            continue;
        }
        uint64_t found = edit->before;
        if (swap_value(call->region, edit, &found, edit->value))
            continue;
        code = refuse(HR_ECONFLICT, i, found, edit->expected);
        /* Give back what was stored, unless somebody has stored something else since. */
        while (i-- > 0) {
            uint64_t ours = call->edits[i].value;
            swap_value(call->region, &call->edits[i], &ours, call->edits[i].before);
        }
        return code;
    }
    return HR_OK;
}

int hr_edit_all(hr_region *region, struct hr_edit *edits, uint32_t count, uint32_t flags)
{
    if ((flags & ~(uint32_t)(HR_FORCE | HR_DRY_RUN)) != 0)
        return hr_fail_code(HR_EINVAL);
    for (uint32_t i = 0; i < count; i++) {
        bool wide = edits[i].kind == HR_PRIORITY && (int32_t)edits[i].value < 0;
        if (edits[i].kind > HR_PRIORITY || edits[i].device >= HR_DEVICES || wide)
            return hr_fail_code(HR_EINVAL);
    }
    struct edits_call call = {.region = region, .edits = edits, .count = count, .flags = flags};
    return hr_run_write(region, edit_all_work, &call);
}

/* ---- Fields of the whole region ----------------------------------------------- */

struct value_call {
    const hr_region *region;
    uint32_t offset;
    int32_t to, expected, before;
    uint32_t flags;
};

static int set_value_work(void *argument)
{
    struct value_call *call = argument;
    int code = hr_check_header(call->region);
    if (code != HR_OK)
        return code;
    unsigned char *at = call->region->base + call->offset;
    call->before = hr_load_i32(at, memory_order_relaxed);
    bool expect = (call->flags & HR_EXPECT) != 0;
    if (!expect || call->before == call->expected) {
        if ((call->flags & HR_DRY_RUN) != 0)
            return HR_OK;
        if (!expect) {
            call->before = hr_exchange_i32(at, call->to);
            return HR_OK;
        }
        if (hr_swap_i32(at, &call->before, call->to))
            return HR_OK;
    }
    return refuse(HR_ECONFLICT, 0, (uint64_t)(int64_t)call->before,
                  (uint64_t)(int64_t)call->expected);
}

int hr_set_value(hr_region *region, uint32_t value, int32_t to, int32_t expected, uint32_t flags,
                 int32_t *before)
{
    struct value_call call = {.region = region, .to = to, .expected = expected, .flags = flags};
    switch (value) {
    case HR_VALUE_PRIORITY:
        call.offset = region->layout->priority;
        break;
    case HR_VALUE_UTILIZATION_SWITCH:
        call.offset = region->layout->utilization_switch;
        break;
    case HR_VALUE_RECENT_KERNEL:
        call.offset = region->layout->recent_kernel;
        break;
    default:
        return hr_fail_code(HR_EINVAL);
    }
    if ((flags & ~(uint32_t)(HR_EXPECT | HR_DRY_RUN)) != 0)
        return hr_fail_code(HR_EINVAL);
    int code = hr_run_write(region, set_value_work, &call);
    *before = call.before;
    return code;
}
