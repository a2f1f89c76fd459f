/* Registered buffers where a call's two buffers differ in kind, or one rank's buffer differs from
 * another's, and calls that fail on one rank. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "emu/emu.h"
#include "src/window/register.h"
#include "user_memory.h"

static void begin_capture(const struct member *m)
{
    host_must_cuda(sw_drv.cuStreamBeginCapture(m->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                   "cuStreamBeginCapture");
}

static void drop_capture(const struct member *m)
{
    CUgraph graph = NULL;

    (void)sw_drv.cuStreamEndCapture(m->stream, &graph);
    if (graph != NULL)
        host_must_cuda(sw_drv.cuGraphDestroy(graph), "cuGraphDestroy");
}

/* A captured call on one connected buffer and one that is not registered, where captures do not
 * register. The second time, the first capture's references are gone. */
static void half_settled(struct harness_team *team, int rank, void *arg)
{
    struct member m;
    unsigned char *in, *out;
    int i;

    (void)arg;
    open_member(&m, team, rank, SYMWIN_COMM_NO_GRAPH_REGISTER, SHORT_MS);
    in = host_alloc(m.device, GRANULE);
    out = host_alloc(m.device, GRANULE);
    enter(&m, in, GRANULE);
    expect_sum(&m, "connected", in, in, 1);
    for (i = 0; i < 2; i++) {
        begin_capture(&m);
        host_expect("one buffer connected", reduce(&m, in, out), SYMWIN_OK, "");
        drop_capture(&m);
        begin_capture(&m);
        host_expect("both connected", reduce(&m, in, in), SYMWIN_OK, "");
        drop_capture(&m);
    }
    harness_barrier(team);
    close_member(&m);
    host_must(symwin_mem_free(in), "free");
    host_must(symwin_mem_free(out), "free");
}

/* The copy of the block count is still in progress at destroy. The communicator waits for it,
 * because the copy's source and target are freed. */
struct gate {
    symwin_comm *comm;
    /* `counts`: the block count still existed when the gate was passed */
    atomic_int is_open, counts;
};

static void pass(void *context)
{
    struct gate *gate = context;

    while (!atomic_load(&gate->is_open))
        host_pause_ms(1);
    atomic_store(&gate->counts, gate->comm->done_address != 0);
}

static void *open_soon(void *context)
{
    struct gate *gate = context;

    host_pause_ms(50);
    atomic_store(&gate->is_open, 1);
    return NULL;
}

static void copy_at_the_end(struct harness_team *team, int rank, void *arg)
{
    struct gate gate = {NULL, 0, 0};
    struct member m;
    unsigned char *own;
    symwin_registration *r;
    pthread_t thread;

    (void)arg;
    open_member(&m, team, rank, 0, SHORT_MS);
    own = host_alloc(m.device, GRANULE);
    r = enter(&m, own, GRANULE);
    expect_sum(&m, "connected", own, own, 1);
    leave(&m, r);
    r = enter(&m, own, GRANULE);
    expect_sum(&m, "connected anew, and the first is over", own, own, 1);
    leave(&m, r);
    harness_barrier(team);
    gate.comm = m.comm;
    TAP_EQ("there is a stream for the copy", m.comm->registrations->side != NULL, 1);
    host_must_cuda(sw_drv.cuLaunchHostFunc(m.comm->registrations->side, pass, &gate),
                   "cuLaunchHostFunc");
    harness_barrier(team);
    if (pthread_create(&thread, NULL, open_soon, &gate) != 0)
        abort();
    close_member(&m);
    tap_ok(atomic_load(&gate.counts), "the count stays until it was copied");
    pthread_join(thread, NULL);
    host_must(symwin_mem_free(own), "free");
}

/* A rank aborts at the n-th mapping of a call that connects two buffers: before the first is
 * connected, or between the two. */
static CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle,
                       unsigned long long);
static _Thread_local symwin_comm *aborts; /* to abort from this thread, after `maps` mappings */
static _Thread_local int maps;

static CUresult map_and_abort(CUdeviceptr at, size_t bytes, size_t offset,
                              CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    if (aborts != NULL && --maps == 0)
        host_must(symwin_comm_abort(aborts), "symwin_comm_abort");
    return map(at, bytes, offset, handle, flags);
}

