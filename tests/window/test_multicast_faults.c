/* The steps of a communicator's multicast object, and of what windows bind to it, fail on each rank
 * in turn, stall, or end with a rank that is killed; what the communicator remembers of that. */
#include "multicast_ranks.h"

/* Under sanitizers one rank of each place has the faults and dies at the end, another one in each,
 * and there are fewer kills: the code that they reach is the same. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { VICTIMS = 1, KILLS = 4 };
#else
enum { VICTIMS = RANKS, KILLS = 12 };
#endif

/* Each rank reads what the others wrote. */
static void peers_work(const struct part *part, const symwin_window *window)
{
    const symwin_window_info info = query(part, window);
    int peer;

    host_put_u32(part->device, info.ptr, 7u + (uint32_t)part->rank);
    processes_barrier(part->p);
    for (peer = 0; peer < info.nranks; peer++)
        must_equal(host_get_u32(part->device,
                                host_at(info.base, (size_t)peer * info.stride + info.offset)),
                   7 + peer, "a peer's word", part->rank);
    processes_barrier(part->p);
}

/* ---- failures ---- */

static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER; /* ranks may be threads */

static struct harness_leaks leaks(struct processes *p)
{
    struct harness_leaks now;

    processes_barrier(p);
    pthread_mutex_lock(&counting);
    now = harness_leaks_now();
    pthread_mutex_unlock(&counting);
    processes_barrier(p);
    return now;
}

static void no_leaks(struct processes *p, int rank, const struct harness_leaks *before)
{
    struct harness_leaks after;

    processes_barrier(p);
    pthread_mutex_lock(&counting);
    after = harness_leaks_settle(before);
    pthread_mutex_unlock(&counting);
    must_equal((long long)after.objects, (long long)before->objects, "objects left behind", rank);
    must_equal(after.fds, before->fds, "descriptors left behind", rank);
    must_equal(after.threads, before->threads, "threads left behind", rank);
}

static const CUresult codes[] = {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_ILLEGAL_STATE,
                                 CUDA_ERROR_SYSTEM_NOT_READY, CUDA_ERROR_INVALID_VALUE};

struct trial {
    int victim, persistent;
    unsigned nth;
    CUresult code;
};

/* A registration in which a driver call of one rank fails. All ranks have a window, or none; all
 * have multicast, or none. Whether the fault was reached. */
static int fail_once(struct processes *p, int rank, const struct trial *t)
{
    symwin_window *window = NULL;
    struct part part;
    int fired = 0, has = 0, r;
    symwin_status status;

    open_part(&part, p, rank);
    processes_barrier(p);
    if (rank == t->victim)
        sw_emu_fail_nth(t->nth, t->code, t->persistent, 0);
    status = symwin_window_register(part.comm, part.memory, GRANULE, 0, &window);
    if (rank == t->victim) {
        fired = sw_emu_fault_fired();
        sw_emu_fail_nth(0, CUDA_SUCCESS, 0, 0);
    }
    if (status == SYMWIN_OK) {
        has = has_multicast(&part, window);
        peers_work(&part, window);
        if (has)
            store(&part, window, 64, t->victim);
        host_must(symwin_window_deregister(part.comm, window), "symwin_window_deregister");
    }
    p->rank[rank].number = (long long)status * 4 + has * 2 + fired;
    processes_barrier(p);
    for (r = 0; r < RANKS; r++)
        must_equal(p->rank[r].number / 2, p->rank[0].number / 2,
                   "all ranks have the same status and transports", rank);
    fired = (int)(p->rank[t->victim].number % 2);
    if (!t->persistent) { /* the communicator works on */
        window = window_on(&part, host_at(part.memory, 0), 2 * GRANULE);
        p->rank[rank].step = has_multicast(&part, window);
        peers_work(&part, window);
        for (r = 0; r < RANKS; r++)
            must_equal(p->rank[r].step, p->rank[0].step, "later they agree too", rank);
        processes_barrier(p);
    }
    close_part(&part);
    processes_barrier(p);
    p->id_made = 0;
    processes_barrier(p);
    return fired;
}

