/*
 * The five layouts of HAMi's shared region.
 *
 * Every function of this core works on one `struct hr_layout`: a row of offsets
 * (layout_rows.h).  A sixth layout is one more row.
 */
#ifndef HR_LAYOUT_H
#define HR_LAYOUT_H

#include <stdint.h>

#define HR_MAGIC 19920718
#define HR_DEVICES 16
#define HR_SLOTS 1024
#define HR_UUID_BYTES 96
#define HR_SEM_BYTES 32

/* An offset that a layout does not have. */
#define HR_ABSENT UINT32_MAX

enum hr_layout_id {
    HR_UNVERSIONED_NO_UTIL,
    HR_UNVERSIONED,
    HR_V1_1,
    HR_V1_1_POSTINIT,
    HR_V1_2,
    HR_LAYOUTS
};

/*
 * Offsets in bytes.  Header offsets count from the start of the file, slot
 * offsets from the start of a slot.  Inside one `used` record context, module,
 * data, offset and total follow each other as u64; inside one utilisation
 * record dec, enc and sm do.  That holds in all layouts.
 */
struct hr_layout {
    const char *name;
    uint32_t id;
    uint32_t major_version; /* 0: the file has no version fields */
    uint32_t minor_version;
    uint32_t size; /* sizeof the struct; files are at least this long */

    uint32_t sm_init_flag;
    uint32_t owner_pid;
    uint32_t sem;
    uint32_t sem_postinit; /* or HR_ABSENT */
    uint32_t device_num;
    uint32_t uuids;
    uint32_t limit;
    uint32_t sm_limit;
    uint32_t procs;
    uint32_t proc_num;
    uint32_t utilization_switch;
    uint32_t recent_kernel;
    uint32_t priority;
    uint32_t last_kernel_time; /* or HR_ABSENT */

    uint32_t slot_stride;
    uint32_t slot_pid;
    uint32_t slot_hostpid;
    uint32_t slot_seqlock; /* or HR_ABSENT */
    uint32_t slot_used;
    uint32_t slot_used_stride;
    uint32_t slot_monitorused;
    uint32_t slot_util; /* or HR_ABSENT */
    uint32_t slot_util_stride;
    uint32_t slot_status;
};

extern const struct hr_layout hr_layouts[HR_LAYOUTS];
#endif