static void aborted_between(struct harness_team *team, int rank, void *arg)
{
    symwin_registration *r[2];
    unsigned char *own[2];
    struct member m;
    int b;

    open_member(&m, team, rank, 0, SHORT_MS);
    for (b = 0; b < 2; b++) {
        host_must(symwin_mem_alloc(m.device, GRANULE, SYMWIN_MEM_OWN, (void **)&own[b]), "alloc");
        r[b] = enter(&m, own[b], GRANULE);
    }
    harness_barrier(team);
    aborts = rank == 1 ? m.comm : NULL;
    maps = *(int *)arg;
    (void)reduce(&m, own[0], own[1]); /* fails, unless it makes fewer mappings */
    aborts = NULL;
    (void)symwin_stream_synchronize(m.device, m.stream);
    for (b = 0; b < 2; b++) {
        leave(&m, r[b]);
        host_expect("what is deregistered is free", symwin_mem_free(own[b]), SYMWIN_OK, "");
    }
    harness_barrier(team);
    close_member(&m);
}

static CUresult (*create)(CUuserObject *, void *, CUhostFn, unsigned, unsigned);
static _Thread_local int fails; /* in this thread */

static CUresult create_or_fail(CUuserObject *object, void *ptr, CUhostFn destroy, unsigned count,
                               unsigned flags)
{
    return fails ? CUDA_ERROR_OUT_OF_MEMORY : create(object, ptr, destroy, count, flags);
}

/* One rank's graph cannot hold references. Then no rank may use what an earlier graph holds. */
static void not_held(struct harness_team *team, int rank, void *arg)
{
    CUgraph first = NULL, second = NULL;
    CUgraphExec exec;
    struct member m;
    unsigned char *in;

    (void)arg;
    open_member(&m, team, rank, 0, SHORT_MS);
    in = host_alloc(m.device, GRANULE);
    exec = capture(&m, in, in, &first);
    harness_barrier(team);
    begin_capture(&m);
    fails = rank == 1;
    host_expect("captured without", reduce(&m, in, in), SYMWIN_OK, "");
    fails = 0;
    host_must_cuda(sw_drv.cuStreamEndCapture(m.stream, &second), "cuStreamEndCapture");
    harness_barrier(team);
    host_must_cuda(sw_drv.cuGraphExecDestroy(exec), "cuGraphExecDestroy");
    host_must_cuda(sw_drv.cuGraphDestroy(first), "cuGraphDestroy");
    host_expect("the second graph uses none of it", symwin_mem_free(in), SYMWIN_OK, "");
    meet(&m);
    TAP_EQ("nothing is mapped any more", allocations(&m), 0);
    host_must_cuda(sw_drv.cuGraphDestroy(second), "cuGraphDestroy");
    close_member(&m);
}

/* Rank 0 has both buffers in one allocation, the other ranks in two, at the same offsets. The
 * connection of `out` must reuse nothing of `in`'s: that would be possible on rank 0 only. */
static void two_layouts(struct harness_team *team, int rank, void *arg)
{
    static const char *const order[] = {"in", "in, out", "in", "in, out", "in"};
    const int first = *(int *)arg; /* the first of these calls to make */
    unsigned char *own[2], *in, *out;
    uint64_t sequence = 0;
    struct member m;
    int i;

    open_member(&m, team, rank, 0, SHORT_MS);
    for (i = 0; i < 2; i++)
        host_must(symwin_mem_alloc(m.device, GRANULE, SYMWIN_MEM_OWN, (void **)&own[i]), "alloc");
    in = own[0];
    out = own[rank > 0] + 4 * BYTES;
    enter(&m, own[0], (size_t)(rank == 0 ? 8 : 1) * BYTES);
    enter(&m, own[1], 8 * BYTES);
    for (i = first; i < 5; i++) {
        put(&m, in, (float)i);
        sequence = m.comm->sequence;
        host_must(reduce_in_windows(&m, in, i % 2 == 0 ? in : out), "reduce");
        tap_ok(is_sum(&m, i % 2 == 0 ? in : out, (float)i), "two layouts, %s: the sum", order[i]);
        tap_ok(i < 2 || m.comm->sequence == sequence, "%s: settled", order[i]);
        harness_barrier(team);
    }
    close_member(&m);
    for (i = 0; i < 2; i++)
        host_must(symwin_mem_free(own[i]), "free");
}

