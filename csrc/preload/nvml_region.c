#define _GNU_SOURCE
#include "nvml_region.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "../internal.h"
#include "snapshots.h"

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(hr_region *) opened;

static void before_fork(void)
{
    pthread_mutex_lock(&opening);
}

static void after_fork_in_parent(void)
{
    pthread_mutex_unlock(&opening);
}

static void after_fork_in_child(void)
{
    /* The handle is the parent's.  It is left alone, as a thread may have been using it. */
    atomic_store_explicit(&opened, NULL, memory_order_relaxed);
    pthread_mutex_unlock(&opening);
}

static void watch_forks(void)
{
    /* Before ours: a fork then takes `opening` first and the core's lock after it, as below. */
    hr_watch_forks();
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

hr_region *hr_nvml_region(void)
{
    static pthread_once_t fork_watch = PTHREAD_ONCE_INIT;
    hr_region *region = atomic_load_explicit(&opened, memory_order_acquire);
    if (region != NULL)
        return region;
    const char *path = getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE");
    if (path == NULL || path[0] == '\0')
        return NULL;
    pthread_once(&fork_watch, watch_forks);
    pthread_mutex_lock(&opening);
    region = atomic_load_explicit(&opened, memory_order_acquire);
    /* A failure is no complaint of NVML's: the next question tries again. */
    if (region == NULL && hr_open(path, HR_READ, HR_LAYOUTS, 0, &region, NULL) >= 0)
        atomic_store_explicit(&opened, region, memory_order_release);
    pthread_mutex_unlock(&opening);
    return region;
}

int hr_nvml_row(hr_region *region, const char *uuid, unsigned index)
{
    int code;
    struct hr_snapshot *snapshot = hr_new_snapshot(region, &code);
    if (snapshot == NULL)
        return -1;
    int row = -1;
    bool names_devices = false;
    for (uint32_t at = 0; at < snapshot->span; at++) {
        names_devices = names_devices || hr_snapshot_device(snapshot, at)->uuid[0] != '\0';
        if (row < 0 &&
            strncasecmp(hr_snapshot_device(snapshot, at)->uuid, uuid, HR_UUID_BYTES) == 0)
            row = (int)at;
    }
    free(snapshot);
    if (names_devices)
        return row;
    return index < HR_DEVICES ? (int)index : -1;
}
