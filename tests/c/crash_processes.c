/* The processes of the crash test: those that live, and those that die. */
#define _GNU_SOURCE
#include "crash.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "snapshot_view.h"

static const uint64_t survivor_timeout_ns = ONE_SECOND / 50;
static const uint64_t victim_timeout_ns = ONE_SECOND / 5;

uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

uint64_t below(uint64_t *state, uint64_t bound)
{
    return next_random(state) % bound;
}

uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * ONE_SECOND + (uint64_t)now.tv_nsec;
}

static void nap_us(uint64_t us)
{
    const struct timespec nap = {.tv_sec = (time_t)(us / 1000000),
                                 .tv_nsec = (long)(us % 1000000) * 1000};
    nanosleep(&nap, NULL);
}

bool scene_fail(struct scene *scene, const char *format, ...)
{
    if (scene->failure[0] == '\0') {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(scene->failure, sizeof scene->failure, format, arguments);
        va_end(arguments);
    }
    return false;
}

bool scene_has_seqlock(const struct scene *scene)
{
    return scene->layout->slot_seqlock != HR_ABSENT;
}

/* ---- One process and its ledger --------------------------------------------- */

struct actor {
    hr_region *region;
    struct ledger *ledger;
    struct scene *scene;
    uint64_t random;
};

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

static void become(struct actor *actor, struct scene *scene, struct ledger *ledger)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(300); /* should everything else fail */
    memset(ledger, 0, sizeof *ledger);
    crash_reached = &ledger->reached;
    atomic_store(&ledger->pid, getpid());
    *actor = (struct actor){.ledger = ledger, .scene = scene};
    actor->random = scene->random ^ ((uint64_t)getpid() << 32);
    /* The doctor's handle and mapping came along with fork(); this process wants its own. */
    hr_free(scene->doctor);
    scene->doctor = NULL;
    int code = hr_open(scene->file.path, HR_WRITE, scene->layout->id, &actor->region);
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

static void attach(struct actor *actor, uint64_t timeout_ns)
{
    begin(actor, ATTACHING);
    int code = hr_attach(actor->region, timeout_ns);
    if (code == HR_OK)
        atomic_store(&actor->ledger->attached, 1);
    EXPECT(code, HR_OK);
    end(actor);
}

static void detach(struct actor *actor, uint64_t timeout_ns)
{
    begin(actor, DETACHING);
    int code = hr_detach(actor->region, timeout_ns);
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

static void account(struct actor *actor, uint64_t timeout_ns)
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
    int code = charges ? hr_charge(actor->region, device, kind, bytes, timeout_ns)
                       : hr_release(actor->region, device, kind, bytes, timeout_ns);
    if (code == HR_OK) {
        atomic_store(&ledger->held[device][kind], charges ? held + bytes : held - bytes);
        atomic_fetch_add(&ledger->done, 1);
    }
    EXPECT(code, HR_OK);
    end(actor);
}

static void lock_and_unlock(struct actor *actor, uint64_t timeout_ns)
{
    begin(actor, OTHERWISE);
    int code = hr_lock(actor->region, timeout_ns);
    EXPECT(code, HR_OK);
    if (code == HR_OK) {
        code = hr_unlock(actor->region);
        if (code != HR_OK)
            trouble(actor, code, __LINE__);
    }
    end(actor);
}

static void edit(struct actor *actor, uint64_t timeout_ns)
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
    int code = hr_edit_slot(actor->region, pid, edits, count, 0, timeout_ns);
    EXPECT(code, HR_ENOPROCESS);
    end(actor);
}

/* What is settled has this process's slot as its ledger has it: nobody else writes there. */
static void look(struct actor *actor)
{
    static _Alignas(8) unsigned char buffer[256 * 1024];
    struct hr_snapshot *snapshot = (void *)buffer;
    int code = hr_snapshot(actor->region, snapshot, sizeof buffer);
    EXPECT(code, HR_OK);
    if (code != HR_OK || !snapshot->settled || !atomic_load(&actor->ledger->attached))
        return;
    bool found = false;
    for (uint32_t i = 0; i < (uint32_t)snapshot->proc_num && !found; i++) {
        found = snapshot_process(snapshot, i)->pid == getpid();
        for (uint32_t device = 0; found && device < DEVICES; device++) {
            const struct hr_usage *usage = snapshot_usage(snapshot, i, device);
            const _Atomic uint64_t *held = actor->ledger->held[device];
            found = usage->context == held[0] && usage->module == held[1] &&
                    usage->data == held[2] && usage->total == held[0] + held[1] + held[2];
        }
    }
    if (!found)
        trouble(actor, -1000, __LINE__);
}