/* `number` of the place: the victim. */
static void fail(struct processes *p, int rank)
{
    const size_t seed = (size_t)(uintptr_t)places_arg(p);
    struct harness_leaks before;
    struct trial t = {.victim = (int)(seed % RANKS)};
    unsigned i = (unsigned)seed, faults = 0;

    before = leaks(p);
    for (t.persistent = 0; t.persistent < 2; t.persistent++)
        for (t.nth = 1; t.nth < 60; t.nth++, i++) {
            t.code = codes[i % (sizeof codes / sizeof codes[0])];
            if (!fail_once(p, rank, &t))
                break;
            faults++;
        }
    if (rank == 0)
        p->rank[0].at_us = faults;
    no_leaks(p, rank, &before);
}

/* ---- a rank that is killed ---- */

/* From a few microseconds on: a registration with all steps takes about a millisecond. */
static void die_soon(unsigned seed)
{
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL};
    const long us = 1 + (long)(seed * 2654435761u >> 8) % 2500;
    const struct itimerspec when = {.it_value = {.tv_nsec = us * 1000}};
    timer_t timer;

    if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0 ||
        timer_settime(timer, 0, &when, NULL) != 0)
        abort();
}

/* Processes of one host see the end of each other's sockets. */
static void must_know(const struct part *part, int victim)
{
    const struct sw_group *group = part->comm->group;
    const struct sw_peer_socket *socket = group->sockets[group->process_of[victim]];
    int i;

    for (i = 0; i < 10000 && socket != NULL && !socket->died; i++)
        usleep(1000);
    must_be(socket == NULL || socket->died, "whose process has died", part->rank);
}

/* Whether a rank's process is the victim's. */
static int dies(const struct place *place, int rank, int victim)
{
    return places_first(place, rank) == places_first(place, victim);
}

/* Whether the last error names a rank of the victim's process. */
static int names_one(const struct place *place, int victim)
{
    char name[24];
    int r, does = 0;

    for (r = 0; r < RANKS; r++) {
        snprintf(name, sizeof name, "rank %d", r);
        does |= dies(place, r, victim) && host_error_has(name);
    }
    return does;
}

/* The others have a window or none, with one status on one host; then they are told who is lost. */
static void lose_one(struct processes *p, int rank)
{
    const struct place *place = ((const struct places_job *)p->arg)->place;
    const unsigned seed = (unsigned)(uintptr_t)places_arg(p);
    const int victim = (int)(seed % RANKS);
    symwin_window *window = NULL;
    symwin_status status;
    struct part part;

    open_part(&part, p, rank);
    processes_barrier(p);
    if (rank == victim)
        die_soon(seed);
    status = symwin_window_register(part.comm, part.memory, GRANULE, 0, &window);
    if (dies(place, rank, victim))
        for (;;)
            pause();
    p->rank[rank].status = (int)status;
    must_be(status == SYMWIN_OK || status == SYMWIN_PEER_LOST, "the status", rank);
    status = symwin_window_register(part.comm, part.memory, 2 * GRANULE, 0, &window);
    must_be(status == SYMWIN_PEER_LOST, "the next registration", rank);
    must_be(names_one(place, victim), "who is lost", rank);
    must_know(&part, victim);
    close_part(&part);
}

/* The same while the others wait in the destroy for it: they come back, and leave nothing. */
static void lose_one_late(struct processes *p, int rank)
{
    const int victim = (int)((unsigned)(uintptr_t)places_arg(p) % RANKS);
    struct part part;

    open_part(&part, p, rank);
    (void)window_on(&part, part.memory, GRANULE);
    processes_barrier(p);
    if (rank == victim) {
        usleep(20000);
        raise(SIGKILL);
    }
    close_part(&part);
    p->rank[rank].status = SYMWIN_OK;
}

/* Whether the others ended well, which includes that their processes leave nothing. */
static int survive(const struct place *place, void (*body)(struct processes *p, int rank),
                   unsigned seed)
{
    struct places_job job = {place, body, (void *)(uintptr_t)seed};
    struct processes *p = processes_new(RANKS, &job);
    const int victim = (int)(seed % RANKS), other = dies(place, 0, victim) ? RANKS - 1 : 0;
    int right = 1, r;

    for (r = 0; r < RANKS; r += place->together)
        processes_fork(p, r, places_process);
    for (r = 0; r < RANKS; r += place->together)
        right &= dies(place, r, victim) ? processes_wait(p, r) != 0
                                        : processes_wait_loud(p, r) == 0;
    for (r = 0; r < RANKS && place->hosts == NULL; r++)
        if (!dies(place, r, victim) && p->rank[r].status != p->rank[other].status) {
            fprintf(stderr, "rank %d: status %d, rank %d: %d\n", r, p->rank[r].status, other,
                    p->rank[other].status);
            right = 0;
        }
    if (!right)
        fprintf(stderr, "# seed %u\n", seed);
    processes_free(p);
    return right;
}

