/* Ranks with memory in windows: a member has a communicator and memory, a caller is a member that
 * also has a stream and a window for collectives. Ranks are threads of harness_run(). */
#ifndef SYMWIN_TESTS_WINDOWS_H
#define SYMWIN_TESTS_WINDOWS_H

#include "harness.h"

/* ---- a member of a team ---- */

struct member {
    struct harness_team *team;
    int rank, device;
    symwin_comm *comm;
    void *memory; /* `bytes` on this rank's device */
    size_t bytes;
};

/* Joins the team's communicator and allocates. */
HARNESS_UNUSED void member_open(struct member *m, struct harness_team *team, int rank, size_t bytes)
{
    *m = (struct member){team, rank, harness_device(rank), NULL, NULL, bytes};
    host_must(harness_comm(team, rank, &m->comm), "symwin_comm_create");
    m->memory = host_alloc(m->device, bytes);
}

/* Ranks may call it in any order. No window of the rank may be left on the memory. */
HARNESS_UNUSED void member_close(struct member *m)
{
    symwin_comm_destroy(m->comm);
    host_must(symwin_mem_free(m->memory), "symwin_mem_free");
}

HARNESS_UNUSED symwin_window *member_window(struct member *m, size_t offset, size_t bytes)
{
    symwin_window *window = NULL;

    host_must(symwin_window_register(m->comm, host_at(m->memory, offset), bytes, 0, &window),
              "symwin_window_register");
    return window;
}

HARNESS_UNUSED void member_deregister(struct member *m, symwin_window *window)
{
    host_must(symwin_window_deregister(m->comm, window), "symwin_window_deregister");
}

HARNESS_UNUSED symwin_window_info member_query(struct member *m, const symwin_window *window)
{
    symwin_window_info info = {0};

    host_must(symwin_window_query(m->comm, window, &info), "symwin_window_query");
    return info;
}

/* How many physical allocations the communicator's windows keep mapped. */
HARNESS_UNUSED int member_allocations(struct member *m)
{
    symwin_comm_info info = {0};

    host_must(symwin_comm_query(m->comm, &info), "symwin_comm_query");
    return info.allocations;
}

HARNESS_UNUSED void *member_peer(struct member *m, const symwin_window *window, int peer,
                                 size_t offset)
{
    void *ptr = NULL;

    host_must(symwin_window_peer_pointer(m->comm, window, peer, offset, &ptr),
              "symwin_window_peer_pointer");
    return ptr;
}

/* How many ranks' words at `offset` of the window this rank does not read as their owner wrote
 * them. Collective: each rank writes through `own` and reads through the flat range. */
HARNESS_UNUSED int member_exchange(struct member *m, const symwin_window *window, void *own,
                                   size_t offset, uint32_t salt)
{
    int wrong = 0;
    int peer;

    host_put_u32(m->device, host_at(own, offset), salt + (uint32_t)m->rank);
    harness_barrier(m->team);
    for (peer = 0; peer < m->team->nranks; peer++)
        wrong += host_get_u32(m->device, member_peer(m, window, peer, offset)) !=
                 salt + (uint32_t)peer;
    harness_barrier(m->team);
    return wrong;
}

/* ---- a member that calls collectives ---- */

enum { WORDS = 1024 }; /* of each window: in, then out */

struct caller {
    struct member member;
    struct CUstream_st *stream;
    symwin_window *window;
    uint32_t *in, *out; /* device addresses in the window */
};

HARNESS_UNUSED symwin_status caller_comm(struct harness_team *team, int rank, int timeout_ms,
                                         int kernel_timeout_ms, symwin_comm **comm)
{
    const symwin_comm_options options = {
        .size = sizeof options, .timeout_ms = timeout_ms, .kernel_timeout_ms = kernel_timeout_ms};

    return symwin_comm_create(&team->id, team->nranks, rank, harness_device(rank), &options, comm);
}

HARNESS_UNUSED void caller_fill(struct caller *c, uint32_t in, uint32_t out)
{
    uint32_t words[2 * WORDS];
    int i;

    for (i = 0; i < WORDS; i++) {
        words[i] = in;
        words[WORDS + i] = out;
    }
    host_must(host_copy(c->member.device, c->in, words, sizeof words), "copy to the device");
}

