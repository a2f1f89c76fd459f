/* One multicast object for a communicator, wherever its ranks are: as threads of one process, as
 * processes, as two threads of each of two processes, on two hosts with a fabric. Windows share it,
 * and what is bound to it ends with them and with the communicator. */
#include "multicast_ranks.h"

/* Under sanitizers there are fewer windows: the code that they reach is the same. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { MANY = 300 };
#else
enum { MANY = 10000 };
#endif
enum { WINDOWS = 20 };

static int multicasts(void)
{
    struct sw_emu_live live;

    sw_emu_live_count(&live);
    return (int)live.multicasts;
}

/* ---- one object ---- */

/* A captured call connects buffers that nobody has registered. */
static void capture_one(const struct part *part)
{
    uint32_t *const in = part->memory;
    struct CUstream_st *stream = NULL;
    struct sw_scope scope;
    CUgraphExec exec;

    host_must(symwin_stream_create(part->device, &stream), "symwin_stream_create");
    host_must(sw_scope_enter(part->device, &scope), "scope");
    host_must_cuda(sw_drv.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                   "cuStreamBeginCapture");
    host_must(symwin_allreduce(part->comm, in, in + 100000, 100000, SYMWIN_U32, SYMWIN_SUM, stream),
              "a captured call");
    exec = host_end_capture(stream, NULL);
    host_must_cuda(sw_drv.cuGraphExecDestroy(exec), "cuGraphExecDestroy");
    sw_scope_leave(&scope);
    host_must(symwin_stream_destroy(part->device, stream), "symwin_stream_destroy");
}

static void share(struct processes *p, int rank)
{
    symwin_window *windows[WINDOWS], *small;
    void *memory[WINDOWS];
    symwin_comm_info comm;
    struct part part;
    int i;

    open_part(&part, p, rank);
    host_must(symwin_comm_query(part.comm, &comm), "symwin_comm_query");
    must_equal(comm.multicast, 1, "the communicator has multicast", rank);
    capture_one(&part);
    must_equal(multicasts(), 0, "no object before the first window", rank);
    processes_barrier(p);
    for (i = 0; i < WINDOWS; i++) {
        memory[i] = host_alloc(part.device, GRANULE);
        windows[i] = window_on(&part, memory[i], GRANULE);
        must_be(has_multicast(&part, windows[i]), "a window has multicast", rank);
    }
    small = window_on(&part, host_at(memory[3], 4096), 64);
    processes_barrier(p);
    must_equal(multicasts(), 1, "one object for all windows", rank);
    must_equal(binds(), WINDOWS * here(&part), "a binding for each", rank);
    for (i = 0; i < WINDOWS; i += 5)
        store(&part, windows[i], GRANULE - 4, i % RANKS);
    store(&part, small, 60, 1);
    for (i = 0; i < WINDOWS; i += 2)
        host_must(symwin_window_deregister(part.comm, windows[i]), "symwin_window_deregister");
    store(&part, windows[3], 8, 2);
    for (i = 1; i < WINDOWS; i += 2)
        host_must(symwin_window_deregister(part.comm, windows[i]), "symwin_window_deregister");
    store(&part, small, 4, 3);
    close_part(&part);
    for (i = 0; i < WINDOWS; i++)
        host_must(symwin_mem_free(memory[i]), "symwin_mem_free");
}

/* Ten thousand windows, on a tenth as many allocations, take one object. */
static void be_many(struct processes *p, int rank)
{
    enum { ALLOCATIONS = MANY / 10 };
    symwin_window **windows = calloc(MANY, sizeof *windows);
    void **memory = calloc(ALLOCATIONS, sizeof *memory);
    struct part part;
    int i;

    open_part(&part, p, rank);
    for (i = 0; i < ALLOCATIONS; i++)
        memory[i] = host_alloc(part.device, GRANULE);
    for (i = 0; i < MANY; i++)
        windows[i] = window_on(
            &part, host_at(memory[i % ALLOCATIONS], (size_t)i / ALLOCATIONS * 4096), 4096);
    processes_barrier(p);
    must_equal(multicasts(), 1, "one object for all windows", rank);
    must_equal(binds(), ALLOCATIONS * here(&part), "a binding for each allocation", rank);
    store(&part, windows[MANY - 1], 4092, 3);
    store(&part, windows[0], 0, 1);
    close_part(&part);
    for (i = 0; i < ALLOCATIONS; i++)
        host_must(symwin_mem_free(memory[i]), "symwin_mem_free");
    free(memory);
    free(windows);
}

