/* How many calls each rank has made, as far as it is known here: who is behind the others when all
 * of them wait where no kernel sees whom they wait for.
 *
 * A rank's slot has its own number. The slot of the lowest rank of a linked host has the lowest
 * number of all ranks behind that link, and whose it is: BEHIND frames bring it, as answers to ASK.
 * A rank that is asked for another's number answers with what it knows, and asks; so the lowest
 * number of all arrives within a few rounds of asking. */
#include "src/control/control.h"
#include "src/control/control_page.h"

/* In a slot: the number of calls plus 1, then a rank; 0: unknown. The lowest has the fewest calls.
 */
enum { RANK_BITS = 18 };
_Static_assert(SW_NOBODY == (1 << RANK_BITS) - 1 && SW_MAX_RANKS < SW_NOBODY, "ranks fit");

void sw_exchange_heard_behind(struct sw_exchange *x, int through, int rank, uint64_t calls)
{
    atomic_store(&x->page->slots[through].calls, (calls + 1) << RANK_BITS | (uint64_t)rank);
}

void sw_exchange_count(struct sw_exchange *x, int rank, uint64_t calls)
{
    sw_exchange_heard_behind(x, rank, rank, calls);
}

/* Of several in one call nobody knows which one the others wait for there. Between calls each of
 * them is late. */
int sw_exchange_fewest(const struct sw_exchange *x, int but, uint64_t *calls)
{
    const int *through = x->hosts != NULL ? x->hosts->through : NULL;
    uint64_t least = 0;
    int r, alike = 0;

    for (r = 0; r < x->nranks; r++) {
        const uint64_t one = atomic_load(&x->page->slots[r].calls);

        if (one == 0 || (but >= 0 && through != NULL && through[r] == but))
            continue;
        if (least == 0 || one >> RANK_BITS < least >> RANK_BITS)
            alike = 0;
        else if (one >> RANK_BITS == least >> RANK_BITS)
            alike++;
        if (least == 0 || one < least)
            least = one;
    }
    if (least == 0)
        return -1;
    *calls = (least >> RANK_BITS) - 1;
    return alike > 0 && *calls % 2 == 1 ? SW_NOBODY : (int)(least & SW_NOBODY);
}

int sw_exchange_behind(const struct sw_exchange *x, int rank, uint64_t calls)
{
    uint64_t least;
    const int fewest = sw_exchange_fewest(x, -1, &least);

    return fewest >= 0 && fewest != rank && least < calls ? fewest : SW_NOBODY;
}
