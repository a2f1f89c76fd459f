/* The kernel that reduces unequal parts, for the emulated driver. */
#include "reduce_v.cu"
