/*
 * How a process begins its stay in a region, which row each device has there, and how the stay
 * ends, by a core and a driver that do what is asked for here: `session_model`.  It ends the
 * program if something is wrong.
 */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../csrc/internal.h"
#include "../../csrc/preload/complaints.h"
#include "../../csrc/preload/cuda_functions.h"
#include "../../csrc/preload/forks.h"
#include "../../csrc/preload/session.h"
#include "../../csrc/preload/snapshots.h"
#include "../../csrc/preload/uuids.h"

#define MUST_SHOW "state %d; said \"%s\"", hr_open_session(), said
#include "must.h"

static char said[512];

enum { SPAN = 3, UUID_OF_DEVICE_0 = 0xa0 };
#define SECOND UINT64_C(1000000000)

/* ---- The core ------------------------------------------------------------------------- */

static char handles[2]; /* the second one is a child's */
static hr_region *const region = (hr_region *)(void *)&handles[0];
static const char *path;
static int open_code, attach_code, reason, opens, attaches, naps, ready_after, complaints;
static int recoveries, repaired_after;
static bool has_no_snapshot, is_second;
static uint64_t patience_ns[16], watched_ns[16];
static hr_region *freed;
static int *detached; /* shared with children */
static char uuids[SPAN][HR_UUID_BYTES];

void hr_guard_spaced_runs(void)
{
}

void hr_free(hr_region **held)
{
    freed = *held;
}

int hr_open(const char *of, uint32_t flags, uint32_t layout, uint64_t timeout_ns, hr_region **out,
            struct hr_error *error)
{
    (void)error;
    MUST(strcmp(of, path) == 0 && flags == HR_WRITE && layout == HR_LAYOUTS && timeout_ns == 0);
    opens++;
    *out = NULL;
    if (open_code < 0 && !(open_code == HR_ENOTREADY && naps >= ready_after))
        return open_code;
    *out = (hr_region *)(void *)&handles[is_second];
    return 5; /* a layout's number */
}

int hr_attach(hr_region *of, uint64_t timeout_ns, struct hr_error *error)
{
    MUST(of == (hr_region *)(void *)&handles[is_second]);
    *error = (struct hr_error){.code = attach_code, .reason = reason};
    patience_ns[attaches++] = timeout_ns;
    return attach_code == HR_ETIMEOUT && recoveries >= repaired_after ? HR_OK : attach_code;
}

int hr_recover_lock(hr_region *of, const char *proc, uint64_t watch_ns, struct hr_recovery *out,
                    struct hr_error *error)
{
    (void)error;
    MUST(of == region && proc == NULL && out != NULL);
    watched_ns[recoveries++] = watch_ns;
    return HR_ENOTRECOVERABLE;
}

int hr_detach(hr_region *of, uint64_t attachment, uint64_t timeout_ns, struct hr_error *error)
{
    (void)error;
    MUST(of == region && attachment == 0 && timeout_ns >= SECOND / 10 && timeout_ns <= 10 * SECOND);
    MUST(hr_open_session() == HR_SESSION_FREE && hr_current_holds() == 0);
    ++*detached;
    return HR_OK;
}

struct hr_snapshot *hr_new_snapshot(hr_region *of, int *code)
{
    *code = HR_ESYSTEM;
    MUST(of == (hr_region *)(void *)&handles[is_second]);
    size_t bytes = sizeof(struct hr_snapshot) + SPAN * sizeof(struct hr_device);
    struct hr_snapshot *snapshot = has_no_snapshot ? NULL : calloc(1, bytes);
    if (snapshot == NULL)
        return NULL;
    snapshot->span = SPAN;
    for (uint32_t row = 0; row < SPAN; row++)
        memcpy(((struct hr_device *)(void *)(snapshot + 1))[row].uuid, uuids[row],
               sizeof uuids[row]);
    return snapshot;
}

void hr_complain(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(said, sizeof said, format, arguments);
    va_end(arguments);
    complaints++;
}

const char *hr_code_text(int code)
{
    return code == HR_ECORRUPT ? "corrupt" : code == HR_ENOTFOUND ? "not found" : "a code";
}

int nanosleep(const struct timespec *time, struct timespec *left)
{
    (void)left;
    MUST(time->tv_sec == 0 && time->tv_nsec >= 1000000);
    if (++naps == 50)
        hr_holds &= ~(unsigned)HR_HOLD_SUSPENDED;
    return 0;
}

