/* The order in which sizes, types, operations and ways are measured. All ranks run the same loops;
 * rank 0 also prints and writes.
 */
#include <stdio.h>

#include "perf.h"

/* Index 0: out of place; 1: in place. */
enum { PLACEMENTS = 2 };

static void show_progress(struct rank *r, const struct result *result, int64_t begun)
{
    const struct job *job = r->job;

    if (r->rank != 0 || !job->options.progress || sw_now_ms() - begun < 2000)
        return;
    fprintf(stderr, "symwin-perf: %lld s: %zu bytes %s %s, %s%s\n",
            (long long)(sw_now_ms() - begun) / 1000, result->bytes, symwin_type_name(result->type),
            result_op(result), result->way->name, result->in_place ? ", in place" : "");
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
    struct result results[PLACEMENTS];
    int have[PLACEMENTS] = {0};
    int good = 1;

    for (int place = 0; place < PLACEMENTS && good; place++) {
        if ((job->options.placements & 1u << place) == 0)
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

static int sweep_sizes(struct rank *r, symwin_type type, symwin_op op, int64_t begun)
{
    const struct job *job = r->job;
    int good = 1;

    for (size_t bytes = job->options.begin; bytes > 0 && good;
         bytes = options_next_size(&job->options, bytes)) {
        struct reference references[PLACEMENTS] = {{0}};

        struct result model = result_of_size(job, type, bytes);

        model.op = op;
        for (int i = 0; i < job->ways.count && model.count > 0 && good; i++) {
            model.way = &job->ways.list[i];
            good = measure_way(r, model, references, begun);
        }
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
    const int reduces = sw_collectives[o->collective].reduces;
    const int64_t begun = sw_now_ms();
    int good = 1;

    if (r->rank == 0)
        table_head(r->job);
    for (int t = 0; options_nth(o->type_order, o->types, t) >= 0; t++)
        for (int p = 0;
             p < (reduces ? SW_OPS : 1) && options_nth(o->op_order, o->ops, p) >= 0 && good; p++)
            if (r->job->ways.count > 0)
                good = sweep_sizes(r, (symwin_type)options_nth(o->type_order, o->types, t),
                                   (symwin_op)options_nth(o->op_order, o->ops, p), begun);
    return good && sweep_limits(r, begun);
}
