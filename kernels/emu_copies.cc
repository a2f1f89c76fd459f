/* The kernels of the all-reduce by copies for the emulated driver. */
#include "copies.cu"
