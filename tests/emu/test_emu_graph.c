/* The emulated driver's graphs: capture with its refusals, instantiation, replay. */
#include "emu_stream.h"

/* ---- capture and replay ---------------------------------------------------------------------- */

static void test_status(CUstream s)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    cuuint64_t first = 0, second = 0;
    CUgraph graph = NULL;

    TAP_EQ("is capturing", sw_emu_cuStreamIsCapturing(s, &status), CUDA_SUCCESS);
    TAP_EQ("no", status, CU_STREAM_CAPTURE_STATUS_NONE);
    begin(s, CU_STREAM_CAPTURE_MODE_RELAXED);
    TAP_EQ("begin twice", sw_emu_cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED),
           CUDA_ERROR_ILLEGAL_STATE);
    (void)sw_emu_cuStreamIsCapturing(s, &status);
    TAP_EQ("yes", status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    TAP_EQ("capture info", sw_emu_cuStreamGetCaptureInfo_v2(s, &status, &first, NULL, NULL, NULL),
           CUDA_SUCCESS);
    TAP_EQ("end", sw_emu_cuStreamEndCapture(s, &graph), CUDA_SUCCESS);
    (void)sw_emu_cuGraphDestroy(graph);
    begin(s, CU_STREAM_CAPTURE_MODE_RELAXED);
    (void)sw_emu_cuStreamGetCaptureInfo_v2(s, &status, &second, &graph, NULL, NULL);
    tap_ok(first != 0 && second != 0 && first != second, "ids differ");
    tap_ok(graph != NULL, "the graph in the making");
    (void)sw_emu_cuStreamEndCapture(s, &graph);
    (void)sw_emu_cuGraphDestroy(graph);
    TAP_EQ("end without begin", sw_emu_cuStreamEndCapture(s, &graph), CUDA_ERROR_ILLEGAL_STATE);
    TAP_EQ("begin on the legacy stream",
           sw_emu_cuStreamBeginCapture(NULL, CU_STREAM_CAPTURE_MODE_RELAXED),
           CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    TAP_EQ("an unknown mode", sw_emu_cuStreamBeginCapture(s, (CUstreamCaptureMode)3),
           CUDA_ERROR_INVALID_VALUE);
}

static void test_replay(CUstream s)
{
    CUgraphNode nodes[8];
    CUgraph graph = NULL;
    CUgraphExec exec;
    uint32_t bumped = 0;
    size_t count = 8;
    int called = 0;

    begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    TAP_EQ("kernel", launch_bump(s, &bumped), CUDA_SUCCESS);
    TAP_EQ("memset", sw_emu_cuMemsetD32Async(word(LEFT), 5, 1, s), CUDA_SUCCESS);
    TAP_EQ("copy", sw_emu_cuMemcpyAsync(word(RIGHT), word(LEFT), 4, s), CUDA_SUCCESS);
    TAP_EQ("memory operation", sw_emu_cuStreamWriteValue32(s, word(GATE), 9, 0), CUDA_SUCCESS);
    TAP_EQ("host function", sw_emu_cuLaunchHostFunc(s, count_up, &called), CUDA_SUCCESS);
    TAP_EQ("end", sw_emu_cuStreamEndCapture(s, &graph), CUDA_SUCCESS);
    TAP_EQ("nothing ran", called + (int)bumped, 0);
    TAP_EQ("nodes", sw_emu_cuGraphGetNodes(graph, NULL, &count), CUDA_SUCCESS);
    TAP_EQ("how many", count, 5);
    count = 8;
    (void)sw_emu_cuGraphGetNodes(graph, nodes, &count);
    tap_ok(count == 5 && nodes[4] != NULL && nodes[5] == NULL, "which");
    exec = instantiate(graph);
    TAP_EQ("destroy the graph", sw_emu_cuGraphDestroy(graph), CUDA_SUCCESS);
    TAP_EQ("twice", sw_emu_cuGraphDestroy(graph), CUDA_ERROR_INVALID_VALUE);
    for (int i = 0; i < 100; i++)
        (void)sw_emu_cuGraphLaunch(exec, s);
    TAP_EQ("destroy while it runs", sw_emu_cuGraphExecDestroy(exec), CUDA_SUCCESS);
    TAP_EQ("launch after destroy", sw_emu_cuGraphLaunch(exec, s), CUDA_ERROR_INVALID_VALUE);
    TAP_EQ("synchronize", sw_emu_cuStreamSynchronize(s), CUDA_SUCCESS);
    tap_ok(called == 100 && bumped == 100, "100 launches ran: %d, %u", called, bumped);
    tap_ok(host_words[RIGHT] == 5 && host_words[GATE] == 9, "in order");
}

/* Launches that may begin early, captured. The kernel's ++ is not atomic, so launches must not
 * overlap in a replay. */
static void test_early_launches(CUstream s)
{
    CUgraph graph = NULL;
    CUgraphExec exec;
    uint32_t bumped = 0;
    size_t count = 0;

    begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    TAP_EQ("a kernel", launch_bump(s, &bumped), CUDA_SUCCESS);
    TAP_EQ("one that may begin early", launch_bump_early(s, &bumped), CUDA_SUCCESS);
    TAP_EQ("and another", launch_bump_early(s, &bumped), CUDA_SUCCESS);
    TAP_EQ("no configuration", sw_emu_cuLaunchKernelEx(NULL, bump_function, NULL, NULL),
           CUDA_ERROR_INVALID_VALUE);
    TAP_EQ("end", sw_emu_cuStreamEndCapture(s, &graph), CUDA_SUCCESS);
    (void)sw_emu_cuGraphGetNodes(graph, NULL, &count);
    TAP_EQ("a node each", count, 3);
    exec = instantiate(graph);
    for (int i = 0; i < 20; i++)
        (void)sw_emu_cuGraphLaunch(exec, s);
    TAP_EQ("synchronize", sw_emu_cuStreamSynchronize(s), CUDA_SUCCESS);
    TAP_EQ("each ran in its turn", bumped, 60);
    (void)sw_emu_cuGraphExecDestroy(exec);
    (void)sw_emu_cuGraphDestroy(graph);
}

/* A graph launched in two streams does not overlap itself: the kernel's ++ is not atomic. */
static void test_same_graph_in_two_streams(CUstream s)
{
    CUstream t = stream_new(CU_STREAM_NON_BLOCKING);
    CUgraph graph = NULL;
    CUgraphExec exec;
    uint32_t bumped = 0;

    begin(s, CU_STREAM_CAPTURE_MODE_RELAXED);
    for (int i = 0; i < 5; i++)
        (void)launch_bump(s, &bumped);
    (void)sw_emu_cuStreamEndCapture(s, &graph);
    exec = instantiate(graph);
    for (int i = 0; i < 40; i++)
        (void)sw_emu_cuGraphLaunch(exec, i % 2 == 0 ? s : t);
    (void)sw_emu_cuStreamSynchronize(s);
    (void)sw_emu_cuStreamSynchronize(t);
    TAP_EQ("launches of one graph are ordered", bumped, 200);
    (void)sw_emu_cuGraphExecDestroy(exec);
    (void)sw_emu_cuGraphDestroy(graph);
    (void)sw_emu_cuStreamDestroy(t);
}

/* Two branches, each of which waits for the other. */
static void test_branches(CUstream s)
{
    CUstream t = stream_new(CU_STREAM_NON_BLOCKING);
    CUevent fork = event_new(), join = event_new();
    CUgraph graph = NULL;
    CUgraphExec exec;
    int called = 0;

    begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    (void)sw_emu_cuMemsetD8Async(word(LEFT), 0, 8, s);
    TAP_EQ("fork: record", sw_emu_cuEventRecord(fork, s), CUDA_SUCCESS);
    TAP_EQ("fork: wait", sw_emu_cuStreamWaitEvent(t, fork, 0), CUDA_SUCCESS);
    (void)sw_emu_cuStreamWriteValue32(s, word(LEFT), 1, 0);
    (void)sw_emu_cuStreamWaitValue32(s, word(RIGHT), 1, CU_STREAM_WAIT_VALUE_EQ);
    (void)sw_emu_cuStreamWaitValue32(t, word(LEFT), 1, CU_STREAM_WAIT_VALUE_EQ);
    (void)sw_emu_cuStreamWriteValue32(t, word(RIGHT), 1, 0);
    TAP_EQ("join: record", sw_emu_cuEventRecord(join, t), CUDA_SUCCESS);
    TAP_EQ("join: wait", sw_emu_cuStreamWaitEvent(s, join, 0), CUDA_SUCCESS);
    (void)sw_emu_cuLaunchHostFunc(s, count_up, &called);
    TAP_EQ("end", sw_emu_cuStreamEndCapture(s, &graph), CUDA_SUCCESS);
    exec = instantiate(graph);
    for (int i = 0; i < 20; i++)
        (void)sw_emu_cuGraphLaunch(exec, s);
    TAP_EQ("branches wait for each other", sw_emu_cuStreamSynchronize(s), CUDA_SUCCESS);
    TAP_EQ("and join", called, 20);
    TAP_EQ("query an event of a capture", sw_emu_cuEventQuery(join), CUDA_ERROR_CAPTURED_EVENT);
    TAP_EQ("wait for it outside", sw_emu_cuStreamWaitEvent(t, join, 0), CUDA_ERROR_CAPTURED_EVENT);
    (void)sw_emu_cuGraphExecDestroy(exec);
    (void)sw_emu_cuGraphDestroy(graph);
    (void)sw_emu_cuEventDestroy(fork);
    (void)sw_emu_cuEventDestroy(join);
    (void)sw_emu_cuStreamDestroy(t);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void test_crossing(CUstream s)
{
    CUstream t = stream_new(CU_STREAM_NON_BLOCKING);
    CUevent outside = event_new(), inside = event_new();
    int called = 0;

    begin(s, CU_STREAM_CAPTURE_MODE_RELAXED);
    (void)sw_emu_cuEventRecord(inside, s);
    (void)sw_emu_cuStreamWaitEvent(t, inside, 0);
    (void)sw_emu_cuLaunchHostFunc(t, count_up, &called);
    end_fails("a forked stream that was not joined", s, CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    TAP_EQ("the forked stream is free again", sw_emu_cuStreamQuery(t), CUDA_SUCCESS);

    (void)sw_emu_cuEventRecord(outside, t);
    begin(s, CU_STREAM_CAPTURE_MODE_RELAXED);
    TAP_EQ("wait for an event from outside", sw_emu_cuStreamWaitEvent(s, outside, 0),
           CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    TAP_EQ("then nothing goes in", sw_emu_cuLaunchHostFunc(s, count_up, &called),
           CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    end_fails("and it ends invalid", s, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

    begin(s, CU_STREAM_CAPTURE_MODE_RELAXED);
    begin(t, CU_STREAM_CAPTURE_MODE_RELAXED);
    (void)sw_emu_cuEventRecord(inside, t);
    TAP_EQ("wait for another capture", sw_emu_cuStreamWaitEvent(s, inside, 0),
           CUDA_ERROR_STREAM_CAPTURE_MERGE);
    end_fails("ends one", s, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    end_fails("and the other", t, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

    begin(s, CU_STREAM_CAPTURE_MODE_RELAXED);
    (void)sw_emu_cuEventRecord(inside, s);
    (void)sw_emu_cuStreamWaitEvent(t, inside, 0);
    end_fails("end on the stream that joined", t, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    TAP_EQ("synchronize an event of it", sw_emu_cuEventSynchronize(inside),
           CUDA_ERROR_CAPTURED_EVENT);
    end_fails("invalidates it", s, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    TAP_EQ("nothing ran", called, 0);
    (void)sw_emu_cuEventDestroy(outside);
    (void)sw_emu_cuEventDestroy(inside);
    (void)sw_emu_cuStreamDestroy(t);
}

static void test_unsafe_calls(CUstream s)
{
    CUstream blocking = stream_new(CU_STREAM_DEFAULT), gone;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUstreamCaptureStatus status;
    CUevent e = event_new();
    CUgraphExec exec = NULL;
    CUgraph graph = NULL;
    unsigned long long id;
    uint32_t x = 0;

    begin(s, CU_STREAM_CAPTURE_MODE_RELAXED);
    TAP_EQ("synchronize", sw_emu_cuStreamSynchronize(s), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    (void)sw_emu_cuStreamIsCapturing(s, &status);
    TAP_EQ("invalidates", status, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    end_fails("end", s, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    begin(s, CU_STREAM_CAPTURE_MODE_RELAXED);
    TAP_EQ("query", sw_emu_cuStreamQuery(s), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    end_fails("end", s, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    begin(s, CU_STREAM_CAPTURE_MODE_RELAXED);
    TAP_EQ("its id", sw_emu_cuStreamGetId(s, &id), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    end_fails("end", s, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

    begin(blocking, CU_STREAM_CAPTURE_MODE_RELAXED);
    TAP_EQ("end", sw_emu_cuStreamEndCapture(blocking, &graph), CUDA_SUCCESS);
    begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    TAP_EQ("instantiate, global", sw_emu_cuGraphInstantiateWithFlags(&exec, graph, 0),
           CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    (void)sw_emu_cuGraphDestroy(graph);
    end_fails("end", s, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    TAP_EQ("query any event, global", sw_emu_cuEventQuery(e),
           CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    end_fails("end", s, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    begin(s, CU_STREAM_CAPTURE_MODE_RELAXED);
    TAP_EQ("query any event, relaxed", sw_emu_cuEventQuery(e), CUDA_SUCCESS);
    TAP_EQ("synchronous copy, relaxed, non-blocking stream",
           sw_emu_cuMemcpyDtoH(&x, word(COUNT), 4), CUDA_SUCCESS);
    TAP_EQ("end", sw_emu_cuStreamEndCapture(s, &graph), CUDA_SUCCESS);
    (void)sw_emu_cuGraphDestroy(graph);

    TAP_EQ("exchange the thread's mode", sw_emu_cuThreadExchangeStreamCaptureMode(&mode),
           CUDA_SUCCESS);
    TAP_EQ("it was global", mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
    begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    TAP_EQ("a relaxed thread may", sw_emu_cuEventQuery(e), CUDA_SUCCESS);
    (void)sw_emu_cuStreamEndCapture(s, &graph);
    (void)sw_emu_cuGraphDestroy(graph);
    (void)sw_emu_cuThreadExchangeStreamCaptureMode(&mode);
    mode = (CUstreamCaptureMode)7;
    TAP_EQ("an unknown mode", sw_emu_cuThreadExchangeStreamCaptureMode(&mode),
           CUDA_ERROR_INVALID_VALUE);

    begin(blocking, CU_STREAM_CAPTURE_MODE_RELAXED);
    TAP_EQ("the legacy stream during a blocking one's capture",
           sw_emu_cuMemsetD8Async(word(COUNT), 0, 4, NULL), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    end_fails("end", blocking, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

    gone = stream_new(CU_STREAM_DEFAULT);
    begin(gone, CU_STREAM_CAPTURE_MODE_GLOBAL);
    TAP_EQ("destroy while capturing", sw_emu_cuStreamDestroy(gone), CUDA_SUCCESS);
    TAP_EQ("leaves no capture", sw_emu_cuEventQuery(e), CUDA_SUCCESS);
    (void)sw_emu_cuEventDestroy(e);
    (void)sw_emu_cuStreamDestroy(blocking);
}

struct other_thread {
    CUstream stream;
    CUevent event;
    CUresult query, end;
};

static void *in_other_thread(void *arg)
{
    struct other_thread *o = arg;
    CUgraph graph;

    use_device(0);
    o->query = sw_emu_cuEventQuery(o->event);
    o->end = sw_emu_cuStreamEndCapture(o->stream, &graph);
    if (o->end == CUDA_SUCCESS)
        (void)sw_emu_cuGraphDestroy(graph);
    (void)sw_emu_cuDevicePrimaryCtxRelease(0);
    return NULL;
}

static void test_other_threads(CUstream s)
{
    static const struct {
        const char *name;
        CUstreamCaptureMode mode;
        CUresult query, end;
    } cases[] = {
        {"global", CU_STREAM_CAPTURE_MODE_GLOBAL, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
         CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD},
        {"thread-local", CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CUDA_SUCCESS,
         CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD},
        {"relaxed", CU_STREAM_CAPTURE_MODE_RELAXED, CUDA_SUCCESS, CUDA_SUCCESS},
    };
    CUevent e = event_new();

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct other_thread o = {s, e, CUDA_SUCCESS, CUDA_SUCCESS};
        CUgraph graph = NULL;
        pthread_t thread;

        begin(s, cases[i].mode);
        pthread_create(&thread, NULL, in_other_thread, &o);
        pthread_join(thread, NULL);
        tap_ok(o.query == cases[i].query, "%s: an unsafe call of another thread", cases[i].name);
        tap_ok(o.end == cases[i].end, "%s: end in another thread", cases[i].name);
        if (o.end != CUDA_SUCCESS) {
            TAP_EQ("end in the right one", sw_emu_cuStreamEndCapture(s, &graph),
                   o.query == CUDA_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
            if (graph != NULL)
                (void)sw_emu_cuGraphDestroy(graph);
        }
    }
    (void)sw_emu_cuEventDestroy(e);
}

static void test_arguments(CUstream s)
{
    CUgraphExec exec = NULL;
    CUgraph graph = NULL;
    CUcontext context = NULL;
    size_t count;

    begin(s, CU_STREAM_CAPTURE_MODE_RELAXED);
    TAP_EQ("end with NULL", sw_emu_cuStreamEndCapture(s, NULL), CUDA_ERROR_INVALID_VALUE);
    TAP_EQ("end", sw_emu_cuStreamEndCapture(s, &graph), CUDA_SUCCESS);
    TAP_EQ("instantiate with unknown flags",
           sw_emu_cuGraphInstantiateWithFlags(&exec, graph, 1u << 20), CUDA_ERROR_INVALID_VALUE);
    TAP_EQ("instantiate no graph", sw_emu_cuGraphInstantiateWithFlags(&exec, NULL, 0),
           CUDA_ERROR_INVALID_VALUE);
    (void)sw_emu_cuCtxPopCurrent(&context);
    TAP_EQ("instantiate without a context", sw_emu_cuGraphInstantiateWithFlags(&exec, graph, 0),
           CUDA_ERROR_INVALID_CONTEXT);
    (void)sw_emu_cuCtxPushCurrent(context);
    exec = instantiate(graph);
    TAP_EQ("upload", sw_emu_cuGraphUpload(exec, s), CUDA_SUCCESS);
    TAP_EQ("upload no graph", sw_emu_cuGraphUpload(NULL, s), CUDA_ERROR_INVALID_VALUE);
    TAP_EQ("launch an empty graph", sw_emu_cuGraphLaunch(exec, s), CUDA_SUCCESS);
    begin(s, CU_STREAM_CAPTURE_MODE_RELAXED);
    TAP_EQ("upload in a capture", sw_emu_cuGraphUpload(exec, s),
           CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    TAP_EQ("a graph within a graph", sw_emu_cuGraphLaunch(exec, s),
           CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    end_fails("end", s, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    TAP_EQ("launch no graph", sw_emu_cuGraphLaunch(NULL, s), CUDA_ERROR_INVALID_VALUE);
    TAP_EQ("nodes without a count", sw_emu_cuGraphGetNodes(graph, NULL, NULL),
           CUDA_ERROR_INVALID_VALUE);
    TAP_EQ("nodes of no graph", sw_emu_cuGraphGetNodes(NULL, NULL, &count),
           CUDA_ERROR_INVALID_VALUE);
    (void)sw_emu_cuGraphExecDestroy(exec);
    TAP_EQ("destroy an exec twice", sw_emu_cuGraphExecDestroy(exec), CUDA_ERROR_INVALID_VALUE);
    (void)sw_emu_cuGraphDestroy(graph);
}

/* ---- user objects ---------------------------------------------------------------------------- */

static void test_user_objects(CUstream s)
{
    CUgraphExec exec = NULL;
    CUgraph graph = NULL, captured = NULL;
    CUuserObject object = NULL;
    CUstreamCaptureStatus status;
    int gone = 0;

    TAP_EQ("no callback", sw_emu_cuUserObjectCreate(&object, &gone, NULL, 1, 1),
           CUDA_ERROR_INVALID_VALUE);
    TAP_EQ("no references", sw_emu_cuUserObjectCreate(&object, &gone, count_up, 0, 1),
           CUDA_ERROR_INVALID_VALUE);
    TAP_EQ("no flag", sw_emu_cuUserObjectCreate(&object, &gone, count_up, 1, 0),
           CUDA_ERROR_INVALID_VALUE);
    TAP_EQ("a user object", sw_emu_cuUserObjectCreate(&object, &gone, count_up, 2, 1),
           CUDA_SUCCESS);
    begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    TAP_EQ("capture info",
           sw_emu_cuStreamGetCaptureInfo_v2(s, &status, NULL, &captured, NULL, NULL), CUDA_SUCCESS);
    TAP_EQ("retained by what is captured",
           sw_emu_cuGraphRetainUserObject(captured, object, 1, CU_GRAPH_USER_OBJECT_MOVE),
           CUDA_SUCCESS);
    TAP_EQ("not by a graph that is none",
           sw_emu_cuGraphRetainUserObject((CUgraph)(void *)&gone, object, 1, 0),
           CUDA_ERROR_INVALID_VALUE);
    TAP_EQ("a launch", launch_bump(s, &host_words[COUNT]), CUDA_SUCCESS);
    TAP_EQ("end capture", sw_emu_cuStreamEndCapture(s, &graph), CUDA_SUCCESS);
    TAP_EQ("release of the other reference", sw_emu_cuUserObjectRelease(object, 1), CUDA_SUCCESS);
    TAP_EQ("the graph keeps it", gone, 0);
    exec = instantiate(graph);
    TAP_EQ("destroy graph", sw_emu_cuGraphDestroy(graph), CUDA_SUCCESS);
    TAP_EQ("what was instantiated keeps it", gone, 0);
    TAP_EQ("destroy exec", sw_emu_cuGraphExecDestroy(exec), CUDA_SUCCESS);
    TAP_EQ("then it goes, once", gone, 1);
    TAP_EQ("release of what is gone", sw_emu_cuUserObjectRelease(object, 1),
           CUDA_ERROR_INVALID_VALUE);
    TAP_EQ("another one", sw_emu_cuUserObjectCreate(&object, &gone, count_up, 1, 1), CUDA_SUCCESS);
    begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    (void)sw_emu_cuStreamGetCaptureInfo_v2(s, &status, NULL, &captured, NULL, NULL);
    TAP_EQ("retained without a move", sw_emu_cuGraphRetainUserObject(captured, object, 1, 0),
           CUDA_SUCCESS);
    TAP_EQ("end capture", sw_emu_cuStreamEndCapture(s, &graph), CUDA_SUCCESS);
    TAP_EQ("destroy graph", sw_emu_cuGraphDestroy(graph), CUDA_SUCCESS);
    TAP_EQ("the caller's reference is its own", gone, 1);
    TAP_EQ("release", sw_emu_cuUserObjectRelease(object, 1), CUDA_SUCCESS);
    TAP_EQ("then it goes", gone, 2);
}

static void run(CUstream s)
{
    test_status(s);
    test_replay(s);
    test_early_launches(s);
    test_same_graph_in_two_streams(s);
    test_branches(s);
    test_crossing(s);
    test_unsafe_calls(s);
    test_other_threads(s);
    test_arguments(s);
    test_user_objects(s);
}

int main(void)
{
    return graph_tests(run);
}
