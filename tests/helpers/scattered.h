/* A reduce-scatter of unequal parts, as tests make it, and what it must leave: random types,
 * operations, counts, gaps, alignments and grids, arrays on the host or in device memory. */
#ifndef SYMWIN_TESTS_SCATTERED_H
#define SYMWIN_TESTS_SCATTERED_H

#define TEST_SLOT_BYTES 1024 /* a round has two entries for each thread of a warp */
#include "parts.h"

enum { REDUCE_SCATTER = 5 /* of the shapes */ };

/* One call, as this rank makes it. */
struct call {
    struct job job;    /* type, operation, options, seed and scalars */
    size_t base, room; /* what it has of both buffers, in bytes */
    int on_device, packed, in_place;
    unsigned words; /* parts are whole words of one round, of so many elements each, for one warp;
                       0: neither */
    int large;      /* most parts are; the input is in a window if `base` is 0 */
    int alike;      /* the parts for a rank begin at the same place of all inputs */
    unsigned shift[2]; /* elements before the input, and before the output */
};

HARNESS_UNUSED struct call call_of(const struct rank *r, unsigned number, size_t base, size_t room)
{
    const uint32_t all = mix(number * 2654435761u + 5), own = mix(all + (uint32_t)r->rank * 31u);
    struct call c = {
        .job = {.is = &shapes[REDUCE_SCATTER],
                .options = {.size = sizeof(symwin_collective_options),
                            .blocks = own % 3 == 0 ? 1 + (int)(own / 3 % 3) : 0,
                            .threads = own / 16 % 3 == 0 ? 1 + (int)(own / 64 % 40) : 0},
                .type = (symwin_type)(number % 12),
                .op = (symwin_op)(number / 12 % 6),
                .seed = number,
                .scalars = number},
        .base = base,
        .room = room,
        .on_device = (int)(own / 1024 % 2),
        .packed = (int)(own / 4096 % 2),
        .in_place = (int)(own / 8192 % 3) == 0};

    if (all / 64 % 4 == 0) {
        c.words = 8 / (unsigned)symwin_type_bytes(c.job.type);
        c.job.options.blocks = 1;
        c.job.options.threads = 32;
    }
    return c;
}

/* Elements of rank p's part: none, a few, about a round, or many rounds. */
HARNESS_UNUSED uint64_t count_of(const struct rank *r, const struct call *c, int p)
{
    static const uint64_t counts[] = {0, 1, 2, 7, 8, 31, 32, 33, 64, 65, 96, 97};
    const uint32_t random = mix(c->job.seed * 977u + (uint32_t)p * 131u);
    const uint64_t most = (c->room - 2 * GUARD) / (uint64_t)r->nranks /
                              symwin_type_bytes(c->job.type) -
                          4;
    const uint64_t count = c->large && random % 4 != 0
                               ? 1 + (512 + mix(random) % 3000) / symwin_type_bytes(c->job.type)
                           : c->words != 0   ? random / 8 % (SLOT / 16 + 1) * c->words
                           : random % 5 == 0 ? mix(random) % 1500
                                             : counts[random / 8 % 12];

    return count < most ? count : most;
}

/* Where rank p's part begins in this rank's input, in elements. */
HARNESS_UNUSED uint64_t place_of(const struct rank *r, const struct call *c, int p)
{
    uint64_t place = 0;
    int q;

    for (q = 0; q < p; q++)
        place += count_of(r, c, q) +
                 (c->packed && !c->on_device
                      ? 0
                      : (c->job.seed + (unsigned)(q + (c->alike ? 0 : r->rank))) % 4) *
                     (c->words != 0 ? c->words : 1);
    return place;
}

HARNESS_UNUSED unsigned char *in_of(const struct rank *r, const struct call *c)
{
    return r->in + c->base + GUARD + c->shift[0] * symwin_type_bytes(c->job.type);
}

HARNESS_UNUSED unsigned char *out_of(const struct rank *r, const struct call *c)
{
    return c->in_place ? in_of(r, c) + place_of(r, c, r->rank) * symwin_type_bytes(c->job.type)
                       : r->out + c->base + GUARD + c->shift[1] * symwin_type_bytes(c->job.type);
}

/* Part `p` of the input of rank `of`. */
HARNESS_UNUSED void fill_part(const struct rank *r, const struct call *c, int of, int p, void *to)
{
    reference_fill(c->job.type, c->job.op, c->job.seed * 131u + (unsigned)p, of, 0,
                   (size_t)count_of(r, c, p), to);
}

/* The input's room, with its guards. */
HARNESS_UNUSED void fill_input(const struct rank *r, const struct call *c, unsigned char *to)
{
    int p;

    memset(to, FILLED, c->room);
    for (p = 0; p < r->nranks; p++)
        fill_part(r, c, r->rank, p,
                  to + GUARD + (c->shift[0] + place_of(r, c, p)) * symwin_type_bytes(c->job.type));
}

