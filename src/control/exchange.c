/* The exchange: an all-gather with a deadline, on the control page that all ranks of a host share.
 *
 * Rounds are numbered from 0, and every rank posts once in each. One 64-bit word decides all:
 *
 *   bits 0..41   number of posts so far, of all ranks: round k is complete at (k + 1) * nranks
 *   bits 42..63  0, or the end of the exchange: status and culprit (exchange_end.c)
 *
 * Posts and ends are compare-and-swaps on that word, and an end freezes the count. So all ranks
 * agree on whether a round is complete, even if a late post races with a timeout.
 *
 * With ranks on several hosts, each host has a control page with a slot for every rank, and one
 * host decides. It receives all posts. Once its page has those of a round, it sends them to the
 * other hosts (host_send.c), where the linking process posts them for the remote ranks. Only the
 * deciding host ends the exchange. Another host proposes an end; if no answer comes within a
 * second, or none can come any more, it ends the exchange itself.
 *
 * A rank's data is in one of two buffers of its slot, by the round's parity. It may be overwritten
 * two rounds later: by then every rank has posted the round between, after reading this one. Unless
 * the exchange has ended: then nothing is overwritten, because ranks and links may still read.
 *
 * Any thread may call. Waiting ranks spin a little, then sleep on the page's futex word.
 */
#include <linux/futex.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "src/control/control.h"
#include "src/control/control_page.h"

#define DECIDE_MS 500
#define QUIET_MS 500 /* without a beat: the linking process is taken for stopped */
#define ASK_MS 50    /* between two calls of sw_exchange_ask() in a wait */
#define ASK_FRESH_MS 250
#define NO_ANSWER_MS 400 /* of asking, below DECIDE_MS: the asked process is taken for stopped */
#define WAITS_SHIFT 20
#define WAITS_MASK 0xfffffu
#define WAITS_FRESH_MS 100
#define SPINS 200 /* a few microseconds, before a rank sleeps */

/* For how long it has been later than `at`, a time on the page: another process may have written
 * any. */
static int64_t age_ms(int64_t at)
{
    return (int64_t)((uint64_t)sw_now_ms() - (uint64_t)at);
}

/* Who sleeps: any rank, or the one that sends its host's posts. */
enum { ANY_RANK = 1, WHO_SENDS = 2 };

static long futex(struct sw_exchange *x, int operation, uint32_t value, const struct timespec *t,
                  uint32_t who)
{
    if (!x->shared)
        operation |= FUTEX_PRIVATE_FLAG;
    return syscall(SYS_futex, &x->page->futex, operation, value, t, NULL, who);
}

static void wake(struct sw_exchange *x, uint32_t who)
{
    atomic_fetch_add_explicit(&x->page->futex, 1, memory_order_release);
    futex(x, FUTEX_WAKE_BITSET, 0x7fffffff, NULL, who);
}

static void wake_all(struct sw_exchange *x)
{
    wake(x, ANY_RANK | WHO_SENDS);
}

/* `seen` with the first end that this process has seen there. Another process may clear the page at
 * any time: an end stays. */
static uint64_t keep_end(_Atomic uint64_t *first, uint64_t seen)
{
    uint64_t none = 0;

    if (seen >> SW_END_SHIFT != 0)
        atomic_compare_exchange_strong(first, &none, seen & ~SW_END_COUNT_MASK);
    return atomic_load(first) | (seen & SW_END_COUNT_MASK);
}

static uint64_t word_of(struct sw_exchange *x)
{
    return keep_end(&x->end, atomic_load(&x->page->word));
}

static uint64_t proposal_of(struct sw_exchange *x)
{
    return keep_end(&x->proposal, atomic_load(&x->page->proposal));
}

/* The decided or proposed end, in the form of the page's word without its count; 0: none. */
static uint64_t outcome(struct sw_exchange *x)
{
    const uint64_t word = word_of(x) & ~SW_END_COUNT_MASK;

    return word != 0 ? word : proposal_of(x) & ~SW_END_COUNT_MASK;
}

static void notify_end(struct sw_exchange *x)
{
    atomic_store(&x->told, outcome(x));
    wake_all(x);
    if (x->on_end != NULL)
        x->on_end(x->on_end_context);
}

