/* The kernels of channel_kernels.cuh and copy_kernels.cuh for GPUs. */
#include "channel_kernels.cuh"
#include "copy_kernels.cuh"
