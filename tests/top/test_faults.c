/* The fault sweep of the public calls; fault_sweep.h describes what it does with each. */
#include "each_call.h"

enum { BYTES = 3 << 20 };

/* A rank's objects between setup, the call under test and cleanup. */
struct state {
    int on; /* the rank's device */
    symwin_comm *comm;
    symwin_window *known, *window;
    void *memory, *out;
    symwin_registration *registration;
    struct sw_scope scope;
    CUdeviceptr foreign;
    int capturing;
    struct CUstream_st *stream;
    symwin_mem_handle handle;
    symwin_mem_info info;
    symwin_driver_info driver;
    symwin_device_info device;
};

#include "fault_sweep.h"

/* ---- the cases ---- */

static symwin_status comm_create(struct harness_team *team, int rank, struct state *s)
{
    const symwin_comm_options options = {
        .size = sizeof options,
        .timeout_ms = 20000,
        .kernel_timeout_ms = 20000,
        .slot_bytes = 8192}; /* smaller: a sanitizer checks every byte when they are cleared */

    return symwin_comm_create(&team->id, team->nranks, rank, s->on, &options, &s->comm);
}

static int made_comm(const struct state *s)
{
    return s->comm != NULL;
}

static symwin_status mem_alloc(struct harness_team *team, int rank, struct state *s)
{
    (void)team;
    (void)rank;
    return symwin_mem_alloc(s->on, BYTES, 0, &s->out);
}

static symwin_status mem_alloc_peers(struct harness_team *team, int rank, struct state *s)
{
    (void)team;
    (void)rank;
    return symwin_mem_alloc(s->on, BYTES, SYMWIN_MEM_PEERS, &s->out);
}

static int made_memory(const struct state *s)
{
    return s->out != NULL;
}

static symwin_status with_memory(struct harness_team *team, int rank, struct state *s)
{
    (void)team;
    (void)rank;
    return symwin_mem_alloc(s->on, BYTES, 0, &s->memory);
}

static symwin_status torch_alloc(struct harness_team *team, int rank, struct state *s)
{
    (void)team;
    (void)rank;
    s->out = symwin_torch_alloc(BYTES, s->on, NULL);
    return s->out != NULL ? SYMWIN_OK : SYMWIN_DRIVER;
}

static symwin_status torch_alloc_small(struct harness_team *team, int rank, struct state *s)
{
    (void)team;
    (void)rank;
    s->out = symwin_torch_alloc(5000, s->on, NULL);
    return s->out != NULL ? SYMWIN_OK : SYMWIN_DRIVER;
}

static symwin_status with_torch_memory(struct harness_team *team, int rank, struct state *s)
{
    const symwin_status status = torch_alloc(team, rank, s);

    s->memory = s->out;
    s->out = NULL;
    return status;
}

/* The call returns no status. After a failure the memory still exists, and clear() frees it. */
static symwin_status torch_free(struct harness_team *team, int rank, struct state *s)
{
    struct sw_allocation a;

    (void)team;
    (void)rank;
    symwin_torch_free(s->memory, BYTES, s->on, NULL);
    if (sw_allocation_find((CUdeviceptr)(uintptr_t)s->memory, &a) == SW_OWNED_LIVE)
        return SYMWIN_DRIVER;
    s->memory = NULL;
    return SYMWIN_OK;
}

static symwin_status mem_query(struct harness_team *team, int rank, struct state *s)
{
    (void)team;
    (void)rank;
    return symwin_mem_query(s->memory, &s->info);
}

static int made_info(const struct state *s)
{
    return s->info.base != NULL;
}

static symwin_status mem_export(struct harness_team *team, int rank, struct state *s)
{
    (void)team;
    (void)rank;
    return symwin_mem_export(s->memory, SYMWIN_HANDLE_POSIX_FD, &s->handle);
}

static int made_handle(const struct state *s)
{
    return s->handle.bytes != 0;
}

static symwin_status with_handle(struct harness_team *team, int rank, struct state *s)
{
    symwin_status status = with_memory(team, rank, s);

    return status == SYMWIN_OK ? mem_export(team, rank, s) : status;
}

static symwin_status mem_import(struct harness_team *team, int rank, struct state *s)
{
    (void)team;
    (void)rank;
    return symwin_mem_import(s->on, &s->handle, &s->out);
}

static symwin_status stream_create(struct harness_team *team, int rank, struct state *s)
{
    (void)team;
    (void)rank;
    return symwin_stream_create(s->on, &s->stream);
}

static int made_stream(const struct state *s)
{
    return s->stream != NULL;
}

static symwin_status with_stream(struct harness_team *team, int rank, struct state *s)
{
    symwin_status status = with_memory(team, rank, s);

    return status == SYMWIN_OK ? stream_create(team, rank, s) : status;
}

static symwin_status stream_synchronize(struct harness_team *team, int rank, struct state *s)
{
    (void)team;
    (void)rank;
    return symwin_stream_synchronize(s->on, s->stream);
}