/* How many words of the output are not `want`. */
HARNESS_UNUSED int caller_differences(struct caller *c, uint32_t want)
{
    uint32_t words[WORDS];
    int wrong = 0;
    int i;

    host_must(host_copy(c->member.device, words, c->out, sizeof words), "copy from the device");
    for (i = 0; i < WORDS; i++)
        wrong += words[i] != want;
    return wrong;
}

HARNESS_UNUSED void caller_open(struct caller *c, struct harness_team *team, int rank,
                                int timeout_ms, int kernel_timeout_ms)
{
    struct member *m = &c->member;

    *c = (struct caller){.member = {.team = team, .rank = rank, .bytes = 2 * WORDS * 4}};
    m->device = harness_device(rank);
    host_must(caller_comm(team, rank, timeout_ms, kernel_timeout_ms, &m->comm),
              "symwin_comm_create");
    host_must(symwin_stream_create(m->device, &c->stream), "symwin_stream_create");
    m->memory = host_alloc(m->device, m->bytes);
    c->in = m->memory;
    c->out = c->in + WORDS;
    c->window = member_window(m, 0, m->bytes);
    caller_fill(c, (uint32_t)rank + 1, 0);
}

HARNESS_UNUSED symwin_status caller_reduce(struct caller *c, symwin_algo algo)
{
    const symwin_allreduce_options options = {.size = sizeof options, .algo = algo};

    return symwin_allreduce_with(c->member.comm, c->in, c->out, WORDS, SYMWIN_U32, SYMWIN_SUM,
                                 &options, c->stream);
}

HARNESS_UNUSED symwin_status caller_wait(struct caller *c)
{
    return symwin_stream_synchronize(c->member.device, c->stream);
}

/* One TAP line for each rank: an all-reduce gives the right sum. */
HARNESS_UNUSED void caller_expect_sum(struct caller *c, const char *name)
{
    const int n = c->member.team->nranks;
    symwin_status status;

    caller_fill(c, (uint32_t)c->member.rank + 1, 0);
    status = caller_reduce(c, SYMWIN_ALGO_AUTO);
    if (status == SYMWIN_OK)
        status = caller_wait(c);
    if (status == SYMWIN_OK)
        status = symwin_comm_check(c->member.comm);
    tap_ok(status == SYMWIN_OK && caller_differences(c, (uint32_t)(n * (n + 1) / 2)) == 0,
           "%s: rank %d: the sum is right%s%s", name, c->member.rank,
           status == SYMWIN_OK ? "" : ": ", status == SYMWIN_OK ? "" : symwin_last_error());
}

HARNESS_UNUSED void caller_close(struct caller *c)
{
    struct member *m = &c->member;

    host_must(caller_wait(c), "symwin_stream_synchronize");
    symwin_comm_destroy(m->comm);
    host_must(symwin_mem_free(m->memory), "symwin_mem_free");
    host_must(symwin_stream_destroy(m->device, c->stream), "symwin_stream_destroy");
}

/* A thread that aborts a communicator after a while. */
struct later {
    pthread_t thread;
    symwin_comm *comm;
    int after_ms;
    int64_t done_ms; /* when it called abort */
    symwin_status status;
};

HARNESS_UNUSED void *later_abort_main(void *arg)
{
    struct later *l = arg;

    host_pause_ms(l->after_ms);
    l->done_ms = host_now_ms();
    l->status = symwin_comm_abort(l->comm);
    return NULL;
}

HARNESS_UNUSED void later_abort(struct later *l, symwin_comm *comm, int after_ms)
{
    *l = (struct later){.comm = comm, .after_ms = after_ms};
    if (pthread_create(&l->thread, NULL, later_abort_main, l) != 0)
        abort();
}

/* Milliseconds since the call of abort. */
HARNESS_UNUSED int64_t later_join(struct later *l)
{
    const int64_t now = host_now_ms();

    pthread_join(l->thread, NULL);
    return now - l->done_ms;
}

#endif
