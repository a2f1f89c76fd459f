/* Calls by copies.
 *
 * All-reduce: queues the kernels and copies of kernels/copies.cu, which says what they do and why
 * it is correct.
 *
 * The caller's stream has the copies, a stream of the communicator (side) has the sums; events fork
 * (F) and join (J) them. k is the number of peers, numbered 1 to k from the next rank on:
 *
 *   caller's   BEGIN, scatter to 1 .. k - 1, to k: first chunk, F, to k: second chunk, J,
 *              F, gather to 1: first chunk, J, gather to 2 .. k, gather to 1: rest, END
 *   side       after each F: the sum of a chunk, then J
 *
 * The copy that overlaps a sum is queued before it. Where a graph forks, the branch that was
 * captured first continues in the same queue of the device. If that is the sum, the copies change
 * queues in every call: two H200s then took 387 us for 128 MiB with graphs of 20 calls and 400 with
 * 80, instead of 373 with any number.
 *
 * A copy costs several microseconds in addition to the time for its bytes. So only one copy in each
 * half is split in two: enough to hide a sum behind.
 *
 * One stream of copies pushes to one peer after another, from the right neighbour on, so that no
 * two ranks push to the same peer. A GPU's links are then busy in both directions. One stream per
 * peer would share the links and gain nothing.
 *
 * Two events are enough for all calls, because a wait refers to the latest record at the time of
 * its call ("use the most recently captured state at the time of the API call", CUDA's
 * documentation of cuEventRecord), and each record here is waited for before the next record of its
 * event. For the same reason an event that a capture recorded is recorded again before a wait
 * outside the capture.
 *
 * Captures have their own side stream: it belongs to the capture until that ends, and calls outside
 * the capture cannot use it.
 *
 * In place, the kernel of the two-shot put replaces BEGIN and reduces the part that is not copied
 * (copies_layout.h). Afterwards the place of that part is free for copied data.
 *
 * What moves bytes: a copy for each part, to its place in the output of a peer; of a gather, from
 * its place in the input of a peer. A copy costs a few microseconds ahead of its bytes, so every
 * second one is in the side stream, and one starts while another is under way. The copy from this
 * rank's input to its own output is the last one.
 *
 *   caller's   BEGIN, F, part 1, part 3, ..., J, END
 *   side              F, part 2, part 4, ...
 *
 * BEGIN (kernels/put.cu) compares the calls, so all peers are there and their outputs may be
 * written. END is the barrier at the end. If BEGIN fails, the copies are made nevertheless.
 */
#include "kernels/copies_layout.h"
#include "src/collective/order.h"

struct copies {
    symwin_comm *comm;
    struct sw_copies *own; /* the communicator's */
    const struct sw_call *call;
    const struct sw_kernel_args *args;
    const char *name; /* of the public call, for errors */
    int captured;
    struct sw_copies_layout layout;
    CUstream side;
};

/* ---- streams and events ---- */

symwin_status sw_copies_create(struct sw_copies *copies)
{
    CUevent *const events[] = {&copies->fork, &copies->join};
    CUstream *const streams[] = {&copies->side, &copies->captured_side};
    symwin_status status = SYMWIN_OK;
    int i;

    for (i = 0; i < 2 && status == SYMWIN_OK; i++)
        if (*events[i] == NULL)
            status = sw_check(sw_drv.cuEventCreate(events[i], CU_EVENT_DISABLE_TIMING),
                              "cuEventCreate");
    for (i = 0; i < 2 && status == SYMWIN_OK; i++)
        if (*streams[i] == NULL)
            status = sw_check(sw_drv.cuStreamCreate(streams[i], CU_STREAM_NON_BLOCKING),
                              "cuStreamCreate");
    return status;
}

void sw_copies_release(struct sw_copies *copies)
{
    /* If a call was queued in part, perhaps no stream of the caller waits for its sum. */
    if (copies->loose)
        sw_drop(sw_drv.cuStreamSynchronize(copies->side), "cuStreamSynchronize");
    if (copies->side != NULL)
        sw_drop(sw_drv.cuStreamDestroy(copies->side), "cuStreamDestroy");
    if (copies->captured_side != NULL)
        sw_drop(sw_drv.cuStreamDestroy(copies->captured_side), "cuStreamDestroy");
    if (copies->fork != NULL)
        sw_drop(sw_drv.cuEventDestroy(copies->fork), "cuEventDestroy");
    if (copies->join != NULL)
        sw_drop(sw_drv.cuEventDestroy(copies->join), "cuEventDestroy");
}