/* ---- The driver ----------------------------------------------------------------------- */

static bool is_not_initialised;
static int asked;

bool hr_uuid_of_device(CUdevice device, char *text)
{
    asked++;
    snprintf(text, HR_UUID_TEXT, "%02x000000-0000-0000-0000-00000000000f",
             (unsigned)(UUID_OF_DEVICE_0 + device));
    return !is_not_initialised;
}

/* ---- Beginnings ----------------------------------------------------------------------- */

/* As a child that was just forked: nothing has begun. */
static void begin(const char *region_path, const char *policy)
{
    hr_fork_session(HR_BEFORE_FORK);
    hr_fork_session(HR_IN_CHILD);
    path = region_path;
    if (path != NULL)
        setenv("CUDA_DEVICE_MEMORY_SHARED_CACHE", path, 1);
    else
        unsetenv("CUDA_DEVICE_MEMORY_SHARED_CACHE");
    if (policy != NULL)
        setenv("HAMIREGION_ON_ERROR", policy, 1);
    else
        unsetenv("HAMIREGION_ON_ERROR");
    open_code = attach_code = HR_OK;
    reason = HR_REASON_NONE;
    opens = attaches = naps = complaints = asked = recoveries = 0;
    ready_after = repaired_after = 1 << 30;
    has_no_snapshot = is_second = is_not_initialised = false;
    memset(uuids, 0, sizeof uuids);
    memset(said, 0, sizeof said);
}

static void check_beginning(void)
{
    begin("/region", NULL);
    MUST(hr_open_session() == HR_SESSION_OPEN && hr_open_session() == HR_SESSION_OPEN);
    MUST(opens == 1 && attaches == 0 && hr_session_region() == region);
    MUST(hr_attach_session() == HR_SESSION_ATTACHED);
    MUST(hr_attach_session() == HR_SESSION_ATTACHED && hr_open_session() == HR_SESSION_ATTACHED);
    MUST(opens == 1 && attaches == 1 && naps == 0 && recoveries == 0 && complaints == 0);
    MUST(hr_session_region() == region && patience_ns[0] >= SECOND / 10);
    begin("/region", NULL);
    MUST(hr_attach_session() == HR_SESSION_ATTACHED && opens == 1 && attaches == 1);
}

static const struct {
    const char *policy;
    enum hr_session_state state;
} policies[] = {
    {NULL, HR_SESSION_REFUSED},       {"", HR_SESSION_REFUSED},     {"refuse", HR_SESSION_REFUSED},
    {"open", HR_SESSION_FREE},        {"OPEN", HR_SESSION_REFUSED}, {"opens", HR_SESSION_REFUSED},
    {"anything", HR_SESSION_REFUSED},
};

static void check_failures(void)
{
    for (size_t at = 0; at < sizeof policies / sizeof *policies; at++) {
        const char *policy = policies[at].policy;
        enum hr_session_state state = policies[at].state;
        const char *effect = state == HR_SESSION_FREE ? "nothing is limited" : "are refused";
        /* No region is named. */
        for (int empty = 0; empty < 2; empty++) {
            begin(empty ? "" : NULL, policy);
            MUST(hr_open_session() == state && hr_attach_session() == state && opens == 0);
            MUST(hr_session_region() == NULL && complaints == 1 && attaches == 0);
            MUST(strstr(said, "names no region") != NULL && strstr(said, effect) != NULL);
        }
        /* It cannot be opened, or read. */
        begin("/other", policy);
        open_code = HR_ENOTFOUND;
        MUST(hr_open_session() == state && hr_attach_session() == state && opens == 1);
        MUST(complaints == 1 && naps == 0 && hr_session_region() == NULL);
        MUST(strstr(said, "/other") != NULL && strstr(said, "not found") != NULL);
        begin("/region", policy);
        has_no_snapshot = true;
        MUST(hr_open_session() == state && complaints == 1 && strstr(said, "corrupt") != NULL);
        /* Its slots are all taken. */
        begin("/region", policy);
        attach_code = HR_EFULL;
        MUST(hr_open_session() == HR_SESSION_OPEN && hr_attach_session() == state);
        MUST(hr_attach_session() == state && attaches == 1 && complaints == 1 && recoveries == 0);
        MUST(strstr(said, "a code") != NULL && strstr(said, effect) != NULL);
        /* Something here has attached already: what a live process of another namespace has is
         * told; libvgpu limits this one. */
        begin("/region", policy);
        attach_code = HR_EATTACHED;
        reason = HR_REASON_SAME_PID;
        MUST(hr_attach_session() == state && strstr(said, "another pid namespace") != NULL);
        begin("/region", policy);
        attach_code = HR_EATTACHED;
        reason = HR_REASON_FOREIGN_MAPPING;
        MUST(hr_attach_session() == HR_SESSION_FREE && strstr(said, "another pid") == NULL);
        MUST(strstr(said, "nothing is limited") != NULL);
        begin("/region", policy);
        attach_code = HR_EFULL;
        reason = HR_REASON_FOREIGN_MAPPING;
        MUST(hr_attach_session() == state);
    }
}

