#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "attach.h"
#include "orphans.h"
#include "testpoint.h"

enum { KINDS = 3, RUNNING = 1 };

/* Our own books: we are the only writer of our slot, so they are the truth about it. */
struct hr_attachment {
    uint32_t index;
    uint64_t charged[HR_DEVICES][KINDS];
};

/* ---- Our own slot ---------------------------------------------------------------- */

static int take_slot(hr_region *region, int32_t pid, uint32_t *index)
{
    int32_t count;
    int code = hr_check_header(region);
    if (code == HR_OK)
        code = hr_checked_proc_num(region, &count);
    if (code != HR_OK)
        return code;
    int32_t found = hr_find_slot(region, pid, count);
    if (found < 0 && count == HR_SLOTS)
        return hr_fail_code(HR_EFULL);
    unsigned char *slot = hr_slot(region, (uint32_t)(found < 0 ? count : found));
    hr_empty_slot(region, slot);
    HR_POINT(ATTACH_SLOT_CLEARED);
    hr_store_i32(slot + region->layout->slot_status, RUNNING, memory_order_relaxed);
    hr_store_i32(slot + region->layout->slot_hostpid, 0, memory_order_relaxed);
    hr_set_slot_pid(region, slot, pid);
    HR_POINT(ATTACH_PID_STORED);
    if (found < 0) {
        hr_set_proc_num(region, count + 1);
        HR_POINT(ATTACH_COUNT_STORED);
    }
    *index = (uint32_t)(found < 0 ? count : found);
    return HR_OK;
}

/* HR_EDETACHED: nothing to do. */
static int detach_work(void *argument)
{
    hr_region *region = argument;
    int32_t count;
    if (region->attachment == NULL)
        return hr_fail_code(HR_EDETACHED);
    int code = hr_check_header(region);
    if (code == HR_OK)
        code = hr_checked_proc_num(region, &count);
    if (code != HR_OK)
        return code;
    int32_t index = hr_find_slot(region, region->attached_pid, count);
    if (index >= 0)
        hr_free_slot(region, index, &count);
    /* A stale copy above proc_num must not look like an orphan of ours. */
    unsigned char *slot = hr_slot(region, region->attachment->index);
    if ((int32_t)region->attachment->index >= count &&
        hr_slot_pid(region, slot) == region->attached_pid)
        hr_set_slot_pid(region, slot, 0);
    return HR_OK;
}

/* Under the gate, so that no other thread is accounting. */
static void forget_attachment(hr_region *region)
{
    hr_unclaim_attachment(region);
    free(region->attachment);
    region->attachment = NULL;
    region->attached_pid = 0;
}

static int detach(hr_region *region, uint64_t deadline_ns)
{
    int code = hr_lock_take(region, deadline_ns);
    if (code == HR_OK) {
        code = hr_run_entered(region, detach_work, region);
        if (code != HR_EDETACHED)
            forget_attachment(region);
        int dropped = hr_lock_drop(region);
        return code == HR_OK ? dropped : code;
    }
    /* The file is gone under us: there is nothing left to detach from. */
    if (code == HR_ESTALE && hr_gate_enter(region, deadline_ns) == HR_OK) {
        if (region->attachment != NULL)
            forget_attachment(region);
        hr_gate_leave(region);
        return hr_fail_why(HR_ESTALE, HR_WHY_TRUNCATED);
    }
    return code;
}

void hr_leave_region(hr_region *region, uint64_t deadline_ns)
{
    detach(region, deadline_ns);
}

int hr_detach(hr_region *region, uint64_t timeout_ns)
{
    if (!region->writable)
        return hr_fail_code(HR_EREADONLY);
    int code = hr_enter(region);
    if (code != HR_OK)
        return code;
    /* Who has no slot does not wait for the lock to learn that. */
    code = hr_claims_attachment(region) ? detach(region, hr_deadline_ns(timeout_ns))
                                        : hr_fail_code(HR_EDETACHED);
    hr_leave(region);
    return code;
}

/* ---- Accounting ------------------------------------------------------------------ */

struct account_call {
    hr_region *region;
    uint32_t device;
    uint32_t kind;
    uint64_t bytes;
    bool charging;
};