void sw_exchange_look(struct sw_exchange *x)
{
    if (outcome(x) != atomic_load(&x->told))
        notify_end(x);
}

static int decides(const struct sw_exchange *x)
{
    return x->hosts == NULL || x->hosts->decides ||
           (x->hosts->is_cut_off != NULL && x->hosts->is_cut_off(x->hosts->context));
}

static void propose(struct sw_exchange *x, symwin_status status, int culprit)
{
    uint64_t seen = proposal_of(x);
    int64_t never = 0;

    atomic_compare_exchange_strong(&x->page->proposed_at, &never, sw_now_ms());
    while (seen >> SW_END_SHIFT == 0)
        if (atomic_compare_exchange_weak(&x->page->proposal, &seen, sw_end_of(status, culprit))) {
            keep_end(&x->proposal, sw_end_of(status, culprit));
            notify_end(x);
            return;
        }
}

/* Ends the exchange, unless there was a post since `seen`. On a host that does not decide: proposes
 * the end. */
static void end_unless_posted(struct sw_exchange *x, uint64_t seen, symwin_status status,
                              int culprit)
{
    if (!decides(x)) {
        propose(x, status, culprit);
    } else if (atomic_compare_exchange_strong(&x->page->word, &seen,
                                              seen | sw_end_of(status, culprit))) {
        keep_end(&x->end, sw_end_of(status, culprit));
        notify_end(x);
    }
}