static symwin_status copy(struct harness_team *team, int rank, struct state *s)
{
    static unsigned char zeros[4096];

    (void)team;
    (void)rank;
    return symwin_memcpy(s->on, s->memory, zeros, sizeof zeros, s->stream);
}

static symwin_status driver_query(struct harness_team *team, int rank, struct state *s)
{
    (void)team;
    (void)rank;
    return symwin_driver_query(&s->driver);
}

static int made_driver(const struct state *s)
{
    return s->driver.name != NULL;
}

static symwin_status device_query(struct harness_team *team, int rank, struct state *s)
{
    (void)team;
    (void)rank;
    return symwin_device_query(0, &s->device);
}

static int made_device(const struct state *s)
{
    return s->device.total_bytes != 0;
}

static symwin_status with_comm(struct harness_team *team, int rank, struct state *s)
{
    symwin_status status = with_stream(team, rank, s);

    return status == SYMWIN_OK ? comm_create(team, rank, s) : status;
}

static symwin_status with_window(struct harness_team *team, int rank, struct state *s)
{
    symwin_status status = with_comm(team, rank, s);

    return status == SYMWIN_OK ? symwin_window_register(s->comm, s->memory, BYTES, 0, &s->known)
                               : status;
}

static symwin_status window_register(struct harness_team *team, int rank, struct state *s)
{
    (void)team;
    (void)rank;
    return symwin_window_register(s->comm, s->memory, BYTES, 0, &s->window);
}

static symwin_status window_register_multicast(struct harness_team *team, int rank, struct state *s)
{
    (void)team;
    (void)rank;
    return symwin_window_register(s->comm, s->memory, BYTES, SYMWIN_WINDOW_MULTICAST, &s->window);
}

static int made_window(const struct state *s)
{
    return s->window != NULL;
}

static symwin_status allreduce(struct state *s, symwin_algo algo, size_t out_offset)
{
    const symwin_allreduce_options options = {.size = sizeof options, .algo = algo, .blocks = 1};
    unsigned char *const in = s->memory;

    return symwin_allreduce_with(s->comm, in, in + out_offset, 999, SYMWIN_F32, SYMWIN_SUM,
                                 &options, s->stream);
}

static symwin_status allreduce_oneshot(struct harness_team *team, int rank, struct state *s)
{
    (void)team;
    (void)rank;
    return allreduce(s, SYMWIN_ALGO_ONESHOT, 0);
}

static symwin_status allreduce_twoshot(struct harness_team *team, int rank, struct state *s)
{
    (void)team;
    (void)rank;
    return allreduce(s, SYMWIN_ALGO_TWOSHOT, 0);
}

static symwin_status allreduce_oneshot_mc(struct harness_team *team, int rank, struct state *s)
{
    (void)team;
    (void)rank;
    return allreduce(s, SYMWIN_ALGO_ONESHOT_MC, 8192);
}

static symwin_status allreduce_twoshot_mc(struct harness_team *team, int rank, struct state *s)
{
    (void)team;
    (void)rank;
    return allreduce(s, SYMWIN_ALGO_TWOSHOT_MC, 0);
}

static symwin_status allreduce_copies(struct harness_team *team, int rank, struct state *s)
{
    (void)team;
    (void)rank;
    return allreduce(s, SYMWIN_ALGO_COPIES, 8192);
}

static struct each each_of(const struct harness_team *team, int rank, const struct state *s)
{
    return (struct each){s->comm, rank, team->nranks, s->on, s->memory, s->stream, 0};
}

static symwin_status with_each(struct harness_team *team, int rank, struct state *s)
{
    const symwin_status status = with_window(team, rank, s);
    const struct each e = each_of(team, rank, s);

    return status == SYMWIN_OK ? each_fill(&e) : status;
}

static symwin_status each(struct harness_team *team, int rank, struct state *s)
{
    const struct each e = each_of(team, rank, s);

    return each_run(&e);
}

/* On a second stream, so that the library has to order the two. */
static symwin_status with_call_before(struct harness_team *team, int rank, struct state *s)
{
    struct CUstream_st *first;
    symwin_status status = with_window(team, rank, s);

    if (status != SYMWIN_OK)
        return status;
    first = s->stream;
    status = symwin_stream_create(s->on, &s->stream);
    if (status == SYMWIN_OK)
        status = symwin_allreduce(s->comm, s->memory, s->memory, 99, SYMWIN_F32, SYMWIN_SUM, first);
    if (status == SYMWIN_OK)
        status = symwin_stream_synchronize(s->on, first);
    symwin_stream_destroy(s->on, first);
    return status;
}

static symwin_status with_foreign(struct harness_team *team, int rank, struct state *s)
{
    symwin_status status = with_comm(team, rank, s);

    if (status == SYMWIN_OK)
        status = sw_scope_enter(s->on, &s->scope);
    return status == SYMWIN_OK ? sw_check(sw_drv.cuMemAlloc(&s->foreign, BYTES), "cuMemAlloc")
                               : status;
}

