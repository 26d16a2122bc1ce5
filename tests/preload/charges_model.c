/*
 * Charging, and the reaping of neighbours before a charge is refused, by a region that answers what
 * is asked for here and with real processes: `charges_model`.  It ends the program if something is
 * wrong.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../csrc/preload/charges.h"
#include "../../csrc/preload/forks.h"
#include "../../csrc/preload/session.h"
#include "../../csrc/preload/snapshots.h"

#define MUST_SHOW "calls %d, reaps %d, recoveries %d, lost %d", calls, reaps, recoveries, lost
#include "must.h"

#undef hr_charge
#undef hr_release
#undef hr_reap
#undef hr_recover_lock

enum { ROW = HR_DEVICES - 1, SPAN = 2, MOST = 8 };

/* ---- The session and the core --------------------------------------------------------- */

static char handle_[1];
static hr_region *const handle = (hr_region *)(void *)handle_;
static enum hr_session_state state, state_when_lost;
static int calls, reaps, recoveries, lost, lost_code, looks;
/* What the next calls of the region give; the last one goes on. */
static int codes[4], code_count, reap_codes[4], recovery_code;
static uint32_t kind_asked;
static uint64_t bytes_asked;
static char called; /* 'c'harge, count ('n') or 'r'elease */

static int32_t reaped_pids[MOST];
static uint32_t reaped_count[MOST];
static struct hr_slot_result results[MOST];

static struct {
    int32_t pid, status;
    uint64_t total[SPAN];
} slots[MOST];
static int slot_count;
static bool has_no_snapshot;

enum hr_session_state hr_open_session(void)
{
    return state;
}

enum hr_session_state hr_attach_session(void)
{
    if (state == HR_SESSION_OPEN)
        state = HR_SESSION_ATTACHED;
    return state;
}

hr_region *hr_session_region(void)
{
    return state == HR_SESSION_OPEN || state == HR_SESSION_ATTACHED ? handle : NULL;
}

void hr_lose_session(int code)
{
    lost++;
    lost_code = code;
    state = state_when_lost;
}

static int answer(char name, hr_region *region, uint32_t row, uint32_t kind, uint64_t bytes,
                  uint64_t timeout_ns)
{
    MUST(region == handle && row == ROW && timeout_ns == HR_CHARGE_NS);
    called = name;
    kind_asked = kind;
    bytes_asked = bytes;
    int code = codes[calls < code_count ? calls : code_count - 1];
    calls++;
    return code;
}

int hr_charge(hr_region *region, uint32_t row, uint32_t kind, uint64_t bytes, uint32_t flags,
              uint64_t timeout_ns, struct hr_error *error)
{
    (void)error;
    return answer(flags == HR_FORCE ? 'n' : 'c', region, row, kind, bytes, timeout_ns);
}

int hr_release(hr_region *region, uint32_t row, uint32_t kind, uint64_t bytes, uint64_t timeout_ns,
               struct hr_error *error)
{
    (void)error;
    return answer('r', region, row, kind, bytes, timeout_ns);
}

int hr_recover_lock(hr_region *region, const char *proc, uint64_t watch_ns, struct hr_recovery *out,
                    struct hr_error *error)
{
    (void)error;
    MUST(region == handle && proc == NULL && out != NULL);
    MUST((watch_ns > HR_CHARGE_NS) == (reaps == 0));
    recoveries++;
    return recovery_code;
}

int hr_reap(hr_region *region, const char *proc, const struct hr_stranger *strangers,
            uint32_t stranger_count, const int32_t *pids, uint32_t count, uint32_t dry_run,
            uint64_t timeout_ns, struct hr_slot_result *out, struct hr_error *error)
{
    (void)error;
    MUST(strangers == NULL && stranger_count == 0);
    MUST(region == handle && proc == NULL && dry_run == 0 && (pids != NULL) == (count != 0));
    MUST(timeout_ns > 100000000 && timeout_ns < HR_CHARGE_NS && reaps < MOST && count <= MOST);
    for (uint32_t at = 0; at < count; at++)
        reaped_pids[at] = pids[at];
    reaped_count[reaps] = count;
    int found = reap_codes[reaps];
    for (int at = 0; at < found; at++)
        out[at] = results[at];
    reaps++;
    errno = EDOM;
    return found;
}

