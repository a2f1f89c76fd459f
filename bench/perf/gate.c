/* One repetition. The stream of every rank gets
 *
 *     wait for the gate | tiny all-reduce | event | the work | event
 *
 * When all ranks have queued theirs, each host opens its gate, within microseconds of the others.
 * The tiny all-reduce then aligns the GPUs to within about one microsecond. So the time includes no
 * launch, and no rank is timed while it waits for a late one.
 *
 * If a rank cannot queue its work, all ranks learn it in the agreement and abort before they open
 * their gates. So the other ranks' kernels do not wait for it.
 */
#include "perf.h"

static int queue_gate(struct rank *r)
{
    void *data = (void *)(uintptr_t)r->gate_data;

    r->gate_value++;
    return ok(sw_check(sw_drv.cuStreamWaitValue32(r->stream, r->gate_address, r->gate_value,
                                                  CU_STREAM_WAIT_VALUE_GEQ),
                       "cuStreamWaitValue32 on the start gate")) &&
           ok(symwin_allreduce(r->control, data, data, 1, SYMWIN_U32, SYMWIN_MAX, r->stream));
}

static int queue_all(struct rank *r, work_fn queue, void *context)
{
    return queue_gate(r) && CUDA(cuEventRecord, (r->begin, r->stream)) && queue(r, context) &&
           CUDA(cuEventRecord, (r->end, r->stream));
}

int gated(struct rank *r, work_fn queue, void *context, double *us)
{
    int good;
    float ms = 0;

    stage_begin(r, "queueing calls behind the start gate (-n makes fewer)");
    good = meet(r, queue_all(r, queue, context), NULL, 0);
    stage_end(r);
    if (!good)
        rank_abort(r);
    if (!r->job->stuck || r->rank != 0)
        __atomic_store_n(r->gate, r->gate_value, __ATOMIC_RELEASE);
    if (!good)
        return 0;
    good = rank_synchronize(r, "the timed calls") &&
           CUDA(cuEventElapsedTime, (&ms, r->begin, r->end));
    *us = (double)ms * 1e3;
    return good;
}

int captured(struct rank *r, work_fn queue, void *context, CUgraphExec *exec)
{
    CUgraph graph = NULL;
    int good = CUDA(cuStreamBeginCapture, (r->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));

    if (good) {
        good = queue(r, context);
        good &= CUDA(cuStreamEndCapture, (r->stream, &graph));
    }
    good = good && CUDA(cuGraphInstantiateWithFlags, (exec, graph, 0)) &&
           ok(sw_graph_upload(*exec, r->stream));
    DROP(cuGraphDestroy, graph);
    return good;
}

int ungated(struct rank *r, work_fn queue, void *context)
{
    int good;

    stage_begin(r, "queueing calls");
    good = meet(r, queue(r, context), NULL, 0);
    stage_end(r);
    if (!good) {
        rank_abort(r);
        return good;
    }
    return rank_synchronize(r, "calls that are not timed");
}
