/*
 * What the thread that looks around does, second by second, on a clock and in a region of its own:
 * `watcher_model`.  It ends the program if something is wrong.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../csrc/preload/charges.h"
#include "../../csrc/preload/context_memory.h"
#include "../../csrc/preload/forks.h"
#include "../../csrc/preload/pools.h"
#include "../../csrc/preload/session.h"
#include "../../csrc/preload/snapshots.h"
#include "../../csrc/preload/threads.h"
#include "../../csrc/preload/throttle.h"
#include "../../csrc/preload/watcher.h"

#define MUST_SHOW "%llu ms, holds %u", (unsigned long long)(now_ns / 1000000), (unsigned)hr_holds
#include "must.h"

static uint64_t now_ns;

#define MS UINT64_C(1000000)
enum { SECONDS = 20, DEAD = 3, LIVING = 4, FOREIGN = 5, LATER = 1 << 29 };

/* ---- The region ----------------------------------------------------------------------- */

_Atomic unsigned hr_holds;
static char handle_[1];
static hr_region *const handle = (hr_region *)(void *)handle_;
static bool is_gone, has_no_snapshot;
static int detail_code, limits_code, lost_code, lost, ended;
static struct {
    int32_t pid, status;
} slots[4];
static int slot_count;

hr_region *hr_session_region(void)
{
    return is_gone ? NULL : handle;
}

void hr_lose_session(int code)
{
    lost_code = code;
    lost++;
}

/* Exactly as large as it has to be. */
struct hr_snapshot *hr_new_snapshot(hr_region *region, int *code)
{
    *code = detail_code;
    MUST(region == handle);
    struct hr_snapshot shape = {.span = 1, .proc_num = slot_count};
    struct hr_snapshot *snapshot = has_no_snapshot ? NULL : calloc(1, hr_snapshot_bytes(&shape));
    if (snapshot == NULL)
        return NULL;
    *snapshot = shape;
    for (int at = 0; at < slot_count; at++) {
        struct hr_process *process =
            (struct hr_process *)(uintptr_t)hr_snapshot_process(snapshot, (uint32_t)at);
        process->pid = slots[at].pid;
        process->status = slots[at].status;
    }
    return snapshot;
}

static int looks, reaps, reaps_at_all, measures, rows_measured, settlements;
static uint64_t looked_ns;
static bool has_more;

int hr_look_at_limits(hr_region *region)
{
    MUST(region == handle && now_ns - looked_ns <= 500 * MS);
    looked_ns = now_ns;
    looks++;
    return limits_code;
}

void hr_reap_neighbours(hr_region *region, bool look_at_all)
{
    MUST(region == handle);
    reaps++;
    reaps_at_all += look_at_all;
}

void hr_measure_contexts(int row)
{
    measures += row == 0;
    rows_measured += row >= 0 && row < HR_DEVICES ? 1 << row : 1 << 30;
}

bool hr_settle_pools(void)
{
    settlements++;
    return has_more;
}

void hr_end_throttle(void)
{
    ended++;
}

int kill(pid_t pid, int number)
{
    MUST(number == 0 && pid > 0);
    errno = pid == FOREIGN ? EPERM : ESRCH;
    return pid == LIVING || pid == getpid() || pid == LATER ? 0 : -1;
}

/* ---- The thread, its clock, and what happens when ------------------------------------- */

static void *(*thread)(void *);
static int started, relaxed, rests, short_rests;
static bool cannot_start;
static void (*happens)(void); /* after each rest */
static uint64_t end_ns;

bool hr_start_thread(void *(*work)(void *))
{
    started++;
    thread = work;
    return !cannot_start;
}

int hr_relax_capture(void)
{
    relaxed++;
    return 7;
}

int nanosleep(const struct timespec *time, struct timespec *left)
{
    uint64_t ns = (uint64_t)time->tv_sec * 1000000000 + (uint64_t)time->tv_nsec;
    (void)left;
    MUST(time->tv_nsec < 1000000000 && ns >= 100 * MS && ns <= 500 * MS);
    MUST(rests > 0 || (looks == 0 && ns == 500 * MS));
    now_ns += ns;
    rests++;
    short_rests += ns == 100 * MS;
    if (happens != NULL)
        happens();
    if (now_ns >= end_ns)
        is_gone = true;
    return 0;
}

static void add_slot(int32_t pid, int32_t status)
{
    slots[slot_count].pid = pid;
    slots[slot_count++].status = status;
}

static void begin(void)
{
    hr_fork_watcher(HR_BEFORE_FORK);
    hr_fork_watcher(HR_IN_CHILD);
    is_gone = has_no_snapshot = has_more = cannot_start = false;
    detail_code = limits_code = HR_OK;
    looks = reaps = reaps_at_all = measures = rows_measured = settlements = 0;
    lost = ended = relaxed = rests = short_rests = started = slot_count = 0;
    hr_holds = 0;
    happens = NULL;
    now_ns = looked_ns = 0;
    end_ns = SECONDS * 1000 * MS;
    thread = NULL;
    hr_start_watcher();
    MUST(started == 1);
}

