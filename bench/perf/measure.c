/* Measures one way at one size: calls and checks once, warms up, times, and checks the results of
 * the timed calls.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common.h"
#include "perf.h"
#include "src/rails/rails.h"

enum { HOST_CALLS = 20 };

/* A barrier's check: elements, and how late one rank comes: longer than filling them takes. */
enum { BARRIER_COUNT = 16, BARRIER_LATE_NS = 1000000, BARRIER_LATE_EMULATED_NS = 100000000 };

/* A rank's state of a measurement. */
struct plan {
    struct result *result;
    struct pair *pairs;
    struct perf_data data;
    struct layout layout;
    int rotate; /* pairs of buffers in use */
    int calls;  /* calls that queue_calls() makes */
    int unsupported;
    int refill;      /* spoil the outputs before the last repetition, which is then checked */
    double *host_us; /* where queue_calls() writes the time of each launch, or NULL */
    CUgraphExec graph;
};

/* ---- queueing ---- */

static int group_begin(struct rank *r, const struct plan *plan)
{
    return plan->result->way->kind == WAY_NCCL ? rival_group_begin(r) : ok(symwin_group_begin());
}

static int group_end(struct rank *r, const struct plan *plan)
{
    return plan->result->way->kind == WAY_NCCL ? rival_group_end(r) : ok(symwin_group_end());
}

/* Call `i` of `calls`; with --group it may begin or end a group. */
static int queue_call(struct rank *r, const struct plan *plan, int i)
{
    const int group = r->job->options.group;

    if (group > 1 && i % group == 0 && !group_begin(r, plan))
        return 0;
    if (!way_call(r, plan->result, &plan->pairs[i % plan->rotate])) {
        if (group > 1)
            (void)group_end(r, plan);
        return 0;
    }
    return group == 1 || (i % group != group - 1 && i != plan->calls - 1) || group_end(r, plan);
}

/* The host's time of a call, or of a group divided by its calls. */
static int queue_calls(struct rank *r, void *context)
{
    struct plan *plan = context;
    const int group = r->job->options.group;
    int good = 1;

    for (int first = 0; first < plan->calls && good; first += group) {
        const int end = first + group < plan->calls ? first + group : plan->calls;
        const double before = bench_now_us();
        double each;

        for (int i = first; i < end && good; i++)
            good = queue_call(r, plan, i);
        each = (bench_now_us() - before) / (end - first);
        for (int i = first; i < end && plan->host_us != NULL; i++)
            plan->host_us[i] = each;
    }
    return good;
}

static int queue_graph(struct rank *r, void *context)
{
    const struct plan *plan = context;

    return CUDA(cuGraphLaunch, (plan->graph, r->stream));
}

/* For tests: the last repetition makes no call. */
static int queue_nothing(struct rank *r, void *context)
{
    (void)r;
    (void)context;
    return 1;
}

/* In place, a rank's part of a gather or scatter is where the root has it in its buffer. */
static int needs_one_offset(const struct result *result)
{
    return result->in_place && result->way->kind == WAY_SYMWIN &&
           (int)result->collective != PERF_SENDRECV &&
           collective_of(result->collective)->algos[result->way->algo].one_offset;
}

static int first_call(struct rank *r, const struct result *result, const struct pair *pair)
{
    if (needs_one_offset(result))
        return fail(SYMWIN_UNSUPPORTED,
                    "%s needs each rank's part at one offset, which in place it is not",
                    result->way->name);
    return way_call(r, result, pair);
}

/* Makes a call on each pair. The first one tells whether the way supports the call. */
static int queue_first(struct rank *r, void *context)
{
    struct plan *plan = context;
    const struct result *result = plan->result;
    int good = 1;

    for (int i = 0; i < plan->rotate && good; i++) {
        good = first_call(r, result, &plan->pairs[i]);
        if (i == 0 && !good && failure() == SYMWIN_UNSUPPORTED &&
            (result->way->optional || collective_of(result->collective)->by_parts)) {
            plan->unsupported = 1;
            /* Ways between domains say the least where there is one. */
            if (r->rank == r->job->first &&
                (result->way->algo < SYMWIN_ALGO_RAILS || r->job->unsupported[0] == '\0'))
                snprintf(r->job->unsupported, sizeof r->job->unsupported, "%s",
                         symwin_last_error());
            return 1;
        }
    }
    return good;
}

