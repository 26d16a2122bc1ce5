/* From a path to an open, proven region file.  Internal to the core. */
#ifndef HR_IDENTIFY_H
#define HR_IDENTIFY_H

#include <stdbool.h>
#include <sys/stat.h>

#include "region.h"

/* What stands in front of a file with version fields, as one number. */
static inline uint64_t hr_version(uint32_t major_version, uint32_t minor_version)
{
    return (uint64_t)major_version << 32 | minor_version;
}

/* An open file whose layout is known. */
struct hr_identified {
    int fd; /* close-on-exec */
    struct stat status;
    uint64_t version; /* hr_version(): the layout's, or a newer one */
};

/* Open `path` and decide its layout.  Returns the layout (>= 0), or a code and no descriptor. */
int hr_open_identified(const char *path, uint32_t flags, uint32_t layout,
                       struct hr_identified *out);

/*
 * Open the directory of `path`, and give the last component.  Files are reached
 * through this descriptor, so that the directory cannot be exchanged between two
 * steps.  With HR_NO_LINK in `flags` it is no link.  Returns the descriptor or a code.
 */
int hr_open_directory(const char *path, uint32_t flags, const char **name);

/*
 * Open a regular file and nothing else, not even for a moment.  On success `*fd` is
 * open, close-on-exec, and `*status` describes it.
 */
int hr_open_file(const char *path, uint32_t flags, int *fd, struct stat *status);

/*
 * The two halves of it: the path is walked, and a regular file found, which costs as long as a file
 * system takes to answer; then that very file is opened, without a walk.  A hold is closed by
 * hr_end_hold(), which may be called again.  Its name is a part of `path`.
 */
struct hr_hold {
    int directory, held;
    const char *name;
};
int hr_hold_file(const char *path, uint32_t flags, struct hr_hold *out, struct stat *status);
int hr_open_hold(const struct hr_hold *hold, uint32_t flags, int *fd, struct stat *status);
void hr_end_hold(struct hr_hold *hold);

/* Close what was opened with these flags; with HR_KEEP the descriptor stays, for the next time. */
void hr_close_file(int fd, uint32_t flags);

#define HR_UUID_WORDS (HR_UUID_BYTES / 8)

/* A uuid of a region: empty, or printable ASCII from "GPU-" or "MIG-", NUL-padded. */
bool hr_uuid_is_plausible(const unsigned char *uuid);

#endif
