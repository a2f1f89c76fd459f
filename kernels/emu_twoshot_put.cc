/* The two-shot put kernels for the emulated driver. */
#include "twoshot_put.cu"
