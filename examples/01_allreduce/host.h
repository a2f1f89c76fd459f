/* The example's test data, and the host's own all-reduce of it. */
#ifndef HOST_H
#define HOST_H

#include "options.h"

enum { HOST_RESULT = -1 };

/* Writes `count` elements, from element `first` on, in the problem's type: what `rank` puts in, or,
 * for HOST_RESULT, what every rank must get out. */
void host_fill(const struct problem *problem, int rank, uint64_t first, size_t count, void *to);

#endif
