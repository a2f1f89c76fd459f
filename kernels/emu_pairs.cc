/* The kernel of sends and receives, for the emulated driver. */
#include "pairs.cu"
