/* What must hold after a death: of the lock, of the slots, of the sums. */
#include "crash.h"

#include "snapshot_view.h"

/* One slot's figures, as they stand in the file. */
struct slot {
    int32_t pid;
    uint64_t total[DEVICES], held[DEVICES][KINDS];
    bool odd, clear;
};

static void read_slot(const struct scene *scene, uint32_t index, struct slot *slot)
{
    const struct hr_layout *layout = scene->layout;
    const struct region_file *file = &scene->file;
    *slot = (struct slot){.pid = (int32_t)peek32(file, slot_at(file, index, layout->slot_pid))};
    slot->clear = true;
    for (uint32_t device = 0; device < DEVICES; device++) {
        const size_t used =
            slot_at(file, index, layout->slot_used) + (size_t)device * layout->slot_used_stride;
        for (uint32_t kind = 0; kind < KINDS; kind++)
            slot->held[device][kind] = peek64(file, used + kind * 8);
        slot->total[device] = peek64(file, used + 32);
        slot->clear = slot->clear && slot->total[device] == 0 && slot->held[device][0] == 0 &&
                      slot->held[device][1] == 0 && slot->held[device][2] == 0;
    }
    slot->odd = scene_has_seqlock(scene) &&
                (peek64(file, slot_at(file, index, layout->slot_seqlock)) & 1) != 0;
}

static uint32_t slot_count(struct scene *scene)
{
    uint32_t count = peek32(&scene->file, scene->layout->proc_num);
    if (count > HR_SLOTS)
        scene_fail(scene, "proc_num is %u", count);
    return count > HR_SLOTS ? 0 : count;
}

bool check_lock_is_free(struct scene *scene)
{
    uint64_t word = peek64(&scene->file, scene->layout->sem);
    uint64_t owner = peek64(&scene->file, scene->layout->owner_pid);
    if (word == 1 && owner == 0)
        return true;
    return scene_fail(scene, "the semaphore is %u with %u waiters, owner %llu", (unsigned)word,
                      (unsigned)(word >> 32), (unsigned long long)owner);
}

/* ---- The living: exactly ------------------------------------------------------ */

static uint64_t held_on(const struct ledger *ledger, uint32_t device)
{
    uint64_t total = 0;
    for (uint32_t kind = 0; kind < KINDS; kind++)
        total += atomic_load(&ledger->held[device][kind]);
    return total;
}

static bool is_exact(const struct slot *slot, const struct ledger *ledger)
{
    bool same = !slot->odd;
    for (uint32_t device = 0; device < DEVICES; device++) {
        for (uint32_t kind = 0; kind < KINDS; kind++)
            same = same && slot->held[device][kind] == atomic_load(&ledger->held[device][kind]);
        same = same && slot->total[device] == held_on(ledger, device);
    }
    return same;
}

/* One slot with all it holds; where slots are emptied in place, maybe an empty one besides. */
static bool check_live(struct scene *scene, const struct ledger *ledger)
{
    int32_t pid = atomic_load(&ledger->pid);
    uint32_t full = 0, clear = 0, count = slot_count(scene);
    struct slot own = {0};
    for (uint32_t i = 0; i < count; i++) {
        struct slot slot;
        read_slot(scene, i, &slot);
        if (slot.pid != pid)
            continue;
        full += !slot.clear;
        clear += slot.clear;
        if (!slot.clear || full == 0)
            own = slot;
    }
    uint32_t spare = scene_has_seqlock(scene) ? 1 : 0;
    if (full > 1 || full + clear == 0 || full + clear > 1 + spare)
        return scene_fail(scene, "survivor %d has %u slots and %u empty ones", pid, full, clear);
    if (is_exact(&own, ledger))
        return true;
    return scene_fail(scene, "survivor %d holds %llu/%llu bytes, the file has %llu/%llu; odd %d",
                      pid, (unsigned long long)held_on(ledger, 0),
                      (unsigned long long)held_on(ledger, 1), (unsigned long long)own.total[0],
                      (unsigned long long)own.total[1], own.odd);
}

