/* The example's test data, and the expected result, computed on the host. */
#ifndef HOST_H
#define HOST_H

#include "options.h"

enum { HOST_RESULT = -1 };

/* Writes `count` elements, from element `first` on, in the problem's type: the input of `rank`, or,
 * for HOST_RESULT, the expected result of every rank. */
void host_fill(const struct problem *problem, int rank, uint64_t first, size_t count, void *to);

#endif
