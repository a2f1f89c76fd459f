/* The two-shot kernels by bulk copies for the emulated driver. */
#include "twoshot_bulk.cu"