/* ---- data ---- */

/* Fills the inputs, and fills the outputs with wrong values: in place, only what is not input. */
static int prepare(struct rank *r, const struct plan *plan)
{
    const struct result *result = plan->result;
    const struct layout *is = &plan->layout;
    const int spoils = !result->in_place || is->out > is->in || !is->sends;
    const struct perf_data data = layout_data(is, plan->data);
    int good = !collective_of(result->collective)->by_parts ||
               parts_prepare(r, result->collective, result->count);

    for (int i = 0; i < plan->rotate && result->count > 0 && good; i++) {
        if (spoils && is->receives)
            good = fill(r, &data, is->who, 1, is->out, result_out(r, result, &plan->pairs[i]));
        if (is->sends)
            good = good &&
                   fill(r, &plan->data, r->rank, 0, is->in, result_in(r, result, &plan->pairs[i]));
    }
    return good;
}

/* For tests: spoils the middle element of rank 0's result in the last pair. */
static int spoil(struct rank *r, const struct plan *plan)
{
    unsigned char *at = result_out(r, plan->result, &plan->pairs[plan->rotate - 1]) +
                        plan->layout.out / 2 * symwin_type_bytes(plan->result->type);
    unsigned char byte = 0;
    int good = ok(symwin_memcpy(r->device, &byte, at, 1, r->stream)) &&
               rank_synchronize(r, "spoiling a result");

    byte ^= 1;
    return good && ok(symwin_memcpy(r->device, at, &byte, 1, r->stream)) &&
           rank_synchronize(r, "spoiling a result");
}

static void complain(const struct rank *r, const struct result *result, uint64_t wrong,
                     const char *text)
{
    fprintf(stderr, "symwin-perf: rank %d: %s, %s %s, %zu bytes %s place: %llu wrong; %s\n",
            r->rank, result->way->name, result_type(result), result_op(result), result->bytes,
            result->in_place ? "in" : "out of", (unsigned long long)wrong, text);
}

/* NCCL multiplies by 1 / ranks before it adds, which is exact for powers of two only. A barrier's
 * check needs windows. */
static int checkable(const struct rank *r, const struct result *result)
{
    const int n = r->job->nranks;

    if (collective_of(result->collective)->no_data)
        return r->job->options.check && result->way->memory == MEMORY_WINDOW;
    return r->job->options.check &&
           (result->way->kind != WAY_NCCL || result->op != SYMWIN_AVG || (n & (n - 1)) == 0);
}

/* The rank whose memory this one reads, of its own domain; *at: its number there. */
static int next_rank(const struct rank *r, int *at)
{
    const struct sw_wide *wide = r->comm->wide;

    if (wide == NULL)
        return *at = (r->rank + 1) % r->job->nranks;
    *at = (wide->index + 1) % r->comm->inner->nranks;
    return sw_domain_rank(&wide->domains, wide->domain, *at);
}

/* Queues filling the output, late on one rank; the barrier; and reading the next rank's output. */
static int queue_barrier(struct rank *r, void *context)
{
    const struct plan *plan = context;
    const struct pair *pair = &plan->pairs[0];
    const int late = r->job->emulated ? BARRIER_LATE_EMULATED_NS : BARRIER_LATE_NS;
    void *from = NULL;
    int next;

    (void)next_rank(r, &next);
    if (r->rank == r->job->nranks - 1 && r->delay != NULL && !launch_delay(r, (uint64_t)late))
        return 0;
    return ok(symwin_window_peer_pointer(r->comm, pair->out_window, next, 0, &from)) &&
           fill(r, &plan->data, r->rank, 0, BARRIER_COUNT, pair->out) &&
           (r->job->idle || way_call(r, plan->result, pair)) &&
           ok(symwin_memcpy(r->device, pair->in, from,
                            BARRIER_COUNT * symwin_type_bytes((symwin_type)plan->data.type),
                            r->stream));
}

