/* The all-reduce by copies against the plain reference, on whatever driver is loaded. */
#ifndef SYMWIN_TESTS_COPIES_CASES_H
#define SYMWIN_TESTS_COPIES_CASES_H

/* Every type and operation, counts around the boundaries of shares and chunks, odd offsets; every thin-th call. */
void copies_matrix(int nranks, int thin);

/* Calls in flight, each on the result of the one before, mixed with other algorithms and over several streams, on
 * ranks of unlike speed: `count` words of four bytes. */
void copies_chain(int nranks, int calls, int streams, unsigned count);

/* A captured graph with several calls, replayed while the inputs change and calls are made outside. */
void copies_graphs(int nranks, int replays, unsigned count);

#endif
