/* A rank on registered buffers, for test_register*.c. */
#ifndef SYMWIN_TESTS_REGISTER_MEMBER_H
#define SYMWIN_TESTS_REGISTER_MEMBER_H

#include "harness.h"

enum { COUNT = 4096, BYTES = 4 * COUNT, SHORT_MS = 1500 };

struct member {
    struct harness_team *team;
    int rank, nranks, device;
    symwin_comm *comm;
    CUstream stream;
    struct sw_scope scope;
};

static inline void open_member(struct member *m, struct harness_team *team, int rank,
                               unsigned flags, int timeout_ms)
{
    const symwin_comm_options options = {
        .size = sizeof options,
        .flags = flags,
        .timeout_ms = timeout_ms,
        .kernel_timeout_ms = 20000,
    };

    *m = (struct member){team, rank, team->nranks, harness_device(rank), NULL, NULL, {0}};
    host_must(symwin_comm_create(&team->id, team->nranks, rank, m->device, &options, &m->comm),
              "symwin_comm_create");
    host_must(sw_scope_enter(m->device, &m->scope), "sw_scope_enter");
    host_must(symwin_stream_create(m->device, &m->stream), "symwin_stream_create");
}

static inline void close_member(struct member *m)
{
    symwin_comm_destroy(m->comm);
    host_must(symwin_stream_destroy(m->device, m->stream), "symwin_stream_destroy");
    sw_scope_leave(&m->scope);
}

static inline void put(const struct member *m, void *at, float value)
{
    float values[COUNT];
    int i;

    for (i = 0; i < COUNT; i++)
        values[i] = value + (float)(m->rank + 1);
    host_must(host_copy(m->device, at, values, BYTES), "copy to the device");
}

/* What put(value) on all ranks adds up to. */
static inline int is_sum(const struct member *m, const void *at, float value)
{
    const float want = (float)m->nranks * value + (float)(m->nranks * (m->nranks + 1) / 2);
    float values[COUNT];
    int i, wrong = 0;

    host_must(symwin_stream_synchronize(m->device, m->stream), "synchronize");
    host_must(symwin_comm_check(m->comm), "symwin_comm_check");
    host_must(host_copy(m->device, values, at, BYTES), "copy from the device");
    for (i = 0; i < COUNT; i++)
        wrong += values[i] != want;
    return wrong == 0;
}

static inline symwin_status reduce(const struct member *m, const void *in, void *out)
{
    return symwin_allreduce(m->comm, in, out, COUNT, SYMWIN_F32, SYMWIN_SUM, m->stream);
}

/* Reduces, and looks at the result. */
static inline void expect_sum(const struct member *m, const char *name, void *in, void *out,
                              float value)
{
    symwin_status status;

    put(m, in, value);
    status = reduce(m, in, out);
    tap_ok(status == SYMWIN_OK && is_sum(m, out, value), "%s: the sum%s%s", name,
           status == SYMWIN_OK ? "" : ": ", status == SYMWIN_OK ? "" : symwin_last_error());
}

/* Whether an algorithm that needs windows would serve. */
static inline int is_connected(const struct member *m, const void *in, const void *out)
{
    const symwin_allreduce_options options = {.size = sizeof options, .algo = SYMWIN_ALGO_TWOSHOT};
    symwin_allreduce_info info;

    return symwin_allreduce_query(m->comm, in, out, COUNT, SYMWIN_F32, SYMWIN_SUM, &options,
                                  &info) == SYMWIN_OK;
}

static inline symwin_registration *enter(const struct member *m, void *ptr, size_t bytes)
{
    symwin_registration *registration = NULL;

    host_must(symwin_register(m->comm, ptr, bytes, &registration), "symwin_register");
    return registration;
}

static inline void leave(const struct member *m, symwin_registration *registration)
{
    host_must(symwin_deregister(m->comm, registration), "symwin_deregister");
}

static inline symwin_registration_info query(const struct member *m,
                                             symwin_registration *registration)
{
    symwin_registration_info info;

    host_must(symwin_registration_query(m->comm, registration, &info), "query");
    return info;
}

static inline int allocations(const struct member *m)
{
    symwin_comm_info info;

    host_must(symwin_comm_query(m->comm, &info), "symwin_comm_query");
    return info.allocations;
}

/* Meetings of all ranks, on memory that cannot be shared, until what is over has gone. */
static inline void meet(const struct member *m)
{
    enum { ROUNDS = 5 };
    CUdeviceptr plain = 0;
    void *at;
    int i;

    host_must(symwin_stream_synchronize(m->device, m->stream), "synchronize");
    harness_barrier(m->team);
    host_must_cuda(sw_drv.cuMemAlloc(&plain, BYTES), "cuMemAlloc");
    at = (void *)(uintptr_t)plain;
    for (i = 0; i < ROUNDS; i++) {
        symwin_registration *registration = enter(m, at, BYTES);

        host_must(reduce(m, at, at), "a meeting");
        leave(m, registration);
        host_must(symwin_stream_synchronize(m->device, m->stream), "synchronize");
        host_pause_ms(1);
    }
    harness_barrier(m->team);
    host_must_cuda(sw_drv.cuMemFree(plain), "cuMemFree");
}

/* By the windows that both buffers are in. */
static inline symwin_status reduce_in_windows(const struct member *m, const void *in, void *out)
{
    const symwin_allreduce_options options = {.size = sizeof options, .algo = SYMWIN_ALGO_TWOSHOT};

    return symwin_allreduce_with(m->comm, in, out, COUNT, SYMWIN_F32, SYMWIN_SUM, &options,
                                 m->stream);
}

static inline CUgraphExec capture(struct member *m, void *in, void *out, CUgraph *graph)
{
    CUgraphExec exec = NULL;

    /* Not for all threads: another rank's would be in the way of what this one instantiates. */
    host_must_cuda(sw_drv.cuStreamBeginCapture(m->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                   "cuStreamBeginCapture");
    host_must(reduce(m, in, out), "a captured call");
    host_must(reduce(m, in, out), "a captured call");
    host_must_cuda(sw_drv.cuStreamEndCapture(m->stream, graph), "cuStreamEndCapture");
    host_must_cuda(sw_drv.cuGraphInstantiateWithFlags(&exec, *graph, 0), "instantiate");
    host_must(sw_graph_upload(exec, m->stream), "upload");
    return exec;
}

static inline void replay(struct member *m, const char *name, CUgraphExec exec, void *in, void *out,
                          float value)
{
    put(m, in, value);
    harness_barrier(m->team);
    host_must_cuda(sw_drv.cuGraphLaunch(exec, m->stream), "cuGraphLaunch");
    tap_ok(is_sum(m, out, value), "%s: the sum", name);
}

/* A driver may take its time with what a graph has held. */
static inline void expect_free(const char *name, void *ptr)
{
    symwin_status status = symwin_mem_free(ptr);
    int turns = 0;

    for (; status == SYMWIN_BUSY && turns < 5000; turns++) {
        host_pause_ms(1);
        status = symwin_mem_free(ptr);
    }
    host_expect(name, status, SYMWIN_OK, "");
}

static inline void run(const char *name, int nranks,
                       void (*body)(struct harness_team *, int, void *), void *arg)
{
    const struct harness_leaks before = harness_leaks_now();

    if (harness_processes > 0)
        nranks = harness_processes;
    harness_run(nranks, body, arg);
    harness_no_leaks(name, &before);
}

#endif
