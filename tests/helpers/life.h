/* The life of a rank of four, for tests in which a rank or a host is lost at any step of it: it
 * creates a communicator, registers, reduces, exchanges, makes each other collective call, channels
 * and registered buffers, deregisters and destroys. Collective calls use 4 KiB. */
#ifndef SYMWIN_TESTS_LIFE_H
#define SYMWIN_TESTS_LIFE_H

#include "each_call.h"
#include "processes.h"

enum { LIFE_RANKS = 4, LIFE_BYTES = 4096 };

struct life {
    int timeout_ms, bootstrap_ms;
    int over_domains; /* not what a communicator over several domains has not */
    int short_life;   /* not each collective */
};

enum stage {
    CREATE,
    REGISTER,
    REDUCE,
    EXCHANGE,
    EACH_OTHER,
    CHANNEL,
    CONNECT,
    AGAIN,
    DEREGISTER,
    DESTROY,
    STAGES
};

__attribute__((unused)) static const char *const life_stages[] = {
    "create",  "register", "reduce",         "exchange",   "each collective",
    "channel", "connect",  "register again", "deregister", "destroy"};

/* Rank 0 creates the id. Returns 0 if it ends before: then there is nothing to test. */
HARNESS_UNUSED int life_wait_for_id(struct processes *p, int rank)
{
    unsigned slept = 0;

    if (rank == 0)
        return processes_id(p, rank) != NULL;
    while (!p->id_made && p->rank[0].number == 0)
        nap(&slept);
    return p->id_made;
}

HARNESS_UNUSED symwin_status life_reduce(symwin_comm *comm, int device, const void *in, void *out,
                                         struct CUstream_st *stream)
{
    symwin_status status = symwin_allreduce(comm, in, out, LIFE_BYTES / 4, SYMWIN_U32, SYMWIN_SUM,
                                            stream);

    if (status == SYMWIN_OK)
        status = symwin_stream_synchronize(device, stream);
    return status == SYMWIN_OK ? symwin_comm_check(comm) : status;
}

/* Each rank sends to the next one, more than the ring holds, and receives from the one before. */
HARNESS_UNUSED symwin_status life_exchange(symwin_comm *comm, int rank, int device, void *memory,
                                           struct CUstream_st *stream)
{
    symwin_status status = symwin_group_begin();

    if (status == SYMWIN_OK)
        status = symwin_send(comm, memory, LIFE_BYTES, SYMWIN_U8, (rank + 1) % LIFE_RANKS, stream);
    if (status == SYMWIN_OK)
        status = symwin_recv(comm, host_at(memory, LIFE_BYTES), LIFE_BYTES, SYMWIN_U8,
                             (rank + LIFE_RANKS - 1) % LIFE_RANKS, stream);
    if (status == SYMWIN_OK)
        status = symwin_group_end();
    else
        (void)symwin_group_end();
    if (status == SYMWIN_OK)
        status = symwin_barrier(comm, stream);
    if (status == SYMWIN_OK)
        status = symwin_stream_synchronize(device, stream);
    return status == SYMWIN_OK ? symwin_comm_check(comm) : status;
}

/* Two channels with a neighbour, on a window and on the rank's own memory. One is left to the end
 * of the communicator. */
HARNESS_UNUSED symwin_status life_channels(symwin_comm *comm, int peer, void *memory, void *own)
{
    symwin_channel_end *ends[2] = {NULL, NULL};
    symwin_channel channel;
    symwin_status status = symwin_channel_create(comm, peer, memory, LIFE_BYTES, NULL, &ends[0]);

    if (status == SYMWIN_OK)
        status = symwin_channel_create(comm, peer, own, LIFE_BYTES, NULL, &ends[1]);
    if (status == SYMWIN_OK)
        status = symwin_channel_connect(comm, ends[1], &channel);
    if (status == SYMWIN_OK)
        status = symwin_channel_connect(comm, ends[0], &channel);
    return status == SYMWIN_OK ? symwin_channel_destroy(comm, ends[0]) : status;
}

