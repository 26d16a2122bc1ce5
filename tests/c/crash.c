/*
 * Processes killed at every point of every layout: what those who live make of it.
 *
 * Each round kills one process by SIGKILL, at a named point (testpoint.h) or at a
 * random moment, while survivors charge and release.  Then the lock has to be free
 * again within a bounded time, nobody's slot lost or doubled, the sums what the
 * survivors hold and the dead held, and, once the dead are reaped, what the
 * survivors hold.
 */
#define _GNU_SOURCE
#include "crash.h"

#include <getopt.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { REPORTS = 30 };

static struct {
    uint32_t rounds;
    uint64_t seed;
    int layout; /* -1: all */
} options = {.rounds = 20, .seed = 1, .layout = -1};

static uint32_t reports;

/* A row for each point, and one for kills at random moments. */
enum { AT_RANDOM = HR_TESTPOINTS_COUNT, ROWS };

static const char *const row_names[ROWS] = {
#define CRASH_NAME(name) #name,
    HR_TESTPOINT_NAMES(CRASH_NAME)
#undef CRASH_NAME
        [AT_RANDOM] = "random",
};

static struct {
    uint32_t kills, passed, failed;
} rows[ROWS];

/* ---- Which points there are, and how they are reached ------------------------- */

/* `from` to `to` in the order of testpoint.h. */
static bool is_between(int point, int from, int to)
{
    return point >= from && point <= to;
}

static bool is_reachable(int point, const struct hr_layout *layout)
{
    bool seqlock = layout->slot_seqlock != HR_ABSENT;
    switch (point) {
    case HR_AT_ACCOUNT_SEQLOCK_ODD:
    case HR_AT_ACCOUNT_SEQLOCK_EVEN:
    case HR_AT_SEQLOCK_ENDED:
    case HR_AT_REPAIR_COUNT_STORED:
    case HR_AT_REPAIR_COPY_CLEARED:
        return seqlock;
    default:
        return true;
    }
}

static bool is_removal(int point)
{
    return is_between(point, HR_AT_REMOVE_USAGE_CLEARED, HR_AT_REMOVE_COUNT_STORED);
}

static bool is_count(int point)
{
    return point == HR_AT_ATTACH_COUNT_STORED || point == HR_AT_REMOVE_COUNT_STORED;
}

static bool has_still_guest(const struct scene *scene)
{
    return atomic_load(&scene->shared->ledgers[GUEST].pid) != 0;
}

static enum script script_for(struct scene *scene, int point)
{
    bool other = below(&scene->random, 2) == 0;
    if (point == HR_AT_LOCK_NUMBERS_DRAWN)
        return LOCKS_ONCE;
    if (point == HR_AT_LOCK_TAKEN_OVER)
        return TAKES_OVER;
    if (point <= HR_AT_UNLOCK_WOKEN)
        return other || scene_has_seqlock(scene) ? LOCKS : ACCOUNTS;
    if (is_between(point, HR_AT_SLOT_BYTE_LOCKED, HR_AT_ATTACH_COUNT_STORED) ||
        point == HR_AT_REMOVE_COUNT_STORED)
        return ATTACHES;
    if (is_between(point, HR_AT_ACCOUNT_SEQLOCK_ODD, HR_AT_ACCOUNT_SEQLOCK_EVEN))
        return ACCOUNTS;
    if (is_removal(point) && has_still_guest(scene))
        return REAPS_ONCE;
    if (is_removal(point))
        return other && scene->crowded ? ATTACHES : REAPS;
    if (point == HR_AT_SEQLOCK_ENDED)
        return ENDS_SEQLOCKS;
    if (point == HR_AT_RECOVER_HOST_TAKEN || point == HR_AT_RECOVER_OWNER_TAKEN)
        return RECOVERS;
    return point == HR_AT_RECOVER_VALUE_STORED ? RECOVERS_ONCE : REPAIRS_ONCE;
}

/* Whether a death there leaves the lock as it was found. */
static bool leaves_lock_free(int point)
{
    return point == HR_AT_LOCK_NUMBERS_DRAWN || point == HR_AT_SLOT_BYTE_LOCKED ||
           point == HR_AT_UNLOCK_SEM_POSTED || point == HR_AT_UNLOCK_WOKEN;
}

