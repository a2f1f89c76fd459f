/* Memory that the library did not allocate, and ranks that use it: registered buffers, and spans,
 * which are several physical allocations side by side in one reservation, as in PyTorch's
 * expandable segments. Ranks are threads of harness_run(), or processes for spans. */
#ifndef SYMWIN_TESTS_USER_MEMORY_H
#define SYMWIN_TESTS_USER_MEMORY_H

#include "harness.h"

/* ---- a rank with registered buffers ---- */

enum { COUNT = 4096, BYTES = 4 * COUNT, SHORT_MS = 1500 };

struct member {
    struct harness_team *team;
    int rank, nranks, device;
    symwin_comm *comm;
    CUstream stream;
    struct sw_scope scope;
};

HARNESS_UNUSED void open_member(struct member *m, struct harness_team *team, int rank,
                                unsigned flags, int timeout_ms)
{
    const symwin_comm_options options = {
        .size = sizeof options,
        .flags = flags,
        .timeout_ms = timeout_ms,
        .bootstrap_timeout_ms = 60000,
        .kernel_timeout_ms = 20000,
    };

    *m = (struct member){team, rank, team->nranks, harness_device(rank), NULL, NULL, {0}};
    host_must(symwin_comm_create(&team->id, team->nranks, rank, m->device, &options, &m->comm),
              "symwin_comm_create");
    host_must(sw_scope_enter(m->device, &m->scope), "sw_scope_enter");
    host_must(symwin_stream_create(m->device, &m->stream), "symwin_stream_create");
}

HARNESS_UNUSED void close_member(struct member *m)
{
    symwin_comm_destroy(m->comm);
    host_must(symwin_stream_destroy(m->device, m->stream), "symwin_stream_destroy");
    sw_scope_leave(&m->scope);
}

HARNESS_UNUSED void put(const struct member *m, void *at, float value)
{
    float values[COUNT];
    int i;

    for (i = 0; i < COUNT; i++)
        values[i] = value + (float)(m->rank + 1);
    host_must(host_copy(m->device, at, values, BYTES), "copy to the device");
}

/* Whether the buffer has the sum of what put(value) wrote on all ranks. */
HARNESS_UNUSED int is_sum(const struct member *m, const void *at, float value)
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

HARNESS_UNUSED symwin_status reduce(const struct member *m, const void *in, void *out)
{
    return symwin_allreduce(m->comm, in, out, COUNT, SYMWIN_F32, SYMWIN_SUM, m->stream);
}

/* Reduces and checks the result. */
HARNESS_UNUSED void expect_sum(const struct member *m, const char *name, void *in, void *out,
                               float value)
{
    symwin_status status;

    put(m, in, value);
    status = reduce(m, in, out);
    tap_ok(status == SYMWIN_OK && is_sum(m, out, value), "%s: the sum%s%s", name,
           status == SYMWIN_OK ? "" : ": ", status == SYMWIN_OK ? "" : symwin_last_error());
}

/* Whether an algorithm that needs windows would be used. */
HARNESS_UNUSED int is_connected(const struct member *m, const void *in, const void *out)
{
    const symwin_allreduce_options options = {.size = sizeof options, .algo = SYMWIN_ALGO_TWOSHOT};
    symwin_allreduce_info info;

    return symwin_allreduce_query(m->comm, in, out, COUNT, SYMWIN_F32, SYMWIN_SUM, &options,
                                  &info) == SYMWIN_OK;
}

HARNESS_UNUSED symwin_registration *enter(const struct member *m, void *ptr, size_t bytes)
{
    symwin_registration *registration = NULL;

    host_must(symwin_register(m->comm, ptr, bytes, &registration), "symwin_register");
    return registration;
}

HARNESS_UNUSED void leave(const struct member *m, symwin_registration *registration)
{
    host_must(symwin_deregister(m->comm, registration), "symwin_deregister");
}

HARNESS_UNUSED symwin_registration_info query(const struct member *m,
                                              symwin_registration *registration)
{
    symwin_registration_info info;

    host_must(symwin_registration_query(m->comm, registration, &info), "query");
    return info;
}

HARNESS_UNUSED int allocations(const struct member *m)
{
    symwin_comm_info info;

    host_must(symwin_comm_query(m->comm, &info), "symwin_comm_query");
    return info.allocations;
}

/* Calls of all ranks on memory that cannot be shared. After them, ended registrations are gone. */
HARNESS_UNUSED void meet(const struct member *m)
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

/* An all-reduce through the windows of both buffers. */
HARNESS_UNUSED symwin_status reduce_in_windows(const struct member *m, const void *in, void *out)
{
    const symwin_allreduce_options options = {.size = sizeof options, .algo = SYMWIN_ALGO_TWOSHOT};

    return symwin_allreduce_with(m->comm, in, out, COUNT, SYMWIN_F32, SYMWIN_SUM, &options,
                                 m->stream);
}

