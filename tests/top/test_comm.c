/* Creation of communicators, by ranks that agree and by ranks that do not. test_comm_failure.c
 * tests later failures. */
#include <unistd.h>

#include "windows.h"

#define SENTINEL ((symwin_comm *)(uintptr_t)0x5e5e5e5e)

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { STEP = 5 }; /* 1, 2, 3 and 8 ranks */
#else
enum { STEP = 1 };
#endif

/* ---- ranks that agree ---- */

struct shape {
    int nranks;
    int devices; /* that the ranks are spread over */
};

static void *bases[8];

static void check_query(struct harness_team *team, int rank, int device, int devices,
                        symwin_comm *comm)
{
    symwin_device_info machine;
    symwin_comm_info info;

    host_must(symwin_comm_query(comm, &info), "symwin_comm_query");
    host_must(symwin_device_query(device, &machine), "symwin_device_query");
    bases[rank] = info.base;
    harness_barrier(team);
    tap_ok(info.nranks == team->nranks && info.rank == rank && info.device == device &&
               info.windows == 0 && info.allocations == 0 && info.base == bases[0],
           "%d ranks on %d devices: rank %d is as it was made", team->nranks, devices, rank);
    tap_ok(info.stride >= machine.total_bytes && (info.stride & (info.stride - 1)) == 0,
           "%d ranks on %d devices: a power of two holds the device", team->nranks, devices);
    TAP_EQ("multicast where each rank has a device", info.multicast,
           team->nranks > 1 && devices >= team->nranks);
    host_expect("nothing is wrong", symwin_comm_check(comm), SYMWIN_OK, "");
}

static void run_shape(struct harness_team *team, int rank, void *arg)
{
    const struct shape *shape = arg;
    const int device = rank % shape->devices;
    struct CUstream_st *stream = NULL;
    symwin_comm *comm = NULL;
    uint32_t sum;
    void *data;

    host_must(symwin_comm_create(&team->id, team->nranks, rank, device, NULL, &comm),
              "symwin_comm_create");
    check_query(team, rank, device, shape->devices, comm);
    host_must(symwin_stream_create(device, &stream), "symwin_stream_create");
    data = host_alloc(device, 4);
    host_put_u32(device, data, 1u << rank);
    host_must(symwin_allreduce(comm, data, data, 1, SYMWIN_U32, SYMWIN_SUM, stream),
              "symwin_allreduce");
    host_must(symwin_stream_synchronize(device, stream), "symwin_stream_synchronize");
    sum = host_get_u32(device, data);
    TAP_EQ("and it reduces", sum, (1u << team->nranks) - 1);
    host_must(symwin_stream_destroy(device, stream), "symwin_stream_destroy");
    symwin_comm_destroy(comm);
    host_must(symwin_mem_free(data), "symwin_mem_free");
}

static void shapes(void)
{
    static const int devices[] = {8, 1, 2};
    const struct harness_leaks before = harness_leaks_now();
    struct shape shape;
    size_t i;

    for (shape.nranks = 1; shape.nranks <= 8; shape.nranks += shape.nranks < 3 ? 1 : STEP)
        for (i = 0; i < sizeof devices / sizeof devices[0]; i++) {
            shape.devices = devices[i];
            harness_run(shape.nranks, run_shape, &shape);
        }
    harness_no_leaks("shapes", &before);
}

static void run_current_device(struct harness_team *team, int rank, void *arg)
{
    symwin_comm *comm = SENTINEL;
    symwin_comm_info info;
    struct sw_scope scope;

    host_expect("no current device",
                symwin_comm_create(&team->id, 2, rank, SYMWIN_DEVICE_CURRENT, NULL, &comm),
                SYMWIN_INVALID, "symwin_comm_create|current CUDA context");
    tap_ok(comm == SENTINEL, "the out-pointer is untouched");
    host_must(sw_scope_enter(5 - rank, &scope), "sw_scope_enter");
    host_expect("the current device",
                symwin_comm_create(arg, 2, rank, SYMWIN_DEVICE_CURRENT, NULL, &comm), SYMWIN_OK,
                "");
    host_must(symwin_comm_query(comm, &info), "symwin_comm_query");
    TAP_EQ("is the context's", info.device, 5 - rank);
    symwin_comm_destroy(comm);
    sw_scope_leave(&scope);
}

/* ---- ranks that do not agree ---- */

struct join {
    int nranks, rank;
    symwin_comm_options options; /* size 0: no options */
};