/* All-reduces through multicast, and what is chosen where it is there. */
static void reduce(struct processes *p, int rank)
{
    static const symwin_algo algos[] = {SYMWIN_ALGO_AUTO, SYMWIN_ALGO_ONESHOT_MC,
                                        SYMWIN_ALGO_TWOSHOT_MC};
    enum { COUNT = 100000 };
    symwin_collective_info info;
    symwin_window *window;
    struct part part;
    uint32_t *in;
    size_t i;

    open_part(&part, p, rank);
    in = part.memory;
    window = window_on(&part, part.memory, 2 * GRANULE);
    for (i = 0; i < sizeof algos / sizeof algos[0]; i++) {
        const symwin_allreduce_options options = {.size = sizeof options, .algo = algos[i]};

        host_put_u32(part.device, in, 5u + (uint32_t)rank);
        host_put_u32(part.device, in + COUNT - 1, 70u * (uint32_t)rank);
        processes_barrier(p);
        host_must(symwin_allreduce_with(part.comm, in, in + COUNT, COUNT, SYMWIN_U32, SYMWIN_SUM,
                                        &options, NULL),
                  symwin_algo_name(algos[i]));
        host_must(symwin_stream_synchronize(part.device, NULL), "symwin_stream_synchronize");
        must_equal(host_get_u32(part.device, in + COUNT), 4 * 5 + 6, "the first sum", rank);
        must_equal(host_get_u32(part.device, in + 2 * COUNT - 1), 70 * 6, "the last sum", rank);
        processes_barrier(p);
    }
    host_must(symwin_allreduce_query(part.comm, in, in + COUNT, COUNT, SYMWIN_U32, SYMWIN_SUM, NULL,
                                     &info),
              "symwin_allreduce_query");
    must_equal(info.algo, SYMWIN_ALGO_TWOSHOT_MC, "a large one goes by multicast", rank);
    host_must(
        symwin_allreduce_query(part.comm, in, in + COUNT, 16, SYMWIN_U32, SYMWIN_SUM, NULL, &info),
        "symwin_allreduce_query");
    must_be(info.algo != SYMWIN_ALGO_ONESHOT_MC, "no one-shot that nobody asked for", rank);
    host_must(symwin_window_deregister(part.comm, window), "symwin_window_deregister");
    close_part(&part);
}

/* ---- ends of windows ---- */

/* Host calls of all ranks: each agrees on what no process uses. */
static void agree(const struct part *part, void *held, int calls)
{
    symwin_window *window;

    while (calls-- > 0) {
        window = window_on(part, held, 64);
        host_must(symwin_window_deregister(part->comm, window), "symwin_window_deregister");
    }
    (void)sw_reaper_wait(10000);
    processes_barrier(part->p);
}

/* No rank goes on before all have looked: what one drops next may be unbound at once. */
static void must_bind(const struct part *part, int segments, const char *what)
{
    must_equal(binds(), (long long)segments * here(part), what, part->rank);
    processes_barrier(part->p);
}

/* Where one rank has deregistered a window, the others' multicast addresses work on. Memory is
 * unbound when no process uses it, in whatever order they name it. */
static void end(struct processes *p, int rank)
{
    static const struct sw_emu_multicast_fault no_bind = {
        .call = SW_EMU_FAULT_BIND, .answer = CUDA_ERROR_ILLEGAL_STATE, .device = -1, .times = -1};
    enum { SOME = 3 };
    symwin_window *first, *held, *again, *some[SOME];
    void *memory[SOME], *other;
    struct part part;
    size_t offset;
    int i;

    open_part(&part, p, rank);
    other = host_alloc(part.device, GRANULE);
    first = window_on(&part, part.memory, 2 * GRANULE);
    held = window_on(&part, other, GRANULE);
    offset = query(&part, first).offset;
    processes_barrier(p);
    if (rank == 1)
        drop(&part, first);
    agree(&part, other, 4);
    store_to(&part, first, part.memory, 16, 0);
    if (rank != 1)
        drop(&part, first);
    processes_barrier(p);
    (void)sw_reaper_wait(10000);
    processes_barrier(p);
    if (part.comm->group->processes > 1) /* what is still bound is not bound once more */
        host_must_cuda(sw_emu_multicast_fail(&no_bind), "a fault");
    again = window_on(&part, part.memory, 2 * GRANULE);
    host_must_cuda(sw_emu_multicast_fail(NULL), "no fault");
    must_equal((long long)query(&part, again).offset, (long long)offset, "it is found again", rank);
    store(&part, again, 20, 2);
    drop(&part, again);
    agree(&part, other, 4);
    must_bind(&part, 1, "what nobody uses is unbound");
    for (i = 0; i < SOME; i++) {
        memory[i] = host_alloc(part.device, GRANULE);
        some[i] = window_on(&part, memory[i], GRANULE);
    }
    drop(&part, some[rank % 2]); /* the first or the second */
    drop(&part, some[2]);
    agree(&part, other, 6);
    must_bind(&part, 3, "the third is unbound, and no other");
    drop(&part, some[1 - rank % 2]);
    agree(&part, other, 6);
    must_bind(&part, 1, "and then all of them");
    store(&part, held, 32, 2);
    drop(&part, held);
    close_part(&part);
    for (i = 0; i < SOME; i++)
        host_must(symwin_mem_free(memory[i]), "symwin_mem_free");
    host_must(symwin_mem_free(other), "symwin_mem_free");
}

