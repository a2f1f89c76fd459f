/* libsymwin-nccl-full.so: a jump to the next definition for each of NCCL's functions (names.h), so
 * that a program may load it in NCCL's place. Arguments and results are not looked at, and no
 * prototype is needed. It is not for preloading: there it would stand between every library and
 * the NCCL that this library has. */
#include <string.h>

#include "nccl/api.h"
#include "nccl/full/names.h"
#include "nccl/next.h"

#define HIDDEN __attribute__((used, visibility("hidden")))

typedef void (*any_fn)(void);

/* What is called if the process has no NCCL, or an older one without the function. */
static int no_code(void)
{
    return ncclSystemError;
}

static const char *no_text(void)
{
    return "no NCCL is loaded, or an older one without this function";
}

HIDDEN any_fn sw_forward_resolve(struct sw_next *next); /* from the code below */

any_fn sw_forward_resolve(struct sw_next *next)
{
    void *symbol = sw_next_find(next, NULL);
    any_fn function = next->missing;

    if (symbol != NULL)
        memcpy(&function, &symbol, sizeof function);
    return function;
}

#if defined(__x86_64__)

/* `next` is read in each call. r11 and rax belong to no argument; the stack stays aligned to 16. */
#define JUMP(function, next)                                                                       \
    __asm__(".pushsection .text\n"                                                                 \
            ".globl " #function "\n"                                                               \
            ".type " #function ", @function\n" #function ":\n"                                     \
            "    endbr64\n"                                                                        \
            "    movq " #next "(%rip), %r11\n"                                                     \
            "    testq %r11, %r11\n"                                                               \
            "    je 1f\n"                                                                          \
            "    jmp *%r11\n"                                                                      \
            "1:  leaq " #next "(%rip), %r11\n"                                                     \
            "    jmp sw_forward_first\n"                                                           \
            ".size " #function ", .-" #function "\n"                                               \
            ".popsection\n");

/* The first call: r11 is the address of its struct sw_next. */
__asm__(".pushsection .text\n"
        ".type sw_forward_first, @function\n"
        "sw_forward_first:\n"
        "    .cfi_startproc\n"
        "    pushq %rdi\n"
        "    pushq %rsi\n"
        "    pushq %rdx\n"
        "    pushq %rcx\n"
        "    pushq %r8\n"
        "    pushq %r9\n"
        "    subq $8, %rsp\n"
        "    .cfi_adjust_cfa_offset 56\n"
        "    movq %r11, %rdi\n"
        "    call sw_forward_resolve\n"
        "    movq %rax, %r11\n"
        "    addq $8, %rsp\n"
        "    popq %r9\n"
        "    popq %r8\n"
        "    popq %rcx\n"
        "    popq %rdx\n"
        "    popq %rsi\n"
        "    popq %rdi\n"
        "    .cfi_adjust_cfa_offset -56\n"
        "    jmp *%r11\n"
        "    .cfi_endproc\n"
        ".size sw_forward_first, .-sw_forward_first\n"
        ".popsection\n");

#elif defined(__aarch64__)

/* x16 and x17 belong to no argument. */
#define JUMP(function, next)                                                                       \
    __asm__(".pushsection .text\n"                                                                 \
            ".globl " #function "\n"                                                               \
            ".type " #function ", %function\n" #function ":\n"                                     \
            "    hint #34\n"                                                                       \
            "    adrp x16, " #next "\n"                                                            \
            "    add x16, x16, :lo12:" #next "\n"                                                  \
            "    ldar x17, [x16]\n"                                                                \
            "    cbz x17, 1f\n"                                                                    \
            "    br x17\n"                                                                         \
            "1:  b sw_forward_first\n"                                                             \
            ".size " #function ", .-" #function "\n"                                               \
            ".popsection\n");

/* The first call: x16 is the address of its struct sw_next. */
__asm__(".pushsection .text\n"
        ".type sw_forward_first, %function\n"
        "sw_forward_first:\n"
        "    .cfi_startproc\n"
        "    stp x29, x30, [sp, #-96]!\n"
        "    .cfi_adjust_cfa_offset 96\n"
        "    .cfi_rel_offset x29, 0\n"
        "    .cfi_rel_offset x30, 8\n"
        "    stp x0, x1, [sp, #16]\n"
        "    stp x2, x3, [sp, #32]\n"
        "    stp x4, x5, [sp, #48]\n"
        "    stp x6, x7, [sp, #64]\n"
        "    str x8, [sp, #80]\n"
        "    mov x0, x16\n"
        "    bl sw_forward_resolve\n"
        "    mov x17, x0\n"
        "    ldp x0, x1, [sp, #16]\n"
        "    ldp x2, x3, [sp, #32]\n"
        "    ldp x4, x5, [sp, #48]\n"
        "    ldp x6, x7, [sp, #64]\n"
        "    ldr x8, [sp, #80]\n"
        "    ldp x29, x30, [sp], #96\n"
        "    .cfi_adjust_cfa_offset -96\n"
        "    .cfi_restore x29\n"
        "    .cfi_restore x30\n"
        "    br x17\n"
        "    .cfi_endproc\n"
        ".size sw_forward_first, .-sw_forward_first\n"
        ".popsection\n");

#endif

#define FORWARD(function, result)                                                                  \
    HIDDEN struct sw_next sw_next_##function = {.name = #function,                                 \
                                                .missing = (any_fn)no_##result};                   \
    HIDDEN struct sw_next sw_next_p##function = {                                                  \
        .name = "p" #function, .or_else = #function, .missing = (any_fn)no_##result};              \
    JUMP(function, sw_next_##function)                                                             \
    JUMP(p##function, sw_next_p##function)

#ifdef JUMP
SW_NCCL_NAMES(FORWARD)
#endif