/* Exactly as large as it has to be. */
struct hr_snapshot *hr_new_snapshot(hr_region *region, int *code)
{
    *code = HR_ESYSTEM;
    MUST(region == handle);
    struct hr_snapshot shape = {.span = SPAN, .proc_num = slot_count};
    struct hr_snapshot *snapshot = has_no_snapshot ? NULL : calloc(1, hr_snapshot_bytes(&shape));
    looks++;
    if (snapshot == NULL)
        return NULL;
    *snapshot = shape;
    for (int at = 0; at < slot_count; at++) {
        struct hr_process *process =
            (struct hr_process *)(uintptr_t)hr_snapshot_process(snapshot, (uint32_t)at);
        process->pid = slots[at].pid;
        process->status = slots[at].status;
        for (uint32_t row = 0; row < SPAN; row++)
            ((struct hr_usage *)(uintptr_t)hr_snapshot_usage(snapshot, (uint32_t)at, row))->total =
                slots[at].total[row];
    }
    return snapshot;
}

/* The time moves on by itself, by so much between two questions. */
static uint64_t now_ns = 1000, step_ns;

int clock_gettime(clockid_t clock, struct timespec *out)
{
    (void)clock;
    now_ns += step_ns;
    *out = (struct timespec){.tv_sec = (time_t)(now_ns / 1000000000),
                             .tv_nsec = (long)(now_ns % 1000000000)};
    return 0;
}

static void begin(int first, int second)
{
    hr_fork_charges(HR_IN_CHILD);
    state = HR_SESSION_ATTACHED;
    state_when_lost = HR_SESSION_FREE;
    calls = reaps = recoveries = lost = lost_code = slot_count = looks = 0;
    codes[0] = first;
    codes[1] = second;
    code_count = 2;
    recovery_code = HR_OK;
    has_no_snapshot = false;
    memset(reap_codes, 0, sizeof reap_codes);
    memset(reaped_count, 0, sizeof reaped_count);
    step_ns = 10000000000;
}

static uint64_t own_bytes(void)
{
    return hr_state_of_row(ROW).bytes;
}

static void add_slot(int32_t pid, uint64_t bytes)
{
    slots[slot_count].pid = pid;
    slots[slot_count].status = 1;
    slots[slot_count].total[0] = 0;
    slots[slot_count++].total[1] = bytes;
}

/* ---- Charges -------------------------------------------------------------------------- */

