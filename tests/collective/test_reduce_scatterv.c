/* Reduce-scatter of unequal parts against a plain reference: all types and operations, random
 * counts, gaps, alignments and grids, with arrays on the host and in device memory; in place; among
 * other collectives; in graphs whose counts and scalars change. Large parts, with the inputs of all
 * ranks, of some and of none in windows. test_reduce_scatterv_refused.c tests what fails. Also runs
 * on GPUs (tests/gpu/both.txt). */
#include "scattered.h"

#if defined(__SANITIZE_THREAD__)
enum { SWEEP = 30, FLIGHTS = 1, REPLAYS = 2, MOST_RANKS = 5, MANY = 2 };
static const int many_ranks[] = {16, 17};
#elif defined(__SANITIZE_ADDRESS__)
enum { SWEEP = 36, FLIGHTS = 2, REPLAYS = 3, MOST_RANKS = 5, MANY = 2 };
static const int many_ranks[] = {16, 17, 40};
#else
enum {
    SWEEP = 72 /* each type and operation */,
    FLIGHTS = 5,
    REPLAYS = 6,
    MOST_RANKS = 8,
    MANY = 6
};
static const int many_ranks[] = {16, 17, 40, 72};
#endif
enum { IN_FLIGHT = 8 };

/* The same with large parts. Of four calls, the inputs are in windows on all ranks in two, of which
 * one has parts that are congruent; on some ranks in the third, and on none in the last. */
static struct call large_call_of(const struct rank *r, unsigned number, size_t room)
{
    const uint32_t all = mix(number * 31u + 7), own = mix(all + (uint32_t)r->rank * 101u);
    const int inside = all / 64 % 4 < 2 || (all / 64 % 4 == 2 && own % 2 == 0);
    struct call c = call_of(r, number, inside ? 0 : ROOM / 2, room);

    c.large = 1;
    c.words = 0;
    c.alike = all / 64 % 4 == 0;
    c.packed = c.packed && !c.alike;
    c.shift[0] = (c.alike ? all : own) / 1024 % 4;
    c.shift[1] = own / 4096 % 4;
    return c;
}

/* Also calls of which some ranks' kernels have no large part. */
static void large_sweep(const struct rank *r, struct arrays *a, unsigned calls)
{
    unsigned i;

    for (i = 0; i < calls; i++) {
        struct call c = large_call_of(r, 20000 + i, ROOM / 2);

        c.large = i % 8 != 0;
        run(r, &c, a);
    }
}

/* ---- what is loaded from windows ---- */

/* As many elements for rank 0 from each rank, and for rank 1 as well with `two`; its part begins
 * `apart` elements behind. Of u8, whose maximum is that of equal bytes. */
static void to_first(const struct rank *r, unsigned char *in, uint64_t count, int two,
                     uint64_t apart, unsigned char *out, struct arrays *a)
{
    const uint64_t *device = (const uint64_t *)(const void *)a->device;
    const symwin_parts parts = {device, device + PARTS_RANKS, ROOM / 2 - 2 * GUARD, 1};
    const symwin_collective_options one = {.size = sizeof one, .blocks = 1, .threads = 1};
    size_t i, wrong = 0;

    memset(a->host, 0, sizeof a->host);
    a->host[0][0] = count;
    a->host[0][1] = two ? count : 0;
    a->host[1][1] = apart;
    memset(r->host, FILLED, ROOM / 2);
    host_must(host_copy(r->device, in, r->host, 2 * count), "fill");
    host_must(host_copy(r->device, a->device, a->host, ARRAYS_BYTES), "arrays");
    host_must(symwin_reduce_scatterv_with(r->comm, in, &parts, out, SYMWIN_U8, SYMWIN_MAX, &one,
                                          r->streams[0]),
              "symwin_reduce_scatterv_with");
    job_wait(r, 0);
    host_must(symwin_comm_check(r->comm), "symwin_comm_check");
    host_must(host_copy(r->device, r->host, out, count), "read");
    for (i = 0; i < count && r->rank <= two; i++)
        wrong += r->host[i] != FILLED;
    must_be(wrong == 0, "a maximum", r->rank);
}

