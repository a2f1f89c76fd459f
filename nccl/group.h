/* A group of a thread: group.c collects it, and launch.c launches it. */
#ifndef SYMWIN_NCCL_GROUP_H
#define SYMWIN_NCCL_GROUP_H

#include "nccl/calls.h"

struct window {
    struct sw_comm *comm;
    void *ptr;
    size_t size;
    ncclWindow_t *handle;
};

/* An operation that is destroyed while calls with it are collected. */
struct op_end {
    struct sw_from from;
    ncclRedOp_t op;
    ncclComm_t comm;
};

/* How many multiprocessors a communicator may take that is born in the group. */
struct born {
    const ncclComm_t *handle;
    int most;
};

/* What a group has of one communicator. */
struct part {
    struct sw_comm *comm; /* a reference; NULL: it was ended in the group, which fails */
    int first;            /* of its calls */
    int has_nccls;        /* a collective was passed on at once: no meeting in this group */
    int is_nccls;         /* its collectives are NCCL's */
    int has_ours;         /* there is a communicator of symwin */
    cudaStream_t lent;    /* for calls on this thread's own default stream; NULL: there are none */
};

/* Of a thread. */
struct group {
    int depth;
    void *library;       /* whose group it is */
    ncclResult_t result; /* of what was passed on at once */
    int has_pairs;
    int ours[2]; /* how many calls are symwin's: on one host, over several */
    struct sw_call *calls;
    struct part *parts; /* in the order of their first calls */
    struct window *windows;
    struct op_end *op_ends;
    struct born *births;
    int call_count, part_count, window_count, op_end_count, birth_count;
    int call_room, part_room, window_room, op_end_room, birth_room;
};

/* ---- launch.c: at the outermost end; ends NCCL's group ---- */

ncclResult_t sw_group_launch(struct group *g, const struct sw_from *from);

/* ---- group.c: nothing is in the group any more ---- */

void sw_group_leave(struct group *g);

#endif
