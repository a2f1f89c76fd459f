/* dlsym() for programs that look NCCL's functions up in a handle: it gives them this library's.
 *
 * Every process that preloads this library looks its symbols up here. All cases but one are a jump
 * to the real dlsym(), which sees the caller as if nothing were in between: RTLD_NEXT depends on
 * it. The one is a name that this library serves, in the handle of a library, where the real
 * dlsym() finds that of the NCCL that this library calls. dlvsym() is left alone: by it the real
 * dlsym() is found (real_dlsym.c).
 *
 * Sanitizers and profilers have a dlsym() of their own, which then is the next one. They call
 * this one before instrumented code can run. */
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

#include "nccl/next.h"
#include "symwin.h"

/* The function that is given in place of NCCL's; NULL: what the real dlsym() finds. */
static void *in_place_of(void *handle, const char *name)
{
    const struct sw_served *served = sw_served;
    const char *slash;
    void *symbol;
    Dl_info info;

    while (served->next != NULL && strcmp(served->next->name, name) != 0)
        served++;
    if (served->next == NULL)
        return NULL;
    symbol = sw_next_dlsym()(handle, name);
    if (symbol == NULL || dladdr(symbol, &info) == 0 || info.dli_fname == NULL)
        return NULL;
    slash = strrchr(info.dli_fname, '/');
    if (strncmp(slash != NULL ? slash + 1 : info.dli_fname, "libnccl.so", 10) != 0 ||
        !sw_next_is(served->next, symbol, info.dli_fname))
        return NULL;
    memcpy(&symbol, &served->function, sizeof symbol);
    return symbol;
}

__attribute__((used, visibility("hidden"))) void *sw_dlsym_choose(void *handle, const char *name);

SW_PLAIN void *sw_dlsym_choose(void *handle, const char *name)
{
    const char *of = name;

    (void)sw_next_dlsym();
    if (of == NULL || handle == RTLD_DEFAULT || handle == RTLD_NEXT)
        return NULL;
    of += of[0] == 'p';
    return of[0] == 'n' && of[1] == 'c' && of[2] == 'c' && of[3] == 'l' ? in_place_of(handle, name)
                                                                        : NULL;
}

/* For symwin itself, which may be linked to the program (src/rails/engine.c). */
SYMWIN_API void *symwin_nccl_dlsym(void *handle, const char *name);

void *symwin_nccl_dlsym(void *handle, const char *name)
{
    return sw_next_dlsym()(handle, name);
}

#if defined(__x86_64__)
__asm__(".pushsection .text\n"
        ".globl dlsym\n"
        ".type dlsym, @function\n"
        "dlsym:\n"
        "    .cfi_startproc\n"
        "    endbr64\n"
        "    pushq %rdi\n"
        "    pushq %rsi\n"
        "    subq $8, %rsp\n"
        "    .cfi_adjust_cfa_offset 24\n"
        "    call sw_dlsym_choose\n"
        "    addq $8, %rsp\n"
        "    popq %rsi\n"
        "    popq %rdi\n"
        "    .cfi_adjust_cfa_offset -24\n"
        "    testq %rax, %rax\n"
        "    jne 1f\n"
        "    jmp *sw_dlsym_real(%rip)\n"
        "1:  ret\n"
        "    .cfi_endproc\n"
        ".size dlsym, .-dlsym\n"
        ".popsection\n");
#elif defined(__aarch64__)
__asm__(".pushsection .text\n"
        ".globl dlsym\n"
        ".type dlsym, %function\n"
        "dlsym:\n"
        "    .cfi_startproc\n"
        "    hint #34\n"
        "    stp x29, x30, [sp, #-32]!\n"
        "    .cfi_adjust_cfa_offset 32\n"
        "    .cfi_rel_offset x29, 0\n"
        "    .cfi_rel_offset x30, 8\n"
        "    stp x0, x1, [sp, #16]\n"
        "    bl sw_dlsym_choose\n"
        "    mov x16, x0\n"
        "    ldp x0, x1, [sp, #16]\n"
        "    ldp x29, x30, [sp], #32\n"
        "    .cfi_adjust_cfa_offset -32\n"
        "    .cfi_restore x29\n"
        "    .cfi_restore x30\n"
        "    cbnz x16, 1f\n"
        "    adrp x16, sw_dlsym_real\n"
        "    ldr x16, [x16, :lo12:sw_dlsym_real]\n"
        "    br x16\n"
        "1:  mov x0, x16\n"
        "    ret\n"
        "    .cfi_endproc\n"
        ".size dlsym, .-dlsym\n"
        ".popsection\n");
#endif