/* ---- Those that live --------------------------------------------------------- */

static void obey_pause(struct actor *actor)
{
    struct ledger *ledger = actor->ledger;
    while (!atomic_load(&ledger->attached))
        attach(actor, survivor_timeout_ns);
    atomic_store(&ledger->answer, PAUSE);
    while (atomic_load(&ledger->command) == PAUSE)
        nap_us(50);
    atomic_store(&ledger->answer, RUN);
}

static void live(struct actor *actor)
{
    struct ledger *ledger = actor->ledger;
    int command;
    while ((command = atomic_load(&ledger->command)) != QUIT) {
        if (command == PAUSE) {
            obey_pause(actor);
            continue;
        }
        uint64_t choice = below(&actor->random, 64);
        if (!atomic_load(&ledger->attached))
            attach(actor, survivor_timeout_ns);
        else if (choice == 0)
            detach(actor, survivor_timeout_ns);
        else if (choice < 6)
            lock_and_unlock(actor, survivor_timeout_ns);
        else if (choice < 10)
            edit(actor, survivor_timeout_ns);
        else if (choice < 16)
            look(actor);
        else
            account(actor, survivor_timeout_ns);
        if (choice % 2 == 0)
            nap_us(below(&actor->random, 200));
    }
    while (atomic_load(&ledger->attached))
        detach(actor, survivor_timeout_ns);
    hr_free(actor->region);
}

static bool await_answer(struct scene *scene, uint32_t number, int answer, const char *what)
{
    struct ledger *ledger = &scene->shared->ledgers[number];
    uint64_t deadline = now_ns() + 10 * ONE_SECOND;
    while (atomic_load(&ledger->answer) != answer || !atomic_load(&ledger->attached)) {
        if (now_ns() > deadline)
            return scene_fail(scene, "survivor %d does not %s within 10 s", ledger->pid, what);
        nap_us(30);
    }
    return true;
}

void start_live(struct scene *scene, uint32_t number)
{
    struct ledger *ledger = &scene->shared->ledgers[number];
    memset(ledger, 0, sizeof *ledger);
    next_random(&scene->random);
    pid_t pid = fork();
    NEED(pid >= 0);
    if (pid == 0) {
        struct actor actor;
        become(&actor, scene, ledger);
        live(&actor);
        _exit(0);
    }
    await_answer(scene, number, RUN, "attach");
}

void stop_live(struct scene *scene, uint32_t number)
{
    struct ledger *ledger = &scene->shared->ledgers[number];
    pid_t pid = atomic_load(&ledger->pid);
    if (pid == 0)
        return;
    atomic_store(&ledger->command, QUIT);
    uint64_t deadline = now_ns() + 2 * ONE_SECOND;
    while (waitpid(pid, NULL, WNOHANG) == 0) {
        if (now_ns() > deadline)
            kill(pid, SIGKILL);
        nap_us(100);
    }
    atomic_store(&ledger->pid, 0);
}

bool pause_one(struct scene *scene, uint32_t number)
{
    atomic_store(&scene->shared->ledgers[number].command, PAUSE);
    return await_answer(scene, number, PAUSE, "pause");
}

bool pause_survivors(struct scene *scene)
{
    bool all = true;
    for (uint32_t i = 0; i < LIVE; i++)
        atomic_store(&scene->shared->ledgers[i].command, PAUSE);
    for (uint32_t i = 0; i < LIVE && all; i++)
        all = atomic_load(&scene->shared->ledgers[i].pid) == 0 || pause_one(scene, i);
    return all;
}

void resume_survivors(struct scene *scene)
{
    for (uint32_t i = 0; i < LIVE; i++)
        atomic_store(&scene->shared->ledgers[i].command, RUN);
}

bool await_progress(struct scene *scene)
{
    uint64_t before[LIVE];
    uint64_t deadline = now_ns() + 5 * ONE_SECOND;
    for (uint32_t i = 0; i < LIVE; i++)
        before[i] = atomic_load(&scene->shared->ledgers[i].done);
    for (uint32_t i = 0; i < LIVE; i++) {
        const struct ledger *ledger = &scene->shared->ledgers[i];
        while (atomic_load(&ledger->pid) != 0 && atomic_load(&ledger->done) < before[i] + 2) {
            if (now_ns() > deadline)
                return scene_fail(scene, "survivor %d cannot charge any more", ledger->pid);
            nap_us(30);
        }
    }
    return true;
}

