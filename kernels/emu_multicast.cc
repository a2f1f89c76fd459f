/* The multicast kernels for the emulated driver. */
#include "multicast.cu"
