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
 * Where ranks are on several hosts, each host has such a page, with a slot for every rank, and
 * one host decides: it is sent all posts, and when its page has them it sends them to the others (links.c),
 * where they are posted for the ranks elsewhere. An end is that host's word too: the others propose one and
 * wait a second, or until nobody could answer any more.
 *
 * A rank's data lies in one of two slots by the round's parity. It may be overwritten two rounds
 * later: by then every rank has posted the round between, and did so after reading this one.
 */
#include <linux/futex.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "src/control/control.h"
#include "src/control/control_page.h"

#define COUNT_MASK (((uint64_t)1 << 48) - 1)
#define STATUS_SHIFT 60
#define CULPRIT_SHIFT 48
#define CULPRIT_MASK 0xfffu
#define DECIDE_MS 500
#define QUIET_MS 500 /* without a beat: it is stopped */
#define ASK_MS 50    /* between two times that a rank says it waits beyond its time */
#define ASK_FRESH_MS 250
#define NO_ANSWER_MS 400 /* of asking, less than DECIDE_MS: it is stopped */
#define WAITS_SHIFT 16
#define WAITS_MASK 0xffffu
#define WAITS_FRESH_MS 100
#define SPINS 200 /* a few microseconds before a rank sleeps */

/* What a rank's post says of it: it will post no more, though its last calls may be under way; it has left. */
enum { HERE, LEAVES, GONE };

static long futex(struct sw_exchange *x, int operation, uint32_t value, const struct timespec *t)
{
    if (!x->shared)
        operation |= FUTEX_PRIVATE_FLAG;
    return syscall(SYS_futex, &x->page->futex, operation, value, t, NULL, 0);
}

static void ring(struct sw_exchange *x)
{
    atomic_fetch_add_explicit(&x->page->futex, 1, memory_order_release);
    futex(x, FUTEX_WAKE, 0x7fffffff, NULL);
}

static uint64_t reason(symwin_status status, int culprit)
{
    return (uint64_t)status << STATUS_SHIFT | ((uint64_t)culprit & CULPRIT_MASK) << CULPRIT_SHIFT;
}

/* What ended it, or is to end it, without the count; 0: nothing. */
static uint64_t outcome(const struct sw_exchange *x)
{
    const uint64_t word = atomic_load(&x->page->word) & ~COUNT_MASK;

    return word != 0 ? word : atomic_load(&x->page->proposal) & ~COUNT_MASK;
}

static void tell_of_end(struct sw_exchange *x)
{
    atomic_store(&x->told, outcome(x));
    ring(x);
    if (x->on_end != NULL)
        x->on_end(x->on_end_context);
}

void sw_exchange_look(struct sw_exchange *x)
{
    if (outcome(x) != atomic_load(&x->told))
        tell_of_end(x);
}

static int decides(const struct sw_exchange *x)
{
    return x->hosts == NULL || x->hosts->decides ||
           (x->hosts->is_cut_off != NULL && x->hosts->is_cut_off(x->hosts->context));
}

static void propose(struct sw_exchange *x, symwin_status status, int culprit)
{
    uint64_t seen = atomic_load(&x->page->proposal);
    int64_t never = 0;

    atomic_compare_exchange_strong(&x->page->proposed_at, &never, sw_now_ms());
    while (seen >> CULPRIT_SHIFT == 0)
        if (atomic_compare_exchange_weak(&x->page->proposal, &seen, reason(status, culprit))) {
            tell_of_end(x);
            return;
        }
}

/* Ends it, unless something was posted since `seen`; on a host that does not decide, proposes that. */
static void end(struct sw_exchange *x, uint64_t seen, symwin_status status, int culprit)
{
    if (!decides(x))
        propose(x, status, culprit);
    else if (atomic_compare_exchange_strong(&x->page->word, &seen, seen | reason(status, culprit)))
        tell_of_end(x);
}

void sw_exchange_decide(struct sw_exchange *x, symwin_status status, int culprit)
{
    uint64_t seen = atomic_load(&x->page->word);

    while (seen >> CULPRIT_SHIFT == 0)
        if (atomic_compare_exchange_weak(&x->page->word, &seen, seen | reason(status, culprit))) {
            tell_of_end(x);
            return;
        }
}