/* A region that a neighbour is just making is waited for, and a lock whose holder may be dead. */
static void check_waiting(void)
{
    begin("/region", NULL);
    open_code = HR_ENOTREADY;
    ready_after = 20;
    MUST(hr_open_session() == HR_SESSION_OPEN && naps == 20 && opens == 21);
    begin("/region", NULL);
    open_code = HR_ENOTREADY;
    MUST(hr_open_session() == HR_SESSION_REFUSED && naps >= 50 && naps <= 1000);
    MUST(opens == naps + 1);
    begin("/region", NULL);
    attach_code = HR_ETIMEOUT;
    repaired_after = 2;
    MUST(hr_attach_session() == HR_SESSION_ATTACHED && attaches == 3 && recoveries == 2);
    MUST(patience_ns[1] == 2 * patience_ns[0] && patience_ns[2] == 4 * patience_ns[0]);
    MUST(watched_ns[0] == 0 && watched_ns[1] == 0);
    begin("/region", NULL);
    attach_code = HR_ETIMEOUT;
    MUST(hr_attach_session() == HR_SESSION_REFUSED && recoveries == attaches - 1);
    MUST(attaches >= 4 && attaches <= 10 && patience_ns[attaches - 1] >= 5 * SECOND);
    /* By watching the holder for long only where it has not let go for as long. */
    for (int at = 0; at < recoveries; at++)
        MUST((watched_ns[at] != 0) == (at == recoveries - 1));
    MUST(watched_ns[recoveries - 1] >= 5 * SECOND);
}

/* ---- Rows ----------------------------------------------------------------------------- */

static void check_rows_by_uuid(void)
{
    begin("/region", NULL);
    MUST(hr_row_of_device(0) == HR_NO_ROW); /* nothing has begun */
    /* The case of letters means nothing; what stands before the first dash is not compared. */
    strcpy(uuids[2], "GPU-A0000000-0000-0000-0000-00000000000F");
    strcpy(uuids[0], "MIG-a1000000-0000-0000-0000-00000000000f");
    MUST(hr_open_session() == HR_SESSION_OPEN);
    is_not_initialised = true;
    MUST(hr_row_of_device(0) == HR_NO_ROW && asked == 1);
    is_not_initialised = false;
    MUST(hr_device_of_row(2) == -1);
    MUST(hr_row_of_device(0) == 2 && hr_row_of_device(1) == 0 && asked == 3);
    MUST(hr_row_of_device(2) == HR_NO_ROW && hr_row_of_device(63) == HR_NO_ROW);
    MUST(hr_row_of_device(-1) == HR_NO_ROW && hr_row_of_device(64) == HR_NO_ROW && asked == 5);
    /* Asked for once. */
    MUST(hr_row_of_device(0) == 2 && hr_row_of_device(1) == 0 && hr_row_of_device(2) == HR_NO_ROW);
    MUST(asked == 5);
    MUST(hr_device_of_row(2) == 0 && hr_device_of_row(0) == 1 && hr_device_of_row(1) == -1);
    /* Another region's rows are others. */
    begin("/region", NULL);
    strcpy(uuids[1], "GPU-a0000000-0000-0000-0000-00000000000f");
    MUST(hr_attach_session() == HR_SESSION_ATTACHED);
    MUST(hr_row_of_device(0) == 1 && hr_row_of_device(1) == HR_NO_ROW);
}

static void check_rows_by_order(void)
{
    begin("/region", NULL);
    MUST(hr_open_session() == HR_SESSION_OPEN && hr_device_of_row(0) == -1);
    for (int device = 0; device < HR_DEVICES; device++)
        MUST(hr_row_of_device(device) == device && hr_device_of_row(device) == device);
    MUST(hr_row_of_device(HR_DEVICES) == HR_NO_ROW && asked == 0);
    MUST(hr_row_of_device(-1) == HR_NO_ROW);
}

