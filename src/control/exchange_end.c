/* The end of an exchange: a status and a culprit in the high bits of the control page's word, and
 * what texts say of it. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "src/control/control.h"
#include "src/control/control_page.h"

#define STATUS_SHIFT 60
#define CULPRIT_MASK 0x3ffffu

_Static_assert(SW_NOBODY >= SW_MAX_RANKS && SW_NOBODY <= CULPRIT_MASK, "a culprit fits");

uint64_t sw_end_of(symwin_status status, int culprit)
{
    return (uint64_t)status << STATUS_SHIFT | ((uint64_t)culprit & CULPRIT_MASK) << SW_END_SHIFT;
}

/* Another process may have written any value. */
symwin_status sw_end_status(uint64_t word)
{
    const uint64_t status = word >> STATUS_SHIFT;

    if (status == SYMWIN_OK)
        return SYMWIN_ABORTED;
    return status <= SYMWIN_STATUS_LAST ? (symwin_status)status : SYMWIN_ABORTED;
}

int sw_end_culprit(uint64_t word)
{
    return (int)(word >> SW_END_SHIFT & CULPRIT_MASK);
}

/* Host calls in which ranks wait for each other, and messages, and what texts call them. The last
 * line is for agreements in all other calls. */
static const struct {
    const char *call, *text;
} host_calls[] = {
    {"symwin_window_register", "symwin_window_register"},
    {"symwin_comm_split", "symwin_comm_split"},
    {"symwin_channel_connect", "symwin_channel_connect for its end of a channel"},
    {SW_A_MESSAGE, SW_A_MESSAGE},
    {"", "an agreement about registered buffers"},
};

enum { HOST_CALLS = sizeof host_calls / sizeof host_calls[0] };

#define IN_A_COLLECTIVE ((uint64_t)1 << 32)

void sw_end_note_missed(struct sw_exchange *x, int culprit, const char *call, uint32_t collective)
{
    uint64_t i = 0;

    while (i < HOST_CALLS - 1 && strcmp(host_calls[i].call, call) != 0)
        i++;
    atomic_store(&x->page->missed, sw_end_of(SYMWIN_TIMEOUT, culprit) |
                                       (collective != 0 ? IN_A_COLLECTIVE | collective : i + 1));
}

#define COUNT_BITS 24 /* more than a small send has */
#define MOST_COUNT (((uint64_t)1 << COUNT_BITS) - 1)

_Static_assert(CULPRIT_MASK <= SW_END_COUNT_MASK >> COUNT_BITS, "a sender fits");

void sw_end_note_untaken(struct sw_exchange *x, int culprit, int from, uint64_t count)
{
    atomic_store(&x->page->missed, sw_end_of(SYMWIN_MISMATCH, culprit) |
                                       (uint64_t)(from + 1) << COUNT_BITS |
                                       (count < MOST_COUNT ? count : MOST_COUNT));
}

enum { WRITING = 1, FOUND, SAID = FOUND, WRITING_MS = 100 };

/* Another rank stores what it has found, unless its process was stopped or killed then. If this one
 * ended the exchange first, ranks would not be told it. */
static void await_found(struct sw_exchange *x)
{
    const struct timespec moment = {.tv_nsec = 20000};
    const int64_t until = sw_now_ms() + WRITING_MS;

    while (atomic_load(&x->page->noted) == WRITING && sw_now_ms() < until &&
           (atomic_load(&x->page->word) | atomic_load(&x->page->proposal)) >> SW_END_SHIFT == 0)
        nanosleep(&moment, NULL);
}

void sw_exchange_note_found(struct sw_exchange *x, const struct sw_finding *found)
{
    uint32_t none = 0;

    if (!atomic_compare_exchange_strong(&x->page->noted, &none, WRITING)) {
        await_found(x);
        return;
    }
    x->page->found = *found;
    atomic_store(&x->page->noted, FOUND);
}

int sw_exchange_found(const struct sw_exchange *x, struct sw_finding *found)
{
    if (atomic_load(&x->page->noted) != FOUND)
        return 0;
    *found = x->page->found;
    return 1;
}

void sw_exchange_say_why(struct sw_exchange *x, int rank, const char *text)
{
    static const char cut[] = "...";
    struct control_page *page = x->page;
    const size_t length = strlen(text), most = sizeof page->why - 1;
    uint32_t none = 0;

    if (length == 0 || !atomic_compare_exchange_strong(&page->why_state, &none, WRITING))
        return;
    page->why_rank = rank;
    memcpy(page->why, text, length < most ? length + 1 : most);
    if (length > most)
        memcpy(page->why + sizeof page->why - sizeof cut, cut, sizeof cut);
    atomic_store_explicit(&page->why_state, SAID, memory_order_release);
}