/* Who comes after a death. */
enum agent { DOCTOR, GOES_ON, LIBVGPU, AGENTS };
static const char *const agent_names[] = {"recovery", "others go on", "libvgpu"};

/* ---- What has to be there before some of them ----------------------------------- */

static bool is_repair(int point)
{
    return is_between(point, HR_AT_REPAIR_COUNT_STORED, HR_AT_REPAIR_COPY_CLEARED);
}

static bool prepare(struct scene *scene, int point, enum agent agent)
{
    if (is_repair(point))
        return prepare_orphan(scene, agent == GOES_ON);
    if (scene->crowded && point == HR_AT_REMOVE_COUNT_STORED)
        return keep_survivors(scene);
    if (scene->crowded && below(&scene->random, 2) == 0 &&
        !prepare_still_guest(scene, is_removal(point) || point == AT_RANDOM))
        return false;
    /* Or they would be first. */
    if (point == HR_AT_LOCK_TAKEN_OVER || point == HR_AT_RECOVER_OWNER_TAKEN ||
        point == HR_AT_SEQLOCK_ENDED)
        return pause_survivors(scene);
    return point != HR_AT_RECOVER_VALUE_STORED || prepare_value(scene);
}

/* ---- Who comes afterwards -------------------------------------------------------- */

static bool free_the_lock(struct scene *scene, enum agent agent, const struct death *death,
                          int point)
{
    uint64_t bound = 4 * ONE_SECOND + 10 * OWNERLESS_NS;
    int code = HR_ETIMEOUT;
    if (agent == LIBVGPU)
        libvgpu_takes_lock_away(scene);
    if (agent == GOES_ON)
        code = hr_lock(scene->doctor, ONE_SECOND / 200, &call_error);
    while (code == HR_ETIMEOUT) {
        int recovered = recover_lock(scene->doctor, NULL, 4 * OWNERLESS_NS);
        if (recovered < 0 && recovered != HR_ENOTRECOVERABLE)
            return scene_fail(scene, "hr_recover_lock() returned %d", recovered);
        if (recovered > 0 && point != AT_RANDOM && leaves_lock_free(point))
            return scene_fail(scene, "recovery broke a lock that no dead process held (%d)",
                              recovered);
        code = hr_lock(scene->doctor, ONE_SECOND / 50, &call_error);
        if (now_ns() - death->at_ns > bound && code == HR_ETIMEOUT)
            return scene_fail(scene, "the lock is not free after %.1f s, hr_recover_lock(): %d",
                              (double)(now_ns() - death->at_ns) / 1e9, recovered);
    }
    if (code != HR_OK)
        return scene_fail(scene, "hr_lock() returned %d", code);
    code = hr_unlock(scene->doctor, &call_error);
    return code == HR_OK || scene_fail(scene, "hr_unlock() returned %d", code);
}

/* Where moves have been torn apart: by us, or by the live process itself as it goes on. */
static bool repair(struct scene *scene, enum agent agent, int point)
{
    static struct hr_slot_result found[HR_SLOTS];
    if (is_repair(point) && agent == GOES_ON) {
        resume_survivors(scene);
        if (!await_progress(scene))
            return false;
    }
    if (!is_repair(point) && agent != LIBVGPU)
        return true;
    /* A process that did not get the processor while a repair looked is not seen at work. */
    bool is_left = true;
    for (int tries = 0; is_left && tries < 10; tries++) {
        int code = hr_repair_slots(scene->doctor, NULL, 0, ONE_SECOND, found, &call_error);
        if (code < 0)
            return scene_fail(scene, "hr_repair_slots() returned %d", code);
        is_left = false;
        for (int i = 0; i < code; i++)
            is_left = is_left || found[i].what == HR_SLOT_UNKNOWN;
    }
    return true;
}

/* ---- A round ----------------------------------------------------------------------- */

/* How often a script comes to a point in reasonable time. */
static uint64_t most_turns(enum script script)
{
    switch (script) {
    case LOCKS_ONCE:
    case REAPS_ONCE:
    case RECOVERS_ONCE:
    case REPAIRS_ONCE:
        return 1;
    case REAPS:
    case TAKES_OVER:
    case RECOVERS:
    case ENDS_SEQLOCKS:
        return 2;
    case ATTACHES:
        return 5;
    default:
        return 20;
    }
}

