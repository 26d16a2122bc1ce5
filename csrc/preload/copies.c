/*
 * Copies and fills: a process that is suspended makes none, as it launches nothing.  They cost
 * nothing of an SM limit.
 */
#include "cuda_functions.h"
#include "session.h"

#define COPY_HOOK(name, parameters, arguments)                                                     \
    CUresult name parameters                                                                       \
    {                                                                                              \
        if (__builtin_expect((hr_current_holds() & HR_HOLD_SUSPENDED) != 0, 0))                    \
            hr_wait_while_suspended();                                                             \
        return HR_CUDA(name) arguments;                                                            \
    }
HR_COPY_HOOKS(COPY_HOOK)