/* Another process may have written any bytes, and may still write. */
int sw_exchange_why(const struct sw_exchange *x, int rank, char text[SW_WHY_BYTES])
{
    const struct control_page *page = x->page;
    size_t i;

    if (atomic_load_explicit(&page->why_state, memory_order_acquire) != SAID ||
        page->why_rank != rank || rank < 0 || rank >= x->nranks)
        return 0;
    memcpy(text, page->why, SW_WHY_BYTES);
    text[SW_WHY_BYTES - 1] = '\0';
    for (i = 0; text[i] != '\0'; i++)
        if (text[i] < ' ' || text[i] > '~')
            text[i] = '?';
    return i > 0;
}

#define A_FRAME 1 /* from no sender: what no process sends */

void sw_end_note_frame(struct sw_exchange *x, int culprit)
{
    atomic_store(&x->page->missed, sw_end_of(SYMWIN_MISMATCH, culprit) | A_FRAME);
}

/* What was noted for this end; 0: nothing. */
static uint64_t noted_for(const struct sw_exchange *x, uint64_t word)
{
    const uint64_t noted = atomic_load(&x->page->missed);

    return (noted & ~SW_END_COUNT_MASK) == (word & ~SW_END_COUNT_MASK) ? noted & SW_END_COUNT_MASK
                                                                       : 0;
}

static int leaves(const struct sw_exchange *x, int rank)
{
    return rank < x->nranks && atomic_load(&x->page->slots[rank].gone) != HERE;
}

int sw_exchange_set_numbers(struct sw_exchange *x, const int *numbers)
{
    const size_t bytes = (size_t)x->nranks * sizeof *numbers;
    int *copy = malloc(bytes), *none = NULL;

    if (copy == NULL)
        return 0;
    memcpy(copy, numbers, bytes);
    if (!atomic_compare_exchange_strong(&x->numbers, &none, copy))
        free(copy); /* another rank of this process has come first */
    return 1;
}

int sw_exchange_number(const struct sw_exchange *x, int rank)
{
    const int *numbers = atomic_load(&x->numbers);

    return numbers != NULL && rank >= 0 && rank < x->nranks ? numbers[rank] : rank;
}

static const char create_again[] = "create the communicator again on every rank, with a new id";

/* The text for an end while the communicator is created: there is nothing to destroy yet. */
static symwin_status creation_ended(const struct sw_exchange *x, symwin_status status, int culprit,
                                    const char *call)
{
    const int named = sw_exchange_number(x, culprit);
    const char *again = create_again;

    if (status == SYMWIN_TIMEOUT && culprit >= x->nranks)
        return sw_fail(status,
                       "%s: a process was stopped, or wrote to the control page, during the "
                       "creation; %s",
                       call, again);
    if (status == SYMWIN_TIMEOUT)
        return sw_fail(status,
                       "%s: rank %d has joined, but did not come to the next step of the creation "
                       "in time; %s and, if that rank is only slow, with a larger "
                       "bootstrap_timeout_ms (SYMWIN_BOOTSTRAP_TIMEOUT_MS)",
                       call, named, again);
    if (status == SYMWIN_PEER_LOST && culprit >= x->nranks)
        return sw_fail(status,
                       "%s: the process that made the id has ended, or NCCL has lost a rank of "
                       "another domain, or failed; %s",
                       call, again);
    if (culprit >= x->nranks)
        return sw_fail(status, "%s: the creation has failed, and no rank can be named; %s", call,
                       again);
    if (status == SYMWIN_PEER_LOST && leaves(x, culprit))
        return sw_fail(status, "%s: rank %d has given up; %s", call, named, again);
    if (status == SYMWIN_PEER_LOST)
        return sw_fail(status, "%s: the process of rank %d has ended; %s", call, named, again);
    if (status == SYMWIN_NO_MEMORY)
        return sw_fail(status,
                       "%s: the process of rank %d has no memory or no file descriptors left; %s",
                       call, named, again);
    return sw_fail(status, "%s: rank %d ended the creation; %s", call, named, again);
}

/* `missed`: the call that this rank waited in, and the culprit did not make; NULL: unknown. */
static symwin_status timed_out(const struct sw_exchange *x, uint64_t word, const char *call,
                               const char *missed)
{
    const uint64_t what = noted_for(x, word);
    const int culprit = sw_end_culprit(word), named = sw_exchange_number(x, culprit);

    if (culprit >= x->nranks)
        return sw_fail(SYMWIN_TIMEOUT,
                       "%s: a process was stopped, or wrote to the control page, during the call, "
                       "or a rank of another domain did not come to it in time; destroy the "
                       "communicator on every rank",
                       call);
    if (missed == NULL && what >= IN_A_COLLECTIVE)
        return sw_fail(SYMWIN_TIMEOUT,
                       "%s: in collective %u, other ranks waited for rank %d until their time was "
                       "over; destroy the communicator on every rank",
                       call, (unsigned)what, named);
    if (missed == NULL && what >= 1 && what <= HOST_CALLS)
        missed = host_calls[what - 1].text;
    if (missed != NULL)
        return sw_fail(SYMWIN_TIMEOUT,
                       "%s: rank %d did not come to %s in time; destroy the communicator on every "
                       "rank",
                       call, named, missed);
    return sw_fail(SYMWIN_TIMEOUT,
                   "%s: other ranks waited for rank %d until their time was over: its process was "
                   "stopped, or it did not make a call that they made; destroy the communicator on "
                   "every rank",
                   call, named);
}