HARNESS_UNUSED symwin_status life(struct processes *p, int rank, const struct life *how)
{
    const int device = rank % harness_device_count();
    const symwin_comm_options options = {.size = sizeof options,
                                         .timeout_ms = how->timeout_ms,
                                         .bootstrap_timeout_ms = how->bootstrap_ms,
                                         .kernel_timeout_ms = how->timeout_ms,
                                         .slot_bytes = 8192};
    symwin_window *window = NULL, *again = NULL;
    struct CUstream_st *stream = NULL;
    symwin_status status = SYMWIN_OK;
    symwin_comm *comm = NULL;
    symwin_registration *registration = NULL;
    void *memory = NULL, *buffer = NULL, *own = NULL;
    int stage;

    for (stage = CREATE; stage < STAGES && status == SYMWIN_OK; stage++) {
        if ((how->over_domains && (stage == CHANNEL || stage == CONNECT)) ||
            (how->short_life && stage == EACH_OTHER))
            continue;
        p->rank[rank].step = stage;
        switch ((enum stage)stage) {
        case CREATE:
            if (!life_wait_for_id(p, rank))
                return SYMWIN_OK;
            status = symwin_comm_create(&p->id, LIFE_RANKS, rank, device, &options, &comm);
            break;
        case REGISTER:
            status = symwin_mem_alloc(device, 2 * LIFE_BYTES, 0, &memory);
            if (status == SYMWIN_OK)
                status = symwin_stream_create(device, &stream);
            if (status == SYMWIN_OK)
                status = each_fill(
                    &(struct each){comm, rank, LIFE_RANKS, device, memory, stream, 0});
            if (status == SYMWIN_OK)
                status = symwin_window_register(comm, memory, 2 * LIFE_BYTES, 0, &window);
            break;
        case REDUCE:
            status = life_reduce(comm, device, memory, host_at(memory, LIFE_BYTES), stream);
            break;
        case EXCHANGE:
            status = life_exchange(comm, rank, device, memory, stream);
            break;
        case EACH_OTHER:
            status = each_run(
                &(struct each){comm, rank, LIFE_RANKS, device, memory, stream, how->over_domains});
            break;
        case CHANNEL:
            status = symwin_mem_alloc(device, LIFE_BYTES, 0, &own);
            if (status == SYMWIN_OK)
                status = life_channels(comm, rank ^ 1, memory, own);
            break;
        case CONNECT:
            status = symwin_mem_alloc(device, LIFE_BYTES, 0, &buffer);
            if (status == SYMWIN_OK)
                status = symwin_register(comm, buffer, LIFE_BYTES, &registration);
            if (status == SYMWIN_OK)
                status = life_reduce(comm, device, buffer, buffer, stream);
            break;
        case AGAIN:
            status = symwin_window_register(comm, memory, 64, 0, &again);
            break;
        case DEREGISTER:
            status = symwin_window_deregister(comm, window);
            if (status == SYMWIN_OK)
                status = symwin_window_deregister(comm, again);
            if (status == SYMWIN_OK && registration != NULL)
                status = symwin_deregister(comm, registration);
            break;
        case DESTROY:
        case STAGES:
            break;
        }
    }
    if (status != SYMWIN_OK)
        p->rank[rank].step = stage - 1;
    processes_note(p, rank, status);
    if (stream != NULL)
        symwin_stream_synchronize(device, stream);
    symwin_comm_destroy(comm);
    if (stream != NULL)
        host_must(symwin_stream_destroy(device, stream), "symwin_stream_destroy");
    host_must(symwin_mem_free(memory), "symwin_mem_free");
    host_must(symwin_mem_free(buffer), "symwin_mem_free");
    host_must(symwin_mem_free(own), "symwin_mem_free");
    return status;
}

#endif