static symwin_status register_foreign(struct harness_team *team, int rank, struct state *s)
{
    (void)team;
    (void)rank;
    return symwin_register(s->comm, (void *)(uintptr_t)s->foreign, BYTES, &s->registration);
}

static int made_registration(const struct state *s)
{
    return s->registration != NULL;
}

static symwin_status with_registered(struct harness_team *team, int rank, struct state *s)
{
    symwin_status status = with_comm(team, rank, s);

    return status == SYMWIN_OK ? symwin_register(s->comm, s->memory, BYTES, &s->registration)
                               : status;
}

/* The first call on registered memory, and its deregistration. */
static symwin_status connect_and_leave(struct harness_team *team, int rank, struct state *s)
{
    symwin_status status = allreduce_oneshot(team, rank, s), after;

    if (status != SYMWIN_OK)
        return status;
    status = symwin_stream_synchronize(s->on, s->stream);
    after = symwin_deregister(s->comm, s->registration);
    return status != SYMWIN_OK ? status : after;
}

/* In a capture, which clear() ends. */
static symwin_status capture(struct harness_team *team, int rank, struct state *s)
{
    const symwin_status status = sw_check(
        sw_drv.cuStreamBeginCapture(s->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
        "cuStreamBeginCapture");

    s->capturing = status == SYMWIN_OK;
    return status == SYMWIN_OK ? allreduce_oneshot(team, rank, s) : status;
}

static const struct fault_case cases[] = {
    {"driver_query", 1, NULL, driver_query, made_driver, 0},
    {"device_query", 1, NULL, device_query, made_device, 0},
    {"mem_alloc", 1, NULL, mem_alloc, made_memory, 0},
    {"mem_alloc for peers", 1, NULL, mem_alloc_peers, made_memory, 0},
    {"mem_query", 1, with_memory, mem_query, made_info, 0},
    {"mem_export", 1, with_memory, mem_export, made_handle, 0},
    {"mem_import", 1, with_handle, mem_import, made_memory, 0},
    {"torch_alloc", 1, NULL, torch_alloc, made_memory, 0},
    {"torch_alloc, small", 1, NULL, torch_alloc_small, made_memory, 0},
    {"torch_free", 1, with_torch_memory, torch_free, NULL, 0},
    {"stream_create", 1, NULL, stream_create, made_stream, 0},
    {"stream_synchronize", 1, with_stream, stream_synchronize, NULL, 0},
    {"memcpy", 1, with_stream, copy, NULL, 0},
    {"comm_create", 1, NULL, comm_create, made_comm, 1},
    {"comm_create", 2, NULL, comm_create, made_comm, 1},
    {"comm_create", 4, NULL, comm_create, made_comm, 1},
    {"window_register, new", 1, with_comm, window_register, made_window, 1},
    {"window_register, new", 4, with_comm, window_register, made_window, 1},
    {"window_register, known", 4, with_window, window_register, made_window, 1},
    {"window_register, multicast", 2, with_comm, window_register_multicast, made_window, 1},
    {"window_register, multicast", 4, with_comm, window_register_multicast, made_window, 1},
    {"allreduce oneshot", 2, with_window, allreduce_oneshot, NULL, 0},
    {"allreduce twoshot", 4, with_window, allreduce_twoshot, NULL, 0},
    {"allreduce oneshot_mc", 2, with_window, allreduce_oneshot_mc, NULL, 0},
    {"allreduce twoshot_mc", 4, with_window, allreduce_twoshot_mc, NULL, 0},
    {"allreduce copies", 2, with_window, allreduce_copies, NULL, 0},
    {"allreduce copies", 3, with_window, allreduce_copies, NULL, 0},
    {"each other collective", 2, with_each, each, NULL, 0},
    {"allreduce on another stream", 2, with_call_before, allreduce_oneshot, NULL, 0},
    {"register, another allocator's", 1, with_foreign, register_foreign, made_registration, 0},
    {"allreduce that connects", 2, with_registered, connect_and_leave, NULL, 0},
    {"allreduce that connects", 4, with_registered, connect_and_leave, NULL, 0},
    {"allreduce in a capture", 2, with_comm, capture, NULL, 0},
};

/* ---- cleanup ---- */

static void clear(struct state *s)
{
    CUgraph graph = NULL;

    if (s->capturing)
        (void)sw_drv.cuStreamEndCapture(s->stream, &graph);
    if (graph != NULL)
        (void)sw_drv.cuGraphDestroy(graph);
    if (s->stream != NULL && s->comm != NULL)
        (void)symwin_stream_synchronize(s->on, s->stream);
    symwin_comm_destroy(s->comm);
    if (s->foreign != 0)
        (void)sw_drv.cuMemFree(s->foreign);
    if (s->scope.pushed)
        sw_scope_leave(&s->scope);
    if (s->handle.bytes != 0)
        close(s->handle.fd);
    (void)symwin_mem_free(s->memory);
    (void)symwin_mem_free(s->out);
    if (s->stream != NULL)
        (void)symwin_stream_destroy(s->on, s->stream);
}

int main(void)
{
    return sweep_all(cases, sizeof cases / sizeof cases[0]);
}
