/*
 * All ways to the driver's functions lead to the same place: `finding OTHER` with the path of
 * libother.so. Exit status 1 and a line on stderr for each that does not.
 */
#define _GNU_SOURCE
#include "calls.h"

#include <dlfcn.h>
#include <string.h>

CUresult cuGetProcAddress(const char *name, void **out, int version, uint64_t flags);
CUresult cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags,
                             int *status);

static int wrong;

#define CHECK(truth)                                                                               \
    do {                                                                                           \
        if (!(truth)) {                                                                            \
            fprintf(stderr, "%d: %s\n", __LINE__, #truth);                                         \
            wrong = 1;                                                                             \
        }                                                                                          \
    } while (0)

static void *answer(const char *name, int version, uint64_t flags)
{
    void *old = NULL, *new = NULL;
    int status;
    CHECK(cuGetProcAddress_v2(name, &new, version, flags, &status) == CUDA_SUCCESS);
    CHECK((status == 0) == (new != NULL));
    CHECK((cuGetProcAddress(name, &old, version, flags) == CUDA_SUCCESS) == (new != NULL));
    CHECK(new == NULL || old == new);
    return new;
}

/* The functions that are linked are what dlsym and cuGetProcAddress give. */
static void check_driver(void *driver)
{
    static const struct {
        const char *name;
        int version;
        uint64_t flags;
        const char *symbol;
    } functions[] = {
        {"cuMemAlloc", 12000, 0, "cuMemAlloc_v2"},
        {"cuMemAllocAsync", 12000, 2, "cuMemAllocAsync_ptsz"},
        {"cuLaunchKernel", 12000, 2, "cuLaunchKernel_ptsz"},
        {"cuLaunchKernel", 12000, 1, "cuLaunchKernel"},
        {"cuGraphInstantiate", 12000, 0, "cuGraphInstantiate_v2"},
        {"cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2"},
        {"cuGetProcAddress", 11030, 0, "cuGetProcAddress"},
        {"cuDevicePrimaryCtxReset", 12000, 0, "cuDevicePrimaryCtxReset_v2"},
        {"cuStreamCreate", 12000, 0, "cuStreamCreate"},
    };
    for (size_t number = 0; number < sizeof functions / sizeof functions[0]; number++) {
        const char *symbol = functions[number].symbol;
        void *found = dlsym(driver, symbol);
        if (found == NULL ||
            found != answer(functions[number].name, functions[number].version,
                            functions[number].flags) ||
            found != dlsym(RTLD_DEFAULT, symbol) || found != dlsym(driver, symbol)) {
            fprintf(stderr, "%s is not one function\n", symbol);
            wrong = 1;
        }
    }
    CHECK(dlsym(driver, "cuMemAlloc_v2") == (void *)cuMemAlloc_v2);
    CHECK(dlsym(driver, "cuLaunchKernel") == (void *)cuLaunchKernel);
}

static void check_what_is_not_there(void *driver)
{
    (void)dlerror();
    CHECK(dlsym(driver, "cuNothing") == NULL);
    const char *text = dlerror();
    CHECK(text != NULL && strstr(text, "cuNothing") != NULL);
    CHECK(answer("cuNothing", 12000, 0) == NULL);
    CHECK(answer("cuMemAllocAsync", 2000, 0) == NULL);
    CHECK(dlsym(RTLD_DEFAULT, "cudnnCreate") == NULL);
}

/* Names that begin as CUDA's do, in another library: its own, even the same name. */
static void check_other_library(void *other)
{
    int (*is_other)(const char *) = (int (*)(const char *))dlsym(other, "other_has");
    CHECK(is_other != NULL);
    CHECK(is_other("cuMemAlloc_v2"));
    CHECK(is_other("cublasCreate_v2"));
    CHECK(is_other("cudnnCreate"));
}

/* The next one after the caller's library, each time it is asked for. */
static void check_next(void *other)
{
    void *(*next_of)(const char *) = (void *(*)(const char *))dlsym(other, "other_next");
    void *first = dlsym(RTLD_NEXT, "malloc");
    CHECK(first != NULL);
    CHECK(dlsym(RTLD_NEXT, "malloc") == first);
    CHECK(next_of("malloc") == first);
    CHECK(next_of("malloc") == first);
    CHECK(next_of("other_has") == NULL);
    CHECK(dlsym(RTLD_NEXT, "main") == NULL);
    CHECK(dlvsym(RTLD_DEFAULT, "no_such", "GLIBC_2.17") == NULL);
}

int main(int count, char **arguments)
{
    check_usage(count == 2, "finding OTHER");
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    void *other = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
    if (driver == NULL || other == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    check_driver(driver);
    check_what_is_not_there(driver);
    check_other_library(other);
    check_next(other);
    return wrong;
}
