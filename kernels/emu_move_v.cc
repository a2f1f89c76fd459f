/* The kernel that moves bytes of unequal parts, for the emulated driver. */
#include "move_v.cu"
