#define _GNU_SOURCE

#include <errno.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "slots.h"
#include "testpoint.h"

enum { RUNNING = 1 };

/* ---- Taking a slot ----------------------------------------------------------------- */

/* The slots of our pid below `count` but for the one at `own`: a predecessor's, or copies that
 * libvgpu has made. */
static void give_up_others(const hr_region *region, int32_t pid, int32_t own, int32_t count)
{
    for (int32_t index = 0; index < count; index++) {
        if (index == own || hr_slot_pid(region, index) != pid)
            continue;
        hr_empty_slot(region, index);
        hr_set_slot_pid(region, index, HR_NOBODY);
    }
}

static void fill(const hr_region *region, int32_t index, int32_t pid, uint64_t mark)
{
    unsigned char *slot = hr_slot(region, (uint32_t)index);
    hr_empty_slot(region, index);
    HR_POINT(ATTACH_SLOT_CLEARED);
    hr_store_mark(region, index, pid, mark);
    hr_store_i32(slot + region->layout->slot_status, RUNNING, memory_order_relaxed);
    hr_set_slot_pid(region, index, pid);
    HR_POINT(ATTACH_PID_STORED);
}

/*
 * Take a slot for `pid`, under the lock: the one that has its pid, else an emptied one, else the
 * next one.
 */
static int take_slot(hr_region *region, const struct hr_table_view *view, int32_t pid)
{
    for (uint32_t tries = 0; tries < HR_SLOTS; tries++) {
        int32_t count;
        int code = hr_checked_table(region, &count);
        if (code != HR_OK)
            return code;
        int32_t own = hr_find_slot(region, pid, count);
        if (own < 0 && view == NULL && hr_needs_view(region, count, pid))
            return HR_NEEDS_VIEW;
        int32_t index = own;
        if (own < 0)
            index = view == NULL ? count : hr_find_room(region, view, count, pid);
        if (index == HR_SLOTS)
            return hr_fail_code(HR_EFULL);
        fill(region, index, pid, region->own.mark);
        region->own.index = index;
        region->own.is_appended = index >= count;
        if (index < count) {
            give_up_others(region, pid, index, count);
            return HR_OK;
        }
        if (hr_swap_proc_num(region, count, index + 1)) {
            HR_POINT(ATTACH_COUNT_STORED);
            if (view != NULL)
                hr_settle_stepped_over(region, view, count, index);
            return HR_OK;
        }
        /* libvgpu removes slots without the lock: each round is one that it has removed. */
        hr_set_slot_pid(region, index, 0);
    }
    return hr_fail_code(HR_ETIMEOUT);
}

/* ---- Attaching --------------------------------------------------------------------- */

int hr_run_with_view(hr_region *region, const struct hr_table_view **view, hr_guarded_work *work,
                     void *argument, uint64_t timeout_ns)
{
    struct hr_table_view needed;
    *view = NULL;
    int code = hr_run_locked(region, work, argument, timeout_ns);
    if (code != HR_NEEDS_VIEW)
        return code;
    *view = &needed;
    const struct hr_source proc = {.evidence = NULL};
    return hr_run_viewed(region, &proc, &needed, NULL, work, argument, timeout_ns);
}

struct attach_call {
    hr_region *region;
    const struct hr_table_view *view;
    int32_t pid;
    bool is_attached; /* by this call; another thread may have detached since */
};

static int attach_work(void *argument)
{
    struct attach_call *call = argument;
    hr_region *region = call->region;
    int code = take_slot(region, call->view, call->pid);
    if (code == HR_OK) {
        region->own.pid = call->pid;
        region->own.attachment = ++region->own.attachments;
        region->own.signature = region->own.attaching_signature;
        call->is_attached = true;
    }
    return code;
}

/*
 * Lock the byte of our pid: HR_EATTACHED if a process of another pid namespace has it.  Who judges
 * a dead one locks the byte for a moment.  A process also attaches if its file can no longer be
 * opened, without a mark.
 */
static int lock_own_byte(hr_region *region, int32_t pid)
{
    const uint64_t patience_ns = 100000000;
    int code = hr_await_bytes(region, HR_PID_BYTE + pid, 1, hr_deadline_ns(patience_ns),
                              &region->own.byte);
    HR_POINT(SLOT_BYTE_LOCKED);
    if (code == HR_ETIMEOUT)
        return HR_FAIL(HR_EATTACHED, .reason = HR_REASON_SAME_PID, .found = (uint64_t)pid);
    region->own.mark = code == HR_OK && region->has_own_pages ? hr_clock_ns(CLOCK_BOOTTIME) : 0;
    return code == HR_ECLOSED ? code : HR_OK;
}

