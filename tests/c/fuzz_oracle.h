/*
 * A second, simple reading of a region that nobody writes meanwhile: what the core
 * has to answer.  fuzz_oracle.c is compiled without sanitizers and without coverage:
 * it is not what is tested, and runs for every input.
 */
#ifndef FUZZ_ORACLE_H
#define FUZZ_ORACLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "call_error.h"
#include "region.h"

#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* The file, as a handle of this layout has to read it. */
struct view {
    const struct hr_layout *layout;
    uint8_t *bytes;
    uint64_t version; /* major << 32 | minor in the file when it was opened; 0: no such fields */
};

static inline uint64_t get64(const struct view *view, size_t offset)
{
    uint64_t value;
    memcpy(&value, view->bytes + offset, sizeof value);
    return value;
}

static inline int32_t get32(const struct view *view, size_t offset)
{
    int32_t value;
    memcpy(&value, view->bytes + offset, sizeof value);
    return value;
}

static inline size_t slot_at(const struct view *view, uint32_t slot)
{
    return view->layout->procs + (size_t)slot * view->layout->slot_stride;
}

/*
 * The word of a slot that a process which remembers its slot counts in, or HR_ABSENT: also in
 * layout 1.1, which such a process may use.
 */
static inline uint32_t seqlock_offset(const struct hr_layout *layout)
{
    return layout->id == HR_V1_1 ? hr_layouts[HR_V1_2].slot_seqlock : layout->slot_seqlock;
}

/* The magic, and the version with which it was opened. */
bool oracle_good_header(const struct view *view);

/* The version that a file of this layout has now; 0 where the layout has no such fields. */
uint64_t oracle_version(const struct view *view);
/* Whether it is one to come: the newest layout's major version, and a newer minor one. */
bool oracle_is_newer(const struct view *view);
/* Whether what stands where the newest layout has its fields may be these fields. */
bool oracle_passes_for_newest(const struct view *view);

/* The code that hr_snapshot() has to give into `bytes` bytes, and the bytes that it needs. */
int oracle_snapshot_code(const struct view *view, size_t bytes, size_t *wanted);

/* Every word of the snapshot is the file's, and what is settled is known. */
void oracle_require_same(const struct hr_snapshot *snapshot, const struct view *view);

/* What holds even where nothing can be compared. */
void oracle_require_sane(const struct hr_snapshot *snapshot, size_t bytes);

/* HR_OK and the value, or the code that live_value() has to leave. */
int oracle_value(const struct view *view, uint32_t value, uint32_t device, uint64_t *out);

#endif
