/*
 * dlsym() of the preload.  A call that is not about a hooked function goes on to the real one by a
 * jump, with everything as the caller left it: the caller's return address, still where the call
 * has put it, is how the loader knows what RTLD_NEXT and RTLD_DEFAULT mean.  No compiler promises
 * such a jump, so it is written out for each machine.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

#include "find.h"

/* Which function a call leads to: jump to `real` with the caller's arguments; where that is NULL,
 * return `found`. */
struct hr_choice {
    void *real;
    void *found;
};
struct hr_choice hr_choose_symbol(void *handle, const char *name);

#if defined(__x86_64__)
__asm__(".text\n"
        ".globl dlsym\n"
        ".type dlsym, @function\n"
        "dlsym:\n"
        ".cfi_startproc\n"
        "endbr64\n"
        "pushq %rdi\n"
        ".cfi_adjust_cfa_offset 8\n"
        "pushq %rsi\n"
        ".cfi_adjust_cfa_offset 8\n"
        "subq $8, %rsp\n"
        ".cfi_adjust_cfa_offset 8\n"
        "call hr_choose_symbol\n"
        "addq $8, %rsp\n"
        ".cfi_adjust_cfa_offset -8\n"
        "popq %rsi\n"
        ".cfi_adjust_cfa_offset -8\n"
        "popq %rdi\n"
        ".cfi_adjust_cfa_offset -8\n"
        "testq %rax, %rax\n"
        "jz 1f\n"
        "jmpq *%rax\n"
        "1: movq %rdx, %rax\n"
        "ret\n"
        ".cfi_endproc\n"
        ".size dlsym, . - dlsym\n");
#elif defined(__aarch64__)
__asm__(".text\n"
        ".globl dlsym\n"
        ".type dlsym, %function\n"
        "dlsym:\n"
        ".cfi_startproc\n"
        "hint #34\n"
        "stp x29, x30, [sp, #-32]!\n"
        ".cfi_def_cfa_offset 32\n"
        ".cfi_offset 29, -32\n"
        ".cfi_offset 30, -24\n"
        "mov x29, sp\n"
        "stp x0, x1, [sp, #16]\n"
        "bl hr_choose_symbol\n"
        "mov x16, x0\n"
        "mov x17, x1\n"
        "ldp x0, x1, [sp, #16]\n"
        "ldp x29, x30, [sp], #32\n"
        ".cfi_restore 30\n"
        ".cfi_restore 29\n"
        ".cfi_def_cfa_offset 0\n"
        "cbz x16, 1f\n"
        "br x16\n"
        "1: mov x0, x17\n"
        "ret\n"
        ".cfi_endproc\n"
        ".size dlsym, . - dlsym\n");
#else
#error "the preload knows x86-64 and aarch64"
#endif

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
    /* A global search has found this library.  The real one may be where only the caller's own
     * search finds it (RTLD_LOCAL), or may not be loaded: then the search from here on fails, and
     * leaves dlerror() the right text. */
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
