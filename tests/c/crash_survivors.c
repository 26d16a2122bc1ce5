/* The processes of the crash test that live, and how the doctor directs them. */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "crash.h"

static void obey_pause(struct actor *actor)
{
    struct ledger *ledger = actor->ledger;
    while (!atomic_load(&ledger->attached))
        actor_attach(actor);
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
            actor_attach(actor);
        else if (choice == 0 && !atomic_load(&actor->scene->shared->stay))
            actor_detach(actor);
        else if (choice < 6)
            actor_lock_and_unlock(actor);
        else if (choice < 10)
            actor_edit(actor);
        else if (choice < 16)
            actor_look(actor);
        else
            actor_account(actor);
        if (choice % 2 == 0)
            nap_us(below(&actor->random, 200));
    }
    while (atomic_load(&ledger->attached))
        actor_detach(actor);
    hr_free(&actor->region);
}

/* Attached, with something charged in its time, and as it was told. */
static bool await_answer(struct scene *scene, uint32_t number, int answer, const char *what)
{
    struct ledger *ledger = &scene->shared->ledgers[number];
    uint64_t deadline = now_ns() + 10 * ONE_SECOND;
    while (atomic_load(&ledger->answer) != answer || !atomic_load(&ledger->attached) ||
           atomic_load(&ledger->done) < 3) {
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
        actor_become(&actor, scene, ledger, ONE_SECOND / 50);
        live(&actor);
        _exit(0);
    }
    await_answer(scene, number, RUN, "start");
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