static bool check_survivors(struct scene *scene)
{
    for (uint32_t i = 0; i < LIVE; i++) {
        const struct ledger *ledger = &scene->shared->ledgers[i];
        if (ledger->trouble != 0)
            return scene_fail(scene, "a survivor's call returned %d (crash_actor.c:%d)",
                              ledger->trouble, ledger->trouble_line);
        if (atomic_load(&ledger->pid) != 0 && !check_live(scene, ledger))
            return false;
    }
    return true;
}

/* ---- The dead: what they held, give or take what they were doing ----------------- */

static bool is_possible(const struct slot *slot, const struct ledger *ledger, bool inexact)
{
    int doing = atomic_load(&ledger->doing);
    bool accounting = doing == CHARGING || doing == RELEASING;
    uint64_t change = atomic_load(&ledger->bytes);
    if (doing == RELEASING)
        change = 0 - change;
    for (uint32_t device = 0; device < DEVICES; device++) {
        bool here = accounting && device == atomic_load(&ledger->device);
        for (uint32_t kind = 0; kind < KINDS; kind++) {
            uint64_t held = atomic_load(&ledger->held[device][kind]);
            uint64_t stands = slot->held[device][kind];
            bool this = here && kind == atomic_load(&ledger->kind);
            if (inexact ? stands > MOST_BYTES
                        : stands != held && !(this && stands == held + change))
                return false;
        }
        uint64_t stands = slot->total[device], total = held_on(ledger, device);
        if (inexact ? stands > KINDS * MOST_BYTES
                    : stands != total && !(here && stands == total + change))
            return false;
    }
    return true;
}

static bool is_frozen(const struct slot *slot, const struct ledger *ledger)
{
    return memcmp(slot->total, ledger->frozen_total, sizeof slot->total) == 0 &&
           memcmp(slot->held, ledger->frozen_held, sizeof slot->held) == 0;
}

static struct ledger *ledger_of(struct scene *scene, int32_t pid)
{
    for (uint32_t i = 0; i < atomic_load(&scene->shared->count); i++) {
        if (atomic_load(&scene->shared->ledgers[i].pid) == pid && pid != 0)
            return &scene->shared->ledgers[i];
    }
    return NULL;
}

static bool check_dead_slot(struct scene *scene, const struct ledger *victim, uint32_t index,
                            uint32_t *seen)
{
    struct slot slot;
    read_slot(scene, index, &slot);
    struct ledger *ledger = ledger_of(scene, slot.pid);
    if (ledger == NULL && slot.clear && slot.pid != 0)
        return true; /* of a process that is gone, emptied where it stands */
    if (ledger == NULL)
        return scene_fail(scene, "slot %u has pid %d, which nobody attached", index, slot.pid);
    uint32_t number = (uint32_t)(ledger - scene->shared->ledgers);
    if (number < LIVE)
        return true;
    if (++seen[number] > 1)
        return scene_fail(scene, "the dead %d has two slots", slot.pid);
    bool removed_by_victim = ledger != victim && victim != NULL && victim->has_reaped;
    bool inexact = removed_by_victim || atomic_load(&ledger->doing) == DETACHING;
    bool fine =
        ledger->frozen && !inexact ? is_frozen(&slot, ledger) : is_possible(&slot, ledger, inexact);
    if (!fine)
        return scene_fail(
            scene, "the dead %d: %llu/%llu bytes in the file, doing %d, frozen %d, reaped %d",
            slot.pid, (unsigned long long)slot.total[0], (unsigned long long)slot.total[1],
            atomic_load(&ledger->doing), ledger->frozen, removed_by_victim);
    ledger->frozen = true;
    memcpy(ledger->frozen_total, slot.total, sizeof slot.total);
    memcpy(ledger->frozen_held, slot.held, sizeof slot.held);
    return true;
}