/* For a communicator without streams yet, because its ranks share a device. */
static symwin_status create_late(struct sw_copies *copies, const char *call)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    symwin_status status;

    if (copies->captured_side != NULL)
        return SYMWIN_OK;
    status = sw_check(sw_drv.cuThreadExchangeStreamCaptureMode(&mode),
                      "%s: cuThreadExchangeStreamCaptureMode", call);
    if (status != SYMWIN_OK)
        return status;
    status = sw_copies_create(copies);
    if (status != SYMWIN_OK)
        status = sw_fail_in(status, call, "");
    sw_drop(sw_drv.cuThreadExchangeStreamCaptureMode(&mode), "cuThreadExchangeStreamCaptureMode");
    return status;
}

symwin_status sw_copies_check(const symwin_comm *comm, const char *call, CUstream stream)
{
    const CUstream side = comm->calls->copies.captured_side;
    struct sw_stream_seen asked, other = {.result = CUDA_SUCCESS};
    symwin_status status;

    sw_capture_see(stream, &asked);
    status = sw_check_stream(asked.result, call, "cuStreamGetCaptureInfo");
    if (status == SYMWIN_OK && asked.capture.id != 0 && side != NULL)
        sw_capture_see(side, &other);
    if (status == SYMWIN_OK)
        status = sw_check_stream(other.result, call, "cuStreamGetCaptureInfo");
    if (status == SYMWIN_OK && other.capture.id != 0 && other.capture.id != asked.capture.id)
        return sw_fail(SYMWIN_BUSY,
                       "%s: a call by copies of rank %d's communicator is in another capture; end "
                       "that one first",
                       call, comm->rank);
    return status;
}

/* ---- one call ---- */

/* A kernel of the call. `first`: nothing of the call comes before it. */
struct kernel {
    const struct sw_kernel *of;
    uint32_t stage;
    unsigned blocks, threads;
    CUstream stream;
    int first, last;
};

static symwin_status launch(const struct copies *p, const struct kernel *kernel)
{
    const struct sw_query *q = p->call->query;
    struct sw_kernel_args args = *p->args;
    CUlaunchAttribute early = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                               .value = {.programmaticStreamSerializationAllowed = 1}};
    CUlaunchConfig config = {
        .gridDimX = kernel->blocks,
        .gridDimY = 1,
        .gridDimZ = 1,
        .blockDimX = kernel->threads,
        .blockDimY = 1,
        .blockDimZ = 1,
        .hStream = kernel->stream,
        .attrs = &early,
        .numAttrs = kernel->first && p->call->early, /* the others follow copies */
    };
    void *params[] = {&args};

    args.stage = kernel->stage;
    if (sw_collectives[q->collective].reduces)
        args.op = sw_kernel_op(kernel->of, q->type, q->op) |
                  (args.op & (uint32_t)SW_KERNEL_SCALAR_AT);
    args.done = kernel->last ? args.done : 0;
    return sw_check(sw_drv.cuLaunchKernelEx(&config, kernel->of->function, params, NULL),
                    "%s: cuLaunchKernelEx of stage %u, %u blocks", p->name, kernel->stage,
                    kernel->blocks);
}

/* BEGIN or END. */
static symwin_status launch_flags(const struct copies *p, enum sw_copies_stage stage)
{
    const unsigned most = p->call->plan->grid.threads;

    return launch(p, &(struct kernel){.of = p->call->plan->kernel,
                                      .stage = stage,
                                      .blocks = 1,
                                      .threads = most < SW_FLAG_THREADS ? most : SW_FLAG_THREADS,
                                      .stream = p->call->stream,
                                      .first = stage == SW_COPIES_BEGIN,
                                      .last = stage == SW_COPIES_END});
}

static symwin_status launch_sum(const struct copies *p, enum sw_copies_stage stage)
{
    return launch(p, &(struct kernel){.of = p->call->plan->kernel,
                                      .stage = stage,
                                      .blocks = p->call->plan->grid.blocks,
                                      .threads = p->call->plan->grid.threads,
                                      .stream = p->side});
}

/* record() and await() order what follows in stream `to` after what is in stream `from` so far. */
static symwin_status record(const struct copies *p, CUevent event, CUstream from)
{
    return sw_check(sw_drv.cuEventRecord(event, from), "%s: cuEventRecord", p->name);
}

static symwin_status await(const struct copies *p, CUevent event, CUstream to)
{
    return sw_check(sw_drv.cuStreamWaitEvent(to, event, 0), "%s: cuStreamWaitEvent", p->name);
}

static int peer_after(const struct copies *p, int step)
{
    return (p->args->rank + step) % p->args->nranks;
}

/* Copies `bytes` bytes at `from` to offset `at` in the output of `peer`. */
static symwin_status push_to(const struct copies *p, int peer, CUdeviceptr from, uint64_t at,
                             size_t bytes)
{
    const struct sw_kernel_args *args = p->args;

    if (peer == args->rank) /* a communicator of one rank */
        return SYMWIN_OK;
    return sw_check(sw_drv.cuMemcpyAsync(
                        sw_group_address(p->comm->group, peer, (size_t)(args->out_offset + at)),
                        from, bytes, p->call->stream),
                    "%s: cuMemcpyAsync of %zu bytes to rank %d", p->name, bytes, peer);
}

