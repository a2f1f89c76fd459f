/* A rank's state, and the agreements of the ranks. */
#include <stdio.h>
#include <stdlib.h>

#include "perf.h"

static _Thread_local symwin_status failed_with;

int ok(symwin_status status)
{
    if (status != SYMWIN_OK)
        failed_with = status;
    return status == SYMWIN_OK;
}

symwin_status failure(void)
{
    return failed_with;
}

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

int meet(struct rank *r, int good, const uint64_t *values, int count)
{
    return ok(
        sw_comm_agree(r->control, "symwin-perf", good ? SYMWIN_OK : failed_with, values, count));
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

int rank_synchronize(struct rank *r, const char *what)
{
    int good;

    stage_begin(r, what);
    good = ok(sw_check(sw_drv.cuStreamSynchronize(r->stream), "%s: cuStreamSynchronize", what));
    stage_end(r);
    return good && ok(symwin_comm_check(r->control)) &&
           (r->comm == NULL || ok(symwin_comm_check(r->comm)));
}

/* ---- opening ---- */

static int open_comms(struct rank *r)
{
    const struct job *job = r->job;
    const enum sw_setting patience = SW_SETTING_BOOTSTRAP_TIMEOUT_MS;
    symwin_comm_options options = {
        .size = sizeof options,
        .flags = (job->multicast ? 0 : SYMWIN_COMM_NO_MULTICAST) |
                 SYMWIN_COMM_NO_GRAPH_REGISTER | /* plain memory must stay plain */
                 SYMWIN_COMM_NO_ORDER,           /* the gate is on the same stream */
        .timeout_ms = job->options.timeout_s * 1000,
        .bootstrap_timeout_ms = getenv(sw_setting_name(patience)) != NULL
                                    ? (int)sw_setting(patience)
                                    : 0,
        .kernel_timeout_ms = job->options.timeout_s * 1000,
    };

    if (!ok(symwin_comm_create(&job->id, job->nranks, r->rank, r->device, &options, &r->control)))
        return 0;
    options.flags &= ~(unsigned)SYMWIN_COMM_NO_ORDER;
    options.max_blocks = job->options.sm_limit;
    if (job->options.graph_launch)
        options.flags |= SYMWIN_COMM_GRAPH_LAUNCH;
    if (job->page != NULL)
        stage_comm(job->page, &options);
    if (!ok(symwin_comm_split(r->control, 0, r->rank, &options, &r->comm)))
        return 0;
    return !job->options.link || r->comm->wide == NULL ||
           fail(SYMWIN_UNSUPPORTED,
                "--link measures the links of one domain, and these ranks are in "
                "several: run it with the ranks of one host");
}

static int open_gate(struct rank *r)
{
    return memory_pinned(" of the start gate", &r->gate, &r->gate_address) &&
           ok(sw_check(sw_drv.cuMemAlloc(&r->gate_data, 256), "cuMemAlloc for the start gate")) &&
           CUDA(cuMemsetD8, (r->gate_data, 0, 256)) &&
           ok(sw_check(sw_drv.cuMemAlloc(&r->report, sizeof(struct perf_report)),
                       "cuMemAlloc for the report")) &&
           ok(sw_check(sw_drv.cuMemAlloc(&r->device_counts, 16 * (size_t)r->job->nranks),
                       "cuMemAlloc for counts"));
}

static int open_stream(struct rank *r)
{
    const struct perf_options *o = &r->job->options;
    const int calls = o->calls > 0 ? o->calls : 64;

    if (!CUDA(cuStreamCreate, (&r->stream, CU_STREAM_NON_BLOCKING)) ||
        !CUDA(cuEventCreate, (&r->begin, CU_EVENT_DEFAULT)) ||
        !CUDA(cuEventCreate, (&r->end, CU_EVENT_DEFAULT)))
        return 0;
    r->host_us = calloc((size_t)calls * (size_t)(o->rounds > 0 ? o->rounds : 1),
                        sizeof *r->host_us);
    r->counts = calloc(2 * (size_t)r->job->nranks, sizeof *r->counts);
    return (r->host_us != NULL && r->counts != NULL) ||
           fail(SYMWIN_NO_MEMORY, "no memory for the times");
}

/* If the communicators cannot be created, each rank fails by itself, without an agreement. */
int rank_open(struct rank *r)
{
    int good;

    if (!ok(sw_scope_enter(r->device, &r->scope)) || !open_comms(r))
        return 0;
    good = open_gate(r) && open_stream(r) && kernels_load(r);
    return meet(r, good, NULL, 0) &&
           ((r->job->options.rivals & PERF_ANY_NCCL) == 0 || rival_open(r)) &&
           (r->job->page == NULL || own_open(r)) && ways_open(r);
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
    DROP(cuMemFree, r->gate_data);
    DROP(cuMemFree, r->report);
    DROP(cuMemFree, r->device_counts);
    DROP(cuMemFreeHost, r->gate);
    DROP(cuEventDestroy, r->begin);
    DROP(cuEventDestroy, r->end);
    DROP(cuStreamDestroy, r->stream);
    free(r->host_us);
    free(r->counts);
    free(r->staging);
    sw_scope_leave(&r->scope);
}
