/* What ranks tell each other (exchange.c), and the page that this is on (page.c). */
#ifndef SYMWIN_EXCHANGE_H
#define SYMWIN_EXCHANGE_H

#include <stddef.h>
#include <stdint.h>

#include "symwin.h"

#define SW_EXCHANGE_BYTES 512
#define SW_NOBODY 0xfff /* as a culprit: none can be named; no rank of fewer than 4096 */
struct sw_exchange;

struct sw_exchange *sw_exchange_create(int nranks); /* for threads; NULL: no memory */

/* A control page for ranks of several processes: a descriptor to be sent to them, and what each makes
 * of it. The caller closes the descriptor. */
symwin_status sw_exchange_page(int nranks, int *fd);
symwin_status sw_exchange_open(int fd, int nranks, struct sw_exchange **out);

void sw_exchange_destroy(struct sw_exchange *x);

/* Every rank gives `bytes` (at most SW_EXCHANGE_BYTES) and gets all ranks' in rank order. All ranks
 * succeed, or all return one status: SYMWIN_TIMEOUT or SYMWIN_PEER_LOST naming who is missing,
 * SYMWIN_ABORTED, or what sw_exchange_fail() said; after that, every later call does too. */
symwin_status sw_exchange_allgather(struct sw_exchange *x, int rank, const void *mine, size_t bytes,
                                    void *all, int timeout_ms, const char *call);

/* Ends the exchange for all ranks; the first call decides. `culprit` is a rank, or SW_NOBODY. */
void sw_exchange_fail(struct sw_exchange *x, symwin_status status, int culprit);

/* Where only this host has said yet that it shall end, waits for the deciding one, a second at the most: not under the
 * service lock. */
void sw_exchange_settle(struct sw_exchange *x);

/* After that: SYMWIN_OK, or what ended it on all ranks, with the thread's last error set. */
symwin_status sw_exchange_settled(struct sw_exchange *x, const char *call);

/* As far as this host knows: another may still decide on something else. */
symwin_status sw_exchange_status(struct sw_exchange *x, const char *call);

int sw_exchange_is_decided(const struct sw_exchange *x);
int sw_exchange_ended(const struct sw_exchange *x);

/* Called, on whatever thread, when this process has ended the exchange. May not take the service lock. */
void sw_exchange_on_end(struct sw_exchange *x, void (*f)(void *context), void *context);

/* For ranks on several hosts; links.c moves what they post. */
struct sw_exchange_hosts {
    int decides; /* this host's page decides; the others propose ends */
    int decider; /* the rank that speaks for the host that does */
    int links;   /* the rank that sends this host's posts: its process has the links */
    /* Of each rank on another host: by whose process it is heard of, the lowest rank of a host; -1: it is on this one. */
    const int *through;
    /* Sends posts of a round: to the deciding host those of this host's ranks that are there and were not
     * sent, from it all. */
    void (*send)(void *context, uint64_t round, size_t bytes, int64_t deadline);
    /* Whether no word of the deciding host can come any more; NULL: never. */
    int (*is_cut_off)(void *context);
    void *context;
};
void sw_exchange_set_hosts(struct sw_exchange *x, const struct sw_exchange_hosts *hosts);

/* Tells this process of an end that another one of its host has decided or proposed, and that it has not heard of. */
void sw_exchange_look(struct sw_exchange *x);

/* Now and then, by the process that links this host. */
void sw_exchange_beat(struct sw_exchange *x);

/* Whether a rank here waits for one elsewhere beyond its time: the process that links this host asks the others then
 * whether they are well. `rank`, the lowest of a host, has been heard of by whatever came from there. */
int sw_exchange_is_asked(const struct sw_exchange *x);
void sw_exchange_heard(struct sw_exchange *x, int rank);

/* What a rank posted, or posts through its host; 0: the exchange has ended. */
int sw_exchange_post(struct sw_exchange *x, int rank, uint64_t round, const void *data,
                     size_t bytes);
uint64_t sw_exchange_rounds(const struct sw_exchange *x, int rank);
const void *sw_exchange_data(const struct sw_exchange *x, int rank, uint64_t round);

/* Rounds that are complete. */
uint64_t sw_exchange_complete(const struct sw_exchange *x);

/* The deciding host's word. */
void sw_exchange_decide(struct sw_exchange *x, symwin_status status, int culprit);

/* Whether it has ended, or is to end, and why. */
int sw_exchange_outcome(const struct sw_exchange *x, symwin_status *status, int *culprit);

/* Outside of a round, `rank` waits for `other` (-1: not any more): whoever waits for `rank` and gives up
 * names that one. To be said again every few hundredths of a second. */
void sw_exchange_waits_for(struct sw_exchange *x, int rank, int other);

/* Whom to name for a rank that is late: it, or the one that it says it waits for, or who links this host with its and does
 * not answer; and how many milliseconds longer than its own time a rank waits for one of another host, while it says that
 * it does, every few hundredths of a second. */
int sw_exchange_culprit(const struct sw_exchange *x, int rank);
int sw_exchange_allowance(const struct sw_exchange *x, int rank);
void sw_exchange_ask(struct sw_exchange *x);

/* The lowest rank of a process that shuts its lines because the exchange has ended, not because it dies. */
void sw_exchange_be_quiet(struct sw_exchange *x, int rank);
int sw_exchange_is_quiet(const struct sw_exchange *x, int rank);

/* This rank posts no more, but its process must not end yet: its kernels may be under way. */
void sw_exchange_take_leave(struct sw_exchange *x, int rank);
int sw_exchange_leaves(const struct sw_exchange *x, int rank);
/* Its process has ended all the same, if it has not left. */
void sw_exchange_is_lost(struct sw_exchange *x, int rank);

/* This rank will not come again. */
void sw_exchange_leave(struct sw_exchange *x, int rank);
int sw_exchange_has_left(const struct sw_exchange *x, int rank);

#endif
