#define _GNU_SOURCE
#include "slots.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "handle.h"
#include "mappers.h"
#include "testpoint.h"

enum { KINDS = 3, RUNNING = 1 };

/* Our own books: we are the only writer of our slot, so they are the truth about it. */
struct hr_attachment {
    uint32_t index;
    uint64_t charged[HR_DEVICES][KINDS];
};

/* The order of the three kinds in a `used` record, and where its total is. */
enum { TOTAL_OFFSET = 32 };

static bool has_seqlock(const hr_region *region)
{
    return region->layout->slot_seqlock != HR_ABSENT;
}

static int32_t pid_of(const hr_region *region, const unsigned char *slot)
{
    return hr_load_i32(slot + region->layout->slot_pid, memory_order_relaxed);
}

static void set_pid(const hr_region *region, unsigned char *slot, int32_t pid)
{
    /* Release: what the slot holds is stored before the name it goes by. */
    hr_store_i32(slot + region->layout->slot_pid, pid, memory_order_release);
}

static void set_proc_num(const hr_region *region, int32_t count)
{
    /* Release: a slot is filled before it counts. */
    hr_store_i32(region->base + region->layout->proc_num, count, memory_order_release);
}

static unsigned char *used_at(const hr_region *region, unsigned char *slot, uint32_t device)
{
    return slot + region->layout->slot_used + (size_t)device * region->layout->slot_used_stride;
}

/*
 * The index of the pid's slot below `count`, or -1.  A pid can stand twice.  After an
 * unfinished removal under the older rule, the lower slot is the one that its process
 * finds.  After hr_repair_slots() under the newer rule, the lower one is the emptied copy.
 */
static int32_t find_slot(const hr_region *region, int32_t pid, int32_t count)
{
    bool upwards = !has_seqlock(region);
    for (int32_t at = 0; at < count; at++) {
        int32_t index = upwards ? at : count - 1 - at;
        if (pid_of(region, hr_slot(region, (uint32_t)index)) == pid)
            return index;
    }
    return -1;
}

static int no_process(int32_t pid)
{
    struct hr_detail detail = {.code = HR_ENOPROCESS,
                               .device = -1,
                               .layout = HR_LAYOUTS,
                               .found = (uint64_t)(int64_t)pid};
    return hr_fail(&detail);
}

/* ---- Emptying, filling and moving slots, under the lock --------------------------- */

static bool is_name_or_seqlock(const struct hr_layout *layout, uint32_t offset)
{
    /* pid and hostpid share the first word. */
    return offset == layout->slot_pid || offset == layout->slot_seqlock;
}

/* Word by word: a reader beside us must not see half of one. */
static void empty_slot(const hr_region *region, unsigned char *slot)
{
    const struct hr_layout *layout = region->layout;
    for (uint32_t offset = 0; offset + 8 <= layout->slot_stride; offset += 8) {
        if (!is_name_or_seqlock(layout, offset))
            hr_store_u64(slot + offset, 0, memory_order_relaxed);
    }
    if (!has_seqlock(region))
        return;
    /* Left odd by a death, every reader of libvgpu would spin on it for ever. */
    uint64_t seqlock = hr_load_u64(slot + layout->slot_seqlock, memory_order_relaxed);
    if ((seqlock & 1) != 0)
        hr_store_u64(slot + layout->slot_seqlock, seqlock + 1, memory_order_release);
}

static uint64_t bytes_in_slot(const hr_region *region, unsigned char *slot)
{
    uint64_t sum = 0;
    for (uint32_t device = 0; device < HR_DEVICES; device++) {
        unsigned char *used = used_at(region, slot, device);
        sum = hr_add_saturating(sum, hr_load_u64(used + TOTAL_OFFSET, memory_order_relaxed));
    }
    return sum;
}

static bool is_empty(const hr_region *region, unsigned char *slot)
{
    const struct hr_layout *layout = region->layout;
    uint64_t any = 0;
    for (uint32_t offset = 0; offset + 8 <= layout->slot_stride; offset += 8) {
        if (!is_name_or_seqlock(layout, offset))
            any |= hr_load_u64(slot + offset, memory_order_relaxed);
    }
    bool odd = has_seqlock(region) &&
               (hr_load_u64(slot + layout->slot_seqlock, memory_order_relaxed) & 1) != 0;
    return any == 0 && !odd;
}