HARNESS_UNUSED CUgraphExec capture(struct member *m, void *in, void *out, CUgraph *graph)
{
    /* Thread-local: a capture of another rank must not disturb the instantiation here. */
    host_must_cuda(sw_drv.cuStreamBeginCapture(m->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                   "cuStreamBeginCapture");
    host_must(reduce(m, in, out), "a captured call");
    host_must(reduce(m, in, out), "a captured call");
    return host_end_capture(m->stream, graph);
}

HARNESS_UNUSED void replay(struct member *m, const char *name, CUgraphExec exec, void *in,
                           void *out, float value)
{
    put(m, in, value);
    harness_barrier(m->team);
    host_must_cuda(sw_drv.cuGraphLaunch(exec, m->stream), "cuGraphLaunch");
    tap_ok(is_sum(m, out, value), "%s: the sum", name);
}

/* The driver may release later what a graph held: tries again while the memory is busy. */
HARNESS_UNUSED void expect_free(const char *name, void *ptr)
{
    symwin_status status = symwin_mem_free(ptr);
    int turns = 0;

    for (; status == SYMWIN_BUSY && turns < 5000; turns++) {
        host_pause_ms(1);
        status = symwin_mem_free(ptr);
    }
    host_expect(name, status, SYMWIN_OK, "");
}

HARNESS_UNUSED void run(const char *name, int nranks,
                        void (*body)(struct harness_team *, int, void *), void *arg)
{
    const struct harness_leaks before = harness_leaks_now();

    if (harness_processes > 0)
        nranks = harness_processes;
    harness_run(nranks, body, arg);
    harness_no_leaks(name, &before);
}

/* ---- spans ---- */

enum { SPAN_MOST = 64, SPAN_RANKS = 4, SPAN_CUTS = 3 };

struct span {
    int device;
    /* Its context is current in the thread from span_make() to span_free(). */
    struct sw_scope scope;
    /* The reservation, whose first and last granule stay empty, and the first allocation. */
    CUdeviceptr range, base;
    size_t range_bytes, bytes;
    int count;
    struct {
        CUmemGenericAllocationHandle handle;
        CUdeviceptr at;
        size_t bytes;
    } pieces[SPAN_MOST];
};

/* The allocations of a rank's memory, `count` of `granules` each in order, and the offset at which
 * the window begins. */
struct span_cuts {
    struct {
        int count, granules;
    } cuts[SPAN_CUTS];
    size_t at;
};

HARNESS_UNUSED CUmemGenericAllocationHandle span_create(int device, size_t bytes)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
    const char *fabric = getenv("SYMWIN_EMU_FABRIC");
    CUmemGenericAllocationHandle handle = 0;

    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = device;
    prop.requestedHandleTypes =
        (CUmemAllocationHandleType)(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR |
                                    (fabric != NULL ? CU_MEM_HANDLE_TYPE_FABRIC : 0));
    host_must_cuda(sw_drv.cuMemCreate(&handle, bytes, &prop, 0), "cuMemCreate");
    return handle;
}

