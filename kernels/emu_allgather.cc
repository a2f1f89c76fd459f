/* The all-gather kernel for the emulated driver. */
#include "allgather.cu"