/* ---- the stages ---- */

/* Copies bytes begin .. end - 1 of this rank's input for each peer's share to the place in that
 * peer's output where they stay until they are added. For the peers `from` to `to` steps after this
 * rank. */
static symwin_status scatter(const struct copies *p, int from, int to, uint64_t begin, uint64_t end)
{
    const struct sw_kernel_args *args = p->args;
    const struct sw_copies_layout *l = &p->layout;
    const uint64_t place = l->head + (uint32_t)args->rank * l->share + l->landing + begin;
    symwin_status status = SYMWIN_OK;
    int step;

    for (step = from; step <= to && begin < end && status == SYMWIN_OK; step++) {
        const int peer = peer_after(p, step);
        const uint64_t theirs = l->head + (uint32_t)peer * l->share + begin;

        status = push_to(p, peer, (CUdeviceptr)(args->in + theirs), place, (size_t)(end - begin));
    }
    return status;
}

/* The same for this rank's reduced share, to its final place. */
static symwin_status gather(const struct copies *p, int from, int to, uint64_t begin, uint64_t end)
{
    const struct sw_kernel_args *args = p->args;
    const uint64_t share = p->layout.head + (uint32_t)args->rank * p->layout.share;
    symwin_status status = SYMWIN_OK;
    int step;

    for (step = from; step <= to && begin < end && status == SYMWIN_OK; step++)
        status = push_to(p, peer_after(p, step), (CUdeviceptr)(args->out + share + begin),
                         share + begin, (size_t)(end - begin));
    return status;
}

/* The sum of a chunk, parallel to the caller's stream from the recorded fork on. */
static symwin_status sum_beside(const struct copies *p, int chunk)
{
    symwin_status status = await(p, p->own->fork, p->side);

    if (status == SYMWIN_OK)
        status = launch_sum(p, chunk == 0 ? SW_COPIES_SUM_FIRST : SW_COPIES_SUM_SECOND);
    if (status == SYMWIN_OK)
        status = record(p, p->own->join, p->side);
    return status;
}

/* BEGIN, or the put if in place. */
static symwin_status queue_begin(const struct copies *p)
{
    const struct sw_plan *plan = p->call->plan;

    if (plan->put == NULL)
        return launch_flags(p, SW_COPIES_BEGIN);
    return launch(p, &(struct kernel){.of = plan->put,
                                      .stage = SW_PUT_HERE,
                                      .blocks = plan->put_grid.blocks,
                                      .threads = plan->put_grid.threads,
                                      .stream = p->call->stream,
                                      .first = 1});
}

static symwin_status queue_scatter(const struct copies *p, int last)
{
    const struct sw_copies_layout *l = &p->layout;
    symwin_status status = scatter(p, 1, last - 1, 0, l->copied);

    if (status == SYMWIN_OK)
        status = scatter(p, last, last, 0, l->first);
    if (status == SYMWIN_OK)
        status = record(p, p->own->fork, p->call->stream);
    if (status == SYMWIN_OK)
        status = scatter(p, last, last, l->first, l->copied);
    if (status == SYMWIN_OK)
        status = sum_beside(p, 0);
    if (status == SYMWIN_OK)
        status = await(p, p->own->join, p->call->stream);
    return status;
}

/* `mine`: bytes of this rank's share; in place the last shares may be shorter. */
static symwin_status queue_gather(const struct copies *p, int last, uint64_t mine)
{
    const uint64_t first = p->layout.first < p->layout.copied ? p->layout.first : 0;
    symwin_status status = SYMWIN_OK;

    if (first > 0) {
        status = record(p, p->own->fork, p->call->stream);
        if (status == SYMWIN_OK)
            status = gather(p, 1, 1, 0, first);
        if (status == SYMWIN_OK)
            status = sum_beside(p, 1);
        if (status == SYMWIN_OK)
            status = await(p, p->own->join, p->call->stream);
    }
    if (status == SYMWIN_OK)
        status = gather(p, 2, last, 0, mine);
    if (status == SYMWIN_OK)
        status = gather(p, 1, 1, first, mine);
    return status;
}

/* All stages after the first. */
static symwin_status queue_stages(const struct copies *p)
{
    const struct sw_kernel_args *args = p->args;
    const struct sw_copies_layout *l = &p->layout;
    const uint64_t ahead = l->head + (uint32_t)args->rank * l->share;
    const uint64_t bytes = p->call->query->bytes;
    const uint64_t left = ahead < bytes ? bytes - ahead : 0;
    const int last = args->nranks - 1;
    symwin_status status = SYMWIN_OK;

    if (p->call->plan->put == NULL || l->copied > 0)
        status = queue_scatter(p, last);
    if (status == SYMWIN_OK)
        status = queue_gather(p, last, left < l->share ? left : l->share);
    return status == SYMWIN_OK ? launch_flags(p, SW_COPIES_END) : status;
}