HARNESS_UNUSED void span_map(struct span *s, int piece, CUmemGenericAllocationHandle handle)
{
    CUmemAccessDesc access = {.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    const CUdeviceptr at = s->pieces[piece].at;
    const size_t bytes = s->pieces[piece].bytes;

    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = s->device;
    s->pieces[piece].handle = handle;
    host_must_cuda(sw_drv.cuMemMap(at, bytes, 0, handle, 0), "cuMemMap");
    host_must_cuda(sw_drv.cuMemSetAccess(at, bytes, &access, 1), "cuMemSetAccess");
}

HARNESS_UNUSED void span_unmap(struct span *s, int piece)
{
    host_must_cuda(sw_drv.cuMemUnmap(s->pieces[piece].at, s->pieces[piece].bytes), "cuMemUnmap");
    host_must_cuda(sw_drv.cuMemRelease(s->pieces[piece].handle), "cuMemRelease");
    s->pieces[piece].handle = 0;
}

/* Gives the piece other physical memory, as the allocator may. */
HARNESS_UNUSED void span_replace(struct span *s, int piece)
{
    span_unmap(s, piece);
    span_map(s, piece, span_create(s->device, s->pieces[piece].bytes));
}

HARNESS_UNUSED void span_make(struct span *s, int device, const struct span_cuts *cuts)
{
    int i, p;

    *s = (struct span){.device = device};
    host_must(sw_scope_enter(device, &s->scope), "sw_scope_enter");
    for (i = 0; i < SPAN_CUTS; i++)
        for (p = 0; p < cuts->cuts[i].count; p++) {
            s->pieces[s->count].at = s->bytes;
            s->pieces[s->count++].bytes = (size_t)cuts->cuts[i].granules * GRANULE;
            s->bytes += (size_t)cuts->cuts[i].granules * GRANULE;
        }
    s->range_bytes = s->bytes + (size_t)2 * GRANULE;
    host_must_cuda(sw_drv.cuMemAddressReserve(&s->range, s->range_bytes, 0, 0, 0), "reserve");
    s->base = s->range + GRANULE;
    for (p = 0; p < s->count; p++) {
        s->pieces[p].at += s->base;
        span_map(s, p, span_create(device, s->pieces[p].bytes));
    }
}

HARNESS_UNUSED void span_free(struct span *s)
{
    int p;

    for (p = 0; p < s->count; p++)
        if (s->pieces[p].handle != 0)
            span_unmap(s, p);
    host_must_cuda(sw_drv.cuMemAddressFree(s->range, s->range_bytes), "cuMemAddressFree");
    sw_scope_leave(&s->scope);
}

HARNESS_UNUSED void *span_at(const struct span *s, size_t offset)
{
    return (void *)(uintptr_t)(s->base + offset);
}

/* How many allocations [offset, offset + bytes) touches. */
HARNESS_UNUSED int span_touched(const struct span *s, size_t offset, size_t bytes)
{
    int p, touched = 0;

    for (p = 0; p < s->count; p++) {
        const size_t begin = (size_t)(s->pieces[p].at - s->base);

        touched += begin < offset + bytes && offset < begin + s->pieces[p].bytes;
    }
    return touched;
}

/* ---- windows on spans ---- */

/* A rank with a window, and how it waits for the others. */
struct span_rank {
    int rank, nranks, device;
    symwin_comm *comm;
    void (*meet)(void *others);
    void *others;
};

/* How many words of the window this rank does not read as their owner wrote them: one in each half
 * of a granule, and both words beside each seam. Collective. */
HARNESS_UNUSED int span_wrong_words(const struct span_rank *r, const symwin_window *window,
                                    char *own, size_t at, size_t bytes, uint32_t salt)
{
    const size_t half = GRANULE / 2;
    size_t places[2 * SPAN_MOST * 40];
    size_t count = 0, i, offset;
    int peer, wrong = 0;
    void *ptr;

    places[count++] = 0;
    places[count++] = (bytes - 4) / 4 * 4;
    for (offset = half - at % half; offset + 4 <= bytes; offset += half) {
        if (offset >= 4)
            places[count++] = (offset - 4) / 4 * 4;
        places[count++] = offset / 4 * 4;
    }
    for (i = 0; i < count; i++)
        host_put_u32(r->device, own + places[i],
                     salt + (uint32_t)r->rank * 1000 + (uint32_t)(places[i] / 4));
    r->meet(r->others);
    for (peer = 0; peer < r->nranks; peer++)
        for (i = 0; i < count; i++) {
            host_must(symwin_window_peer_pointer(r->comm, window, peer, places[i], &ptr),
                      "symwin_window_peer_pointer");
            wrong += host_get_u32(r->device, ptr) !=
                     salt + (uint32_t)peer * 1000 + (uint32_t)(places[i] / 4);
        }
    r->meet(r->others);
    return wrong;
}

/* How many elements of an all-reduce in place through windows are wrong. Collective. */
HARNESS_UNUSED int span_wrong_sums(const struct span_rank *r, char *own, size_t bytes)
{
    const symwin_allreduce_options options = {.size = sizeof options, .algo = SYMWIN_ALGO_TWOSHOT};
    const size_t count = bytes / 4 < 1500000 ? bytes / 4 : 1500000;
    uint32_t *words = malloc(4 * count);
    struct CUstream_st *stream = NULL;
    int wrong = 0;
    size_t i;

    for (i = 0; i < count; i++)
        words[i] = (uint32_t)i * (uint32_t)(r->rank + 1);
    host_must(host_copy(r->device, own, words, 4 * count), "copy");
    host_must(symwin_stream_create(r->device, &stream), "symwin_stream_create");
    host_must(
        symwin_allreduce_with(r->comm, own, own, count, SYMWIN_U32, SYMWIN_SUM, &options, stream),
        "symwin_allreduce_with");
    host_must(symwin_stream_synchronize(r->device, stream), "symwin_stream_synchronize");
    host_must(symwin_comm_check(r->comm), "symwin_comm_check");
    host_must(host_copy(r->device, words, own, 4 * count), "copy");
    for (i = 0; i < count; i++)
        wrong += words[i] != (uint32_t)i * (uint32_t)(r->nranks * (r->nranks + 1) / 2);
    host_must(symwin_stream_destroy(r->device, stream), "symwin_stream_destroy");
    free(words);
    return wrong;
}

/* ---- rows of cases ---- */

struct span_row {
    const char *name;
    int nranks;
    struct span_cuts cuts[SPAN_RANKS]; /* empty for a rank: as for the first rank */
    size_t bytes;
};

#define SPAN_ROWS                                                                                  \
    {"two allocations", 2, {{{{2, 1}}, 0}}, (size_t)2 * GRANULE},                                  \
        {"across the seam of two", 4, {{{{2, 1}}, GRANULE - 100}}, 200},                           \
        {"three, not from the beginning and not to the end",                                       \
         3,                                                                                        \
         {{{{3, 1}}, 8}},                                                                          \
         (size_t)3 * GRANULE - 24},                                                                \
        {"the second of three, and a part of the third",                                           \
         2,                                                                                        \
         {{{{3, 2}}, (size_t)2 * GRANULE}},                                                        \
         (size_t)3 * GRANULE},                                                                     \
        {"sixty", 2, {{{{60, 1}}, 0}}, (size_t)60 * GRANULE},                                      \
        {"six of ten granules, or sixty of one",                                                   \
         2,                                                                                        \
         {{{{6, 10}}, 4}, {{{60, 1}}, 4}},                                                         \
         (size_t)60 * GRANULE - 4},                                                                \
        {"one, or two, or thirty",                                                                 \
         3,                                                                                        \
         {{{{1, 30}}, 0}, {{{2, 15}}, 0}, {{{30, 1}}, 0}},                                         \
         (size_t)30 * GRANULE},                                                                    \
        {"at other offsets of their allocations",                                                  \
         3,                                                                                        \
         {{{{2, 10}}, (size_t)3 * GRANULE + 64},                                                   \
          {{{14, 1}}, 64},                                                                         \
          {{{1, 20}}, (size_t)7 * GRANULE + 64}},                                                  \
         (size_t)12 * GRANULE},                                                                    \
        {"of one allocation each, at other offsets",                                               \
         2,                                                                                        \
         {{{{1, 4}}, 16}, {{{1, 4}}, (size_t)2 * GRANULE + 16}},                                   \
         GRANULE},                                                                                 \
        {"of several sizes",                                                                       \
         2,                                                                                        \
         {{{{1, 1}, {1, 10}, {2, 3}}, 12}, {{{2, 3}, {1, 10}, {1, 1}}, 12}},                       \
         (size_t)17 * GRANULE - 12},

static const struct span_row span_rows[] = {SPAN_ROWS};
enum { SPAN_ROW_COUNT = sizeof span_rows / sizeof span_rows[0] };

HARNESS_UNUSED const struct span_cuts *span_cuts_of(const struct span_row *row, int rank)
{
    return &row->cuts[row->cuts[rank].cuts[0].count > 0 ? rank : 0];
}

/* What is wrong with a window on the memory of its row; NULL: nothing. Collective. */
HARNESS_UNUSED const char *span_fault(const struct span_rank *r, const struct span_row *row,
                                      const struct span *s)
{
    const size_t at = span_cuts_of(row, r->rank)->at;
    char *const own = span_at(s, at);
    symwin_window *window = NULL, *again = NULL;
    symwin_window_info info, other;
    symwin_comm_info comm;
    int wrong;

    if (symwin_window_register(r->comm, own, row->bytes, 0, &window) != SYMWIN_OK)
        return symwin_last_error();
    host_must(symwin_window_query(r->comm, window, &info), "symwin_window_query");
    if (info.ptr != own || info.bytes != row->bytes ||
        info.allocations != span_touched(s, at, row->bytes))
        return "the query";
    wrong = span_wrong_words(r, window, own, at, row->bytes, 5000000);
    if (wrong > 0)
        return "words of peers";
    if (span_wrong_sums(r, own + at % 4, row->bytes - at % 4) > 0)
        return "a sum";
    r->meet(r->others);
    if (symwin_window_register(r->comm, own, row->bytes, 0, &again) != SYMWIN_OK)
        return symwin_last_error();
    host_must(symwin_window_query(r->comm, again, &other), "symwin_window_query");
    host_must(symwin_comm_query(r->comm, &comm), "symwin_comm_query");
    if (other.offset != info.offset || comm.allocations != 1)
        return "a second window does not share what the first one mapped";
    host_must(symwin_window_deregister(r->comm, window), "symwin_window_deregister");
    wrong = span_wrong_words(r, again, own, at, row->bytes, 7000000);
    if (wrong > 0)
        return "words of peers, by the second window";
    host_must(symwin_window_deregister(r->comm, again), "symwin_window_deregister");
    r->meet(r->others);
    host_must(symwin_comm_query(r->comm, &comm), "symwin_comm_query");
    return comm.allocations == 0 ? NULL : "something stays mapped";
}

#endif
