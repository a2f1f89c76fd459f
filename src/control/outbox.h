/* Messages that wait for room on their way to another process or host. */
#ifndef SYMWIN_OUTBOX_H
#define SYMWIN_OUTBOX_H

#include <stdatomic.h>

#include "kernels/kernel_args.h"
#include "src/control/frame.h"

/* Messages of one rank that a process holds, or that wait there to be sent. Enough for all lanes:
 * each is in one channel at a time, and a channel sends three messages. But an end that is
 * destroyed before its peer has answered gives its lanes back while its messages may still wait: a
 * rank that does so again and again comes to the limit. */
enum { SW_MOST_MESSAGES = 3 * SW_STATE_LANES };

/* The oldest first. All zero: empty. Its owner's mutex protects it. */
struct sw_outbox {
    struct sw_out_message *first, *last; /* owned; `last` only if there is a first */
};

/* Returns 0; ENOMEM; or EOVERFLOW: SW_MOST_MESSAGES of its rank wait. `counts`: of each rank, how
 * many of its messages wait in the process. */
int sw_outbox_add(struct sw_outbox *box, atomic_int *counts, const struct sw_frame_message *words);

const struct sw_frame_message *sw_outbox_first(const struct sw_outbox *box); /* NULL: none */
void sw_outbox_drop_first(struct sw_outbox *box, atomic_int *counts);
void sw_outbox_clear(struct sw_outbox *box, atomic_int *counts);

#endif
