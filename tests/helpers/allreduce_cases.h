/* The all-reduce against the plain reference, on whatever driver is loaded: every type, operation and
 * algorithm, in and out of place, odd counts, odd addresses, windows and plain memory, streams, graphs.
 */
#ifndef SYMWIN_TESTS_ALLREDUCE_CASES_H
#define SYMWIN_TESTS_ALLREDUCE_CASES_H

#include <stddef.h>

/* One line for each type, operation and algorithm: all counts and placements of it. `counts` ends
 * with 0; `thin` > 1 tries only every thin-th placement, in turn. */
void allreduce_matrix(int nranks, const size_t *counts, int thin);

/* Messages of several slots in one-shot rounds, plain memory, count 0, a large message. */
void allreduce_shapes(int nranks, size_t large_bytes);

/* Messages of several entries a thread, by ranks of different grids. */
void allreduce_long(int nranks);

/* A captured graph replayed while the inputs change; calls over several streams in flight. */
void allreduce_graphs(int nranks, int replays);
void allreduce_streams(int nranks, int calls);

/* Random sizes, offsets, types, operations and algorithms for `runs` calls in one sequence. */
void allreduce_random(int nranks, int runs, size_t most_bytes, unsigned seed);

#endif
