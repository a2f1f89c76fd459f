/* The control page: memory that all ranks of a host share for an exchange. exchange.c documents and
 * uses it, exchange_end.c reads its ends, control_page.c creates and maps it. */
#ifndef SYMWIN_CONTROL_PAGE_H
#define SYMWIN_CONTROL_PAGE_H

#include <stdatomic.h>

#include "kernels/kernel_args.h"
#include "src/base/base.h"
#include "src/control/exchange.h"

/* State of a rank. LEAVES: it posts no more, but its last calls may be running. GONE: it has
 * left. */
enum { HERE, LEAVES, GONE };

struct page_slot {
    /* Rounds that this rank has posted. Only the rank writes it, or, for a rank on another host,
     * this host's linking process. */
    _Alignas(64) _Atomic uint64_t rounds;
    _Atomic int gone; /* HERE, LEAVES or GONE */
    /* This rank's process shut its peer sockets because the exchange ended, not because it died. */
    _Atomic int quiet;
    /* Outside a round: 1 + the rank that this one waits for, and when it last said so. */
    _Atomic uint64_t waits;
    /* Used for the lowest rank of another host: when a frame last came from that host. */
    _Atomic int64_t heard;
    /* The same, until one has come: 1 + the rank whose process may still have that host's end of
     * the link; 0: that of the lowest rank has it. */
    _Atomic int holder;
    _Atomic uint64_t calls; /* see exchange_calls.c */
    unsigned char data[2][SW_EXCHANGE_BYTES];
};

/* In this process's memory, or in a file that several processes map. */
struct control_page {
    _Atomic uint64_t word;  /* posts so far, and the end: see exchange.c */
    _Atomic uint32_t futex; /* ranks sleep on it until a round completes or the exchange ends */
    _Atomic int speaks;     /* this host's linking process has its links, and has sent a word */
    /* On a host that does not decide: the end that it proposes, in the form of `word`, and since
     * when. */
    _Atomic uint64_t proposal;
    _Atomic int64_t proposed_at;
    /* What the culprit of a TIMEOUT did not come to, or that of a MISMATCH did not receive: the
     * bits of that end, as in `word`, and a number for what it is (sw_end_note_missed(),
     * sw_end_note_untaken(), sw_end_note_frame()). It counts only for an end with the same bits. */
    _Atomic uint64_t missed;
    _Atomic int64_t beat; /* when this host's linking process last showed that it runs */
    /* When a rank here last waited past its deadline for a rank on another host, and since when. */
    _Atomic int64_t asked, asked_since;
    /* What kernels have found, for ranks that no kernel tells it: of several findings the first. */
    _Atomic uint32_t noted; /* 0: there is none */
    struct sw_finding found;
    /* Why `why_rank` has ended the exchange, as its process or another host says; the first one. */
    _Atomic uint32_t why_state; /* 0: nobody has said it */
    int32_t why_rank;
    char why[SW_WHY_BYTES];
    struct page_slot slots[]; /* nranks */
};

struct sw_exchange {
    int nranks;
    int shared;                /* the page is a mapped file, and other processes may have it too */
    size_t bytes;              /* of the page */
    struct control_page *page; /* owned */
    const struct sw_exchange_hosts *hosts; /* NULL: all ranks are on this host */
    /* The first end, decided and proposed, that this process has seen on the page; 0: none. */
    _Atomic uint64_t end, proposal;
    _Atomic uint64_t told; /* the outcome that on_end was last called for */
    void (*on_end)(void *context);
    void *on_end_context;
    _Atomic int built;    /* the communicator is complete */
    int *_Atomic numbers; /* owned: of each rank, in texts; NULL: their own */
};

/* ---- exchange_end.c: the end in a word ---- */

#define SW_END_SHIFT 42 /* 0 above it: no end */
#define SW_END_COUNT_MASK (((uint64_t)1 << SW_END_SHIFT) - 1)

uint64_t sw_end_of(symwin_status status, int culprit);
symwin_status sw_end_status(uint64_t word);
int sw_end_culprit(uint64_t word);

/* Before an end with SYMWIN_TIMEOUT and this culprit: what the culprit did not come to, the
 * collective of that number or, with 0, a host call or SW_A_MESSAGE. */
void sw_end_note_missed(struct sw_exchange *x, int culprit, const char *call, uint32_t collective);

/* Before an end with SYMWIN_MISMATCH and this culprit, which leaves: what rank `from` has sent it,
 * and it has not received. */
void sw_end_note_untaken(struct sw_exchange *x, int culprit, int from, uint64_t count);

/* Before an end with SYMWIN_MISMATCH and this culprit, whose process has sent a wrong frame. */
void sw_end_note_frame(struct sw_exchange *x, int culprit);

/* Fails with the status and the text of an end. `missed`: the call that this rank waited in, and
 * the culprit did not make; NULL: unknown. */
symwin_status sw_end_say(const struct sw_exchange *x, uint64_t word, const char *call,
                         const char *missed);

#endif
