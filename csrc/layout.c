#include "layout.h"

#include <stdatomic.h>
#include <stddef.h>

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

/* Lock-free, or the atomics would hide a lock that other processes do not see. */
_Static_assert(ATOMIC_INT_LOCK_FREE == 2, "32-bit atomics must be lock-free");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "64-bit atomics must be lock-free");
_Static_assert(sizeof(_Atomic int32_t) == 4 && sizeof(_Atomic uint64_t) == 8, "bare atomics");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the format is little-endian");
_Static_assert(sizeof(void *) == 8, "the format is that of the 64-bit ABI");

#define AT(type, field, offset)                                                                    \
    _Static_assert(offsetof(struct type, field) == (offset), #type "." #field)
#define SIZE(type, size) _Static_assert(sizeof(struct type) == (size), "sizeof " #type)
#define STRIDE(type, array, stride)                                                                \
    _Static_assert(sizeof(((struct type *)0)->array[0]) == (stride), "stride of " #type "." #array)

#define HEADER_AT(type, init, owner, semaphore, devices, tail)                                     \
    AT(type, magic, 0);                                                                            \
    AT(type, sm_init_flag, init);                                                                  \
    AT(type, owner_pid, owner);                                                                    \
    AT(type, sem, semaphore);                                                                      \
    AT(type, device_num, devices);                                                                 \
    AT(type, uuids, (devices) + 8);                                                                \
    AT(type, limit, (devices) + 1544);                                                             \
    AT(type, sm_limit, (devices) + 1672);                                                          \
    AT(type, procs, (devices) + 1800);                                                             \
    AT(type, proc_num, tail);                                                                      \
    AT(type, utilization_switch, (tail) + 4);                                                      \
    AT(type, recent_kernel, (tail) + 8);                                                           \
    AT(type, priority, (tail) + 12)

SIZE(region_no_util, 804680);
HEADER_AT(region_no_util, 4, 8, 16, 48, 804664);

SIZE(region_unversioned, 1197896);
HEADER_AT(region_unversioned, 4, 8, 16, 48, 1197880);

SIZE(region_v1_1, 2008952);
AT(region_v1_1, major_version, 4);
AT(region_v1_1, minor_version, 8);
HEADER_AT(region_v1_1, 12, 16, 24, 56, 2008896);
AT(region_v1_1, last_kernel_time, 2008912);

SIZE(region_postinit, 2008984);
AT(region_postinit, major_version, 4);
AT(region_postinit, minor_version, 8);
AT(region_postinit, sem_postinit, 56);
HEADER_AT(region_postinit, 12, 16, 24, 88, 2008928);
AT(region_postinit, last_kernel_time, 2008944);

SIZE(region_v1_2, 2008952);
AT(region_v1_2, major_version, 4);
AT(region_v1_2, minor_version, 8);
HEADER_AT(region_v1_2, 12, 16, 24, 56, 2008896);
AT(region_v1_2, last_kernel_time, 2008912);
AT(region_v1_2, sem_postinit, 2008920);

#define SLOT_AT(type, size, used_at, used_size, monitor_at, status_at)                             \
    SIZE(type, size);                                                                              \
    AT(type, pid, 0);                                                                              \
    AT(type, hostpid, 4);                                                                          \
    AT(type, used, used_at);                                                                       \
    STRIDE(type, used, used_size);                                                                 \
    AT(type, monitorused, monitor_at);                                                             \
    STRIDE(type, monitorused, 8);                                                                  \
    AT(type, status, status_at)

SLOT_AT(slot_no_util, 784, 8, 40, 648, 776);
SLOT_AT(slot_unversioned, 1168, 8, 40, 648, 1160);
AT(slot_unversioned, util, 776);
STRIDE(slot_unversioned, util, 24);
SLOT_AT(slot_v1_1, 1960, 8, 64, 1032, 1928);
AT(slot_v1_1, util, 1160);
STRIDE(slot_v1_1, util, 48);
SLOT_AT(slot_postinit, 1960, 16, 64, 1040, 1936);
AT(slot_postinit, seqlock, 8);
AT(slot_postinit, util, 1168);
STRIDE(slot_postinit, util, 48);
SLOT_AT(slot_v1_2, 1960, 8, 64, 1032, 1928);
AT(slot_v1_2, seqlock, 1936);
AT(slot_v1_2, util, 1160);
STRIDE(slot_v1_2, util, 48);

#define RECORDS_AT(used_type, util_type)                                                           \
    AT(used_type, context, 0);                                                                     \
    AT(used_type, module, 8);                                                                      \
    AT(used_type, data, 16);                                                                       \
    AT(used_type, offset, 24);                                                                     \
    AT(used_type, total, 32);                                                                      \
    AT(util_type, dec, 0);                                                                         \
    AT(util_type, enc, 8);                                                                         \
    AT(util_type, sm, 16)

RECORDS_AT(used_40, util_24);
RECORDS_AT(used_64, util_48);

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

const struct hr_layout hr_layouts[HR_LAYOUTS] = {
    [HR_UNVERSIONED_NO_UTIL] = {.name = "unversioned-no-util",
                                .id = HR_UNVERSIONED_NO_UTIL,
                                HEADER_ROW(region_no_util),
                                .sem_postinit = HR_ABSENT,
                                .last_kernel_time = HR_ABSENT,
                                SLOT_ROW(slot_no_util),
                                .slot_util = HR_ABSENT,
                                .slot_seqlock = HR_ABSENT},
    [HR_UNVERSIONED] = {.name = "unversioned",
                        .id = HR_UNVERSIONED,
                        HEADER_ROW(region_unversioned),
                        .sem_postinit = HR_ABSENT,
                        .last_kernel_time = HR_ABSENT,
                        SLOT_ROW(slot_unversioned),
                        UTIL_ROW(slot_unversioned),
                        .slot_seqlock = HR_ABSENT},
    [HR_V1_1] = {.name = "1.1",
                 .id = HR_V1_1,
                 .major_version = 1,
                 .minor_version = 1,
                 HEADER_ROW(region_v1_1),
                 .sem_postinit = HR_ABSENT,
                 .last_kernel_time = offsetof(struct region_v1_1, last_kernel_time),
                 SLOT_ROW(slot_v1_1),
                 UTIL_ROW(slot_v1_1),
                 .slot_seqlock = HR_ABSENT},
    [HR_V1_1_POSTINIT] = {.name = "1.1-postinit",
                          .id = HR_V1_1_POSTINIT,
                          .major_version = 1,
                          .minor_version = 1,
                          HEADER_ROW(region_postinit),
                          .sem_postinit = offsetof(struct region_postinit, sem_postinit),
                          .last_kernel_time = offsetof(struct region_postinit, last_kernel_time),
                          SLOT_ROW(slot_postinit),
                          UTIL_ROW(slot_postinit),
                          .slot_seqlock = offsetof(struct slot_postinit, seqlock)},
    [HR_V1_2] = {.name = "1.2",
                 .id = HR_V1_2,
                 .major_version = 1,
                 .minor_version = 2,
                 HEADER_ROW(region_v1_2),
                 .sem_postinit = offsetof(struct region_v1_2, sem_postinit),
                 .last_kernel_time = offsetof(struct region_v1_2, last_kernel_time),
                 SLOT_ROW(slot_v1_2),
                 UTIL_ROW(slot_v1_2),
                 .slot_seqlock = offsetof(struct slot_v1_2, seqlock)},
};
