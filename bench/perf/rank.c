/* A rank's state, and the agreements of the ranks. */
#include <stdio.h>
#include <stdlib.h>

#include "perf.h"

/* ---- stages: what the watchdog looks at ---- */

void stage_begin(struct rank *r, const char *what)
{
    atomic_store(&r->stage_ends, sw_now_ms() + (int64_t)r->job->options.timeout_s * 1000);
    atomic_store(&r->stage, what);
}

void stage_end(struct rank *r)
{
    atomic_store(&r->stage, NULL);
}

/* ---- meetings ---- */

symwin_status meet(struct rank *r, symwin_status status, const uint64_t *values, int count)
{
    return sw_comm_agree(r->control, "symwin-perf", status, values, count);
}

uint64_t met(const struct rank *r, int rank, int value)
{
    return r->control->ballots[rank].values[value];
}

void rank_abort(struct rank *r)
{
    char text[SW_TEXT_BYTES];

    snprintf(text, sizeof text, "%s", symwin_last_error());
    if (r->comm != NULL)
        symwin_comm_abort(r->comm);
    if (r->control != NULL)
        symwin_comm_abort(r->control);
    sw_error_restore(text); /* the first error counts */
}

symwin_status rank_synchronize(struct rank *r, const char *what)
{
    symwin_status status;

    stage_begin(r, what);
    status = sw_check(sw_drv.cuStreamSynchronize(r->stream), "%s: cuStreamSynchronize", what);
    stage_end(r);
    if (status == SYMWIN_OK)
        status = symwin_comm_check(r->control);
    if (status == SYMWIN_OK && r->comm != NULL)
        status = symwin_comm_check(r->comm);
    return status;
}

/* ---- opening ---- */

static symwin_status open_comms(struct rank *r)
{
    const struct job *job = r->job;
    symwin_comm_options options = {
        .size = sizeof options,
        .flags = SYMWIN_COMM_NO_MULTICAST |
                 SYMWIN_COMM_NO_GRAPH_REGISTER | /* plain memory must stay plain */
                 SYMWIN_COMM_NO_ORDER,           /* the gate is on the same stream */
        .timeout_ms = job->options.timeout_s * 1000,
        .kernel_timeout_ms = job->options.timeout_s * 1000,
    };
    symwin_status status;

    status = symwin_comm_create(&job->id, job->nranks, r->rank, r->device, &options, &r->control);
    if (status != SYMWIN_OK)
        return status;
    options.flags &= ~(unsigned)SYMWIN_COMM_NO_ORDER;
    options.max_blocks = job->options.sm_limit;
    if (job->options.graph_launch)
        options.flags |= SYMWIN_COMM_GRAPH_LAUNCH;
    if (job->page != NULL)
        stage_comm(job->page, &options);
    return symwin_comm_split(r->control, 0, r->rank, &options, &r->comm);
}

static symwin_status open_gate(struct rank *r)
{
    symwin_status status = memory_pinned(" of the start gate", &r->gate, &r->gate_address);

    if (status == SYMWIN_OK)
        status = sw_check(sw_drv.cuMemAlloc(&r->gate_data, 256), "cuMemAlloc for the start gate");
    if (status == SYMWIN_OK)
        status = sw_check(sw_drv.cuMemsetD8(r->gate_data, 0, 256), "cuMemsetD8");
    if (status == SYMWIN_OK)
        status = sw_check(sw_drv.cuMemAlloc(&r->report, sizeof(struct perf_report)),
                          "cuMemAlloc for the report");
    return status;
}

static symwin_status open_stream(struct rank *r)
{
    const struct perf_options *o = &r->job->options;
    const int calls = o->calls > 0 ? o->calls : 64;
    symwin_status status;

    status = sw_check(sw_drv.cuStreamCreate(&r->stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    if (status == SYMWIN_OK)
        status = sw_check(sw_drv.cuEventCreate(&r->begin, CU_EVENT_DEFAULT), "cuEventCreate");
    if (status == SYMWIN_OK)
        status = sw_check(sw_drv.cuEventCreate(&r->end, CU_EVENT_DEFAULT), "cuEventCreate");
    if (status != SYMWIN_OK)
        return status;
    r->host_us = calloc((size_t)calls * (size_t)(o->rounds > 0 ? o->rounds : 1),
                        sizeof *r->host_us);
    return r->host_us != NULL ? SYMWIN_OK : sw_fail(SYMWIN_NO_MEMORY, "no memory for the times");
}

/* If the communicators cannot be created, each rank fails by itself, without an agreement. */
symwin_status rank_open(struct rank *r)
{
    symwin_status status = sw_scope_enter(r->device, &r->scope);

    if (status == SYMWIN_OK)
        status = open_comms(r);
    if (status != SYMWIN_OK)
        return status;
    status = open_gate(r);
    if (status == SYMWIN_OK)
        status = open_stream(r);
    if (status == SYMWIN_OK)
        status = kernels_load(r);
    status = meet(r, status, NULL, 0);
    if (status == SYMWIN_OK && (r->job->options.rivals & PERF_ANY_NCCL) != 0)
        status = rival_open(r);
    if (status == SYMWIN_OK && r->job->page != NULL)
        status = own_open(r);
    if (status == SYMWIN_OK)
        status = ways_open(r);
    return status;
}

/* ---- closing ---- */

void rank_close(struct rank *r, int failed)
{
    if (r->gate != NULL) /* releases what still waits for it */
        __atomic_store_n(r->gate, r->gate_value, __ATOMIC_RELEASE);
    if (r->stream != NULL) {
        stage_begin(r, "the stream's end");
        sw_drop(sw_drv.cuStreamSynchronize(r->stream), "cuStreamSynchronize");
        stage_end(r);
    }
    ways_close(r, failed);
    own_close(r);
    if (!failed)
        rival_close(r);
    symwin_comm_destroy(r->comm);
    symwin_comm_destroy(r->control);
    r->comm = r->control = NULL;
    if (r->gate_data != 0)
        sw_drop(sw_drv.cuMemFree(r->gate_data), "cuMemFree");
    if (r->report != 0)
        sw_drop(sw_drv.cuMemFree(r->report), "cuMemFree");
    if (r->gate != NULL)
        sw_drop(sw_drv.cuMemFreeHost(r->gate), "cuMemFreeHost");
    if (r->begin != NULL)
        sw_drop(sw_drv.cuEventDestroy(r->begin), "cuEventDestroy");
    if (r->end != NULL)
        sw_drop(sw_drv.cuEventDestroy(r->end), "cuEventDestroy");
    if (r->stream != NULL)
        sw_drop(sw_drv.cuStreamDestroy(r->stream), "cuStreamDestroy");
    free(r->host_us);
    free(r->staging);
    sw_scope_leave(&r->scope);
}
