/*
 * What an input of fuzz_region means.
 *
 * The first byte chooses a layout, or RAW: then the rest is a whole file.  Otherwise
 * the rest is a list of steps: changes of the region, of its file and of the machine around
 * it, and calls.  Each begins with its number; arguments that are missing are 0.
 */
#ifndef FUZZ_FORMAT_H
#define FUZZ_FORMAT_H

enum {
    FUZZ_MAX_BYTES = 256,
    FUZZ_RAW = 5 /* 0 to 4 are layouts; the first byte counts modulo 6 */
};

enum fuzz_step {
    FUZZ_POKE,     /* field, device, slot (2 bytes), value */
    FUZZ_POKE_AT,  /* offset (3 bytes), value */
    FUZZ_TEXT,     /* device, 4 bytes: a uuid's beginning; 1 byte: its length */
    FUZZ_RESIZE,   /* index into the sizes, 1 byte added to it as signed */
    FUZZ_IDENTIFY, /* layout */
    FUZZ_OPEN,     /* flags, layout */
    FUZZ_SNAPSHOT, /* bytes in units of 8 (2 bytes), 1 byte more */
    FUZZ_GET,      /* value, device */
    FUZZ_READ_SET, /* room in units of 8 bytes (2 bytes), how far columns are apart */
    FUZZ_EDIT,     /* flags of the call, number of edits; for each: kind, device as signed, flags,
                      index of a uuid, value, expected value */
    FUZZ_IS_STALE,
    FUZZ_CLOSE,
    FUZZ_SLOT,       /* slot (2 bytes), pid (value), host pid (value), total of device 0 (value) */
    FUZZ_MEANWHILE,  /* naps, then as FUZZ_POKE: done by another process when the core has napped
                        so often */
    FUZZ_PROC,       /* set of enum fuzz_proc */
    FUZZ_PROCESS,    /* host pid (index), enum fuzz_maps, levels below the first, a value for each;
                        for FUZZ_MAPS_NAME a length and so many bytes */
    FUZZ_OTHER_LOCK, /* 0: another writer of this library takes the host lock; 1: it locks the
                        number with which the lock is signed; again: it ends */
    FUZZ_LOCK,       /* timeout in ms */
    FUZZ_UNLOCK,
    FUZZ_LOCK_STATE,
    FUZZ_RECOVER,   /* watch in s */
    FUZZ_ATTACH,    /* timeout in ms */
    FUZZ_DETACH,    /* timeout in ms */
    FUZZ_CHARGE,    /* device, kind, bytes (value), timeout in ms */
    FUZZ_RELEASE,   /* device, kind, bytes (value), timeout in ms */
    FUZZ_EDIT_SLOT, /* pid (value), dry run and number of edits; for each: which, device, value */
    FUZZ_REAP,      /* dry run and number of pids, a value for each, timeout in ms */
    FUZZ_REPAIR,    /* dry run, timeout in ms */
    FUZZ_NOTE,      /* evidence of the region as it is, instead of any earlier one */
    FUZZ_GATHER,    /* processes to ask (a bit each), enum hr_gathered as far as that is true */
    FUZZ_BY,        /* lock state, reap, recover or repair by the evidence, then as that step */
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
    FUZZ_SEM_POSTINIT,
    FUZZ_FIELDS,
    FUZZ_SIGNAL =
        FUZZ_FIELDS /* of FUZZ_MEANWHILE alone, and no more arguments: a nap is interrupted */
};

/* What the machine's /proc and this process's own maps are like; at first nothing of it. */
enum fuzz_proc {
    FUZZ_PROC_HIDES = 1,     /* process 1 cannot be seen */
    FUZZ_PROC_NOT_FIRST = 2, /* it is not that of the first pid namespace */
    FUZZ_PROC_NO_SELF = 4,   /* this process is not in it */
    FUZZ_PROC_NO_MAPS = 8,   /* this process may not read its own maps */
    FUZZ_PROC_NO_ROOM = 16,  /* or has no descriptor left for them */
    FUZZ_PROC_FOREIGN = 32,  /* another library in this process maps the region */
    FUZZ_PROC_EVERYTHING = 63
};

/* What a process's maps show. */
enum fuzz_maps {
    FUZZ_MAPS_GONE, /* no such process */
    FUZZ_MAPS_REGION,
    FUZZ_MAPS_REGION_AND_LIBVGPU,
    FUZZ_MAPS_READ_ONLY,
    FUZZ_MAPS_OTHER_FILE,
    FUZZ_MAPS_OTHER_DEVICE, /* the region's inode number on another device */
    FUZZ_MAPS_REFUSED,
    FUZZ_MAPS_ONLY_THREAD, /* the region, under another thread only */
    FUZZ_MAPS_NOTHING,
    FUZZ_MAPS_NO_STATUS, /* the region, but its pids cannot be read */
    FUZZ_MAPS_NAME,      /* the region, below a file whose name is the input's own bytes */
    FUZZ_MAPS_KINDS
};

/* A value is one byte: one of these, one of the next enum, or from FUZZ_VALUES on 8 bytes that
 * follow. */
#define FUZZ_VALUE_TABLE                                                                           \
    0, 1, 2, 3, 16, 17, 50, 99, 100, 101, 1000, 1001, 1023, 1024, 1025, 2000, 19920718,            \
        0x7fffffff, 0x80000000, 0xffffffff, 0x100000000, 0x40000000, 0x200000000,                  \
        0x7fffffffffffffff, 0x8000000000000000, 0xffffffffffffffff, 102, 4, 4000, 0x1000000

enum {
    FUZZ_VALUE_OWN_PID = 30, /* this process's */
    FUZZ_VALUE_OWN_FOREIGN,  /* a signature of this process from another namespace */
    FUZZ_VALUES,
    FUZZ_VALUE_FOLLOWS = 255
};

#endif
