/* What a call is on a rank: its buffers, and what its output must be. */
#include "perf.h"

/* ---- collectives ---- */

static const struct sw_collective sendrecv = {.call = "symwin_send"};

const struct sw_collective *collective_of(symwin_collective collective)
{
    return (int)collective == PERF_SENDRECV ? &sendrecv : &sw_collectives[collective];
}

const char *collective_name(symwin_collective collective)
{
    return (int)collective == PERF_SENDRECV ? "sendrecv" : symwin_collective_name(collective);
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

struct layout layout_of(symwin_collective collective, int nranks, int rank, int root,
                        uint64_t count)
{
    const struct sw_collective *is = collective_of(collective);
    const uint64_t each = count * (uint64_t)nranks, own = count * (uint64_t)rank;
    struct layout layout = {
        .sends = !is->root_sends || rank == root,
        .receives = !is->root_receives || rank == root,
        .in = is->in_each ? each : count,
        .out = is->out_each ? each : count,
        .larger = is->in_each || is->out_each ? each : count,
        .in_at = is->out_each && !is->in_each ? own : 0,
        .out_at = is->in_each && !is->out_each ? own : 0,
        .first = is->in_each ? own : 0,
        .part = count,
        .without = nranks,
        .who = root,
    };

    if ((int)collective == PERF_SENDRECV)
        layout.who = (rank + nranks - 1) % nranks;
    if (is->reduces)
        layout.who = PERF_RESULT;
    else if (is->out_each)
        layout.who = PERF_PARTS;
    return layout;
}

struct perf_data layout_data(const struct layout *layout, struct perf_data data)
{
    data.first = layout->first;
    data.part = layout->part;
    data.without = layout->without;
    return data;
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
    return way_is_limit(result->way) ? of_link(r, result)
                                     : layout_of(result->collective, r->job->nranks, r->rank,
                                                 r->job->options.root, result->count);
}

struct result result_of_size(const struct job *job, symwin_collective collective, symwin_type type,
                             size_t bytes)
{
    const size_t step = symwin_type_bytes(type) *
                        (size_t)layout_of(collective, job->nranks, 0, 0, 1).larger;

    return (struct result){.collective = collective,
                           .type = type,
                           .bytes = bytes / step * step,
                           .count = bytes / step};
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