static void kill_some(const struct place *place, unsigned kills)
{
    unsigned seed, right = 0;

    for (seed = 0; seed < kills; seed++)
        right += (unsigned)survive(place, lose_one, seed);
    tap_ok(right == kills, "%s: %u of %u kills ended well", place->name, right, kills);
}

/* ---- what is remembered ---- */

/* What the host lacks once. The linker puts these in the place of the library's own. */
enum lack { NOTHING, A_THREAD, MEMORY };
static atomic_int lacks;

int __real_sw_thread_begin(pthread_t *thread, void *(*body)(void *), void *data);
int __wrap_sw_thread_begin(pthread_t *thread, void *(*body)(void *), void *data);
int __wrap_sw_thread_begin(pthread_t *thread, void *(*body)(void *), void *data)
{
    int lack = A_THREAD;

    return !atomic_compare_exchange_strong(&lacks, &lack, NOTHING) &&
           __real_sw_thread_begin(thread, body, data);
}

symwin_status __real_sw_memory_access(CUdeviceptr ptr, size_t bytes, const int *devices, int count,
                                      CUresult *answer);
symwin_status __wrap_sw_memory_access(CUdeviceptr ptr, size_t bytes, const int *devices, int count,
                                      CUresult *answer);
symwin_status __wrap_sw_memory_access(CUdeviceptr ptr, size_t bytes, const int *devices, int count,
                                      CUresult *answer)
{
    int lack = MEMORY;

    if (answer != NULL && atomic_compare_exchange_strong(&lacks, &lack, NOTHING)) /* the object */
        return sw_fail(SYMWIN_NO_MEMORY, "no host memory");
    return __real_sw_memory_access(ptr, bytes, devices, count, answer);
}

struct memory_case {
    const char *name, *words; /* of the reason */
    CUresult code;
    int times, stall_ms;
    int first, second; /* whether the window with the failure has multicast, and the next one */
    int ends_first;    /* the communicator, before the bind has come back */
    enum sw_emu_fault_call call; /* that fails */
    enum lack lack;              /* instead of a failure of the driver */
};

static const struct memory_case cases[] = {
    {"802 once", "", CUDA_ERROR_SYSTEM_NOT_READY, 1, 0, 1, 1, 0, SW_EMU_FAULT_BIND, NOTHING},
    {"802 twice", "rank 2: cuMulticastBindMem", CUDA_ERROR_SYSTEM_NOT_READY, 2, 0, 0, 0, 0,
     SW_EMU_FAULT_BIND, NOTHING},
    {"802 of an import", "", CUDA_ERROR_SYSTEM_NOT_READY, 1, 0, 1, 1, 0, SW_EMU_FAULT_IMPORT,
     NOTHING},
    {"401", "rank 2: cuMulticastBindMem", CUDA_ERROR_ILLEGAL_STATE, 1, 0, 0, 0, 0,
     SW_EMU_FAULT_BIND, NOTHING},
    {"no slots", "rank 2: cuMulticastBindMem", CUDA_ERROR_OUT_OF_MEMORY, 1, 0, 0, 0, 0,
     SW_EMU_FAULT_BIND, NOTHING},
    {"memory that cannot be bound", "rank 2: cuMulticastBindMem", CUDA_ERROR_INVALID_VALUE, 1, 0, 0,
     1, 0, SW_EMU_FAULT_BIND, NOTHING},
    {"a bind that stalls", "rank 2: cuMulticastBindMem", CUDA_SUCCESS, 1, 3500, 0, 0, 0,
     SW_EMU_FAULT_BIND, NOTHING},
    {"a bind that outlives all", "rank 2: cuMulticastBindMem", CUDA_SUCCESS, 1, 3500, 0, 0, 1,
     SW_EMU_FAULT_BIND, NOTHING},
    {"no thread", "no thread", CUDA_SUCCESS, 1, 0, 0, 1, 0, SW_EMU_FAULT_BIND, A_THREAD},
    {"no memory to map", "no host memory", CUDA_SUCCESS, 1, 0, 0, 1, 0, SW_EMU_FAULT_BIND, MEMORY},
    {"401 of a device", "rank 2: cuMulticastAddDevice of device 2 (see the state of the Fabric",
     CUDA_ERROR_ILLEGAL_STATE, 1, 0, 0, 0, 0, SW_EMU_FAULT_ADD, NOTHING},
    {"an import that fails", "multicast object", CUDA_ERROR_UNKNOWN, 1, 0, 0, 0, 0,
     SW_EMU_FAULT_IMPORT, NOTHING},
};