void sw_exchange_fail(struct sw_exchange *x, symwin_status status, int culprit)
{
    if (decides(x))
        sw_exchange_decide(x, status, culprit);
    else
        propose(x, status, culprit);
}

void sw_exchange_on_end(struct sw_exchange *x, void (*f)(void *context), void *context)
{
    x->on_end_context = context;
    x->on_end = f;
}

void sw_exchange_set_hosts(struct sw_exchange *x, const struct sw_exchange_hosts *hosts)
{
    x->hosts = hosts;
}

/* Of what ended it. Another process may have written anything. */
static symwin_status status_in(uint64_t word)
{
    const uint64_t status = word >> STATUS_SHIFT;

    if (status == SYMWIN_OK)
        return SYMWIN_ABORTED;
    return status <= SYMWIN_STATUS_LAST ? (symwin_status)status : SYMWIN_ABORTED;
}

static int culprit_in(uint64_t word)
{
    return (int)(word >> CULPRIT_SHIFT & CULPRIT_MASK);
}

int sw_exchange_outcome(const struct sw_exchange *x, symwin_status *status, int *culprit)
{
    const uint64_t word = outcome(x);

    *status = word == 0 ? SYMWIN_OK : status_in(word);
    *culprit = culprit_in(word);
    return word != 0;
}

void sw_exchange_be_quiet(struct sw_exchange *x, int rank)
{
    atomic_store(&x->page->slots[rank].quiet, 1);
}

int sw_exchange_is_quiet(const struct sw_exchange *x, int rank)
{
    return atomic_load(&x->page->slots[rank].quiet);
}

int sw_exchange_has_left(const struct sw_exchange *x, int rank)
{
    return atomic_load(&x->page->slots[rank].gone) == GONE;
}

int sw_exchange_leaves(const struct sw_exchange *x, int rank)
{
    return atomic_load(&x->page->slots[rank].gone) != HERE;
}

static symwin_status ended(const struct sw_exchange *x, uint64_t word, const char *call)
{
    const symwin_status status = status_in(word);
    const int culprit = culprit_in(word);

    switch (status) {
    case SYMWIN_TIMEOUT:
        if (culprit >= x->nranks)
            return sw_fail(
                status,
                "%s: a process was stopped, or wrote to the control page, during the call; "
                "destroy the communicator on every rank",
                call);
        return sw_fail(status,
                       "%s: rank %d did not make the call in time; destroy the communicator on "
                       "every rank",
                       call, culprit);
    case SYMWIN_PEER_LOST:
        if (culprit < x->nranks && sw_exchange_leaves(x, culprit))
            return sw_fail(status,
                           "%s: rank %d has destroyed its communicator; every rank must make the "
                           "same collective calls before it does",
                           call, culprit);
        return sw_fail(status, "%s: the process of rank %d has ended; destroy the communicator",
                       call, culprit);
    case SYMWIN_NO_MEMORY:
        return sw_fail(
            status,
            "%s: the process of rank %d has no memory or no file descriptors left; destroy the "
            "communicator on every rank",
            call, culprit);
    case SYMWIN_MISMATCH:
        if (culprit >= x->nranks)
            return sw_fail(
                status,
                "%s: the ranks' calls differ, and no majority agrees; make the same calls "
                "with the same arguments on every rank",
                call);
        return sw_fail(
            status,
            "%s: rank %d's calls differ from the other ranks'; make the same calls with the "
            "same arguments on every rank",
            call, culprit);
    case SYMWIN_ABORTED:
        return sw_fail(status, "%s: rank %d aborted the communicator; destroy it", call, culprit);
    default:
        return sw_fail(status, "%s: rank %d ended the communicator", call, culprit);
    }
}

symwin_status sw_exchange_status(struct sw_exchange *x, const char *call)
{
    const uint64_t word = outcome(x);

    return word == 0 ? SYMWIN_OK : ended(x, word, call);
}

int sw_exchange_is_decided(const struct sw_exchange *x)
{
    return atomic_load(&x->page->word) >> CULPRIT_SHIFT != 0;
}