void sw_exchange_decide(struct sw_exchange *x, symwin_status status, int culprit)
{
    uint64_t seen = word_of(x);

    while (seen >> SW_END_SHIFT == 0)
        if (atomic_compare_exchange_weak(&x->page->word, &seen,
                                         seen | sw_end_of(status, culprit))) {
            keep_end(&x->end, sw_end_of(status, culprit));
            notify_end(x);
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

void sw_exchange_fail_late(struct sw_exchange *x, int culprit, const char *call,
                           uint32_t collective)
{
    sw_end_note_missed(x, culprit, call, collective);
    sw_exchange_fail(x, SYMWIN_TIMEOUT, culprit);
}

void sw_exchange_fail_untaken(struct sw_exchange *x, int culprit, int from, uint64_t count)
{
    sw_end_note_untaken(x, culprit, from, count);
    sw_exchange_fail(x, SYMWIN_MISMATCH, culprit);
}

void sw_exchange_fail_frame(struct sw_exchange *x, int culprit)
{
    sw_end_note_frame(x, culprit);
    sw_exchange_fail(x, SYMWIN_MISMATCH, culprit);
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

int sw_exchange_outcome(struct sw_exchange *x, symwin_status *status, int *culprit)
{
    const uint64_t word = outcome(x);

    *status = word == 0 ? SYMWIN_OK : sw_end_status(word);
    *culprit = sw_end_culprit(word);
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

void sw_exchange_be_built(struct sw_exchange *x)
{
    atomic_store(&x->built, 1);
}

symwin_status sw_exchange_status(struct sw_exchange *x, const char *call)
{
    const uint64_t word = outcome(x);

    return word == 0 ? SYMWIN_OK : sw_end_say(x, word, call, NULL);
}

int sw_exchange_is_decided(struct sw_exchange *x)
{
    return word_of(x) >> SW_END_SHIFT != 0;
}

int sw_exchange_ended(struct sw_exchange *x)
{
    return outcome(x) != 0;
}

void sw_exchange_take_leave(struct sw_exchange *x, int rank)
{
    int expected = HERE;

    if (atomic_compare_exchange_strong(&x->page->slots[rank].gone, &expected, LEAVES))
        wake_all(x);
}

void sw_exchange_is_lost(struct sw_exchange *x, int rank)
{
    int expected = LEAVES;

    atomic_compare_exchange_strong(&x->page->slots[rank].gone, &expected, HERE);
}

void sw_exchange_leave(struct sw_exchange *x, int rank)
{
    atomic_store(&x->page->slots[rank].gone, GONE);
    wake_all(x); /* ranks that wait for this one check again */
}

void sw_exchange_waits_for(struct sw_exchange *x, int rank, int other)
{
    atomic_store(&x->page->slots[rank].waits,
                 (uint64_t)sw_now_ms() << WAITS_SHIFT | (uint64_t)(other + 1));
}

/* The rank that `rank` waits for, directly or through others; itself if it waits for none. It is
 * the one to blame when `rank` is late. What a rank said counts for WAITS_FRESH_MS. */
static int blocking_rank(const struct sw_exchange *x, int rank)
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

static int is_remote(const struct sw_exchange *x, int rank)
{
    return x->hosts != NULL && x->hosts->through[rank] >= 0;
}

/* A rank that has not posted `round`: preferably one that leaves (*gone), else the lowest of this
 * host, or the rank that it waits for, else the lowest on another host; -1: none. Only the deciding
 * host looks for leaving ranks on other hosts: here a LEAVE may have arrived before their last
 * posts. */
static int missing_rank(struct sw_exchange *x, uint64_t round, int *gone)
{
    int local = -1, remote = -1;
    int r;

    *gone = x->hosts != NULL && sw_exchange_has_left(x, x->hosts->decider);
    if (*gone && atomic_load(&x->page->slots[x->hosts->decider].rounds) <= round)
        return x->hosts->decider;
    *gone = 0;
    for (r = 0; r < x->nranks; r++) {
        /* Read before `rounds`: a rank posts first and leaves later. */
        const int left = sw_exchange_leaves(x, r);
        int *missing = is_remote(x, r) ? &remote : &local;

        if (atomic_load(&x->page->slots[r].rounds) > round)
            continue;
        if (left && (missing == &local || x->hosts->decides)) {
            *gone = 1;
            return r;
        }
        if (*missing < 0)
            *missing = r;
    }
    if (local < 0)
        return remote;
    return blocking_rank(x, local);
}

void sw_exchange_beat(struct sw_exchange *x)
{
    atomic_store(&x->page->beat, sw_now_ms());
}

void sw_exchange_heard(struct sw_exchange *x, int rank)
{
    atomic_store(&x->page->slots[rank].heard, sw_now_ms());
    if (atomic_load(&x->page->slots[rank].holder) != 0)
        atomic_store(&x->page->slots[rank].holder, 0);
}

void sw_exchange_speak(struct sw_exchange *x)
{
    atomic_store(&x->page->speaks, 1);
}

int sw_exchange_speaks(const struct sw_exchange *x)
{
    return atomic_load(&x->page->speaks);
}

void sw_exchange_is_held(struct sw_exchange *x, int rank, int holder)
{
    atomic_store(&x->page->slots[rank].holder, holder + 1);
}

/* Another process may have written any holder. */
static int holder_of(const struct sw_exchange *x, int through)
{
    const int holder = atomic_load(&x->page->slots[through].holder) - 1;

    return holder >= 0 && holder < x->nranks && is_remote(x, holder) ? holder : through;
}

int sw_exchange_is_asked(const struct sw_exchange *x)
{
    return age_ms(atomic_load(&x->page->asked)) < ASK_FRESH_MS;
}

void sw_exchange_ask(struct sw_exchange *x)
{
    const int64_t now = sw_now_ms();

    if (!sw_exchange_is_asked(x))
        atomic_store(&x->page->asked_since, now);
    atomic_store(&x->page->asked, now);
}

int sw_exchange_silent(const struct sw_exchange *x, int rank)
{
    const int64_t since = atomic_load(&x->page->asked_since);
    int through;

    if (!is_remote(x, rank))
        return -1;
    if (age_ms(atomic_load(&x->page->beat)) >= QUIET_MS)
        return x->hosts->links;
    through = x->hosts->through[rank];
    return sw_exchange_is_asked(x) && age_ms(since) >= NO_ANSWER_MS &&
                   age_ms(atomic_load(&x->page->slots[through].heard)) >= NO_ANSWER_MS
               ? holder_of(x, through)
               : -1;
}

/* A rank missing on another host may have posted, while a linking process is stopped and forwards
 * nothing. That one is to blame then. */
static int rank_to_blame(const struct sw_exchange *x, int missing)
{
    const int silent = sw_exchange_silent(x, missing);

    return silent >= 0 ? silent : missing;
}

static void sleep_until_woken(struct sw_exchange *x, uint32_t wakes, int64_t ms, uint32_t who)
{
    const int64_t end = sw_now_ms() + ms + 1; /* now is between two milliseconds */
    const struct timespec t = {.tv_sec = end / 1000, .tv_nsec = (long)(end % 1000) * 1000000};

    /* EINTR, EAGAIN and ETIMEDOUT: the caller checks again in any case. */
    futex(x, FUTEX_WAIT_BITSET, wakes, &t, who);
}

/* How long a rank waits past its deadline for a rank on another host. On the deciding host: for
 * that host's proposal, which names the rank that is late, or, if hosts are linked over others, for
 * that of a host between them, which asks for 250 ms itself. On the others: for the decision. */
static int allowance_ms(const struct sw_exchange *x, int missing)
{
    if (!is_remote(x, missing))
        return 0;
    if (x->hosts->decides)
        return x->hosts->is_deep ? 2 * DECIDE_MS : DECIDE_MS;
    return 4 * DECIDE_MS;
}

int sw_exchange_culprit(const struct sw_exchange *x, int rank)
{
    return rank_to_blame(x, blocking_rank(x, rank));
}

int sw_exchange_allowance(const struct sw_exchange *x, int rank)
{
    return allowance_ms(x, rank);
}

/* Whether all ranks of this host have posted the round. */
static int local_done(const struct sw_exchange *x, uint64_t round)
{
    int r;

    for (r = 0; r < x->nranks; r++)
        if (!is_remote(x, r) && atomic_load(&x->page->slots[r].rounds) <= round)
            return 0;
    return 1;
}

/* How many milliseconds the deciding host has left to answer this host's proposal. 0: the end is
 * decided. *proposed is kept by the caller between calls, and is 0 at first. */
static int64_t await_decision(struct sw_exchange *x, uint64_t proposal, int64_t *proposed)
{
    const int64_t now = sw_now_ms(), at = atomic_load(&x->page->proposed_at);
    int64_t left;

    /* The time counts from the proposal, but at the latest from when this rank first saw one:
     * another process may write any time to the page. What is older than any wait is due. */
    if (*proposed == 0)
        *proposed = now;
    if (at < *proposed)
        *proposed = at < now - 2 * DECIDE_MS ? now - 2 * DECIDE_MS : at;
    left = *proposed + 2 * DECIDE_MS - now;
    if (left > 0 && !decides(x))
        return left;
    /* The deciding host does not answer. */
    sw_exchange_decide(x, sw_end_status(proposal), sw_end_culprit(proposal));
    return 0;
}

void sw_exchange_settle(struct sw_exchange *x)
{
    int64_t proposed = 0;

    for (;;) {
        const uint32_t wakes = atomic_load(&x->page->futex);
        const uint64_t proposal = proposal_of(x);
        int64_t left;

        if (proposal >> SW_END_SHIFT == 0 || sw_exchange_is_decided(x))
            return;
        left = await_decision(x, proposal, &proposed);
        if (left > 0)
            sleep_until_woken(x, wakes, left, ANY_RANK);
    }
}

symwin_status sw_exchange_settled(struct sw_exchange *x, const char *call)
{
    sw_exchange_settle(x);
    return sw_exchange_status(x, call);
}

static int has_not_come(const struct sw_exchange *x, int rank, uint64_t round)
{
    return rank < x->nranks && atomic_load(&x->page->slots[rank].rounds) <= round;
}

/* Ends the exchange if that is due, else returns how many milliseconds to sleep. 0: check again at
 * once. *proposed: see await_decision(). */
static int64_t time_left(struct sw_exchange *x, uint64_t round, uint64_t word, int64_t deadline,
                         const char *call, int64_t *proposed)
{
    const uint64_t proposal = proposal_of(x);
    const int64_t now = sw_now_ms();
    int gone;
    const int missing = missing_rank(x, round, &gone);
    int64_t left = deadline - now;

    if (missing >= 0)
        left += allowance_ms(x, missing);
    if (proposal >> SW_END_SHIFT != 0)
        return await_decision(x, proposal, proposed);
    if (missing >= 0 && (gone || left <= 0)) {
        const int culprit = gone ? missing : rank_to_blame(x, missing);

        if (culprit == missing && has_not_come(x, culprit, round))
            sw_end_note_missed(x, culprit, call, 0);
        end_unless_posted(x, word, gone ? SYMWIN_PEER_LOST : SYMWIN_TIMEOUT, culprit);
        return 0;
    }
    if (missing >= 0 && is_remote(x, missing)) {
        if (deadline > now)
            return deadline - now;
        sw_exchange_ask(x);
        return left < ASK_MS ? left : ASK_MS;
    }
    /* All ranks have posted, but not all are counted. A post is counted first, so another process
     * has written to the page; the culprit is unknown. */
    if (left <= -DECIDE_MS) {
        end_unless_posted(x, word, SYMWIN_TIMEOUT, SW_NOBODY);
        return 0;
    }
    return left > 0 ? left : 1;
}

/* Waits until the round is complete, or the exchange has ended. With `local_only` it waits only for
 * the ranks of this host, and sends their posts meanwhile: this is for the host's lowest rank. */
static symwin_status wait_for(struct sw_exchange *x, uint64_t round, int local_only,
                              int64_t deadline, const char *call)
{
    const uint64_t target = (round + 1) * (uint64_t)x->nranks;
    int64_t proposed = 0; /* see await_decision() */
    int spins = 0;

    for (;;) {
        const uint32_t wakes = atomic_load(&x->page->futex);
        const uint64_t word = word_of(x);
        const int done = local_only && local_done(x, round);
        int64_t left;

        if (local_only)
            x->hosts->send(x->hosts->context, round);
        if ((word & SW_END_COUNT_MASK) >= target || done)
            return SYMWIN_OK;
        if (word >> SW_END_SHIFT != 0)
            return sw_end_say(x, word, call,
                              has_not_come(x, sw_end_culprit(word), round) ? call : NULL);
        if (x->hosts == NULL && spins++ < SPINS) { /* another host's post takes longer */
            sched_yield();
            continue;
        }
        left = time_left(x, round, word, deadline, call, &proposed);
        if (left > 0)
            sleep_until_woken(x, wakes, left, local_only ? WHO_SENDS : ANY_RANK);
    }
}

int sw_exchange_post(struct sw_exchange *x, int rank, uint64_t round, const void *data,
                     size_t bytes)
{
    struct page_slot *slot = &x->page->slots[rank];
    uint64_t word = word_of(x);

    if (word >> SW_END_SHIFT != 0)
        return 0;
    memcpy(slot->data[round & 1], data, bytes);
    memset(slot->data[round & 1] + bytes, 0, SW_EXCHANGE_BYTES - bytes);
    do {
        if (keep_end(&x->end, word) >> SW_END_SHIFT != 0)
            return 0;
    } while (!atomic_compare_exchange_weak(&x->page->word, &word, word + 1));
    /* Last: a rank that is stopped before it is counted must be seen as missing. */
    atomic_store(&slot->rounds, round + 1);
    if (((word + 1) & SW_END_COUNT_MASK) == (round + 1) * (uint64_t)x->nranks)
        wake_all(x);
    else if (x->hosts != NULL && !x->hosts->decides && !is_remote(x, rank))
        wake(x, WHO_SENDS);
    return 1;
}

uint64_t sw_exchange_rounds(const struct sw_exchange *x, int rank)
{
    return atomic_load(&x->page->slots[rank].rounds);
}

uint64_t sw_exchange_complete(const struct sw_exchange *x)
{
    return (atomic_load(&x->page->word) & SW_END_COUNT_MASK) / (uint64_t)x->nranks;
}

const unsigned char *sw_exchange_data(const struct sw_exchange *x, int rank, uint64_t round)
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
        return sw_end_say(x, word_of(x), call, NULL);
    /* The host's lowest rank sends this host's posts as they are made. On the deciding host it
     * sends those of all ranks once the round is complete. */
    if (relays && !hosts->decides)
        status = wait_for(x, round, 1, deadline, call);
    if (status == SYMWIN_OK)
        status = wait_for(x, round, 0, deadline, call);
    if (status != SYMWIN_OK)
        return status;
    if (relays && hosts->decides)
        hosts->send(hosts->context, round);
    for (r = 0; r < x->nranks; r++)
        memcpy((unsigned char *)all + (size_t)r * bytes, x->page->slots[r].data[round & 1], bytes);
    return SYMWIN_OK;
}