static _Thread_local int is_rank;
static atomic_int unbound_here; /* by the rank's own thread */

static CUresult count_unbind(CUmemGenericAllocationHandle object, CUdevice device, size_t offset,
                             size_t bytes)
{
    unbound_here += is_rank;
    return sw_emu_cuMulticastUnbind(object, device, offset, bytes);
}

static void remembers(struct processes *p, int rank)
{
    const struct memory_case *c = places_arg(p);
    const struct sw_emu_multicast_fault fault = {.call = c->call,
                                                 .answer = c->code,
                                                 .device = 2,
                                                 .times = c->times,
                                                 .stall_ms = c->stall_ms};
    symwin_comm_options options = {.size = sizeof options,
                                   .timeout_ms = c->stall_ms > 0 ? 2000 : WAIT_MS};
    symwin_window *first = NULL, *second = NULL, *third = NULL;
    struct harness_leaks before = leaks(p);
    struct part part = {.p = p, .rank = rank, .device = rank};
    symwin_window_info info;
    symwin_comm_info comm;
    void *other;
    int i;

    host_must(symwin_comm_create(processes_id(p, rank), RANKS, rank, rank, &options, &part.comm),
              "symwin_comm_create");
    part.memory = host_alloc(rank, 2 * GRANULE);
    part.scratch = host_alloc(rank, GRANULE);
    other = host_alloc(rank, GRANULE);
    if (rank == 2) {
        host_must_cuda(sw_emu_multicast_fail(&fault), "a fault");
        lacks = (int)c->lack;
    }
    if (here(&part) == 1) {
        is_rank = 1;
        sw_drv.cuMulticastUnbind = count_unbind;
    }
    processes_barrier(p);
    first = window_on(&part, part.memory, 2 * GRANULE);
    must_be(c->stall_ms == 0 || unbound_here == 0, "no rank waits for an unbind", rank);
    info = query(&part, first);
    must_equal(has_multicast(&part, first), c->first, c->name, rank);
    must_be(strstr(info.multicast_reason, c->words) != NULL, info.multicast_reason, rank);
    peers_work(&part, first);
    second = window_on(&part, other, GRANULE);
    must_equal(has_multicast(&part, second), c->second, "the next one", rank);
    if (c->second)
        store(&part, second, 4, 2);
    peers_work(&part, second);
    if (c->code == CUDA_ERROR_ILLEGAL_STATE) {
        must_be(symwin_window_register(part.comm, other, 64, SYMWIN_WINDOW_MULTICAST, &third) ==
                        SYMWIN_UNSUPPORTED &&
                    host_error_has("symwin_window_register: multicast has failed before") &&
                    host_error_has(c->words),
                "it is over", rank);
        host_must(symwin_comm_query(part.comm, &comm), "symwin_comm_query");
        must_equal(comm.multicast, 0, "the communicator has none any more", rank);
    } else if (c->code == CUDA_ERROR_OUT_OF_MEMORY) {
        host_must(symwin_window_register(part.comm, other, 64, SYMWIN_WINDOW_MULTICAST, &third),
                  "whoever insists tries again");
        store(&part, third, 8, 1);
    }
    processes_barrier(p);
    if (c->stall_ms > 0 && !c->ends_first) {
        for (i = 0; i < 100 && binds() > 0; i++) /* it comes back, and is undone then */
            usleep((useconds_t)c->stall_ms * 100 + 10000);
        must_equal(binds(), 0, "it is undone", rank);
    }
    host_must(symwin_window_deregister(part.comm, second), "symwin_window_deregister");
    close_part(&part);
    host_must(symwin_mem_free(other), "symwin_mem_free");
    if (c->ends_first)
        usleep((useconds_t)c->stall_ms * 1000);
    if (rank == 2)
        host_must_cuda(sw_emu_multicast_fail(NULL), "no fault");
    no_leaks(p, rank, &before);
}