/* ---- Ends ----------------------------------------------------------------------------- */

static void check_losses(void)
{
    for (size_t at = 0; at < sizeof policies / sizeof *policies; at++) {
        const char *policy = policies[at].policy;
        bool is_refused = policy != NULL && strcmp(policy, "refuse") == 0;
        begin("/region", policy);
        MUST(hr_attach_session() == HR_SESSION_ATTACHED && hr_row_of_device(0) == 0);
        hr_holds = HR_HOLD_LIMITED | HR_HOLD_SUSPENDED;
        hr_lose_session(HR_ECORRUPT);
        MUST(hr_attach_session() == (is_refused ? HR_SESSION_REFUSED : HR_SESSION_FREE));
        MUST(complaints == 1 && strstr(said, "corrupt") != NULL && hr_current_holds() == 0);
        MUST(strstr(said, is_refused ? "are refused" : "nothing is limited") != NULL);
        MUST(hr_session_region() == NULL && hr_row_of_device(0) == HR_NO_ROW);
        hr_lose_session(HR_ECORRUPT);
        MUST(complaints == 1 && opens == 1);
    }
}

static void check_children(void)
{
    begin("/region", NULL);
    MUST(hr_attach_session() == HR_SESSION_ATTACHED && hr_row_of_device(0) == 0);
    unsigned before = hr_fork_count();
    hr_holds = HR_HOLD_LIMITED;
    hr_fork_session(HR_BEFORE_FORK);
    hr_fork_session(HR_IN_PARENT);
    MUST(hr_open_session() == HR_SESSION_ATTACHED && hr_fork_count() == before);
    MUST(hr_current_holds() == HR_HOLD_LIMITED);
    freed = NULL;
    for (int generation = 0; generation < 2; generation++) {
        hr_fork_session(HR_BEFORE_FORK);
        hr_fork_session(HR_IN_CHILD);
        MUST(hr_session_region() == NULL && hr_device_of_row(0) == -1);
        MUST(hr_fork_count() == before + 1 + (unsigned)generation);
        MUST(hr_current_holds() == HR_HOLD_UNPREPARED);
    }
    /* The parent's handle is given back by whoever opens one for itself. */
    is_second = true;
    MUST(hr_attach_session() == HR_SESSION_ATTACHED && freed == region && attaches == 2);
    MUST(hr_session_region() == (hr_region *)(void *)&handles[1]);
    hr_fork_session(HR_BEFORE_FORK);
    hr_fork_session(HR_IN_CHILD);
    freed = NULL;
    MUST(hr_open_session() == HR_SESSION_OPEN && freed == (hr_region *)(void *)&handles[1]);
}

static void check_suspension(void)
{
    begin("/region", NULL);
    hr_holds = HR_HOLD_LIMITED;
    hr_wait_while_suspended();
    MUST(naps == 0);
    hr_holds = HR_HOLD_LIMITED | HR_HOLD_SUSPENDED;
    hr_wait_while_suspended();
    MUST(naps == 50 && hr_holds == HR_HOLD_LIMITED);
}

/* A process that ends leaves the region if it is in it. */
static int detached_by_exit(bool is_attached, bool is_lost)
{
    int status, before = *detached;
    pid_t child = fork();
    if (child == 0) {
        begin("/region", NULL);
        hr_open_session();
        if (is_attached)
            hr_attach_session();
        if (is_lost)
            hr_lose_session(HR_ECORRUPT);
        hr_holds = HR_HOLD_LIMITED;
        exit(0);
    }
    MUST(waitpid(child, &status, 0) == child && status == 0);
    return *detached - before;
}

int main(void)
{
    detached =
        mmap(NULL, sizeof *detached, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(detached != MAP_FAILED);
    MUST(hr_current_holds() == HR_HOLD_UNPREPARED && hr_fork_count() == 0);
    check_beginning();
    check_failures();
    check_waiting();
    check_rows_by_uuid();
    check_rows_by_order();
    check_losses();
    check_children();
    check_suspension();
    MUST(detached_by_exit(true, false) == 1);
    MUST(detached_by_exit(false, false) == 0 && detached_by_exit(true, true) == 0);
    begin(NULL, NULL);
    return 0;
}
