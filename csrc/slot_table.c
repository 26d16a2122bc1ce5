#include "slots.h"

/* The upper half of a mark's first word; the lower half is the pid. */
#define MARK_TAG (UINT64_C(0x48524d4b) << 32)

static unsigned char *slot_at(const hr_region *region, int32_t index)
{
    return hr_slot(region, (uint32_t)index);
}

bool hr_has_seqlock(const hr_region *region)
{
    return region->layout->slot_seqlock != HR_ABSENT;
}

int hr_checked_table(const hr_region *region, int32_t *count)
{
    int code = hr_check_header(region);
    return code == HR_OK ? hr_checked_proc_num(region, count) : code;
}

int32_t hr_slot_pid(const hr_region *region, int32_t index)
{
    return hr_load_i32(slot_at(region, index) + region->layout->slot_pid, memory_order_relaxed);
}

void hr_set_slot_pid(const hr_region *region, int32_t index, int32_t pid)
{
    /* Release: what the slot holds is stored before the name it goes by. */
    hr_store_i32(slot_at(region, index) + region->layout->slot_pid, pid, memory_order_release);
}

bool hr_swap_proc_num(const hr_region *region, int32_t judged, int32_t count)
{
    /* Releases as well: a slot is filled before it counts. */
    return hr_swap_i32(region->base + region->layout->proc_num, &judged, count);
}

int32_t hr_find_slot(const hr_region *region, int32_t pid, int32_t count)
{
    for (int32_t index = count - 1; index >= 0; index--) {
        if (hr_slot_pid(region, index) == pid)
            return index;
    }
    return -1;
}

int hr_no_process(int32_t pid)
{
    return HR_FAIL(HR_ENOPROCESS, .found = (uint64_t)(int64_t)pid);
}

/* ---- Marks -------------------------------------------------------------------------- */

/* In the record of the first device, behind what it counts. */
static uint32_t mark_offset(const hr_region *region)
{
    return region->layout->slot_used + HR_TOTAL_OFFSET + 8;
}

/* 0, or the mark of the process whose pid is in the slot. */
static uint64_t slot_mark(const hr_region *region, int32_t index)
{
    const unsigned char *slot = slot_at(region, index);
    const uint32_t offset = mark_offset(region);
    const uint64_t named = MARK_TAG | (uint32_t)hr_slot_pid(region, index);
    const uint64_t seqlock = hr_load_u64(slot + hr_seqlock_offset(region), memory_order_relaxed);
    if ((seqlock & HR_MARK_FLAG) == 0 || hr_load_u64(slot + offset, memory_order_relaxed) != named)
        return 0;
    return hr_load_u64(slot + offset + 8, memory_order_relaxed);
}

void hr_store_mark(const hr_region *region, int32_t index, int32_t pid, uint64_t mark)
{
    unsigned char *slot = slot_at(region, index);
    const uint32_t offset = mark_offset(region), seqlock_at = hr_seqlock_offset(region);
    if (mark == 0)
        return;
    hr_store_u64(slot + offset, MARK_TAG | (uint32_t)pid, memory_order_relaxed);
    hr_store_u64(slot + offset + 8, mark, memory_order_relaxed);
    uint64_t seqlock = hr_load_u64(slot + seqlock_at, memory_order_relaxed);
    hr_store_u64(slot + seqlock_at, seqlock | HR_MARK_FLAG, memory_order_release);
}

struct hr_seen_slot hr_look_at_slot(const hr_region *region, int32_t index)
{
    unsigned char *slot = slot_at(region, index);
    return (struct hr_seen_slot){
        .pid = hr_slot_pid(region, index),
        .host_pid = hr_load_i32(slot + region->layout->slot_hostpid, memory_order_relaxed),
        .status = hr_load_i32(slot + region->layout->slot_status, memory_order_relaxed),
        .seqlock = hr_seqlock_of(region, index),
        .bytes = hr_slot_bytes(region, index),
        .mark = slot_mark(region, index)};
}

