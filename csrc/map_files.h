#ifndef HR_MAP_FILES_H
#define HR_MAP_FILES_H

#include <stdbool.h>

/* Whether a path is one of /proc/<pid>/map_files/<start>-<end>: the only links that are followed.
 */
bool hr_is_in_map_files(const char *path);

/*
 * Take hold (O_PATH) of the file that a link of map_files leads to, if no operation on it can wait
 * for a process: its mount is of a type that the kernel serves itself, and the host has mounted the
 * same file system.  `directory` is that of the links.  Returns the descriptor, or a negative
 * HR_E... code.  The kernel asks for CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE.
 */
int hr_hold_mapped_file(int directory, const char *name);

#endif
