/*
 * The five layouts as C structs, and the rows of offsets that follow from them.
 * Internal to the core.
 *
 * layout.c makes the table of the rows that the core works with, and holds the
 * structs to the published format.  A file whose loops should be compiled for
 * each layout, with its offsets as constants, makes a static table of its own.
 */
#ifndef HR_LAYOUT_ROWS_H
#define HR_LAYOUT_ROWS_H

#include <stddef.h>

#include "layout.h"

/* sem_t of the container's glibc, never of ours: 32 bytes, see lock.c. */
struct semaphore {
    uint64_t word;
    uint64_t rest[3];
};

struct used_40 {
    uint64_t context, module, data, offset, total;
};

struct used_64 {
    uint64_t context, module, data, offset, total, unused[3];
};

struct util_24 {
    uint64_t dec, enc, sm;
};

struct util_48 {
    uint64_t dec, enc, sm, unused[3];
};

struct slot_no_util {
    int32_t pid, hostpid;
    struct used_40 used[HR_DEVICES];
    uint64_t monitorused[HR_DEVICES];
    int32_t status;
};

struct slot_unversioned {
    int32_t pid, hostpid;
    struct used_40 used[HR_DEVICES];
    uint64_t monitorused[HR_DEVICES];
    struct util_24 util[HR_DEVICES];
    int32_t status;
};

struct slot_v1_1 {
    int32_t pid, hostpid;
    struct used_64 used[HR_DEVICES];
    uint64_t monitorused[HR_DEVICES];
    struct util_48 util[HR_DEVICES];
    int32_t status;
    uint64_t unused[3];
};

struct slot_postinit {
    int32_t pid, hostpid;
    uint64_t seqlock;
    struct used_64 used[HR_DEVICES];
    uint64_t monitorused[HR_DEVICES];
    struct util_48 util[HR_DEVICES];
    int32_t status;
    uint64_t unused[2];
};

struct slot_v1_2 {
    int32_t pid, hostpid;
    struct used_64 used[HR_DEVICES];
    uint64_t monitorused[HR_DEVICES];
    struct util_48 util[HR_DEVICES];
    int32_t status;
    uint64_t seqlock;
    uint64_t unused[2];
};

/* What every header shares once its version and semaphores are past. */
#define HEADER_BODY(slot_type)                                                                     \
    uint64_t device_num;                                                                           \
    char uuids[HR_DEVICES][HR_UUID_BYTES];                                                         \
    uint64_t limit[HR_DEVICES];                                                                    \
    uint64_t sm_limit[HR_DEVICES];                                                                 \
    slot_type procs[HR_SLOTS];                                                                     \
    int32_t proc_num;                                                                              \
    int32_t utilization_switch;                                                                    \
    int32_t recent_kernel;                                                                         \
    int32_t priority

struct region_no_util {
    int32_t magic, sm_init_flag;
    uint64_t owner_pid;
    struct semaphore sem;
    HEADER_BODY(struct slot_no_util);
};

struct region_unversioned {
    int32_t magic, sm_init_flag;
    uint64_t owner_pid;
    struct semaphore sem;
    HEADER_BODY(struct slot_unversioned);
};

struct region_v1_1 {
    int32_t magic;
    uint32_t major_version, minor_version;
    int32_t sm_init_flag;
    uint64_t owner_pid;
    struct semaphore sem;
    HEADER_BODY(struct slot_v1_1);
    uint64_t last_kernel_time;
    uint64_t unused[4];
};

struct region_postinit {
    int32_t magic;
    uint32_t major_version, minor_version;
    int32_t sm_init_flag;
    uint64_t owner_pid;
    struct semaphore sem;
    struct semaphore sem_postinit;
    HEADER_BODY(struct slot_postinit);
    uint64_t last_kernel_time;
    uint64_t unused[4];
};

struct region_v1_2 {
    int32_t magic;
    uint32_t major_version, minor_version;
    int32_t sm_init_flag;
    uint64_t owner_pid;
    struct semaphore sem;
    HEADER_BODY(struct slot_v1_2);
    uint64_t last_kernel_time;
    struct semaphore sem_postinit;
};