bool hr_is_as_seen(const hr_region *region, const struct hr_seen_slot *before, int32_t index)
{
    const struct hr_seen_slot now = hr_look_at_slot(region, index);
    return now.pid == before->pid && now.host_pid == before->host_pid &&
           now.status == before->status && now.seqlock == before->seqlock &&
           now.bytes == before->bytes && now.mark == before->mark;
}

/* ---- Emptying, under the lock ------------------------------------------------------ */

void hr_make_seqlock_even(const hr_region *region, int32_t index)
{
    unsigned char *at = slot_at(region, index) + hr_seqlock_offset(region);
    uint64_t seqlock = hr_load_u64(at, memory_order_relaxed);
    if ((seqlock & 1) != 0)
        hr_store_u64(at, seqlock + 1, memory_order_release);
}

bool hr_end_seqlock(const hr_region *region, int32_t index, uint64_t seen)
{
    unsigned char *at = slot_at(region, index) + hr_seqlock_offset(region);
    uint64_t raw = hr_load_u64(at, memory_order_relaxed);
    return (raw & ~HR_MARK_FLAG) == seen && hr_swap_u64(at, &raw, raw + 1);
}

static bool is_name_or_seqlock(const struct hr_layout *layout, uint32_t offset)
{
    /* pid and hostpid share the first word. */
    return offset == layout->slot_pid || offset == layout->slot_seqlock;
}

/* Word by word: a concurrent reader must not see half of one. */
void hr_empty_slot(const hr_region *region, int32_t index)
{
    unsigned char *slot = slot_at(region, index);
    const struct hr_layout *layout = region->layout;
    for (uint32_t offset = 0; offset + 8 <= layout->slot_stride; offset += 8) {
        if (!is_name_or_seqlock(layout, offset))
            hr_store_u64(slot + offset, 0, memory_order_relaxed);
    }
    /* A host pid that is used again would get another process's utilisation. */
    hr_store_i32(slot + layout->slot_hostpid, 0, memory_order_relaxed);
    hr_make_seqlock_even(region, index);
}

void hr_clear_usage(const hr_region *region, int32_t index)
{
    for (uint32_t device = 0; device < HR_DEVICES; device++) {
        unsigned char *used = hr_used(region, slot_at(region, index), device);
        for (uint32_t offset = 0; offset <= HR_TOTAL_OFFSET; offset += 8)
            hr_store_u64(used + offset, 0, memory_order_relaxed);
    }
    hr_make_seqlock_even(region, index);
}

uint64_t hr_slot_bytes(const hr_region *region, int32_t index)
{
    uint64_t sum = 0;
    for (uint32_t device = 0; device < HR_DEVICES; device++) {
        unsigned char *used = hr_used(region, slot_at(region, index), device);
        sum = hr_add_saturating(sum, hr_load_u64(used + HR_TOTAL_OFFSET, memory_order_relaxed));
    }
    return sum;
}

bool hr_slot_is_used(const hr_region *region, int32_t index)
{
    const unsigned char *slot = slot_at(region, index);
    const struct hr_layout *layout = region->layout;
    uint64_t any = 0;
    for (uint32_t offset = 0; offset + 8 <= layout->slot_stride; offset += 8) {
        if (!is_name_or_seqlock(layout, offset) && offset != layout->slot_status)
            any |= hr_load_u64(slot + offset, memory_order_relaxed);
    }
    const bool is_odd = hr_has_seqlock(region) &&
                        (hr_load_u64(slot + layout->slot_seqlock, memory_order_relaxed) & 1) != 0;
    return any != 0 || is_odd;
}

bool hr_is_emptied(const hr_region *region, int32_t index)
{
    const unsigned char *status = slot_at(region, index) + region->layout->slot_status;
    return hr_load_i32(status, memory_order_relaxed) == 0 && !hr_slot_is_used(region, index);
}

/* ---- Slots with pid 0 -------------------------------------------------------------- */

bool hr_is_in_use(const hr_region *region, int32_t index)
{
    return hr_slot_bytes(region, index) != 0 || (hr_seqlock_of(region, index) & 1) != 0;
}
