/*
 * The allocations of this process: for each thing that the driver gave out, how many bytes it
 * counts for, on which row, and with which context, pool or memory it ends.  The region has the
 * sums; an entry says how much is given back with it.
 *
 * A hash table in shards, each with a lock that is held for some ten nanoseconds and never while
 * the driver or the core is called.  A forked child finds nothing in it.
 */
#ifndef HR_TABLE_H
#define HR_TABLE_H

#include <stdbool.h>
#include <stdint.h>

/* What a number stands for; the same number may stand for several things at once. */
enum hr_space {
    HR_NOTHING,
    HR_POINTER,          /* CUdeviceptr */
    HR_ARRAY,            /* CUarray */
    HR_MIPMAPPED,        /* CUmipmappedArray */
    HR_HANDLE,           /* CUmemGenericAllocationHandle: `owner` is the number of its memory */
    HR_MAPPING,          /* the start of a mapping of such memory, of `bytes` bytes */
    HR_MEMORY_OF_NUMBER, /* such memory, by its number, with `owner` users */
    HR_GRAPH,            /* CUgraphExec: `owner` kernels with `bytes` blocks in all */
    HR_GRAPH_MEMORY      /* CUgraphExec: its nodes allocate `bytes` */
};

struct hr_entry {
    uint64_t key;
    uint64_t bytes;
    uint32_t owner; /* the context, pool or physical memory that it belongs to */
    int16_t row;
    uint8_t space;   /* enum hr_space */
    uint8_t in_pool; /* `owner` is a pool's number, not a context's */
    uint8_t managed; /* memory that need not be on the device */
};

/*
 * Add a thing.  If its number is there already, the driver has taken that thing back unseen: it
 * moves into `displaced`, whose space is HR_NOTHING otherwise.  False: no memory.
 */
bool hr_table_put(const struct hr_entry *entry, struct hr_entry *displaced);

/* Remove a thing.  False: it is not there, and so not ours. */
bool hr_table_take(enum hr_space space, uint64_t key, struct hr_entry *out);

/* Look a thing up. */
bool hr_table_find(enum hr_space space, uint64_t key, struct hr_entry *out);

/* Remove everything that `wanted` chooses and give each to `use`, with no lock held. */
typedef bool hr_entry_choice(const struct hr_entry *entry, uint32_t owner);
typedef void hr_entry_use(const struct hr_entry *entry);
void hr_table_sweep(hr_entry_choice *wanted, uint32_t owner, hr_entry_use *use);

#endif
