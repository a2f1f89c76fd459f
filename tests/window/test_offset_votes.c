/* Where a window goes in the flat range is found by votes of all ranks, whose common start only goes up. A rank that votes for
 * less than the start would move it back: it is named, on all ranks; one that never agrees keeps the others for a limited time.
 * Before that the ranks vote for what their memory is. The linker puts the votes here into a rank's mouth.
 */
#include "windows.h"

enum { RANKS = 3, LIAR = 1, SOON_MS = 300 };

/* Of the values of a window's first vote (attach.c): */
enum { V_OFFSET = 2, V_STRETCH = 5, V_PIECES = 6, V_COUNT = 7 };

/* What is added to the liar's vote in each round, in granules or bytes; the last one also in all rounds that follow. And what it
 * says of its memory: NULL: how it is. */
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
    uint64_t says[3]; /* the bytes of the allocations, whether it says so, and how many there are */
    int bytes;        /* the votes are of bytes */
} campaigns[] = {
    {"all want the same", {0}, SYMWIN_OK, "", {0}, 0},
    {"one wants a higher offset", {3, 0, 0}, SYMWIN_OK, "", {0}, 0},
    {"and a higher one again", {3, 2, 0}, SYMWIN_OK, "", {0}, 0},
    {"and then a lower one", {3, -2, 0}, SYMWIN_MISMATCH, "rank 1 wants offset|below", {0}, 0},
    {"less than all by a granule",
     {3, -1, 0},
     SYMWIN_MISMATCH,
     "rank 1 wants offset|below",
     {0},
     0},
    {"always a byte more",
     {1, 1, 1},
     SYMWIN_TIMEOUT,
     "rank 1 was the last to want another",
     {0},
     1},
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
    at = c->says[1] != 0 ? GRANULE : 0; /* behind which the liar's memory begins */
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
    /* What was refused is as if it had not been asked for. */
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
