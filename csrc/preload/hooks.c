#include "hooks.h"

#include "find.h"

static CUresult missing(void)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* The first call of each function, where nothing has looked for the driver before. */
#define FIRST_CALL(name, parameters, arguments)                                                    \
    static CUresult first_##name parameters                                                        \
    {                                                                                              \
        if (!hr_find_library(&hr_cuda_library))                                                    \
            return CUDA_ERROR_NOT_SUPPORTED;                                                       \
        return HR_CUDA(name) arguments;                                                            \
    }
HR_CUDA_HOOKS(FIRST_CALL)
HR_CUDA_CALLED(FIRST_CALL)

#define AT_FIRST(name, parameters, arguments) .name = first_##name,
struct hr_cuda_functions hr_cuda = {HR_CUDA_HOOKS(AT_FIRST) HR_CUDA_CALLED(AT_FIRST)};

#define FUNCTION(called, its_hook)                                                                 \
    {.name = #called,                                                                              \
     .hook = its_hook,                                                                             \
     .missing = (void *)missing,                                                                   \
     .real = (_Atomic(void *) *)(void *)&hr_cuda.called},
#define HOOKED(name, parameters, arguments) FUNCTION(name, (void *)name)
#define CALLED(name, parameters, arguments) FUNCTION(name, NULL)
static const struct hr_function functions[] = {HR_CUDA_HOOKS(HOOKED) HR_CUDA_CALLED(CALLED)};

struct hr_library hr_cuda_library = {
    .stand_in_for = "libcuda-real.so.1",
    .name = "libcuda.so.1",
    .functions = functions,
    .count = sizeof functions / sizeof functions[0],
};

static CUresult choose_hook(CUresult result, void **found)
{
    if (result != CUDA_SUCCESS || found == NULL)
        return result;
    void *hook = hr_hook_at(&hr_cuda_library, *found);
    if (hook != NULL)
        *found = hook;
    return result;
}

CUresult cuGetProcAddress(const char *symbol, void **found, int version, uint64_t flags)
{
    return choose_hook(HR_CUDA(cuGetProcAddress)(symbol, found, version, flags), found);
}

/* Programs take it for there if dlsym() shows it, so older drivers get the first version. */
CUresult cuGetProcAddress_v2(const char *symbol, void **found, int version, uint64_t flags,
                             int *status)
{
    if (hr_find_library(&hr_cuda_library) &&
        (void *)HR_CUDA(cuGetProcAddress_v2) == (void *)missing) {
        CUresult result = cuGetProcAddress(symbol, found, version, flags);
        if (status != NULL)
            *status = result == CUDA_SUCCESS ? 0 : 1;
        return result;
    }
    return choose_hook(HR_CUDA(cuGetProcAddress_v2)(symbol, found, version, flags, status), found);
}
