/* Fault sweeps of groups, sends and receives, calls with parts and copies: fault_sweep.h says what
 * is checked. A group that fails also leaves none open. */
#include "symwin.h"

enum { BYTES = 1 << 16, PLACE = 4096, WORDS = 16 };

struct state {
    int on; /* the rank's device */
    symwin_comm *comm, *other;
    unsigned char *memory;
    symwin_window *window;
    struct CUstream_st *streams[2];
    symwin_registration *registration;
    int capturing;
};

#include "fault_sweep.h"

static symwin_status with_comm(struct harness_team *team, int rank, struct state *s)
{
    const symwin_comm_options options = {.size = sizeof options,
                                         .timeout_ms = 20000,
                                         .kernel_timeout_ms = 20000,
                                         .slot_bytes = 8192};
    symwin_status status = symwin_comm_create(&team->id, team->nranks, rank, s->on, &options,
                                              &s->comm);

    if (status == SYMWIN_OK)
        status = symwin_mem_alloc(s->on, BYTES, 0, (void **)&s->memory);
    if (status == SYMWIN_OK)
        status = symwin_stream_create(s->on, &s->streams[0]);
    return status == SYMWIN_OK ? symwin_stream_create(s->on, &s->streams[1]) : status;
}

static symwin_status with_window(struct harness_team *team, int rank, struct state *s)
{
    const symwin_status status = with_comm(team, rank, s);

    return status == SYMWIN_OK ? symwin_window_register(s->comm, s->memory, BYTES, 0, &s->window)
                               : status;
}

static symwin_status with_other(struct harness_team *team, int rank, struct state *s)
{
    const symwin_comm_options options = {.size = sizeof options,
                                         .timeout_ms = 20000,
                                         .kernel_timeout_ms = 20000,
                                         .slot_bytes = 8192};
    symwin_status status = with_comm(team, rank, s);

    if (status == SYMWIN_OK)
        status = symwin_comm_split(s->comm, 0, rank, &options, &s->other);
    return status == SYMWIN_OK ? symwin_register(s->comm, s->memory, BYTES, &s->registration)
                               : status;
}

/* Ends the group. `status`: of its calls. */
static symwin_status end(symwin_status status)
{
    const symwin_status ended = symwin_group_end();
    char text[SW_TEXT_BYTES];

    snprintf(text, sizeof text, "%s", symwin_last_error());
    if (status != SYMWIN_OK && ended != status)
        tap_ok(0, "a group has the status of its call");
    if (symwin_group_end() != SYMWIN_INVALID)
        tap_ok(0, "no group is left open");
    if (symwin_group_begin() != SYMWIN_OK || symwin_group_end() != SYMWIN_OK)
        tap_ok(0, "the next group works");
    if (ended != SYMWIN_OK)
        return sw_fail(ended, "%s", text);
    return SYMWIN_OK;
}

/* All-gather `k` on its stream; every second one reads what the one before it has written. */
static symwin_status gather(struct state *s, symwin_comm *comm, int k, int stream)
{
    unsigned char *const in = s->memory + k / 2 * 2 * PLACE + k % 2 * 64, *const out = in + 64;

    return symwin_allgather(comm, in, out, WORDS, SYMWIN_U32, s->streams[stream]);
}

static symwin_status batch(struct harness_team *team, int rank, struct state *s)
{
    symwin_status status = symwin_group_begin();
    int k;

    (void)team;
    for (k = 0; k < 3 && status == SYMWIN_OK; k++)
        status = gather(s, s->comm, k, (k + rank) % 2);
    return end(status);
}