/*
 * Up to 2.8.0: the last slot goes into the hole.  The hole is empty and keeps the
 * dead name while it is filled, so a kill leaves the dead process counted; once
 * it has the other's name, that one stands twice, and hr_finish_removal() ends it.
 */
static void move_last_into(const hr_region *region, int32_t hole, int32_t count)
{
    const struct hr_layout *layout = region->layout;
    unsigned char *to = hr_slot(region, (uint32_t)hole);
    unsigned char *from = hr_slot(region, (uint32_t)count - 1);
    empty_slot(region, to);
    HR_POINT(REMOVE_USAGE_CLEARED);
    if (hole != count - 1) {
        for (uint32_t offset = 8; offset + 8 <= layout->slot_stride; offset += 8)
            hr_store_u64(to + offset, hr_load_u64(from + offset, memory_order_relaxed),
                         memory_order_relaxed);
        HR_POINT(REMOVE_USAGE_MOVED);
        hr_store_i32(to + layout->slot_hostpid,
                     hr_load_i32(from + layout->slot_hostpid, memory_order_relaxed),
                     memory_order_relaxed);
        set_pid(region, to, pid_of(region, from));
        HR_POINT(REMOVE_PID_MOVED);
    }
    set_proc_num(region, count - 1);
    HR_POINT(REMOVE_COUNT_STORED);
}

int hr_finish_removal(const hr_region *region)
{
    int32_t count;
    int code = hr_checked_proc_num(region, &count);
    if (code != HR_OK || has_seqlock(region) || count == 0)
        return code;
    int32_t pid = pid_of(region, hr_slot(region, (uint32_t)count - 1));
    if (pid == 0 || find_slot(region, pid, count - 1) < 0)
        return 0;
    set_proc_num(region, count - 1);
    return 1;
}

/* Remove the slot, or empty it where it is.  Returns enum hr_reaped. */
static uint32_t free_slot(const hr_region *region, int32_t index, int32_t *count)
{
    unsigned char *slot = hr_slot(region, (uint32_t)index);
    if (!has_seqlock(region)) {
        move_last_into(region, index, *count);
        (*count)--;
        return HR_REAP_REMOVED;
    }
    empty_slot(region, slot);
    HR_POINT(REMOVE_USAGE_CLEARED);
    if (index != *count - 1)
        return HR_REAP_EMPTIED;
    set_proc_num(region, --*count);
    HR_POINT(REMOVE_COUNT_STORED);
    /* Above proc_num a live pid would look like an orphan. */
    set_pid(region, slot, 0);
    return HR_REAP_REMOVED;
}

static int find_mappers(hr_region *region, const char *proc, struct hr_mappers *out)
{
    int code = hr_enter(region);
    if (code != HR_OK)
        return code;
    code = hr_find_mappers(region, proc, HR_WITH_OWN_HANDLE, out);
    hr_leave(region);
    return code;
}

/* ---- Running work under the lock ------------------------------------------------- */

typedef int take_lock(hr_region *region, uint64_t deadline_ns);

static int run_under(take_lock *take, hr_region *region, hr_guarded_work *work, void *argument,
                     uint64_t timeout_ns)
{
    if (!region->writable)
        return hr_fail_code(HR_EREADONLY);
    int code = hr_enter(region);
    if (code != HR_OK)
        return code;
    code = take(region, hr_deadline_ns(timeout_ns));
    if (code == HR_OK) {
        code = hr_guard_run(region->base, region->mapped_bytes, work, argument);
        int dropped = hr_lock_drop(region);
        if (code >= 0 && dropped != HR_OK)
            code = dropped;
    }
    hr_leave(region);
    return code;
}

static int run_locked(hr_region *region, hr_guarded_work *work, void *argument, uint64_t timeout_ns)
{
    return run_under(hr_lock_take, region, work, argument, timeout_ns);
}

/* ---- Our own slot ---------------------------------------------------------------- */

