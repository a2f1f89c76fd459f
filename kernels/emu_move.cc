/* The kernel that moves bytes, for the emulated driver. */
#include "move.cu"
