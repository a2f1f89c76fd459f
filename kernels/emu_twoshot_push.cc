/* The two-shot push kernels for the emulated driver. */
#include "twoshot_push.cu"
