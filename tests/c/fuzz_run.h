/*
 * What the parts of fuzz_region share: the input, the region of this run, and how a
 * code is checked.
 */
#ifndef FUZZ_RUN_H
#define FUZZ_RUN_H

#include <unistd.h>

#include "call_error.h"
#include "fuzz_files.h"
#include "fuzz_format.h"
#include "fuzz_system.h"
#include "region.h"

/* ---- When something is wrong -------------------------------------------------- */

static inline void require_detail(int code)
{
    REQUIRE(call_error.code == code);
    REQUIRE(call_error.device >= -1 && call_error.device < HR_DEVICES);
    REQUIRE(call_error.layout <= HR_LAYOUTS);
    REQUIRE(call_error.candidates < 1u << (code == HR_ENODEVICE ? HR_DEVICES : HR_LAYOUTS));
}

static inline void require_one_of(const char *call, int code, const int *codes)
{
    while (*codes != 0 && *codes != code)
        codes++;
    if (*codes == code) {
        require_detail(code);
    } else {
        fprintf(stderr, "%s: code %d is not documented\n", call, code);
        abort();
    }
}

#define REQUIRE_ONE_OF(code, ...) require_one_of(__func__, code, (const int[]){__VA_ARGS__, 0})

/* ---- The input, byte by byte ------------------------------------------------------ */

struct input {
    const uint8_t *at, *end;
};

static inline uint8_t take8(struct input *input)
{
    return input->at < input->end ? *input->at++ : 0;
}

static inline uint32_t take16(struct input *input)
{
    const uint32_t low = take8(input);
    return low | (uint32_t)take8(input) << 8;
}

static inline uint64_t take_value(struct input *input)
{
    static const uint64_t table[] = {FUZZ_VALUE_TABLE};
    _Static_assert(sizeof table / sizeof table[0] == FUZZ_VALUE_OWN_PID, "FUZZ_VALUE_OWN_PID");
    const uint8_t index = take8(input);
    if (index < FUZZ_VALUE_OWN_PID)
        return table[index];
    if (index < FUZZ_VALUES)
        return (index == FUZZ_VALUE_OWN_PID ? 0 : HR_FOREIGN_OWNER) + (uint64_t)getpid();
    uint64_t value = 0;
    for (int i = 0; i < 8; i++)
        value |= (uint64_t)take8(input) << (8 * i);
    return value;
}

static inline uint64_t take_ms(struct input *input)
{
    return take8(input) * UINT64_C(1000000);
}

/* ---- The region of this run ------------------------------------------------------- */

struct run {
    struct file *file;
    hr_region *region;
    uint32_t open_as; /* the layout that the handle has */
    uint64_t version; /* and the file's version; see struct view */
    bool writable;
    bool is_kept; /* opened with HR_KEEP */
};

extern struct run run;

/* As the handle reads the file, which may be another layout than it was made in. */
static inline struct view as_opened(void)
{
    return (struct view){&hr_layouts[run.open_as], run.file->view.bytes, run.version};
}

/* Nothing to compare with where parts of the file are missing. */
static inline bool is_whole(void)
{
    return run.file->size >= hr_layouts[run.open_as].size;
}

/* A store into the region that the input describes. */
struct poke {
    size_t offset;
    uint32_t bytes; /* 0: the layout has no such field */
    uint64_t value;
};

struct poke take_poke(struct input *input);

/* Edits report what they have stored, and store nothing else (fuzz_edits.c).  Whether `step` was
 * one, and has been done if there is a region. */
bool edit_step(uint8_t step, struct input *input);

#endif