#define HEADER_ROW(type)                                                                           \
    .size = sizeof(struct type), .sm_init_flag = offsetof(struct type, sm_init_flag),              \
    .owner_pid = offsetof(struct type, owner_pid), .sem = offsetof(struct type, sem),              \
    .device_num = offsetof(struct type, device_num), .uuids = offsetof(struct type, uuids),        \
    .limit = offsetof(struct type, limit), .sm_limit = offsetof(struct type, sm_limit),            \
    .procs = offsetof(struct type, procs), .proc_num = offsetof(struct type, proc_num),            \
    .utilization_switch = offsetof(struct type, utilization_switch),                               \
    .recent_kernel = offsetof(struct type, recent_kernel),                                         \
    .priority = offsetof(struct type, priority)

#define SLOT_ROW(type)                                                                             \
    .slot_stride = sizeof(struct type), .slot_pid = offsetof(struct type, pid),                    \
    .slot_hostpid = offsetof(struct type, hostpid), .slot_used = offsetof(struct type, used),      \
    .slot_used_stride = sizeof(((struct type *)0)->used[0]),                                       \
    .slot_monitorused = offsetof(struct type, monitorused),                                        \
    .slot_status = offsetof(struct type, status)

#define UTIL_ROW(type)                                                                             \
    .slot_util = offsetof(struct type, util),                                                      \
    .slot_util_stride = sizeof(((struct type *)0)->util[0])

#define HR_LAYOUT_ROWS                                                                             \
    {                                                                                              \
        [HR_UNVERSIONED_NO_UTIL] = {.name = "unversioned-no-util",                                 \
                                    .id = HR_UNVERSIONED_NO_UTIL,                                  \
                                    HEADER_ROW(region_no_util),                                    \
                                    .sem_postinit = HR_ABSENT,                                     \
                                    .last_kernel_time = HR_ABSENT,                                 \
                                    SLOT_ROW(slot_no_util),                                        \
                                    .slot_util = HR_ABSENT,                                        \
                                    .slot_seqlock = HR_ABSENT},                                    \
        [HR_UNVERSIONED] = {.name = "unversioned",                                                 \
                            .id = HR_UNVERSIONED,                                                  \
                            HEADER_ROW(region_unversioned),                                        \
                            .sem_postinit = HR_ABSENT,                                             \
                            .last_kernel_time = HR_ABSENT,                                         \
                            SLOT_ROW(slot_unversioned),                                            \
                            UTIL_ROW(slot_unversioned),                                            \
                            .slot_seqlock = HR_ABSENT},                                            \
        [HR_V1_1] = {.name = "1.1",                                                                \
                     .id = HR_V1_1,                                                                \
                     .major_version = 1,                                                           \
                     .minor_version = 1,                                                           \
                     HEADER_ROW(region_v1_1),                                                      \
                     .sem_postinit = HR_ABSENT,                                                    \
                     .last_kernel_time = offsetof(struct region_v1_1, last_kernel_time),           \
                     SLOT_ROW(slot_v1_1),                                                          \
                     UTIL_ROW(slot_v1_1),                                                          \
                     .slot_seqlock = HR_ABSENT},                                                   \
        [HR_V1_1_POSTINIT] = {.name = "1.1-postinit",                                              \
                              .id = HR_V1_1_POSTINIT,                                              \
                              .major_version = 1,                                                  \
                              .minor_version = 1,                                                  \
                              HEADER_ROW(region_postinit),                                         \
                              .sem_postinit = offsetof(struct region_postinit, sem_postinit),      \
                              .last_kernel_time =                                                  \
                                  offsetof(struct region_postinit, last_kernel_time),              \
                              SLOT_ROW(slot_postinit),                                             \
                              UTIL_ROW(slot_postinit),                                             \
                              .slot_seqlock = offsetof(struct slot_postinit, seqlock)},            \
        [HR_V1_2] = {.name = "1.2",                                                                \
                     .id = HR_V1_2,                                                                \
                     .major_version = 1,                                                           \
                     .minor_version = 2,                                                           \
                     HEADER_ROW(region_v1_2),                                                      \
                     .sem_postinit = offsetof(struct region_v1_2, sem_postinit),                   \
                     .last_kernel_time = offsetof(struct region_v1_2, last_kernel_time),           \
                     SLOT_ROW(slot_v1_2),                                                          \
                     UTIL_ROW(slot_v1_2),                                                          \
                     .slot_seqlock = offsetof(struct slot_v1_2, seqlock)},                         \
    }

#endif
