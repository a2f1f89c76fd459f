/* The exchange: an all-gather of small data among all ranks, with a deadline and an agreed end.
 * exchange.c runs it, control_page.c creates the memory that it uses. */
#ifndef SYMWIN_EXCHANGE_H
#define SYMWIN_EXCHANGE_H

#include <stddef.h>
#include <stdint.h>

#include "symwin.h"

struct sw_finding;

#define SW_EXCHANGE_BYTES 512
/* As a culprit: no rank can be named. */
#define SW_NOBODY 0x3ffff

struct sw_exchange;

/* For ranks that are threads of one process. NULL: no memory. */
struct sw_exchange *sw_exchange_create(int nranks);

/* For ranks of several processes: one process creates the control page and sends the descriptor to
 * the others; each opens it. The caller closes the descriptor. */
symwin_status sw_exchange_page(int nranks, int *fd);
symwin_status sw_exchange_open(int fd, int nranks, struct sw_exchange **out);

/* Whether a received descriptor can be a control page: it is a memfd with the page's seals. Closing
 * such a descriptor does not wait. */
int sw_exchange_is_page(int fd);

void sw_exchange_destroy(struct sw_exchange *x);

/* What texts call each rank: its number among others, of which these are a part. Once, by any of
 * the process's ranks. Returns 0: no memory. */
int sw_exchange_set_numbers(struct sw_exchange *x, const int *numbers);
int sw_exchange_number(const struct sw_exchange *x, int rank);

/* The communicator is complete on all ranks. Until then texts do not ask to destroy it. */
void sw_exchange_be_built(struct sw_exchange *x);

/* All-gather: every rank passes `bytes` bytes (at most SW_EXCHANGE_BYTES) and gets those of all
 * ranks in rank order. All ranks succeed, or all return the status that ended the exchange:
 * SYMWIN_TIMEOUT or SYMWIN_PEER_LOST, with the missing rank in the text, SYMWIN_ABORTED, or the
 * status passed to sw_exchange_fail(). Every later call then returns it too. */
symwin_status sw_exchange_allgather(struct sw_exchange *x, int rank, const void *mine, size_t bytes,
                                    void *all, int timeout_ms, const char *call);

/* Ends the exchange for all ranks. The first call counts. `culprit` is a rank, or SW_NOBODY. */
void sw_exchange_fail(struct sw_exchange *x, symwin_status status, int culprit);

/* The same, with SYMWIN_MISMATCH: `culprit` leaves, and no receive took `count` elements that rank
 * `from` has sent it, as later texts on this host say. */
void sw_exchange_fail_untaken(struct sw_exchange *x, int culprit, int from, uint64_t count);

/* The same, with SYMWIN_MISMATCH: the culprit's process has sent a frame that no process sends at
 * that moment, as later texts on this host say. */
void sw_exchange_fail_frame(struct sw_exchange *x, int culprit);

/* The same, with SYMWIN_TIMEOUT; later texts on this host say in what the culprit was waited for:
 * the collective of that number or, with 0, the host call or SW_A_MESSAGE. */
#define SW_A_MESSAGE "a send or receive"
void sw_exchange_fail_late(struct sw_exchange *x, int culprit, const char *call,
                           uint32_t collective);

/* What kernels have found: a rank notes it for others of its host before it ends the exchange so.
 * If another rank is noting something, this waits until it has, at most a tenth of a second.
 * sw_exchange_found() returns 0 if nobody has. The exchange may have ended otherwise. */
void sw_exchange_note_found(struct sw_exchange *x, const struct sw_finding *found);
int sw_exchange_found(const struct sw_exchange *x, struct sw_finding *found);

/* A rank is about to end the exchange because of a failure, which is the sentence `text`: later
 * texts tell it if the end names that rank. Only the first one is kept. Of another process's text
 * sw_exchange_why() gets printable ASCII alone; 0: there is none for this rank. */
#define SW_WHY_BYTES 256
void sw_exchange_say_why(struct sw_exchange *x, int rank, const char *text);
int sw_exchange_why(const struct sw_exchange *x, int rank, char text[SW_WHY_BYTES]);

/* If this host has proposed an end, waits for the deciding host's answer, at most a second. Not
 * under the poll lock. */
void sw_exchange_settle(struct sw_exchange *x);

/* The same; then returns SYMWIN_OK, or the status that ended the exchange on all ranks, with the
 * thread's last error set. */
symwin_status sw_exchange_settled(struct sw_exchange *x, const char *call);

/* The same without waiting: the deciding host may still decide on another status. */
symwin_status sw_exchange_status(struct sw_exchange *x, const char *call);

int sw_exchange_is_decided(struct sw_exchange *x); /* an end is decided */
int sw_exchange_ended(struct sw_exchange *x);      /* an end is decided or proposed */

/* `f` is called when this process ends the exchange or learns that it has ended: on any thread, and
 * it must not take the poll lock. */
void sw_exchange_on_end(struct sw_exchange *x, void (*f)(void *context), void *context);