/* Keeps the reaper busy. */
struct busy {
    struct sw_remains remains; /* first */
    atomic_int has_begun, may_end;
};

static void be_busy(struct sw_remains *remains)
{
    struct busy *busy = (struct busy *)(void *)remains;

    busy->has_begun = 1;
    while (!busy->may_end)
        usleep(500);
}

/* A bind comes back when the communicator's range is to be freed next. The segment, which has
 * waited for the bind, goes first. */
static void come_back(struct processes *p, int rank)
{
    const struct sw_emu_multicast_fault fault = {
        .call = SW_EMU_FAULT_BIND, .device = 2, .times = 1, .stall_ms = -1};
    const symwin_comm_options options = {.size = sizeof options, .timeout_ms = 2000};
    struct harness_leaks before = leaks(p);
    struct part part = {.p = p, .rank = rank, .device = rank};
    struct busy busy = {.may_end = 0};
    int i, waiting;

    host_must(symwin_comm_create(processes_id(p, rank), RANKS, rank, rank, &options, &part.comm),
              "symwin_comm_create");
    part.memory = host_alloc(rank, 2 * GRANULE);
    part.scratch = host_alloc(rank, GRANULE);
    if (rank == 2)
        host_must_cuda(sw_emu_multicast_fail(&fault), "a fault");
    processes_barrier(p);
    drop(&part, window_on(&part, part.memory, 2 * GRANULE));
    processes_barrier(p);
    if (rank == 2) {
        must_be(sw_reaper_wait(10000), "the segment waits for the bind", rank);
        sw_reaper_take(&busy.remains, be_busy);
        while (!busy.has_begun)
            usleep(500);
    }
    processes_barrier(p);
    symwin_comm_destroy(part.comm);
    processes_barrier(p);
    if (rank == 2) {
        waiting = sw_reaper_count();
        must_equal(sw_emu_multicast_stalled(), 1, "the bind has not come back", rank);
        sw_emu_multicast_resume();
        for (i = 0; i < 10000 && sw_reaper_count() == waiting; i++)
            usleep(500);
        must_equal(sw_reaper_count(), waiting + 1, "the segment is behind the range", rank);
        busy.may_end = 1;
        must_be(sw_reaper_wait(10000), "all is released", rank);
        host_must_cuda(sw_emu_multicast_fail(NULL), "no fault");
    }
    processes_barrier(p);
    host_must(symwin_mem_free(part.memory), "symwin_mem_free");
    host_must(symwin_mem_free(part.scratch), "symwin_mem_free");
    no_leaks(p, rank, &before);
}

/* Arguments: "soak" for more faults and kills; a place, otherwise all of them. */
int main(int argc, char **argv)
{
    const int soaks = argc > 1 && strcmp(argv[1], "soak") == 0;
    const char *only = argc > 1 + soaks ? argv[1 + soaks] : NULL;
    const size_t rounds = soaks ? 80 : 1;
    long long faults = 0;
    size_t i, k;

    setenv("SYMWIN_EMU_FABRIC", "1", 1);
    setenv("SYMWIN_EMU_ALIAS", "1", 1); /* kernels without alias fences are killed */
    for (i = 0; i < places_count(); i++) {
        const struct place *place = &places_all[i];

        if (only != NULL && strcmp(only, place->name) != 0)
            continue;
        for (k = 0; k < sizeof cases / sizeof cases[0]; k++)
            if (!places_one(place) || cases[k].call != SW_EMU_FAULT_IMPORT) /* there is none */
                run(place, cases[k].name, remembers, &cases[k]);
        run(place, "a bind that comes back at the end", come_back, NULL);
        for (k = i; k < i + rounds * VICTIMS; k++)
            faults += run(place, "faults", fail, (const void *)(uintptr_t)k);
        for (k = i; k < i + VICTIMS && !places_one(place); k++)
            tap_ok(survive(place, lose_one_late, (unsigned)k), "%s: rank %zu dies at the end",
                   place->name, k % RANKS);
        if (!places_one(place))
            kill_some(place, soaks ? 1000 : KILLS);
    }
    printf("# %lld faults in the steps of multicast\n", faults);
    return tap_done();
}
