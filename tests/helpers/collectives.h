/* All collectives by one description, calls of them, and the plain reference: what a call of each
 * must leave in the memory of each rank. */
#ifndef SYMWIN_TESTS_COLLECTIVES_H
#define SYMWIN_TESTS_COLLECTIVES_H

#include "processes.h"
#include "reference.h"

#ifndef TEST_SLOT_BYTES
#define TEST_SLOT_BYTES 512
#endif
#ifndef TEST_ROOM
#define TEST_ROOM (1 << 17)
#endif
enum { ROOM = TEST_ROOM, GUARD = 64, SLOT = TEST_SLOT_BYTES, FILLED = 0x5a, SCALARS = 128 };

#if defined(__SANITIZE_THREAD__)
enum { WAIT_MS = 100000 };
#elif defined(__SANITIZE_ADDRESS__)
enum { WAIT_MS = 60000 };
#else
enum { WAIT_MS = 20000 };
#endif

enum { IN = 1, OUT = 2, REGISTERED = 4, ALGOS = 4 };

/* What a collective is, apart from the library's own table. */
struct shape {
    const char *name;
    symwin_collective collective;
    int reduces;
    int root_sends, root_receives; /* only the root has an input, or an output */
    int in_each, out_each;         /* a buffer has a part for each rank */
    int decides;              /* the buffer that the algorithms over windows need in a window */
    int any_offset;           /* where it lies there, ranks may differ; but not with COPIES */
    symwin_algo algos[ALGOS]; /* for any memory; and over windows, AUTO where there are fewer */
    symwin_algo shares;       /* for any memory too, by shares of the message; AUTO: none */
    symwin_algo multicast;    /* AUTO: none */
};

static const struct shape shapes[] = {
    {.name = "allgather",
     .collective = SYMWIN_ALLGATHER,
     .out_each = 1,
     .decides = OUT,
     .algos = {SYMWIN_ALGO_ONESHOT, SYMWIN_ALGO_PUT, SYMWIN_ALGO_COPIES},
     .multicast = SYMWIN_ALGO_ONESHOT_MC},
    {.name = "alltoall",
     .collective = SYMWIN_ALLTOALL,
     .in_each = 1,
     .out_each = 1,
     .decides = OUT,
     .algos = {SYMWIN_ALGO_ONESHOT, SYMWIN_ALGO_PUT, SYMWIN_ALGO_COPIES}},
    {.name = "broadcast",
     .collective = SYMWIN_BROADCAST,
     .root_sends = 1,
     .decides = OUT,
     .algos = {SYMWIN_ALGO_ONESHOT, SYMWIN_ALGO_PUT, SYMWIN_ALGO_TWOSHOT, SYMWIN_ALGO_COPIES},
     .shares = SYMWIN_ALGO_TWOSHOT_PUSH,
     .multicast = SYMWIN_ALGO_ONESHOT_MC},
    {.name = "gather",
     .collective = SYMWIN_GATHER,
     .root_receives = 1,
     .out_each = 1,
     .decides = IN,
     .any_offset = 1,
     .algos = {SYMWIN_ALGO_ONESHOT, SYMWIN_ALGO_TWOSHOT, SYMWIN_ALGO_COPIES}},
    {.name = "scatter",
     .collective = SYMWIN_SCATTER,
     .root_sends = 1,
     .in_each = 1,
     .decides = OUT,
     .any_offset = 1,
     .algos = {SYMWIN_ALGO_ONESHOT, SYMWIN_ALGO_PUT, SYMWIN_ALGO_COPIES}},
    {.name = "reduce_scatter",
     .collective = SYMWIN_REDUCE_SCATTER,
     .reduces = 1,
     .in_each = 1,
     .decides = IN,
     .algos = {SYMWIN_ALGO_ONESHOT, SYMWIN_ALGO_TWOSHOT},
     .multicast = SYMWIN_ALGO_TWOSHOT_MC},
    {.name = "reduce",
     .collective = SYMWIN_REDUCE,
     .reduces = 1,
     .root_receives = 1,
     .decides = IN,
     .algos = {SYMWIN_ALGO_ONESHOT, SYMWIN_ALGO_TWOSHOT},
     .shares = SYMWIN_ALGO_TWOSHOT_PUSH,
     .multicast = SYMWIN_ALGO_TWOSHOT_MC},
    {.name = "barrier", .collective = SYMWIN_BARRIER, .algos = {SYMWIN_ALGO_ONESHOT}},
};

