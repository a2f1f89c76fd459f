/* Messages that wait for room on their way to another process (mailbox.c) or host (host_send.c), so
 * that who sends does not wait. A rank's messages have a bound, wherever they go. */
#include <errno.h>
#include <stdlib.h>

#include "src/control/control.h"

struct sw_out_message {
    struct sw_out_message *next;
    struct sw_frame_message words;
};

int sw_outbox_add(struct sw_outbox *box, atomic_int *counts, const struct sw_frame_message *words)
{
    struct sw_out_message *message = calloc(1, sizeof *message);

    if (message == NULL)
        return ENOMEM;
    if (atomic_fetch_add(&counts[words->from], 1) >= SW_MOST_MESSAGES) {
        atomic_fetch_sub(&counts[words->from], 1);
        free(message);
        return EOVERFLOW;
    }
    message->words = *words;
    if (box->first == NULL)
        box->first = message;
    else
        box->last->next = message;
    box->last = message;
    return 0;
}

const struct sw_frame_message *sw_outbox_first(const struct sw_outbox *box)
{
    return box->first != NULL ? &box->first->words : NULL;
}

void sw_outbox_drop_first(struct sw_outbox *box, atomic_int *counts)
{
    struct sw_out_message *message = box->first;

    box->first = message->next;
    atomic_fetch_sub(&counts[message->words.from], 1);
    sw_wipe(&message->words, sizeof message->words); /* a fabric handle gives access to memory */
    free(message);
}

void sw_outbox_clear(struct sw_outbox *box, atomic_int *counts)
{
    while (box->first != NULL)
        sw_outbox_drop_first(box, counts);
}
