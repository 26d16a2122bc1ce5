#include "slot_table.h"

#include "testpoint.h"

bool hr_has_seqlock(const hr_region *region)
{
    return region->layout->slot_seqlock != HR_ABSENT;
}

int32_t hr_slot_pid(const hr_region *region, const unsigned char *slot)
{
    return hr_load_i32(slot + region->layout->slot_pid, memory_order_relaxed);
}

void hr_set_slot_pid(const hr_region *region, unsigned char *slot, int32_t pid)
{
    /* Release: what the slot holds is stored before the name it goes by. */
    hr_store_i32(slot + region->layout->slot_pid, pid, memory_order_release);
}

void hr_set_proc_num(const hr_region *region, int32_t count)
{
    /* Release: a slot is filled before it counts. */
    hr_store_i32(region->base + region->layout->proc_num, count, memory_order_release);
}

unsigned char *hr_slot_used(const hr_region *region, unsigned char *slot, uint32_t device)
{
    return slot + region->layout->slot_used + (size_t)device * region->layout->slot_used_stride;
}

int32_t hr_find_slot(const hr_region *region, int32_t pid, int32_t count)
{
    bool upwards = !hr_has_seqlock(region);
    for (int32_t at = 0; at < count; at++) {
        int32_t index = upwards ? at : count - 1 - at;
        if (hr_slot_pid(region, hr_slot(region, (uint32_t)index)) == pid)
            return index;
    }
    return -1;
}

int hr_no_process(int32_t pid)
{
    struct hr_detail detail = {
        .code = HR_ENOPROCESS, .device = -1, .layout = HR_LAYOUTS, .found = (uint64_t)(int64_t)pid};
    return hr_fail(&detail);
}

/* ---- Emptying, filling and moving slots, under the lock --------------------------- */

static bool is_name_or_seqlock(const struct hr_layout *layout, uint32_t offset)
{
    /* pid and hostpid share the first word. */
    return offset == layout->slot_pid || offset == layout->slot_seqlock;
}

/* Word by word: a reader beside us must not see half of one. */
void hr_empty_slot(const hr_region *region, unsigned char *slot)
{
    const struct hr_layout *layout = region->layout;
    for (uint32_t offset = 0; offset + 8 <= layout->slot_stride; offset += 8) {
        if (!is_name_or_seqlock(layout, offset))
            hr_store_u64(slot + offset, 0, memory_order_relaxed);
    }
    if (!hr_has_seqlock(region))
        return;
    /* Left odd by a death, every reader of libvgpu would spin on it for ever. */
    uint64_t seqlock = hr_load_u64(slot + layout->slot_seqlock, memory_order_relaxed);
    if ((seqlock & 1) != 0)
        hr_store_u64(slot + layout->slot_seqlock, seqlock + 1, memory_order_release);
}

uint64_t hr_slot_bytes(const hr_region *region, unsigned char *slot)
{
    uint64_t sum = 0;
    for (uint32_t device = 0; device < HR_DEVICES; device++) {
        unsigned char *used = hr_slot_used(region, slot, device);
        sum = hr_add_saturating(sum, hr_load_u64(used + HR_TOTAL_OFFSET, memory_order_relaxed));
    }
    return sum;
}

bool hr_slot_is_empty(const hr_region *region, unsigned char *slot)
{
    const struct hr_layout *layout = region->layout;
    uint64_t any = 0;
    for (uint32_t offset = 0; offset + 8 <= layout->slot_stride; offset += 8) {
        if (!is_name_or_seqlock(layout, offset))
            any |= hr_load_u64(slot + offset, memory_order_relaxed);
    }
    bool odd = hr_has_seqlock(region) &&
               (hr_load_u64(slot + layout->slot_seqlock, memory_order_relaxed) & 1) != 0;
    return any == 0 && !odd;
}

void hr_move_last_into(const hr_region *region, int32_t hole, int32_t count)
{
    const struct hr_layout *layout = region->layout;
    unsigned char *to = hr_slot(region, (uint32_t)hole);
    unsigned char *from = hr_slot(region, (uint32_t)count - 1);
    hr_empty_slot(region, to);
    HR_POINT(REMOVE_USAGE_CLEARED);
    if (hole != count - 1) {
        for (uint32_t offset = 8; offset + 8 <= layout->slot_stride; offset += 8)
            hr_store_u64(to + offset, hr_load_u64(from + offset, memory_order_relaxed),
                         memory_order_relaxed);
        HR_POINT(REMOVE_USAGE_MOVED);
        hr_store_i32(to + layout->slot_hostpid,
                     hr_load_i32(from + layout->slot_hostpid, memory_order_relaxed),
                     memory_order_relaxed);
        hr_set_slot_pid(region, to, hr_slot_pid(region, from));
        HR_POINT(REMOVE_PID_MOVED);
    }
    hr_set_proc_num(region, count - 1);
    HR_POINT(REMOVE_COUNT_STORED);
}

int hr_finish_removal(const hr_region *region)
{
    int32_t count;
    int code = hr_checked_proc_num(region, &count);
    if (code != HR_OK || hr_has_seqlock(region) || count == 0)
        return code;
    int32_t pid = hr_slot_pid(region, hr_slot(region, (uint32_t)count - 1));
    if (pid == 0 || hr_find_slot(region, pid, count - 1) < 0)
        return 0;
    hr_set_proc_num(region, count - 1);
    return 1;
}

uint32_t hr_free_slot(const hr_region *region, int32_t index, int32_t *count)
{
    unsigned char *slot = hr_slot(region, (uint32_t)index);
    if (!hr_has_seqlock(region)) {
        hr_move_last_into(region, index, *count);
        (*count)--;
        return HR_REAP_REMOVED;
    }
    hr_empty_slot(region, slot);
    HR_POINT(REMOVE_USAGE_CLEARED);
    if (index != *count - 1)
        return HR_REAP_EMPTIED;
    hr_set_proc_num(region, --*count);
    HR_POINT(REMOVE_COUNT_STORED);
    /* Above proc_num a live pid would look like an orphan. */
    hr_set_slot_pid(region, slot, 0);
    return HR_REAP_REMOVED;
}