/* Those with data; the barrier comes after them. */
enum { BARRIER = sizeof shapes / sizeof shapes[0] - 1, SHAPES = BARRIER };

struct rank {
    int nranks, rank, device;
    symwin_comm *comm;
    struct CUstream_st *streams[2];
    unsigned char *in, *out;    /* device memory of ROOM bytes each */
    unsigned char *host, *want; /* ROOM bytes each */
    uint64_t *scalars;          /* device memory, SCALARS words */
    unsigned flags;             /* of the communicator, */
    int max_blocks;             /* ... too */
};

/* One call, as this rank makes it. */
struct job {
    const struct shape *is;
    symwin_collective_options options;
    symwin_type type;
    symwin_op op;
    uint64_t count;
    int root;
    int in_place;
    size_t in, out; /* offsets in the rank's memory; in place one follows from the other */
    unsigned seed;
    /* Of a pre-multiplied sum: which ranks have their scalars in device memory, at which place; and
     * the value of those that have it in host memory. */
    unsigned scalars;
    int whole; /* inputs of floats are whole numbers, whose sums are exact in any order */
};

HARNESS_UNUSED int shape_has(const struct shape *is, symwin_algo algo)
{
    int a;

    for (a = 0; a < ALGOS; a++)
        if (is->algos[a] == algo)
            return 1;
    return 0;
}

/* Registered buffers become windows for it. */
HARNESS_UNUSED int shape_connects(const struct shape *is)
{
    return is->decides != 0 && !is->any_offset;
}

/* Whether its algorithms over windows serve it with these buffers in windows, or registered. */
HARNESS_UNUSED int shape_is_over(const struct shape *is, int windows)
{
    return (windows & is->decides) != 0 && ((windows & REGISTERED) == 0 || shape_connects(is));
}

