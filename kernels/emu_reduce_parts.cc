/* The kernels that reduce parts, for the emulated driver. */
#include "reduce_parts.cu"