/* Of the segments of fill(): rank 1 holds the third, and rank 2 the fifth. */
static int holds(int rank, int i)
{
    return (rank == 1 && i == 3) || (rank == 2 && i == 5);
}

/* The flat range is full of segments that no process uses. A window as large as all of them finds
 * its place, however many agreements that takes, but none while ranks hold some of them. Then there
 * is none that all ranks have left, though each has left one. */
static void fill(struct processes *p, int rank)
{
    enum { UNITS = 8 };
    symwin_window *windows[UNITS], *large = NULL;
    void *memory[UNITS], *other;
    struct part part;
    int64_t begin;
    int i;

    open_part(&part, p, rank);
    other = host_alloc(part.device, (size_t)UNITS * GRANULE);
    host_must(symwin_window_register(part.comm, other, 64, SYMWIN_WINDOW_NO_MULTICAST, &large),
              "symwin_window_register");
    processes_barrier(p);
    if (rank == part.comm->group->leader) /* ranks of a process have one limit */
        part.comm->group->limit = query(&part, large).offset + (size_t)UNITS * GRANULE;
    processes_barrier(p);
    drop(&part, large);
    for (i = 0; i < UNITS; i++) {
        memory[i] = host_alloc(part.device, GRANULE);
        windows[i] = window_on(&part, memory[i], GRANULE);
        must_be(has_multicast(&part, windows[i]), "a window has multicast", rank);
    }
    processes_barrier(p);
    for (i = 0; i < UNITS; i++)
        if (!holds(rank, i))
            drop(&part, windows[i]);
    begin = host_now_ms();
    must_be(symwin_window_register(part.comm, other, (size_t)UNITS * GRANULE, 0, &large) ==
                    SYMWIN_NO_MEMORY &&
                host_error_has("the flat range has no room"),
            "two are held", rank);
    must_be(host_now_ms() - begin < WAIT_MS / 2, "that is told soon", rank);
    for (i = 0; i < UNITS; i++)
        if (!holds(1, i) && !holds(2, i))
            windows[i] = window_on(&part, memory[i], GRANULE);
    processes_barrier(p);
    for (i = 0; i < UNITS; i++)
        if (holds(rank, i) || (!holds(1, i) && !holds(2, i)))
            drop(&part, windows[i]);
    large = window_on(&part, other, (size_t)UNITS * GRANULE);
    store(&part, large, (size_t)UNITS * GRANULE - 4, 2);
    drop(&part, large);
    close_part(&part);
    for (i = 0; i < UNITS; i++)
        host_must(symwin_mem_free(memory[i]), "symwin_mem_free");
    host_must(symwin_mem_free(other), "symwin_mem_free");
}

/* ---- ends of communicators ---- */

/* Rank 1 destroys its communicator first: its memory stays bound as long as rank 0 may store to it,
 * also where rank 0 is said to be lost, but not for ever where it never leaves. */
enum left { LEAVES, STAYS, IS_SAID_TO_BE_LOST };

static int contexts(void)
{
    struct sw_emu_live live;

    sw_emu_live_count(&live);
    return (int)live.contexts;
}

/* The references to contexts at the last unbind. */
static atomic_int contexts_then = -1;

static CUresult unbind(CUmemGenericAllocationHandle object, CUdevice device, size_t offset,
                       size_t bytes)
{
    contexts_then = contexts();
    return sw_emu_cuMulticastUnbind(object, device, offset, bytes);
}

