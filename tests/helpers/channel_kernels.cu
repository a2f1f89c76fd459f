/* The kernels of channel_kernels.cuh and its neighbours for GPUs. */
#include "channel_kernels.cuh"
#include "copy_kernels.cuh"
#include "packet_kernels.cuh"
#include "reduce_kernels.cuh"
#include "team_kernels.cuh"
