/* The order of calls: of one communicator's between streams, and of all communicators' on a device (docs/design.md, "Order
 * between communicators"). */
#ifndef SYMWIN_ORDER_H
#define SYMWIN_ORDER_H

#include "src/collective/kernel_table.h"

/* When a communicator is created, with its context current: gives it a count of ended blocks and, if its kernels wait for
 * peers, a place among the communicators of the device. */
symwin_status sw_order_join(symwin_comm *comm);
void sw_order_leave(symwin_comm *comm); /* also if it has not joined */

/* A call on its way to its launch. */
struct sw_turn {
    symwin_comm *comm;
    const char *call;
    CUstream stream;
    unsigned long long stream_id; /* 0: the driver tells none */
    cuuint64_t capture;           /* 0: in none */
    int captured;
    unsigned multiprocessors; /* of the stream's partition */
    CUgreenCtx partition;     /* NULL: the device */
    unsigned most_blocks;     /* that leave room for what may run beside the call; 0: no limit */
    unsigned room;            /* blocks that the call and the one behind it take */
    int early;                /* it may begin before the kernel ahead of it has ended */
    int fits;                 /* beside the calls of its generation */
};

/* Finds out about the stream. Keeps calls of other communicators of the device off until sw_turn_end(), which belongs to
 * each success. */
symwin_status sw_turn_begin(symwin_comm *comm, const char *call, CUstream stream,
                            struct sw_turn *turn);

/* Puts a grid of so many blocks after what it has to come after. */
symwin_status sw_turn_order(struct sw_turn *turn, unsigned blocks);

/* `launched`: the call is in its stream, and `counted` blocks of it will count themselves. */
void sw_turn_end(struct sw_turn *turn, int launched, unsigned counted);

/* Most blocks of a call outside captures, on a stream of the whole device. 0: no limit. */
unsigned sw_order_most_blocks(symwin_comm *comm);

#endif