struct disagreement {
    const char *name;
    struct join joins[3]; /* nranks 0: no more ranks */
    symwin_status want;
    const char *words;
};

#define WITH(...)                                                                                  \
    {                                                                                              \
        .size = sizeof(symwin_comm_options), __VA_ARGS__                                           \
    }

static const struct disagreement disagreements[] = {
    {"a rank that comes twice", {{2, 1, {0}}, {2, 1, {0}}}, SYMWIN_INVALID, "rank 1 joined twice"},
    {"nranks that differ",
     {{2, 0, {0}}, {3, 1, {0}}},
     SYMWIN_MISMATCH,
     "nranks differ|rank 0 passed 2|rank 1 passed 3"},
    {"nranks of which one differs",
     {{3, 0, {0}}, {3, 1, {0}}, {4, 2, {0}}},
     SYMWIN_MISMATCH,
     "nranks differ|rank 2 passed 4, the 2 ranks before it passed 3"},
    {"nranks that differ among the first two of three",
     {{3, 2, {0}}, {2, 1, {0}}, {3, 0, {0}}},
     SYMWIN_MISMATCH,
     "nranks differ|rank 2 passed 3, rank 1 passed 2"},
    {"a rank that is missing",
     {{3, 0, WITH(.timeout_ms = 800)}, {3, 1, WITH(.timeout_ms = 800)}},
     SYMWIN_TIMEOUT,
     "rank 2 did not join within 800 ms|2 of 3"},
    {"two ranks that are missing",
     {{4, 3, WITH(.timeout_ms = 800)}, {4, 1, WITH(.timeout_ms = 800)}},
     SYMWIN_TIMEOUT,
     "rank 0 did not join|2 of 4"},
    {"slot_bytes that differ",
     {{2, 0, WITH(.slot_bytes = 4096)}, {2, 1, WITH(.slot_bytes = 8192)}},
     SYMWIN_MISMATCH,
     "slot_bytes differs|rank 0 passed 4096|rank 1 passed 8192"},
    {"slot_bytes of one rank only",
     {{2, 0, {0}}, {2, 1, WITH(.slot_bytes = 8192)}},
     SYMWIN_MISMATCH,
     "slot_bytes differs|rank 1 passed 8192"},
    {"flags that differ",
     {{3, 0, {0}}, {3, 1, {0}}, {3, 2, WITH(.flags = SYMWIN_COMM_NO_MULTICAST)}},
     SYMWIN_MISMATCH,
     "flags differs|rank 0 passed 0|rank 2 passed 2"},
    {"max_blocks that differ",
     {{2, 0, WITH(.max_blocks = 3)}, {2, 1, WITH(.max_blocks = 2)}},
     SYMWIN_MISMATCH,
     "max_blocks differs|rank 0 passed 3|rank 1 passed 2"},
    {"timeouts that differ, which is fine",
     {{2, 0, WITH(.timeout_ms = 20000)},
      {2, 1, WITH(.timeout_ms = 30000, .kernel_timeout_ms = -1)}},
     SYMWIN_OK,
     ""},
};

static void run_disagreement(struct harness_team *team, int rank, void *arg)
{
    const struct disagreement *d = arg;
    const struct join *join = &d->joins[rank];
    symwin_comm *comm = SENTINEL;
    char name[80];

    snprintf(name, sizeof name, "%s, seen by rank %d", d->name, join->rank);
    if (join->nranks != d->joins[0].nranks || d->joins[2].nranks > 0)
        host_pause_ms(150 * rank); /* in turn: who differs depends on who has joined */
    host_expect(name,
                symwin_comm_create(&team->id, join->nranks, join->rank, rank,
                                   join->options.size != 0 ? &join->options : NULL, &comm),
                d->want, d->words);
    if (d->want == SYMWIN_OK)
        symwin_comm_destroy(comm);
    else
        tap_ok(comm == SENTINEL && host_error_has("symwin_comm_create"),
               "%s: the out-pointer is untouched", name);
}

static void disagree(void)
{
    const struct harness_leaks before = harness_leaks_now();
    size_t i;

    for (i = 0; i < sizeof disagreements / sizeof disagreements[0]; i++) {
        const struct disagreement *d = &disagreements[i];
        int come = 0;

        while (come < 3 && d->joins[come].nranks > 0)
            come++;
        harness_run(come, run_disagreement, (void *)(uintptr_t)d);
    }
    harness_no_leaks("disagreements", &before);
}