static void check_charges(void)
{
    begin(HR_OK, HR_OK);
    MUST(hr_take_bytes(ROW, HR_DATA, 10) == CUDA_SUCCESS && called == 'c' && own_bytes() == 10);
    MUST(kind_asked == HR_DATA && bytes_asked == 10);
    MUST(hr_take_bytes(ROW, HR_CONTEXT, 7) == CUDA_SUCCESS && kind_asked == HR_CONTEXT);
    MUST(own_bytes() == 10); /* without contexts */
    hr_count_bytes(ROW, HR_DATA, 5);
    MUST(called == 'n' && bytes_asked == 5 && own_bytes() == 15 && calls == 3);
    hr_give_back_bytes(ROW, HR_DATA, 4);
    MUST(called == 'r' && bytes_asked == 4 && own_bytes() == 11 && calls == 4);
    hr_give_back_bytes(ROW, HR_CONTEXT, 7);
    MUST(kind_asked == HR_CONTEXT && own_bytes() == 11 && calls == 5);
    /* Nothing is no reason to ask the region; nor is a device without a row. */
    hr_count_bytes(ROW, HR_DATA, 0);
    hr_give_back_bytes(ROW, HR_DATA, 0);
    hr_give_back_bytes(HR_NO_ROW, HR_DATA, 4);
    MUST(hr_take_bytes(HR_NO_ROW, HR_DATA, 4) == CUDA_SUCCESS && calls == 5);
    MUST(hr_take_bytes(ROW, HR_DATA, 0) == CUDA_SUCCESS && calls == 6);
    /* The first charge attaches. */
    begin(HR_OK, HR_OK);
    state = HR_SESSION_OPEN;
    MUST(hr_take_bytes(ROW, HR_DATA, 10) == CUDA_SUCCESS && state == HR_SESSION_ATTACHED);
    MUST(calls == 1 && lost == 0 && reaps == 0 && looks == 0);
    /* Without a region there is nothing to charge. */
    state = HR_SESSION_FREE;
    MUST(hr_take_bytes(ROW, HR_DATA, 10) == CUDA_SUCCESS && calls == 1);
    hr_give_back_bytes(ROW, HR_DATA, 10);
    state = HR_SESSION_REFUSED;
    MUST(hr_take_bytes(ROW, HR_DATA, 10) == CUDA_ERROR_NOT_PERMITTED && calls == 1);
    MUST(hr_take_bytes(HR_NO_ROW, HR_DATA, 10) == CUDA_ERROR_NOT_PERMITTED && own_bytes() == 10);
}

/* The lock of the region is not free, and may be a dead process's. */
static void check_timeouts(void)
{
    begin(HR_ETIMEOUT, HR_OK);
    MUST(hr_take_bytes(ROW, HR_DATA, 10) == CUDA_SUCCESS && calls == 2 && recoveries == 1);
    MUST(own_bytes() == 10 && reaps == 0 && lost == 0);
    calls = recoveries = 0;
    hr_give_back_bytes(ROW, HR_DATA, 10);
    MUST(calls == 2 && recoveries == 1 && own_bytes() == 0 && lost == 0);
    for (enum hr_session_state after = HR_SESSION_FREE; after <= HR_SESSION_REFUSED; after++) {
        CUresult wanted = after == HR_SESSION_REFUSED ? CUDA_ERROR_NOT_PERMITTED : CUDA_SUCCESS;
        for (int is_recovered = 0; is_recovered < 2; is_recovered++) {
            begin(HR_ETIMEOUT, HR_ETIMEOUT);
            state_when_lost = after;
            recovery_code = is_recovered ? HR_OK : HR_ENOTRECOVERABLE;
            MUST(hr_take_bytes(ROW, HR_DATA, 10) == wanted && lost_code == HR_ETIMEOUT);
            MUST(calls == 1 + is_recovered && own_bytes() == 0 && lost == 1);
            begin(HR_ETIMEOUT, HR_ETIMEOUT);
            recovery_code = is_recovered ? HR_OK : HR_ENOTRECOVERABLE;
            hr_give_back_bytes(ROW, HR_DATA, 10);
            MUST(calls == 1 + is_recovered && lost == 1 && lost_code == HR_ETIMEOUT);
        }
    }
}

static void check_failures(void)
{
    static const int quiet[] = {HR_EDETACHED, HR_EFORKED};
    for (size_t at = 0; at < sizeof quiet / sizeof *quiet; at++) {
        begin(quiet[at], HR_OK);
        MUST(hr_take_bytes(ROW, HR_DATA, 10) == CUDA_SUCCESS && lost == 0 && calls == 1);
        MUST(own_bytes() == 0);
        begin(quiet[at], HR_OK);
        hr_give_back_bytes(ROW, HR_DATA, 10);
        MUST(lost == 0 && calls == 1 && own_bytes() == 0 && recoveries == 0);
    }
    begin(HR_ECORRUPT, HR_OK);
    MUST(hr_take_bytes(ROW, HR_DATA, 10) == CUDA_SUCCESS && lost == 1 && calls == 1);
    MUST(recoveries == 0 && lost_code == HR_ECORRUPT && own_bytes() == 0);
    begin(HR_ECORRUPT, HR_OK);
    hr_give_back_bytes(ROW, HR_DATA, 10);
    MUST(lost == 1 && calls == 1 && recoveries == 0 && lost_code == HR_ECORRUPT);
    /* More than any limit. */
    begin(HR_EINVAL, HR_OK);
    MUST(hr_take_bytes(ROW, HR_DATA, 10) == CUDA_ERROR_OUT_OF_MEMORY && lost == 0 && calls == 1);
}

