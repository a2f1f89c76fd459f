/* Random calls of NCCL, each with its result checked: what the files of tests/nccl/storm*.c share.
 *
 * All ranks draw the same plan from the seed, so they agree on each step without talking to each
 * other. What only concerns one rank (its streams, where its buffers begin, whether it calls in
 * place) is drawn from the call's key and the rank. Nothing here depends on who serves a call. */
#ifndef STORM_H
#define STORM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "stand_in/stand_in.h"
#include "used_driver.h"

enum {
    MOST_RANKS = 16,
    MOST_COMMS = 8,    /* alive at a time */
    MOST_PENDING = 96, /* calls between two checks */
    MOST_GRAPHS = 2,   /* alive at a time */
    GRAPH_CALLS = 6,   /* of a graph */
    STREAMS = 2,       /* of a rank */
    MEETINGS = 1 << 15 /* unique ids and barriers of a run */
};

#define PREMUL ncclNumOps /* the operation of a pre-multiplied sum */

/* ---- random numbers: storm_model.c ---- */

struct dice {
    uint64_t state;
};

uint64_t mix(uint64_t x);
uint64_t roll(struct dice *dice);
int draw(struct dice *dice, int n); /* 0 to n - 1 */

/* ---- what all processes share ---- */

struct meeting {
    atomic_int published, arrived;
    ncclUniqueId id;
    ncclComm_t handles[MOST_RANKS]; /* of threads of one process */
};

struct world {
    atomic_int wrong; /* what was wrong, of all processes: the run ends */
    atomic_ullong calls, replayed, checked, births, deaths;
    struct meeting meetings[MEETINGS];
};

extern struct world *world;

/* ---- plan ---- */

enum kind {
    ALL_REDUCE,
    REDUCE_SCATTER,
    REDUCE,
    ALL_GATHER,
    ALL_TO_ALL,
    BROADCAST,
    BCAST,
    GATHER,
    SCATTER,
    COLLECTIVES,
    MESSAGE = COLLECTIVES /* a send and a receive */
};

/* Memory of a rank, with what its bytes should be. */
struct memory {
    char *base, *shadow;
    size_t size, used; /* the same on all ranks */
    int symmetric;     /* a buffer has the same place on all ranks */
};

struct comm {
    int id; /* 0: none */
    int size, me;
    int members[MOST_RANKS]; /* numbers of ranks in the world */
    int blocking, suspended, revoked;
    int registered; /* a part of the arena */
    ncclComm_t handle;
    void *registration;
    ncclWindow_t window;
    struct memory memory; /* of the window; size 0: none */
};

struct region {
    char *at;
    size_t size; /* 0: none, or not to be checked */
};

struct call {
    int step, comm, ranks, me; /* me: -1 if this rank has no part in it */
    struct comm *on;           /* it may be gone when the call is checked */
    enum kind kind;
    ncclDataType_t type;
    ncclRedOp_t op;            /* or PREMUL */
    int scalar_on_host;        /* of PREMUL */
    size_t count;              /* elements of a part */
    int root, peer;            /* of a message: who sends and who receives */
    uint64_t key;              /* of the data */
    uint64_t draws;            /* of what the ranks draw themselves, and of scalars */
    int numbers;               /* data that can be reduced, in a call that does not reduce */
    int apart;                 /* never in place, nor in a window */
    int in_stream;             /* copies in its stream, before and behind it, move the data */
    const struct call *before; /* whose output, the same on all ranks, is the input */
    const struct call *over;   /* whose input gets the output */
    /* of this rank */
    struct memory *memory;
    int stream, in_place;
    char *in, *out, *scalar;
    struct region in_region, out_region, copy_region;
};

struct graph {
    int used, mine; /* mine: this rank has calls in it */
    int count;
    int repeatable; /* launched again, it gives the same */
    int launched;   /* since the last check */
    int replays;
    struct call calls[GRAPH_CALLS];
    CUgraphExec exec;
    struct memory memory;
};

