/* What public handles stand for. A handle is no address: a slot in its low bits, and above a number that no handle of this
 * process has had before. So one that was given back, or is another table's, is known as such. One thread at a time. */
#ifndef SYMWIN_TICKETS_H
#define SYMWIN_TICKETS_H

#include <stddef.h>
#include <stdint.h>

enum { SW_TICKETS_MOST = 1 << 20 };

/* All zero: empty. */
struct sw_tickets {
    struct sw_ticket {
        void *thing;      /* NULL: free */
        uintptr_t handle; /* of a free one the next free slot, counted from 1; 0: none */
    } * tickets;          /* owned */
    size_t room, count, first_free;
};

/* Room for one thing more, so that sw_tickets_add() cannot fail. 0: no host memory. */
int sw_tickets_reserve(struct sw_tickets *t);

/* In room that was reserved; the handle is not 0. */
uintptr_t sw_tickets_add(struct sw_tickets *t, void *thing);

void *sw_tickets_find(const struct sw_tickets *t, uintptr_t handle); /* NULL: nothing has it */

/* Takes out the thing that has it, if any. */
void sw_tickets_remove(struct sw_tickets *t, uintptr_t handle);

/* The things one by one: *at is 0 before the first; NULL after the last. Any may be removed meanwhile. */
void *sw_tickets_next(const struct sw_tickets *t, size_t *at);

void sw_tickets_release(struct sw_tickets *t); /* and not the things */

#endif
