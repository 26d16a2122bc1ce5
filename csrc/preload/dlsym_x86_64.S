/*
 * dlsym() of the preload.  A call that is not about a hooked function goes on to the real one by
 * a jump, with everything as the caller left it: the caller's return address, still on top of the
 * stack, is how the loader knows what RTLD_NEXT and RTLD_DEFAULT mean.
 */
    .text
    .globl  dlsym
    .type   dlsym, @function
dlsym:
    .cfi_startproc
    endbr64
    pushq   %rdi
    .cfi_adjust_cfa_offset 8
    pushq   %rsi
    .cfi_adjust_cfa_offset 8
    subq    $8, %rsp
    .cfi_adjust_cfa_offset 8
    call    hr_choose_symbol
    addq    $8, %rsp
    .cfi_adjust_cfa_offset -8
    popq    %rsi
    .cfi_adjust_cfa_offset -8
    popq    %rdi
    .cfi_adjust_cfa_offset -8
    testq   %rax, %rax
    jz      1f
    jmpq    *%rax
1:  movq    %rdx, %rax
    ret
    .cfi_endproc
    .size   dlsym, . - dlsym
    .section .note.GNU-stack, "", @progbits
