/*
 * NVML, for this library's own questions: what the driver says this process uses, and how busy the
 * GPU is.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../proc.h"
#include "budget.h"
#include "driver.h"
#include "find.h"
#include "session.h"

#define CALLED(X)                                                                                  \
    X(nvmlInit_v2, (void))                                                                         \
    X(nvmlDeviceGetHandleByUUID, (const char *uuid, nvmlDevice_t *out))                            \
    X(nvmlDeviceGetComputeRunningProcesses_v2,                                                     \
      (nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *out))                              \
    X(nvmlDeviceGetComputeRunningProcesses_v3,                                                     \
      (nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *out))                              \
    X(nvmlDeviceGetProcessUtilization, (nvmlDevice_t device, nvmlProcessUtilizationSample_t * out, \
                                        unsigned *count, unsigned long long since_us))             \
    X(nvmlDeviceGetUtilizationRates, (nvmlDevice_t device, nvmlUtilization_t * out))               \
    X(nvmlDeviceGetProcessesUtilizationInfo,                                                       \
      (nvmlDevice_t device, nvmlProcessesUtilizationInfo_t * out))

/* Each can be called: one that this NVML does not have returns NVML_ERROR_FUNCTION_NOT_FOUND. */
static struct {
#define MEMBER(name, parameters) nvmlReturn_t(*_Atomic name) parameters;
    CALLED(MEMBER)
} nvml;

/* gcc reads an atomic pointer that is called as a plain one, and another thread may store it. */
#define REAL(name) atomic_load_explicit(&nvml.name, memory_order_relaxed)

static nvmlReturn_t missing(void)
{
    return NVML_ERROR_FUNCTION_NOT_FOUND;
}