/* ---- Those that die ---------------------------------------------------------- */

static bool names_a_corpse(const struct scene *scene, pid_t pid)
{
    for (uint32_t i = LIVE; i < atomic_load(&scene->shared->count); i++) {
        if (atomic_load(&scene->shared->ledgers[i].pid) == pid)
            return true;
    }
    return false;
}

static struct ledger *new_ledger(struct scene *scene)
{
    uint32_t number = atomic_fetch_add(&scene->shared->count, 1);
    NEED(number < LEDGERS);
    return &scene->shared->ledgers[number];
}

/* A child that becomes an actor and dies by itself, of this process or of a victim. */
static void let_die(struct actor *parent, int kill_at, bool attached)
{
    struct scene *scene = parent->scene;
    if (atomic_load(&scene->shared->count) >= LEDGERS - 1)
        return;
    next_random(&scene->random);
    pid_t pid = fork();
    if (pid == 0) {
        hr_testpoint_kill_at = NOWHERE;
        /* A name used again would take the corpse's slot, as it should, and its ledger. */
        if (names_a_corpse(scene, getpid()))
            _exit(0);
        struct actor actor;
        become(&actor, scene, new_ledger(scene));
        if (attached) {
            attach(&actor, victim_timeout_ns);
            for (int i = 0; i < 4 && atomic_load(&actor.ledger->attached); i++)
                account(&actor, victim_timeout_ns);
            raise(SIGKILL);
        }
        hr_testpoint_kill_on = 1;
        hr_testpoint_kill_at = kill_at;
        for (;;)
            lock_and_unlock(&actor, victim_timeout_ns);
    }
    if (pid > 0)
        waitpid(pid, NULL, 0);
}

static void reap(struct actor *actor)
{
    static struct hr_reap reaped[HR_SLOTS];
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
    int code = hr_reap(actor->region, NULL, pid == 0 ? NULL : &pid, pid != 0, 0, victim_timeout_ns,
                       reaped);
    EXPECT(code, HR_ENOPROCESS);
    end(actor);
}

static void recover(struct actor *actor)
{
    begin(actor, OTHERWISE);
    int code = hr_recover_lock(actor->region, NULL, 4 * actor->scene->ownerless_ns);
    EXPECT(code, HR_ENOTRECOVERABLE);
    end(actor);
}

static void repair(struct actor *actor)
{
    static int32_t pids[HR_SLOTS];
    begin(actor, OTHERWISE);
    int code = hr_repair_slots(actor->region, NULL, 0, victim_timeout_ns, pids);
    EXPECT(code, HR_OK);
    end(actor);
}

static void attach_or_detach(struct actor *actor)
{
    if (!atomic_load(&actor->ledger->attached)) {
        attach(actor, victim_timeout_ns);
        return;
    }
    /* Time for a survivor to attach behind it: then a removal has something to move. */
    if (below(&actor->random, 2) == 0)
        nap_us(below(&actor->random, 2000));
    detach(actor, victim_timeout_ns);
}

static void do_anything(struct actor *actor)
{
    uint64_t choice = below(&actor->random, 200);
    if (choice < 40)
        lock_and_unlock(actor, victim_timeout_ns);
    else if (choice < 70)
        edit(actor, victim_timeout_ns);
    else if (choice < 72)
        recover(actor);
    else if (choice < 74)
        repair(actor);
    else if (choice < 78)
        reap(actor);
    else if (choice < 80)
        let_die(actor, NOWHERE, true);
    else if (choice < 100 || !atomic_load(&actor->ledger->attached))
        attach_or_detach(actor);
    else
        account(actor, victim_timeout_ns);
}

static void act(struct actor *actor, enum script script)
{
    bool attached = atomic_load(&actor->ledger->attached);
    switch (script) {
    case LOCKS:
        lock_and_unlock(actor, victim_timeout_ns);
        break;
    case ATTACHES:
        attach_or_detach(actor);
        break;
    case ACCOUNTS:
    case DIES_ATTACHED:
        if (attached)
            account(actor, victim_timeout_ns);
        else
            attach(actor, victim_timeout_ns);
        break;
    case REAPS:
        reap(actor);
        break;
    case RECOVERS:
    case RECOVERS_ONCE:
        recover(actor);
        break;
    case REPAIRS_ONCE:
        repair(actor);
        break;
    case ANYTHING:
        do_anything(actor);
        break;
    }
}

