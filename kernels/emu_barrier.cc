/* The kernel of the barrier, for the emulated driver. */
#include "barrier.cu"
