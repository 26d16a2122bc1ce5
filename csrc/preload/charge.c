#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "../proc.h"
#include "memory.h"
#include "session.h"

#define REAP_NS 500000000u
#define RECOVERY_NS 12000000000u
#define SEARCH_NS 1000000000u

/* ---- Reaping ----------------------------------------------------------------------- */

/* Of slots that a snapshot has: emptied ones, which would cost a search of /proc with each refused
 * charge, are none of them. */
static uint32_t find_dead(const struct hr_snapshot *snapshot, int32_t *pids)
{
    uint32_t count = 0;
    int proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
    for (uint32_t number = 0; (int32_t)number < snapshot->process_count; number++) {
        int32_t pid = hr_snapshot_process(snapshot, number)->pid;
        if (pid <= 0 || pid == getpid() || count == HR_SLOTS)
            continue;
        /* A zombie has ended too: its memory is free, and its pid is not. */
        if (!hr_is_here(pid) || hr_read_start_time(proc, (uint32_t)pid) == HR_HAS_ENDED)
            pids[count++] = pid;
    }
    close(proc);
    return count;
}

/* True: some memory came free. */
static bool reap(hr_region *region, const int32_t *pids, uint32_t count)
{
    struct hr_slot_result *reaped = malloc(HR_SLOTS * sizeof *reaped);
    uint64_t bytes = 0;
    if (reaped == NULL)
        return false;
    int found = hr_reap(region, NULL, pids, count, 0, REAP_NS, reaped, NULL);
    if (found == HR_ETIMEOUT) {
        /* One of the dead may hold the lock. */
        struct hr_recovery recovery = {0};
        if (hr_recover_lock(region, NULL, 0, &recovery, NULL) == HR_OK)
            found = hr_reap(region, NULL, pids, count, 0, REAP_NS, reaped, NULL);
    }
    for (int at = 0; at < found; at++) {
        if (reaped[at].what == HR_SLOT_DONE)
            bytes += reaped[at].bytes;
    }
    free(reaped);
    return bytes != 0;
}

void hr_reap_neighbours(hr_region *region, bool looks_at_all)
{
    int saved_errno = errno;
    int code;
    struct hr_snapshot *snapshot = hr_new_snapshot(region, &code);
    bool is_alone = snapshot == NULL || snapshot->process_count <= 1;
    bool came_free = false;
    int32_t *pids = is_alone ? NULL : malloc(HR_SLOTS * sizeof *pids);
    if (pids != NULL) {
        uint32_t count = find_dead(snapshot, pids);
        /* hr_reap() proves it: a pid that is not here may be alive in another namespace. */
        if (count != 0)
            came_free = reap(region, pids, count);
        if (looks_at_all && !came_free)
            came_free = reap(region, NULL, 0);
    }
    free(pids);
    free(snapshot);
    errno = saved_errno;
}

/* A search of /proc is expensive, and a program that is refused may ask again at once. */
static bool may_look_at_all(void)
{
    static _Atomic uint64_t last_ns;
    uint64_t now = hr_clock_ns(CLOCK_MONOTONIC);
    uint64_t last = atomic_load_explicit(&last_ns, memory_order_relaxed);
    return (last == 0 || now - last > SEARCH_NS) &&
           atomic_compare_exchange_strong_explicit(&last_ns, &last, now, memory_order_relaxed,
                                                   memory_order_relaxed);
}

/* ---- Charging ---------------------------------------------------------------------- */

static bool recover_lock(hr_region *region)
{
    struct hr_recovery recovery = {0};
    return hr_recover_lock(region, NULL, RECOVERY_NS, &recovery, NULL) == HR_OK;
}

static int charge_slowly(hr_region *region, int row, enum hr_kind kind, uint64_t bytes,
                         uint32_t flags, int code)
{
    if (code == HR_EMEMORYLIMIT)
        /* Then try again in any case: another thread may just have reaped them. */
        hr_reap_neighbours(region, may_look_at_all());
    else if (code != HR_ETIMEOUT || !recover_lock(region))
        return code;
    return hr_charge(region, (uint32_t)row, kind, bytes, flags, HR_CHARGE_NS, NULL);
}

static CUresult end_charge(int code)
{
    switch (code) {
    case HR_OK:
        return CUDA_SUCCESS;
    case HR_EMEMORYLIMIT:
    case HR_EINVAL: /* more than any limit */
        return CUDA_ERROR_OUT_OF_MEMORY;
    default:
        /* Also where the process is about to end, and has left the region. */
        if (code != HR_EDETACHED)
            hr_lose_session(code);
        return hr_session_result(hr_session_state());
    }
}

static inline CUresult take(int row, enum hr_kind kind, uint64_t bytes, uint32_t flags)
{
    enum hr_session_state state = hr_attach_session();
    hr_region *region = hr_session_region();
    if (__builtin_expect(row < 0 || state != HR_SESSION_ATTACHED || region == NULL, 0))
        return hr_session_result(state);
    int code = hr_charge(region, (uint32_t)row, kind, bytes, flags, HR_CHARGE_NS, NULL);
    if (__builtin_expect(code != HR_OK, 0))
        code = charge_slowly(region, row, kind, bytes, flags, code);
    return end_charge(code);
}

CUresult hr_count_refusal(CUresult result)
{
    hr_region *region = hr_session_region();
    if (result == CUDA_ERROR_OUT_OF_MEMORY && region != NULL)
        hr_count_refusals(region, 1, NULL);
    return result;
}

CUresult hr_take_bytes(int row, enum hr_kind kind, uint64_t bytes)
{
    return take(row, kind, bytes, 0);
}

void hr_count_bytes(int row, enum hr_kind kind, uint64_t bytes)
{
    if (bytes != 0)
        take(row, kind, bytes, HR_FORCE);
}

void hr_give_back_bytes(int row, enum hr_kind kind, uint64_t bytes)
{
    hr_region *region = row < 0 || bytes == 0 ? NULL : hr_session_region();
    if (region == NULL)
        return;
    int code = hr_release(region, (uint32_t)row, kind, bytes, HR_CHARGE_NS, NULL);
    if (code == HR_ETIMEOUT && recover_lock(region))
        code = hr_release(region, (uint32_t)row, kind, bytes, HR_CHARGE_NS, NULL);
    if (code != HR_OK && code != HR_EDETACHED)
        hr_lose_session(code);
}