/* Others die for these first. */
static void prepare(struct actor *actor, enum script script)
{
    if (script == REAPS) {
        let_die(actor, NOWHERE, true);
        let_die(actor, NOWHERE, true);
        nap_us(below(&actor->random, 2000));
    } else if (script == RECOVERS) {
        let_die(actor,
                below(&actor->random, 4) == 0 ? HR_AT_LOCK_SEM_TAKEN : HR_AT_LOCK_OWNER_STORED,
                false);
    }
}

static void die(struct actor *actor, enum script script, int kill_at, int kill_on)
{
    /* Some victims of each script are processes of the region, some only look in. */
    if (script <= RECOVERS && below(&actor->random, 2) == 0)
        attach(actor, victim_timeout_ns);
    if (kill_at != NOWHERE)
        hr_testpoint_kill_on = actor->ledger->reached[kill_at] + kill_on;
    hr_testpoint_kill_at = kill_at;
    for (int acts = 0;; acts++) {
        prepare(actor, script);
        if (script == DIES_ATTACHED && acts == 5)
            raise(SIGKILL);
        act(actor, script);
    }
}

pid_t start_victim(struct scene *scene, enum script script, int kill_at, int kill_on,
                   struct ledger **ledger)
{
    struct ledger *own = new_ledger(scene);
    *ledger = own;
    for (;;) {
        memset(own, 0, sizeof *own);
        next_random(&scene->random);
        pid_t pid = fork();
        NEED(pid >= 0);
        if (pid == 0) {
            if (names_a_corpse(scene, getpid()))
                _exit(0);
            setpgid(0, 0);
            struct actor actor;
            become(&actor, scene, own);
            die(&actor, script, kill_at, kill_on);
        }
        setpgid(pid, pid);
        if (!names_a_corpse(scene, pid) || atomic_load(&own->pid) == pid)
            return pid;
        waitpid(pid, NULL, 0);
    }
}

bool await_death(struct scene *scene, pid_t pid, struct ledger *ledger, uint64_t patience_ns,
                 struct death *death)
{
    *death = (struct death){.pid = pid, .ledger = ledger};
    uint64_t deadline = now_ns() + patience_ns;
    bool in_time = true;
    while (waitpid(pid, &death->status, WNOHANG) == 0) {
        if (now_ns() > deadline) {
            in_time = false;
            kill(-pid, SIGKILL);
            waitpid(pid, &death->status, 0);
            break;
        }
        nap_us(20);
    }
    /* Its children, who are this process's now. */
    kill(-pid, SIGKILL);
    while (waitpid(-pid, NULL, 0) > 0 || errno == EINTR)
        ;
    death->at_ns = now_ns();
    if (ledger->trouble != 0)
        return scene_fail(scene, "a victim's call returned %d (crash_processes.c:%d)",
                          ledger->trouble, ledger->trouble_line);
    if (!in_time)
        scene->failure[0] = '\0';
    return in_time;
}

struct ledger *make_corpse(struct scene *scene)
{
    struct ledger *ledger;
    struct death death;
    pid_t pid = start_victim(scene, DIES_ATTACHED, NOWHERE, 1, &ledger);
    if (await_death(scene, pid, ledger, 5 * ONE_SECOND, &death) && atomic_load(&ledger->attached))
        return ledger;
    scene_fail(scene, "a corpse could not be made");
    return NULL;
}

/* ---- The scene --------------------------------------------------------------- */

void scene_start(struct scene *scene, uint32_t layout, bool crowded)
{
    region_file_make(&scene->file, layout);
    scene->layout = scene->file.layout;
    scene->crowded = crowded;
    scene->failure[0] = '\0';
    memset(scene->shared, 0, sizeof *scene->shared);
    atomic_store(&scene->shared->count, LIVE);
    NEED(hr_open(scene->file.path, HR_WRITE, HR_LAYOUTS, &scene->doctor) == (int)layout);
    for (uint32_t i = 0; crowded && i < SURVIVORS; i++)
        start_live(scene, i);
}

void scene_stop(struct scene *scene)
{
    for (uint32_t i = 0; i < LIVE; i++)
        stop_live(scene, i);
    hr_free(scene->doctor);
    scene->doctor = NULL;
    region_file_remove(&scene->file);
}
