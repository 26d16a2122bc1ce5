#define _GNU_SOURCE
#include "find.h"

#include <dlfcn.h>

hr_dlsym_function *hr_real_dlsym(void)
{
    static _Atomic(hr_dlsym_function *) known;
    hr_dlsym_function *real = atomic_load_explicit(&known, memory_order_relaxed);
    if (real != NULL)
        return real;
    /* By its version, as the plain name may lead to an override: ours, or another preload's.  By
     * the oldest, which every libc has: looking for one that is not there calls malloc(), which in
     * the first call of all may be what waits for the answer. */
#if defined(__x86_64__)
    real = (hr_dlsym_function *)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
#else
    real = (hr_dlsym_function *)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.17");
#endif
    dlerror(); /* what failed on the way is not the caller's error */
    atomic_store_explicit(&known, real, memory_order_relaxed);
    return real;
}

bool hr_find_library(struct hr_library *library)
{
    /* Acquire pairs with the release below: the functions were stored before. */
    if (atomic_load_explicit(&library->is_found, memory_order_acquire))
        return true;
    /* Never unloaded, however often the program closes it: its functions are called from here. */
    int flags = RTLD_LAZY | RTLD_NODELETE | (library->is_loaded_by_us ? 0 : RTLD_NOLOAD);
    void *handle = dlopen(library->stand_in_for, flags);
    if (handle == NULL)
        handle = dlopen(library->name, flags);
    if (handle == NULL)
        return false;
    /* No lock: dlopen() takes the loader's, under which others may be calling us. */
    for (size_t at = 0; at < library->count; at++) {
        const struct hr_function *function = &library->functions[at];
        void *real = hr_real_dlsym()(handle, function->name);
        atomic_store_explicit(function->real, real != NULL ? real : function->missing,
                              memory_order_relaxed);
    }
    dlerror();
    atomic_store_explicit(&library->is_found, true, memory_order_release);
    return true;
}

void *hr_hook_at(const struct hr_library *library, const void *address)
{
    if (address == NULL || !atomic_load_explicit(&library->is_found, memory_order_acquire))
        return NULL;
    for (size_t at = 0; at < library->count; at++) {
        const struct hr_function *function = &library->functions[at];
        if (function->hook != NULL &&
            atomic_load_explicit(function->real, memory_order_relaxed) == address)
            return function->hook;
    }
    return NULL;
}
