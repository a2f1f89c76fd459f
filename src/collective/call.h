/* A call of a collective between its checks and its launch. collective.c makes single calls,
 * batch.c several small ones at once. */
#ifndef SYMWIN_CALL_H
#define SYMWIN_CALL_H

#include "src/collective/calls.h"
#include "src/collective/order.h"
#include "src/collective/select.h"

enum { IN, OUT };

struct call {
    const struct sw_collective *collective;
    const char *name;            /* of the public call, for texts */
    struct sw_buffer buffers[2]; /* IN and OUT */
    uint64_t count;
    symwin_algo algo;
    struct sw_grid asked; /* 0: no request */
    CUstream stream;
    struct sw_query query;       /* what the plan depends on */
    int root;                    /* SW_NO_RANK: the collective has none */
    uint64_t scalar;             /* of a pre-multiplied sum */
    int scalar_on_device;        /* it is an address */
    int scalar_unread;           /* as in struct sw_request */
    struct sw_table_args *table; /* of a collective by parts; otherwise NULL */
};

struct call sw_call_of(const struct sw_request *r);

/* Finds where the buffers lie, together with the other ranks if the call is launched. If an
 * agreement is left to another call, there is no result. */
symwin_status sw_call_find_buffers(struct call *c, struct sw_launched *launched);

/* The ranks that this rank sends to and receives from, itself included (kernels/pattern.cuh). */
int sw_call_sends_to(const struct call *c);
int sw_call_receives_from(const struct call *c);

/* What must be equal on all ranks, in 32 bits. The kernels compare it. */
uint32_t sw_call_digest(const struct call *c, const struct sw_plan *plan);
uint32_t sw_call_fold(const uint64_t *words, size_t n); /* to one such word */

symwin_status sw_call_launch(struct call *c);

/* The two halves of sw_request_run(), for a collective with buffers and a count. `agrees`: NULL, or
 * an agreement is left to another call of the first half, and this says whether there is one. By
 * parts there is the first half alone: it looks for what is wrong by now. */
symwin_status sw_request_find(const struct sw_request *r, struct call *found, int *agrees);
symwin_status sw_found_run(struct call *found);

/* ---- parts.c ---- */

/* Queues what stores the rows that are too many for the arguments of a call by parts, ahead of its
 * kernel. A capture keeps them: they are in the arguments of a kernel of their own. */
symwin_status sw_parts_queue_rows(const struct sw_turn *turn, const struct sw_table_args *table);

/* ---- batch.c --------------------------------------------------------------------------------- */

/* Launches the first calls of `n` of one communicator, which follow each other in a group, in one
 * kernel if they are small and push once: the buffers of these were found. `number`: of the first
 * among the communicator's in the group, from 1 on. *taken: so many are done with; 0: the first one
 * is to be launched alone. */
enum { SW_BATCH_CALLS = SW_GROUP_CALLS + 1 }; /* more are not looked at */
symwin_status sw_batch_run(const struct call *const *calls, size_t n, unsigned number,
                           size_t *taken);

#endif
