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
    bool beyond_limit; /* it is there already, and counts whatever the limit says */
};

/* Beside the lock, as in libvgpu, two processes may both look before they charge. */
static int check_limit(const struct account_call *call)
{
    const hr_region *region = call->region;
    uint64_t used;
    uint64_t limit =
        hr_load_u64(region->base + region->layout->limit + call->device * 8, memory_order_relaxed);
    if (limit == 0)
        return HR_OK;
    int code = hr_sum_used(region, call->device, &used);
    if (code != HR_OK || (used <= limit && call->bytes <= limit - used))
        return code;
    return HR_FAIL_OF(HR_EMEMORYLIMIT, (int32_t)call->device, HR_LAYOUTS, .found = used,
                      .wanted = call->bytes, .limit = limit);
}

static int check_books(const struct account_call *call)
{
    uint64_t charged = call->region->own.attachment->charged[call->device][call->kind];
    const uint64_t most = (UINT64_C(1) << 62) - 1; /* three kinds of it still fit */
    uint64_t limit = call->charging ? most - charged : charged;
    if (call->bytes <= limit)
        return HR_OK;
    return HR_FAIL_OF(HR_EINVAL, (int32_t)call->device, HR_LAYOUTS, .found = charged,
                      .wanted = call->bytes);
}

#define ACCOUNT_POINT(name)                                                                        \
    do {                                                                                           \
        if (call->charging)                                                                        \
            HR_POINT(CHARGE_##name);                                                               \
        else                                                                                       \
            HR_POINT(RELEASE_##name);                                                              \
    } while (0)

/* Adding the two's complement subtracts; the books say that it does not go below zero. */
static void store_account(const struct account_call *call, unsigned char *slot)
{
    const hr_region *region = call->region;
    unsigned char *used = hr_used(region, slot, call->device);
    uint64_t delta = call->charging ? call->bytes : 0 - call->bytes;
    if (hr_has_seqlock(region)) {
        hr_add_u64(slot + region->layout->slot_seqlock, 1, memory_order_relaxed);
        /* Readers that see a value stored below also see the odd number. */
        atomic_thread_fence(memory_order_release);
        ACCOUNT_POINT(SEQLOCK_ODD);
    }
    hr_add_u64(used + HR_TOTAL_OFFSET, delta, memory_order_relaxed);
    ACCOUNT_POINT(TOTAL_STORED);
    hr_add_u64(used + call->kind * 8, delta, memory_order_relaxed);
    ACCOUNT_POINT(KIND_STORED);
    region->own.attachment->charged[call->device][call->kind] += delta;
    if (hr_has_seqlock(region)) {
        /* Release: even again only after the values. */
        hr_add_u64(slot + region->layout->slot_seqlock, 1, memory_order_release);
        ACCOUNT_POINT(SEQLOCK_EVEN);
    }
}

/* HR_ENOPROCESS: our slot is not where we remember it, and to find it takes the lock. */
static int account_work(void *argument)
{
    struct account_call *call = argument;
    hr_region *region = call->region;
    if (region->own.attachment == NULL)
        return hr_fail_code(HR_EDETACHED);
    int code = hr_check_header(region);
    if (code == HR_OK)
        code = check_books(call);
    if (code == HR_OK && hr_remembered_slot(region) == NULL)
        code = call->is_locked ? hr_regain_slot(region, call->view) : hr_fail_code(HR_ENOPROCESS);
    if (code != HR_OK)
        return code;
    if (call->charging && !call->beyond_limit)
        code = check_limit(call);
    if (code == HR_OK)
        store_account(call, hr_slot(region, region->own.attachment->index));
    return code;
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
    hr_leave(region);
    return code;
}

/* The older generation does everything under the semaphore, and looks for its slot each time. */
static int account(struct account_call *call, uint64_t timeout_ns)
{
    if (call->device >= HR_DEVICES || call->kind >= HR_KINDS)
        return hr_fail_code(HR_EINVAL);
    if (!call->region->writable)
        return hr_fail_code(HR_EREADONLY);
    call->is_locked = !hr_has_seqlock(call->region);
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
                                .beyond_limit = (flags & HR_FORCE) != 0};
    return hr_report(error, account(&call, timeout_ns));
}

int hr_release(hr_region *region, uint32_t device, uint32_t kind, uint64_t bytes,
               uint64_t timeout_ns, struct hr_error *error)
{
    struct account_call call = {.region = region, .device = device, .kind = kind, .bytes = bytes};
    return hr_report(error, account(&call, timeout_ns));
}