/* A slow rank joins after the others have given up, and gets the reason at once. */
static void run_straggler(struct harness_team *team, int rank, void *arg)
{
    const symwin_comm_options options = {.size = sizeof options, .timeout_ms = 100};
    symwin_comm *comm = SENTINEL;

    (void)arg;
    if (rank == 1)
        harness_barrier(team);
    host_expect(rank == 0 ? "a rank that waited in vain" : "a rank that comes too late",
                symwin_comm_create(&team->id, 2, rank, rank, &options, &comm), SYMWIN_TIMEOUT,
                "rank 1 did not join");
    tap_ok(comm == SENTINEL, "the out-pointer is untouched");
    if (rank == 0)
        harness_barrier(team);
}

/* ---- a rank that is slow once all have joined ---- */

struct slow {
    const char *name;
    int timeout_ms, bootstrap_timeout_ms, slow_ms;
    symwin_status want;
};

static const struct slow slows[] = {
    {"more time to join than to call", 100, 20000, 400, SYMWIN_OK},
    {"the least time to call", 1, 20000, 50, SYMWIN_OK},
    {"less time to join than to call", 20000, 1500, 4000, SYMWIN_TIMEOUT},
};

static CUresult (*plain_retain)(CUcontext *, CUdevice);
static CUresult (*plain_create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
                                unsigned long long);
static int slow_ms;
static atomic_int has_returned[2];

/* Device 1 is rank 1's. */
static CUresult slow_retain(CUcontext *context, CUdevice device)
{
    host_pause_ms(device == 1 ? slow_ms : 0);
    return plain_retain(context, device);
}

static CUresult slow_create(CUmemGenericAllocationHandle *handle, size_t bytes,
                            const CUmemAllocationProp *prop, unsigned long long flags)
{
    host_pause_ms(prop->location.id == 1 ? slow_ms : 0);
    return plain_create(handle, bytes, prop, flags);
}

static void run_slow(struct harness_team *team, int rank, void *arg)
{
    const struct slow *slow = arg;
    const symwin_comm_options options = {.size = sizeof options,
                                         .timeout_ms = slow->timeout_ms,
                                         .bootstrap_timeout_ms = slow->bootstrap_timeout_ms};
    symwin_comm *comm = SENTINEL;
    const symwin_status status = symwin_comm_create(&team->id, 2, rank, rank, &options, &comm);

    atomic_store(&has_returned[rank], 1);
    host_expect(slow->name, status, slow->want,
                "symwin_comm_create|rank 1 |create|again|new id|bootstrap_timeout_ms");
    if (slow->want == SYMWIN_OK) {
        symwin_comm_destroy(comm);
        return;
    }
    tap_ok(comm == SENTINEL && !host_error_has("destroy"), "%s: nothing is to be destroyed",
           slow->name);
    if (rank == 1) /* slow twice */
        tap_ok(atomic_load(&has_returned[0]), "%s: the other rank does not wait longer",
               slow->name);
}

static void slow_ranks(void)
{
    const struct harness_leaks before = harness_leaks_now();
    size_t i;

    plain_retain = sw_drv.cuDevicePrimaryCtxRetain;
    plain_create = sw_drv.cuMemCreate;
    for (i = 0; i < 2 * sizeof slows / sizeof slows[0]; i++) {
        slow_ms = slows[i / 2].slow_ms;
        atomic_store(&has_returned[0], 0);
        if (i % 2 == 0) /* before the first agreement, or after it */
            sw_drv.cuDevicePrimaryCtxRetain = slow_retain;
        else
            sw_drv.cuMemCreate = slow_create;
        harness_run(2, run_slow, (void *)(uintptr_t)&slows[i / 2]);
        sw_drv.cuDevicePrimaryCtxRetain = plain_retain;
        sw_drv.cuMemCreate = plain_create;
    }
    harness_no_leaks("slow ranks", &before);
}

/* ---- ranks in the driver at once: a slow device keeps nobody on another one ---- */

static atomic_int slow_calls; /* the driver's, so far, on device 1 */

/* The second call stays until the other rank has its communicator, 10 s at most. */
static void stay(int device)
{
    int ms = 0;

    if (device == 1 && atomic_fetch_add(&slow_calls, 1) == 1)
        while (!atomic_load(&has_returned[0]) && ms++ < 10000)
            host_pause_ms(1);
}

