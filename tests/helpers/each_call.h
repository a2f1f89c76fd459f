/* One call of each collective except the barrier, of all-reduces by two shots, sends and receives,
 * and a group, with what they must leave: for tests that make them fail. All are queued at once, in
 * memory that lies in a window. */
#ifndef SYMWIN_TESTS_EACH_CALL_H
#define SYMWIN_TESTS_EACH_CALL_H

#include "harness.h"

enum {
    EACH_WORDS = 16,
    EACH_REDUCED = 9,
    EACH_MOST = 20,
    EACH_BYTES = EACH_WORDS * (EACH_MOST + 1) * 4
};

/* A rank of at most eight. `memory` has EACH_BYTES: the input, then an output of each call. */
struct each {
    symwin_comm *comm;
    int rank, nranks, device;
    uint32_t *memory;
    struct CUstream_st *stream;
    int over_domains; /* where of these algorithms there is only the two-shot */
};

enum each_kind {
    EACH_ALLREDUCE,
    EACH_ALLGATHER,
    EACH_ALLTOALL,
    EACH_BROADCAST,
    EACH_GATHER,
    EACH_SCATTER,
    EACH_REDUCE_SCATTER,
    EACH_REDUCE,
    EACH_ALLTOALLV,
    EACH_ALLGATHERV,
    EACH_REDUCE_SCATTERV,
    EACH_MESSAGE,
    EACH_GROUP
};

static const struct each_call {
    const char *name;
    enum each_kind kind;
    symwin_algo algo;
} each_calls[] = {
    {"an all-reduce by two shots", EACH_ALLREDUCE, SYMWIN_ALGO_TWOSHOT_PUSH},
    {"an all-gather", EACH_ALLGATHER, SYMWIN_ALGO_ONESHOT},
    {"an all-gather by copies", EACH_ALLGATHER, SYMWIN_ALGO_COPIES},
    {"an all-to-all", EACH_ALLTOALL, SYMWIN_ALGO_ONESHOT},
    {"an all-to-all over windows", EACH_ALLTOALL, SYMWIN_ALGO_PUT},
    {"a broadcast", EACH_BROADCAST, SYMWIN_ALGO_ONESHOT},
    {"a broadcast over windows", EACH_BROADCAST, SYMWIN_ALGO_TWOSHOT},
    {"a gather", EACH_GATHER, SYMWIN_ALGO_ONESHOT},
    {"a gather over windows", EACH_GATHER, SYMWIN_ALGO_TWOSHOT},
    {"a scatter", EACH_SCATTER, SYMWIN_ALGO_ONESHOT},
    {"a reduce-scatter", EACH_REDUCE_SCATTER, SYMWIN_ALGO_ONESHOT},
    {"a reduce-scatter over windows", EACH_REDUCE_SCATTER, SYMWIN_ALGO_TWOSHOT},
    {"a reduce", EACH_REDUCE, SYMWIN_ALGO_ONESHOT},
    {"a reduce over windows", EACH_REDUCE, SYMWIN_ALGO_TWOSHOT},
    {"an all-to-all of parts", EACH_ALLTOALLV, SYMWIN_ALGO_ONESHOT},
    {"an all-gather of parts", EACH_ALLGATHERV, SYMWIN_ALGO_ONESHOT},
    {"a reduce-scatter of parts", EACH_REDUCE_SCATTERV, SYMWIN_ALGO_ONESHOT},
    {"a message", EACH_MESSAGE, SYMWIN_ALGO_ONESHOT},
    {"a group", EACH_GROUP, SYMWIN_ALGO_ONESHOT},
};

enum { EACH_CALLS = sizeof each_calls / sizeof each_calls[0] };

static inline uint32_t each_input(int rank, int k)
{
    return (uint32_t)(rank * EACH_WORDS + k + 1);
}

static inline uint32_t each_sum(const struct each *e, int k)
{
    uint32_t sum = 0;
    int p;

    for (p = 0; p < e->nranks; p++)
        sum += each_input(p, k);
    return sum;
}