HARNESS_UNUSED uint32_t mix(uint32_t x)
{
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

HARNESS_UNUSED int job_sends(const struct job *j, int rank)
{
    return !j->is->root_sends || rank == j->root;
}

HARNESS_UNUSED int job_receives(const struct job *j, int rank)
{
    return !j->is->root_receives || rank == j->root;
}

/* Bytes of a part. */
HARNESS_UNUSED size_t job_bytes(const struct job *j)
{
    return (size_t)j->count * symwin_type_bytes(j->type);
}

HARNESS_UNUSED size_t job_in_bytes(const struct rank *r, const struct job *j)
{
    return job_bytes(j) * (j->is->in_each ? (size_t)r->nranks : 1);
}

HARNESS_UNUSED size_t job_out_bytes(const struct rank *r, const struct job *j)
{
    return job_bytes(j) * (j->is->out_each ? (size_t)r->nranks : 1);
}

HARNESS_UNUSED int job_in_place(const struct rank *r, const struct job *j)
{
    return j->in_place && job_sends(j, r->rank) && job_receives(j, r->rank);
}

/* In place, `out` lies in `in`; otherwise `in` in `out`. */
HARNESS_UNUSED int job_out_moves(const struct job *j)
{
    return j->is->reduces || (j->is->in_each && !j->is->out_each);
}

HARNESS_UNUSED unsigned char *job_in(const struct rank *r, const struct job *j)
{
    const size_t own = j->is->out_each && !j->is->in_each ? (size_t)r->rank * job_bytes(j) : 0;

    if (job_in_place(r, j) && !job_out_moves(j))
        return r->out + j->out + own;
    return r->in + j->in;
}

HARNESS_UNUSED unsigned char *job_out(const struct rank *r, const struct job *j)
{
    if (job_in_place(r, j) && job_out_moves(j))
        return r->in + j->in + (j->is->in_each ? (size_t)r->rank * job_bytes(j) : 0);
    return r->out + j->out;
}

/* ---- scalars of pre-multiplied sums ---- */

HARNESS_UNUSED int job_multiplies(const struct job *j)
{
    return j->op == SYMWIN_PREMUL_SUM && j->is->reduces;
}

HARNESS_UNUSED int job_scalar_on_device(const struct job *j, int rank)
{
    return mix(j->scalars * 31u + (unsigned)rank) % 2 == 0;
}

/* What is in device memory changes with the inputs: a replayed graph sees it. */
HARNESS_UNUSED uint64_t job_scalar(const struct job *j, int rank)
{
    return reference_scalar(j->type, job_scalar_on_device(j, rank) ? j->seed : j->scalars + 1000u,
                            rank);
}

HARNESS_UNUSED uint64_t *job_scalar_place(const struct rank *r, const struct job *j)
{
    return r->scalars + j->scalars % SCALARS;
}

/* The options of a call, with the scalar at `scalar` or on the device. */
HARNESS_UNUSED symwin_collective_options job_options(const struct rank *r, const struct job *j,
                                                     uint64_t *scalar)
{
    symwin_collective_options o = j->options;

    if (!job_multiplies(j))
        return o;
    *scalar = job_scalar(j, r->rank);
    o.scalar_on_device = job_scalar_on_device(j, r->rank);
    o.scalar = o.scalar_on_device ? (const void *)job_scalar_place(r, j) : scalar;
    return o;
}

/* ---- data ---- */

/* Bytes first .. first + bytes - 1 of a rank's input. What is moved has words of all zeros and of
 * all ones. */
HARNESS_UNUSED void job_fill(const struct job *j, int rank, size_t first, size_t bytes, void *to)
{
    const size_t element = symwin_type_bytes(j->type);
    unsigned char *out = to;
    size_t i;

    if (j->is->reduces && j->type <= SYMWIN_BF16 &&
        (j->whole || j->options.algo == j->is->multicast)) {
        reference_fill_whole(j->type, j->seed, rank, first / element, bytes / element, to);
        return;
    }
    if (j->is->reduces) {
        reference_fill(j->type, j->op, j->seed, rank, first / element, bytes / element, to);
        return;
    }
    for (i = first; i < first + bytes; i++) {
        const uint32_t word = mix(j->seed * 31u + (uint32_t)rank * 7919u +
                                  (uint32_t)(i / 8) * 104729u);

        *out++ = word % 4 == 0   ? 0
                 : word % 4 == 1 ? 0xff
                                 : (unsigned char)mix(word + (uint32_t)(i % 8));
    }
}

/* The output of a rank. */
HARNESS_UNUSED void job_reference(const struct rank *r, const struct job *j, void *to)
{
    const size_t bytes = job_bytes(j), part = j->is->in_each ? (size_t)r->rank * bytes : 0;
    unsigned char *inputs[PROCESSES_MOST] = {NULL}, *out = to;
    int p;

    for (p = 0; p < r->nranks && j->is->reduces; p++) {
        inputs[p] = malloc(bytes + 1);
        if (inputs[p] == NULL)
            abort();
        job_fill(j, p, part, bytes, inputs[p]);
        if (job_multiplies(j))
            reference_premultiply(j->type, job_scalar(j, p), inputs[p], (size_t)j->count);
    }
    if (j->is->reduces)
        reference_allreduce(j->type, j->op, r->nranks, (const void *const *)inputs, to,
                            (size_t)j->count);
    else if (j->is->out_each)
        for (p = 0; p < r->nranks; p++)
            job_fill(j, p, part, bytes, out + (size_t)p * bytes);
    else
        job_fill(j, j->root, part, bytes, to);
    for (p = 0; p < r->nranks; p++)
        free(inputs[p]);
}

/* Fills the output and a guard on each side with another byte, then the input. */
HARNESS_UNUSED void job_prepare(const struct rank *r, const struct job *j)
{
    const size_t in = job_in_bytes(r, j), out = job_out_bytes(r, j);
    const uint64_t scalar = job_scalar(j, r->rank);

    if (job_multiplies(j) && job_scalar_on_device(j, r->rank))
        host_must(host_copy(r->device, job_scalar_place(r, j), &scalar, sizeof scalar), "scalar");
    memset(r->host, FILLED, out + 2 * GUARD);
    if (job_receives(j, r->rank))
        host_must(host_copy(r->device, job_out(r, j) - GUARD, r->host, out + 2 * GUARD), "fill");
    job_fill(j, r->rank, 0, in, r->host);
    if (job_sends(j, r->rank) && in > 0)
        host_must(host_copy(r->device, job_in(r, j), r->host, in), "fill");
}

/* Whether the output, the guards on its sides and the input are right. */
HARNESS_UNUSED int job_is_right(const struct rank *r, const struct job *j)
{
    const size_t in = job_in_bytes(r, j), out = job_out_bytes(r, j), bytes = job_bytes(j);
    const unsigned char *const from = job_in(r, j), *const to = job_out(r, j);
    size_t i, wrong = 0;

    if (job_receives(j, r->rank)) {
        host_must(host_copy(r->device, r->host, to - GUARD, out + 2 * GUARD), "read");
        job_reference(r, j, r->want);
        for (i = 0; i < GUARD && !(job_in_place(r, j) && j->is->in_each); i++)
            wrong += (r->host[i] != FILLED) + (r->host[GUARD + out + i] != FILLED);
        if (j->is->reduces)
            wrong += reference_compare(j->type, r->host + GUARD, r->want, (size_t)j->count) >= 0;
        else
            wrong += memcmp(r->host + GUARD, r->want, out) != 0;
    }
    if (job_sends(j, r->rank) && in > 0) {
        host_must(host_copy(r->device, r->host, from, in), "read");
        job_fill(j, r->rank, 0, in, r->want);
        for (i = 0; i < in; i++)
            if (!job_in_place(r, j) || from + i < to || from + i >= to + out)
                wrong += r->host[i] != r->want[i];
    }
    if (wrong > 0)
        fprintf(stderr,
                "%s, rank %d of %d, root %d: %llu of %s, %s, algorithm %s, %zu bytes a part, in "
                "+%zu, out +%zu, %s place: wrong\n",
                j->is->name, r->rank, r->nranks, j->root, (unsigned long long)j->count,
                symwin_type_name(j->type), symwin_op_name(j->op), symwin_algo_name(j->options.algo),
                bytes, j->in, j->out, job_in_place(r, j) ? "in" : "out of");
    return wrong == 0;
}

/* Call `k` of row `number` of small calls by random, equal on all ranks but for what a rank decides
 * alone. It has `room` bytes of both buffers, from `base` on, and needs no window. */
HARNESS_UNUSED struct job job_any(const struct rank *r, unsigned number, int k, size_t base,
                                  size_t room)
{
    static const uint64_t counts[] = {0, 1, 2, 3, 7, 8, 9, 31, 32, 33, 64, 65};
    const uint32_t all = mix(number * 2654435761u + (uint32_t)k * 97u);
    const uint32_t own = mix(all + (uint32_t)r->rank * 7919u + 1);
    struct job j = {
        .is = &shapes[all % 8 == 0 ? mix(all) % SHAPES : all / 8 % 5], /* five move bytes */
        .options = {.size = sizeof j.options,
                    .algo = all / 64 % 2 ? SYMWIN_ALGO_ONESHOT : SYMWIN_ALGO_AUTO,
                    .blocks = own % 5 == 0 ? 1 + (int)(own / 5 % 3) : 0,
                    .threads = own % 7 == 0 ? 1 + (int)(own / 7 % 40) : 0},
        .type = (symwin_type)(mix(all + 1) % 12),
        .op = (symwin_op)(mix(all + 2) % 5),
        .root = (int)(mix(all + 3) % (uint32_t)r->nranks),
        .in_place = mix(own + 4) % 3 == 0,
        .seed = number * 64u + (unsigned)k};
    const size_t element = symwin_type_bytes(j.type);
    const uint64_t most = (room - 2 * GUARD - 72) / element / (uint64_t)r->nranks;

    j.count = counts[mix(all + 6) % 12];
    if (j.count > most)
        j.count = most;
    j.in = base + GUARD + mix(own + 7) % 9 * element;
    j.out = base + GUARD + mix(own + 8) % 9 * element;
    return j;
}

/* ---- calls ---- */

/* The call with any buffers. */
HARNESS_UNUSED symwin_status job_call_on(const struct rank *r, const struct job *j, const void *in,
                                         void *out, struct CUstream_st *stream)
{
    uint64_t scalar;
    const symwin_collective_options options = job_options(r, j, &scalar), *o = &options;
    symwin_comm *const c = r->comm;

    switch (j->is->collective) {
    case SYMWIN_ALLREDUCE:
        return symwin_allreduce_with(c, in, out, j->count, j->type, j->op, o, stream);
    case SYMWIN_ALLGATHER:
        return symwin_allgather_with(c, in, out, j->count, j->type, o, stream);
    case SYMWIN_ALLTOALL:
        return symwin_alltoall_with(c, in, out, j->count, j->type, o, stream);
    case SYMWIN_BROADCAST:
        return symwin_broadcast_with(c, in, out, j->count, j->type, j->root, o, stream);
    case SYMWIN_GATHER:
        return symwin_gather_with(c, in, out, j->count, j->type, j->root, o, stream);
    case SYMWIN_SCATTER:
        return symwin_scatter_with(c, in, out, j->count, j->type, j->root, o, stream);
    case SYMWIN_REDUCE_SCATTER:
        return symwin_reduce_scatter_with(c, in, out, j->count, j->type, j->op, o, stream);
    case SYMWIN_REDUCE:
        return symwin_reduce_with(c, in, out, j->count, j->type, j->op, j->root, o, stream);
    case SYMWIN_BARRIER:
        return symwin_barrier_with(c, o, stream);
    case SYMWIN_ALLTOALLV: /* parts.h */
    case SYMWIN_ALLGATHERV:
    case SYMWIN_REDUCE_SCATTERV:
        break;
    }
    return SYMWIN_INVALID;
}

/* A buffer that is not this rank's is NULL, or an address where there is nothing. */
HARNESS_UNUSED symwin_status job_call(const struct rank *r, const struct job *j, int stream)
{
    void *const nothing = j->seed % 2 == 0 ? NULL : (void *)(uintptr_t)0x11;

    return job_call_on(r, j, job_sends(j, r->rank) ? job_in(r, j) : nothing,
                       job_receives(j, r->rank) ? job_out(r, j) : nothing, r->streams[stream]);
}

HARNESS_UNUSED symwin_status job_query(const struct rank *r, const struct job *j,
                                       symwin_collective_info *info)
{
    uint64_t scalar;
    const symwin_collective_options options = job_options(r, j, &scalar), *o = &options;
    const void *const in = job_in(r, j), *const out = job_out(r, j);
    symwin_comm *const c = r->comm;

    switch (j->is->collective) {
    case SYMWIN_ALLREDUCE:
        return symwin_allreduce_query(c, in, out, j->count, j->type, j->op, o, info);
    case SYMWIN_ALLGATHER:
        return symwin_allgather_query(c, in, out, j->count, j->type, o, info);
    case SYMWIN_ALLTOALL:
        return symwin_alltoall_query(c, in, out, j->count, j->type, o, info);
    case SYMWIN_BROADCAST:
        return symwin_broadcast_query(c, in, out, j->count, j->type, j->root, o, info);
    case SYMWIN_GATHER:
        return symwin_gather_query(c, in, out, j->count, j->type, j->root, o, info);
    case SYMWIN_SCATTER:
        return symwin_scatter_query(c, in, out, j->count, j->type, j->root, o, info);
    case SYMWIN_REDUCE_SCATTER:
        return symwin_reduce_scatter_query(c, in, out, j->count, j->type, j->op, o, info);
    case SYMWIN_REDUCE:
        return symwin_reduce_query(c, in, out, j->count, j->type, j->op, j->root, o, info);
    case SYMWIN_BARRIER:
        return symwin_barrier_query(c, o, info);
    case SYMWIN_ALLTOALLV:
    case SYMWIN_ALLGATHERV:
    case SYMWIN_REDUCE_SCATTERV:
        break;
    }
    return SYMWIN_INVALID;
}

/* How many calls this rank has made, as its device counts them. */
HARNESS_UNUSED uint32_t job_launches(const struct rank *r)
{
    const symwin_comm *c = r->comm;

    return host_get_u32(r->device,
                        (unsigned char *)(uintptr_t)(c->group->base +
                                                     (uint64_t)c->rank * c->group->stride +
                                                     c->state_offset));
}

HARNESS_UNUSED void job_wait(const struct rank *r, int stream)
{
    host_must(symwin_stream_synchronize(r->device, r->streams[stream]), "synchronize");
}

HARNESS_UNUSED void job_run(const struct rank *r, const struct job *j)
{
    job_prepare(r, j);
    host_must(job_call(r, j, 0), j->is->name);
    job_wait(r, 0);
    host_must(symwin_comm_check(r->comm), "symwin_comm_check");
    must_be(job_is_right(r, j), j->is->name, r->rank);
}

/* ---- ranks ---- */

/* The slots of the next communicators. */
HARNESS_UNUSED size_t rank_slot_bytes = SLOT;

/* On GPUs a rank's streams stay until the process ends. Where streams come and go, two of them may
 * share a hardware queue, and a rank's kernel begins when another's have ended (docs/hardware.md).
 * Ranks that are too many for two queues each have one stream. */
__attribute__((unused)) static struct CUstream_st *rank_streams[PROCESSES_MOST][2];

HARNESS_UNUSED void open_streams(struct rank *r)
{
    struct CUstream_st **kept = rank_streams[r->rank];
    int i;

    for (i = 0; i < 2; i++) {
        r->streams[i] = kept[i];
        if (r->streams[i] == NULL && i > 0 && !sw_driver_is_emulated() &&
            r->comm->streams_per_rank < 2)
            r->streams[i] = r->streams[0];
        if (r->streams[i] == NULL)
            host_must(symwin_stream_create(r->device, &r->streams[i]), "symwin_stream_create");
        if (!sw_driver_is_emulated())
            kept[i] = r->streams[i];
    }
}

HARNESS_UNUSED void close_streams(const struct rank *r)
{
    int i;

    for (i = 0; i < 2; i++)
        if (rank_streams[r->rank][i] == NULL)
            host_must(symwin_stream_destroy(r->device, r->streams[i]), "symwin_stream_destroy");
}

HARNESS_UNUSED void open_rank(struct processes *p, struct rank *r, int kernel_timeout_ms)
{
    const symwin_comm_options options = {.size = sizeof options,
                                         .flags = r->flags |
                                                  (r->nranks == 5 ? SYMWIN_COMM_GRAPH_LAUNCH : 0),
                                         .timeout_ms = WAIT_MS,
                                         .kernel_timeout_ms = kernel_timeout_ms,
                                         .slot_bytes = rank_slot_bytes,
                                         .max_blocks = r->max_blocks};

    host_must(symwin_comm_create(processes_id(p, r->rank), r->nranks, r->rank, r->device, &options,
                                 &r->comm),
              "symwin_comm_create");
    open_streams(r);
    r->in = host_alloc(r->device, ROOM);
    r->out = host_alloc(r->device, ROOM);
    r->scalars = host_alloc(r->device, SCALARS * sizeof *r->scalars);
    r->host = malloc(ROOM);
    r->want = malloc(ROOM);
    if (r->host == NULL || r->want == NULL)
        abort();
}

/* Whether the rank runs nothing by multicast, and tells so for the line of all ranks: no multicast
 * object is made on GPUs. */
HARNESS_UNUSED int skips_multicast(struct processes *p, int rank)
{
    if (sw_driver_is_emulated())
        return 0;
    snprintf(p->rank[rank].text, SW_TEXT_BYTES, " # SKIP no multicast object is made on GPUs");
    return 1;
}

HARNESS_UNUSED void close_rank(struct processes *p, struct rank *r)
{
    processes_barrier(p);
    symwin_comm_destroy(r->comm);
    processes_barrier(p);
    close_streams(r);
    host_must(symwin_mem_free(r->in), "symwin_mem_free");
    host_must(symwin_mem_free(r->out), "symwin_mem_free");
    host_must(symwin_mem_free(r->scalars), "symwin_mem_free");
    free(r->host);
    free(r->want);
}

/* Runs `body` on 1 to 8 ranks of a process, at most `most_ranks`, and on 3 ranks in each other
 * place. One check for each. Under sanitizers there are fewer: kernels take ranks by fours, and
 * where ranks are mixed some are processes. */
HARNESS_UNUSED void everywhere(void (*body)(struct processes *, int), int most_ranks)
{
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    static const int counts[] = {2, 5}, first = 2;
#else
    static const int counts[] = {1, 2, 3, 4, 5, 8}, first = 1;
#endif
    struct processes *p;
    size_t place, i;

    for (i = 0; i < sizeof counts / sizeof counts[0] && counts[i] <= most_ranks; i++) {
        tap_ok(places_run(&places_all[0], counts[i], body, NULL, &p), "%d ranks of a process",
               counts[i]);
        processes_free(p);
    }
    for (place = first; place < places_count(); place++) {
        tap_ok(places_run(&places_all[place], 3, body, NULL, &p), "3 ranks, %s",
               places_all[place].name);
        processes_free(p);
    }
}

#endif
