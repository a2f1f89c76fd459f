/* The kernels of device_kernels.cuh for GPUs. */
#include "device_kernels.cuh"
