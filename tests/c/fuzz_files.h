/*
 * The files of the fuzzer: one per layout, changed through a mapping of its own and
 * mended after each input, because copying two megabytes each time would be all
 * that the fuzzer does.
 */
#ifndef FUZZ_FILES_H
#define FUZZ_FILES_H

#include "fuzz_oracle.h"

enum {
    HOT_BYTES = 16384, /* header and the slots in use, in every layout */
    MAX_FILE = 1 << 22,
    MAX_POKES = 512
};

struct file {
    struct view view; /* as made */
    char path[256];
    int fd;
    size_t whole; /* its size as made */
    size_t size;  /* its size now */
    bool was_cut;
    uint32_t pokes;
    struct {
        size_t offset;
        uint64_t before;
    } undo[MAX_POKES];
    uint8_t hot[HOT_BYTES];
    uint8_t tail[128];
};

/* Makes the files, once; they go when the process does. */
void files_make(void);
struct file *file_of_layout(uint32_t layout);

/* Up to 8 bytes; nothing where the file has no such place now. */
void file_poke(struct file *file, size_t offset, uint64_t value, uint32_t bytes);
void file_resize(struct file *file, size_t size);

/* Right again, as cheaply as what happened to it allows. */
void file_mend(struct file *file);

/* The path of a file that holds just these bytes. */
const char *raw_file(const uint8_t *data, size_t size);

#endif
