/* Graphs of the storm: captured calls, replayed with new data among other calls. */
#include "storm.h"

enum { CALL_BYTES = 16 << 10 /* of a buffer */ };

int graph_has(const struct graph *graph, const struct comm *comm)
{
    for (int i = 0; graph->used && i < graph->count; i++)
        if (graph->calls[i].comm == comm->id)
            return 1;
    return 0;
}

void graph_end(struct rank *rank, struct graph *graph)
{
    if (graph->mine)
        DRIVER(rank, cuGraphExecDestroy, graph->exec);
    graph->used = graph->mine = 0;
    graph->memory.used = 0;
}

/* Work of the second stream waits for the first one's. */
static void follow(struct rank *rank, int second, int first)
{
    DRIVER(rank, cuEventRecord, rank->event, rank->streams[first]);
    DRIVER(rank, cuStreamWaitEvent, rank->streams[second], rank->event, 0);
}

/* If it is forked, the calls of each of two communicators are a branch. */
static int draw_calls(struct rank *rank, struct graph *graph, int grouped)
{
    struct comm *one = pick_comm(rank, 1, 1), *two = pick_comm(rank, 1, 1);
    struct comm *comms[2] = {one, two};
    const int forked = draw(&rank->plan, 3) == 0 && one != two;
    const int count = 1 + draw(&rank->plan, GRAPH_CALLS);
    int stream;

    graph->repeatable = draw(&rank->plan, 2);
    graph->count = 0;
    for (int i = 0; i < count && comms[0] != NULL; i++) {
        struct call *call = &graph->calls[i];
        struct comm *comm = forked ? comms[draw(&rank->plan, 2)] : pick_comm(rank, 1, 1);
        const int is_message = draw(&rank->plan, 5) == 0 && (grouped || comm->size > 1);

        draw_call(rank, call, comm,
                  is_message ? MESSAGE : (enum kind)draw(&rank->plan, COLLECTIVES), CALL_BYTES);
        if (is_message && !grouped && call->root == call->peer)
            call->peer = (call->root + 1) % comm->size;
        call->apart = graph->repeatable;
        call->in_stream = 0;
        if (!call_place(rank, call, &graph->memory))
            fail(rank, "no room for a captured call");
        stream = (int)((graph->calls[0].draws >> (unsigned)rank->rank) & 1);
        call->stream = forked && comm == comms[1] ? 1 - stream : stream;
        graph->mine |= call->me >= 0;
        graph->count++;
    }
    return forked;
}

static void capture(struct rank *rank, struct graph *graph)
{
    const int grouped = draw(&rank->plan, 2), mode = 1 + draw(&rank->plan, 2);
    const int forked = draw_calls(rank, graph, grouped);
    struct call *calls[GRAPH_CALLS];
    CUgraph captured;
    int first;

    if (graph->count == 0)
        return;
    graph->used = 1;
    graph->launched = 0;
    for (int i = 0; i < graph->count; i++)
        calls[i] = &graph->calls[i];
    first = (int)((calls[0]->draws >> (unsigned)rank->rank) & 1);
    if (graph->mine) {
        DRIVER(rank, cuStreamBeginCapture, rank->streams[first], (CUstreamCaptureMode)mode);
        if (forked)
            follow(rank, 1 - first, first);
    }
    if (grouped)
        make_group(rank, calls, graph->count);
    for (int i = 0; i < graph->count && !grouped; i++)
        call_make(rank, calls[i], ALL);
    if (!graph->mine)
        return;
    if (forked)
        follow(rank, first, 1 - first);
    DRIVER(rank, cuStreamEndCapture, rank->streams[first], &captured);
    DRIVER(rank, cuGraphInstantiateWithFlags, &graph->exec, captured, 0);
    DRIVER(rank, cuGraphDestroy, captured);
}

/* Streams are joined before and behind a replay: not every NCCL keeps the order of a graph and
 * calls in other streams. */
static void replay(struct rank *rank, struct graph *graph)
{
    const int times = graph->repeatable ? 1 + draw(&rank->plan, 3) : 1;
    const int stream = (int)((graph->calls[0].key >> (unsigned)rank->rank) & 1);

    if (graph->launched && (!graph->repeatable || draw(&rank->plan, 2)))
        flush(rank);
    if (!graph->launched) {
        for (int i = 0; i < graph->count; i++) {
            graph->calls[i].key = mix(graph->calls[i].key + 1);
            graph->calls[i].step = rank->step;
            call_fill(rank, &graph->calls[i]);
        }
    }
    graph->launched = 1;
    for (int i = 0; i < graph->count; i++)
        rank->planned += (unsigned)(times * graph->calls[i].ranks);
    if (!graph->mine)
        return;
    follow(rank, stream, 1 - stream);
    for (int i = 0; i < times; i++)
        DRIVER(rank, cuGraphLaunch, graph->exec, rank->streams[stream]);
    follow(rank, 1 - stream, stream);
    for (int i = 0; i < graph->count; i++)
        rank->replayed += graph->calls[i].me >= 0 ? (unsigned)times : 0;
}

void step_capture(struct rank *rank)
{
    struct graph *graph = &rank->graphs[draw(&rank->plan, MOST_GRAPHS)];

    if (!graph->used) {
        capture(rank, graph);
    } else if (draw(&rank->plan, 5) > 0) {
        replay(rank, graph);
    } else {
        flush(rank);
        graph_end(rank, graph);
    }
}
