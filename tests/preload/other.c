/* libother.so: a library that is not the driver and has functions with names like the driver's. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

int cuMemAlloc_v2(void)
{
    return 1;
}

int cublasCreate_v2(void)
{
    return 2;
}

int cudnnCreate(void)
{
    return 3;
}

/* Whether this library's handle leads to this library's function. */
int other_has(const char *name)
{
    Dl_info here, found;
    void *self, *function;
    if (dladdr((void *)other_has, &here) == 0)
        return 0;
    self = dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    function = self == NULL ? NULL : dlsym(self, name);
    return function != NULL && dladdr(function, &found) != 0 &&
           strcmp(here.dli_fname, found.dli_fname) == 0;
}

void *other_next(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}