/* From here on this thread, and no other one of the handle, signs as the attached process. */
static void begin_signing(hr_region *region, int32_t pid)
{
    const uint64_t mark = region->own.mark;
    region->own.attaching_signature = mark == 0 ? (uint64_t)pid : hr_marked_signature(pid, mark);
    atomic_store_explicit(&region->own.attaching_thread, hr_thread_id(), memory_order_relaxed);
}

/* Another thread may have detached meanwhile, and a third one may be attaching by now. */
static void end_signing(hr_region *region)
{
    uintptr_t own = hr_thread_id();
    atomic_compare_exchange_strong_explicit(&region->own.attaching_thread, &own, 0,
                                            memory_order_relaxed, memory_order_relaxed);
}

static int attach_entered(hr_region *region, uint64_t timeout_ns)
{
    bool by_another;
    int code = hr_own_mapping(region, &by_another);
    /* A process that has libvgpu loaded has a slot of libvgpu's, by the same pid. */
    if (code == HR_OK && by_another)
        code = hr_fail_reason(HR_EATTACHED, HR_REASON_FOREIGN_MAPPING);
    if (code == HR_OK && !hr_claim_attachment(region))
        code = hr_fail_code(HR_EATTACHED);
    if (code != HR_OK)
        return code;
    struct attach_call call = {.region = region, .pid = getpid()};
    memset(region->own.charged, 0, sizeof region->own.charged);
    code = lock_own_byte(region, call.pid);
    if (code == HR_OK) {
        begin_signing(region, call.pid);
        code = hr_run_with_view(region, &call.view, attach_work, &call, timeout_ns);
        end_signing(region);
    }
    /* Also where the lock was lost meanwhile: then there is a slot, and an error. */
    if (!call.is_attached) {
        hr_unlock_bytes(region, &region->own.byte);
        region->own.is_claimed = false;
    }
    return code;
}

int hr_attach(hr_region *region, uint64_t timeout_ns, struct hr_error *error)
{
    int code = hr_enter_to_lock(region);
    /* Inside to the end: hr_close() takes the claim away, and another thread would have it. */
    if (code == HR_OK)
        code = hr_leave_after(region, attach_entered(region, timeout_ns));
    return hr_report(error, code);
}

/* ---- Our slot, wherever it is ------------------------------------------------------ */

bool hr_remembers_slot(const hr_region *region)
{
    int32_t count, index = region->own.index;
    if (hr_checked_proc_num(region, &count) != HR_OK || index >= count)
        return false;
    /* Up to 2.8.0 each process looks for its slot, and so do we: a second one with our pid must
     * not go on counting. */
    if (!hr_has_seqlock(region))
        return hr_find_slot(region, region->own.pid, count) == index &&
               hr_find_slot(region, region->own.pid, index) < 0;
    return hr_slot_pid(region, index) == region->own.pid;
}

static void write_books(const hr_region *region)
{
    unsigned char *slot = hr_slot(region, (uint32_t)region->own.index);
    for (uint32_t device = 0; device < HR_DEVICES; device++) {
        unsigned char *used = hr_used(region, slot, device);
        uint64_t total = 0;
        for (uint32_t kind = 0; kind < HR_KINDS; kind++) {
            uint64_t bytes = region->own.charged[device][kind];
            hr_store_u64(used + kind * 8, bytes, memory_order_relaxed);
            total += bytes;
        }
        hr_store_u64(used + HR_TOTAL_OFFSET, total, memory_order_relaxed);
    }
}

/* A name that we left at or above `count` must not look like an orphan of ours. */
static void forget_name(const hr_region *region, int32_t index)
{
    int32_t count;
    if (hr_checked_proc_num(region, &count) == HR_OK && index >= count &&
        hr_slot_pid(region, index) == region->own.pid)
        hr_set_slot_pid(region, index, 0);
}

