#define _GNU_SOURCE
#include "override.h"

#include <dlfcn.h>
#include <string.h>

#include "find.h"

static struct hr_library *const libraries[] = {&hr_cuda_library, &hr_nvml_library};

static const struct hr_function *find_name(const struct hr_library *library, const char *name)
{
    for (size_t at = 0; at < library->count; at++) {
        const struct hr_function *function = &library->functions[at];
        if (function->hook != NULL && strcmp(function->name, name) == 0)
            return function;
    }
    return NULL;
}

static struct hr_choice choose(struct hr_library *library, const struct hr_function *function,
                               void *handle)
{
    const struct hr_choice pass_on = {.real = (void *)hr_real_dlsym()};
    if (handle == RTLD_NEXT)
        return pass_on;
    bool is_loaded = hr_find_library(library);
    void *address = hr_real_dlsym()(handle, function->name);
    void *hook = hr_hook_at(library, address);
    if (hook != NULL)
        return (struct hr_choice){.found = hook};
    /* A global search has found this library.  What it stands in for may be where only the caller's
     * own search comes to (RTLD_LOCAL); or nowhere: then the search from here on fails, and leaves
     * dlerror() the right text. */
    if (address == function->hook)
        return (struct hr_choice){
            .found =
                is_loaded || hr_real_dlsym()(RTLD_NEXT, function->name) != NULL ? address : NULL};
    return pass_on;
}

struct hr_choice hr_choose_symbol(void *handle, const char *name)
{
    if (name != NULL && (name[0] == 'c' || name[0] == 'n')) {
        for (size_t at = 0; at < sizeof libraries / sizeof libraries[0]; at++) {
            const struct hr_function *function = find_name(libraries[at], name);
            if (function != NULL)
                return choose(libraries[at], function, handle);
        }
    }
    return (struct hr_choice){.real = (void *)hr_real_dlsym()};
}
