/* The order in which sizes, types, operations and ways are measured. All ranks run the same loops;
 * rank 0 also prints and writes.
 */
#include <stdio.h>

#include "perf.h"

/* Index 0: out of place; 1: in place. */
enum { PLACEMENTS = 2 };

int options_nth(const unsigned char order[PERF_MOST_NAMES], unsigned bits, int i)
{
    if (order[0] != 0)
        return (int)order[i] - 1; /* 0 ends it */
    for (int value = 0; value < 32; value++)
        if ((bits & 1u << value) != 0 && i-- == 0)
            return value;
    return -1;
}

size_t options_next_size(const struct perf_options *options, size_t bytes)
{
    size_t next;

    if (options->step > 0)
        next = bytes + options->step;
    else
        next = bytes * (size_t)options->factor;
    return next <= options->end ? next : 0;
}

static void show_progress(struct rank *r, const struct result *result, int64_t begun)
{
    const struct job *job = r->job;

    if (r->rank != 0 || !job->options.progress || sw_now_ms() - begun < 2000)
        return;
    fprintf(stderr, "symwin-perf: %lld s: %s, %zu bytes %s %s, %s%s\n",
            (long long)(sw_now_ms() - begun) / 1000,
            way_is_limit(result->way) ? "limits" : collective_name(result->collective),
            result->bytes, result_type(result), result_op(result), result->way->name,
            result->in_place ? ", in place" : "");
}

void reference_take(struct reference *reference, const struct result *ours)
{
    const int chosen = ours->way->algo == SYMWIN_ALGO_AUTO;

    if (chosen || (!reference->chosen && (reference->us == 0 || ours->us < reference->us)))
        reference->us = ours->us;
    reference->chosen |= chosen;
}

/* symwin's ways come first, so a rival's reference is complete. */
static void compare_ways(struct result *result, struct reference *reference)
{
    if (result->way->kind == WAY_SYMWIN)
        reference_take(reference, result);
    if ((result->way->kind == WAY_NCCL || result->way->kind == WAY_OWN) && reference->us > 0)
        result->ratio = result->us / reference->us;
}

static int measure_way(struct rank *r, struct result model, struct reference references[PLACEMENTS],
                       int64_t begun)
{
    struct job *job = r->job;
    const unsigned placements = collective_in_place(model.collective) ? job->options.placements
                                                                      : PERF_OUT_OF_PLACE;
    struct result results[PLACEMENTS];
    int have[PLACEMENTS] = {0};
    int good = 1;

    for (int place = 0; place < PLACEMENTS && good; place++) {
        if ((placements & 1u << place) == 0)
            continue;
        results[place] = model;
        results[place].in_place = place;
        show_progress(r, &results[place], begun);
        good = measure(r, &results[place]);
        if (!good || !results[place].supported)
            continue;
        have[place] = 1;
        compare_ways(&results[place], &references[place]);
        if (r->rank == 0)
            good = record(job, &results[place]);
    }
    if (r->rank == 0 && (have[0] || have[1]))
        table_row(job, have[0] ? &results[0] : NULL, have[1] ? &results[1] : NULL);
    return good;
}

/* Measures one call by all ways that serve it. */
static int sweep_ways(struct rank *r, struct result model, int64_t begun)
{
    const struct job *job = r->job;
    struct reference references[PLACEMENTS] = {{0}};
    int good = 1;

    for (int i = 0; i < job->ways.count && good; i++) {
        model.way = &job->ways.list[i];
        if (way_serves(model.way, model.collective))
            good = measure_way(r, model, references, begun);
    }
    return good;
}

static int sweep_sizes(struct rank *r, struct result model, int64_t begun)
{
    const struct perf_options *o = &r->job->options;
    int good = 1;

    for (size_t bytes = o->begin; bytes > 0 && good; bytes = options_next_size(o, bytes)) {
        struct result sized = result_of_size(r->job, model.collective, model.type, bytes);

        sized.op = model.op;
        if (sized.count > 0)
            good = sweep_ways(r, sized, begun);
    }
    return good;
}

/* Runs through types and operations, or makes the one call of a collective without data. */
static int sweep_collective(struct rank *r, symwin_collective collective, int64_t begun)
{
    const struct perf_options *o = &r->job->options;
    const struct sw_collective *is = collective_of(collective);
    struct result model = {.collective = collective, .type = SYMWIN_U32, .op = SYMWIN_MAX};
    int good = 1, type, op;

    if (r->rank == 0)
        table_head(r->job, collective);
    if (is->no_data)
        return sweep_ways(r, model, begun);
    for (int t = 0; (type = options_nth(o->type_order, o->types, t)) >= 0; t++)
        for (int p = 0; p < (is->reduces ? SW_OPS : 1) && good; p++) {
            op = options_nth(o->op_order, o->ops, p);
            if (op < 0)
                break;
            model.type = (symwin_type)type;
            model.op = (symwin_op)op;
            good = sweep_sizes(r, model, begun);
        }
    return good;
}

/* The bytes that a link's call sends: the largest size, rounded down to whole vectors for each
 * receiver. 0: skip it, since with one peer link-spread equals link-stores. */
static size_t link_bytes(const struct job *job, const struct way *way)
{
    const size_t to = way->kind == WAY_LINK_SPREAD ? (size_t)job->nranks - 1 : 1;

    return way->kind == WAY_LINK_SPREAD && to == 1 ? 0 : job->options.end / (16 * to) * (16 * to);
}

/* Measures the machine's limits: links and launches. */
static int sweep_limits(struct rank *r, int64_t begun)
{
    const struct job *job = r->job;
    int good = 1;

    for (int i = 0; i < job->ways.limits && good; i++) {
        const struct way *way = &job->ways.list[job->ways.count + i];
        const size_t bytes = way_is_launch(way) ? 0 : link_bytes(job, way);
        struct result result = {
            .way = way,
            .type = SYMWIN_U64,
            .op = SYMWIN_MAX,
            .bytes = bytes,
            .count = bytes / 8,
        };

        if (bytes == 0 && !way_is_launch(way))
            continue;
        show_progress(r, &result, begun);
        good = measure(r, &result);
        if (good && r->rank == 0 && result.supported) {
            good = record(r->job, &result);
            table_row(job, &result, NULL);
        }
    }
    return good;
}

int sweep(struct rank *r)
{
    const struct perf_options *o = &r->job->options;
    const int64_t begun = sw_now_ms();
    int good = 1, c;

    if (r->rank == 0)
        table_begin(r->job);
    for (int i = 0; (c = options_nth(o->collective_order, o->collectives, i)) >= 0 && good; i++)
        good = sweep_collective(r, (symwin_collective)c, begun);
    return good && sweep_limits(r, begun);
}
