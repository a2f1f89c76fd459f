/* The kernels of ends_kernels.cuh for GPUs. */
#include "ends_kernels.cuh"
