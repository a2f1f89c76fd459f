/* The fault sweep of channels: fault_sweep.h says what it does to each call. If a call fails on one
 * rank of a channel, it fails on the other with the same status. */
#include "harness.h"

enum { BYTES = 3 << 20 };

struct state {
    int on;
    symwin_comm *comm;
    symwin_window *window;
    symwin_channel_end *end, *older;
    symwin_channel channel;
    void *memory;
};

#include "fault_sweep.h"

static symwin_status with_comm(struct harness_team *team, int rank, struct state *s)
{
    const symwin_comm_options options = {.size = sizeof options,
                                         .timeout_ms = 20000,
                                         .kernel_timeout_ms = 20000,
                                         .slot_bytes = 8192};
    symwin_status status = symwin_mem_alloc(s->on, BYTES, 0, &s->memory);

    if (status == SYMWIN_OK)
        status = symwin_comm_create(&team->id, team->nranks, rank, s->on, &options, &s->comm);
    return status;
}

static symwin_status with_window(struct harness_team *team, int rank, struct state *s)
{
    const symwin_status status = with_comm(team, rank, s);

    return status == SYMWIN_OK ? symwin_window_register(s->comm, s->memory, BYTES, 0, &s->window)
                               : status;
}

static symwin_status connect(struct harness_team *team, int rank, struct state *s, int lanes)
{
    const symwin_channel_options options = {.size = sizeof options, .lanes = lanes};
    symwin_status status = symwin_channel_create(s->comm, (rank + 1) % team->nranks,
                                                 (char *)s->memory + 100, 4000, &options, &s->end);

    return status == SYMWIN_OK ? symwin_channel_connect(s->comm, s->end, &s->channel) : status;
}

static symwin_status make(struct harness_team *team, int rank, struct state *s)
{
    return connect(team, rank, s, 2);
}

/* Rank 1 offers no memory. */
static symwin_status make_one_sided(struct harness_team *team, int rank, struct state *s)
{
    const int has = rank == 0;
    symwin_status status = symwin_channel_create(
        s->comm, (rank + 1) % team->nranks, has ? s->memory : NULL, has ? BYTES : 0, NULL, &s->end);

    return status == SYMWIN_OK ? symwin_channel_connect(s->comm, s->end, &s->channel) : status;
}

static int made_channel(const struct state *s)
{
    return s->channel.signals != 0;
}

/* The lanes were used before, so their counters have to be zeroed. */
static symwin_status with_lanes_used(struct harness_team *team, int rank, struct state *s)
{
    symwin_status status = with_comm(team, rank, s);

    if (status == SYMWIN_OK)
        status = make(team, rank, s);
    if (status == SYMWIN_OK)
        status = symwin_channel_destroy(s->comm, s->end);
    s->channel.signals = 0;
    return status;
}

/* The peer's memory is already mapped here. */
static symwin_status with_import(struct harness_team *team, int rank, struct state *s)
{
    symwin_status status = with_comm(team, rank, s);

    if (status == SYMWIN_OK)
        status = make(team, rank, s);
    s->older = s->end;
    s->channel.signals = 0;
    return status;
}

/* Destroying a channel succeeds whatever the driver returns. The next channel shows that nothing
 * was left behind. */
static symwin_status destroy_and_make(struct harness_team *team, int rank, struct state *s)
{
    const symwin_status status = symwin_channel_destroy(s->comm, s->older);

    return status == SYMWIN_OK ? make(team, rank, s) : status;
}

static void clear(struct state *s)
{
    symwin_comm_destroy(s->comm);
    (void)symwin_mem_free(s->memory);
}

int main(void)
{
    static const struct fault_case cases[] = {
        {"a channel over a window", 2, with_window, make, made_channel, 1},
        {"over memory of their own", 2, with_comm, make, made_channel, 1},
        {"over one rank's memory", 2, with_comm, make_one_sided, made_channel, 1},
        {"with counters that served before", 2, with_lanes_used, make, made_channel, 1},
        {"over memory that is known", 2, with_import, make, made_channel, 1},
        {"after another one", 2, with_import, destroy_and_make, made_channel, 1},
    };

    return sweep_all(cases, sizeof cases / sizeof cases[0]);
}
