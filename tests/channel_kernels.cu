/* The kernels of channel_kernels.cuh for GPUs. */
#include "channel_kernels.cuh"