#define FUNCTION(called, parameters)                                                               \
    {.name = #called, .missing = (void *)missing, .real = (_Atomic(void *) *)(void *)&nvml.called},
static const struct hr_function functions[] = {CALLED(FUNCTION)};
static struct hr_library library = {
    .stand_in_for = "libnvidia-ml.so.1",
    .name = "libnvidia-ml.so.1",
    .is_loaded_by_us = true,
    .functions = functions,
    .count = sizeof functions / sizeof functions[0],
};

/* Loads and initialises it at the first question. */
static bool has_nvml(void)
{
    enum { UNKNOWN, WORKS, FAILS };
    static _Atomic int answer = UNKNOWN;
    if (__builtin_expect(answer == UNKNOWN, 0))
        answer = hr_find_library(&library) && REAL(nvmlInit_v2)() == NVML_SUCCESS ? WORKS : FAILS;
    return answer == WORKS;
}

bool hr_nvml_device(int row, nvmlDevice_t *out)
{
    static const char *const kinds[] = {"GPU-", "MIG-"};
    char uuid[HR_UUID_TEXT + 4];
    CUdevice device = hr_device_of_row(row);
    if (device < 0 || !has_nvml() || !hr_uuid_of_device(device, uuid + 4))
        return false;
    for (size_t at = 0; at < sizeof kinds / sizeof *kinds; at++) {
        memcpy(uuid, kinds[at], 4);
        if (REAL(nvmlDeviceGetHandleByUUID)(uuid, out) == NVML_SUCCESS)
            return true;
    }
    return false;
}

static nvmlReturn_t list_processes(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *list)
{
    nvmlReturn_t result = REAL(nvmlDeviceGetComputeRunningProcesses_v3)(device, count, list);
    if (result == NVML_ERROR_FUNCTION_NOT_FOUND)
        result = REAL(nvmlDeviceGetComputeRunningProcesses_v2)(device, count, list);
    return result;
}

struct hr_process_list *hr_nvml_processes(nvmlDevice_t device)
{
    unsigned room = 64;
    struct hr_process_list *list = NULL;
    nvmlReturn_t result = NVML_ERROR_INSUFFICIENT_SIZE;
    /* A process may start between two tries, so the list may outgrow what was asked for. */
    for (int tries = 0; tries < 4 && result == NVML_ERROR_INSUFFICIENT_SIZE; tries++) {
        struct hr_process_list *more = realloc(list, sizeof *list + room * sizeof list->list[0]);
        if (more == NULL)
            break;
        list = more;
        list->count = room;
        result = list_processes(device, &list->count, list->list);
        room = list->count + 16;
    }
    if (result == NVML_SUCCESS)
        return list;
    free(list);
    return NULL;
}

/* ---- Work ------------------------------------------------------------------------------- */

/* The driver keeps a hundred samples, and wants room for all of them. */
enum { FIRST_ROOM = 128, MOST_TRIES = 4, MOST_PERCENT = 100 };

static bool make_room(struct hr_busy_list *busy, unsigned room)
{
    if (room <= busy->room)
        return true;
    nvmlProcessUtilizationSample_t *list = realloc(busy->list, room * sizeof *list);
    if (list != NULL)
        busy->list = list;
    nvmlProcessUtilizationInfo_t *newer = realloc(busy->newer, room * sizeof *newer);
    if (newer != NULL)
        busy->newer = newer;
    if (list == NULL || newer == NULL)
        return false;
    busy->room = room;
    return true;
}

static nvmlReturn_t ask(nvmlDevice_t device, uint64_t since_us, struct hr_busy_list *busy,
                        unsigned *count)
{
    *count = busy->room;
    return REAL(nvmlDeviceGetProcessUtilization)(device, busy->list, count, since_us);
}

static nvmlReturn_t ask_newer(nvmlDevice_t device, uint64_t since_us, struct hr_busy_list *busy,
                              unsigned *count)
{
    nvmlProcessesUtilizationInfo_t info = {
        .version = sizeof info | 1u << 24,
        .processSamplesCount = busy->room,
        .lastSeenTimeStamp = since_us,
        .procUtilArray = busy->newer,
    };
    nvmlReturn_t result = REAL(nvmlDeviceGetProcessesUtilizationInfo)(device, &info);
    *count = info.processSamplesCount;
    for (unsigned at = 0; result == NVML_SUCCESS && at < *count && at < busy->room; at++) {
        const nvmlProcessUtilizationInfo_t *from = &busy->newer[at];
        busy->list[at] = (nvmlProcessUtilizationSample_t){
            .pid = from->pid, .timeStamp = from->timeStamp, .smUtil = from->smUtil};
    }
    return result;
}

typedef nvmlReturn_t ask_function(nvmlDevice_t device, uint64_t since_us, struct hr_busy_list *busy,
                                  unsigned *count);

static bool read_with(ask_function *function, nvmlDevice_t device, uint64_t since_us,
                      struct hr_busy_list *busy)
{
    unsigned count = 0, room = FIRST_ROOM;
    nvmlReturn_t result = NVML_ERROR_INSUFFICIENT_SIZE;
    for (int tries = 0; tries < MOST_TRIES && result == NVML_ERROR_INSUFFICIENT_SIZE; tries++) {
        if (!make_room(busy, room))
            return false;
        result = function(device, since_us, busy, &count);
        room = (count > busy->room ? count : busy->room) + FIRST_ROOM;
    }
    /* No process has worked since then. */
    if (result == NVML_ERROR_NOT_FOUND)
        count = 0;
    else if (result != NVML_SUCCESS)
        return false;
    busy->count = count < busy->room ? count : busy->room;
    return true;
}

static bool shows_work(const struct hr_busy_list *busy)
{
    for (unsigned at = 0; at < busy->count; at++) {
        if (busy->list[at].smUtil != 0)
            return true;
    }
    return false;
}

bool hr_nvml_busy(nvmlDevice_t device, uint64_t since_us, struct hr_busy_list *out)
{
    if (!has_nvml())
        return false;
    bool is_read = read_with(ask, device, since_us, out);
    if (is_read && shows_work(out))
        return true;
    /* With Blackwell GPUs the older function shows no process at work. */
    return read_with(ask_newer, device, since_us, out) || is_read;
}

unsigned hr_nvml_device_busy(nvmlDevice_t device)
{
    nvmlUtilization_t whole;
    bool is_known = REAL(nvmlDeviceGetUtilizationRates)(device, &whole) == NVML_SUCCESS;
    return is_known && whole.gpu <= MOST_PERCENT ? whole.gpu : 0;
}

/* ---- The own pid ------------------------------------------------------------------------ */

static _Atomic unsigned learnt; /* 0: none */

unsigned hr_own_nvml_pid(void)
{
    unsigned known = atomic_load_explicit(&learnt, memory_order_relaxed);
    return known != 0 ? known : (unsigned)getpid();
}

static void set_own_pid(unsigned pid)
{
    atomic_store_explicit(&learnt, pid, memory_order_relaxed);
}

static void write_pid(hr_region *region)
{
    uint64_t shown = 0;
    /* Where it fails, figures are looked for by the slot's own pid, mostly the same. */
    hr_show_in_slot(region, HR_SLOT_HOST_PID, 0, hr_own_nvml_pid(), &shown);
}

void hr_report_host_pid(hr_region *region)
{
    struct hr_mapper self = {.levels = 0};
    if (hr_read_pids(AT_FDCWD, "/proc/self/status", &self) == HR_MAPS && self.levels > 0 &&
        self.pids[0] != getpid())
        set_own_pid((unsigned)self.pids[0]);
    write_pid(region);
}

static const nvmlProcessInfo_t *find_pid(const struct hr_process_list *list, unsigned pid)
{
    for (unsigned at = 0; at < list->count; at++) {
        if (list->list[at].pid == pid)
            return &list->list[at];
    }
    return NULL;
}

static bool is_claimed(const struct hr_snapshot *snapshot, unsigned pid)
{
    for (uint32_t number = 0; number < (uint32_t)snapshot->process_count; number++) {
        if (hr_snapshot_process(snapshot, number)->host_pid == (int32_t)pid)
            return true;
    }
    return false;
}

/* ---- Who was there before ------------------------------------------------------------- */

/* By row; NULL: not asked yet.  Published with release, and never changed or freed. */
static _Atomic(const struct hr_process_list *) others_of_rows[HR_DEVICES];
static _Atomic bool is_known; /* NVML has listed this process by hr_own_nvml_pid() */

void hr_note_others(CUdevice device)
{
    nvmlDevice_t handle;
    const struct hr_process_list *none = NULL;
    int row = hr_row_of_device(device);
    if (row < 0 || is_known ||
        atomic_load_explicit(&others_of_rows[row], memory_order_relaxed) != NULL ||
        !hr_nvml_device(row, &handle))
        return;
    struct hr_process_list *others = hr_nvml_processes(handle);
    if (others != NULL &&
        !atomic_compare_exchange_strong_explicit(&others_of_rows[row], &none, others,
                                                 memory_order_release, memory_order_relaxed))
        free(others);
}

static bool was_there(int row, unsigned pid)
{
    const struct hr_process_list *others =
        atomic_load_explicit(&others_of_rows[row], memory_order_acquire);
    return others != NULL && find_pid(others, pid) != NULL;
}

/* ---- Looking for it ------------------------------------------------------------------- */

/*
 * A pid that was not there before this process had a context, that no process here has and no slot
 * of the region claims, is this process if it is the only one: then it is remembered and written
 * into the slot.
 */
static void learn_own_pid(int row, const struct hr_process_list *list)
{
    int code;
    unsigned strangers = 0, stranger = 0;
    hr_region *region = hr_session_region();
    struct hr_snapshot *snapshot = region == NULL ? NULL : hr_new_snapshot(region, &code);
    for (unsigned at = 0; snapshot != NULL && at < list->count; at++) {
        unsigned pid = list->list[at].pid;
        if (!was_there(row, pid) && !is_claimed(snapshot, pid) && !hr_is_here((int32_t)pid)) {
            strangers++;
            stranger = pid;
        }
    }
    free(snapshot);
    if (strangers == 1) {
        set_own_pid(stranger);
        write_pid(region);
    }
}

/* This process's entry in the list of a device on which it has a context, if `may_learn`. */
static const nvmlProcessInfo_t *find_own(int row, const struct hr_process_list *list,
                                         bool may_learn)
{
    const nvmlProcessInfo_t *own = find_pid(list, hr_own_nvml_pid());
    if (own != NULL || is_known || !may_learn)
        return own;
    learn_own_pid(row, list);
    return find_pid(list, hr_own_nvml_pid());
}

bool hr_is_listed(int row, nvmlDevice_t device)
{
    struct hr_process_list *list = hr_nvml_processes(device);
    bool is_listed = list != NULL && find_own(row, list, true) != NULL;
    free(list);
    return is_listed;
}

bool hr_nvml_own_bytes(int row, nvmlDevice_t device, bool may_learn, uint64_t *out)
{
    struct hr_process_list *list = hr_nvml_processes(device);
    const nvmlProcessInfo_t *own = list == NULL ? NULL : find_own(row, list, may_learn);
    bool has_figure = own != NULL && own->usedGpuMemory != UINT64_MAX;
    *out = has_figure ? own->usedGpuMemory : 0;
    if (has_figure)
        is_known = true;
    bool says = has_figure || (list != NULL && own == NULL && is_known);
    free(list);
    return says;
}