/* A capture that one rank has invalidated still counts as a capture. The call fails on all ranks,
 * and the next one works. */
static void invalid_capture(struct harness_team *team, int rank, void *arg)
{
    symwin_status status;
    unsigned char *in;
    struct member m;

    (void)arg;
    open_member(&m, team, rank, 0, SHORT_MS);
    in = host_alloc(m.device, GRANULE);
    begin_capture(&m);
    if (rank == 1)
        (void)sw_drv.cuStreamSynchronize(m.stream);
    status = reduce(&m, in, in);
    host_expect("captured", status, SYMWIN_INVALID, "rank 1: the capture of the stream is invalid");
    drop_capture(&m);
    harness_barrier(team);
    expect_sum(&m, "the next call", in, in, 1);
    harness_barrier(team);
    close_member(&m);
    host_must(symwin_mem_free(in), "free");
}

/* A buffer is refused because the offsets differ, where one rank has registered more than the
 * others. That refusal says nothing about bytes at other offsets, which each rank would count from
 * another base. */
static void refused_elsewhere(struct harness_team *team, int rank, void *arg)
{
    unsigned char *own, *at;
    struct member m;
    int i;

    (void)arg;
    open_member(&m, team, rank, 0, SHORT_MS);
    own = host_alloc(m.device, 8 * BYTES);
    enter(&m, own, (size_t)(rank == 0 ? 8 : 6) * BYTES);
    at = own + (rank == 0 ? 2 : 1) * BYTES;
    for (i = 0; i < 2; i++)
        expect_sum(&m, "at other offsets", at, at, (float)i);
    harness_barrier(team);
    expect_sum(&m, "at the same one", own, own, 2);
    tap_ok(is_connected(&m, own, own), "that connects");
    harness_barrier(team);
    close_member(&m);
    host_must(symwin_mem_free(own), "free");
}

/* A call fails on rank 1 before the ranks agree. If rank 1 knows that the others enter the
 * agreement, it reports the failure there: all ranks get it, and none waits. */
enum { ASIDE = 2 }; /* bytes beyond a multiple of the type's size */

static const struct failing_case {
    const char *name;
    enum { CAPTURED, REGISTERED, IN_WINDOWS } what;
    enum {
        ONE_NULL,
        BOTH_NULL,
        ON_THE_HOST,
        MISALIGNED,
        OVERLAP,
        PAST_THE_END,
        NO_CAPTURE_INFO,
        NO_POINTER_INFO
    } how;
    int alone; /* no other rank gets the failure */
    symwin_status status;
    const char *words;
} failings[] = {
    {"captured, NULL", CAPTURED, ONE_NULL, 0, SYMWIN_INVALID, "rank 1: in is NULL"},
    {"captured, the host's memory", CAPTURED, ON_THE_HOST, 0, SYMWIN_INVALID,
     "rank 1: in (0x|not device memory"},
    {"captured, misaligned", CAPTURED, MISALIGNED, 0, SYMWIN_INVALID, "rank 1: in is 0x|aligned"},
    {"captured, overlapping", CAPTURED, OVERLAP, 0, SYMWIN_INVALID, "rank 1: in|overlap in part"},
    {"captured, past the end", CAPTURED, PAST_THE_END, 0, SYMWIN_INVALID,
     "rank 1: rank 1's|at in (0x|pass the end of its allocation"},
    {"captured, a driver that fails", CAPTURED, NO_POINTER_INFO, 0, SYMWIN_DRIVER,
     "rank 1: cuPointerGetAttribute"},
    {"registered, misaligned", REGISTERED, MISALIGNED, 0, SYMWIN_INVALID,
     "rank 1: in is 0x|aligned"},
    {"registered, overlapping", REGISTERED, OVERLAP, 0, SYMWIN_INVALID,
     "rank 1: in|overlap in part"},
    {"registered, a driver that fails", REGISTERED, NO_CAPTURE_INFO, 0, SYMWIN_DRIVER,
     "rank 1: cuStreamGetCaptureInfo"},
    {"captured, both NULL", CAPTURED, BOTH_NULL, 1, SYMWIN_INVALID, "in is NULL"},
    {"in windows, NULL", IN_WINDOWS, ONE_NULL, 1, SYMWIN_INVALID, "in is NULL"},
    {"in windows, misaligned", IN_WINDOWS, MISALIGNED, 1, SYMWIN_INVALID, "aligned"},
};