/* Fills the buffers, the arrays in device memory, and the scalar. */
HARNESS_UNUSED void prepare(const struct rank *r, const struct call *c, struct arrays *a)
{
    const uint64_t scalar = job_scalar(&c->job, r->rank);
    int p;

    for (p = 0; p < r->nranks; p++) {
        a->host[0][p] = count_of(r, c, p);
        a->host[1][p] = place_of(r, c, p);
    }
    host_must(host_copy(r->device, a->device, a->host, ARRAYS_BYTES), "fill");
    if (job_multiplies(&c->job) && job_scalar_on_device(&c->job, r->rank))
        host_must(host_copy(r->device, job_scalar_place(r, &c->job), &scalar, 8), "scalar");
    memset(r->host, FILLED, c->room);
    host_must(host_copy(r->device, r->out + c->base, r->host, c->room), "fill");
    fill_input(r, c, r->host);
    host_must(host_copy(r->device, r->in + c->base, r->host, c->room), "fill");
}

HARNESS_UNUSED symwin_status launch(const struct rank *r, const struct call *c,
                                    const struct arrays *a, int stream)
{
    const uint64_t *device = (const uint64_t *)(const void *)a->device;
    const uint64_t room = (c->room - 2 * GUARD) / symwin_type_bytes(c->job.type);
    const symwin_parts parts = {c->on_device ? device : a->host[0],
                                c->on_device ? device + PARTS_RANKS
                                : c->packed  ? NULL
                                             : a->host[1],
                                room, c->on_device};
    uint64_t scalar;
    const symwin_collective_options options = job_options(r, &c->job, &scalar);

    return symwin_reduce_scatterv_with(r->comm, in_of(r, c), &parts, out_of(r, c), c->job.type,
                                       c->job.op, &options, r->streams[stream]);
}

/* The output, and what is around it, and the input. */
HARNESS_UNUSED int is_right(const struct rank *r, const struct call *c)
{
    const size_t bytes = (size_t)count_of(r, c, r->rank) * symwin_type_bytes(c->job.type);
    const size_t at = (size_t)(out_of(r, c) - (c->in_place ? r->in : r->out)) - c->base;
    unsigned char *inputs[PROCESSES_MOST], *const result = malloc(bytes + 1);
    size_t i, wrong = 0;
    int p;

    for (p = 0; p < r->nranks; p++) {
        inputs[p] = malloc(bytes + 1);
        fill_part(r, c, p, r->rank, inputs[p]);
        if (job_multiplies(&c->job))
            reference_premultiply(c->job.type, job_scalar(&c->job, p), inputs[p],
                                  (size_t)count_of(r, c, r->rank));
    }
    reference_allreduce(c->job.type, c->job.op, r->nranks, (const void *const *)inputs, result,
                        (size_t)count_of(r, c, r->rank));
    host_must(host_copy(r->device, r->host, (c->in_place ? r->in : r->out) + c->base, c->room),
              "read");
    wrong += reference_compare(c->job.type, r->host + at, result,
                               (size_t)count_of(r, c, r->rank)) >= 0;
    if (c->in_place)
        fill_input(r, c, r->want);
    else
        memset(r->want, FILLED, c->room);
    for (i = 0; i < c->room; i++)
        wrong += (i < at || i >= at + bytes) && r->host[i] != r->want[i];
    if (!c->in_place) {
        fill_input(r, c, r->want);
        host_must(host_copy(r->device, r->host, r->in + c->base, c->room), "read");
        wrong += memcmp(r->host, r->want, c->room) != 0;
    }
    for (p = 0; p < r->nranks; p++)
        free(inputs[p]);
    free(result);
    if (wrong > 0)
        fprintf(stderr, "rank %d of %d, seed %u, %s %s, %s place: wrong\n", r->rank, r->nranks,
                c->job.seed, symwin_type_name(c->job.type), symwin_op_name(c->job.op),
                c->in_place ? "in" : "out of");
    return wrong == 0;
}

/* Also when no rank has elements. */
HARNESS_UNUSED void asks(const struct rank *r, const struct call *c)
{
    static const uint64_t none[PARTS_RANKS] = {0};
    const symwin_parts parts = {none, NULL, 0, 0};
    uint64_t scalar;
    const symwin_collective_options options = job_options(r, &c->job, &scalar);
    symwin_collective_info info = {0};

    host_must(symwin_reduce_scatterv_query(r->comm, in_of(r, c), &parts, out_of(r, c), c->job.type,
                                           c->job.op, &options, &info),
              "symwin_reduce_scatterv_query");
    must_be(info.algo == SYMWIN_ALGO_ONESHOT && info.blocks == 1 && info.threads > 0, "a query",
            r->rank);
}

HARNESS_UNUSED void run(const struct rank *r, const struct call *c, struct arrays *a)
{
    prepare(r, c, a);
    asks(r, c);
    host_must(launch(r, c, a, 0), "symwin_reduce_scatterv_with");
    job_wait(r, 0);
    host_must(symwin_comm_check(r->comm), "symwin_comm_check");
    must_be(is_right(r, c), "a call", r->rank);
}

#endif
