#define _GNU_SOURCE

#include <fcntl.h>
#include <sys/random.h>
#include <time.h>

#include "slots.h"
#include "testpoint.h"

/*
 * The first word: what it is, whose, and which number.  pid_max is 2^22 at most.
 */
#define NUMBER_BITS 28
#define PID_BITS 22
#define TAG (UINT64_C(0x2a71) << (NUMBER_BITS + PID_BITS))
#define TAG_MASK (~UINT64_C(0) << (NUMBER_BITS + PID_BITS))

static uint64_t make_mark(int32_t pid, uint32_t number)
{
    return TAG | (uint64_t)pid << NUMBER_BITS | number;
}

off_t hr_mark_byte(uint64_t mark)
{
    return HR_SLOT_BYTE + (off_t)(mark & ((UINT64_C(1) << NUMBER_BITS) - 1));
}

/* Which file the bytes are locked in.  An overlay and what is below it have different ones. */
static uint64_t file_word(const hr_region *region)
{
    uint64_t word = region->inode * UINT64_C(0x9e3779b97f4a7c15) + region->device_id;
    return (word ^ word >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
}

/* In the record of the first device, behind what it counts; or HR_ABSENT. */
static uint32_t mark_offset(const struct hr_layout *layout)
{
    const uint32_t counted = HR_TOTAL_OFFSET + 8;
    return layout->slot_used_stride >= counted + 16 ? layout->slot_used + counted : HR_ABSENT;
}

uint64_t hr_slot_mark(const hr_region *region, const unsigned char *slot)
{
    const uint32_t offset = mark_offset(region->layout);
    if (offset == HR_ABSENT || !hr_is_flagged(region, slot))
        return 0;
    uint64_t mark = hr_load_u64(slot + offset, memory_order_relaxed);
    int32_t pid = hr_slot_pid(region, slot);
    bool holds = pid > 0 && (mark & ~(((uint64_t)1 << NUMBER_BITS) - 1)) == make_mark(pid, 0) &&
                 hr_load_u64(slot + offset + 8, memory_order_relaxed) == file_word(region);
    return holds ? mark : 0;
}

void hr_store_mark(const hr_region *region, unsigned char *slot, uint64_t mark)
{
    const uint32_t offset = mark_offset(region->layout);
    if (offset == HR_ABSENT || mark == 0)
        return;
    hr_store_u64(slot + offset, mark, memory_order_relaxed);
    hr_store_u64(slot + offset + 8, file_word(region), memory_order_relaxed);
    hr_flag_seqlock(region, slot);
}

/* ---- Drawing ------------------------------------------------------------------------- */

struct number_call {
    const hr_region *region;
    off_t byte;
};

/*
 * Whether a dead process's slot has the number, or its lock: it would come to life again.  From the
 * end, as libvgpu moves slots towards the beginning: none is missed.  What is behind counts
 * nothing.
 */
static int look_for_number(void *argument)
{
    const struct number_call *call = argument;
    int32_t count;
    if (hr_owner_byte(hr_load_u64(call->region->base + call->region->layout->owner_pid,
                                  memory_order_acquire)) == call->byte)
        return HR_EBUSY;
    int code = hr_checked_proc_num(call->region, &count);
    while (code == HR_OK && --count >= 0) {
        uint64_t mark = hr_slot_mark(call->region, hr_slot(call->region, (uint32_t)count));
        if (mark != 0 && hr_mark_byte(mark) == call->byte)
            return HR_EBUSY;
    }
    return code;
}

void hr_draw_mark(hr_region *region, int32_t pid, uint64_t *mark, struct hr_byte_lock *byte)
{
    const int tries = 8; /* a container may lock all bytes there are */
    *mark = 0;
    byte->page = NULL;
    for (int try = 0;
         mark_offset(region->layout) != HR_ABSENT && pid < 1 << PID_BITS && try < tries; try++) {
        uint32_t random;
        if (getrandom(&random, sizeof random, GRND_NONBLOCK) != sizeof random)
            random = (uint32_t)hr_clock_ns(CLOCK_MONOTONIC) * 2654435761u;
        uint64_t drawn = make_mark(pid, random >> (32 - NUMBER_BITS));
        int code = hr_lock_bytes(region, F_WRLCK, hr_mark_byte(drawn), 1, byte);
        HR_POINT(SLOT_BYTE_LOCKED);
        if (code == HR_OK) {
            struct number_call call = {.region = region, .byte = hr_mark_byte(drawn)};
            code = hr_run(region, look_for_number, &call);
            if (code == HR_OK) {
                *mark = drawn;
                return;
            }
            hr_unlock_bytes(region, byte);
        }
        if (code != HR_EBUSY)
            return;
    }
}

/* ---- Judging ------------------------------------------------------------------------- */

struct marks_call {
    const hr_region *region;
    int32_t pid;
    struct hr_judged_marks *out;
};

bool hr_is_judged(const struct hr_judged_marks *marks, uint64_t mark)
{
    for (uint32_t i = 0; i < marks->count; i++) {
        if (marks->list[i].mark == mark)
            return true;
    }
    return false;
}

enum hr_liveness hr_liveness_of_mark(const struct hr_judged_marks *marks, uint64_t mark)
{
    for (uint32_t i = 0; i < marks->count; i++) {
        if (marks->list[i].mark == mark)
            return marks->list[i].liveness;
    }
    return HR_LIVENESS_UNKNOWN;
}

static int list_marks(void *argument)
{
    struct marks_call *call = argument;
    struct hr_judged_marks *out = call->out;
    for (uint32_t index = 0; index < HR_SLOTS; index++) {
        const unsigned char *slot = hr_slot(call->region, index);
        int32_t pid = hr_slot_pid(call->region, slot);
        if (pid <= 0 || (call->pid != 0 && pid != call->pid))
            continue;
        uint64_t mark = hr_slot_mark(call->region, slot);
        if (mark != 0 && !hr_is_judged(out, mark)) {
            out->list[out->count].mark = mark;
            out->list[out->count++].liveness = HR_LIVENESS_UNKNOWN;
        }
    }
    return HR_OK;
}

void hr_judge_marks(hr_region *region, int32_t pid, struct hr_judged_marks *out)
{
    struct marks_call call = {.region = region, .pid = pid, .out = out};
    off_t bytes[HR_SLOTS];
    bool is_locked[HR_SLOTS];
    out->count = 0;
    out->kept.page = NULL;
    if (mark_offset(region->layout) == HR_ABSENT || hr_run(region, list_marks, &call) != HR_OK ||
        out->count == 0)
        return;
    for (uint32_t i = 0; i < out->count; i++)
        bytes[i] = hr_mark_byte(out->list[i].mark);
    if (hr_lock_free_bytes(region, bytes, out->count, is_locked, &out->kept) != HR_OK)
        return;
    for (uint32_t i = 0; i < out->count; i++) {
        if (!is_locked[i])
            out->list[i].liveness = HR_ALIVE;
        else if (region->has_own_pages)
            out->list[i].liveness = HR_DEAD;
    }
}

void hr_forget_marks(const hr_region *region, struct hr_judged_marks *marks)
{
    hr_unlock_bytes(region, &marks->kept);
    marks->count = 0;
}
