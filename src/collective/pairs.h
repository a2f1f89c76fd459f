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
symwin_status sw_pair_check(struct sw_pair_call *c);

/* Checks calls of one communicator that are made together: `n` pointers, in the order of the calls.
 * `call` is the name for texts, here and below. */
symwin_status sw_pairs_check(const struct sw_pair_call *const *calls, size_t n, const char *call);

/* What would be launched for a call that was checked. Refuses blocks and threads that do not fit,
 * which a launch cuts to what fits. `later`: the call is launched later, on its stream. */
symwin_status sw_pair_answer(const struct sw_pair_call *c, int later, symwin_message_info *info);

/* Launches them after that. */
symwin_status sw_pairs_launch(const struct sw_pair_call *const *calls, size_t n, const char *call);

#endif