static void leave(struct processes *p, int rank)
{
    const enum left how = *(const enum left *)places_arg(p);
    const int stays = how == STAYS;
    enum { VALUE = 4711, LATER_MS = 300 };
    symwin_window *window;
    struct sw_scope scope;
    struct part part;
    void *to = NULL;
    int64_t begin;
    int took, alone;

    open_part(&part, p, rank);
    alone = part.comm->group->processes == RANKS;
    window = window_on(&part, part.memory, GRANULE);
    host_put_u32(rank, part.memory, 0);
    processes_barrier(p);
    if (rank == 0 && stays)
        while (p->rank[1].step == 0)
            usleep(1000);
    if (rank == 0 && !stays) {
        if (how == IS_SAID_TO_BE_LOST)
            sw_exchange_fail(part.comm->group->exchange, SYMWIN_PEER_LOST, 0);
        usleep(LATER_MS * 1000);
        host_must(symwin_window_multicast_pointer(part.comm, window, 0, &to), "the address");
        host_put_u32(rank, part.scratch, VALUE);
        host_must(sw_scope_enter(rank, &scope), "scope");
        host_must_cuda(sw_drv.cuMemcpyDtoD((CUdeviceptr)(uintptr_t)to,
                                           (CUdeviceptr)(uintptr_t)part.scratch, sizeof(uint32_t)),
                       "cuMemcpyDtoD");
        sw_scope_leave(&scope);
    }
    if (alone)
        sw_drv.cuMulticastUnbind = unbind;
    begin = sw_now_ms();
    symwin_comm_destroy(part.comm);
    took = (int)(sw_now_ms() - begin);
    must_be(took < 10000, "the destroy comes back", rank);
    if (rank == 1 && alone) {
        (void)sw_reaper_wait(10000);
        must_equal(binds(), 0, "what was bound is unbound", rank);
        must_be(contexts_then > 0, "the context was still there", rank);
    }
    p->rank[rank].step = 1;
    processes_barrier(p);
    must_equal(host_get_u32(rank, part.memory), stays ? 0 : VALUE, "what rank 0 stored", rank);
    host_must(symwin_mem_free(part.memory), "symwin_mem_free");
    host_must(symwin_mem_free(part.scratch), "symwin_mem_free");
}

/* The switch has one slot, and another communicator's object keeps it until it is released, which
 * comes later than the last unbind. */
static void wait_for_slot(struct processes *p, int rank)
{
    struct part part, other;
    int i;

    open_part(&other, p, rank);
    processes_barrier(p);
    p->id_made = 0;
    processes_barrier(p);
    open_part(&part, p, rank);
    drop(&other, window_on(&other, other.memory, GRANULE));
    for (i = 0; i < 4; i++)
        host_must(sw_comm_agree(other.comm, "a call", SYMWIN_OK, NULL, 0), "what is unused ends");
    (void)sw_reaper_wait(10000);
    processes_barrier(p);
    must_bind(&other, 0, "nothing is bound");
    must_equal(has_multicast(&part, window_on(&part, part.memory, GRANULE)), 0, "no slot", rank);
    close_part(&other);
    (void)sw_reaper_wait(10000);
    processes_barrier(p);
    must_equal(has_multicast(&part, window_on(&part, part.scratch, GRANULE)), 1, "a slot", rank);
    processes_barrier(p);
    close_part(&part);
}

/* Argument: a place, otherwise all of them. */
int main(int argc, char **argv)
{
    const char *only = argc > 1 ? argv[1] : NULL;
    static const enum left left[] = {LEAVES, STAYS, IS_SAID_TO_BE_LOST};
    static const char *const left_names[] = {"a rank that leaves first", "a rank that stays",
                                             "a rank that is said to be lost"};
    size_t i, k;

    setenv("SYMWIN_EMU_FABRIC", "1", 1);
    setenv("SYMWIN_EMU_ALIAS", "1", 1); /* kernels without alias fences are killed */
    for (i = 0; i < places_count(); i++) {
        const struct place *place = &places_all[i];

        if (only != NULL && strcmp(only, place->name) != 0)
            continue;
        run(place, "one object", share, NULL);
        run(place, "all-reduces", reduce, NULL);
        run(place, "ends of windows", end, NULL);
        run(place, "a full range", fill, NULL);
        for (k = 0; k < sizeof left / sizeof left[0]; k++)
            run(place, left_names[k], leave, &left[k]);
        if (places_one(place))
            run(place, "many windows", be_many, NULL);
        setenv("SYMWIN_EMU_MULTICAST_SLOTS", "1", 1);
        run(place, "a slot that comes free", wait_for_slot, NULL);
        unsetenv("SYMWIN_EMU_MULTICAST_SLOTS");
    }
    return tap_done();
}