/* A death loses no slot: what was attached is counted, unless it was being removed. */
static bool check_presence(struct scene *scene, const struct ledger *victim, const uint32_t *seen)
{
    for (uint32_t i = LIVE; i < atomic_load(&scene->shared->count); i++) {
        struct ledger *ledger = &scene->shared->ledgers[i];
        int doing = atomic_load(&ledger->doing);
        bool attached = atomic_load(&ledger->attached);
        bool may_be_gone =
            doing == DETACHING || (victim != NULL && ledger != victim && victim->has_reaped);
        if (seen[i] == 0 && attached && !may_be_gone)
            return scene_fail(scene, "the dead %d has lost its slot", ledger->pid);
        if (seen[i] == 0)
            atomic_store(&ledger->attached, 0);
    }
    return true;
}

bool check_slots(struct scene *scene, const struct ledger *victim)
{
    uint32_t seen[LEDGERS] = {0};
    uint32_t count = slot_count(scene);
    for (uint32_t i = 0; i < count; i++) {
        if (!check_dead_slot(scene, victim, i, seen))
            return false;
    }
    return check_presence(scene, victim, seen) && check_survivors(scene);
}

/* ---- Without the dead ------------------------------------------------------------ */

static bool check_what_was_reaped(struct scene *scene, const struct hr_slot_result *reaped,
                                  int count)
{
    for (int i = 0; i < count; i++) {
        const struct ledger *ledger = ledger_of(scene, reaped[i].pid);
        if (ledger != NULL && ledger - scene->shared->ledgers < LIVE)
            return scene_fail(scene, "the living %d was reaped", reaped[i].pid);
        if (reaped[i].what != HR_SLOT_DONE)
            return scene_fail(scene, "reaping %d: %u", reaped[i].pid, reaped[i].what);
    }
    return true;
}

static bool check_nobody_else(struct scene *scene)
{
    const uint32_t tail = 8;
    uint32_t count = slot_count(scene);
    for (uint32_t i = 0; i < count + tail && i < HR_SLOTS; i++) {
        struct slot slot;
        read_slot(scene, i, &slot);
        const struct ledger *ledger = ledger_of(scene, slot.pid);
        if (i < count && ledger != NULL && ledger - scene->shared->ledgers < LIVE)
            continue;
        bool emptied = slot.clear && !slot.odd && slot.pid != 0;
        /* Who takes a slot behind the last one goes on with its seqlock. */
        bool fine = i < count ? emptied : !slot.odd;
        if (!fine)
            return scene_fail(scene, "after reaping, slot %u of %u: pid %d, %llu bytes, odd %d", i,
                              count, slot.pid, (unsigned long long)slot.total[0], slot.odd);
    }
    return true;
}

static bool check_snapshot(struct scene *scene)
{
    static _Alignas(8) unsigned char buffer[256 * 1024];
    struct hr_snapshot *snapshot = (void *)buffer;
    int code = hr_snapshot(scene->doctor, snapshot, sizeof buffer, &call_error);
    if (code != HR_OK || !snapshot->settled)
        return scene_fail(scene, "the snapshot: %d, settled %u", code, snapshot->settled);
    for (uint32_t device = 0; device < DEVICES; device++) {
        uint64_t sum = 0;
        for (uint32_t i = 0; i < LIVE; i++) {
            const struct ledger *ledger = &scene->shared->ledgers[i];
            if (atomic_load(&ledger->pid) != 0)
                sum += held_on(ledger, device);
        }
        uint64_t shown = hr_snapshot_device(snapshot, device)->sums.total;
        if (shown != sum || live_value(scene->doctor, HR_VALUE_MEMORY_USED, device) != sum)
            return scene_fail(scene, "device %u: %llu bytes counted, the survivors hold %llu",
                              device, (unsigned long long)shown, (unsigned long long)sum);
    }
    return true;
}

bool check_reaped(struct scene *scene)
{
    static struct hr_slot_result reaped[HR_SLOTS];
    int count = hr_reap(scene->doctor, NULL, NULL, 0, 0, ONE_SECOND, reaped, &call_error);
    if (count < 0)
        return scene_fail(scene, "hr_reap() returned %d", count);
    return check_what_was_reaped(scene, reaped, count) && check_nobody_else(scene) &&
           check_survivors(scene) && check_snapshot(scene) && check_lock_is_free(scene);
}
