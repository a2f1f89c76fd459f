/* The fault sweep: every driver call that a public call makes is failed, one after the other.
 *
 * For each case the N-th driver call of one rank fails, N = 1, 2, ... until the call outruns the
 * fault; once only that call, once it and all later ones. Whatever happens, all ranks of a collective
 * host call return one status, out-pointers are set on success only, a failure has a text, nothing is
 * left behind, and without a fault the call succeeds.
 */
#include <string.h>
#include <unistd.h>

#include "harness.h"

#if defined(__SANITIZE_THREAD__)
enum { STEP = 1201, ALL_UP_TO = 2 }; /* of N: each run costs more than ten times as much */
#elif defined(__SANITIZE_ADDRESS__)
enum { STEP = 13, ALL_UP_TO = 20 };
#else
enum { STEP = 1, ALL_UP_TO = 1 };
#endif

/* Of N where kernels are loaded, hundreds by the same few calls each; no multiple of how many these are. */
enum { KERNEL_STEP = 11 };

enum { MOST_RANKS = 4, BYTES = 3 << 20, MOST_CALLS = 5000 };

static const CUresult codes[] = {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN,
                                 CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_INVALID_VALUE};

/* What a rank holds between setting up, the call under test and clearing up. */
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

struct fault_case {
    const char *name;
    int nranks;
    /* Sets up without faults; NULL: nothing to do. */
    symwin_status (*before)(struct harness_team *team, int rank, struct state *s);
    symwin_status (*call)(struct harness_team *team, int rank, struct state *s);
    /* Whether the call has set its out-pointer; NULL: it has none. */
    int (*made)(const struct state *s);
    int alike; /* all ranks must return one status */
};

/* One run of a case. */
struct trial {
    const struct fault_case *c;
    int victim, persistent;
    unsigned nth;
    CUresult code;
    int fired;
    symwin_status status[MOST_RANKS];
    int made[MOST_RANKS];
    int silent; /* a failure without a text */
    int loads;  /* the victim's was at a call that loads a kernel */
};

/* ---- the cases ---- */

static symwin_status comm_create(struct harness_team *team, int rank, struct state *s)
{
    const symwin_comm_options options = {
        .size = sizeof options,
        .timeout_ms = 20000,
        .kernel_timeout_ms = 20000,
        .slot_bytes = 8192}; /* a sanitizer goes over every byte of them when they are cleared */

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

/* Which says nothing of a failure: the memory is there still, for clear() to free. */
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
    const symwin_allreduce_options options = {sizeof options, algo, 1, 0};
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

/* The first call on registered memory, and its end. */
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
    {"allreduce on another stream", 2, with_call_before, allreduce_oneshot, NULL, 0},
    {"register, another allocator's", 1, with_foreign, register_foreign, made_registration, 0},
    {"allreduce that connects", 2, with_registered, connect_and_leave, NULL, 0},
    {"allreduce that connects", 4, with_registered, connect_and_leave, NULL, 0},
    {"allreduce in a capture", 2, with_comm, capture, NULL, 0},
};

/* ---- one run ---- */

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

static void trial_body(struct harness_team *team, int rank, void *arg)
{
    struct trial *t = arg;
    struct state s = {.on = harness_device(rank)};
    symwin_status status = SYMWIN_OK;

    if (t->c->before != NULL)
        status = t->c->before(team, rank, &s);
    if (status != SYMWIN_OK) {
        fprintf(stderr, "%s: rank %d cannot set up: %s\n", t->c->name, rank, symwin_last_error());
        exit(1);
    }
    harness_barrier(team);
    if (rank == t->victim)
        sw_emu_fail_nth(t->nth, t->code, t->persistent, 0);
    status = t->c->call(team, rank, &s);
    if (rank == t->victim) {
        t->fired = sw_emu_fault_fired();
        sw_emu_fail_nth(0, CUDA_SUCCESS, 0, 0);
    }
    t->status[rank] = status;
    t->made[rank] = t->c->made != NULL && t->c->made(&s);
    if (status != SYMWIN_OK && symwin_last_error()[0] == '\0')
        t->silent = 1;
    if (rank == t->victim)
        t->loads = status != SYMWIN_OK && strstr(symwin_last_error(), " of sw_allreduce_") != NULL;
    /* A rank that failed alone leaves the kernels of the others waiting for it. */
    if (status != SYMWIN_OK && s.comm != NULL && !t->c->alike)
        (void)symwin_comm_abort(s.comm);
    harness_barrier(team);
    clear(&s);
}

static const char *verdict(const struct trial *t, const struct harness_leaks *before)
{
    const struct harness_leaks now = harness_leaks_now();
    int r;

    for (r = 0; r < t->c->nranks; r++) {
        if (t->c->alike && t->status[r] != t->status[0])
            return "the ranks' statuses differ";
        if (t->c->made != NULL && t->made[r] != (t->status[r] == SYMWIN_OK))
            return "an out-pointer and its status disagree";
        if (!t->fired && t->status[r] != SYMWIN_OK)
            return "fails without a fault";
    }
    if (t->silent)
        return "a failure has no text";
    if (now.objects != before->objects)
        return "driver objects are left behind";
    if (now.fds != before->fds)
        return "descriptors are left behind";
    return NULL;
}

/* ---- the sweep ---- */

static int total;

static void sweep(const struct fault_case *c, int victim, int persistent)
{
    const struct harness_leaks before = harness_leaks_now();
    int failures = 0; /* runs in which the call failed */
    int runs = 0;
    unsigned nth, step = 1;

    for (nth = 1; nth < MOST_CALLS; nth += step) {
        struct trial t = {.c = c, .victim = victim, .persistent = persistent, .nth = nth};
        const char *wrong;

        t.code = codes[nth % (sizeof codes / sizeof codes[0])];
        harness_run(c->nranks, trial_body, &t);
        runs++;
        failures += t.status[victim] != SYMWIN_OK;
        wrong = verdict(&t, &before);
        if (wrong != NULL) {
            tap_ok(0, "%s, %d ranks: call %u of rank %d gives %d%s: %s", c->name, c->nranks, nth,
                   victim, (int)t.code, persistent ? " for good" : "", wrong);
            sw_emu_live_print(2);
            return;
        }
        if (!t.fired)
            break;
        step = nth < ALL_UP_TO ? 1 : STEP;
        if (t.loads && step < KERNEL_STEP)
            step = KERNEL_STEP;
    }
    total += runs;
    tap_ok(nth < MOST_CALLS && failures > 0, "%s, %d ranks: %d faults on rank %d%s, %d failed it",
           c->name, c->nranks, runs - 1, victim, persistent ? ", each for good" : "", failures);
}

int main(void)
{
    size_t i;
    int victim, persistent;

    setenv("SYMWIN_DRIVER", "emu", 1);
    harness_start();
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (victim = 0; victim < cases[i].nranks; victim++)
            for (persistent = 0; persistent < 2; persistent++)
                if (victim == 0 || victim == cases[i].nranks - 1 || !cases[i].alike)
                    sweep(&cases[i], victim, persistent);
    printf("# %d runs with a fault\n", total);
    return tap_done();
}
