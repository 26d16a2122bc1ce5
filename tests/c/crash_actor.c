#define _GNU_SOURCE
#include "crash.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "snapshot_view.h"

/* Stands where a code would: a settled snapshot in which this process has another slot. */
enum { WRONG_PICTURE = -1000 };

static void trouble(struct actor *actor, int code, int line)
{
    int none = 0;
    if (atomic_compare_exchange_strong(&actor->ledger->trouble, &none, code))
        atomic_store(&actor->ledger->trouble_line, line);
}

/* A timeout is what a dead holder costs; anything else that is not listed is wrong. */
#define EXPECT(code, also)                                                                         \
    do {                                                                                           \
        if ((code) < 0 && (code) != HR_ETIMEOUT && (code) != (also))                               \
            trouble(actor, (code), __LINE__);                                                      \
    } while (0)

void actor_become(struct actor *actor, struct scene *scene, struct ledger *ledger,
                  uint64_t timeout_ns)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    crash_reached = &ledger->reached;
    atomic_store(&ledger->pid, getpid());
    *actor = (struct actor){.ledger = ledger, .scene = scene, .timeout_ns = timeout_ns};
    actor->random = scene->random ^ ((uint64_t)getpid() << 32);
    /* The doctor's handle and mapping came along with fork(); this process wants its own. */
    hr_free(&scene->doctor);
    scene->doctor = NULL;
    int code =
        hr_open(scene->file.path, HR_WRITE, scene->layout->id, 0, &actor->region, &call_error);
    if (code < 0)
        trouble(actor, code, __LINE__);
}

static void begin(struct actor *actor, enum doing doing)
{
    atomic_store(&actor->ledger->doing, doing);
}

static void end(struct actor *actor)
{
    atomic_store(&actor->ledger->doing, NOTHING);
}

void actor_attach(struct actor *actor)
{
    begin(actor, ATTACHING);
    int code = hr_attach(actor->region, actor->timeout_ns, &call_error);
    if (code == HR_OK)
        atomic_store(&actor->ledger->attached, 1);
    EXPECT(code, HR_OK);
    end(actor);
}

void actor_detach(struct actor *actor)
{
    begin(actor, DETACHING);
    int code = hr_detach(actor->region, 0, actor->timeout_ns, &call_error);
    if (code != HR_ETIMEOUT) {
        atomic_store(&actor->ledger->attached, 0);
        for (uint32_t device = 0; device < DEVICES; device++) {
            for (uint32_t kind = 0; kind < KINDS; kind++)
                atomic_store(&actor->ledger->held[device][kind], 0);
        }
    }
    EXPECT(code, HR_OK);
    end(actor);
}

void actor_account(struct actor *actor)
{
    struct ledger *ledger = actor->ledger;
    uint32_t device = (uint32_t)below(&actor->random, DEVICES);
    uint32_t kind = (uint32_t)below(&actor->random, KINDS);
    uint64_t held = atomic_load(&ledger->held[device][kind]);
    bool charges = held == 0 || (held < MOST_BYTES / 2 && below(&actor->random, 2) == 0);
    uint64_t bytes = 1 + below(&actor->random, charges ? MOST_BYTES / 4 : held);
    atomic_store(&ledger->device, device);
    atomic_store(&ledger->kind, kind);
    atomic_store(&ledger->bytes, bytes);
    begin(actor, charges ? CHARGING : RELEASING);
    int code =
        charges ? hr_charge(actor->region, device, kind, bytes, 0, actor->timeout_ns, &call_error)
                : hr_release(actor->region, device, kind, bytes, actor->timeout_ns, &call_error);
    if (code == HR_OK) {
        atomic_store(&ledger->held[device][kind], charges ? held + bytes : held - bytes);
        atomic_fetch_add(&ledger->done, 1);
        atomic_store(&ledger->is_orphan, 0);
    }
    EXPECT(code, HR_OK);
    end(actor);
}

