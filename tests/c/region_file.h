/*
 * A region file that a test owns: made by hr_create(), filled with numbers that
 * tell every field from every other, and poked at named offsets.
 */
#ifndef REGION_FILE_H
#define REGION_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "call_error.h"
#include "region.h"

enum { DIRECTORY_ROOM = 256 };

struct region_file {
    const struct hr_layout *layout;
    char directory[DIRECTORY_ROOM];
    char path[288];
    int fd;
    uint8_t *bytes; /* the test's own mapping, beside the one under test */
    size_t size;    /* as created: what the mapping covers */
    /* The mapping passes for one of this library's, or it would be another library's in this
     * process, which then counts as a process of the region. */
    hr_region *disguise;
};

#define GIB (UINT64_C(1) << 30)

/* Where its caller makes files and removes them with it. */
void make_directory(char path[DIRECTORY_ROOM]);

/* Two devices of 4 and 8 GiB, SM 50 and 60 %, priority 1. */
void region_file_make(struct region_file *file, uint32_t layout);
void region_file_remove(struct region_file *file);

/* Run a test with a new file of each of these layouts. */
void in_layouts(uint32_t first, uint32_t last, void (*test)(struct region_file *file));

/* Of one layout, and of all from one on: HR_V1_1 has a lock, HR_V1_1_POSTINIT seqlocks, too. */
#define RUN_IN(layout, test) RUN_CALL(#test, in_layouts(layout, layout, test))
#define RUN_FROM(first, test) RUN_CALL(#test, in_layouts(first, HR_LAYOUTS - 1, test))

void poke32(const struct region_file *file, size_t offset, uint32_t value);
void poke64(const struct region_file *file, size_t offset, uint64_t value);
uint32_t peek32(const struct region_file *file, size_t offset);
uint64_t peek64(const struct region_file *file, size_t offset);

/* The offset of a slot's field in the file. */
size_t slot_at(const struct region_file *file, uint32_t slot, uint32_t field);

/* The usage that fill_slot() gives a slot: another number in every field and device. */
void usage_of_number(const struct hr_layout *layout, uint64_t number, uint32_t device,
                     struct hr_usage *out);

/* A running process with host pid `pid` + 1,000,000 and usage on the first `devices` devices. */
void fill_slot(const struct region_file *file, uint32_t slot, int32_t pid, uint64_t number,
               uint32_t devices);

/* One usage, in one device of one slot. */
void poke_usage(const struct region_file *file, uint32_t slot, uint32_t device,
                const struct hr_usage *usage);

/* A handle, without which the test means nothing; close_and_free() ends it. */
hr_region *open_or_fail(const char *path, uint32_t flags);
void close_and_free(hr_region *region);

/*
 * One limit of one device or all; `edits` takes HR_DEVICES.  The flags are those of the edit
 * and of the call.  Returns what hr_edit() returns.
 */
int set_limits(hr_region *region, uint32_t kind, int32_t device, uint64_t value, uint64_t expected,
               uint32_t flags, struct hr_edit *edits);

/* One value of the whole region: HR_OK, or what hr_edit() says. */
int set_value(hr_region *region, uint32_t kind, int32_t to, int32_t expected, uint32_t flags,
              int32_t *before);

/* hr_recover_lock() without signals: the set of what was done, or a code. */
int recover_lock(hr_region *region, const char *proc, uint64_t watch_ns);

/* The file's content, for a test that breaks it over and over. */
uint8_t *region_file_copy(const struct region_file *file);

#endif