/* What the next rank wrote before the barrier must be there after it. */
static int check_barrier(struct rank *r, const struct plan *plan, uint64_t *wrong)
{
    const struct pair *pair = &plan->pairs[0];
    struct plan again = *plan;
    char text[128] = "";
    uint64_t found = 0;
    int at;
    const int next = next_rank(r, &at);
    int good = fill(r, &plan->data, r->rank, 1, BARRIER_COUNT, pair->out) &&
               rank_synchronize(r, "filling buffers");

    good = meet(r, good, NULL, 0) && ungated(r, queue_barrier, &again);
    good = good &&
           compare(r, &plan->data, next, BARRIER_COUNT, pair->in, &found, text, sizeof text);
    if (found > 0 && *wrong == 0)
        complain(r, plan->result, found, text);
    *wrong += found;
    return meet(r, good, NULL, 0);
}

/* Adds the number of this rank's wrong elements to *wrong. For links, other ranks store to this
 * rank's output, so all ranks synchronise before and after. */
static int check(struct rank *r, const struct plan *plan, uint64_t *wrong)
{
    const struct layout *is = &plan->layout;
    const struct perf_data data = layout_data(is, plan->data);
    int good = meet(r, 1, NULL, 0);

    if (!checkable(r, plan->result))
        return good;
    if (good && collective_of(plan->result->collective)->no_data)
        return check_barrier(r, plan, wrong);
    if (good && r->job->broken && r->rank == 0)
        good = spoil(r, plan);
    for (int i = 0; i < plan->rotate && is->receives && good; i++) {
        char text[128] = "";
        uint64_t found = 0;

        good = compare(r, &data, is->who, is->out, result_out(r, plan->result, &plan->pairs[i]),
                       &found, text, sizeof text);
        if (found > 0 && *wrong == 0)
            complain(r, plan->result, found, text);
        *wrong += found;
    }
    return meet(r, good, NULL, 0);
}

/* Synchronises first: a link's calls of other ranks may store to this rank's output after its own
 * calls have ended. */
static int prepare_and_wait(struct rank *r, const struct plan *plan)
{
    int good;

    if (!meet(r, 1, NULL, 0))
        return 0;
    good = prepare(r, plan);
    return meet(r, good && rank_synchronize(r, "filling buffers"), NULL, 0);
}

/* ---- timing ---- */

static void drop_graph(struct plan *plan)
{
    DROP(cuGraphExecDestroy, plan->graph);
    plan->graph = NULL;
}

/* Replaces the graph, and launches it once, which also uploads it. */
static int make_graph(struct rank *r, struct plan *plan)
{
    int good;

    drop_graph(plan);
    stage_begin(r, "capturing calls in a graph");
    good = captured(r, queue_calls, plan, &plan->graph);
    stage_end(r);
    return meet(r, good, NULL, 0) && ungated(r, queue_graph, plan);
}

/* Replaces each repetition's time by that of the slowest rank, on all ranks. */
static int take_slowest(struct rank *r, double *us, int count)
{
    uint64_t words[SW_BALLOT_VALUES];

    for (int done = 0; done < count; done += SW_BALLOT_VALUES) {
        const int n = count - done < SW_BALLOT_VALUES ? count - done : SW_BALLOT_VALUES;

        memcpy(words, us + done, (size_t)n * sizeof *us);
        if (!meet(r, 1, words, n))
            return 0;
        for (int rank = 0; rank < r->job->nranks; rank++)
            for (int i = 0; i < n; i++) {
                const uint64_t word = met(r, rank, i);
                double other;

                memcpy(&other, &word, sizeof other);
                us[done + i] = rank == 0 || other > us[done + i] ? other : us[done + i];
            }
    }
    return 1;
}

/* Sorts the values; of an even number the mean of the two in the middle. */
static double middle(double *values, int count)
{
    const double upper = median(values, count);

    return (upper + values[(count - 1) / 2]) / 2;
}

/* The smallest of the sorted values that `percent` % of them do not exceed. */
static double percentile(const double *values, int count, int percent)
{
    return values[(count * percent + 99) / 100 - 1];
}

