/* All ranks vote where a window goes in the flat range. The common start of that search only goes
 * up. A rank that votes for an offset below the start would move it back: every rank gets an error
 * that names it. A rank that never agrees delays the others only for a limited time. Before that
 * vote, the ranks exchange the layout of their memory. The linker's --wrap lets this test change
 * one rank's votes.
 */
#include "windows.h"

enum { RANKS = 3, LIAR = 1, SOON_MS = 300 };

/* Indices of the values in a window's first ballot (window_register.c). */
enum { V_OFFSET = 2, V_STRETCH = 5, V_PIECES = 6, V_COUNT = 8 };

/* `ballots`: what is added to the liar's vote in each round, in units; the last one applies to all
 * later rounds too. `unit`: a granule or a byte. `says`: what the liar reports of its memory. */
static const int *ballots;
static const uint64_t *says;
static size_t unit;
static int rounds;
static _Thread_local int lies, round_now;

symwin_status __real_sw_segment_room(struct sw_group *group, size_t bytes, size_t from,
                                     size_t *offset);
symwin_status __wrap_sw_segment_room(struct sw_group *group, size_t bytes, size_t from,
                                     size_t *offset);

symwin_status __wrap_sw_segment_room(struct sw_group *group, size_t bytes, size_t from,
                                     size_t *offset)
{
    const symwin_status status = __real_sw_segment_room(group, bytes, from, offset);

    if (lies && status == SYMWIN_OK) {
        *offset += (size_t)ballots[round_now] * unit;
        round_now += round_now < rounds - 1;
    }
    return status;
}

symwin_status __real_sw_comm_agree(symwin_comm *comm, const char *call, symwin_status mine,
                                   const uint64_t *values, int count);
symwin_status __wrap_sw_comm_agree(symwin_comm *comm, const char *call, symwin_status mine,
                                   const uint64_t *values, int count);

symwin_status __wrap_sw_comm_agree(symwin_comm *comm, const char *call, symwin_status mine,
                                   const uint64_t *values, int count)
{
    uint64_t other[V_COUNT];

    if (!lies || says[1] == 0 || count != V_COUNT)
        return __real_sw_comm_agree(comm, call, mine, values, count);
    memcpy(other, values, sizeof other);
    other[V_OFFSET] = 0;
    other[V_STRETCH] = says[0];
    other[V_PIECES] = says[2];
    return __real_sw_comm_agree(comm, call, mine, other, count);
}

static const struct campaign {
    const char *name;
    int ballots[3];
    symwin_status status;
    const char *words;
    uint64_t says[3]; /* bytes of the allocations; 1: report these; their number */
    int bytes;        /* the unit of the votes is a byte */
} campaigns[] = {
    {"all want the same", {0}, SYMWIN_OK, "", {0}, 0},
    {"one wants a higher offset", {3, 0, 0}, SYMWIN_OK, "", {0}, 0},
    {"and a higher one again", {3, 2, 0}, SYMWIN_OK, "", {0}, 0},
    {"and then a lower one", {3, -2, 0}, SYMWIN_MISMATCH, "rank 1 voted for offset|below", {0}, 0},
    {"less than all by a granule",
     {3, -1, 0},
     SYMWIN_MISMATCH,
     "rank 1 voted for offset|below",
     {0},
     0},
    {"always a byte more", {1, 1, 1}, SYMWIN_TIMEOUT, "rank 1 last voted for a higher one", {0}, 1},
    {"no allocation", {0}, SYMWIN_MISMATCH, "rank 1's window is at byte", {2 * GRANULE, 1, 0}, 0},
    {"too many", {0}, SYMWIN_MISMATCH, "rank 1's window is at byte", {2 * GRANULE, 1, 1 << 20}, 0},
    {"an empty one", {0}, SYMWIN_MISMATCH, "rank 1's window is at byte", {0, 1, 1}, 0},
    {"one that wraps around",
     {0},
     SYMWIN_NO_MEMORY,
     "the flat range has no room",
     {UINT64_MAX - GRANULE / 2, 1, 1},
     0},
};

static void run(struct harness_team *team, int rank, void *arg)
{
    const struct campaign *c = arg;
    symwin_window *window = NULL;
    symwin_status status;
    struct member m;
    size_t at;
    int timeout_ms;

    member_open(&m, team, rank, 2 * GRANULE);
    at = c->says[1] != 0 ? GRANULE : 0; /* the liar claims that its memory begins here */
    timeout_ms = m.comm->timeout_ms;
    if (rank == 0) {
        ballots = c->ballots;
        says = c->says;
        unit = c->bytes ? 1 : GRANULE;
        rounds = sizeof c->ballots / sizeof c->ballots[0];
    }
    harness_barrier(team);
    lies = rank == LIAR;
    round_now = 0;
    if (c->status == SYMWIN_TIMEOUT)
        m.comm->timeout_ms = SOON_MS;
    status = symwin_window_register(m.comm, host_at(m.memory, at), m.bytes - at, 0, &window);
    m.comm->timeout_ms = timeout_ms;
    lies = 0;
    host_expect(c->name, status, c->status, c->words);
    if (window != NULL) {
        TAP_EQ("all see each other", member_exchange(&m, window, m.memory, 64, 100), 0);
        harness_barrier(team);
        member_deregister(&m, window);
    }
    /* A refused registration leaves nothing behind. */
    window = member_window(&m, 0, m.bytes);
    TAP_EQ("a window afterwards", member_exchange(&m, window, m.memory, 64, 200), 0);
    harness_barrier(team);
    member_deregister(&m, window);
    member_close(&m);
}

int main(void)
{
    size_t i;

    harness_start();
    for (i = 0; i < sizeof campaigns / sizeof campaigns[0]; i++) {
        const struct harness_leaks before = harness_leaks_now();
        struct campaign campaign = campaigns[i];

        harness_run(RANKS, run, &campaign);
        harness_no_leaks(campaign.name, &before);
    }
    return tap_done();
}
