/*
 * The rows of offsets of the five layouts.  Internal to the core.
 *
 * layout.c makes the table of them that the core works with.  A file whose loops
 * should be compiled for each layout, with its offsets as constants, makes a static
 * table of its own.  tests/region/test_layouts.py holds every number to the published
 * format, and real files of each layout hold that to the truth.
 */
#ifndef HR_LAYOUT_ROWS_H
#define HR_LAYOUT_ROWS_H

#include "region.h"

/* `sem` follows sm_init_flag and owner_pid; from `device_num` to the last slot, and again from
 * proc_num to priority, all layouts have the same fields in the same order. */
#define HEADER(sem_at, device_num_at, stride)                                                      \
    .sm_init_flag = (sem_at) - 12, .owner_pid = (sem_at) - 8, .sem = (sem_at),                     \
    .device_num = (device_num_at), .uuids = (device_num_at) + 8, .limit = (device_num_at) + 1544,  \
    .sm_limit = (device_num_at) + 1672, .procs = SLOTS(device_num_at), .slot_stride = (stride),    \
    .proc_num = TAIL(device_num_at, stride),                                                       \
    .utilization_switch = TAIL(device_num_at, stride) + 4,                                         \
    .recent_kernel = TAIL(device_num_at, stride) + 8, .priority = TAIL(device_num_at, stride) + 12
#define SLOTS(device_num_at) ((device_num_at) + 1800)
#define TAIL(device_num_at, stride) (SLOTS(device_num_at) + HR_SLOTS * (stride))

/* In a slot: pid, hostpid, then for each device a `used` record, the driver's figure and, where
 * there are any, a utilisation record; then the status. */
#define SLOT(used_at, used_bytes, util_bytes)                                                      \
    .slot_pid = 0, .slot_hostpid = 4, .slot_used = (used_at), .slot_used_stride = (used_bytes),    \
    .slot_monitorused = (used_at) + HR_DEVICES * (used_bytes),                                     \
    .slot_util = (util_bytes) == 0 ? HR_ABSENT : UTIL(used_at, used_bytes),                        \
    .slot_util_stride = (util_bytes),                                                              \
    .slot_status = UTIL(used_at, used_bytes) + HR_DEVICES * (util_bytes)
#define UTIL(used_at, used_bytes) ((used_at) + HR_DEVICES * ((used_bytes) + 8))

#define HR_LAYOUT_ROWS                                                                             \
    {                                                                                              \
        {.name = "unversioned-no-util",                                                            \
         .id = HR_UNVERSIONED_NO_UTIL,                                                             \
         .size = 804680,                                                                           \
         HEADER(16, 48, 784),                                                                      \
         .sem_postinit = HR_ABSENT,                                                                \
         .last_kernel_time = HR_ABSENT,                                                            \
         SLOT(8, 40, 0),                                                                           \
         .slot_seqlock = HR_ABSENT},                                                               \
        {.name = "unversioned",                                                                    \
         .id = HR_UNVERSIONED,                                                                     \
         .size = 1197896,                                                                          \
         HEADER(16, 48, 1168),                                                                     \
         .sem_postinit = HR_ABSENT,                                                                \
         .last_kernel_time = HR_ABSENT,                                                            \
         SLOT(8, 40, 24),                                                                          \
         .slot_seqlock = HR_ABSENT},                                                               \
        {.name = "1.1",                                                                            \
         .id = HR_V1_1,                                                                            \
         .major_version = 1,                                                                       \
         .minor_version = 1,                                                                       \
         .size = 2008952,                                                                          \
         HEADER(24, 56, 1960),                                                                     \
         .sem_postinit = HR_ABSENT,                                                                \
         .last_kernel_time = 2008912,                                                              \
         SLOT(8, 64, 48),                                                                          \
         .slot_seqlock = HR_ABSENT},                                                               \
        {.name = "1.1-postinit",                                                                   \
         .id = HR_V1_1_POSTINIT,                                                                   \
         .major_version = 1,                                                                       \
         .minor_version = 1,                                                                       \
         .size = 2008984,                                                                          \
         HEADER(24, 88, 1960),                                                                     \
         .sem_postinit = 56,                                                                       \
         .last_kernel_time = 2008944,                                                              \
         SLOT(16, 64, 48),                                                                         \
         .slot_seqlock = 8},                                                                       \
        {.name = "1.2",                                                                            \
         .id = HR_V1_2,                                                                            \
         .major_version = 1,                                                                       \
         .minor_version = 2,                                                                       \
         .size = 2008952,                                                                          \
         HEADER(24, 56, 1960),                                                                     \
         .sem_postinit = 2008920,                                                                  \
         .last_kernel_time = 2008912,                                                              \
         SLOT(8, 64, 48),                                                                          \
         .slot_seqlock = 1936},                                                                    \
    }

#endif