/* Our slot, if it still is where we remember it; under the older rule nobody remembers. */
static unsigned char *remembered_slot(const hr_region *region)
{
    int32_t count;
    uint32_t index = region->attachment->index;
    if (hr_checked_proc_num(region, &count) != HR_OK || (int32_t)index >= count)
        return NULL;
    if (!hr_has_seqlock(region) &&
        hr_find_slot(region, region->attached_pid, count) != (int32_t)index)
        return NULL;
    unsigned char *slot = hr_slot(region, index);
    return hr_slot_pid(region, slot) == region->attached_pid ? slot : NULL;
}

static void write_books(const hr_region *region, unsigned char *slot)
{
    for (uint32_t device = 0; device < HR_DEVICES; device++) {
        unsigned char *used = hr_slot_used(region, slot, device);
        uint64_t total = 0;
        for (uint32_t kind = 0; kind < KINDS; kind++) {
            uint64_t bytes = region->attachment->charged[device][kind];
            hr_store_u64(used + kind * 8, bytes, memory_order_relaxed);
            total += bytes;
        }
        hr_store_u64(used + HR_TOTAL_OFFSET, total, memory_order_relaxed);
    }
}

/* Under the lock: find our slot anew, or take one, and write our books into it. */
static int regain_slot(hr_region *region)
{
    struct hr_attachment *attachment = region->attachment;
    int32_t count;
    int code = hr_checked_proc_num(region, &count);
    if (code != HR_OK)
        return code;
    uint32_t old = attachment->index;
    int32_t found = hr_find_slot(region, region->attached_pid, count);
    if (found >= 0)
        attachment->index = (uint32_t)found;
    else
        code = take_slot(region, region->attached_pid, &attachment->index);
    if (code != HR_OK)
        return code;
    write_books(region, hr_slot(region, attachment->index));
    if (hr_has_seqlock(region)) {
        unsigned char *left = hr_slot(region, old);
        if (old != attachment->index && (int32_t)old >= count &&
            hr_slot_pid(region, left) == region->attached_pid)
            hr_set_slot_pid(region, left, 0);
    }
    return HR_OK;
}

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
    uint64_t charged = call->region->attachment->charged[call->device][call->kind];
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

/* Adding the two's complement subtracts; the books say that it does not go below zero. */
static void store_account(const struct account_call *call, unsigned char *slot)
{
    const hr_region *region = call->region;
    unsigned char *used = hr_slot_used(region, slot, call->device);
    uint64_t delta = call->charging ? call->bytes : 0 - call->bytes;
    uint64_t *book = &region->attachment->charged[call->device][call->kind];
    if (hr_has_seqlock(region)) {
        unsigned char *seqlock = slot + region->layout->slot_seqlock;
        hr_add_u64(seqlock, 1, memory_order_relaxed);
        /* Readers that see a value stored below also see the odd number. */
        atomic_thread_fence(memory_order_release);
        if (call->charging)
            HR_POINT(CHARGE_SEQLOCK_ODD);
        else
            HR_POINT(RELEASE_SEQLOCK_ODD);
    }
    hr_add_u64(used + HR_TOTAL_OFFSET, delta, memory_order_relaxed);
    if (call->charging)
        HR_POINT(CHARGE_TOTAL_STORED);
    else
        HR_POINT(RELEASE_TOTAL_STORED);
    hr_add_u64(used + call->kind * 8, delta, memory_order_relaxed);
    if (call->charging)
        HR_POINT(CHARGE_KIND_STORED);
    else
        HR_POINT(RELEASE_KIND_STORED);
    *book += delta;
    if (hr_has_seqlock(region)) {
        /* Release: even again only after the values. */
        hr_add_u64(slot + region->layout->slot_seqlock, 1, memory_order_release);
        if (call->charging)
            HR_POINT(CHARGE_SEQLOCK_EVEN);
        else
            HR_POINT(RELEASE_SEQLOCK_EVEN);
    }
}

