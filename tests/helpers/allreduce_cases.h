/* Cases of the all-reduce against the plain reference, on the driver that is loaded: every type,
 * operation and algorithm, in and out of place, odd counts and addresses, windows and plain memory,
 * streams, graphs. Each function runs a team of `nranks` ranks. */
#ifndef SYMWIN_TESTS_ALLREDUCE_CASES_H
#define SYMWIN_TESTS_ALLREDUCE_CASES_H

#include <stddef.h>

/* One TAP line for each type, operation and algorithm, with all counts and placements. `counts`
 * ends with 0. Only every thin-th placement is tried. */
void allreduce_matrix(int nranks, const size_t *counts, int thin);

/* Messages of several slots in one-shot rounds, plain memory, count 0, a large message. */
void allreduce_shapes(int nranks, size_t large_bytes);

/* Messages with several entries for each thread, by ranks of different grids. */
void allreduce_long(int nranks);

/* A captured graph replayed while the inputs change; calls over several streams in flight. */
void allreduce_graphs(int nranks, int replays);
void allreduce_streams(int nranks, int calls);

/* A captured graph of pre-multiplied sums by each algorithm, replayed while inputs and the scalars
 * in device memory change; the others stay as they were when they were captured. */
void allreduce_scalars(int nranks, int replays);

/* Random sizes, offsets, types, operations and algorithms for `runs` calls in one sequence. */
void allreduce_random(int nranks, int runs, size_t most_bytes, unsigned seed);

/* ---- the all-reduce by copies ---- */

/* Every type and operation, counts around the boundaries of shares and chunks, odd offsets; only
 * every thin-th call. */
void copies_matrix(int nranks, int thin);

/* Calls in flight, each on the result of the previous one, mixed with other algorithms, over
 * several streams, on ranks of different speed: `count` words of 4 bytes. */
void copies_chain(int nranks, int calls, int streams, unsigned count);

/* A captured graph with several calls, replayed while the inputs change, with calls outside it. */
void copies_graphs(int nranks, int replays, unsigned count);

#endif
