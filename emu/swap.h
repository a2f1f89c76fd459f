/* Switches between stacks. */
#ifndef SYMWIN_EMU_SWAP_H
#define SYMWIN_EMU_SWAP_H

#include <stddef.h>

/* Makes *context (NULL, or from an earlier call) a context that starts in `entry`, which must never
 * return, on the `bytes` bytes at `stack`. -1: no memory. */
int emu_swap_make(void **context, void *stack, size_t bytes, void (*entry)(void));

/* Saves the caller's context in *from and continues at `to`: in the emu_swap() that saved it, or at
 * its start. */
void emu_swap(void **from, void *to);

#endif