/* HR_ENOPROCESS: our slot is not where we remember it. */
static int account_work(void *argument)
{
    struct account_call *call = argument;
    hr_region *region = call->region;
    if (region->attachment == NULL)
        return hr_fail_code(HR_EDETACHED);
    int code = hr_check_header(region);
    if (code == HR_OK)
        code = check_books(call);
    if (code != HR_OK)
        return code;
    unsigned char *slot = remembered_slot(region);
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
    if (region->attachment == NULL)
        return hr_fail_code(HR_EDETACHED);
    int code = remembered_slot(region) != NULL ? HR_OK : regain_slot(region);
    return code == HR_OK ? account_work(call) : code;
}

static int account_locked(struct account_call *call, uint64_t timeout_ns)
{
    return hr_run_under(hr_lock_take_quickly, call->region, account_locked_work, call, timeout_ns);
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
    if (call->device >= HR_DEVICES || call->kind >= KINDS)
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

/* ---- Attaching ------------------------------------------------------------------- */

struct attach_call {
    hr_region *region;
    const struct hr_mappers *mappers; /* NULL: nobody can be in the way */
    const struct hr_seqlock_watch *watch;
    struct hr_attachment *attachment;
    int32_t pid;
};

/* Whether the slot that a newcomer would take still has a name: maybe of a process that writes
 * there. */
static int is_tail_named(const hr_region *region)
{
    int32_t count;
    int code = hr_checked_proc_num(region, &count);
    if (code != HR_OK || count == HR_SLOTS || !hr_has_seqlock(region))
        return code;
    int32_t pid = hr_slot_pid(region, hr_slot(region, (uint32_t)count));
    return pid != 0 && pid != getpid();
}

/* Under the lock: without mappers, 1 where they are needed, and nothing is done. */
static int attach_work(void *argument)
{
    struct attach_call *call = argument;
    hr_region *region = call->region;
    int code = call->mappers == NULL ? is_tail_named(region)
                                     : hr_step_over_orphans(region, call->mappers, call->watch);
    if (code != HR_OK)
        return code;
    code = take_slot(region, call->pid, &call->attachment->index);
    if (code == HR_OK) {
        region->attachment = call->attachment;
        region->attached_pid = call->pid;
    }
    return code;
}

static int attach_beside_orphans(struct attach_call *call, uint64_t timeout_ns)
{
    hr_region *region = call->region;
    struct hr_mappers mappers;
    int code = hr_run_locked(region, attach_work, call, timeout_ns);
    if (code <= 0)
        return code;
    code = hr_look_for_mappers(region, NULL, &mappers);
    if (code != HR_OK)
        return code;
    struct hr_seqlock_watch watch;
    code = hr_watch_seqlocks(region, &watch);
    call->mappers = &mappers;
    call->watch = &watch;
    if (code == HR_OK)
        code = hr_run_locked(region, attach_work, call, timeout_ns);
    hr_free_mappers(&mappers);
    return code;
}

/* A process that has libvgpu loaded has a slot of libvgpu's, by the same pid. */
static int check_no_foreign_mapping(hr_region *region)
{
    struct hr_mapped_file file;
    bool by_another;
    int code = hr_own_mapping(region, &file, &by_another);
    if (code == HR_OK && by_another)
        code = hr_fail_why(HR_EATTACHED, HR_WHY_FOREIGN_MAPPING);
    return code;
}

int hr_attach(hr_region *region, uint64_t timeout_ns)
{
    if (!region->writable)
        return hr_fail_code(HR_EREADONLY);
    int entered = hr_enter(region);
    if (entered != HR_OK)
        return entered;
    entered = check_no_foreign_mapping(region);
    hr_leave(region);
    if (entered != HR_OK)
        return entered;
    if (!hr_claim_attachment(region))
        return hr_fail_code(HR_EATTACHED);
    struct attach_call call = {.region = region, .pid = getpid()};
    call.attachment = calloc(1, sizeof *call.attachment);
    int code = call.attachment == NULL ? hr_fail_errno(HR_ESYSTEM, ENOMEM)
                                       : attach_beside_orphans(&call, timeout_ns);
    if (code != HR_OK) {
        if (region->attachment == NULL) {
            free(call.attachment);
            hr_unclaim_attachment(region);
        }
        return code;
    }
    return HR_OK;
}
