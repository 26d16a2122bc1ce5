#define _GNU_SOURCE
#include "session.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../internal.h"
#include "complain.h"
#include "driver.h"

#define FIRST_ATTACH_NS 200000000u
#define ATTACH_NS 6400000000u /* of the last try; all of them take twice as long */

enum policy {
    POLICY_DEFAULT, /* refuse at the start, open later on */
    POLICY_OPEN,
    POLICY_REFUSE
};

_Atomic unsigned hr_holds = HR_HOLD_UNPREPARED;

/* `state` is published by release stores under `beginning`, and read with acquire: what the
 * session is made of was stored before. */
static _Atomic enum hr_session_state state;
static hr_region *region;
static enum policy policy;
static pthread_mutex_t beginning = PTHREAD_MUTEX_INITIALIZER;

static void publish(enum hr_session_state now)
{
    atomic_store_explicit(&state, now, memory_order_release);
}

enum hr_session_state hr_session_state(void)
{
    return atomic_load_explicit(&state, memory_order_acquire);
}

/* ---- Forks ------------------------------------------------------------------------- */

static void before_fork(void)
{
    pthread_mutex_lock(&beginning);
}

static void after_fork_in_parent(void)
{
    pthread_mutex_unlock(&beginning);
}

static void after_fork_in_child(void)
{
    if (hr_session_state() != HR_SESSION_NONE) {
        atomic_store_explicit(&hr_holds, 0, memory_order_relaxed);
        publish(HR_SESSION_FORKED);
    }
    pthread_mutex_unlock(&beginning);
}

__attribute__((constructor)) static void watch_forks(void)
{
    /* Before ours, so that a fork takes `beginning` first and the core's lock after it, as the
     * region is opened; where this fails, opening it fails too. */
    hr_watch_forks();
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

/* ---- Beginning --------------------------------------------------------------------- */

static enum policy read_policy(void)
{
    const char *text = getenv(HR_POLICY_VARIABLE);
    if (text != NULL && strcmp(text, "open") == 0)
        return POLICY_OPEN;
    if (text != NULL && strcmp(text, "refuse") == 0)
        return POLICY_REFUSE;
    return POLICY_DEFAULT;
}

/* Why attaching has failed; under the lock of the session's beginning. */
static struct hr_error attach_error;

/* libvgpu in this process limits it already: both would count everything. */
static bool is_limited_by_another(int code)
{
    return code == HR_EATTACHED && attach_error.reason == HR_REASON_FOREIGN_MAPPING;
}

static const char *attach_text(int code)
{
    if (code == HR_EATTACHED && attach_error.reason == HR_REASON_SAME_PID)
        return "a live process of another pid namespace has this process's pid there";
    return hr_code_text(code);
}

/* Go on without a region; returns how, as messages say it. */
static const char *go_on(bool is_open)
{
    publish(is_open ? HR_SESSION_FREE : HR_SESSION_REFUSED);
    return is_open ? "nothing is limited" : "CUDA contexts and memory are refused";
}

static void fail_to_begin(int code, const char *path)
{
    const char *effect = go_on(policy == POLICY_OPEN || is_limited_by_another(code));
    if (path == NULL)
        hr_complain("%s names no region; %s", HR_REGION_VARIABLE, effect);
    else
        hr_complain("the region %s cannot be used: %s; %s", path, attach_text(code), effect);
}

/* Under `beginning`. */
static void begin(void)
{
    hr_guard_spaced_runs();
    policy = read_policy();
    const char *path = getenv(HR_REGION_VARIABLE);
    if (path != NULL && path[0] == '\0')
        path = NULL;
    int code = HR_ENOTFOUND;
    if (path != NULL)
        code = hr_open(path, HR_WRITE, HR_LAYOUTS, 0, &region, NULL);
    if (code >= 0 && !hr_read_rows(region))
        code = HR_ECORRUPT;
    if (code >= 0)
        publish(HR_SESSION_OPEN);
    else
        fail_to_begin(code, path);
}

enum hr_session_state hr_open_session(void)
{
    if (__builtin_expect(hr_session_state() == HR_SESSION_NONE, 0)) {
        pthread_mutex_lock(&beginning);
        if (hr_session_state() == HR_SESSION_NONE)
            begin();
        pthread_mutex_unlock(&beginning);
    }
    return hr_session_state();
}

/* Under `beginning`. */
static void attach(void)
{
    /* A lock whose holder was killed is repaired as soon as that is proved; a live holder is waited
     * for. */
    uint64_t patience_ns = FIRST_ATTACH_NS;
    int code = hr_attach(region, patience_ns, &attach_error);
    while (code == HR_ETIMEOUT && patience_ns < ATTACH_NS) {
        struct hr_recovery recovery = {0};
        patience_ns *= 2;
        uint64_t watch_ns = patience_ns < ATTACH_NS ? 0 : ATTACH_NS;
        hr_recover_lock(region, NULL, watch_ns, &recovery, NULL);
        code = hr_attach(region, patience_ns, &attach_error);
    }
    if (code == HR_OK)
        hr_count_refusals(region, 0, NULL);
    if (code == HR_OK)
        publish(HR_SESSION_ATTACHED);
    else
        fail_to_begin(code, getenv(HR_REGION_VARIABLE));
}

enum hr_session_state hr_attach_session(void)
{
    if (__builtin_expect(hr_open_session() == HR_SESSION_OPEN, 0)) {
        pthread_mutex_lock(&beginning);
        if (hr_session_state() == HR_SESSION_OPEN)
            attach();
        pthread_mutex_unlock(&beginning);
        hr_start_thread();
    }
    return hr_session_state();
}

hr_region *hr_session_region(void)
{
    enum hr_session_state now = hr_session_state();
    return now == HR_SESSION_OPEN || now == HR_SESSION_ATTACHED ? region : NULL;
}

/* ---- The own slot ------------------------------------------------------------------ */

#define EDIT_NS 100000000u /* how long an edit waits for the region's lock */

void hr_show_in_slot(hr_region *of, enum hr_slot_value value, int row, uint64_t to, uint64_t *shown)
{
    struct hr_slot_edit edit = {.value = value, .device = (uint32_t)row, .to = to};
    if (to != *shown && hr_edit_slot(of, getpid(), &edit, 1, 0, EDIT_NS, NULL) == HR_OK)
        *shown = to;
}

/* ---- The end ----------------------------------------------------------------------- */

void hr_lose_session(int code)
{
    pthread_mutex_lock(&beginning);
    if (hr_session_region() != NULL) {
        hr_complain("the region cannot be used any more (%d): %s; %s", code, hr_code_text(code),
                    go_on(policy != POLICY_REFUSE));
        atomic_store_explicit(&hr_holds, 0, memory_order_relaxed);
    }
    pthread_mutex_unlock(&beginning);
}

/* A process that ends by itself leaves no slot for others to reap.  What other threads still
 * allocate meanwhile is not counted: the driver frees it in a moment. */
__attribute__((destructor)) static void leave(void)
{
    const uint64_t patience_ns = 1000000000;
    if (hr_session_state() != HR_SESSION_ATTACHED)
        return;
    publish(HR_SESSION_FREE);
    atomic_store_explicit(&hr_holds, 0, memory_order_relaxed);
    hr_detach(region, 0, patience_ns, NULL);
}