/* How many parts rank 0 has loaded from this rank. */
static void straight(const struct rank *r, struct arrays *a)
{
    unsigned char *const in = r->in + GUARD, *const out = r->out + GUARD;
    const int sends = r->rank != 0;
    unsigned now = parts_landed(r, 0);

    if (!sw_driver_is_emulated()) /* where parts are large from 513 bytes on */
        return;
    to_first(r, in, 512, 0, 0, out, a);
    must_equal(parts_landed(r, 0), now, "a small part is not loaded", r->rank);
    to_first(r, in, 513, 0, 0, out, a);
    must_equal(parts_landed(r, 0), now += (unsigned)sends, "a large one is", r->rank);
    to_first(r, in + (r->rank + 1) * 3, 5001, 0, 0, out + 1, a);
    must_equal(parts_landed(r, 0), now += (unsigned)sends, "of any alignment", r->rank);
    to_first(r, in, 5001, 0, 0, r->rank == 0 ? in : out, a);
    must_equal(parts_landed(r, 0), now += (unsigned)sends, "with the result in place", r->rank);
    to_first(r, in + (r->rank == 1 ? ROOM / 2 : 0), 5001, 0, 0, out, a);
    must_equal(parts_landed(r, 0), now += r->rank > 1, "not from no window", r->rank);
    to_first(r, in, 3001, 1, 1000, out, a);
    must_equal(parts_landed(r, 0), now += (unsigned)sends, "parts that are read overlap", r->rank);
#if !defined(__SANITIZE_THREAD__) /* the bytes are sent while as many equal ones are stored */
    to_first(r, in, 3001, 1, 1000, r->rank == 1 ? in + 1000 : out, a);
    must_equal(parts_landed(r, 0), now += r->rank > 1, "not where it is to be overwritten",
               r->rank);
#endif
    to_first(r, in, 3001, 1, 3001, r->rank == 1 ? in + 3001 : out, a);
    must_equal(parts_landed(r, 0), now + (unsigned)sends, "parts that touch do not overlap",
               r->rank);
}

/* A call has ended when its input may be overwritten: rank 0 adds by one thread, byte by byte. */
static void overwritten(const struct rank *r, struct arrays *a)
{
    enum { COUNT = 20000, TURNS = 4 };
    const symwin_collective_options one = {
        .size = sizeof one, .blocks = r->rank == 0, .threads = r->rank == 0};
    const symwin_parts parts = {a->host[0], NULL, 0, 0};
    struct sw_scope scope;
    size_t i, turn, wrong = 0;

    memset(a->host, 0, sizeof a->host);
    a->host[0][0] = COUNT;
    host_must(sw_scope_enter(r->device, &scope), "scope");
    for (turn = 0; turn < TURNS; turn++) {
        const CUdeviceptr in = (CUdeviceptr)(uintptr_t)(r->in + r->rank % 3);

        host_must_cuda(sw_drv.cuMemsetD8Async(in, (unsigned char)(1 + turn), COUNT, r->streams[0]),
                       "cuMemsetD8Async");
        host_must(symwin_reduce_scatterv_with(r->comm, r->in + r->rank % 3, &parts, r->out,
                                              SYMWIN_U8, SYMWIN_SUM, &one, r->streams[0]),
                  "symwin_reduce_scatterv_with");
        host_must_cuda(sw_drv.cuMemsetD8Async(in, 99, COUNT, r->streams[0]), "cuMemsetD8Async");
        job_wait(r, 0);
        host_must(symwin_comm_check(r->comm), "symwin_comm_check");
        host_must(host_copy(r->device, r->host, r->out, COUNT), "read");
        for (i = 0; i < COUNT && r->rank == 0; i++)
            wrong += r->host[i] != (unsigned char)((1 + turn) * (unsigned)r->nranks);
    }
    sw_scope_leave(&scope);
    must_be(wrong == 0, "inputs that are overwritten after the call", r->rank);
}

/* ---- among others, and in graphs ---- */

