/* What a call is on a rank: its buffers, and what its output must be. */
#include "perf.h"

/* ---- collectives ---- */

static const struct sw_collective sendrecv = {.call = "symwin_send"};

int collective_on_device(symwin_collective collective)
{
    return (int)collective > PERF_SENDRECV;
}

const struct sw_collective *collective_of(symwin_collective collective)
{
    if ((int)collective == PERF_SENDRECV)
        return &sendrecv;
    return &sw_collectives[collective_on_device(collective)
                               ? SYMWIN_ALLTOALLV + ((int)collective - PERF_ALLTOALLV_DEVICE)
                               : (int)collective];
}

const char *collective_name(symwin_collective collective)
{
    switch ((int)collective) {
    case PERF_SENDRECV:
        return "sendrecv";
    case PERF_ALLTOALLV_DEVICE:
        return "alltoallv_device";
    case PERF_ALLGATHERV_DEVICE:
        return "allgatherv_device";
    case PERF_REDUCE_SCATTERV_DEVICE:
        return "reduce_scatterv_device";
    default:
        return symwin_collective_name(collective);
    }
}

int collective_has_root(symwin_collective collective)
{
    return collective_of(collective)->root_sends || collective_of(collective)->root_receives;
}

int collective_in_place(symwin_collective collective)
{
    return (int)collective != PERF_SENDRECV && !collective_of(collective)->no_data;
}

/* ---- a rank's part ---- */

/* Of unequal parts; `count` elements are a share. An all-gather's are those that an all-to-all has
 * for rank 0, and a reduce-scatter's those that it has on rank 0. */
static struct layout of_parts(const struct sw_collective *is, int nranks, int rank, int which,
                              uint64_t count)
{
    const struct perf_data parts = {.nranks = nranks, .which = (uint32_t)which, .part = count};
    const int gathers = is == &sw_collectives[SYMWIN_ALLGATHERV];
    const int from = is->reduces ? 0 : rank, to = gathers ? PERF_TO_ALL : rank;
    struct layout layout = {.which = which,
                            .part = count,
                            .parts_from = from,
                            .to = to,
                            .who = is->reduces ? PERF_RESULT : PERF_UNEQUAL};

    for (int p = 0; p < nranks; p++) {
        layout.in += gathers ? 0 : perf_part(&parts, from, p);
        layout.out += is->reduces ? 0 : perf_part(&parts, p, to);
    }
    if (gathers) {
        layout.in = perf_part(&parts, rank, to);
        layout.in_at = perf_part_out(&parts, rank, to);
    } else if (is->reduces) {
        layout.out = perf_part(&parts, from, rank);
        layout.out_at = layout.first = perf_part_in(&parts, from, rank);
    }
    layout.larger = layout.in > layout.out ? layout.in : layout.out;
    layout.sends = layout.in > 0;
    layout.receives = layout.out > 0;
    return layout;
}

/* Of sends and receives: 0, each rank to the next one; 1 and 2, of two neighbours the first or the
 * second sends; then rings of larger steps, the last of which is each rank to itself. */
static void of_pairs(int nranks, int rank, int which, struct layout *layout)
{
    const int pair = (rank ^ 1) < nranks ? rank ^ 1 : SYMWIN_NO_RANK;
    const int step = which == 0 ? 1 : which - 1;

    if (which == PERF_EVEN_SEND || which == PERF_ODD_SEND) {
        const int mine = (rank & 1) == which - PERF_EVEN_SEND;

        layout->send_to = mine ? pair : SYMWIN_NO_RANK;
        layout->recv_from = mine ? SYMWIN_NO_RANK : pair;
    } else {
        layout->send_to = (rank + step) % nranks;
        layout->recv_from = (rank + nranks - step) % nranks;
    }
    layout->sends = layout->send_to != SYMWIN_NO_RANK;
    layout->receives = layout->recv_from != SYMWIN_NO_RANK;
    layout->who = layout->recv_from;
}

int layout_kinds(symwin_collective collective, int nranks)
{
    if (collective_has_root(collective) || collective_of(collective)->no_data)
        return nranks;
    if ((int)collective == PERF_SENDRECV)
        return nranks + 2;
    return collective_on_device(collective) ? MOST_PARTS : 1;
}