static _Thread_local int own_calls;

/* The second call of a rank stays until the other rank is in its own, 10 s at most. */
static void stay_together(int device)
{
    int ms = 0;

    (void)device;
    if (++own_calls != 2)
        return;
    atomic_fetch_add(&slow_calls, 1);
    while (atomic_load(&slow_calls) < 2 && ms++ < 10000)
        host_pause_ms(1);
}

static void (*stays)(int device);

static CUresult stay_in_retain(CUcontext *context, CUdevice device)
{
    stays(device);
    return plain_retain(context, device);
}

static CUresult stay_in_create(CUmemGenericAllocationHandle *handle, size_t bytes,
                               const CUmemAllocationProp *prop, unsigned long long flags)
{
    stays(prop->location.id);
    return plain_create(handle, bytes, prop, flags);
}

static void run_apart(struct harness_team *team, int rank, void *arg)
{
    symwin_unique_id id;
    symwin_comm *comm = NULL;
    int waits = 0;

    (void)team;
    while (rank == 0 && atomic_load(&slow_calls) < 2 && waits++ < 10000)
        host_pause_ms(1);
    host_must(symwin_unique_id_create(&id), "symwin_unique_id_create");
    host_must(symwin_comm_create(&id, 1, 0, rank, NULL, &comm), "symwin_comm_create");
    if (rank == 1)
        tap_ok(atomic_load(&has_returned[0]), "%s of one device keeps no rank of another",
               (const char *)arg);
    atomic_store(&has_returned[rank], 1);
    symwin_comm_destroy(comm);
}

/* Each has made a page, and one would do: both are used, or one goes. */
static void run_at_once(struct harness_team *team, int rank, void *arg)
{
    symwin_unique_id id;
    symwin_comm *comm = NULL;

    own_calls = 0;
    host_must(symwin_unique_id_create(&id), "symwin_unique_id_create");
    host_must(symwin_comm_create(&id, 1, 0, 0, NULL, &comm), "symwin_comm_create");
    tap_ok(atomic_load(&slow_calls) == 2, "rank %d: %s at once", rank, (const char *)arg);
    harness_barrier(team);
    symwin_comm_destroy(comm);
}

static void in_the_driver(void)
{
    static const struct {
        const char *name;
        int in_create, on_one_device;
    } cases[] = {{"cuDevicePrimaryCtxRetain", 0, 0},
                 {"cuMemCreate", 1, 0},
                 {"cuDevicePrimaryCtxRetain", 0, 1},
                 {"cuMemCreate", 1, 1}};
    const struct harness_leaks before = harness_leaks_now();
    size_t i;

    plain_retain = sw_drv.cuDevicePrimaryCtxRetain;
    plain_create = sw_drv.cuMemCreate;
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        atomic_store(&slow_calls, 0);
        atomic_store(&has_returned[0], 0);
        stays = cases[i].on_one_device ? stay_together : stay;
        sw_drv.cuDevicePrimaryCtxRetain = cases[i].in_create ? plain_retain : stay_in_retain;
        sw_drv.cuMemCreate = cases[i].in_create ? stay_in_create : plain_create;
        harness_run(2, cases[i].on_one_device ? run_at_once : run_apart, (void *)cases[i].name);
        harness_no_leaks(cases[i].name, &before);
    }
    sw_drv.cuDevicePrimaryCtxRetain = plain_retain;
    sw_drv.cuMemCreate = plain_create;
}

/* A rank past its own time names itself: the other one, which has more, is not late. */
static void run_impatient(struct harness_team *team, int rank, void *arg)
{
    const symwin_comm_options options = {.size = sizeof options,
                                         .bootstrap_timeout_ms = rank == 1 ? 200 : 20000};
    symwin_comm *comm = SENTINEL;

    (void)arg;
    host_expect("a slow rank with less time than the other",
                symwin_comm_create(&team->id, 2, rank, rank, &options, &comm), SYMWIN_TIMEOUT,
                "symwin_comm_create|rank 1: its time was over");
    tap_ok(comm == SENTINEL, "the out-pointer is untouched");
}

static void impatient(void)
{
    plain_retain = sw_drv.cuDevicePrimaryCtxRetain;
    slow_ms = 500;
    sw_drv.cuDevicePrimaryCtxRetain = slow_retain;
    harness_run(2, run_impatient, NULL);
    sw_drv.cuDevicePrimaryCtxRetain = plain_retain;
}

