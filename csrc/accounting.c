#include "attach.h"
#include "testpoint.h"

struct account_call {
    hr_region *region;
    const struct hr_table_view *view; /* NULL: not looked for */
    uint32_t device;
    uint32_t kind;
    uint64_t bytes;
    bool charging;
};

static int check_limit(const struct account_call *call)
{
    const hr_region *region = call->region;
    uint64_t limit =
        hr_load_u64(region->base + region->layout->limit + call->device * 8, memory_order_relaxed);
    if (limit == 0)
        return HR_OK;
    uint64_t used;
    int code = hr_sum_used(region, call->device, &used);
    if (code != HR_OK || (used <= limit && call->bytes <= limit - used))
        return code;
    struct hr_detail detail = {.code = HR_EMEMORYLIMIT,
                               .device = (int32_t)call->device,
                               .layout = HR_LAYOUTS,
                               .found = used,
                               .wanted = call->bytes,
                               .limit = limit};
    return hr_fail(&detail);
}

static int check_books(const struct account_call *call)
{
    uint64_t charged = call->region->own.attachment->charged[call->device][call->kind];
    const uint64_t most = (UINT64_C(1) << 62) - 1; /* three kinds of it still fit */
    uint64_t limit = call->charging ? most - charged : charged;
    if (call->bytes <= limit)
        return HR_OK;
    struct hr_detail detail = {.code = HR_EINVAL,
                               .device = (int32_t)call->device,
                               .layout = HR_LAYOUTS,
                               .found = charged,
                               .wanted = call->bytes};
    return hr_fail(&detail);
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

/* HR_ENOPROCESS: our slot is not where we remember it. */
static int account_work(void *argument)
{
    struct account_call *call = argument;
    hr_region *region = call->region;
    if (region->own.attachment == NULL)
        return hr_fail_code(HR_EDETACHED);
    int code = hr_check_header(region);
    if (code == HR_OK)
        code = check_books(call);
    if (code != HR_OK)
        return code;
    unsigned char *slot = hr_remembered_slot(region);
    if (slot == NULL)
        return hr_fail_code(HR_ENOPROCESS);
    if (call->charging)
        code = check_limit(call);
    if (code == HR_OK)
        store_account(call, slot);
    return code;
}

/* The older generation: everything under the semaphore, the slot looked for each time. */
static int account_locked_work(void *argument)
{
    struct account_call *call = argument;
    hr_region *region = call->region;
    if (region->own.attachment == NULL)
        return hr_fail_code(HR_EDETACHED);
    int code = hr_check_header(region);
    if (code == HR_OK && hr_remembered_slot(region) == NULL)
        code = hr_regain_slot(region, call->view);
    return code == HR_OK ? account_work(call) : code;
}

static int account_locked(struct account_call *call, uint64_t timeout_ns)
{
    hr_region *region = call->region;
    int code = hr_run_locked(region, account_locked_work, call, timeout_ns);
    if (code != HR_NEEDS_VIEW)
        return code;
    struct hr_table_view view;
    call->view = &view;
    return hr_run_viewed(region, NULL, &view, account_locked_work, call, timeout_ns);
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

static int account(struct account_call *call, uint64_t timeout_ns)
{
    hr_region *region = call->region;
    if (call->device >= HR_DEVICES || call->kind >= HR_KINDS)
        return hr_fail_code(HR_EINVAL);
    if (!region->writable)
        return hr_fail_code(HR_EREADONLY);
    if (!hr_has_seqlock(region))
        return account_locked(call, timeout_ns);
    int code = account_beside_lock(call, timeout_ns);
    if (code != HR_ENOPROCESS)
        return code;
    /* libvgpu has moved our slot, or reaped it: put it right, then account. */
    return account_locked(call, timeout_ns);
}

int hr_charge(hr_region *region, uint32_t device, uint32_t kind, uint64_t bytes,
              uint64_t timeout_ns)
{
    struct account_call call = {
        .region = region, .device = device, .kind = kind, .bytes = bytes, .charging = true};
    return account(&call, timeout_ns);
}

int hr_release(hr_region *region, uint32_t device, uint32_t kind, uint64_t bytes,
               uint64_t timeout_ns)
{
    struct account_call call = {.region = region, .device = device, .kind = kind, .bytes = bytes};
    return account(&call, timeout_ns);
}
