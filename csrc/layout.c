#include "layout_rows.h"

#include <stdatomic.h>

const struct hr_layout hr_layouts[HR_LAYOUTS] = HR_LAYOUT_ROWS;

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