/* Several calls under way in two streams, with other collectives between them, which use the same
 * slots. */
static void in_flight(const struct rank *r, struct arrays *a, int large)
{
    const size_t pitch = ROOM / IN_FLIGHT / 64 * 64;
    struct call calls[IN_FLIGHT];
    int turn, i;

    for (turn = 0; turn < FLIGHTS; turn++) {
        for (i = 0; i < IN_FLIGHT; i++) {
            calls[i] = call_of(r, 5000u + (unsigned)(turn * IN_FLIGHT + i) * 5, (size_t)i * pitch,
                               pitch);
            if (large && i % 3 != 2) {
                calls[i].large = 1;
                calls[i].words = 0;
            }
            prepare(r, &calls[i], &a[i]);
        }
        for (i = 0; i < IN_FLIGHT; i++) {
            const int stream = (int)(mix((unsigned)(turn * 100 + i)) % 2);

            host_must(launch(r, &calls[i], &a[i], stream), "symwin_reduce_scatterv_with");
            if (i % 3 == 0)
                host_must(symwin_barrier(r->comm, r->streams[!stream]), "symwin_barrier");
        }
        job_wait(r, 0);
        job_wait(r, 1);
        host_must(symwin_comm_check(r->comm), "symwin_comm_check");
        for (i = 0; i < IN_FLIGHT; i++)
            must_be(is_right(r, &calls[i]), "a call among others", r->rank);
    }
}

/* Each replay has other counts, other places of parts, and other scalars where these are in device
 * memory; with arrays on the host, the counts of the capture. */