/* ---- ids ---- */

static void run_used_id(struct harness_team *team, int rank, void *arg)
{
    const symwin_comm_options options = {.size = sizeof options, .timeout_ms = 100};
    symwin_comm *comm = NULL;
    symwin_comm *more = SENTINEL;

    (void)arg;
    host_must(harness_comm(team, rank, &comm), "symwin_comm_create");
    if (rank == 0) {
        host_expect("an id that has served",
                    symwin_comm_create(&team->id, 2, 0, 0, &options, &more), SYMWIN_INVALID,
                    "this id has been used");
        tap_ok(more == SENTINEL, "the out-pointer is untouched");
    }
    harness_barrier(team);
    host_expect("the communicator is not harmed", symwin_comm_check(comm), SYMWIN_OK, "");
    symwin_comm_destroy(comm);
}

/* The id is released while a rank waits with it. */
static void run_released_id(struct harness_team *team, int rank, void *arg)
{
    symwin_comm *comm = SENTINEL;

    (void)arg;
    if (rank == 0) {
        host_expect("a rank that waits with an id that is released",
                    symwin_comm_create(&team->id, 2, 0, 0, NULL, &comm), SYMWIN_ABORTED,
                    "was released");
        tap_ok(comm == SENTINEL, "the out-pointer is untouched");
        return;
    }
    host_pause_ms(50);
    host_must(symwin_unique_id_release(&team->id), "symwin_unique_id_release");
}

static void ids(void)
{
    const struct harness_leaks before = harness_leaks_now();
    symwin_unique_id id, other, garbage;
    symwin_comm *comm = SENTINEL;

    host_must(symwin_unique_id_create(&id), "symwin_unique_id_create");
    host_must(symwin_unique_id_create(&other), "symwin_unique_id_create");
    tap_ok(memcmp(&id, &other, sizeof id) != 0, "ids differ");
    memset(&garbage, 0, sizeof garbage);
    host_expect("an id of zeros", symwin_comm_create(&garbage, 1, 0, 0, NULL, &comm),
                SYMWIN_INVALID, "symwin_comm_create|id was not made");
    garbage = id;
    garbage.bytes[0] ^= 1;
    host_expect("an id that was changed", symwin_comm_create(&garbage, 1, 0, 0, NULL, &comm),
                SYMWIN_INVALID, "symwin_comm_create|id was not made");
    tap_ok(comm == SENTINEL, "the out-pointer is untouched");
    host_expect("an id is released", symwin_unique_id_release(&id), SYMWIN_OK, "");
    host_expect("once", symwin_unique_id_release(&id), SYMWIN_INVALID, "released before");
    host_expect("no id", symwin_unique_id_release(NULL), SYMWIN_INVALID, "id is NULL");
    host_expect("a released id", symwin_comm_create(&id, 1, 0, 0, NULL, &comm), SYMWIN_ABORTED,
                "was released");
    host_must(symwin_unique_id_release(&other), "symwin_unique_id_release");
    harness_run(2, run_released_id, NULL);
    harness_run(2, run_used_id, NULL);
    harness_no_leaks("ids", &before);
}

/* ---- many at the same time ---- */

/* Communicators created one after the other, and alive at the same time, in one process. */
static void run_many(struct harness_team *team, int rank, void *arg)
{
    enum { MANY = 6 };
    const symwin_unique_id *id = arg;
    symwin_comm *comms[MANY] = {NULL};
    int i, j;

    for (i = 0; i < MANY; i++)
        host_must(symwin_comm_create(&id[i], team->nranks, rank, rank, NULL, &comms[i]),
                  "symwin_comm_create");
    for (i = 0; i < MANY; i++) {
        j = (i * 5 + rank) % MANY; /* each rank in a different order */
        symwin_comm_destroy(comms[j]);
    }
    tap_ok(1, "rank %d: %d communicators side by side", rank, (int)MANY);
}

static void many(void)
{
    const struct harness_leaks before = harness_leaks_now();
    symwin_unique_id id[6];
    size_t i;

    for (i = 0; i < sizeof id / sizeof id[0]; i++)
        host_must(symwin_unique_id_create(&id[i]), "symwin_unique_id_create");
    harness_run(3, run_many, id);
    harness_no_leaks("many communicators", &before);
}

/* ---- the caller's context ---- */

