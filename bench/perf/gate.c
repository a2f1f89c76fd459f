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

static symwin_status queue_gate(struct rank *r)
{
    symwin_status status;
    void *data = (void *)(uintptr_t)r->gate_data;

    r->gate_value++;
    status = sw_check(sw_drv.cuStreamWaitValue32(r->stream, r->gate_address, r->gate_value,
                                                 CU_STREAM_WAIT_VALUE_GEQ),
                      "cuStreamWaitValue32 on the start gate");
    if (status == SYMWIN_OK)
        status = symwin_allreduce(r->control, data, data, 1, SYMWIN_U32, SYMWIN_MAX, r->stream);
    return status;
}

static symwin_status queue_all(struct rank *r, work_fn queue, void *context)
{
    symwin_status status = queue_gate(r);

    if (status == SYMWIN_OK)
        status = sw_check(sw_drv.cuEventRecord(r->begin, r->stream), "cuEventRecord");
    if (status == SYMWIN_OK)
        status = queue(r, context);
    if (status == SYMWIN_OK)
        status = sw_check(sw_drv.cuEventRecord(r->end, r->stream), "cuEventRecord");
    return status;
}

symwin_status gated(struct rank *r, work_fn queue, void *context, double *us)
{
    symwin_status status;
    float ms = 0;

    stage_begin(r, "queueing calls behind the start gate (-n makes fewer)");
    status = meet(r, queue_all(r, queue, context), NULL, 0);
    stage_end(r);
    if (status != SYMWIN_OK)
        rank_abort(r);
    if (!r->job->stuck || r->rank != 0)
        __atomic_store_n(r->gate, r->gate_value, __ATOMIC_RELEASE);
    if (status != SYMWIN_OK)
        return status;
    status = rank_synchronize(r, "the timed calls");
    if (status == SYMWIN_OK)
        status = sw_check(sw_drv.cuEventElapsedTime(&ms, r->begin, r->end), "cuEventElapsedTime");
    *us = (double)ms * 1e3;
    return status;
}

symwin_status ungated(struct rank *r, work_fn queue, void *context)
{
    symwin_status status;

    stage_begin(r, "queueing calls");
    status = meet(r, queue(r, context), NULL, 0);
    stage_end(r);
    if (status != SYMWIN_OK) {
        rank_abort(r);
        return status;
    }
    return rank_synchronize(r, "calls that are not timed");
}
