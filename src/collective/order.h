/* The order of calls: of one communicator's calls between streams, and of all communicators' calls
 * on a device (docs/design.md, "Order between communicators"). */
#ifndef SYMWIN_ORDER_H
#define SYMWIN_ORDER_H

#include "src/collective/copies.h"

#define SW_CAPTURES 8 /* stream captures remembered at the same time */

struct sw_order;
struct sw_table_row;

/* What the calls of a communicator need. Protected by comm->busy and the order's mutex. All from
 * `has_last` to `before_id` but `captured_room` is about calls outside captures. */
struct sw_calls {
    symwin_comm *comm;
    struct sw_calls *next;      /* in the same order */
    struct sw_order *order;     /* shared with the device's other communicators; NULL: unordered */
    int has_last;               /* there is a last call */
    CUstream last_stream;       /* of the last call */
    unsigned long long last_id; /* unique id of that stream; 0: unknown */
    int in_use;                 /* it has made a call */
    uint64_t generation;        /* of the last call */
    unsigned room;              /* most blocks on the device at once in that generation */
    unsigned captured_room;     /* most blocks of a captured call while others were in use */
    uint64_t before_generation; /* the generation that waits for the next two */
    uint32_t before_done;
    unsigned long long before_id;
    struct sw_seen { /* multiprocessors of the stream queried last */
        unsigned long long id;
        CUgreenCtx partition;
        unsigned multiprocessors;
    } seen;
    struct sw_captured {
        cuuint64_t id;   /* of the capture; 0: none */
        CUstream stream; /* of the last call in it */
    } captured[SW_CAPTURES];
    int oldest;            /* index of the entry to replace next */
    cuuint64_t capture_id; /* of the last captured call */
    CUevent edge;          /* owned, created when first needed */
    struct sw_copies copies;
    struct sw_graph_launch graph_launch;
    struct sw_plans *plans; /* owned */
    /* Owned: of `in`, then of `out`, a row for each rank, of the call by parts that is made now,
     * and room to sort as many. NULL: the arguments of its kernel have room for them. */
    struct sw_table_row *rows;
    /* Of calls by parts: more bytes are a large part. A bit for each type for which that is known.
     */
    uint64_t large[SW_COLLECTIVES][SW_TYPES];
    uint16_t large_known[SW_COLLECTIVES];
};

/* ---- collective.c ---- */

/* Creates comm->calls, with the communicator's context current. */
symwin_status sw_calls_create(symwin_comm *comm);
void sw_calls_destroy(symwin_comm *comm); /* of a communicator at any stage of its creation */

struct sw_turn;
struct sw_grid;

/* What the arguments of all kernels begin with, in this turn. */
struct sw_kernel_args sw_kernel_args_of(const struct sw_turn *turn);
/* Launches a kernel, as the turn allows. `fixed`: its arguments are one struct sw_kernel_args, so
 * that it may be launched through the communicator's graph, whose kernel keeps that size. */
symwin_status sw_kernel_queue(const struct sw_turn *turn, const struct sw_kernel *kernel,
                              const struct sw_grid *grid, void *args, int fixed);

/* ---- order.c ---- */

/* Gives the communicator a count of ended blocks and, if its kernels wait for peers, adds it to the
 * communicators of the device. */
symwin_status sw_order_join(struct sw_calls *calls);
void sw_order_leave(struct sw_calls *calls); /* also if sw_order_join() was not called */

/* A call, from its first check to its launch. */
struct sw_turn {
    struct sw_calls *calls;
    const char *call;
    CUstream stream;
    unsigned long long stream_id; /* 0: the driver does not tell it */
    cuuint64_t capture;           /* 0: in no capture */
    int captured;
    unsigned multiprocessors; /* of the stream's partition */
    CUgreenCtx partition;     /* NULL: the whole device */
    unsigned most_blocks;     /* leaves room for what may run beside the call; 0: no limit */
    unsigned room;            /* blocks that the call and the next one take */
    int early;                /* it may begin before the kernel ahead of it has ended */
    int fits;                 /* beside the other calls of its generation */
};

/* Reads the stream's properties. Keeps calls of other communicators of the device out until
 * sw_turn_end(), which must follow each success. */
symwin_status sw_turn_begin(symwin_comm *comm, const char *call, CUstream stream,
                            struct sw_turn *turn);

/* Queues the waits that a grid of `blocks` blocks needs before its launch. */
symwin_status sw_turn_order(struct sw_turn *turn, unsigned blocks);

/* Lets `stream` wait for the communicator's last call. */
symwin_status sw_order_follow(symwin_comm *comm, const char *call, CUstream stream);

/* Lets stream `to` wait for what is in stream `from`. */
symwin_status sw_turn_follow(const struct sw_turn *turn, CUstream from, CUstream to);

/* `launched`: the call is in its stream, and `counted` of its blocks will count themselves. */
void sw_turn_end(struct sw_turn *turn, int launched, unsigned counted);

/* The multiprocessors that calls on a stream have, for checks before a launch. */
symwin_status sw_order_multiprocessors(symwin_comm *comm, const char *call, CUstream stream,
                                       unsigned *out);

/* The most blocks of a call outside captures, on a stream of the whole device; 0: no limit. */
unsigned sw_order_most_blocks(symwin_comm *comm);

#endif