static void check_changes(void)
{
    begin(HR_OK, HR_OK);
    struct hr_row_state before = hr_state_of_row(ROW);
    MUST(before.bytes == 0 && before.begun == 0 && before.ended == 0);
    hr_begin_change(ROW);
    hr_begin_change(ROW);
    hr_end_change(ROW);
    hr_begin_change(HR_NO_ROW);
    hr_end_change(HR_NO_ROW);
    struct hr_row_state now = hr_state_of_row(ROW);
    MUST(now.begun == 2 && now.ended == 1);
    hr_begin_change(0);
    hr_end_change(0);
    MUST(hr_state_of_row(0).begun == 1 && hr_state_of_row(0).ended == 1);
    now = hr_state_of_row(ROW);
    MUST(now.begun == 2 && now.ended == 1);
    /* A child has made no change and charged nothing. */
    hr_take_bytes(ROW, HR_DATA, 10);
    hr_fork_charges(HR_BEFORE_FORK);
    hr_fork_charges(HR_IN_PARENT);
    MUST(own_bytes() == 10);
    hr_fork_charges(HR_IN_CHILD);
    MUST(own_bytes() == 0 && hr_state_of_row(ROW).begun == 0 && hr_state_of_row(ROW).ended == 0);
}

/* ---- Neighbours ----------------------------------------------------------------------- */

static pid_t dead, zombie, living;

static pid_t start(void)
{
    pid_t child = fork();
    if (child == 0) {
        pause();
        _exit(0);
    }
    MUST(child > 0);
    return child;
}

static void make_processes(void)
{
    dead = start();
    kill(dead, SIGKILL);
    MUST(waitpid(dead, NULL, 0) == dead);
    zombie = start();
    siginfo_t seen;
    kill(zombie, SIGKILL);
    MUST(waitid(P_PID, (id_t)zombie, &seen, WEXITED | WNOWAIT) == 0);
    living = start();
}

static void show_all(void)
{
    add_slot(getpid(), 5);
    add_slot(living, 5);
    add_slot(zombie, 5);
    add_slot(dead, 5);
}

static void check_reaping(void)
{
    /* Whoever came free, or did not: it is tried again. */
    for (int second = 0; second < 2; second++) {
        begin(HR_EMEMORYLIMIT, second == 0 ? HR_OK : HR_EMEMORYLIMIT);
        show_all();
        errno = ERANGE;
        CUresult wanted = second == 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
        MUST(hr_take_bytes(ROW, HR_DATA, 10) == wanted && calls == 2 && lost == 0);
        MUST(errno == ERANGE && recoveries == 0 && own_bytes() == (second == 0 ? 10 : 0));
        /* The dead first, and then whoever it is. */
        MUST(reaps == 2 && reaped_count[0] == 2 && reaped_count[1] == 0);
        MUST(reaped_pids[0] == zombie && reaped_pids[1] == dead);
    }
    /* All of /proc not more often than once a second. */
    step_ns = 100000000;
    reaps = calls = 0;
    MUST(hr_take_bytes(ROW, HR_DATA, 10) == CUDA_ERROR_OUT_OF_MEMORY && reaps == 1);
    step_ns = 1000000000;
    reaps = 0;
    MUST(hr_take_bytes(ROW, HR_DATA, 10) == CUDA_ERROR_OUT_OF_MEMORY && reaps == 2);
}

