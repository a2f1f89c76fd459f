/* The order of calls: of one communicator's calls between streams, and of all communicators' calls
 * on a device (docs/design.md, "Order between communicators"). */
#ifndef SYMWIN_ORDER_H
#define SYMWIN_ORDER_H

#include "src/collective/kernel_table.h"

/* When a communicator is created, with its context current. Gives it a count of ended blocks and,
 * if its kernels wait for peers, adds it to the communicators of the device. */
symwin_status sw_order_join(symwin_comm *comm);
void sw_order_leave(symwin_comm *comm); /* also if sw_order_join() was not called */

/* A call, from its first check to its launch. */
struct sw_turn {
    symwin_comm *comm;
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

/* `launched`: the call is in its stream, and `counted` of its blocks will count themselves. */
void sw_turn_end(struct sw_turn *turn, int launched, unsigned counted);

/* The most blocks of a call outside captures, on a stream of the whole device; 0: no limit. */
unsigned sw_order_most_blocks(symwin_comm *comm);

#endif
