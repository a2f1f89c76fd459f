/* The kernels of channel_kernels.cuh, copy_kernels.cuh and packet_kernels.cuh for GPUs. */
#include "channel_kernels.cuh"
#include "copy_kernels.cuh"
#include "packet_kernels.cuh"
