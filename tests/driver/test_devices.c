/* Machines with unlike devices: different numbers of ranks on each, old beside new ones, and
 * devices without peer access. The selection must be the same on all ranks. */
#include "harness.h"
#include "src/collective/select.h"

enum { RANKS = 3, COUNT = 1 << 20 /* f32 */, LARGE = 4 * COUNT, BYTES = LARGE * 4 };

static const int alone[RANKS] = {0, 1, 2}, uneven[RANKS] = {0, 2, 2};

struct member {
    symwin_comm *comm;
    int rank, device;
    unsigned char *in, *out; /* BYTES each, in windows */
    struct CUstream_st *stream;
};

static void open_member(struct member *m, struct harness_team *team, int rank, const int *devices,
                        int max_blocks)
{
    const symwin_comm_options options = {.size = sizeof options,
                                         .flags = SYMWIN_COMM_NO_MULTICAST,
                                         .kernel_timeout_ms = 20000,
                                         .max_blocks = max_blocks};
    symwin_window *window;

    m->rank = rank;
    m->device = devices[rank];
    host_must(symwin_comm_create(&team->id, RANKS, rank, m->device, &options, &m->comm), "create");
    m->in = host_alloc(m->device, BYTES);
    m->out = host_alloc(m->device, BYTES);
    host_must(symwin_window_register(m->comm, m->in, BYTES, 0, &window), "register");
    host_must(symwin_window_register(m->comm, m->out, BYTES, 0, &window), "register");
    host_must(symwin_stream_create(m->device, &m->stream), "symwin_stream_create");
}

static void close_member(struct member *m)
{
    host_must(symwin_stream_destroy(m->device, m->stream), "symwin_stream_destroy");
    symwin_comm_destroy(m->comm);
    host_must(symwin_mem_free(m->in), "symwin_mem_free");
    host_must(symwin_mem_free(m->out), "symwin_mem_free");
}

/* The algorithm selected for a message of all bytes. */
static symwin_algo chosen(const struct member *m)
{
    symwin_allreduce_info info = {.blocks = 0};

    host_must(
        symwin_allreduce_query(m->comm, m->in, m->out, LARGE, SYMWIN_F32, SYMWIN_SUM, NULL, &info),
        "symwin_allreduce_query");
    return info.algo;
}

/* Whether a call of `count` elements completes on this rank, with the right last element. */
static void calls(const struct member *m, const char *name, size_t count)
{
    float *const in = (float *)(void *)m->in + count - 1,
                 *out = (float *)(void *)m->out + count - 1;
    const float mine = (float)(m->rank + 1);
    float sum = 0;
    symwin_status status;

    host_must(symwin_memcpy(m->device, in, &mine, 4, m->stream), "symwin_memcpy");
    status = symwin_allreduce(m->comm, m->in, m->out, count, SYMWIN_F32, SYMWIN_SUM, m->stream);
    if (status == SYMWIN_OK)
        status = symwin_memcpy(m->device, &sum, out, 4, m->stream);
    if (status == SYMWIN_OK)
        status = symwin_stream_synchronize(m->device, m->stream);
    if (status == SYMWIN_OK)
        status = symwin_comm_check(m->comm);
    tap_ok(status == SYMWIN_OK && sum == 6, "%s, rank %d: a call: %s%s", name, m->rank,
           symwin_status_name(status), status == SYMWIN_OK ? "" : symwin_last_error());
}

/* Copies would be the fastest here, but they are not selected where a device has several ranks, not
 * even on a rank that has a device alone. */
static void run_uneven(struct harness_team *team, int rank, void *arg)
{
    struct member m;

    (void)arg;
    open_member(&m, team, rank, uneven, 1);
    tap_ok(chosen(&m) == SYMWIN_ALGO_TWOSHOT_BULK, "uneven, rank %d: %s", rank,
           symwin_algo_name(chosen(&m)));
    calls(&m, "uneven", COUNT);
    close_member(&m);
}

static void run_even(struct harness_team *team, int rank, void *arg)
{
    struct member m;

    (void)arg;
    open_member(&m, team, rank, alone, 1);
    tap_ok(chosen(&m) == SYMWIN_ALGO_COPIES, "a device each, rank %d: %s", rank,
           symwin_algo_name(chosen(&m)));
    close_member(&m);
}

