/* The kernel that moves bytes into windows, for the emulated driver. */
#include "put.cu"
