/* Sends and receives: one kernel for those of a communicator that are made together. */
#ifndef SYMWIN_PAIRS_H
#define SYMWIN_PAIRS_H

#include "src/collective/select.h"

struct sw_pair_call {
    const char *name; /* of the public call */
    symwin_comm *comm;
    CUstream stream;
    int receives;
    int peer;
    const void *buffer;
    uint64_t count;
    symwin_type type;
    struct sw_grid asked; /* 0: no request */
    /* Set by sw_pair_check(): */
    size_t bytes;
    uint64_t place; /* of the buffer of a receive in the flat range; SW_NO_OFFSET: in no window */
};

/* Checks a call and finds its buffer. Options and type were checked. */
symwin_status sw_pair_check(struct sw_pair_call *c, enum sw_checked checked);

/* What would be launched for a call that was checked. Refuses blocks and threads that do not fit,
 * which a launch cuts to what fits. `later`: the call is launched later, on its stream. */
symwin_status sw_pair_answer(const struct sw_pair_call *c, int later, symwin_message_info *info);

/* Calls of one communicator that are made together. */
struct sw_pairs {
    symwin_comm *comm;
    CUstream stream;
    const char *call; /* the name for texts */
    struct sw_grid asked;
    struct sw_pair_entry *entries; /* owned, in the order of their launches */
    size_t count, next;            /* next: the first that is not launched */
};

/* Checks them: `n` pointers, in the order of the calls, each checked before. If it fails there is
 * nothing to close. */
symwin_status sw_pairs_open(const struct sw_pair_call *const *calls, size_t n, const char *call,
                            struct sw_pairs *pairs);
/* The next kernel of them. */
symwin_status sw_pairs_launch(struct sw_pairs *pairs);
int sw_pairs_left(const struct sw_pairs *pairs);
void sw_pairs_close(struct sw_pairs *pairs);

#endif