/* ---- what moves bytes ---- */

static int is_gather(const struct copies *p)
{
    return p->args->to >= 0; /* all ranks send to one */
}

/* Part number `step`: the peer's so many steps after this rank, or from nranks on this rank's own.
 * The root of a gather copies the parts of its peers; others' parts are copied by their senders. */
static symwin_status copy_part(const struct copies *p, int step, CUstream stream)
{
    const struct sw_kernel_args *args = p->args;
    const struct sw_group *group = p->comm->group;
    const int peer = peer_after(p, step);
    const size_t bytes = (size_t)args->bytes;
    CUdeviceptr from = args->in + (uint32_t)peer * args->in_step;
    CUdeviceptr to = args->out + (uint32_t)args->rank * args->out_step;

    if (peer != args->rank && is_gather(p)) {
        from = sw_group_address(group, peer, (size_t)args->in_offset);
        to = args->out + (uint32_t)peer * args->out_step;
    } else if (peer != args->rank) {
        to = sw_group_address(group, peer,
                              (size_t)(args->out_offset + (uint32_t)args->rank * args->out_step));
    }
    return sw_check(sw_drv.cuMemcpyAsync(to, from, bytes, stream),
                    "%s: cuMemcpyAsync of %zu bytes, with rank %d", p->name, bytes, peer);
}

/* Parts `first`, `first` + 2, ... of `parts`. */
static symwin_status copy_parts(const struct copies *p, int first, int parts, CUstream stream)
{
    symwin_status status = SYMWIN_OK;
    int part;

    for (part = first; part <= parts && status == SYMWIN_OK; part += 2)
        status = copy_part(p, part, stream);
    return status;
}

/* How many parts this rank copies. */
static int parts_of(const struct copies *p)
{
    const struct sw_kernel_args *args = p->args;

    if ((is_gather(p) ? args->from : args->to) != SW_EVERY_RANK)
        return 0;
    return p->call->query->in_place ? args->nranks - 1 : args->nranks;
}

static symwin_status queue_parts(const struct copies *p)
{
    const CUstream stream = p->call->stream;
    const int parts = parts_of(p), forks = parts > 1;
    symwin_status status = forks ? record(p, p->own->fork, stream) : SYMWIN_OK;

    if (status == SYMWIN_OK)
        status = copy_parts(p, 1, parts, stream);
    if (status == SYMWIN_OK && forks)
        status = await(p, p->own->fork, p->side);
    if (status == SYMWIN_OK)
        status = copy_parts(p, 2, parts, p->side);
    if (status == SYMWIN_OK && forks)
        status = record(p, p->own->join, p->side);
    if (status == SYMWIN_OK && forks)
        status = await(p, p->own->join, stream);
    return status == SYMWIN_OK ? launch_flags(p, SW_COPIES_END) : status;
}

/* ---- a call ---- */

/* The driver refused a part of the call, and the peers would wait for it. A capture is different:
 * nothing of it has run, and nothing will, because the side stream has not joined, or because the
 * caller sees the error. */
static void abandon(const struct copies *p)
{
    if (p->captured)
        return;
    (void)symwin_comm_abort(p->comm);
    p->own->loose = 1;
    if (sw_drv.cuEventRecord(p->own->join, p->side) == CUDA_SUCCESS)
        sw_drop(sw_drv.cuStreamWaitEvent(p->call->stream, p->own->join, 0), "cuStreamWaitEvent");
}

symwin_status sw_copies_queue(const struct sw_call *call)
{
    const struct sw_query *q = call->query;
    const int reduces = sw_collectives[q->collective].reduces;
    struct copies p = {.comm = q->comm,
                       .own = &q->comm->calls->copies,
                       .call = call,
                       .args = call->args,
                       .name = q->call,
                       .captured = call->args->done == 0};
    symwin_status status = create_late(p.own, p.name);

    if (status == SYMWIN_OK && p.captured)
        status = sw_copies_check(p.comm, p.name, call->stream);
    if (status != SYMWIN_OK)
        return status;
    p.side = p.captured ? p.own->captured_side : p.own->side;
    if (reduces)
        p.layout = sw_copies_layout_of(call->args, (uint32_t)symwin_type_bytes(q->type),
                                       sw_type_is_float(q->type));
    status = queue_begin(&p);
    if (status != SYMWIN_OK)
        return status;
    status = reduces ? queue_stages(&p) : queue_parts(&p);
    if (status != SYMWIN_OK)
        abandon(&p);
    return status;
}