static CUresult (*capture_info)(CUstream, CUstreamCaptureStatus *, cuuint64_t *, CUgraph *,
                                const CUgraphNode **, size_t *);
static CUresult (*pointer_info)(void *, CUpointer_attribute, CUdeviceptr);
static CUresult (*pointer_infos)(unsigned, CUpointer_attribute *, void **, CUdeviceptr);
static _Thread_local int no_capture_info, no_pointer_info;

static CUresult capture_info_or_fail(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                                     CUgraph *graph, const CUgraphNode **nodes, size_t *count)
{
    return no_capture_info ? CUDA_ERROR_UNKNOWN
                           : capture_info(stream, status, id, graph, nodes, count);
}

static CUresult pointer_info_or_fail(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    return no_pointer_info ? CUDA_ERROR_UNKNOWN : pointer_info(data, attribute, ptr);
}

static CUresult pointer_infos_or_fail(unsigned count, CUpointer_attribute *attributes, void **data,
                                      CUdeviceptr ptr)
{
    return no_pointer_info ? CUDA_ERROR_UNKNOWN : pointer_infos(count, attributes, data, ptr);
}

static symwin_status reduce_failing(const struct member *m, const struct failing_case *c,
                                    unsigned char *in, unsigned char *out)
{
    static char on_host[BYTES];
    symwin_status status;

    no_capture_info = c->how == NO_CAPTURE_INFO;
    no_pointer_info = c->how == NO_POINTER_INFO;
    if (c->how == BOTH_NULL)
        out = NULL;
    status = reduce(m,
                    c->how <= BOTH_NULL      ? NULL
                    : c->how == ON_THE_HOST  ? (void *)on_host
                    : c->how == MISALIGNED   ? in + ASIDE
                    : c->how == OVERLAP      ? out + BYTES / 2
                    : c->how == PAST_THE_END ? in + 8 * BYTES - BYTES / 2
                                             : in,
                    out);
    no_capture_info = no_pointer_info = 0;
    return status;
}

static void failing(struct harness_team *team, int rank, void *arg)
{
    const struct failing_case *c = arg;
    symwin_window *window = NULL;
    unsigned char *own, *in, *out;
    CUdeviceptr plain = 0; /* about which the driver is asked */
    symwin_status status;
    struct member m;

    open_member(&m, team, rank, 0, SHORT_MS);
    own = host_alloc(m.device, 8 * BYTES);
    in = own;
    out = own + 4 * BYTES;
    put(&m, in, 1);
    if (c->how == NO_POINTER_INFO)
        host_must_cuda(sw_drv.cuMemAlloc(&plain, BYTES), "cuMemAlloc");
    if (c->what == REGISTERED)
        enter(&m, own, 8 * BYTES);
    else if (c->what == IN_WINDOWS)
        host_must(symwin_window_register(m.comm, own, 8 * BYTES, 0, &window), "register");
    else
        begin_capture(&m);
    harness_barrier(team);
    if (!c->alone || rank == 1) {
        status = rank == 1 ? reduce_failing(&m, c, plain != 0 ? (void *)(uintptr_t)plain : in, out)
                           : reduce(&m, in, out);
        host_expect(c->name, status, c->status, c->words);
    }
    if (c->what == CAPTURED)
        drop_capture(&m);
    harness_barrier(team);
    expect_sum(&m, "the next call", in, out, 1);
    harness_barrier(team);
    if (window != NULL)
        host_must(symwin_window_deregister(m.comm, window), "deregister");
    if (plain != 0)
        host_must_cuda(sw_drv.cuMemFree(plain), "cuMemFree");
    close_member(&m);
    host_must(symwin_mem_free(own), "free");
}

/* Captured buffers that nobody registered, at the same or at different offsets. If they cannot
 * become windows, the ranks know that after the agreement. */
static const struct apart_case {
    const char *name;
    size_t in, out; /* extra offset on rank 1 */
    int windows;
} aparts[] = {
    {"at the same offsets", 0, 0, 1},
    {"at other offsets", BYTES, BYTES, 0},
    {"in at another offset", BYTES, 0, 0},
    {"out at another offset", 0, BYTES, 0},
    {"granules apart", GRANULE, 2 * GRANULE, 1},
};

