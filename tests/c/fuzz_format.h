/*
 * What an input of fuzz_region means.
 *
 * The first byte chooses a layout, or RAW: then the rest is a whole file.  Otherwise
 * the rest is a list of steps: pokes into the region, changes of the file's size,
 * and calls.  Each begins with its number; arguments that are missing are 0.
 */
#ifndef FUZZ_FORMAT_H
#define FUZZ_FORMAT_H

enum {
    FUZZ_RAW = 5 /* 0 to 4 are layouts; the first byte counts modulo 6 */
};

enum fuzz_step {
    FUZZ_POKE,       /* field, device, slot (2 bytes), value */
    FUZZ_POKE_AT,    /* offset (3 bytes), value */
    FUZZ_TEXT,       /* device, 4 bytes: a uuid's beginning; 1 byte: its length */
    FUZZ_RESIZE,     /* index into the sizes, 1 byte added to it as signed */
    FUZZ_IDENTIFY,   /* layout */
    FUZZ_OPEN,       /* flags, layout */
    FUZZ_SNAPSHOT,   /* bytes in units of 8 (2 bytes), 1 byte more */
    FUZZ_GET,        /* value, device */
    FUZZ_READ_SET,   /* room in units of 8 bytes (2 bytes), how far columns are apart */
    FUZZ_SET_LIMITS, /* kind, device, flags, value, expected value */
    FUZZ_SET_VALUE,  /* which, value */
    FUZZ_IS_STALE,
    FUZZ_CLOSE,
    FUZZ_STEPS
};

/* Fields, in the order of fuzz_region's table. */
enum fuzz_field {
    FUZZ_MAGIC,
    FUZZ_MAJOR_VERSION,
    FUZZ_MINOR_VERSION,
    FUZZ_SM_INIT_FLAG,
    FUZZ_OWNER_PID,
    FUZZ_SEM,
    FUZZ_DEVICE_NUM,
    FUZZ_LIMIT,
    FUZZ_SM_LIMIT,
    FUZZ_PROC_NUM,
    FUZZ_UTILIZATION_SWITCH,
    FUZZ_RECENT_KERNEL,
    FUZZ_PRIORITY,
    FUZZ_LAST_KERNEL_TIME,
    FUZZ_SLOT_PID,
    FUZZ_SLOT_HOSTPID,
    FUZZ_SLOT_STATUS,
    FUZZ_SLOT_SEQLOCK,
    FUZZ_SLOT_TOTAL,
    FUZZ_SLOT_CONTEXT,
    FUZZ_SLOT_MONITOR,
    FUZZ_SLOT_SM,
    FUZZ_FIELDS
};

/* A value is one byte: one of these, or from FUZZ_VALUES on 8 bytes that follow. */
#define FUZZ_VALUE_TABLE                                                                           \
    0, 1, 2, 3, 16, 17, 50, 99, 100, 101, 1000, 1001, 1023, 1024, 1025, 2000, 19920718,            \
        0x7fffffff, 0x80000000, 0xffffffff, 0x100000000, 0x40000000, 0x200000000,                  \
        0x7fffffffffffffff, 0x8000000000000000, 0xffffffffffffffff

enum { FUZZ_VALUES = 26, FUZZ_VALUE_FOLLOWS = 255 };

#endif