static symwin_status batch_in_capture(struct harness_team *team, int rank, struct state *s)
{
    symwin_status status;
    int k;

    (void)team;
    (void)rank;
    status = sw_check(
        sw_drv.cuStreamBeginCapture(s->streams[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "begin");
    if (status != SYMWIN_OK)
        return status;
    s->capturing = 1;
    status = symwin_group_begin();
    for (k = 0; k < 3 && status == SYMWIN_OK; k++)
        status = gather(s, s->comm, k, 0);
    if (status == SYMWIN_OK)
        status = symwin_allreduce(s->comm, s->memory, s->memory, WORDS, SYMWIN_F32, SYMWIN_SUM,
                                  s->streams[0]);
    return end(status);
}

/* With registered buffers, on which the first communicator agrees in a thread. */
static symwin_status two_comms(struct harness_team *team, int rank, struct state *s)
{
    symwin_status status = symwin_group_begin();

    (void)team;
    (void)rank;
    if (status == SYMWIN_OK)
        status = gather(s, s->other, 0, 0);
    if (status == SYMWIN_OK)
        status = symwin_allreduce(s->comm, s->memory + 8 * PLACE, s->memory + 9 * PLACE, WORDS,
                                  SYMWIN_F32, SYMWIN_SUM, s->streams[0]);
    if (status == SYMWIN_OK)
        status = symwin_send(s->other, s->memory + 10 * PLACE, WORDS, SYMWIN_F32, !rank,
                             s->streams[1]);
    if (status == SYMWIN_OK)
        status = symwin_recv(s->other, s->memory + 11 * PLACE, WORDS, SYMWIN_F32, !rank,
                             s->streams[1]);
    return end(status);
}

static symwin_status messages(struct harness_team *team, int rank, struct state *s)
{
    symwin_status status = symwin_group_begin();
    int p;

    for (p = 0; p < team->nranks; p++) {
        if (status == SYMWIN_OK)
            status = symwin_send(s->comm, s->memory + rank * 64, WORDS, SYMWIN_F32, p,
                                 s->streams[0]);
        if (status == SYMWIN_OK)
            status = symwin_recv(s->comm, s->memory + PLACE + p * 64, WORDS, SYMWIN_F32, p,
                                 s->streams[0]);
    }
    return end(status);
}

static symwin_status message(struct harness_team *team, int rank, struct state *s)
{
    (void)team;
    return rank == 0 ? symwin_send(s->comm, s->memory, WORDS, SYMWIN_F32, 1, s->streams[0])
                     : symwin_recv(s->comm, s->memory, WORDS, SYMWIN_F32, 0, s->streams[0]);
}

static symwin_status parts(struct harness_team *team, int rank, struct state *s)
{
    uint64_t counts[MOST_RANKS] = {3, 4, 5, 6};
    const symwin_parts on_host = {.counts = counts};
    const symwin_parts on_device = {.counts = (uint64_t *)(void *)(s->memory + 8 * PLACE),
                                    .displacements = (uint64_t *)(void *)(s->memory + 9 * PLACE),
                                    .room = 64,
                                    .on_device = 1};
    symwin_status status;

    (void)team;
    status = symwin_allgatherv(s->comm, s->memory, s->memory + PLACE, &on_host, SYMWIN_U32,
                               s->streams[0]);
    counts[rank] = 3;
    if (status == SYMWIN_OK)
        status = symwin_alltoallv(s->comm, s->memory, &on_device, s->memory + PLACE, &on_device,
                                  SYMWIN_U32, s->streams[1]);
    return status;
}

static symwin_status copies(struct harness_team *team, int rank, struct state *s)
{
    const symwin_collective_options options = {.size = sizeof options, .algo = SYMWIN_ALGO_COPIES};

    (void)team;
    (void)rank;
    return symwin_allgather_with(s->comm, s->memory, s->memory + PLACE, WORDS, SYMWIN_F32, &options,
                                 s->streams[0]);
}

static symwin_status copies_to_root(struct harness_team *team, int rank, struct state *s)
{
    const symwin_collective_options options = {.size = sizeof options, .algo = SYMWIN_ALGO_COPIES};

    (void)team;
    (void)rank;
    return symwin_gather_with(s->comm, s->memory, s->memory + PLACE, WORDS, SYMWIN_F32, 0, &options,
                              s->streams[0]);
}

static const struct fault_case cases[] = {
    {"a group of small calls", 2, with_window, batch, NULL, 0},
    {"a group in a capture", 1, with_comm, batch_in_capture, NULL, 0},
    {"a group of two communicators", 2, with_other, two_comms, NULL, 0},
    {"a group of messages", 2, with_comm, messages, NULL, 0},
    {"a message", 2, with_comm, message, NULL, 0},
    {"parts of unequal lengths", 2, with_comm, parts, NULL, 0},
    {"an all-gather by copies", 3, with_window, copies, NULL, 0},
    {"a gather by copies", 2, with_window, copies_to_root, NULL, 0},
};

static void clear(struct state *s)
{
    CUgraph graph = NULL;
    int k;

    if (s->capturing)
        (void)sw_drv.cuStreamEndCapture(s->streams[0], &graph);
    if (graph != NULL)
        (void)sw_drv.cuGraphDestroy(graph);
    if (s->other != NULL)
        (void)symwin_comm_abort(s->other);
    for (k = 0; k < 2; k++)
        if (s->streams[k] != NULL && s->comm != NULL)
            (void)symwin_stream_synchronize(s->on, s->streams[k]);
    symwin_comm_destroy(s->other);
    symwin_comm_destroy(s->comm);
    (void)symwin_mem_free(s->memory);
    for (k = 0; k < 2; k++)
        if (s->streams[k] != NULL)
            (void)symwin_stream_destroy(s->on, s->streams[k]);
}

int main(void)
{
    return sweep_all(cases, sizeof cases / sizeof cases[0]);
}