static void captured_apart(struct harness_team *team, int rank, void *arg)
{
    const struct apart_case *c = arg;
    struct member m;
    unsigned char *own, *in, *out;
    CUgraph graph = NULL;
    CUgraphExec exec;
    uint64_t rounds;

    open_member(&m, team, rank, 0, SHORT_MS);
    own = host_alloc(m.device, 4 * GRANULE);
    in = own + (rank == 1 ? c->in : 0);
    out = own + GRANULE / 2 + (rank == 1 ? c->out : 0);
    rounds = sw_exchange_rounds(m.comm->group->exchange, rank);
    exec = capture(&m, in, out, &graph);
    rounds = sw_exchange_rounds(m.comm->group->exchange, rank) - rounds;
    tap_ok((allocations(&m) > 0) == c->windows, "%s: %s", c->name,
           c->windows ? "windows" : "no windows");
    tap_ok(c->windows || rounds == 2, "%s: %.1f agreements for each call", c->name,
           (double)rounds / 2);
    replay(&m, c->name, exec, in, out, 1);
    harness_barrier(team);
    host_must_cuda(sw_drv.cuGraphExecDestroy(exec), "cuGraphExecDestroy");
    host_must_cuda(sw_drv.cuGraphDestroy(graph), "cuGraphDestroy");
    close_member(&m);
    host_must(symwin_mem_free(own), "free");
}

/* A captured call on a part of what an earlier capture has connected. Each rank uses another
 * part. */
static void other_parts(struct harness_team *team, int rank, void *arg)
{
    unsigned char *own, *at;
    CUgraph graph = NULL;
    struct member m;

    (void)arg;
    open_member(&m, team, rank, 0, SHORT_MS);
    own = host_alloc(m.device, 4 * BYTES);
    at = own + (rank == 0 ? 1 : 2) * BYTES;
    begin_capture(&m);
    host_must(symwin_allreduce(m.comm, own, own, 4 * COUNT, SYMWIN_F32, SYMWIN_SUM, m.stream),
              "a captured call");
    host_expect("a part at another place", reduce_in_windows(&m, at, at), SYMWIN_UNSUPPORTED,
                "both buffers in windows");
    at = own + BYTES;
    host_expect("a part at one place", reduce_in_windows(&m, at, at), SYMWIN_OK, "");
    host_must_cuda(sw_drv.cuStreamEndCapture(m.stream, &graph), "cuStreamEndCapture");
    harness_barrier(team);
    host_must_cuda(sw_drv.cuGraphDestroy(graph), "cuGraphDestroy");
    close_member(&m);
    host_must(symwin_mem_free(own), "free");
}

/* One of a captured call's two buffers cannot be connected. Then neither is. */
static void one_of_two(struct harness_team *team, int rank, void *arg)
{
    CUdeviceptr plain = 0;
    CUgraphExec exec;
    CUgraph graph;
    struct member m;
    void *own;

    (void)arg;
    open_member(&m, team, rank, 0, SHORT_MS);
    own = host_alloc(m.device, BYTES);
    host_must_cuda(sw_drv.cuMemAlloc(&plain, BYTES), "cuMemAlloc");
    exec = capture(&m, own, (void *)(uintptr_t)plain, &graph);
    TAP_EQ("nothing is mapped for one of two buffers", allocations(&m), 0);
    replay(&m, "one of two", exec, own, (void *)(uintptr_t)plain, 1);
    harness_barrier(team);
    host_must_cuda(sw_drv.cuGraphExecDestroy(exec), "cuGraphExecDestroy");
    host_must_cuda(sw_drv.cuGraphDestroy(graph), "cuGraphDestroy");
    host_must_cuda(sw_drv.cuMemFree(plain), "cuMemFree");
    close_member(&m);
    host_must(symwin_mem_free(own), "free");
}

static CUresult (*unmap)(CUdeviceptr, size_t);

static CUresult unmap_slowly(CUdeviceptr at, size_t bytes)
{
    host_pause_ms(50);
    return unmap(at, bytes);
}

/* No rank launches before a connection that is over has been unmapped. Unmapping waits for kernels,
 * and those would wait for the rank that unmaps. */