/* The last device has no bulk copies: then no rank selects a kernel with them. */
static void run_old(struct harness_team *team, int rank, void *arg)
{
    const symwin_allreduce_options bulk = {.size = sizeof bulk, .algo = SYMWIN_ALGO_TWOSHOT_BULK};
    struct member m;

    (void)arg;
    open_member(&m, team, rank, uneven, 1);
    tap_ok(chosen(&m) != SYMWIN_ALGO_TWOSHOT_BULK, "an old device, rank %d: %s", rank,
           symwin_algo_name(chosen(&m)));
    host_expect(
        "bulk copies asked for",
        symwin_allreduce_with(m.comm, m.in, m.out, COUNT, SYMWIN_F32, SYMWIN_SUM, &bulk, m.stream),
        SYMWIN_UNSUPPORTED, "twoshot_bulk needs sm_90|a device of this communicator is older");
    calls(&m, "an old device", COUNT / 4);
    close_member(&m);
}

/* ---- kernels that begin early ---- */

static CUresult (*launch)(const CUlaunchConfig *, CUfunction, void **, void **);
static atomic_int attributes; /* over all launches */

static CUresult count_attributes(const CUlaunchConfig *config, CUfunction function, void **params,
                                 void **extra)
{
    atomic_fetch_add(&attributes, (int)config->numAttrs);
    return launch(config, function, params, extra);
}

/* Not on a communicator with a limit of blocks: two kernels at once would exceed it. */
static void run_early(struct harness_team *team, int rank, void *arg)
{
    struct member m;

    open_member(&m, team, rank, alone, *(const int *)arg);
    calls(&m, "launches", 1000);
    close_member(&m);
}

static void begins_early(const char *name, int max_blocks, int want)
{
    atomic_store(&attributes, 0);
    launch = sw_drv.cuLaunchKernelEx;
    sw_drv.cuLaunchKernelEx = count_attributes;
    harness_run(RANKS, run_early, &max_blocks);
    sw_drv.cuLaunchKernelEx = launch;
    tap_ok((atomic_load(&attributes) > 0) == want, "%s: kernels %s", name,
           want ? "begin early" : "wait for the one before");
}

static void run_strangers(struct harness_team *team, int rank, void *arg)
{
    symwin_comm *comm = NULL;

    (void)arg;
    host_expect("no peers", symwin_comm_create(&team->id, RANKS, rank, uneven[rank], NULL, &comm),
                SYMWIN_UNSUPPORTED, "cannot access the memory of device");
    tap_ok(comm == NULL, "no peers, rank %d: no communicator", rank);
}

static void import_of_strangers(void)
{
    symwin_mem_handle handle;
    void *ptr = NULL, *copy = NULL;

    host_must(symwin_mem_alloc(0, GRANULE, SYMWIN_MEM_PEERS, &ptr), "for peers, of which none is");
    host_must(symwin_mem_export(ptr, SYMWIN_HANDLE_POSIX_FD, &handle), "export");
    host_expect("an import for a device that is no peer", symwin_mem_import(1, &handle, &copy),
                SYMWIN_UNSUPPORTED, "symwin_mem_import|cuMemSetAccess");
    host_must(symwin_mem_import(0, &handle, &copy), "import");
    close(handle.fd);
    host_must(symwin_mem_free(copy), "symwin_mem_free");
    host_must(symwin_mem_free(ptr), "symwin_mem_free");
    host_must(symwin_mem_trim(SYMWIN_DEVICE_ALL, 0), "symwin_mem_trim");
}

static void configure(int old, int strangers)
{
    struct sw_emu_machine machine;

    /* The machine can be configured only while no object exists. */
    symwin_mem_trim(SYMWIN_DEVICE_ALL, 0);
    sw_emu_machine(&machine);
    machine.devices = RANKS;
    machine.old = old;
    machine.strangers = strangers;
    if (sw_emu_configure(&machine) != CUDA_SUCCESS)
        abort();
}

int main(void)
{
    struct harness_leaks before;

    setenv("SYMWIN_TUNING", "0", 1);
    harness_start();
    if (!sw_driver_is_emulated())
        tap_skip_all("other machines than this one are played by the emulated driver");
    before = harness_leaks_now();
    configure(0, 0);
    harness_run(RANKS, run_even, NULL);
    harness_run(RANKS, run_uneven, NULL);
    begins_early("no limit", 0, 1);
    begins_early("a limit", 4, 0);
    configure(1, 0);
    harness_run(RANKS, run_old, NULL);
    configure(RANKS, 0);
    begins_early("old devices", 0, 0);
    configure(0, 1);
    harness_run(RANKS, run_strangers, NULL);
    import_of_strangers();
    harness_no_leaks("devices", &before);
    return tap_done();
}