static bool kill_at_point(struct scene *scene, int point, struct death *death)
{
    enum script script = script_for(scene, point);
    /* Who comes back takes the slot that it has left. */
    uint64_t most = is_count(point) ? 1 : most_turns(script);
    int kill_on = 1 + (int)below(&scene->random, most);
    struct ledger *ledger;
    pid_t pid = start_victim(scene, script, point, kill_on, &ledger);
    if (!await_death(scene, pid, ledger, 20 * ONE_SECOND, death)) {
        scene->missed = true;
        return scene_fail(scene, "the point was reached %d times, not %d", ledger->reached[point],
                          kill_on);
    }
    if (!WIFSIGNALED(death->status) || WTERMSIG(death->status) != SIGKILL)
        return scene_fail(scene, "the victim ended with status %d", death->status);
    if (ledger->reached[point] < kill_on)
        return scene_fail(scene, "killed, but not at the point");
    return true;
}

static bool kill_at_random(struct scene *scene, struct death *death)
{
    /* Short ones mostly: a victim that has come to reaping and recovering is in /proc. */
    uint64_t us = below(&scene->random, below(&scene->random, 4) == 0 ? 40000 : 4000);
    bool at_work = below(&scene->random, 4) != 0;
    uint64_t deadline = now_ns() + 5 * ONE_SECOND;
    struct ledger *ledger;
    pid_t pid = start_victim(scene, ANYTHING, NOWHERE, 1, &ledger);
    while (at_work && atomic_load(&ledger->done) == 0 && now_ns() < deadline)
        sched_yield();
    nap_us(us);
    kill(pid, SIGKILL);
    if (!await_death(scene, pid, ledger, 5 * ONE_SECOND, death))
        return scene_fail(scene, "the victim outlived SIGKILL");
    if (!WIFSIGNALED(death->status) || WTERMSIG(death->status) != SIGKILL)
        return scene_fail(scene, "the victim ended with status %d", death->status);
    return true;
}

/* What cannot happen in a layout has not happened to anybody. */
static bool check_unreachable(struct scene *scene)
{
    for (uint32_t i = 0; i < atomic_load(&scene->shared->count); i++) {
        for (int point = 0; point < HR_TESTPOINTS_COUNT; point++) {
            if (scene->shared->ledgers[i].reached[point] != 0 &&
                !is_reachable(point, scene->layout))
                return scene_fail(scene, "%s was reached", row_names[point]);
        }
    }
    return true;
}

/* The dead are reaped, mostly: else they are counted on, unchanged, in the next round. */
static bool settle(struct scene *scene, bool reap)
{
    if (!reap && atomic_load(&scene->shared->count) < LEDGERS - 8)
        return true;
    if (!check_reaped(scene))
        return false;
    remove_emptied_end(scene);
    /* A victim's child may be killed before it writes its ledger. */
    memset(&scene->shared->ledgers[LIVE], 0, (LEDGERS - LIVE) * sizeof(struct ledger));
    atomic_store(&scene->shared->count, LIVE);
    return true;
}

static bool play_round(struct scene *scene, int point, enum agent agent)
{
    struct death death;
    if (!prepare(scene, point, agent))
        return false;
    bool killed =
        point == AT_RANDOM ? kill_at_random(scene, &death) : kill_at_point(scene, point, &death);
    if (!killed)
        return false;
    rows[point].kills++;
    if (!free_the_lock(scene, agent, &death, point) || !repair(scene, agent, point))
        return false;
    stop_working(scene);
    if (!pause_survivors(scene) || !check_lock_is_free(scene) ||
        !check_slots(scene, death.ledger) || !check_unreachable(scene))
        return false;
    if (!settle(scene, !scene->crowded || below(&scene->random, 4) != 0))
        return false;
    stop_live(scene, GUEST);
    atomic_store(&scene->shared->stay, 0);
    resume_survivors(scene);
    return await_progress(scene);
}

static void complain(const struct scene *scene, int point, enum agent agent)
{
    if (reports++ < REPORTS)
        fprintf(stderr, "FAILED %s, %s%s, then %s: %s\n", scene->layout->name, row_names[point],
                scene->crowded ? "" : ", alone", agent_names[agent], scene->failure);
}