struct rank {
    int rank, ranks, device;
    int threads, devices; /* of each process */
    uint64_t seed;
    struct dice plan;
    int step, next_comm, next_meeting, depth;
    unsigned long long planned; /* calls of all ranks */
    CUstream streams[STREAMS];
    CUevent event;
    struct comm comms[MOST_COMMS];
    struct graph graphs[MOST_GRAPHS];
    struct memory arena;
    struct call calls[MOST_PENDING];
    int pending, most_pending;
    unsigned long long calls_made, replayed, checked;
    /* for the watchdog */
    atomic_int at_step, at_comm;
    const char *_Atomic what;
    atomic_llong since; /* ms */
};

/* ---- storm.c ---- */

/* Prints what is wrong and ends the process. */
__attribute__((format(printf, 2, 3), noreturn)) void fail(const struct rank *rank,
                                                          const char *format, ...);
void begin(struct rank *rank, const struct comm *comm, const char *what);
void driver_done(struct rank *rank, CUresult result);
void nccl_done(struct rank *rank, struct comm *comm, ncclResult_t result);
void pause_briefly(void);

#define DRIVER(rank, name, ...) (begin(rank, NULL, #name), driver_done(rank, cu.name(__VA_ARGS__)))
/* Outside a group, waits until a communicator that is not blocking is ready again. */
#define NCCL(rank, comm, name, ...)                                                                \
    (begin(rank, comm, #name), (rank)->calls_made++, nccl_done(rank, comm, name(__VA_ARGS__)))

/* ---- storm_model.c: data ---- */

extern const size_t widths[ncclNumTypes];

size_t in_elements(const struct call *call); /* of a rank that has an input */
size_t out_elements(const struct call *call);
int takes_in(const struct call *call); /* this rank reads its input, or writes its output */
int gives_out(const struct call *call);
void write_input(const struct call *call, char *to);
void write_expected(const struct call *call, char *to);
void write_scalar(const struct call *call, char *to); /* of this rank */

/* ---- storm_call.c: buffers, calls, checks ---- */

void memory_make(struct rank *rank, struct memory *memory, size_t size);
void memory_free(struct rank *rank, struct memory *memory);
int call_place(struct rank *rank, struct call *call, struct memory *memory); /* 0: no room */
void call_fill(struct rank *rank, struct call *call);
enum halves { SENDS = 1, RECEIVES = 2, ALL = 3 };
void call_make(struct rank *rank, struct call *call, enum halves halves);
void flush(struct rank *rank);                        /* waits for all calls, and checks them */
void call_copy(struct rank *rank, struct call *call); /* behind it, if it is in_stream */
void group_start(struct rank *rank);
void group_end(struct rank *rank, struct call **calls, int count);

/* ---- storm_births.c ---- */

void meet_all(struct rank *rank, const struct comm *comm); /* a barrier */
void settle(struct rank *rank, struct comm *comm); /* until it is ready, if it is not blocking */
void step_births(struct rank *rank, int most);
void births_at_start(struct rank *rank);
void shrink_revoked(struct rank *rank, struct comm *comm); /* which ends */

/* ---- storm_life.c: communicators ---- */

/* Of those that take calls. -1: any; NULL: none */
struct comm *pick_comm(struct rank *rank, int least, int blocking);
int comms_alive(const struct rank *rank);
void end_comm(struct rank *rank, struct comm *comm, int way); /* finalized, destroyed or aborted */
void step_life(struct rank *rank);
void step_registration(struct rank *rank);
void step_states(struct rank *rank);
void end_all(struct rank *rank);

/* ---- storm_graph.c ---- */

void step_capture(struct rank *rank);
void graph_end(struct rank *rank, struct graph *graph); /* after a flush */
int graph_has(const struct graph *graph, const struct comm *comm);

/* ---- storm_plan.c ---- */

/* Which steps STORM_ONLY leaves; all without it. */
enum steps {
    DO_COLLECTIVES,
    DO_GROUPS,
    DO_P2P,
    DO_CAPTURE,
    DO_BIRTHS,
    DO_REGISTRATIONS,
    DO_STATES,
    STEPS
};
extern const char *const step_names[STEPS];
extern int steps_on[STEPS];

/* Draws a call; its buffers are not larger than `most` bytes each. */
void draw_call(struct rank *rank, struct call *call, struct comm *comm, enum kind kind,
               size_t most);
/* Of which this rank may have none. */
void make_group(struct rank *rank, struct call **calls, int count);
void run_plan(struct rank *rank, unsigned long long calls);

#endif