/* Prepares the buffers for a repetition, before its gate. In place, each repetition starts with the
 * input, since sums of sums would soon be infinite. Before the last repetition, outputs are spoilt,
 * so that results of an earlier one cannot pass for its own. */
static int refill(struct rank *r, const struct plan *plan, int last)
{
    if (last && plan->refill)
        return prepare_and_wait(r, plan);
    return !plan->result->in_place || r->fill == NULL || prepare(r, plan);
}

/* Runs `count` repetitions of `queue`. us: the time of a call on the slowest rank, for each
 * repetition. */
static int repeat(struct rank *r, struct plan *plan, work_fn queue, int count, double *us)
{
    int good = 1;

    for (int i = 0; i < count && good; i++) {
        const int last = i + 1 == count;

        good = refill(r, plan, last);
        if (plan->host_us != NULL)
            plan->host_us = r->host_us + (size_t)i * (size_t)plan->calls;
        good = good && gated(r, last && r->job->idle ? queue_nothing : queue, plan, &us[i]);
        us[i] /= plan->calls;
    }
    return good && take_slowest(r, us, count);
}

/* Sorts the times and takes the percentiles. */
static void spread(struct result *result, double *us, int count)
{
    qsort(us, (size_t)count, sizeof *us, median_by_size);
    result->p50_us = percentile(us, count, 50);
    result->p99_us = percentile(us, count, 99);
    result->max_us = us[count - 1];
}

static int repetitions(struct rank *r, struct plan *plan, work_fn queue)
{
    struct result *result = plan->result;
    double us[PERF_MOST_REPETITIONS] = {0};
    const int good = repeat(r, plan, queue, result->repetitions, us);

    result->us = middle(us, result->repetitions);
    spread(result, us, result->repetitions);
    return good;
}

/* --percentiles: times calls that are each alone behind the gate, since a repetition's time is the
 * mean of its calls. Each time includes the cost of two events. */
static int single_calls(struct rank *r, struct plan *plan)
{
    const struct perf_options *o = &r->job->options;
    double us[PERF_MOST_REPETITIONS] = {0};

    plan->calls = 1;
    plan->refill = 0;
    if ((o->replays > 0 && !make_graph(r, plan)) ||
        !repeat(r, plan, o->replays > 0 ? queue_graph : queue_calls, o->percentiles, us))
        return 0;
    spread(plan->result, us, o->percentiles);
    return 1;
}

/* Limits the calls that are queued behind the gate, since a stream holds PERF_MOST_OPERATIONS
 * operations. The algorithm `copies` has four to each peer, and events, flags and sums. */
static int stream_calls(const struct rank *r, const struct result *result, int calls)
{
    const int operations = 4 * (r->job->nranks - 1) + 12;
    const int most = PERF_MOST_OPERATIONS / operations > 1 ? PERF_MOST_OPERATIONS / operations : 1;

    return result->launched.algo == SYMWIN_ALGO_COPIES && calls > most ? most : calls;
}

/* Times the launch of a call in a stream, on the host. After a graph, it takes an extra stream
 * repetition. The graph is destroyed first: NCCL launches differently and more slowly while a graph
 * has its calls. */
static int host_time(struct rank *r, struct plan *plan)
{
    const int calls = stream_calls(r, plan->result, plan->result->calls);
    int good = 1;
    int count = calls * plan->result->repetitions;
    double us;

    if (r->job->options.replays > 0) {
        drop_graph(plan);
        plan->calls = count = calls < HOST_CALLS ? calls : HOST_CALLS;
        plan->host_us = r->host_us;
        good = gated(r, queue_calls, plan, &us);
    }
    if (!good)
        return 0;
    us = middle(r->host_us, count);
    good = take_slowest(r, &us, 1);
    plan->result->host_us = us;
    return good;
}

static int timing(struct rank *r, struct plan *plan)
{
    const struct perf_options *o = &r->job->options;
    struct result *result = plan->result;
    int good;

    plan->calls = o->warmup;
    good = o->warmup == 0 || ungated(r, queue_calls, plan);
    plan->calls = result->calls;
    good = good && (o->replays == 0 || make_graph(r, plan));
    plan->refill = checkable(r, result);
    plan->host_us = o->replays > 0 ? NULL : r->host_us;
    good = good && repetitions(r, plan, o->replays > 0 ? queue_graph : queue_calls);
    plan->host_us = NULL;
    return good;
}

