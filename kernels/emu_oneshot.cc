/* The one-shot kernels for the emulated driver. */
#include "oneshot.cu"