/* Some time of the thread, until the region is gone: then nobody waits any more. */
static void live(void)
{
    MUST(thread(NULL) == NULL && ended == 1 && relaxed == 1);
    MUST((hr_holds & HR_HOLD_SUSPENDED) == 0);
}

/* ---- Checks --------------------------------------------------------------------------- */

static void check_rounds(void)
{
    begin();
    add_slot(getpid(), 1);
    live();
    MUST(rests == 2 * SECONDS && short_rests == 0 && looks == rests - 1 && settlements == looks);
    MUST(measures == SECONDS - 1 && rows_measured == measures * ((1 << HR_DEVICES) - 1));
    MUST(reaps == 0 && lost == 0);
    /* While pools hold more than is in use, ten times a second. */
    begin();
    add_slot(getpid(), 1);
    has_more = true;
    live();
    MUST(short_rests == rests - 1 && looks == rests - 1 && measures == SECONDS - 1);
}

static void check_neighbours(void)
{
    static const struct {
        int32_t pids[3];
        bool is_first;
    } cases[] = {
        {{LATER, 0, 0}, true},    {{DEAD, 0, 0}, true},       {{LIVING, 0, 0}, false},
        {{FOREIGN, 0, 0}, false}, {{DEAD, 0, LIVING}, false}, {{-9, 0, 0}, true},
    };
    for (size_t at = 0; at < sizeof cases / sizeof *cases; at++) {
        begin();
        add_slot(getpid(), 1);
        for (int which = 0; which < 3; which++)
            add_slot(cases[at].pids[which], 1);
        live();
        /* Each fifth round is everybody's. */
        MUST(reaps == (cases[at].is_first ? SECONDS - 1 : (SECONDS - 1) / 5));
        MUST(reaps_at_all == (cases[at].is_first ? (SECONDS - 1) / 5 : 0));
    }
}

static void suspend(void)
{
    /* Noted with the next round, and resumed within a tenth. */
    if (now_ns == 2500 * MS)
        slots[1].status = 2;
    MUST(now_ns <= 3000 * MS || now_ns > 6200 * MS || (hr_holds & HR_HOLD_SUSPENDED) != 0);
    MUST(now_ns >= 2500 * MS || hr_holds == HR_HOLD_LIMITED);
    if (now_ns == 6200 * MS)
        slots[1].status = 1;
    MUST(now_ns <= 6300 * MS || now_ns > 8500 * MS || hr_holds == HR_HOLD_LIMITED);
    if (now_ns == 8500 * MS)
        slots[1].status = 2;
    /* Nobody could resume one whose slot was taken away. */
    if (now_ns == 10000 * MS)
        slots[1].pid = LATER;
    MUST(now_ns <= 10100 * MS || now_ns >= 14000 * MS || hr_holds == HR_HOLD_LIMITED);
    if (now_ns == 12000 * MS) {
        slots[1].pid = getpid();
        has_no_snapshot = true;
    }
    if (now_ns == 14000 * MS)
        has_no_snapshot = false;
}

static void check_suspension(void)
{
    begin();
    add_slot(LATER, 2);
    add_slot(getpid(), 1);
    hr_holds = HR_HOLD_LIMITED;
    happens = suspend;
    end_ns = 15000 * MS;
    live();
    MUST(hr_holds == HR_HOLD_LIMITED && lost == 0);
    MUST(short_rests >= 40 && short_rests <= 70);
}

static void check_losses(void)
{
    static const int codes[] = {HR_ECORRUPT, HR_ESYSTEM};
    for (size_t at = 0; at < sizeof codes / sizeof *codes; at++) {
        begin();
        has_no_snapshot = true;
        detail_code = codes[at];
        live();
        MUST(lost == (codes[at] == HR_ECORRUPT ? SECONDS - 1 : 0) && measures == 0);
        MUST(lost == 0 || lost_code == HR_ECORRUPT);
    }
    begin();
    add_slot(getpid(), 1);
    limits_code = HR_ESTALE;
    live();
    MUST(lost == looks && lost_code == HR_ESTALE);
}

static void check_starts(void)
{
    begin();
    hr_start_watcher();
    MUST(started == 1);
    hr_fork_watcher(HR_BEFORE_FORK);
    hr_fork_watcher(HR_IN_PARENT);
    hr_start_watcher();
    MUST(started == 1);
    hr_fork_watcher(HR_IN_CHILD);
    is_gone = true;
    hr_start_watcher();
    MUST(started == 1);
    is_gone = false;
    cannot_start = true;
    hr_start_watcher();
    hr_start_watcher();
    MUST(started == 3);
    cannot_start = false;
    hr_start_watcher();
    hr_start_watcher();
    MUST(started == 4);
}

/* As the program ends: a thread that runs for the first time asks nobody anything. */
static void run_late(void)
{
    MUST(thread(NULL) == NULL && relaxed == 0 && looks == 0 && ended == 1);
}

static void check_end(void)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        atexit(run_late);
        begin();
        exit(0);
    }
    MUST(waitpid(child, &status, 0) == child && status == 0);
}

int main(void)
{
    check_end();
    check_rounds();
    check_neighbours();
    check_suspension();
    check_losses();
    check_starts();
    return 0;
}