static symwin_status differs(const struct sw_exchange *x, uint64_t word, const char *call)
{
    const uint64_t what = noted_for(x, word);
    const int culprit = sw_end_culprit(word), named = sw_exchange_number(x, culprit);

    if (culprit >= x->nranks)
        return sw_fail(
            SYMWIN_MISMATCH,
            "%s: the ranks' calls differ, and no majority agrees; symwin_comm_check() on the "
            "rank that noticed says which ranks, and both values; destroy the communicator on "
            "every rank, and make calls that agree",
            call);
    if (what != 0)
        return sw_fail(
            SYMWIN_MISMATCH,
            "%s: rank %d has sent rank %d %llu elements, and that rank has destroyed its "
            "communicator without a receive for them; destroy the communicator on every rank, and "
            "make a receive for each send",
            call, sw_exchange_number(x, (int)(what >> COUNT_BITS) - 1), named,
            (unsigned long long)(what & MOST_COUNT));
    return sw_fail(
        SYMWIN_MISMATCH,
        "%s: rank %d's calls differ from the other ranks', or have a part that is not in its "
        "buffer; symwin_comm_check() on the rank that noticed says which; destroy the "
        "communicator on every rank, and make calls that agree",
        call, named);
}

static symwin_status say(const struct sw_exchange *x, uint64_t word, const char *call,
                         const char *missed)
{
    const symwin_status status = sw_end_status(word);
    const int culprit = sw_end_culprit(word), named = sw_exchange_number(x, culprit);

    if (status == SYMWIN_MISMATCH && noted_for(x, word) == A_FRAME)
        return sw_fail(status,
                       "%s: the process of rank %d has sent what no process of symwin %s sends "
                       "then; %s, and look what else writes to that process's memory or sockets",
                       call, named, SYMWIN_VERSION,
                       atomic_load(&x->built) ? "destroy the communicator on every rank"
                                              : create_again);
    if (!atomic_load(&x->built))
        return creation_ended(x, status, culprit, call);
    switch (status) {
    case SYMWIN_TIMEOUT:
        return timed_out(x, word, call, missed);
    case SYMWIN_PEER_LOST:
        if (leaves(x, culprit))
            return sw_fail(status,
                           "%s: rank %d has destroyed its communicator; every rank must make the "
                           "same collective calls before it does",
                           call, named);
        if (culprit >= x->nranks)
            return sw_fail(status,
                           "%s: NCCL has lost a rank of another domain, or failed; destroy the "
                           "communicator on every rank",
                           call);
        return sw_fail(status, "%s: the process of rank %d has ended; destroy the communicator",
                       call, named);
    case SYMWIN_NO_MEMORY:
        return sw_fail(
            status,
            "%s: the process of rank %d has no memory or no file descriptors left; destroy the "
            "communicator on every rank",
            call, named);
    case SYMWIN_MISMATCH:
        return differs(x, word, call);
    case SYMWIN_ABORTED:
        return sw_fail(status, "%s: rank %d aborted the communicator; destroy it", call, named);
    case SYMWIN_DRIVER:
        return sw_fail(status,
                       "%s: the driver or NCCL has failed on rank %d; destroy the communicator on "
                       "every rank; NCCL_DEBUG=WARN tells more, and counts that differ between "
                       "domains can end so",
                       call, named);
    case SYMWIN_UNSUPPORTED:
    case SYMWIN_DENIED:
        return sw_fail(
            status,
            "%s: rank %d was refused a call that others have made, and says why; destroy "
            "the communicator on every rank",
            call, named);
    default:
        return sw_fail(status, "%s: rank %d ended the communicator", call, named);
    }
}

symwin_status sw_end_say(const struct sw_exchange *x, uint64_t word, const char *call,
                         const char *missed)
{
    const symwin_status status = say(x, word, call, missed);
    const int culprit = sw_end_culprit(word);
    char why[SW_WHY_BYTES];

    return sw_exchange_why(x, culprit, why)
               ? sw_fail(status, "%s; rank %d's last failure: %s", symwin_last_error(),
                         sw_exchange_number(x, culprit), why)
               : status;
}
