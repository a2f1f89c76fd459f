/* What ranks tell each other: an all-gather with a deadline, on memory that all ranks share.
 *
 * Rounds are numbered from 0 and every rank posts once a round. One 64-bit word decides everything:
 *
 *   bits 0..47   posts so far, all ranks together: round k is complete at (k + 1) * nranks
 *   bits 48..63  0, or what ended the exchange: status and culprit
 *
 * A post and an end are compare-and-swaps on that word, and an end freezes the count. So whether a
 * round completed is the same for every rank, however a late post races with a timeout.
 *
 * A rank's data lies in one of two slots by the round's parity. It may be overwritten two rounds
 * later: by then every rank has posted the round between, and did so after reading this one.
 */
#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

#define COUNT_MASK (((uint64_t)1 << 48) - 1)
#define STATUS_SHIFT 60
#define CULPRIT_SHIFT 48
#define CULPRIT_MASK 0xfffu
#define SPINS 200 /* a few microseconds before a rank sleeps */

struct post {
    _Alignas(64) _Atomic uint64_t rounds; /* posted by this rank; only it writes */
    _Atomic int gone;
    unsigned char data[2][SW_EXCHANGE_BYTES];
};

struct sw_exchange {
    int nranks;
    _Atomic uint64_t word;
    _Atomic uint32_t bell; /* futex: rung when a round completes or the exchange ends */
    struct post posts[];   /* nranks */
};

struct sw_exchange *sw_exchange_create(int nranks)
{
    const size_t bytes = sizeof(struct sw_exchange) + (size_t)nranks * sizeof(struct post);
    struct sw_exchange *x = aligned_alloc(64, (bytes + 63) & ~(size_t)63);

    if (x != NULL) {
        memset(x, 0, bytes);
        x->nranks = nranks;
    }
    return x;
}

void sw_exchange_destroy(struct sw_exchange *x)
{
    free(x);
}

static void ring(struct sw_exchange *x)
{
    atomic_fetch_add_explicit(&x->bell, 1, memory_order_release);
    syscall(SYS_futex, &x->bell, FUTEX_WAKE_PRIVATE, 0x7fffffff, NULL, NULL, 0);
}

static int64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void end(struct sw_exchange *x, uint64_t seen, symwin_status status, int culprit)
{
    const uint64_t why = (uint64_t)status << STATUS_SHIFT | ((uint64_t)culprit & CULPRIT_MASK)
                                                                << CULPRIT_SHIFT;

    if (atomic_compare_exchange_strong(&x->word, &seen, seen | why))
        ring(x);
}

void sw_exchange_fail(struct sw_exchange *x, symwin_status status, int culprit)
{
    uint64_t seen = atomic_load(&x->word);

    while (seen >> CULPRIT_SHIFT == 0) {
        end(x, seen, status, culprit);
        seen = atomic_load(&x->word);
    }
}

static symwin_status ended(uint64_t word, const char *call)
{
    const symwin_status status = (symwin_status)(word >> STATUS_SHIFT);
    const int culprit = (int)(word >> CULPRIT_SHIFT & CULPRIT_MASK);

    switch (status) {
    case SYMWIN_TIMEOUT:
        return sw_fail(status,
                       "%s: rank %d did not come in time; destroy the communicator on every rank",
                       call, culprit);
    case SYMWIN_PEER_LOST:
        return sw_fail(status,
                       "%s: rank %d has destroyed its communicator; every rank must make the same "
                       "collective calls before it does",
                       call, culprit);
    case SYMWIN_ABORTED:
        return sw_fail(status, "%s: rank %d aborted the communicator; destroy it", call, culprit);
    default:
        return sw_fail(status, "%s: rank %d ended the communicator", call, culprit);
    }
}

symwin_status sw_exchange_status(struct sw_exchange *x, const char *call)
{
    const uint64_t word = atomic_load(&x->word);

    return word >> CULPRIT_SHIFT == 0 ? SYMWIN_OK : ended(word, call);
}

void sw_exchange_leave(struct sw_exchange *x, int rank)
{
    atomic_store(&x->posts[rank].gone, 1);
    ring(x); /* whoever waits for this rank looks again */
}

/* A rank that has not posted `round`: one that is gone if there is one, else the lowest; -1: none. */
static int missing_rank(struct sw_exchange *x, uint64_t round, int *gone)
{
    int missing = -1;
    int r;

    *gone = 0;
    for (r = 0; r < x->nranks; r++) {
        /* gone before rounds: a rank posts first and leaves later */
        const int left = atomic_load(&x->posts[r].gone);

        if (atomic_load(&x->posts[r].rounds) > round)
            continue;
        if (left) {
            *gone = 1;
            return r;
        }
        if (missing < 0)
            missing = r;
    }
    return missing;
}

static void sleep_until_rung(struct sw_exchange *x, uint32_t heard, int64_t ms)
{
    const struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};

    /* EINTR, EAGAIN and ETIMEDOUT all mean: look again. */
    syscall(SYS_futex, &x->bell, FUTEX_WAIT_PRIVATE, heard, &t, NULL, 0);
}

/* Until the round is complete or the exchange has ended. */
static symwin_status wait_for(struct sw_exchange *x, uint64_t round, int timeout_ms,
                              const char *call)
{
    const uint64_t target = (round + 1) * (uint64_t)x->nranks;
    const int64_t deadline = now_ms() + timeout_ms;
    int spins = 0;

    for (;;) {
        const uint32_t heard = atomic_load(&x->bell);
        const uint64_t word = atomic_load(&x->word);
        int64_t left;
        int missing;
        int gone;

        if ((word & COUNT_MASK) >= target)
            return SYMWIN_OK;
        if (word >> CULPRIT_SHIFT != 0)
            return ended(word, call);
        if (spins++ < SPINS) {
            sched_yield();
            continue;
        }
        left = deadline - now_ms();
        missing = missing_rank(x, round, &gone);
        if (missing >= 0 && (gone || left <= 0))
            end(x, word, gone ? SYMWIN_PEER_LOST : SYMWIN_TIMEOUT, missing);
        else
            sleep_until_rung(x, heard, left > 0 ? left : 1);
    }
}

symwin_status sw_exchange_allgather(struct sw_exchange *x, int rank, const void *mine, size_t bytes,
                                    void *all, int timeout_ms, const char *call)
{
    struct post *own = &x->posts[rank];
    const uint64_t round = atomic_load_explicit(&own->rounds, memory_order_relaxed);
    uint64_t word = atomic_load(&x->word);
    symwin_status status;
    int r;

    memcpy(own->data[round & 1], mine, bytes);
    atomic_store(&own->rounds, round + 1);
    do {
        if (word >> CULPRIT_SHIFT != 0)
            return ended(word, call);
    } while (!atomic_compare_exchange_weak(&x->word, &word, word + 1));
    if (((word + 1) & COUNT_MASK) == (round + 1) * (uint64_t)x->nranks)
        ring(x);
    status = wait_for(x, round, timeout_ms, call);
    if (status != SYMWIN_OK)
        return status;
    for (r = 0; r < x->nranks; r++)
        memcpy((unsigned char *)all + (size_t)r * bytes, x->posts[r].data[round & 1], bytes);
    return SYMWIN_OK;
}
