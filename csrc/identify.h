/* From a path to an open, proven region file.  Internal to the core. */
#ifndef HR_IDENTIFY_H
#define HR_IDENTIFY_H

#include <sys/stat.h>

#include "region.h"

/*
 * Open `path` and decide its layout.  On success (the layout, >= 0) `*fd` is
 * open, close-on-exec, and `*status` describes it.
 */
int hr_open_identified(const char *path, uint32_t flags, uint32_t layout, int *fd,
                       struct stat *status);

/*
 * Open the directory of `path`, and give the last component.  Files are reached
 * through this descriptor, so that the directory cannot be exchanged between two
 * steps.  Returns the descriptor or a code.
 */
int hr_open_directory(const char *path, const char **name);

/* A uuid of a region: empty, or printable ASCII from "GPU-" or "MIG-", NUL-padded. */
int hr_uuid_is_plausible(const unsigned char *uuid);

#endif