/* ---- entry points ---- */

/* Makes the first call, and finds out whether the way supports it. */
static int try(struct rank *r, struct plan *plan)
{
    int good = prepare_and_wait(r, plan) && ungated(r, queue_first, plan);
    const uint64_t unsupported = (uint64_t)plan->unsupported;

    good = good && meet(r, 1, &unsupported, 1);
    for (int i = 0; i < r->job->nranks && good; i++)
        if (met(r, i, 0) != unsupported)
            good = fail(SYMWIN_MISMATCH, "%s supports the call on some ranks only",
                        plan->result->way->name);
    plan->result->supported = !plan->unsupported;
    if (good && plan->result->supported &&
        (plan->result->way->kind == WAY_SYMWIN || plan->result->way->kind == WAY_OWN))
        good = way_query(r, plan->result, &plan->result->launched);
    return good;
}

/* Makes a call on each pair, launched like the timed ones: by the second launch of a graph, or in
 * the stream. */
static int call_again(struct rank *r, struct plan *plan)
{
    const work_fn queue = r->job->options.replays > 0 ? queue_graph : queue_calls;

    plan->calls = plan->rotate;
    return (queue != queue_graph || make_graph(r, plan)) && prepare_and_wait(r, plan) &&
           ungated(r, r->job->idle ? queue_nothing : queue, plan);
}

/* Checks the results of the last repetition. In place these are sums of sums, so the calls are made
 * once more. */
static int check_again(struct rank *r, struct plan *plan, uint64_t *wrong)
{
    const int calls = plan->calls;
    int good = 1;

    if (!checkable(r, plan->result))
        return 1;
    if (plan->rotate > plan->result->calls)
        plan->rotate = plan->result->calls;
    if (plan->result->in_place)
        good = call_again(r, plan);
    plan->calls = calls;
    return good && check(r, plan, wrong);
}

static struct plan plan_for(struct rank *r, struct result *result)
{
    const struct perf_options *o = &r->job->options;

    result->checked = checkable(r, result);
    return (struct plan){
        .result = result,
        .pairs = r->memory[result->way->memory],
        .data = {.nranks = r->job->nranks,
                 .type = (int32_t)result->type,
                 .op = (int32_t)result->op,
                 .seed = o->seed},
        .layout = result_layout(r, result),
        .rotate = o->rotate,
    };
}

/* Adds up the wrong elements of all ranks. */
static int add_wrong(struct rank *r, struct result *result, uint64_t wrong)
{
    const int good = meet(r, 1, &wrong, 1);

    for (int i = 0; i < r->job->nranks && good; i++)
        result->wrong += met(r, i, 0);
    return good;
}

int measure(struct rank *r, struct result *result)
{
    const struct perf_options *o = &r->job->options;
    struct plan plan = plan_for(r, result);
    uint64_t wrong = 0;
    int good;

    result->calls = options_calls(o, result->bytes, r->job->emulated);
    result->repetitions = o->replays > 0 ? o->replays : o->rounds;
    good = try(r, &plan);
    if (!good || !result->supported)
        return good;
    if (o->replays == 0)
        result->calls = stream_calls(r, result, result->calls);
    good = check(r, &plan, &wrong) && timing(r, &plan) && check_again(r, &plan, &wrong) &&
           (o->percentiles <= 0 || single_calls(r, &plan)) && host_time(r, &plan);
    drop_graph(&plan);
    return good && add_wrong(r, result, wrong);
}

int measure_right(struct rank *r, struct result *result)
{
    struct plan plan = plan_for(r, result);
    uint64_t wrong = 0;

    return try(r, &plan) && (!result->supported || check(r, &plan, &wrong)) &&
           add_wrong(r, result, wrong);
}

int measure_quickly(struct rank *r, struct result *result)
{
    struct plan plan = plan_for(r, result);
    int good;

    plan.calls = result->calls;
    good = make_graph(r, &plan) /* also warms up */ && repetitions(r, &plan, queue_graph);
    drop_graph(&plan);
    return good;
}