int hr_regain_slot(hr_region *region, const struct hr_table_view *view)
{
    struct hr_own_slot *own = &region->own;
    int32_t count;
    int code = hr_checked_proc_num(region, &count);
    if (code != HR_OK)
        return code;
    int32_t old = own->index;
    int32_t found = hr_find_slot(region, own->pid, count);
    if (found >= 0) {
        /* libvgpu has moved it, with its status and host pid. */
        own->index = found;
        own->is_appended = false;
        give_up_others(region, own->pid, found, count);
    } else if ((code = take_slot(region, view, own->pid)) != HR_OK) {
        return code;
    }
    /* Moved while we were accounting, the copy can have got an odd seqlock. */
    hr_make_seqlock_even(region, own->index);
    write_books(region);
    if (old != own->index)
        forget_name(region, old);
    return HR_OK;
}

/* ---- Detaching --------------------------------------------------------------------- */

static int detach_work(void *argument)
{
    hr_region *region = argument;
    int32_t count;
    int code = hr_checked_table(region, &count);
    if (code != HR_OK)
        return code;
    int32_t old = region->own.index;
    int32_t index = hr_find_slot(region, region->own.pid, count);
    if (index >= 0) {
        hr_empty_slot(region, index);
        HR_POINT(REMOVE_USAGE_CLEARED);
    }
    give_up_others(region, region->own.pid, index, count);
    /* libvgpu, which removes dead slots without the lock, has never had reason to take this one for
     * dead: so it may go.  Another stays where it is, with our pid, while we live. */
    if (index == old && index == count - 1 && region->own.is_appended &&
        hr_swap_proc_num(region, count, index))
        HR_POINT(REMOVE_COUNT_STORED);
    forget_name(region, old);
    return HR_OK;
}

/* Under the gate, so that no other thread is accounting.  The lock on the slot's byte is left to
 * the caller: another thread may attach from here on. */
static struct hr_byte_lock forget_slot(hr_region *region)
{
    struct hr_byte_lock byte = region->own.byte;
    region->own.pid = 0;
    /* Of a closed handle the owner of the slot shall hear that. */
    if (!region->is_leaving)
        region->own.attachment = 0;
    region->own.signature = 0;
    region->own.is_claimed = false;
    return byte;
}

static int detach(hr_region *region, uint64_t attachment, uint64_t deadline_ns)
{
    struct hr_byte_lock byte = {.page = NULL};
    int code = hr_lock_take(region, deadline_ns);
    /* The file is gone under us: there is nothing left to detach from. */
    const bool is_gone = code == HR_ESTALE && hr_gate_enter(region, deadline_ns) == HR_OK;
    if (code != HR_OK && !is_gone)
        return code;
    /* Another thread may have detached meanwhile, and attached anew. */
    if (region->own.attachment != attachment)
        code = hr_fail_code(HR_EDETACHED);
    else if (!is_gone)
        code = hr_run_entered(region, detach_work, region);
    if (region->own.attachment == attachment)
        byte = forget_slot(region);
    if (is_gone) {
        hr_gate_leave(region);
        code = hr_fail_reason(HR_ESTALE, HR_REASON_TRUNCATED);
    } else {
        code = hr_lock_drop_after(region, code);
    }
    /* Not before: the lock was signed with it. */
    hr_unlock_bytes(region, &byte);
    return code;
}

int hr_leave_region(hr_region *region, uint64_t deadline_ns)
{
    uint64_t bytes = 0;
    for (uint32_t device = 0; device < HR_DEVICES; device++) {
        for (uint32_t kind = 0; kind < HR_KINDS; kind++)
            bytes += region->own.charged[device][kind];
    }
    int code = detach(region, region->own.attachment, deadline_ns);
    if (code != HR_ETIMEOUT)
        return HR_OK;
    struct hr_error detail;
    hr_last_error(&detail);
    detail.wanted = bytes;
    /* This process no longer accounts in the slot: others may reap it. */
    hr_unlock_bytes(region, &region->own.byte);
    return hr_fail(&detail);
}

uint64_t hr_attachment(const hr_region *region)
{
    return region->own.attachment;
}

int hr_detach(hr_region *region, uint64_t attachment, uint64_t timeout_ns, struct hr_error *error)
{
    int code = hr_enter_to_write(region);
    if (code != HR_OK)
        return hr_report(error, code);
    const uint64_t now = region->own.attachment;
    /* A handle without a slot does not wait for the lock to learn that. */
    code = now != 0 && (attachment == 0 || attachment == now)
               ? detach(region, now, hr_deadline_ns(timeout_ns))
               : hr_fail_code(HR_EDETACHED);
    return hr_report(error, hr_leave_after(region, code));
}
