#include "slots.h"
#include "testpoint.h"

struct account_call {
    hr_region *region;
    const struct hr_table_view *view;
    uint32_t device;
    uint32_t kind;
    uint64_t bytes;
    bool is_locked; /* by this call */
    bool charging;
    bool is_limited;
    uint64_t used, limit; /* what the last look at the limit has found */
};

/* Whether `bytes` more stay within the limit; `used` gets what there is. */
static int check_limit(struct account_call *call, uint64_t bytes)
{
    const hr_region *region = call->region;
    call->limit =
        hr_load_u64(region->base + region->layout->limit + call->device * 8, memory_order_relaxed);
    if (call->limit == 0)
        return HR_OK;
    int code = hr_sum_used(region, call->device, &call->used);
    if (code != HR_OK || (call->used <= call->limit && bytes <= call->limit - call->used))
        return code;
    return HR_EMEMORYLIMIT;
}

static int fail_limit(const struct account_call *call)
{
    return HR_FAIL_OF(HR_EMEMORYLIMIT, (int32_t)call->device, HR_LAYOUTS, .found = call->used,
                      .wanted = call->bytes, .limit = call->limit);
}

static int check_books(const struct account_call *call)
{
    uint64_t charged = call->region->own.charged[call->device][call->kind];
    const uint64_t most = (UINT64_C(1) << 62) - 1; /* three kinds of it still fit */
    uint64_t limit = call->charging ? most - charged : charged;
    if (call->bytes <= limit)
        return HR_OK;
    return HR_FAIL_OF(HR_EINVAL, (int32_t)call->device, HR_LAYOUTS, .found = charged,
                      .wanted = call->bytes);
}

/* Adding the two's complement subtracts; the books say that it does not go below zero. */
static void store_account(const struct account_call *call, uint64_t delta)
{
    hr_region *region = call->region;
    unsigned char *slot = hr_slot(region, (uint32_t)region->own.index);
    unsigned char *used = hr_used(region, slot, call->device);
    if (hr_has_seqlock(region)) {
        hr_add_u64(slot + region->layout->slot_seqlock, 1, memory_order_relaxed);
        /* Readers that see a value stored below also see the odd number. */
        atomic_thread_fence(memory_order_release);
        HR_POINT(ACCOUNT_SEQLOCK_ODD);
    }
    hr_add_u64(used + HR_TOTAL_OFFSET, delta, memory_order_relaxed);
    HR_POINT(ACCOUNT_TOTAL_STORED);
    hr_add_u64(used + call->kind * 8, delta, memory_order_relaxed);
    HR_POINT(ACCOUNT_KIND_STORED);
    region->own.charged[call->device][call->kind] += delta;
    if (hr_has_seqlock(region)) {
        /* Release: even again only after the values. */
        hr_add_u64(slot + region->layout->slot_seqlock, 1, memory_order_release);
        HR_POINT(ACCOUNT_SEQLOCK_EVEN);
    }
}

/* HR_ENOPROCESS: our slot is not where we remember it, and to find it takes the lock. */
static int account_work(void *argument)
{
    struct account_call *call = argument;
    hr_region *region = call->region;
    if (region->own.pid == 0)
        return hr_fail_code(HR_EDETACHED);
    int code = hr_check_header(region);
    if (code == HR_OK)
        code = check_books(call);
    if (code == HR_OK && !hr_remembers_slot(region))
        code = call->is_locked ? hr_regain_slot(region, call->view) : hr_fail_code(HR_ENOPROCESS);
    if (code != HR_OK)
        return code;
    if (call->is_limited)
        code = check_limit(call, call->bytes);
    if (code != HR_OK)
        return code == HR_EMEMORYLIMIT ? fail_limit(call) : code;
    store_account(call, call->charging ? call->bytes : 0 - call->bytes);
    return HR_OK;
}

static int account_beside_lock(struct account_call *call, uint64_t timeout_ns)
{
    hr_region *region = call->region;
    int code = hr_enter(region);
    if (code != HR_OK)
        return code;
    /* One thread of ours at a time, or two would make the seqlock even between them. */
    code = hr_gate_enter(region, hr_deadline_ns(timeout_ns));
    if (code == HR_OK) {
        code = hr_run_entered(region, account_work, call);
        hr_gate_leave(region);
    }
    return hr_leave_after(region, code);
}

/*
 * The older generation does everything under the semaphore, and looks for its slot each time.  From
 * HAMi-core of September 2026 on libvgpu adds up, compares and adds under it: so do we, or the two
 * could pass the limit together.
 */
static int account(struct account_call *call, uint64_t timeout_ns)
{
    if (call->device >= HR_DEVICES || call->kind >= HR_KINDS)
        return hr_fail_code(HR_EINVAL);
    if (!call->region->writable)
        return hr_fail_code(HR_EREADONLY);
    call->is_locked = !hr_has_seqlock(call->region) || call->is_limited;
    int code = call->is_locked ? HR_ENOPROCESS : account_beside_lock(call, timeout_ns);
    if (code != HR_ENOPROCESS)
        return code;
    /* Else libvgpu has moved our slot, or reaped it. */
    call->is_locked = true;
    return hr_run_with_view(call->region, &call->view, account_work, call, timeout_ns);
}

int hr_charge(hr_region *region, uint32_t device, uint32_t kind, uint64_t bytes, uint32_t flags,
              uint64_t timeout_ns, struct hr_error *error)
{
    struct account_call call = {.region = region,
                                .device = device,
                                .kind = kind,
                                .bytes = bytes,
                                .charging = true,
                                .is_limited = (flags & HR_FORCE) == 0};
    return hr_report(error, account(&call, timeout_ns));
}

int hr_release(hr_region *region, uint32_t device, uint32_t kind, uint64_t bytes,
               uint64_t timeout_ns, struct hr_error *error)
{
    struct account_call call = {.region = region, .device = device, .kind = kind, .bytes = bytes};
    return hr_report(error, account(&call, timeout_ns));
}