int sw_exchange_ended(const struct sw_exchange *x)
{
    return outcome(x) != 0;
}

void sw_exchange_take_leave(struct sw_exchange *x, int rank)
{
    int here = HERE;

    if (atomic_compare_exchange_strong(&x->page->slots[rank].gone, &here, LEAVES))
        ring(x);
}

void sw_exchange_is_lost(struct sw_exchange *x, int rank)
{
    int leaves = LEAVES;

    atomic_compare_exchange_strong(&x->page->slots[rank].gone, &leaves, HERE);
}

void sw_exchange_leave(struct sw_exchange *x, int rank)
{
    atomic_store(&x->page->slots[rank].gone, GONE);
    ring(x); /* whoever waits for this rank looks again */
}

void sw_exchange_waits_for(struct sw_exchange *x, int rank, int other)
{
    atomic_store(&x->page->slots[rank].waits,
                 (uint64_t)sw_now_ms() << WAITS_SHIFT | (uint64_t)(other + 1));
}

/* A rank that is late because it waits for another is not the one to be named, as long as it keeps
 * saying so. */
static int whom_it_waits_for(const struct sw_exchange *x, int rank)
{
    int hops;

    for (hops = 0; hops < x->nranks; hops++) {
        const uint64_t waits = atomic_load(&x->page->slots[rank].waits);
        const int other = (int)(waits & WAITS_MASK) - 1;

        if (other < 0 || other >= x->nranks ||
            sw_now_ms() - (int64_t)(waits >> WAITS_SHIFT) > WAITS_FRESH_MS)
            break;
        rank = other;
    }
    return rank;
}

static int is_elsewhere(const struct sw_exchange *x, int rank)
{
    return x->hosts != NULL && x->hosts->through[rank] >= 0;
}

/* A rank that has not posted `round`: one that is gone if there is one, else the lowest of this host, else
 * the lowest; -1: none. Of ranks elsewhere the deciding host knows who is gone: here that word may have overtaken
 * their last posts. */
static int missing_rank(struct sw_exchange *x, uint64_t round, int *gone)
{
    int here = -1, elsewhere = -1;
    int r;

    *gone = x->hosts != NULL && sw_exchange_has_left(x, x->hosts->decider);
    if (*gone && atomic_load(&x->page->slots[x->hosts->decider].rounds) <= round)
        return x->hosts->decider;
    *gone = 0;
    for (r = 0; r < x->nranks; r++) {
        /* gone before rounds: a rank posts first and leaves later */
        const int left = sw_exchange_leaves(x, r);
        int *missing = is_elsewhere(x, r) ? &elsewhere : &here;

        if (atomic_load(&x->page->slots[r].rounds) > round)
            continue;
        if (left && (missing == &here || x->hosts->decides)) {
            *gone = 1;
            return r;
        }
        if (*missing < 0)
            *missing = r;
    }
    if (here < 0)
        return elsewhere;
    return whom_it_waits_for(x, here);
}

void sw_exchange_beat(struct sw_exchange *x)
{
    atomic_store(&x->page->beat, sw_now_ms());
}

void sw_exchange_heard(struct sw_exchange *x, int rank)
{
    atomic_store(&x->page->slots[rank].heard, sw_now_ms());
}

int sw_exchange_is_asked(const struct sw_exchange *x)
{
    return sw_now_ms() - atomic_load(&x->page->asked) < ASK_FRESH_MS;
}

void sw_exchange_ask(struct sw_exchange *x)
{
    const int64_t now = sw_now_ms();

    if (!sw_exchange_is_asked(x))
        atomic_store(&x->page->asked_since, now);
    atomic_store(&x->page->asked, now);
}

/* Who is missing elsewhere may be here, and only the process that would say so is stopped: on this host, or the one that
 * is asked and does not answer. */
