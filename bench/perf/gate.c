/* One repetition. The stream of every rank gets
 *
 *     wait for the gate | tiny all-reduce | event | the work | event
 *
 * and when all ranks have said that theirs is queued, each host opens its gate. The hosts do so within
 * microseconds of each other, and the tiny all-reduce brings the GPUs together to within one: launching is
 * not timed, and no rank is timed while it waits for one that began late.
 *
 * If a rank cannot queue its work, all learn it where they meet, and abort before they open their gates, so that
 * the kernels of those who could do not wait for that rank's.
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

    stage_begin(r, "queueing calls behind the start gate (fewer of them: -n)");
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
