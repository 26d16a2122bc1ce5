/* libbeside.so: a library that needs the driver, for a program that opens it for itself only. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

/* As the library finds a function by a search of its own, and whether that works. */
int beside_finds(const char *name)
{
    return dlsym(RTLD_DEFAULT, name) != NULL;
}
