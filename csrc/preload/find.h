/*
 * Finding functions: the real driver's, and the hook that stands in for one of them.
 *
 * Which function a pointer is, is decided by its address alone: what the driver or the loader
 * gives for a name, whatever the name and its version, is compared with the addresses of the
 * functions that are hooked.  What is not one of them is passed on as it is.
 */
#ifndef HR_FIND_H
#define HR_FIND_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

/* One function of a library. */
struct hr_function {
    const char *name;
    void *hook;            /* NULL: called by us, not hooked */
    void *missing;         /* what is called where the library has no such function */
    _Atomic(void *) *real; /* the library's own, once it is found */
};

/* A library whose functions are hooked or called. */
struct hr_library {
    const char *stand_in_for; /* the real one's name for the stand-in, */
    const char *name;         /* and for all others */
    bool is_loaded_by_us;     /* if the program has not */
    const struct hr_function *functions;
    size_t count;
    _Atomic bool is_found;
};

/*
 * Look for the library among those that are loaded, and for its functions.  May be called by
 * several threads at once: all of them find the same.  False: it is not loaded.
 */
bool hr_find_library(struct hr_library *library);

/* The hook for a function of the library by its address, NULL where it has none. */
void *hr_hook_at(const struct hr_library *library, const void *address);

/* dlsym() itself: in a preload it is not the one that the name leads to. */
typedef void *hr_dlsym_function(void *handle, const char *name);
hr_dlsym_function *hr_real_dlsym(void);

extern struct hr_library hr_cuda_library;
extern struct hr_library hr_nvml_library;

#endif
