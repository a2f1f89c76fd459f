/* Many calls in a row, with nobody waiting in between. */
#ifndef PERF_BURSTS_H
#define PERF_BURSTS_H

#include "cases.h"

enum { BURST_CALLS = 6, BURST_REPLAYS = 6, BURST_TEXT = 4 * CASE_TEXT };

/* What may differ from one call of a burst to the next. */
enum { VARY_SIZE = 1, VARY_GRID = 2, VARY_PLACE = 4, VARY_TYPE = 8 };

struct burst {
    uint64_t seed;
    int calls;
    int replays;      /* of a graph of them; 0: they go into the stream */
    unsigned vary;    /* VARY_... */
    int shuffled;     /* the ranks queue each call in an order of its own */
    int poison;       /* the slots are overwritten before it */
    unsigned wait_ns; /* ranks wait for as long at most before a call */
    struct sw_emu_race race;
};

/* What a burst needs, of each rank. */
struct bursts {
    const struct subject *subject;
    struct room room;
    size_t pitch;     /* bytes of one call's part of the buffers */
    CUdeviceptr logs; /* owned: outputs as they were when a call had ended */
    CUdeviceptr reports;
    CUgraphExec graph;
};

/* Which call was wrong. */
struct burst_wrong {
    struct outcome outcome;
    int call, replay;
    struct own_case of, before; /* it, and the one before it in the burst */
};

/* Collective, all of these. */
symwin_status bursts_open(struct rank *r, const struct subject *subject, size_t pitch,
                          struct bursts *bursts);
void bursts_close(struct rank *r, struct bursts *bursts);

/* Makes the calls, and looks at all results then. */
symwin_status burst_run(struct rank *r, struct bursts *bursts, const struct burst *burst,
                        struct burst_wrong *wrong);

/* "call 3 of 5, replay 2: ..." with what came of it. */
void burst_print(const struct burst *burst, const struct burst_wrong *wrong, char text[BURST_TEXT]);

#endif