struct layout layout_of(symwin_collective collective, int nranks, int rank, int which,
                        uint64_t count)
{
    const struct sw_collective *is = collective_of(collective);
    const int out_each = is->out_each || is->no_data;
    const uint64_t each = count * (uint64_t)nranks, own = count * (uint64_t)rank;
    struct layout layout = {
        .sends = !is->root_sends || rank == which,
        .receives = !is->root_receives || rank == which,
        .in = is->in_each ? each : count,
        .out = out_each ? each : count,
        .larger = is->in_each || out_each ? each : count,
        .in_at = out_each && !is->in_each ? own : 0,
        .out_at = is->in_each && !out_each ? own : 0,
        .first = is->in_each ? own : 0,
        .part = count,
        .without = nranks,
        .who = which,
    };

    if (is->by_parts)
        return of_parts(is, nranks, rank, which, count);
    if ((int)collective == PERF_SENDRECV)
        of_pairs(nranks, rank, which, &layout);
    if (is->reduces)
        layout.who = PERF_RESULT;
    else if (out_each)
        layout.who = PERF_PARTS;
    return layout;
}

struct perf_data layout_data(const struct layout *layout, struct perf_data data)
{
    data.first = layout->first;
    data.part = layout->part;
    data.without = layout->without;
    data.to = layout->to;
    data.which = (uint32_t)layout->which;
    return data;
}

symwin_parts parts_of(struct rank *r, symwin_collective collective, uint64_t count)
{
    const int n = r->job->nranks, on_device = collective_on_device(collective);
    const int from = collective_of(collective) == &sw_collectives[SYMWIN_ALLTOALLV] ? r->rank : 0;
    const struct perf_data parts = {.nranks = n, .part = count};
    uint64_t *const counts = on_device ? (uint64_t *)(uintptr_t)r->device_counts : r->counts;

    for (int p = 0; p < n; p++) {
        r->counts[p] = perf_part(&parts, from, p);
        r->counts[n + p] = perf_part_in(&parts, from, p);
    }
    return (symwin_parts){.counts = counts,
                          .displacements = counts + n,
                          .room = perf_part_in(&parts, from, n),
                          .on_device = on_device};
}

int parts_prepare(struct rank *r, symwin_collective collective, uint64_t count)
{
    (void)parts_of(r, collective, count);
    return ok(symwin_memcpy(r->device, (void *)(uintptr_t)r->device_counts, r->counts,
                            2 * (size_t)r->job->nranks * sizeof *r->counts, r->stream));
}

/* Of a link's call: what the rank before stores, or what each other one does. */
static struct layout of_link(const struct rank *r, const struct result *result)
{
    const int n = r->job->nranks;
    struct layout layout = layout_of((symwin_collective)PERF_SENDRECV, n, r->rank, 0,
                                     result->count);

    if (result->way->kind == WAY_LINK_SPREAD) {
        layout.who = PERF_PARTS;
        layout.without = r->rank;
        layout.part = result->count / (uint64_t)(n - 1);
    }
    return layout;
}

/* ---- results ---- */

struct layout result_layout(const struct rank *r, const struct result *result)
{
    return way_is_limit(result->way)
               ? of_link(r, result)
               : layout_of(result->collective, r->job->nranks, r->rank,
                           collective_has_root(result->collective) ? r->job->options.root : 0,
                           result->count);
}

struct result result_of_size(const struct job *job, symwin_collective collective, symwin_type type,
                             size_t bytes)
{
    const size_t size = symwin_type_bytes(type);
    const size_t step = size * (size_t)layout_of(collective, job->nranks, 0, 0, 1).larger;
    size_t count = bytes / step;

    if (collective_of(collective)->by_parts && count >= 16 / size)
        count -= count % (16 / size);
    return (struct result){
        .collective = collective, .type = type, .bytes = count * step, .count = count};
}

unsigned char *result_in(const struct rank *r, const struct result *result, const struct pair *pair)
{
    const size_t size = symwin_type_bytes(result->type);

    return !result->in_place ? pair->in
                             : (unsigned char *)pair->out + result_layout(r, result).in_at * size;
}

unsigned char *result_out(const struct rank *r, const struct result *result,
                          const struct pair *pair)
{
    const size_t at = result->in_place ? (size_t)result_layout(r, result).out_at : 0;

    return (unsigned char *)pair->out + at * symwin_type_bytes(result->type);
}

const char *result_op(const struct result *result)
{
    return collective_of(result->collective)->reduces ? symwin_op_name(result->op) : "none";
}

const char *result_type(const struct result *result)
{
    return collective_of(result->collective)->no_data ? "none" : symwin_type_name(result->type);
}