static inline int each_before(const struct each *e)
{
    return (e->rank + e->nranks - 1) % e->nranks;
}

static inline int each_root(const struct each *e)
{
    return e->nranks / 2;
}

/* Word k of an output; 0: the call leaves it alone. */
static inline uint32_t each_want(const struct each *e, enum each_kind kind, int k)
{
    const int n = e->nranks, is_root = e->rank == each_root(e);

    switch (kind) {
    case EACH_ALLREDUCE:
        return k < EACH_REDUCED ? each_sum(e, k) : 0;
    case EACH_ALLGATHER:
        return k < n ? each_input(k, 0) : 0;
    case EACH_ALLTOALL:
        return k < n ? each_input(k, e->rank) : 0;
    case EACH_BROADCAST:
        return k == 0 ? each_input(each_root(e), 0) : 0;
    case EACH_GATHER:
        return k < n && is_root ? each_input(k, 0) : 0;
    case EACH_SCATTER:
        return k == 0 ? each_input(each_root(e), e->rank) : 0;
    case EACH_REDUCE_SCATTER:
        return k == 0 ? each_sum(e, e->rank) : 0;
    case EACH_REDUCE:
        return k == 0 && is_root ? each_sum(e, 0) : 0;
    case EACH_ALLTOALLV: /* the parts of `in` lie in reverse order */
        return k < n ? each_input(k, n - 1 - e->rank) : 0;
    case EACH_ALLGATHERV:
        return k < n ? each_input(n - 1 - k, 0) : 0;
    case EACH_REDUCE_SCATTERV:
        return k == 0 ? each_sum(e, n - 1 - e->rank) : 0;
    case EACH_MESSAGE:
        return k == 0 ? each_input(each_before(e), 0) : 0;
    case EACH_GROUP:
        return k < n ? each_input(k, 0) : k == n ? each_input(each_before(e), 0) : 0;
    }
    return 0;
}

/* Sends a word to the next rank and receives one from the rank before; in a group. */
static inline symwin_status each_message(const struct each *e, uint32_t *out,
                                         const symwin_collective_options *o)
{
    const int next = (e->rank + 1) % e->nranks;
    symwin_status status = symwin_send_with(e->comm, e->memory, 1, SYMWIN_U32, next, o, e->stream);

    return status == SYMWIN_OK
               ? symwin_recv_with(e->comm, out, 1, SYMWIN_U32, each_before(e), o, e->stream)
               : status;
}

static inline symwin_status each_group(const struct each *e, uint32_t *out, int gathers,
                                       const symwin_collective_options *o)
{
    symwin_status status = symwin_group_begin(), ended;

    if (status == SYMWIN_OK && gathers)
        status = symwin_allgather_with(e->comm, e->memory, out, 1, SYMWIN_U32, o, e->stream);
    if (status == SYMWIN_OK)
        status = each_message(e, out + (gathers ? e->nranks : 0), o);
    ended = symwin_group_end();
    return status == SYMWIN_OK ? ended : status;
}