static void check_who_is_reaped(void)
{
    /* Nobody but this process: nobody is looked for. */
    begin(HR_OK, HR_OK);
    hr_reap_neighbours(handle, true);
    add_slot(getpid(), 5);
    hr_reap_neighbours(handle, true);
    has_no_snapshot = true;
    hr_reap_neighbours(handle, true);
    MUST(reaps == 0 && looks == 3);
    /* All of them live, and all have a pid. */
    begin(HR_OK, HR_OK);
    add_slot(getpid(), 5);
    add_slot(living, 5);
    add_slot(0, 5);
    add_slot(-7, 5);
    add_slot(1, 5);
    hr_reap_neighbours(handle, false);
    MUST(reaps == 0);
    hr_reap_neighbours(handle, true);
    MUST(reaps == 1 && reaped_count[0] == 0);
    /* A slot that holds nothing proves nothing worth the while; one in use or with bytes does. */
    begin(HR_OK, HR_OK);
    show_all();
    slots[3].total[1] = 0;
    slots[3].status = 0;
    hr_reap_neighbours(handle, false);
    MUST(reaps == 1 && reaped_count[0] == 1 && reaped_pids[0] == zombie);
    slots[3].status = 1;
    hr_reap_neighbours(handle, false);
    MUST(reaps == 2 && reaped_count[1] == 2);
    slots[3].status = 0;
    slots[3].total[0] = 1;
    hr_reap_neighbours(handle, false);
    MUST(reaps == 3 && reaped_count[2] == 2);
    slots[3].total[0] = 0;
    slots[3].total[SPAN - 1] = 1;
    hr_reap_neighbours(handle, false);
    MUST(reaps == 4 && reaped_count[3] == 2);
}

/* Where the dead have held memory, nobody else is looked for. */
static void check_what_came_free(void)
{
    static const struct {
        uint32_t what;
        uint64_t bytes;
        int reaps;
    } cases[] = {
        {HR_SLOT_DONE, 5, 1},
        {HR_SLOT_DONE, 0, 2},
        {HR_SLOT_ALIVE, 5, 2},
    };
    for (size_t at = 0; at < sizeof cases / sizeof *cases; at++) {
        begin(HR_OK, HR_OK);
        show_all();
        reap_codes[0] = 2;
        results[0] = (struct hr_slot_result){.pid = zombie, .what = HR_SLOT_ALIVE, .bytes = 1};
        results[1] =
            (struct hr_slot_result){.pid = dead, .what = cases[at].what, .bytes = cases[at].bytes};
        hr_reap_neighbours(handle, true);
        MUST(reaps == cases[at].reaps && recoveries == 0);
    }
    /* One of the dead may hold the lock. */
    begin(HR_OK, HR_OK);
    show_all();
    reaps = 0;
    reap_codes[0] = HR_ETIMEOUT;
    reap_codes[1] = 2;
    results[1] = (struct hr_slot_result){.pid = dead, .what = HR_SLOT_DONE, .bytes = 5};
    hr_reap_neighbours(handle, true);
    MUST(reaps == 2 && recoveries == 1 && reaped_count[1] == 2);
    begin(HR_OK, HR_OK);
    show_all();
    reap_codes[0] = reap_codes[1] = HR_ETIMEOUT;
    recovery_code = HR_ENOTRECOVERABLE;
    hr_reap_neighbours(handle, false);
    MUST(reaps == 1 && recoveries == 1);
    begin(HR_OK, HR_OK);
    show_all();
    reap_codes[0] = HR_ECORRUPT;
    hr_reap_neighbours(handle, false);
    MUST(reaps == 1 && recoveries == 0);
}

int main(void)
{
    make_processes();
    check_charges();
    check_timeouts();
    check_failures();
    check_changes();
    check_reaping();
    check_who_is_reaped();
    check_what_came_free();
    kill(living, SIGKILL);
    waitpid(living, NULL, 0);
    waitpid(zombie, NULL, 0);
    return 0;
}
