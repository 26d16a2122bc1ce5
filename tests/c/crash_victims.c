/* The processes of the crash test that die. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "crash.h"

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
        actor_become(&actor, scene, new_ledger(scene), ONE_SECOND / 5);
        if (attached) {
            actor_attach(&actor);
            for (int i = 0; i < 4 && atomic_load(&actor.ledger->attached); i++)
                actor_account(&actor);
            if (kill_at == NOWHERE)
                raise(SIGKILL);
        }
        hr_testpoint_kill_on = kill_at == NOWHERE ? 1 : actor.ledger->reached[kill_at] + 1;
        hr_testpoint_kill_at = kill_at;
        for (;;) {
            if (kill_at == HR_AT_ACCOUNT_SEQLOCK_ODD)
                actor_account(&actor);
            else
                actor_lock_and_unlock(&actor);
        }
    }
    if (pid > 0)
        waitpid(pid, NULL, 0);
}

static void attach_or_detach(struct actor *actor)
{
    if (!atomic_load(&actor->ledger->attached)) {
        actor_attach(actor);
        return;
    }
    /* Time for a survivor to attach behind it: then a removal has something to move. */
    if (below(&actor->random, 2) == 0)
        nap_us(below(&actor->random, 2000));
    actor_detach(actor);
}

static void do_anything(struct actor *actor)
{
    uint64_t choice = below(&actor->random, 200);
    if (choice < 40)
        actor_lock_and_unlock(actor);
    else if (choice < 70)
        actor_edit(actor);
    else if (choice < 72)
        actor_recover(actor);
    else if (choice < 74)
        actor_repair(actor);
    else if (choice < 78)
        actor_reap(actor);
    else if (choice < 80)
        let_die(actor, NOWHERE, true);
    else if (choice < 100 || !atomic_load(&actor->ledger->attached))
        attach_or_detach(actor);
    else
        actor_account(actor);
}

static void act(struct actor *actor, enum script script)
{
    bool attached = atomic_load(&actor->ledger->attached);
    switch (script) {
    case LOCKS:
    case LOCKS_ONCE:
    case TAKES_OVER:
        actor_lock_and_unlock(actor);
        break;
    case ATTACHES:
        attach_or_detach(actor);
        break;
    case ACCOUNTS:
    case DIES_ATTACHED:
        if (attached)
            actor_account(actor);
        else
            actor_attach(actor);
        break;
    case REAPS:
    case REAPS_ONCE:
        actor_reap(actor);
        break;
    case RECOVERS:
    case ENDS_SEQLOCKS:
    case RECOVERS_ONCE:
        actor_recover(actor);
        break;
    case REPAIRS_ONCE:
        actor_repair(actor);
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
    } else if (script == TAKES_OVER) {
        let_die(actor, HR_AT_LOCK_OWNER_STORED, false);
    } else if (script == RECOVERS || script == ENDS_SEQLOCKS) {
        if (script == ENDS_SEQLOCKS)
            let_die(actor, HR_AT_ACCOUNT_SEQLOCK_ODD, true);
        let_die(actor, HR_AT_LOCK_OWNER_STORED, true);
    }
}

static void die(struct actor *actor, enum script script, int kill_at, int kill_on)
{
    /* Some victims of each script are processes of the region, some only look in. */
    if (script <= RECOVERS && kill_at != HR_AT_ATTACH_COUNT_STORED && below(&actor->random, 2) == 0)
        actor_attach(actor);
    if (kill_at != NOWHERE)
        hr_testpoint_kill_on = actor->ledger->reached[kill_at] + kill_on;
    hr_testpoint_kill_at = kill_at;
    for (int acts = 0;; acts++) {
        prepare(actor, script);
        /* On a busy machine its first attempts to attach may come to nothing. */
        if (script == DIES_ATTACHED && acts >= 5 && atomic_load(&actor->ledger->attached))
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
            actor_become(&actor, scene, own, ONE_SECOND / 5);
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
        return scene_fail(scene, "a victim's call returned %d (crash_actor.c:%d)", ledger->trouble,
                          ledger->trouble_line);
    if (!in_time)
        scene->failure[0] = '\0';
    return in_time;
}

struct ledger *make_corpse(struct scene *scene)
{
    struct ledger *ledger;
    struct death death;
    pid_t pid = start_victim(scene, DIES_ATTACHED, NOWHERE, 1, &ledger);
    if (await_death(scene, pid, ledger, 20 * ONE_SECOND, &death) && atomic_load(&ledger->attached))
        return ledger;
    scene_fail(scene, "a corpse could not be made");
    return NULL;
}
