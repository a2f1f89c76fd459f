/* Leaving one stack for another. */
#ifndef SYMWIN_EMU_SWAP_H
#define SYMWIN_EMU_SWAP_H

#include <stddef.h>

/* Makes *context (NULL, or from an earlier call) the start of `entry`, which must never return, on
 * the `bytes` bytes at `stack`. -1: no memory. */
int emu_swap_make(void **context, void *stack, size_t bytes, void (*entry)(void));

/* Keeps where the caller is in *from and goes on at `to`: in the emu_swap() that
 * left it, or at its start. */
void emu_swap(void **from, void *to);

#endif