static int take_slot(hr_region *region, int32_t pid, uint32_t *index)
{
    int32_t count;
    int code = hr_check_header(region);
    if (code == HR_OK)
        code = hr_checked_proc_num(region, &count);
    if (code != HR_OK)
        return code;
    int32_t found = find_slot(region, pid, count);
    if (found < 0 && count == HR_SLOTS)
        return hr_fail_code(HR_EFULL);
    unsigned char *slot = hr_slot(region, (uint32_t)(found < 0 ? count : found));
    empty_slot(region, slot);
    HR_POINT(ATTACH_SLOT_CLEARED);
    hr_store_i32(slot + region->layout->slot_status, RUNNING, memory_order_relaxed);
    hr_store_i32(slot + region->layout->slot_hostpid, 0, memory_order_relaxed);
    set_pid(region, slot, pid);
    HR_POINT(ATTACH_PID_STORED);
    if (found < 0) {
        set_proc_num(region, count + 1);
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
    int32_t index = find_slot(region, region->attached_pid, count);
    if (index >= 0)
        free_slot(region, index, &count);
    /* A stale copy above proc_num must not look like an orphan of ours. */
    unsigned char *slot = hr_slot(region, region->attachment->index);
    if ((int32_t)region->attachment->index >= count &&
        pid_of(region, slot) == region->attached_pid)
        set_pid(region, slot, 0);
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
        code = hr_guard_run(region->base, region->mapped_bytes, detach_work, region);
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

int hr_detach(hr_region *region, uint64_t timeout_ns)
{
    if (!region->writable)
        return hr_fail_code(HR_EREADONLY);
    int code = hr_enter(region);
    if (code != HR_OK)
        return code;
    code = detach(region, hr_deadline_ns(timeout_ns));
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
    if (!has_seqlock(region) && find_slot(region, region->attached_pid, count) != (int32_t)index)
        return NULL;
    unsigned char *slot = hr_slot(region, index);
    return pid_of(region, slot) == region->attached_pid ? slot : NULL;
}

static void write_books(const hr_region *region, unsigned char *slot)
{
    for (uint32_t device = 0; device < HR_DEVICES; device++) {
        unsigned char *used = used_at(region, slot, device);
        uint64_t total = 0;
        for (uint32_t kind = 0; kind < KINDS; kind++) {
            uint64_t bytes = region->attachment->charged[device][kind];
            hr_store_u64(used + kind * 8, bytes, memory_order_relaxed);
            total += bytes;
        }
        hr_store_u64(used + TOTAL_OFFSET, total, memory_order_relaxed);
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
    int32_t found = find_slot(region, region->attached_pid, count);
    if (found >= 0)
        attachment->index = (uint32_t)found;
    else
        code = take_slot(region, region->attached_pid, &attachment->index);
    if (code != HR_OK)
        return code;
    write_books(region, hr_slot(region, attachment->index));
    if (has_seqlock(region)) {
        unsigned char *left = hr_slot(region, old);
        if (old != attachment->index && (int32_t)old >= count &&
            pid_of(region, left) == region->attached_pid)
            set_pid(region, left, 0);
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
    unsigned char *used = used_at(region, slot, call->device);
    uint64_t delta = call->charging ? call->bytes : 0 - call->bytes;
    uint64_t *book = &region->attachment->charged[call->device][call->kind];
    if (has_seqlock(region)) {
        unsigned char *seqlock = slot + region->layout->slot_seqlock;
        hr_add_u64(seqlock, 1, memory_order_relaxed);
        /* Readers that see a value stored below also see the odd number. */
        atomic_thread_fence(memory_order_release);
        if (call->charging)
            HR_POINT(CHARGE_SEQLOCK_ODD);
        else
            HR_POINT(RELEASE_SEQLOCK_ODD);
    }
    hr_add_u64(used + TOTAL_OFFSET, delta, memory_order_relaxed);
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
    if (has_seqlock(region)) {
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
    return run_under(hr_lock_take_quickly, call->region, account_locked_work, call, timeout_ns);
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
        code = hr_guard_run(region->base, region->mapped_bytes, account_work, call);
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
    if (!has_seqlock(region))
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

/* ---- Writing for others ----------------------------------------------------------- */

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

static void edit_i32(unsigned char *at, struct hr_slot_edit *edit, uint32_t dry_run)
{
    edit->before = (uint64_t)(int64_t)hr_load_i32(at, memory_order_relaxed);
    if (!dry_run)
        hr_store_i32(at, (int32_t)edit->to, memory_order_relaxed);
}

static void edit_u64(unsigned char *at, struct hr_slot_edit *edit, uint32_t dry_run)
{
    edit->before = hr_load_u64(at, memory_order_relaxed);
    if (!dry_run)
        hr_store_u64(at, edit->to, memory_order_relaxed);
}

static int edit_work(void *argument)
{
    struct edit_call *call = argument;
    const hr_region *region = call->region;
    const struct hr_layout *layout = region->layout;
    int32_t count;
    int code = hr_check_header(region);
    if (code == HR_OK)
        code = hr_checked_proc_num(region, &count);
    if (code != HR_OK)
        return code;
    int32_t index = find_slot(region, call->pid, count);
    if (index < 0)
        return no_process(call->pid);
    unsigned char *slot = hr_slot(region, (uint32_t)index);
    for (uint32_t i = 0; i < call->count; i++) {
        struct hr_slot_edit *edit = &call->edits[i];
        unsigned char *monitor = slot + layout->slot_monitorused + edit->device * 8;
        if (edit->value == HR_SLOT_HOST_PID)
            edit_i32(slot + layout->slot_hostpid, edit, call->dry_run);
        else if (edit->value == HR_SLOT_STATUS)
            edit_i32(slot + layout->slot_status, edit, call->dry_run);
        else if (edit->value == HR_SLOT_MONITOR_USED)
            edit_u64(monitor, edit, call->dry_run);
        else
            /* dec, enc, sm lie in the reverse order of the enum. */
            edit_u64(slot + layout->slot_util + edit->device * layout->slot_util_stride +
                         (HR_SLOT_DEC - edit->value) * 8,
                     edit, call->dry_run);
    }
    return HR_OK;
}

int hr_edit_slot(hr_region *region, int32_t pid, struct hr_slot_edit *edits, uint32_t count,
                 uint32_t dry_run, uint64_t timeout_ns)
{
    for (uint32_t i = 0; i < count; i++) {
        if (!is_edit_valid(region, &edits[i]))
            return hr_fail_code(HR_EINVAL);
    }
    struct edit_call call = {
        .region = region, .pid = pid, .edits = edits, .count = count, .dry_run = dry_run};
    return run_locked(region, edit_work, &call, timeout_ns);
}

/* ---- Reaping ---------------------------------------------------------------------- */

struct reap_call {
    hr_region *region;
    const struct hr_mappers *mappers;
    const int32_t *pids;
    uint32_t pid_count;
    uint32_t dry_run;
    struct hr_reap *out;
    int32_t found;
};

static bool is_asked_for(const struct reap_call *call, int32_t pid)
{
    bool asked = call->pid_count == 0;
    for (uint32_t i = 0; i < call->pid_count && !asked; i++)
        asked = call->pids[i] == pid;
    return asked;
}

static void report(struct reap_call *call, int32_t pid, uint32_t what, uint64_t bytes)
{
    if (call->found < HR_SLOTS)
        call->out[call->found++] = (struct hr_reap){.pid = pid, .what = what, .bytes = bytes};
}

static void reap_slot(struct reap_call *call, int32_t index, int32_t *count)
{
    hr_region *region = call->region;
    unsigned char *slot = hr_slot(region, (uint32_t)index);
    int32_t pid = pid_of(region, slot);
    if (!is_asked_for(call, pid))
        return;
    /* No process has pid 0: such a slot stalls older generations, and belongs to nobody. */
    enum hr_life life = pid == 0 ? HR_DEAD : hr_life_of_slot(call->mappers, pid);
    if (life != HR_DEAD) {
        if (call->pid_count > 0)
            report(call, pid, life == HR_ALIVE ? HR_REAP_ALIVE : HR_REAP_UNKNOWN, 0);
        return;
    }
    bool removable = !has_seqlock(region) || index == *count - 1;
    if (!removable && is_empty(region, slot))
        return;
    uint64_t bytes = bytes_in_slot(region, slot);
    uint32_t what = removable ? HR_REAP_REMOVED : HR_REAP_EMPTIED;
    if (call->dry_run && removable && has_seqlock(region))
        (*count)--; /* the next one down becomes the last */
    if (!call->dry_run)
        what = free_slot(region, index, count);
    report(call, pid, what, bytes);
}

static int reap_work(void *argument)
{
    struct reap_call *call = argument;
    const hr_region *region = call->region;
    int32_t count;
    int code = hr_check_header(region);
    if (code == HR_OK)
        code = hr_checked_proc_num(region, &count);
    if (code != HR_OK)
        return code;
    for (uint32_t i = 0; i < call->pid_count; i++) {
        if (find_slot(region, call->pids[i], count) < 0)
            return no_process(call->pids[i]);
    }
    /* From the end: what is moved into a hole has been looked at already. */
    for (int32_t index = count - 1; index >= 0; index--)
        reap_slot(call, index, &count);
    return call->found;
}

/* Whether there may be something to do, by a scan from before the lock. */
static int has_dead_work(void *argument)
{
    const struct reap_call *call = argument;
    int32_t count;
    int code = hr_check_header(call->region);
    if (code == HR_OK)
        code = hr_checked_proc_num(call->region, &count);
    if (code != HR_OK)
        return code;
    for (int32_t index = 0; index < count; index++) {
        int32_t pid = pid_of(call->region, hr_slot(call->region, (uint32_t)index));
        if (pid == 0 || hr_life_of_slot(call->mappers, pid) == HR_DEAD)
            return 1;
    }
    return 0;
}

/*
 * The scan that judges is made under the lock: who has a slot by then has mapped the
 * file before, so nobody who comes at the same moment is taken for dead.
 */
static int reap_under_lock(struct reap_call *call, const char *proc, uint64_t timeout_ns)
{
    hr_region *region = call->region;
    struct hr_mappers mappers;
    int code = hr_lock_take(region, hr_deadline_ns(timeout_ns));
    if (code != HR_OK)
        return code;
    code = hr_find_mappers(region, proc, HR_WITH_OWN_HANDLE, &mappers);
    if (code == HR_OK) {
        call->mappers = &mappers;
        code = hr_guard_run(region->base, region->mapped_bytes, reap_work, call);
        hr_free_mappers(&mappers);
    }
    int dropped = hr_lock_drop(region);
    return code >= 0 && dropped != HR_OK ? dropped : code;
}

int hr_reap(hr_region *region, const char *proc, const int32_t *pids, uint32_t pid_count,
            uint32_t dry_run, uint64_t timeout_ns, struct hr_reap *out)
{
    if (!region->writable)
        return hr_fail_code(HR_EREADONLY);
    struct hr_mappers mappers;
    int code = find_mappers(region, proc, &mappers);
    if (code != HR_OK)
        return code;
    struct reap_call call = {.region = region,
                             .mappers = &mappers,
                             .pids = pids,
                             .pid_count = pid_count,
                             .dry_run = dry_run,
                             .out = out};
    code = hr_run(region, has_dead_work, &call);
    hr_free_mappers(&mappers);
    if (code < 0 || (code == 0 && pid_count == 0))
        return code;
    code = hr_enter(region);
    if (code != HR_OK)
        return code;
    code = reap_under_lock(&call, proc, timeout_ns);
    hr_leave(region);
    return code;
}

/* ---- Orphans ---------------------------------------------------------------------- */

struct repair_call {
    hr_region *region;
    const struct hr_mappers *mappers;
    uint32_t dry_run;
    bool unasked; /* somebody attaches and did not ask for repairs: only where it is certain */
    int32_t *pids;
    int32_t found;
    uint64_t seqlocks[HR_SLOTS]; /* some time ago, to see who moves */
};

/* Long enough to see a process at work, short enough for who waits for it. */
#define WATCH_NS 20000000

static uint64_t seqlock_of(const hr_region *region, int32_t index)
{
    return hr_load_u64(hr_slot(region, (uint32_t)index) + region->layout->slot_seqlock,
                       memory_order_acquire);
}

static int watch_work(void *argument)
{
    struct repair_call *call = argument;
    for (int32_t index = 0; index < HR_SLOTS; index++)
        call->seqlocks[index] = seqlock_of(call->region, index);
    return HR_OK;
}

static int watch_seqlocks(struct repair_call *call)
{
    hr_region *region = call->region;
    if (!has_seqlock(region))
        return HR_OK;
    int code = hr_run(region, watch_work, call);
    uint64_t deadline = hr_deadline_ns(WATCH_NS);
    unsigned naps = 0;
    while (code == HR_OK && hr_nap(deadline, &naps))
        ;
    return code;
}

static bool moves(const struct repair_call *call, int32_t index)
{
    return seqlock_of(call->region, index) != call->seqlocks[index];
}

static bool hold_the_same(const hr_region *region, int32_t one, int32_t other)
{
    uint64_t changed = 0;
    for (uint32_t offset = 0; offset + 8 <= region->layout->slot_stride; offset += 8)
        changed |= hr_load_u64(hr_slot(region, (uint32_t)one) + offset, memory_order_relaxed) ^
                   hr_load_u64(hr_slot(region, (uint32_t)other) + offset, memory_order_relaxed);
    return changed == 0;
}

/*
 * Whether the slot at `copy` was left behind when its process's slot at `index` was
 * moved there.  The tail also keeps slots of earlier processes, and pids are used
 * again: a true copy has the host pid and the seqlock of the moment of the move, at
 * which it stands still, while the seqlock above only goes on from there.
 */
static bool is_frozen_copy(const struct repair_call *call, int32_t copy, int32_t index)
{
    const hr_region *region = call->region;
    uint32_t hostpid = region->layout->slot_hostpid;
    if (moves(call, copy))
        return false;
    if (moves(call, index))
        return true;
    uint64_t frozen = seqlock_of(region, copy), going_on = seqlock_of(region, index);
    int32_t host_pid = hr_load_i32(hr_slot(region, (uint32_t)copy) + hostpid, memory_order_relaxed);
    bool same_host_pid =
        hr_load_i32(hr_slot(region, (uint32_t)index) + hostpid, memory_order_relaxed) == host_pid;
    if (hold_the_same(region, copy, index))
        return true;
    /* 0 says nothing: most processes have found no host pid. */
    if (!same_host_pid || (call->unasked && host_pid == 0))
        return false;
    /* Emptied already by a repair that was killed: a slot in use has a status. */
    bool emptied = is_empty(region, hr_slot(region, (uint32_t)copy)) && going_on >= frozen;
    return emptied || going_on > frozen;
}

/* Whether a live process writes at `index`, at or above `count`; `copy` is its slot below, or -1. */
static bool is_orphan(const struct repair_call *call, int32_t index, int32_t count, int32_t *copy)
{
    const hr_region *region = call->region;
    int32_t pid = pid_of(region, hr_slot(region, (uint32_t)index));
    /* Our own process puts itself right, from its books. */
    if (pid <= 0 || pid == region->attached_pid ||
        hr_life_of_slot(call->mappers, pid) != HR_ALIVE)
        return false;
    *copy = find_slot(region, pid, count);
    if (*copy >= 0)
        return is_frozen_copy(call, *copy, index);
    return true;
}

/*
 * Up to 2.8.0: a removal that was never finished leaves the last process twice.  Its
 * process finds the lower slot first, so the higher one is frozen.
 */
static int drop_doubles(struct repair_call *call, int32_t count)
{
    hr_region *region = call->region;
    for (int32_t index = count - 1; index > 0; index--) {
        int32_t pid = pid_of(region, hr_slot(region, (uint32_t)index));
        if (pid == 0 || find_slot(region, pid, index) < 0)
            continue;
        call->pids[call->found++] = pid;
        if (!call->dry_run)
            move_last_into(region, index, count--);
    }
    return call->found;
}

static int repair_work(void *argument)
{
    struct repair_call *call = argument;
    hr_region *region = call->region;
    int32_t count, copy, highest = -1;
    int code = hr_check_header(region);
    if (code == HR_OK)
        code = hr_checked_proc_num(region, &count);
    if (code != HR_OK)
        return code;
    if (!has_seqlock(region))
        return drop_doubles(call, count);
    for (int32_t index = count; index < HR_SLOTS; index++) {
        if (is_orphan(call, index, count, &copy)) {
            highest = index;
            call->pids[call->found++] = pid_of(region, hr_slot(region, (uint32_t)index));
        }
    }
    if (highest < 0 || call->dry_run)
        return call->found;
    /* Copies first: until proc_num is raised a kill leaves the process uncounted, not doubled. */
    for (int32_t index = count; index <= highest; index++) {
        /* Stale slots between orphans would be taken in as well. */
        if (!is_orphan(call, index, count, &copy))
            copy = index;
        if (copy >= 0) {
            empty_slot(region, hr_slot(region, (uint32_t)copy));
            HR_POINT(REPAIR_COPY_CLEARED);
        }
    }
    set_proc_num(region, highest + 1);
    HR_POINT(REPAIR_COUNT_STORED);
    return call->found;
}

int hr_repair_slots(hr_region *region, const char *proc, uint32_t dry_run, uint64_t timeout_ns,
                    int32_t *pids)
{
    struct hr_mappers mappers;
    int code = find_mappers(region, proc, &mappers);
    if (code != HR_OK)
        return code;
    struct repair_call call = {
        .region = region, .mappers = &mappers, .dry_run = dry_run, .pids = pids};
    code = watch_seqlocks(&call);
    if (code == HR_OK)
        code = run_locked(region, repair_work, &call, timeout_ns);
    hr_free_mappers(&mappers);
    return code;
}

/* ---- Attaching ------------------------------------------------------------------- */

struct attach_call {
    hr_region *region;
    struct repair_call *repair; /* NULL: nobody can be in the way */
    struct hr_attachment *attachment;
    int32_t pid;
};

/*
 * A live process may be writing where the newcomer would go.  Where that is certain
 * its frozen copy is emptied.  Where it is in doubt nothing is: the slot counts
 * beside the other one, too much rather than too little.  Only a slot whose process
 * is at work in another one is free to take.
 */
static int step_over_orphans(struct repair_call *call)
{
    hr_region *region = call->region;
    int32_t count;
    int code = hr_checked_proc_num(region, &count);
    if (code != HR_OK)
        return code;
    for (int32_t index = count; index < HR_SLOTS; index++) {
        int32_t pid = pid_of(region, hr_slot(region, (uint32_t)index));
        if (pid <= 0 || pid == getpid() || hr_life_of_slot(call->mappers, pid) != HR_ALIVE)
            break;
        int32_t copy = find_slot(region, pid, count);
        if (copy >= 0 && moves(call, copy))
            break;
        if (copy >= 0 && is_frozen_copy(call, copy, index))
            empty_slot(region, hr_slot(region, (uint32_t)copy));
        set_proc_num(region, index + 1);
    }
    return HR_OK;
}

static int attach_work(void *argument)
{
    struct attach_call *call = argument;
    hr_region *region = call->region;
    int code = call->repair == NULL ? HR_OK : step_over_orphans(call->repair);
    if (code < 0)
        return code;
    code = take_slot(region, call->pid, &call->attachment->index);
    if (code == HR_OK) {
        region->attachment = call->attachment;
        region->attached_pid = call->pid;
    }
    return code;
}

/* The slot that the newcomer would take still has a name: maybe of a process that writes there. */
static int is_tail_named(void *argument)
{
    const hr_region *region = argument;
    int32_t count;
    int code = hr_checked_proc_num(region, &count);
    if (code != HR_OK || count == HR_SLOTS || !has_seqlock(region))
        return code;
    int32_t pid = pid_of(region, hr_slot(region, (uint32_t)count));
    return pid != 0 && pid != getpid();
}

static int attach_beside_orphans(struct attach_call *call, uint64_t timeout_ns)
{
    hr_region *region = call->region;
    struct hr_mappers mappers;
    int code = hr_run(region, is_tail_named, region);
    if (code <= 0)
        return code < 0 ? code : run_locked(region, attach_work, call, timeout_ns);
    code = find_mappers(region, NULL, &mappers);
    if (code != HR_OK)
        return code;
    struct repair_call repair = {.region = region, .mappers = &mappers, .unasked = true};
    code = watch_seqlocks(&repair);
    call->repair = &repair;
    if (code == HR_OK)
        code = run_locked(region, attach_work, call, timeout_ns);
    hr_free_mappers(&mappers);
    return code;
}

int hr_attach(hr_region *region, uint64_t timeout_ns)
{
    if (!region->writable)
        return hr_fail_code(HR_EREADONLY);
    int entered = hr_enter(region);
    if (entered != HR_OK)
        return entered;
    hr_leave(region);
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