static void expect_context(const char *call, CUcontext want)
{
    CUcontext now = (CUcontext)(uintptr_t)1;

    host_must_cuda(sw_drv.cuCtxGetCurrent(&now), "cuCtxGetCurrent");
    tap_ok(now == want, "%s leaves the caller's context as it was%s", call,
           want == NULL ? ", which is none" : "");
}

/* Makes every call that works with a device while another device's context is current, or none. */
static void call_everything(struct harness_team *team, int rank, const symwin_unique_id *id,
                            CUcontext context)
{
    struct CUstream_st *stream = NULL;
    symwin_mem_handle handle = {.fd = -1};
    symwin_window *window = NULL;
    symwin_comm *comm = NULL;
    void *copy = NULL;
    void *ptr;
    uint32_t word = 0;

    ptr = host_alloc(rank, 4096);
    expect_context("symwin_mem_alloc", context);
    host_must(symwin_mem_export(ptr, SYMWIN_HANDLE_POSIX_FD, &handle), "symwin_mem_export");
    host_must(symwin_mem_import(rank, &handle, &copy), "symwin_mem_import");
    expect_context("symwin_mem_import", context);
    close(handle.fd);
    host_must(symwin_mem_free(copy), "symwin_mem_free");
    expect_context("symwin_mem_free", context);
    host_must(symwin_comm_create(id, team->nranks, rank, rank, NULL, &comm), "symwin_comm_create");
    expect_context("symwin_comm_create", context);
    host_must(symwin_stream_create(rank, &stream), "symwin_stream_create");
    expect_context("symwin_stream_create", context);
    host_must(symwin_window_register(comm, ptr, 4096, 0, &window), "symwin_window_register");
    expect_context("symwin_window_register", context);
    host_must(symwin_allreduce(comm, ptr, ptr, 4, SYMWIN_F32, SYMWIN_SUM, stream),
              "symwin_allreduce");
    expect_context("symwin_allreduce", context);
    host_must(symwin_stream_synchronize(rank, stream), "symwin_stream_synchronize");
    expect_context("symwin_stream_synchronize", context);
    host_must(symwin_memcpy(rank, &word, ptr, 4, stream), "symwin_memcpy");
    expect_context("symwin_memcpy", context);
    tap_ok(symwin_window_register(comm, NULL, 1, 0, &window) == SYMWIN_INVALID, "a refused window");
    expect_context("a refused symwin_window_register", context);
    host_must(symwin_stream_synchronize(rank, stream), "symwin_stream_synchronize");
    host_must(symwin_window_deregister(comm, window), "symwin_window_deregister");
    expect_context("symwin_window_deregister", context);
    symwin_comm_destroy(comm);
    expect_context("symwin_comm_destroy", context);
    host_must(symwin_stream_destroy(rank, stream), "symwin_stream_destroy");
    expect_context("symwin_stream_destroy", context);
    host_must(symwin_mem_free(ptr), "symwin_mem_free");
}

static void run_contexts(struct harness_team *team, int rank, void *arg)
{
    const symwin_unique_id *id = arg;
    struct sw_scope scope;
    CUcontext context = NULL;

    call_everything(team, rank, &id[0], NULL);
    host_must(sw_scope_enter(7, &scope), "sw_scope_enter");
    host_must_cuda(sw_drv.cuCtxGetCurrent(&context), "cuCtxGetCurrent");
    call_everything(team, rank, &id[1], context);
    sw_scope_leave(&scope);
    expect_context("the end", NULL);
}

static void contexts(void)
{
    const struct harness_leaks before = harness_leaks_now();
    symwin_unique_id id[2];

    host_must(symwin_unique_id_create(&id[0]), "symwin_unique_id_create");
    host_must(symwin_unique_id_create(&id[1]), "symwin_unique_id_create");
    harness_run(2, run_contexts, id);
    harness_no_leaks("contexts", &before);
}

int main(void)
{
    struct harness_leaks before;
    symwin_unique_id second;

    harness_start();
    before = harness_leaks_now();
    symwin_comm_destroy(NULL);
    tap_ok(1, "no communicator is destroyed in peace");
    shapes();
    host_must(symwin_unique_id_create(&second), "symwin_unique_id_create");
    harness_run(2, run_current_device, &second);
    harness_no_leaks("the current device", &before);
    disagree();
    harness_run(2, run_straggler, NULL);
    harness_no_leaks("a straggler", &before);
    slow_ranks();
    in_the_driver();
    impatient();
    ids();
    many();
    contexts();
    return tap_done();
}
