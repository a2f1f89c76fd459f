/* Switches between stacks in a few instructions: the registers that the calling convention
 * preserves are pushed, and a context is just the stack pointer. Machines without such code here
 * use ucontext, which costs a system call per switch.
 */
#include "swap.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)

/* System V ABI: rbx, rbp, r12 to r15. The control bits of mxcsr and the x87 control word stay as
 * they are: no kernel changes them, and loading them costs more than all the rest. */
__asm__(".pushsection .text\n"
        ".balign 16\n"
        ".globl emu_swap\n"
        ".hidden emu_swap\n"
        ".type emu_swap, @function\n"
        "emu_swap:\n"
        "    endbr64\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size emu_swap, . - emu_swap\n"
        ".popsection\n");

int emu_swap_make(void **context, void *stack, size_t bytes, void (*entry)(void))
{
    /* On entry a function expects its return address 8 bytes off a 16-byte boundary; a zero there
     * ends backtraces. Below it lies what emu_swap() pops. */
    uint64_t *sp = (uint64_t *)(void *)((unsigned char *)stack + bytes) - 3;

    sp[0] = 0;
    *--sp = (uint64_t)(uintptr_t)entry;
    for (int i = 0; i < 6; i++)
        *--sp = 0;
    *context = sp;
    return 0;
}

#elif defined(__aarch64__)

/* AAPCS64: x19 to x30, d8 to d15; fpcr. */
__asm__(".pushsection .text\n"
        ".balign 16\n"
        ".globl emu_swap\n"
        ".hidden emu_swap\n"
        ".type emu_swap, %function\n"
        "emu_swap:\n"
        "    hint #34\n" /* bti c */
        "    sub sp, sp, #176\n"
        "    stp x19, x20, [sp]\n"
        "    stp x21, x22, [sp, #16]\n"
        "    stp x23, x24, [sp, #32]\n"
        "    stp x25, x26, [sp, #48]\n"
        "    stp x27, x28, [sp, #64]\n"
        "    stp x29, x30, [sp, #80]\n"
        "    stp d8, d9, [sp, #96]\n"
        "    stp d10, d11, [sp, #112]\n"
        "    stp d12, d13, [sp, #128]\n"
        "    stp d14, d15, [sp, #144]\n"
        "    mrs x9, fpcr\n"
        "    str x9, [sp, #160]\n"
        "    mov x9, sp\n"
        "    str x9, [x0]\n"
        "    mov sp, x1\n"
        "    ldr x9, [sp, #160]\n"
        "    msr fpcr, x9\n"
        "    ldp x19, x20, [sp]\n"
        "    ldp x21, x22, [sp, #16]\n"
        "    ldp x23, x24, [sp, #32]\n"
        "    ldp x25, x26, [sp, #48]\n"
        "    ldp x27, x28, [sp, #64]\n"
        "    ldp x29, x30, [sp, #80]\n"
        "    ldp d8, d9, [sp, #96]\n"
        "    ldp d10, d11, [sp, #112]\n"
        "    ldp d12, d13, [sp, #128]\n"
        "    ldp d14, d15, [sp, #144]\n"
        "    add sp, sp, #176\n"
        "    ret\n"
        ".size emu_swap, . - emu_swap\n"
        ".popsection\n");

int emu_swap_make(void **context, void *stack, size_t bytes, void (*entry)(void))
{
    uint64_t *sp = (uint64_t *)(void *)((unsigned char *)stack + bytes) - 22;
    uint64_t fpcr;

    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
    memset(sp, 0, 22 * sizeof *sp);
    sp[11] = (uint64_t)(uintptr_t)entry; /* x30; x29 of 0 ends backtraces */
    sp[20] = fpcr;
    *context = sp;
    return 0;
}

#else

#include <ucontext.h>

int emu_swap_make(void **context, void *stack, size_t bytes, void (*entry)(void))
{
    ucontext_t *u = *context != NULL ? *context : malloc(sizeof *u);

    if (u == NULL)
        return -1;
    *context = u;
    getcontext(u);
    u->uc_stack.ss_sp = stack;
    u->uc_stack.ss_size = bytes;
    u->uc_link = NULL;
    makecontext(u, entry, 0);
    return 0;
}

void emu_swap(void **from, void *to)
{
    ucontext_t own;
    const int borrowed = *from == NULL; /* a stack not made here: its context stays on it */

    if (borrowed)
        *from = &own;
    swapcontext(*from, to);
    if (borrowed)
        *from = NULL;
}

#endif