static int or_who_links(const struct sw_exchange *x, int missing)
{
    const int64_t now = sw_now_ms(), since = atomic_load(&x->page->asked_since);
    int through;

    if (!is_elsewhere(x, missing))
        return missing;
    if (now - atomic_load(&x->page->beat) >= QUIET_MS)
        return x->hosts->links;
    through = x->hosts->through[missing];
    if (sw_exchange_is_asked(x) && now - since >= NO_ANSWER_MS &&
        atomic_load(&x->page->slots[through].heard) < since)
        return through;
    return missing;
}

static void sleep_until_rung(struct sw_exchange *x, uint32_t heard, int64_t ms)
{
    const struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};

    /* EINTR, EAGAIN and ETIMEDOUT all mean: look again. */
    futex(x, FUTEX_WAIT, heard, &t);
}

/* How much longer than its own time a host waits for a rank of another: the deciding host for word on
 * which of that host's ranks is late, the others for that decision. */
static int allowance_ms(const struct sw_exchange *x, int missing)
{
    if (!is_elsewhere(x, missing))
        return 0;
    return x->hosts->decides ? DECIDE_MS : 4 * DECIDE_MS;
}

int sw_exchange_culprit(const struct sw_exchange *x, int rank)
{
    return or_who_links(x, whom_it_waits_for(x, rank));
}

int sw_exchange_allowance(const struct sw_exchange *x, int rank)
{
    return allowance_ms(x, rank);
}

/* All ranks of this host have posted the round. */
static int local_done(const struct sw_exchange *x, uint64_t round)
{
    int r;

    for (r = 0; r < x->nranks; r++)
        if (!is_elsewhere(x, r) && atomic_load(&x->page->slots[r].rounds) <= round)
            return 0;
    return 1;
}

/* How long the deciding host has left for its word on this host's proposal. 0: it is decided. `*proposed` is the caller's
 * to keep: 0 at first. */
static int64_t await_decision(struct sw_exchange *x, uint64_t proposal, int64_t *proposed)
{
    const int64_t now = sw_now_ms();
    int64_t left;

    /* Its time counts from when it was made, but not from later than this rank has seen one: another process can
     * say whatever it likes. */
    if (*proposed == 0 || atomic_load(&x->page->proposed_at) < *proposed)
        *proposed = atomic_load(&x->page->proposed_at);
    if (*proposed > now)
        *proposed = now;
    left = *proposed + 2 * DECIDE_MS - now;
    if (left > 0 && !decides(x))
        return left;
    sw_exchange_decide(x, status_in(proposal), culprit_in(proposal)); /* nobody decides any more */
    return 0;
}

void sw_exchange_settle(struct sw_exchange *x)
{
    int64_t proposed = 0;

    for (;;) {
        const uint32_t heard = atomic_load(&x->page->futex);
        const uint64_t proposal = atomic_load(&x->page->proposal);
        int64_t left;

        if (proposal >> CULPRIT_SHIFT == 0 || sw_exchange_is_decided(x))
            return;
        left = await_decision(x, proposal, &proposed);
        if (left > 0)
            sleep_until_rung(x, heard, left);
    }
}

symwin_status sw_exchange_settled(struct sw_exchange *x, const char *call)
{
    sw_exchange_settle(x);
    return sw_exchange_status(x, call);
}

/* Ends the exchange where that is due, or says how long to sleep until then. 0: look again at once. `*proposed` is the
 * caller's to keep: 0 at first. */
static int64_t time_left(struct sw_exchange *x, uint64_t round, uint64_t word, int64_t deadline,
                         int64_t *proposed)
{
    const uint64_t proposal = atomic_load(&x->page->proposal);
    const int64_t now = sw_now_ms();
    int gone;
    const int missing = missing_rank(x, round, &gone);
    int64_t left = deadline - now;

    if (missing >= 0)
        left += allowance_ms(x, missing);
    if (proposal >> CULPRIT_SHIFT != 0)
        return await_decision(x, proposal, proposed);
    if (missing >= 0 && (gone || left <= 0)) {
        if (gone)
            end(x, word, SYMWIN_PEER_LOST, missing);
        else
            end(x, word, SYMWIN_TIMEOUT, or_who_links(x, missing));
        return 0;
    }
    if (missing >= 0 && is_elsewhere(x, missing)) {
        if (deadline > now)
            return deadline - now;
        sw_exchange_ask(x);
        return left < ASK_MS ? left : ASK_MS;
    }
    if (left <=
        -DECIDE_MS) { /* all have posted, and not all are counted: whoever it is, is stopped between the two */
        end(x, word, SYMWIN_TIMEOUT, SW_NOBODY);
        return 0;
    }
    return left > 0 ? left : 1;
}