/*
 * After a failure the next round gets a region and survivors of its own.  A victim whose search of
 * /proc ended early, on a busy machine, may find a slot to take where another finds none, and so
 * never come to its point: that round is played again.
 */
static void play_rounds(struct scene *scene, int point, uint32_t count)
{
    uint32_t again = 3;
    for (uint32_t i = 0; i < count; i++) {
        enum agent agent = below(&scene->random, AGENTS);
        scene->missed = false;
        if (play_round(scene, point, agent)) {
            rows[point].passed++;
            continue;
        }
        if (scene->missed && again > 0) {
            again--;
            i--;
        } else {
            rows[point].failed++;
            complain(scene, point, agent);
        }
        uint32_t layout = scene->layout->id;
        scene_stop(scene);
        scene_start(scene, layout, scene->crowded);
    }
}

static void play_layout(struct scene *scene, uint32_t layout, bool crowded)
{
    /* Nobody else there: signatures of another namespace, locks that nobody else waits for. */
    uint32_t rounds = crowded ? options.rounds : (options.rounds + 3) / 4;
    scene_start(scene, layout, crowded);
    for (int point = 0; point < HR_TESTPOINTS_COUNT; point++) {
        if (is_reachable(point, scene->layout) && (crowded || !is_repair(point)))
            play_rounds(scene, point, rounds);
    }
    play_rounds(scene, AT_RANDOM, rounds * 10);
    scene_stop(scene);
}

/* Whether everybody can be seen from here: only then does absence prove a death. */
static bool is_first_pid_namespace(void)
{
    char link[64] = "";
    return readlink("/proc/self/ns/pid", link, sizeof link - 1) > 0 &&
           strcmp(link, hr_initial_pid_namespace()) == 0;
}

/* ---- Options and all layouts -------------------------------------------------- */

static int layout_named(const char *name)
{
    for (int i = 0; i < HR_LAYOUTS; i++) {
        if (strcmp(name, hr_layouts[i].name) == 0)
            return i;
    }
    fprintf(stderr, "no such layout: %s\n", name);
    exit(2);
}

static void read_options(int argc, char **argv)
{
    static const struct option known[] = {{"rounds", required_argument, NULL, 'r'},
                                          {"seed", required_argument, NULL, 's'},
                                          {"layout", required_argument, NULL, 'l'},
                                          {NULL, 0, NULL, 0}};
    int option;
    while ((option = getopt_long(argc, argv, "", known, NULL)) != -1) {
        if (option == 'r')
            options.rounds = (uint32_t)strtoul(optarg, NULL, 10);
        else if (option == 's')
            options.seed = strtoull(optarg, NULL, 10);
        else if (option == 'l')
            options.layout = layout_named(optarg);
        else
            exit(2);
    }
}

static uint32_t report_rows(void)
{
    uint32_t kills = 0, passed = 0, failed = 0;
    printf("{\"points\": [");
    for (int i = 0; i < ROWS; i++) {
        kills += rows[i].kills;
        passed += rows[i].passed;
        failed += rows[i].failed;
        printf("%s{\"name\": \"%s\", \"kills\": %u, \"failed\": %u}", i == 0 ? "" : ", ",
               row_names[i], rows[i].kills, rows[i].failed);
    }
    printf("], \"kills\": %u, \"passed\": %u, \"failed\": %u}\n", kills, passed, failed);
    return failed;
}

int main(int argc, char **argv)
{
    read_options(argc, argv);
    /* A victim's children come to this process when it dies. */
    NEED(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
    static int reached[HR_TESTPOINTS_COUNT];
    crash_reached = &reached;
    hr_testpoint_ownerless_ns = OWNERLESS_NS;
    struct scene scene = {.random = options.seed};
    scene.shared = share_memory(sizeof *scene.shared);
    for (uint32_t layout = HR_V1_1; layout < HR_LAYOUTS; layout++) {
        if (options.layout >= 0 && options.layout != (int)layout)
            continue;
        /* Elsewhere the dead holder of an empty region might be somebody whom nobody here sees. */
        if (is_first_pid_namespace())
            play_layout(&scene, layout, false);
        play_layout(&scene, layout, true);
    }
    return report_rows() != 0;
}