static void graphs(const struct rank *r, struct arrays *a, int on_device, int large)
{
    struct call c = call_of(r, 1, 0, ROOM / 2), other = call_of(r, 2, ROOM / 2, ROOM / 2);
    struct sw_scope scope;
    CUgraphExec exec;
    unsigned k;

    c.job.op = SYMWIN_PREMUL_SUM;
    c.large = large;
    c.words = large ? 0 : c.words;
    c.on_device = on_device;
    c.in_place = 0;
    prepare(r, &c, a);
    host_must(sw_scope_enter(r->device, &scope), "scope");
    host_must_cuda(sw_drv.cuStreamBeginCapture(r->streams[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                   "cuStreamBeginCapture");
    host_must(launch(r, &c, a, 0), "a captured call");
    exec = host_end_capture(r->streams[0], NULL);
    for (k = 0; k < REPLAYS; k++) {
        c.job.seed = on_device ? 7000u + k : c.job.seed;
        if (!on_device)
            run(r, &other, a);
        prepare(r, &c, a);
        host_must_cuda(sw_drv.cuGraphLaunch(exec, r->streams[0]), "cuGraphLaunch");
        job_wait(r, 0);
        host_must(symwin_comm_check(r->comm), "symwin_comm_check");
        must_be(is_right(r, &c), "a replay", r->rank);
    }
    host_must_cuda(sw_drv.cuGraphExecDestroy(exec), "cuGraphExecDestroy");
    sw_scope_leave(&scope);
}

/* As many ranks as a kernel's arguments have room for, and more. */
static void many(struct processes *p, int rank)
{
    struct rank r = {.nranks = p->count, .rank = rank, .device = rank % harness_device_count()};
    symwin_window *window;
    struct call c;
    struct arrays a;
    unsigned i;

    open_rank(p, &r, WAIT_MS);
    arrays_open(&r, &a);
    for (i = 0; i < MANY; i++) {
        c = call_of(&r, 72 * 3 + 5 * i, 0, ROOM / 2);
        c.on_device = i % 2 == 1 && rank % 2;
        run(&r, &c, &a);
    }
    host_must(symwin_window_register(r.comm, r.in, ROOM / 2, 0, &window), "symwin_window_register");
    for (i = 0; i < MANY; i++) {
        c = large_call_of(&r, 72 * 4 + 5 * i, ROOM / 2);
        c.on_device = i % 2 == 1 && rank % 2;
        run(&r, &c, &a);
    }
    graphs(&r, &a, 0, 0);
    processes_barrier(p);
    host_must(symwin_window_deregister(r.comm, window), "symwin_window_deregister");
    arrays_close(&a);
    close_rank(p, &r);
}

/* Of 3 ranks parts of more than 64 bytes are loaded, on GPUs too, of 2 none. */
static void write_rows(const char *name)
{
    static const char *const ends[] = {"3,1,integer,1,64,oneshot", "3,1,integer,1,4096,put",
                                       "3,4,float,1,64,oneshot", "3,4,float,1,4096,put",
                                       "2,1,integer,1,4096,oneshot"};
    FILE *const to = fopen(name, "w");
    char gpu[128] = "";
    size_t i;

    host_must(sw_driver_load(), "sw_driver_load");
    host_must_cuda(sw_drv.cuDeviceGetName(gpu, (int)sizeof gpu, 0), "cuDeviceGetName");
    if (to == NULL)
        abort();
    fprintf(to, "collective,gpu,nranks,width,kind,registered,bytes,algo,blocks,threads\n");
    for (i = 0; i < sizeof ends / sizeof ends[0]; i++)
        fprintf(to, "reduce_scatterv,%s,%s,0,0\n", gpu, ends[i]);
    if (fclose(to) != 0)
        abort();
}

static void by_table(struct processes *p, int rank)
{
    struct rank r = {.nranks = p->count, .rank = rank, .device = rank % harness_device_count()};
    const unsigned sends = rank != 0 && p->count == 3;
    symwin_window *window;
    struct arrays a;

    if (rank == 0)
        write_rows(getenv("SYMWIN_TUNING"));
    processes_barrier(p);
    open_rank(p, &r, WAIT_MS);
    arrays_open(&r, &a);
    host_must(symwin_window_register(r.comm, r.in, ROOM / 2, 0, &window), "symwin_window_register");
    to_first(&r, r.in, 64, 0, 0, r.out, &a);
    must_equal(parts_landed(&r, 0), 0, "a part of a row that is no put", rank);
    to_first(&r, r.in, 65, 0, 0, r.out, &a);
    to_first(&r, r.in, 5000, 0, 0, r.out, &a);
    must_equal(parts_landed(&r, 0), 2 * sends, "parts of a put", rank);
    large_sweep(&r, &a, SWEEP);
    overwritten(&r, &a);
    processes_barrier(p);
    host_must(symwin_window_deregister(r.comm, window), "symwin_window_deregister");
    arrays_close(&a);
    close_rank(p, &r);
}

static void body(struct processes *p, int rank)
{
    struct rank r = {.nranks = p->count, .rank = rank, .device = rank % harness_device_count()};
    struct arrays arrays[IN_FLIGHT];
    symwin_window *window;
    int i;

    open_rank(p, &r, WAIT_MS);
    for (i = 0; i < IN_FLIGHT; i++)
        arrays_open(&r, &arrays[i]);
    for (i = 0; i < SWEEP; i++) {
        const struct call c = call_of(&r, (unsigned)i, 0, ROOM / 2);

        run(&r, &c, &arrays[0]);
    }
    in_flight(&r, arrays, 0);
    graphs(&r, arrays, 1, 0);
    host_must(symwin_window_register(r.comm, r.in, ROOM / 2, 0, &window), "symwin_window_register");
    large_sweep(&r, arrays, SWEEP);
    if (r.nranks > 1) {
        straight(&r, arrays);
        overwritten(&r, arrays);
    }
    in_flight(&r, arrays, 1);
    graphs(&r, arrays, 1, 1);
    graphs(&r, arrays, 0, 1);
    processes_barrier(p);
    host_must(symwin_window_deregister(r.comm, window), "symwin_window_deregister");
    for (i = 0; i < IN_FLIGHT; i++)
        arrays_close(&arrays[i]);
    close_rank(p, &r);
}

int main(void)
{
    everywhere(body, MOST_RANKS);
    places_stay();
    with_many_ranks(many_ranks, sizeof many_ranks / sizeof many_ranks[0], many);
    parts_by_table("", 3, by_table);
    return tap_done();
}