static void slow_to_unmap(struct harness_team *team, int rank, void *arg)
{
    symwin_registration *r;
    CUdeviceptr plain = 0;
    CUgraphExec exec;
    CUgraph graph;
    struct member m;
    void *own;
    int i;

    (void)arg;
    open_member(&m, team, rank, 0, SHORT_MS);
    own = host_alloc(m.device, GRANULE);
    host_must_cuda(sw_drv.cuMemAlloc(&plain, 2 * BYTES), "cuMemAlloc");
    put(&m, (void *)(uintptr_t)plain, 2);
    r = enter(&m, own, GRANULE);
    expect_sum(&m, "connected", own, own, 1);
    harness_barrier(team);
    leave(&m, r);
    for (i = 0; i < 4; i++) { /* agreements with nothing else to decide */
        begin_capture(&m);
        host_must(reduce(&m, (void *)(uintptr_t)plain, (void *)(uintptr_t)(plain + BYTES)),
                  "a captured call");
        host_must_cuda(sw_drv.cuStreamEndCapture(m.stream, &graph), "cuStreamEndCapture");
        host_must_cuda(sw_drv.cuGraphInstantiateWithFlags(&exec, graph, 0), "instantiate");
        host_must_cuda(sw_drv.cuGraphLaunch(exec, m.stream), "cuGraphLaunch");
        tap_ok(is_sum(&m, (void *)(uintptr_t)(plain + BYTES), 2), "the sum");
        host_must_cuda(sw_drv.cuGraphExecDestroy(exec), "cuGraphExecDestroy");
        host_must_cuda(sw_drv.cuGraphDestroy(graph), "cuGraphDestroy");
    }
    harness_barrier(team);
    host_must_cuda(sw_drv.cuMemFree(plain), "cuMemFree");
    TAP_EQ("nothing is mapped any more", allocations(&m), 0);
    close_member(&m);
    host_must(symwin_mem_free(own), "free");
}

int main(void)
{
    int i;

    harness_fork();
    harness_start();
    if (!sw_driver_is_emulated())
        tap_skip_all("the emulated driver can fail on purpose");
    run("half settled", 2, half_settled, NULL);
    run("a copy at the end", 2, copy_at_the_end, NULL);
    map = sw_drv.cuMemMap;
    sw_drv.cuMemMap = map_and_abort;
    for (i = 1; i <= 8; i++)
        run("aborted", 3, aborted_between, &i);
    sw_drv.cuMemMap = map;
    create = sw_drv.cuUserObjectCreate;
    sw_drv.cuUserObjectCreate = create_or_fail;
    run("not held", 2, not_held, NULL);
    sw_drv.cuUserObjectCreate = create;
    for (i = 0; i < 2; i++)
        run("two layouts", 3, two_layouts, &i);
    run("an invalid capture", 3, invalid_capture, NULL);
    run("refused elsewhere", 3, refused_elsewhere, NULL);
    run("other parts", 2, other_parts, NULL);
    run("one of two", 2, one_of_two, NULL);
    unmap = sw_drv.cuMemUnmap;
    sw_drv.cuMemUnmap = unmap_slowly;
    run("slow to unmap", 3, slow_to_unmap, NULL);
    sw_drv.cuMemUnmap = unmap;
    capture_info = sw_drv.cuStreamGetCaptureInfo_v2;
    pointer_info = sw_drv.cuPointerGetAttribute;
    pointer_infos = sw_drv.cuPointerGetAttributes;
    sw_drv.cuStreamGetCaptureInfo_v2 = capture_info_or_fail;
    sw_drv.cuPointerGetAttribute = pointer_info_or_fail;
    sw_drv.cuPointerGetAttributes = pointer_infos_or_fail;
    for (i = 0; i < (int)(sizeof failings / sizeof failings[0]); i++) {
        struct failing_case c = failings[i];

        run(c.name, 3, failing, &c);
    }
    sw_drv.cuStreamGetCaptureInfo_v2 = capture_info;
    sw_drv.cuPointerGetAttribute = pointer_info;
    sw_drv.cuPointerGetAttributes = pointer_infos;
    for (i = 0; i < (int)(sizeof aparts / sizeof aparts[0]); i++) {
        struct apart_case apart = aparts[i];

        run("captured apart", 3, captured_apart, &apart);
    }
    return harness_done();
}
