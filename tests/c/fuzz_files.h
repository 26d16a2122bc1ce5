/*
 * The files of the fuzzer: one per layout, changed through a mapping of its own and
 * mended after each input, because copying two megabytes each time would be all
 * that the fuzzer does.
 *
 * Beside each file there is a shadow of it, which holds what everybody but the core has
 * stored.  Where the two differ, the core has written.  Only pages that somebody
 * has had reason to change are compared; the others are zero as they were made.
 */
#ifndef FUZZ_FILES_H
#define FUZZ_FILES_H

#include "fuzz_oracle.h"

enum {
    HOT_BYTES = 16384, /* header and the slots in use, in every layout */
    MAX_FILE = 1 << 22,
    PAGE_BYTES = 4096,
    MAX_PAGES = MAX_FILE / PAGE_BYTES
};

struct file {
    struct view view; /* its bytes now, in the layout in which it was made */
    char path[256];
    int fd;
    size_t whole; /* its size as made */
    size_t size;  /* its size now */
    bool was_cut;
    uint8_t *made;   /* its bytes as made */
    uint8_t *shadow; /* its bytes, had the core stored nothing */
    uint32_t page_count;
    uint32_t pages[MAX_PAGES]; /* those that are compared, and mended */
    bool is_tracked[MAX_PAGES];
};

/* Makes the files, once; they go when the process does. */
void files_make(void);
const char *files_directory(void);
struct file *file_of_layout(uint32_t layout);

/* Up to 8 bytes, by somebody else; nothing where the file has no such place now. */
void file_poke(struct file *file, size_t offset, uint64_t value, uint32_t bytes);
void file_resize(struct file *file, size_t size);

/* Compare this range from now on too. */
void file_track(struct file *file, size_t offset, size_t bytes);
bool file_tracks(const struct file *file, size_t offset);

/* Call `report` for each differing i32 below `end`: the core has stored there. */
typedef void file_report(void *argument, size_t offset);
void file_compare(const struct file *file, size_t end, file_report *report, void *argument);
/* What the core has stored so far is right. */
void file_accept(struct file *file);
/* All else is as it was made; nothing is said of a file that was cut. */
void file_require_rest(const struct file *file);

/* Right again, as cheaply as what happened to it allows. */
void file_mend(struct file *file);

/* The path of a file that holds just these bytes. */
const char *raw_file(const uint8_t *data, size_t size);

#endif