/* For ranks on several hosts. host_send.c sends their posts between hosts. */
struct sw_exchange_hosts {
    int decides; /* this host decides; the other hosts propose ends */
    int decider; /* the lowest rank of the deciding host */
    int links;   /* the lowest rank of this host: it sends the posts, its process has the links */
    int is_deep; /* some hosts are linked to the deciding one over others */
    /* For each rank on another host: the lowest rank of the host over whose link its frames arrive.
     * -1: the rank is on this host. */
    const int *through;
    /* Sends posts of a round, and does not wait until they are sent. To the deciding host: those of
     * this host's ranks that are posted and not yet sent. From the deciding host: those of all
     * ranks. */
    void (*send)(void *context, uint64_t round);
    /* Whether no frame from the deciding host can arrive any more. NULL: that cannot happen. */
    int (*is_cut_off)(void *context);
    void *context;
};
void sw_exchange_set_hosts(struct sw_exchange *x, const struct sw_exchange_hosts *hosts);

/* Calls the on_end function if another process of this host has decided or proposed an end that
 * this process has not seen yet. */
void sw_exchange_look(struct sw_exchange *x);

/* Shows that this host's linking process runs. That calls it every 100 ms. */
void sw_exchange_beat(struct sw_exchange *x);

/* Whether a rank of this host waits past its deadline for a rank on another host. The linking
 * process then asks the other hosts whether they run. sw_exchange_heard(): some frame came from the
 * host whose lowest rank is `rank`. */
int sw_exchange_is_asked(const struct sw_exchange *x);
void sw_exchange_heard(struct sw_exchange *x, int rank);

/* This host's linking process has its links, and has sent a word. */
void sw_exchange_speak(struct sw_exchange *x);
int sw_exchange_speaks(const struct sw_exchange *x);

/* Until a frame comes from the host whose lowest rank is `rank`, its end of the link may be in the
 * process of `holder`. */
void sw_exchange_is_held(struct sw_exchange *x, int rank, int holder);

/* The lowest rank of the host whose linking process keeps frames of `rank` from coming: this host's
 * if that shows no beat, or another host's if it was asked and does not answer, or the one that
 * holds that host's end of the link; -1: neither, or `rank` is on this host. */
int sw_exchange_silent(const struct sw_exchange *x, int rank);

/* Posts the data of a rank for a round: the caller's own rank, or, in the linking process, a rank
 * on another host. Up to SW_EXCHANGE_BYTES it is followed by zeros. Returns 0 if the exchange has
 * ended. */
int sw_exchange_post(struct sw_exchange *x, int rank, uint64_t round, const void *data,
                     size_t bytes);
uint64_t sw_exchange_rounds(const struct sw_exchange *x, int rank);
const unsigned char *sw_exchange_data(const struct sw_exchange *x, int rank, uint64_t round);

/* Number of complete rounds. */
uint64_t sw_exchange_complete(const struct sw_exchange *x);

/* Ends the exchange on this host without a proposal: the deciding host has decided, or cannot. */
void sw_exchange_decide(struct sw_exchange *x, symwin_status status, int culprit);

/* Whether an end is decided or proposed, and its status and culprit. */
int sw_exchange_outcome(struct sw_exchange *x, symwin_status *status, int *culprit);

/* Outside a round: `rank` waits for `other` (-1: no longer). A rank that waits for `rank` and gives
 * up then names `other`. Valid for 100 ms; to be called again until then. */
void sw_exchange_waits_for(struct sw_exchange *x, int rank, int other);

/* For waits outside a round. sw_exchange_culprit(): the rank to name when `rank` is late: `rank`,
 * or the rank that it waits for, or the lowest rank of a host whose linking process does not
 * answer. sw_exchange_allowance(): how many milliseconds past the deadline to wait for `rank`, if
 * it is on another host. The caller calls sw_exchange_ask() at least every 250 ms during
 * that time. */
int sw_exchange_culprit(const struct sw_exchange *x, int rank);
int sw_exchange_allowance(const struct sw_exchange *x, int rank);
void sw_exchange_ask(struct sw_exchange *x);

/* ---- exchange_calls.c: who is behind ---- */

/* Of calls that all ranks make, this rank is in its n-th: 2 n - 1; or has ended it: 2 n. */
void sw_exchange_count(struct sw_exchange *x, int rank, uint64_t calls);
/* Of the ranks whose frames arrive through the link to a host whose lowest rank is `through`, this
 * one has made fewest calls; SW_NOBODY: several. */
void sw_exchange_heard_behind(struct sw_exchange *x, int through, int rank, uint64_t calls);
/* The rank with the fewest, without those behind the link to `but` (-1: of all), SW_NOBODY: several
 * are in one call; -1: no rank has counted any. */
int sw_exchange_fewest(const struct sw_exchange *x, int but, uint64_t *calls);
/* That of all, if it is another rank than `rank`, and has counted fewer than `calls`; else
 * SW_NOBODY. Hosts that were asked tell theirs (sw_exchange_ask()). */
int sw_exchange_behind(const struct sw_exchange *x, int rank, uint64_t calls);

/* `rank` is the lowest rank of its process. That process shuts its peer sockets because the
 * exchange has ended, not because it died. */
void sw_exchange_be_quiet(struct sw_exchange *x, int rank);
int sw_exchange_is_quiet(const struct sw_exchange *x, int rank);

/* This rank posts no more, but its process is still needed: its kernels may be running. */
void sw_exchange_take_leave(struct sw_exchange *x, int rank);
int sw_exchange_leaves(const struct sw_exchange *x, int rank);
/* Its process died before sw_exchange_leave(): takes sw_exchange_take_leave() back. */
void sw_exchange_is_lost(struct sw_exchange *x, int rank);

/* This rank has left for good. */
void sw_exchange_leave(struct sw_exchange *x, int rank);
int sw_exchange_has_left(const struct sw_exchange *x, int rank);

#endif
