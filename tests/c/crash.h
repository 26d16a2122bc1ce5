/*
 * The crash test: what its processes share.
 *
 * One process, the *doctor*, directs.  *Survivors* are attached and go on charging
 * and releasing all the time.  A *victim* is killed.  *Corpses* are processes
 * that died attached.  Each keeps a ledger of what it holds and is doing just
 * now in memory that outlives it.
 */
#ifndef CRASH_H
#define CRASH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "check.h"
#include "region.h"
#include "region_file.h"
#include "testpoint.h"

enum { DEVICES = 2, KINDS = 3, SURVIVORS = 3, GUEST = SURVIVORS, LIVE = SURVIVORS + 1 };
enum { LEDGERS = 64, NOWHERE = -1 };

/* What nobody's share of one device and kind ever passes: far below the limits. */
#define MOST_BYTES (UINT64_C(1) << 24)
/* So long an unsigned lock is watched, in place of 10 s. */
#define OWNERLESS_NS (ONE_SECOND / 10)

enum doing { NOTHING, ATTACHING, CHARGING, RELEASING, DETACHING, REAPING, OTHERWISE };
enum command { RUN, PAUSE, QUIT };

struct ledger {
    _Atomic int32_t pid; /* 0: unused */
    atomic_int attached;
    _Atomic uint64_t held[DEVICES][KINDS]; /* bytes */
    atomic_int doing;                      /* enum doing; with the next three */
    _Atomic uint32_t device, kind;
    _Atomic uint64_t bytes;
    atomic_int has_reaped;      /* once this process has begun to */
    atomic_int is_orphan;       /* its slot was moved, which it notices when it charges next */
    _Atomic uint64_t done;      /* charges and releases that succeeded */
    atomic_int command, answer; /* enum command: to a survivor, and what it obeys */
    atomic_int trouble;         /* a code that no call should have returned */
    atomic_int trouble_line;
    int reached[HR_TESTPOINTS_COUNT];
    /* The doctor's, of the dead: what stood in the file when last looked at. */
    bool frozen;
    uint64_t frozen_total[DEVICES], frozen_held[DEVICES][KINDS];
};

struct shared {
    /* Survivors first, the guest, then the victim and the corpses. */
    struct ledger ledgers[LEDGERS];
    _Atomic uint32_t count;
    atomic_int stay; /* survivors do not leave, so that nobody comes behind the guest */
};

struct scene {
    struct region_file file;
    const struct hr_layout *layout;
    hr_region *doctor;
    struct shared *shared;
    bool crowded; /* with survivors */
    uint64_t random;
    pid_t working;     /* who accounts in the orphan's slot, or 0 */
    bool missed;       /* the victim of this round did not come to its point */
    char failure[400]; /* the first thing that went wrong in this round, or "" */
};

/* testpoint.h's counters, moved to where the doctor can read them after a death. */
extern int (*crash_reached)[HR_TESTPOINTS_COUNT];

/* ---- crash_scene.c ---- */

uint64_t below(uint64_t *state, uint64_t bound);

void scene_start(struct scene *scene, uint32_t layout, bool crowded);
void scene_stop(struct scene *scene);
bool scene_fail(struct scene *scene, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool scene_has_seqlock(const struct scene *scene);

bool prepare_value(struct scene *scene);
/* All of them are attached, and none leaves, so that nobody comes behind who attaches next. */
bool keep_survivors(struct scene *scene);
/*
 * A guest that holds something and keeps still until all is checked: the survivors
 * put their slots right themselves as they go on, as a libvgpu would not.
 */
bool prepare_still_guest(struct scene *scene, bool behind_corpse);
/* Where the guest will not notice, it may have charged since.  Until stop_working() its slot is
 * seen moving. */
bool prepare_orphan(struct scene *scene, bool guest_notices);
void stop_working(struct scene *scene);
/* What a newcomer of libvgpu does: the emptied slots at the end go. */
void remove_emptied_end(struct scene *scene);
void libvgpu_takes_lock_away(struct scene *scene);

/* ---- crash_actor.c: one process, and what it can do; each of these keeps the ledger ---- */

struct actor {
    hr_region *region;
    struct ledger *ledger;
    struct scene *scene;
    uint64_t random;
    uint64_t timeout_ns; /* of each call */
};

/* Of a process just forked: a handle of its own.  `ledger` is clean. */
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

/* ---- crash_survivors.c: survivors by number, or all of them ---- */

void start_live(struct scene *scene, uint32_t number);
void stop_live(struct scene *scene, uint32_t number);
bool pause_one(struct scene *scene, uint32_t number);
bool pause_survivors(struct scene *scene);
void resume_survivors(struct scene *scene);
/* Each of them charges or releases again. */
bool await_progress(struct scene *scene);

/* ---- crash_victims.c ---- */

enum script {
    LOCKS,         /* lock and unlock */
    TAKES_OVER,    /* locks from those that it lets die in them */
    ATTACHES,      /* attach and detach */
    ACCOUNTS,      /* charge and release */
    REAPS,         /* corpses that it makes itself */
    RECOVERS,      /* locks whose holders it lets die */
    ENDS_SEQLOCKS, /* of processes that died in them, before such a lock is free */
    LOCKS_ONCE,    /* not attached */
    REAPS_ONCE,    /* what the doctor has prepared, as the next two */
    RECOVERS_ONCE,
    REPAIRS_ONCE,
    ANYTHING,
    DIES_ATTACHED
};

struct death {
    pid_t pid;
    struct ledger *ledger;
    int status;
    uint64_t at_ns;
};

/* It dies at the point `kill_at`, reached for the `kill_on`-th time, or when it is killed. */
pid_t start_victim(struct scene *scene, enum script script, int kill_at, int kill_on,
                   struct ledger **ledger);
/* Wait until it and all its children are dead; kill them after `patience_ns`. */
bool await_death(struct scene *scene, pid_t pid, struct ledger *ledger, uint64_t patience_ns,
                 struct death *death);
/* A process that died attached, or NULL. */
struct ledger *make_corpse(struct scene *scene);

/* ---- crash_checks.c ---- */

bool check_lock_is_free(struct scene *scene);
/* With the survivors paused: everybody's slot holds what their ledgers say. */
bool check_slots(struct scene *scene, const struct ledger *victim);
/* And with the dead reaped. */
bool check_reaped(struct scene *scene);

#endif
