/*
 * The machine as the core sees it while it is fuzzed: a clock that only its own looks and naps
 * move, and a /proc with a few processes, both as the input says.  So a run is fast, also
 * where the core watches something for ten seconds, and the same each time.
 *
 * The core is compiled with the functions below in place of the system's (Makefile).
 */
#ifndef FUZZ_SYSTEM_H
#define FUZZ_SYSTEM_H

#include <dirent.h>
#include <time.h>

#include "fuzz_files.h"
#include "fuzz_format.h"
#include "region.h"

int fuzz_clock_gettime(clockid_t clock, struct timespec *out);
int fuzz_nanosleep(const struct timespec *length, struct timespec *left);
long fuzz_syscall(long number, ...);
ssize_t fuzz_getrandom(void *out, size_t bytes, unsigned flags);
int fuzz_openat(int directory, const char *path, int flags, ...);
DIR *fuzz_opendir(const char *path);

/* Makes the /proc, once, beside the files. */
void system_make(void);
/* As it is for a new input: process 1, and this process, which maps no region. */
void system_reset(void);

/* As the core sees it. */
uint64_t system_now_ns(void);

/* The root of /proc, for calls that take one. */
const char *system_proc(void);

/* Other processes act when the core naps; true: a signal has ended the nap. */
void system_call_in_naps(bool (*act)(void));

/* The region that processes map, and the handle that this process has it mapped by. */
void system_set_region(const struct file *file, hr_region *region);

/* Whether this process has a slot of the region. */
void system_note_attached(bool is_attached);

enum { SYSTEM_PIDS = 6, SYSTEM_LEVELS = 3, SYSTEM_TEXT = 64 };

struct process {
    uint32_t maps;   /* enum fuzz_maps */
    uint32_t levels; /* 1 to SYSTEM_LEVELS; the first is its host pid */
    int32_t pids[SYSTEM_LEVELS];
    char text[SYSTEM_TEXT]; /* the name of another file that it maps; NUL-terminated */
};

void system_set_proc(uint32_t flags);
uint32_t system_proc_flags(void);
/* In place of the one with this index; its host pid is the index's. */
void system_set_process(uint32_t index, struct process *process);

/*
 * What this /proc proves about a pid, other than this process's: HR_ALIVE if a process that maps
 * the region has it (`innermost`: in its own namespace), HR_DEAD if all processes can be seen
 * and none has.
 */
enum hr_liveness system_life(int32_t pid, bool innermost);
/* Whether a process in this /proc that maps the region, or may, has this pid as its own. */
bool system_lists(int32_t pid);
int32_t system_host_pid(uint32_t index);
/* Whether there is such a process; whether it has one of these pids, or may. */
bool system_has(uint32_t index);
bool system_may_be_any_of(uint32_t index, const int32_t *pids, uint32_t count);
bool system_lists_self(void);
/* Everything can be seen, and leaves no doubt. */
bool system_is_plain(void);
/* And besides, nobody maps the region. */
bool system_is_empty(void);

#endif
