/* Where a window goes in the flat range is found by votes of all ranks, whose common start only goes up. A rank that votes for
 * less than the start would move it back: it is named, on all ranks. The linker puts the votes here into a rank's mouth.
 */
#include "window_cases.h"

enum { RANKS = 3, LIAR = 1 };

/* What is added to the liar's vote in each round, in granules; the last one also in all rounds that follow. */
static const int *votes;
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
        *offset += (size_t)votes[round_now] * GRANULE;
        round_now += round_now < rounds - 1;
    }
    return status;
}

static const struct campaign {
    const char *name;
    int votes[3];
    symwin_status status;
    const char *words;
} campaigns[] = {
    {"all want the same", {0}, SYMWIN_OK, ""},
    {"one wants a higher offset", {3, 0, 0}, SYMWIN_OK, ""},
    {"and a higher one again", {3, 2, 0}, SYMWIN_OK, ""},
    {"and then a lower one", {3, -2, 0}, SYMWIN_MISMATCH, "rank 1 wants offset|below"},
    {"less than all by a granule", {3, -1, 0}, SYMWIN_MISMATCH, "rank 1 wants offset|below"},
};

static void run(struct harness_team *team, int rank, void *arg)
{
    const struct campaign *c = arg;
    symwin_window *window = NULL;
    symwin_status status;
    struct member m;

    member_open(&m, team, rank, GRANULE);
    if (rank == 0) {
        votes = c->votes;
        rounds = sizeof c->votes / sizeof c->votes[0];
    }
    harness_barrier(team);
    lies = rank == LIAR;
    round_now = 0;
    status = symwin_window_register(m.comm, m.memory, m.bytes, 0, &window);
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
