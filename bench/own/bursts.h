/* Many calls in a row without a wait between them. */
#ifndef PERF_BURSTS_H
#define PERF_BURSTS_H

#include "cases.h"

enum { BURST_CALLS = ROOM_SLOTS, BURST_REPLAYS = 6, BURST_TEXT = 4 * CASE_TEXT };

/* What may change from one call of a burst to the next. */
enum { VARY_SIZE = 1, VARY_GRID = 2, VARY_PLACE = 4, VARY_TYPE = 8 };

struct burst {
    uint64_t seed;
    int calls;
    int replays;      /* of a graph of the calls; 0: stream launches */
    unsigned vary;    /* VARY_... */
    int shuffled;     /* the ranks queue each call in a different order */
    int poison;       /* overwrite the slots before the burst */
    unsigned wait_ns; /* longest delay of a rank before a call */
    struct sw_emu_race race;
};

/* A rank's memory for bursts. */
struct bursts {
    const struct subject *subject;
    struct room room;
    size_t pitch;     /* bytes of the buffers for one call */
    CUdeviceptr logs; /* owned: copies of the outputs, made after each call */
    CUdeviceptr reports;
    CUgraphExec graph;
    struct burst burst; /* the one that runs, and its calls */
    struct own_case cases[BURST_CALLS];
};

/* The first wrong call. */
struct burst_wrong {
    struct outcome outcome;
    int call, replay;
    struct own_case of, before; /* the call, and the one before it */
};

/* All functions are collective. */
int bursts_open(struct rank *r, const struct subject *subject, size_t pitch, struct bursts *bursts);
void bursts_close(struct rank *r, struct bursts *bursts);

/* Makes the calls, then compares all results. */
int burst_run(struct rank *r, struct bursts *bursts, const struct burst *burst,
              struct burst_wrong *wrong);

/* Prints "call 3 of 5 in replay 2, ..." with the outcome. */
void burst_print(const struct burst *burst, const struct burst_wrong *wrong, char text[BURST_TEXT]);

#endif
