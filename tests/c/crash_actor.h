/* One process of the crash test, and what it can do; each of these keeps the ledger. */
#ifndef CRASH_ACTOR_H
#define CRASH_ACTOR_H

#include "crash.h"

struct actor {
    hr_region *region;
    struct ledger *ledger;
    struct scene *scene;
    uint64_t random;
    uint64_t timeout_ns; /* of each call */
};

/* Of a process just forked: a handle of its own, and a clean ledger. */
void actor_become(struct actor *actor, struct scene *scene, struct ledger *ledger,
                  uint64_t timeout_ns);

void actor_attach(struct actor *actor);
void actor_detach(struct actor *actor);
/* Charge or release, on any device, of any kind. */
void actor_account(struct actor *actor);
void actor_lock_and_unlock(struct actor *actor);
/* Somebody's slot. */
void actor_edit(struct actor *actor);
/* A snapshot; what is settled has this process's slot as its ledger has it. */
void actor_look(struct actor *actor);
void actor_reap(struct actor *actor);
void actor_recover(struct actor *actor);
void actor_repair(struct actor *actor);

#endif
