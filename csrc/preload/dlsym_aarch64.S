/*
 * dlsym() of the preload.  A call that is not about a hooked function goes on to the real one by
 * a branch, with everything as the caller left it: the caller's return address, in x30, is how
 * the loader knows what RTLD_NEXT and RTLD_DEFAULT mean.
 */
    .text
    .globl  dlsym
    .type   dlsym, %function
dlsym:
    .cfi_startproc
    hint    #34
    stp     x29, x30, [sp, #-32]!
    .cfi_def_cfa_offset 32
    .cfi_offset 29, -32
    .cfi_offset 30, -24
    mov     x29, sp
    stp     x0, x1, [sp, #16]
    bl      hr_choose_symbol
    mov     x16, x0
    mov     x17, x1
    ldp     x0, x1, [sp, #16]
    ldp     x29, x30, [sp], #32
    .cfi_restore 30
    .cfi_restore 29
    .cfi_def_cfa_offset 0
    cbz     x16, 1f
    br      x16
1:  mov     x0, x17
    ret
    .cfi_endproc
    .size   dlsym, . - dlsym
    .section .note.GNU-stack, "", %progbits