/* Until the round is complete, on this host or everywhere, or the exchange has ended. On this host: by the
 * rank that sends what the others post. */
static symwin_status wait_for(struct sw_exchange *x, uint64_t round, int here, size_t bytes,
                              int64_t deadline, const char *call)
{
    const uint64_t target = (round + 1) * (uint64_t)x->nranks;
    int64_t proposed = 0; /* when an end was, as this rank has seen it first */
    int spins = 0;

    for (;;) {
        const uint32_t heard = atomic_load(&x->page->futex);
        const uint64_t word = atomic_load(&x->page->word);
        const int done = here && local_done(x, round);
        int64_t left;

        if (here)
            x->hosts->send(x->hosts->context, round, bytes, deadline);
        if ((word & COUNT_MASK) >= target || done)
            return SYMWIN_OK;
        if (word >> CULPRIT_SHIFT != 0)
            return ended(x, word, call);
        if (spins++ < SPINS) {
            sched_yield();
            continue;
        }
        left = time_left(x, round, word, deadline, &proposed);
        if (left > 0)
            sleep_until_rung(x, heard, left);
    }
}

int sw_exchange_post(struct sw_exchange *x, int rank, uint64_t round, const void *data,
                     size_t bytes)
{
    struct page_slot *own = &x->page->slots[rank];
    uint64_t word = atomic_load(&x->page->word);

    memcpy(own->data[round & 1], data, bytes);
    do {
        if (word >> CULPRIT_SHIFT != 0)
            return 0;
    } while (!atomic_compare_exchange_weak(&x->page->word, &word, word + 1));
    /* Last: who has not been counted must be seen to be missing, wherever it is stopped. */
    atomic_store(&own->rounds, round + 1);
    if (((word + 1) & COUNT_MASK) == (round + 1) * (uint64_t)x->nranks || x->hosts != NULL)
        ring(x); /* with several hosts somebody waits for this host's ranks alone */
    return 1;
}

uint64_t sw_exchange_rounds(const struct sw_exchange *x, int rank)
{
    return atomic_load(&x->page->slots[rank].rounds);
}

uint64_t sw_exchange_complete(const struct sw_exchange *x)
{
    return (atomic_load(&x->page->word) & COUNT_MASK) / (uint64_t)x->nranks;
}

const void *sw_exchange_data(const struct sw_exchange *x, int rank, uint64_t round)
{
    return x->page->slots[rank].data[round & 1];
}

symwin_status sw_exchange_allgather(struct sw_exchange *x, int rank, const void *mine, size_t bytes,
                                    void *all, int timeout_ms, const char *call)
{
    const uint64_t round = atomic_load_explicit(&x->page->slots[rank].rounds, memory_order_relaxed);
    const int64_t deadline = sw_now_ms() + timeout_ms;
    const struct sw_exchange_hosts *hosts = x->hosts;
    const int relays = hosts != NULL && hosts->links == rank;
    symwin_status status = SYMWIN_OK;
    int r;

    if (!sw_exchange_post(x, rank, round, mine, bytes))
        return ended(x, atomic_load(&x->page->word), call);
    /* The rank that keeps the links sends this host's posts as they come, or, where the decision is made,
     * everybody's once the round is complete. */
    if (relays && !hosts->decides)
        status = wait_for(x, round, 1, bytes, deadline, call);
    if (status == SYMWIN_OK)
        status = wait_for(x, round, 0, bytes, deadline, call);
    if (status != SYMWIN_OK)
        return status;
    if (relays && hosts->decides)
        hosts->send(hosts->context, round, bytes, deadline);
    for (r = 0; r < x->nranks; r++)
        memcpy((unsigned char *)all + (size_t)r * bytes, x->page->slots[r].data[round & 1], bytes);
    return SYMWIN_OK;
}
