/* Ranks that call the all-gather, and the bytes that they must have afterwards. */
#ifndef SYMWIN_TESTS_GATHER_H
#define SYMWIN_TESTS_GATHER_H

#include "processes.h"

enum { ROOM = 1 << 17, GUARD = 64, SLOT = 512 };

#if defined(__SANITIZE_THREAD__)
enum { WAIT_MS = 100000 };
#elif defined(__SANITIZE_ADDRESS__)
enum { WAIT_MS = 60000 };
#else
enum { WAIT_MS = 20000 };
#endif

struct rank {
    int nranks, rank, device;
    symwin_comm *comm;
    struct CUstream_st *streams[2];
    unsigned char *in, *out; /* device memory of ROOM bytes each, in no window */
    unsigned char *host;     /* ROOM bytes */
};

/* One call. */
struct gather {
    symwin_type type;
    uint64_t count;
    size_t in, out; /* offsets in the rank's memory */
    int in_place;
    unsigned seed;
};

static uint32_t mix(uint32_t x)
{
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

/* Byte `i` of a rank's input. There are words of all zeros and of all ones. */
static unsigned char byte_of(unsigned seed, int rank, size_t i)
{
    const uint32_t word = mix(seed * 31u + (uint32_t)rank * 7919u + (uint32_t)(i / 8) * 104729u);

    if (word % 4 < 2)
        return word % 4 == 0 ? 0 : 0xff;
    return (unsigned char)mix(word + (uint32_t)(i % 8));
}

static size_t bytes_of(const struct gather *g)
{
    return (size_t)g->count * symwin_type_bytes(g->type);
}

static unsigned char *input_of(const struct rank *r, const struct gather *g)
{
    return g->in_place ? r->out + g->out + (size_t)r->rank * bytes_of(g) : r->in + g->in;
}

/* Fills the output and a guard on each side with another byte, then the input. */
static void prepare(const struct rank *r, const struct gather *g)
{
    const size_t bytes = bytes_of(g), all = bytes * (size_t)r->nranks;
    size_t i;

    memset(r->host, 0x5a, all + 2 * GUARD);
    host_must(host_copy(r->device, r->out + g->out - GUARD, r->host, all + 2 * GUARD), "fill");
    for (i = 0; i < bytes; i++)
        r->host[i] = byte_of(g->seed, r->rank, i);
    host_must(host_copy(r->device, input_of(r, g), r->host, bytes), "fill");
}

/* Number of wrong bytes, including the guards and the input. */
static size_t differences(const struct rank *r, const struct gather *g)
{
    const size_t bytes = bytes_of(g), all = bytes * (size_t)r->nranks;
    size_t wrong = 0, i;

    host_must(host_copy(r->device, r->host, r->out + g->out - GUARD, all + 2 * GUARD), "read");
    for (i = 0; i < GUARD; i++)
        wrong += (r->host[i] != 0x5a) + (r->host[GUARD + all + i] != 0x5a);
    for (i = 0; i < all; i++)
        wrong += r->host[GUARD + i] != byte_of(g->seed, (int)(i / bytes), i % bytes);
    host_must(host_copy(r->device, r->host, input_of(r, g), bytes), "read");
    for (i = 0; i < bytes; i++)
        wrong += r->host[i] != byte_of(g->seed, r->rank, i);
    return wrong;
}

static symwin_status call(const struct rank *r, const struct gather *g, int stream)
{
    return symwin_allgather(r->comm, input_of(r, g), r->out + g->out, g->count, g->type,
                            r->streams[stream]);
}

static void wait_for(const struct rank *r, int stream)
{
    host_must(symwin_stream_synchronize(r->device, r->streams[stream]), "synchronize");
}

static void gather(const struct rank *r, const struct gather *g, struct processes *p)
{
    prepare(r, g);
    processes_barrier(p);
    host_must(call(r, g, 0), "symwin_allgather");
    wait_for(r, 0);
    host_must(symwin_comm_check(r->comm), "symwin_comm_check");
    if (differences(r, g) != 0) {
        fprintf(stderr, "rank %d of %d: %llu of %s, in +%zu, out +%zu, %s place: %zu wrong bytes\n",
                r->rank, r->nranks, (unsigned long long)g->count, symwin_type_name(g->type), g->in,
                g->out, g->in_place ? "in" : "out of", differences(r, g));
        must_be(0, "wrong bytes", r->rank);
    }
}

static void open_rank(struct processes *p, struct rank *r, int kernel_timeout_ms)
{
    const symwin_comm_options options = {.size = sizeof options,
                                         /* Through a graph of one kernel, which was another's. */
                                         .flags = r->nranks == 5 ? SYMWIN_COMM_GRAPH_LAUNCH : 0,
                                         .timeout_ms = WAIT_MS,
                                         .kernel_timeout_ms = kernel_timeout_ms,
                                         .slot_bytes = SLOT};

    host_must(symwin_comm_create(processes_id(p, r->rank), r->nranks, r->rank, r->device, &options,
                                 &r->comm),
              "symwin_comm_create");
    host_must(symwin_stream_create(r->device, &r->streams[0]), "symwin_stream_create");
    host_must(symwin_stream_create(r->device, &r->streams[1]), "symwin_stream_create");
    r->in = host_alloc(r->device, ROOM);
    r->out = host_alloc(r->device, ROOM);
    r->host = malloc(ROOM);
    if (r->host == NULL)
        abort();
}

static void close_rank(struct processes *p, struct rank *r)
{
    processes_barrier(p);
    symwin_comm_destroy(r->comm);
    processes_barrier(p);
    host_must(symwin_stream_destroy(r->device, r->streams[0]), "symwin_stream_destroy");
    host_must(symwin_stream_destroy(r->device, r->streams[1]), "symwin_stream_destroy");
    host_must(symwin_mem_free(r->in), "symwin_mem_free");
    host_must(symwin_mem_free(r->out), "symwin_mem_free");
    free(r->host);
}

#endif
