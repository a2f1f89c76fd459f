/* The kernel that sums what other domains have sent, for the emulated driver. */
#include "sum.cu"