void actor_lock_and_unlock(struct actor *actor)
{
    begin(actor, OTHERWISE);
    int code = hr_lock(actor->region, actor->timeout_ns, &call_error);
    EXPECT(code, HR_OK);
    if (code == HR_OK) {
        code = hr_unlock(actor->region, &call_error);
        if (code != HR_OK)
            trouble(actor, code, __LINE__);
    }
    end(actor);
}

void actor_edit(struct actor *actor)
{
    const struct ledger *other = &actor->scene->shared->ledgers[below(&actor->random, LIVE)];
    struct hr_slot_edit edits[4] = {
        {.value = HR_SLOT_HOST_PID, .to = below(&actor->random, 1000)},
        {.value = HR_SLOT_MONITOR_USED, .device = 1, .to = next_random(&actor->random)},
        {.value = HR_SLOT_SM, .to = below(&actor->random, 101)},
        {.value = HR_SLOT_DEC, .device = 1, .to = below(&actor->random, 101)},
    };
    uint32_t count = actor->scene->layout->slot_util == HR_ABSENT ? 2 : 4;
    int32_t pid = atomic_load(&other->pid);
    begin(actor, OTHERWISE);
    int code = hr_edit_slot(actor->region, pid, edits, count, 0, actor->timeout_ns, &call_error);
    EXPECT(code, HR_ENOPROCESS);
    end(actor);
}

void actor_look(struct actor *actor)
{
    static _Alignas(8) unsigned char buffer[256 * 1024];
    struct hr_snapshot *snapshot = (void *)buffer;
    int code = hr_snapshot(actor->region, snapshot, sizeof buffer, &call_error);
    EXPECT(code, HR_OK);
    if (code != HR_OK || !snapshot->settled || !atomic_load(&actor->ledger->attached) ||
        atomic_load(&actor->ledger->is_orphan))
        return;
    bool found = false;
    for (uint32_t i = 0; i < (uint32_t)snapshot->process_count && !found; i++) {
        found = hr_snapshot_process(snapshot, i)->pid == getpid();
        for (uint32_t device = 0; found && device < DEVICES; device++) {
            const struct hr_usage *usage = hr_snapshot_usage(snapshot, i, device);
            const _Atomic uint64_t *held = actor->ledger->held[device];
            found = usage->context == held[0] && usage->module == held[1] &&
                    usage->data == held[2] && usage->total == held[0] + held[1] + held[2];
        }
    }
    if (!found)
        trouble(actor, WRONG_PICTURE, __LINE__);
}

void actor_reap(struct actor *actor)
{
    static struct hr_slot_result reaped[HR_SLOTS];
    struct scene *scene = actor->scene;
    /* The last but one by name, at times: the last one stands behind it, and is moved. */
    uint32_t count = atomic_load(&scene->shared->count);
    int32_t pid = 0;
    if (count > LIVE + 1 && below(&actor->random, 2) == 0)
        pid = atomic_load(&scene->shared->ledgers[count - 2].pid);
    if (pid == getpid())
        pid = 0;
    atomic_store(&actor->ledger->has_reaped, 1);
    begin(actor, REAPING);
    int code = hr_reap(actor->region, NULL, pid == 0 ? NULL : &pid, pid != 0, 0, actor->timeout_ns,
                       reaped, &call_error);
    EXPECT(code, HR_ENOPROCESS);
    end(actor);
}

void actor_recover(struct actor *actor)
{
    begin(actor, OTHERWISE);
    int code = recover_lock(actor->region, NULL, 4 * OWNERLESS_NS);
    EXPECT(code, HR_ENOTRECOVERABLE);
    end(actor);
}

void actor_repair(struct actor *actor)
{
    static struct hr_slot_result found[HR_SLOTS];
    begin(actor, OTHERWISE);
    int code = hr_repair_slots(actor->region, NULL, 0, actor->timeout_ns, found, &call_error);
    EXPECT(code, HR_OK);
    end(actor);
}
