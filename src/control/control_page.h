/* The page on which ranks meet: exchange.c says what is on it, page.c makes and opens it. */
#ifndef SYMWIN_PAGE_H
#define SYMWIN_PAGE_H

#include <stdatomic.h>

#include "src/base/base.h"
#include "src/control/exchange.h"

struct page_slot {
    _Alignas(64) _Atomic uint64_t rounds; /* posted by this rank; only it writes */
    _Atomic int gone;                     /* exchange.c */
    _Atomic int quiet;                    /* its process has shut its lines, and lives, or did */
    _Atomic uint64_t
        waits;             /* outside of a round: 1 + the rank waited for, and when that was said */
    _Atomic int64_t heard; /* of the lowest rank of another host: when word came from there */
    unsigned char data[2][SW_EXCHANGE_BYTES];
};

/* What the ranks share: in this process's memory, or the control page of several processes. */
struct control_page {
    _Atomic uint64_t word;
    _Atomic uint32_t futex; /* futex: rung when a round completes or the exchange ends */
    /* Of a host that does not decide: the end that it asks for, as in word, and since when. */
    _Atomic uint64_t proposal;
    _Atomic int64_t proposed_at;
    _Atomic int64_t beat; /* when the process that links this host last said that it is well */
    /* When a rank here last waited for one elsewhere beyond its time, and since when that has been so. */
    _Atomic int64_t asked, asked_since;
    struct page_slot slots[]; /* nranks */
};

struct sw_exchange {
    int nranks;
    int shared; /* the page is mapped, and other processes may have it too */
    size_t bytes;
    struct control_page *page;             /* owned */
    const struct sw_exchange_hosts *hosts; /* NULL: all ranks are on this host */
    _Atomic uint64_t told;                 /* what on_end was called for last */
    void (*on_end)(void *context);
    void *on_end_context;
};

#endif