static inline symwin_status each_make(const struct each *e, const struct each_call *call,
                                      uint32_t *out)
{
    const symwin_collective_options options = {
        .size = sizeof options, .algo = call->algo, .blocks = 1, .threads = 32};
    const symwin_collective_options *const o = e->over_domains && call->kind != EACH_ALLREDUCE
                                                   ? NULL
                                                   : &options;
    const int root = each_root(e);
    struct CUstream_st *const s = e->stream;
    symwin_comm *const c = e->comm;
    const uint32_t *in = e->memory;
    uint64_t counts[EACH_WORDS], reversed[EACH_WORDS];
    const symwin_parts parts = {.counts = counts},
                       turned = {.counts = counts, .displacements = reversed};
    int p;

    for (p = 0; p < e->nranks; p++) {
        counts[p] = 1;
        reversed[p] = (uint64_t)(e->nranks - 1 - p);
    }
    switch (call->kind) {
    case EACH_ALLREDUCE:
        return symwin_allreduce_with(c, in, out, EACH_REDUCED, SYMWIN_U32, SYMWIN_SUM, o, s);
    case EACH_ALLGATHER:
        return symwin_allgather_with(c, in, out, 1, SYMWIN_U32, o, s);
    case EACH_ALLTOALL:
        return symwin_alltoall_with(c, in, out, 1, SYMWIN_U32, o, s);
    case EACH_BROADCAST:
        return symwin_broadcast_with(c, in, out, 1, SYMWIN_U32, root, o, s);
    case EACH_GATHER:
        return symwin_gather_with(c, in, out, 1, SYMWIN_U32, root, o, s);
    case EACH_SCATTER:
        return symwin_scatter_with(c, in, out, 1, SYMWIN_U32, root, o, s);
    case EACH_REDUCE_SCATTER:
        return symwin_reduce_scatter_with(c, in, out, 1, SYMWIN_U32, SYMWIN_SUM, o, s);
    case EACH_REDUCE:
        return symwin_reduce_with(c, in, out, 1, SYMWIN_U32, SYMWIN_SUM, root, o, s);
    case EACH_ALLTOALLV:
        return symwin_alltoallv_with(c, in, &turned, out, &parts, SYMWIN_U32, o, s);
    case EACH_ALLGATHERV:
        return symwin_allgatherv_with(c, in, out, &turned, SYMWIN_U32, o, s);
    case EACH_REDUCE_SCATTERV:
        return symwin_reduce_scatterv_with(c, in, &turned, out, SYMWIN_U32, SYMWIN_SUM, o, s);
    case EACH_MESSAGE:
        return each_group(e, out, 0, o);
    case EACH_GROUP:
        return each_group(e, out, 1, o);
    }
    return SYMWIN_INVALID;
}

/* Fills the memory, before it is in a window: when calls fail, copies of peers may come later than
 * the calls that follow. */
static inline symwin_status each_fill(const struct each *e)
{
    uint32_t words[(EACH_MOST + 1) * EACH_WORDS] = {0};
    symwin_status status;
    int k;

    for (k = 0; k < EACH_WORDS; k++)
        words[k] = each_input(e->rank, k);
    status = symwin_memcpy(e->device, e->memory, words, sizeof words, e->stream);
    return status == SYMWIN_OK ? symwin_stream_synchronize(e->device, e->stream) : status;
}

static inline int each_makes(const struct each *e, int i)
{
    return !e->over_domains || each_calls[i].algo == SYMWIN_ALGO_ONESHOT ||
           each_calls[i].kind == EACH_ALLREDUCE;
}

/* Makes all calls, waits for them, and ends the program if they all succeed and an output is
 * wrong. */
static inline symwin_status each_run(const struct each *e)
{
    uint32_t words[(EACH_MOST + 1) * EACH_WORDS];
    symwin_status status = SYMWIN_OK;
    int i, k;

    for (i = 0; i < EACH_CALLS && status == SYMWIN_OK; i++)
        if (each_makes(e, i))
            status = each_make(e, &each_calls[i], e->memory + (i + 1) * EACH_WORDS);
    if (status == SYMWIN_OK)
        status = symwin_stream_synchronize(e->device, e->stream);
    if (status == SYMWIN_OK)
        status = symwin_comm_check(e->comm);
    if (status == SYMWIN_OK) /* after a failure, copies of peers may still come */
        status = symwin_memcpy(e->device, words, e->memory, sizeof words, e->stream);
    if (status == SYMWIN_OK)
        status = symwin_stream_synchronize(e->device, e->stream);
    for (i = 0; i < EACH_CALLS && status == SYMWIN_OK; i++)
        for (k = 0; k < EACH_WORDS && each_makes(e, i); k++)
            if (words[(i + 1) * EACH_WORDS + k] != each_want(e, each_calls[i].kind, k)) {
                fprintf(stderr, "rank %d: word %d of %s is %u instead of %u\n", e->rank, k,
                        each_calls[i].name, words[(i + 1) * EACH_WORDS + k],
                        each_want(e, each_calls[i].kind, k));
                abort();
            }
    return status;
}

#endif
