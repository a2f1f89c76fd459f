/* The two-shot kernels for the emulated driver. */
#include "twoshot.cu"
