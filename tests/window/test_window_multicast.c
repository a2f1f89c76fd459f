/* Multicast addresses of windows: where they exist, and where all ranks go without. */
#include "child.h"
#include "windows.h"

#define SENTINEL ((symwin_window *)(uintptr_t)0x5e5e5e5e)

enum { RANKS = 4 };

static int has_multicast(struct member *m, const symwin_window *window)
{
    return (member_query(m, window).transports & SYMWIN_TRANSPORT_MULTICAST) != 0;
}

/* `reason`: words of the reason. */
static void expect_none(const char *name, struct member *m, const symwin_window *window,
                        const char *reason)
{
    const symwin_window_info info = member_query(m, window);
    void *const untouched = m;
    void *ptr = untouched;

    TAP_EQ(name, info.transports, SYMWIN_TRANSPORT_PEER);
    tap_ok(strstr(info.multicast_reason, reason) != NULL, "%s: the reason is \"%s\"", name,
           info.multicast_reason);
    host_expect(name, symwin_window_multicast_pointer(m->comm, window, 0, &ptr), SYMWIN_UNSUPPORTED,
                "symwin_window_multicast_pointer|no multicast");
    tap_ok(ptr == untouched, "%s: the out-pointer is untouched", name);
}

/* A window that requires multicast is refused on every rank and leaves nothing behind. */
static void expect_refused(const char *name, struct member *m, symwin_status want,
                           const char *words)
{
    symwin_window *window = SENTINEL;
    int before;

    harness_barrier(m->team);
    before = member_allocations(m);
    harness_barrier(m->team);
    host_expect(name,
                symwin_window_register(m->comm, m->memory, 64, SYMWIN_WINDOW_MULTICAST, &window),
                want, words);
    tap_ok(window == SENTINEL, "%s: the out-pointer is untouched", name);
    harness_barrier(m->team);
    TAP_EQ(name, member_allocations(m), before);
    harness_barrier(m->team);
}

/* ---- where there is multicast ---- */

/* A store to the multicast address of rank `writer` reaches every rank's memory. It is a copy by
 * the device, from a word that no case uses: the host must not use a multicast address. */
static int stores_missed(struct member *m, const symwin_window *window, void *own, size_t offset,
                         int writer)
{
    const uint32_t value = 1000 + (uint32_t)writer;
    void *ptr = NULL;
    int missed;

    host_put_u32(m->device, host_at(own, offset), 0);
    harness_barrier(m->team);
    if (m->rank == writer) {
        host_must(symwin_window_multicast_pointer(m->comm, window, offset, &ptr),
                  "symwin_window_multicast_pointer");
        host_put_u32(m->device, host_at(m->memory, 48), value);
        host_must(host_copy(m->device, ptr, host_at(m->memory, 48), sizeof value),
                  "copy to the multicast address");
    }
    harness_barrier(m->team);
    missed = host_get_u32(m->device, host_at(own, offset)) != value;
    harness_barrier(m->team);
    return missed;
}

static void run_present(struct harness_team *team, int rank, void *arg)
{
    symwin_window *window, *inside = NULL, *none = NULL;
    symwin_window_info info;
    symwin_comm_info comm;
    void *ptr = NULL;
    struct member m;
    int missed = 0;
    int writer;

    (void)arg;
    member_open(&m, team, rank, (size_t)(2 + rank % 2) * GRANULE);
    host_must(symwin_comm_query(m.comm, &comm), "symwin_comm_query");
    TAP_EQ("a device a rank: the communicator has multicast", comm.multicast, 1);
    window = member_window(&m, 100, 2 * GRANULE - 100);
    TAP_EQ("and so has a window", has_multicast(&m, window), 1);
    info = member_query(&m, window);
    host_must(symwin_window_multicast_pointer(m.comm, window, 50, &ptr),
              "symwin_window_multicast_pointer");
    tap_ok(ptr == host_at(info.base, RANKS * info.stride + info.offset + 50),
           "at the offset of an imaginary rank %d", RANKS);
    for (writer = 0; writer < RANKS; writer++)
        missed += stores_missed(&m, window, host_at(m.memory, 100), 2 * GRANULE - 104, writer);
    TAP_EQ("a store reaches all ranks", missed, 0);
    host_expect("the byte past the window",
                symwin_window_multicast_pointer(m.comm, window, 2 * GRANULE - 100, &ptr),
                SYMWIN_INVALID, "symwin_window_multicast_pointer|past the window");
    host_expect("a window that insists",
                symwin_window_register(m.comm, m.memory, 64, SYMWIN_WINDOW_MULTICAST, &inside),
                SYMWIN_OK, "");
    TAP_EQ("shares the object", stores_missed(&m, inside, m.memory, 8, 1), 0);
    host_expect("a rank's window at another offset",
                symwin_window_register(m.comm, host_at(m.memory, rank == 1 ? GRANULE : 0), 64,
                                       SYMWIN_WINDOW_MULTICAST, &none),
                SYMWIN_UNSUPPORTED,
                "rank 0's window is at another offset in its allocation than other ranks'");
    harness_barrier(team);
    member_deregister(&m, window);
    member_deregister(&m, inside);
    member_close(&m);
}

/* A window without multicast, then one on the same memory that requires it. */
static void run_later(struct harness_team *team, int rank, void *arg)
{
    symwin_window *without = NULL, *early = NULL, *with = NULL;
    struct sw_emu_live live;
    struct member m;

    (void)arg;
    member_open(&m, team, rank, GRANULE);
    host_must(symwin_window_register(m.comm, m.memory, 64, SYMWIN_WINDOW_NO_MULTICAST, &without),
              "symwin_window_register");
    expect_none("a window that wants none", &m, without,
                "it was registered with SYMWIN_WINDOW_NO_MULTICAST");
    host_must(symwin_window_register(m.comm, m.memory, 64, 0, &early), "symwin_window_register");
    expect_none("nor has the next on its memory", &m, early, "first used without");
    harness_barrier(team);
    sw_emu_live_count(&live);
    harness_barrier(team);
    TAP_EQ("nor is there an object", live.multicasts + live.binds, 0);
    host_expect("one that insists comes later",
                symwin_window_register(m.comm, m.memory, 64, SYMWIN_WINDOW_MULTICAST, &with),
                SYMWIN_OK, "");
    TAP_EQ("and has it", stores_missed(&m, with, m.memory, 0, 2), 0);
    expect_none("the one before still has none", &m, without, "SYMWIN_WINDOW_NO_MULTICAST");
    expect_none("nor has the next one", &m, early, "before its allocation had multicast");
    sw_emu_live_count(&live);
    TAP_EQ("one object, bound by every rank", live.multicasts * 100 + live.binds, 100 + RANKS);
    TAP_EQ("on one mapping", member_allocations(&m), 1);
    harness_barrier(team);
    member_deregister(&m, with);
    member_deregister(&m, early);
    member_deregister(&m, without);
    member_close(&m);
}

static atomic_int unbinds;
static CUresult (*plain_unbind)(CUmemGenericAllocationHandle object, CUdevice device, size_t offset,
                                size_t bytes);

static CUresult count_unbind(CUmemGenericAllocationHandle object, CUdevice device, size_t offset,
                             size_t bytes)
{
    atomic_fetch_add(&unbinds, 1);
    return plain_unbind(object, device, offset, bytes);
}

/* How many bindings the end of a window removes. */
static int unbinds_of(struct member *m, unsigned flags)
{
    symwin_window *window = NULL;
    int before = atomic_load(&unbinds);

    host_must(symwin_window_register(m->comm, m->memory, 64, flags, &window),
              "symwin_window_register");
    member_deregister(m, window);
    harness_barrier(m->team);
    (void)sw_reaper_wait(10000);
    return atomic_load(&unbinds) - before;
}

/* Destroying a multicast object removes its bindings, but drivers want them unbound first. */
static void run_teardown(struct harness_team *team, int rank, void *arg)
{
    int with, without;
    struct member m;

    (void)arg;
    member_open(&m, team, rank, GRANULE);
    with = unbinds_of(&m, SYMWIN_WINDOW_MULTICAST);
    harness_barrier(team);
    without = unbinds_of(&m, SYMWIN_WINDOW_NO_MULTICAST);
    if (rank == 0) {
        TAP_EQ("multicast is unbound for every rank", with, RANKS);
        TAP_EQ("and without it there is nothing to unbind", without, 0);
    }
    member_close(&m);
}

static CUresult refuse_unbind(CUmemGenericAllocationHandle object, CUdevice device, size_t offset,
                              size_t bytes)
{
    (void)object, (void)device, (void)offset, (void)bytes;
    return CUDA_ERROR_ILLEGAL_STATE;
}

/* What unbinding answers is told once, by a destroy of the last communicator. */
static void run_refused_unbind(struct harness_team *team, int rank, void *arg)
{
    atomic_int *told = arg;
    struct member m;

    member_open(&m, team, rank, GRANULE);
    (void)member_window(&m, 0, GRANULE);
    harness_barrier(team);
    symwin_comm_destroy(m.comm);
    if (host_error_has("symwin_comm_destroy: cuMulticastUnbind|CUDA_ERROR_ILLEGAL_STATE"))
        atomic_fetch_add(told, 1);
    host_must(symwin_mem_free(m.memory), "symwin_mem_free");
}

/* ---- where there is none ---- */

struct without {
    const char *name, *reason;
    unsigned comm_flags;
    int devices; /* to distribute the ranks over; 0: one for each rank */
};

static void run_without(struct harness_team *team, int rank, void *arg)
{
    const struct without *why = arg;
    const symwin_comm_options options = {
        .size = sizeof options, .flags = why->comm_flags, .timeout_ms = 20000};
    struct member m = {.team = team, .rank = rank, .bytes = GRANULE};
    symwin_window *window;
    symwin_comm_info comm;
    char words[256];

    m.device = why->devices > 0 ? rank % why->devices : rank;
    host_must(symwin_comm_create(&team->id, team->nranks, rank, m.device, &options, &m.comm),
              "symwin_comm_create");
    m.memory = host_alloc(m.device, GRANULE);
    host_must(symwin_comm_query(m.comm, &comm), "symwin_comm_query");
    TAP_EQ(why->name, comm.multicast, 0);
    window = member_window(&m, 0, GRANULE);
    expect_none(why->name, &m, window, why->reason);
    TAP_EQ("peers are reached all the same", member_exchange(&m, window, m.memory, 16, 7), 0);
    snprintf(words, sizeof words, "symwin_window_register|rank 0|SYMWIN_WINDOW_MULTICAST|%s",
             why->reason);
    expect_refused(why->name, &m, SYMWIN_UNSUPPORTED, words);
    TAP_EQ("after the refusal too", member_exchange(&m, window, m.memory, 16, 77), 0);
    member_deregister(&m, window);
    expect_refused(why->name, &m, SYMWIN_UNSUPPORTED, "SYMWIN_WINDOW_MULTICAST");
    member_close(&m);
}

/* ---- where multicast objects run out ---- */

enum { MOST_OBJECTS = 128 }; /* with bindings, in the emulated machine */

/* An object takes its slot at its first bind. */
static void take_all(CUmemGenericAllocationHandle objects[MOST_OBJECTS], CUdeviceptr memory)
{
    CUmulticastObjectProp prop = {.numDevices = 2, .size = GRANULE};
    int i;

    for (i = 0; i < MOST_OBJECTS; i++) {
        host_must_cuda(sw_drv.cuMulticastCreate(&objects[i], &prop), "cuMulticastCreate");
        host_must_cuda(sw_drv.cuMulticastAddDevice(objects[i], 0), "cuMulticastAddDevice");
        host_must_cuda(sw_drv.cuMulticastAddDevice(objects[i], 1), "cuMulticastAddDevice");
        if (sw_drv.cuMulticastBindAddr(objects[i], 0, memory, GRANULE, 0) != CUDA_SUCCESS)
            break;
    }
    tap_ok(i > 0, "%d multicast slots were left", i);
    for (i++; i < MOST_OBJECTS; i++)
        objects[i] = 0;
}

static void run_exhausted(struct harness_team *team, int rank, void *arg)
{
    CUmemGenericAllocationHandle objects[MOST_OBJECTS];
    symwin_window *window, *later = NULL;
    struct member m;
    int i;

    (void)arg;
    member_open(&m, team, rank, GRANULE);
    if (rank == 0)
        take_all(objects, (CUdeviceptr)(uintptr_t)m.memory);
    harness_barrier(team);
    window = member_window(&m, 0, GRANULE);
    expect_none("no objects are left", &m, window, "the switch has few slots");
    TAP_EQ("peers are reached all the same", member_exchange(&m, window, m.memory, 16, 3), 0);
    expect_refused("insisting does not help", &m, SYMWIN_NO_MEMORY,
                   "symwin_window_register|cuMulticastBindMem");
    member_deregister(&m, window);
    expect_refused("nor on memory that is new", &m, SYMWIN_NO_MEMORY, "cuMulticastBindMem");
    for (i = 0; i < MOST_OBJECTS && rank == 0; i++)
        if (objects[i] != 0)
            host_must_cuda(sw_drv.cuMemRelease(objects[i]), "cuMemRelease");
    harness_barrier(team);
    host_expect("objects are free again",
                symwin_window_register(m.comm, m.memory, 64, SYMWIN_WINDOW_MULTICAST, &later),
                SYMWIN_OK, "");
    TAP_EQ("and work", stores_missed(&m, later, m.memory, 0, 3), 0);
    member_deregister(&m, later);
    member_close(&m);
}

/* One rank cannot bind its memory: all ranks go without multicast, or all are refused. */
static void run_one_cannot(struct harness_team *team, int rank, void *arg)
{
    symwin_window *window = NULL;
    const struct sw_emu_multicast_fault fault = {
        .call = SW_EMU_FAULT_BIND, .answer = CUDA_ERROR_INVALID_VALUE, .device = 2, .times = -1};
    struct host_raw raw;
    struct sw_emu_live live;
    struct member m, own;

    (void)arg;
    member_open(&m, team, rank, GRANULE);
    raw = host_raw_alloc(m.device, GRANULE, SYMWIN_HANDLE_POSIX_FD);
    own = m;
    own.memory = (void *)(uintptr_t)raw.ptr;
    if (rank == 2)
        host_must_cuda(sw_emu_multicast_fail(&fault), "a fault");
    harness_barrier(team);
    expect_refused("one rank cannot", &own, SYMWIN_DRIVER, "rank 2|cuMulticastBindMem");
    window = member_window(&own, 0, GRANULE);
    expect_none("so all do without", &own, window, "rank 2: cuMulticastBindMem");
    harness_barrier(team);
    sw_emu_live_count(&live);
    harness_barrier(team);
    TAP_EQ("and no object stays", live.multicasts + live.binds, 0);
    TAP_EQ("peers are reached all the same", member_exchange(&own, window, own.memory, 16, 3), 0);
    member_deregister(&m, window);
    harness_barrier(team);
    if (rank == 2)
        host_must_cuda(sw_emu_multicast_fail(NULL), "no fault");
    harness_barrier(team);
    host_raw_free(&raw);
    member_close(&m);
}

/* In one process the object is not exported, so memory that cannot be shared is bound to it. */
static void run_no_handles(struct harness_team *team, int rank, void *arg)
{
    symwin_window *window = NULL;
    struct host_raw raw;
    struct member m, own;

    (void)arg;
    member_open(&m, team, rank, GRANULE);
    raw = host_raw_alloc(m.device, GRANULE, 0);
    own = m;
    own.memory = (void *)(uintptr_t)raw.ptr;
    window = member_window(&own, 0, GRANULE);
    TAP_EQ("memory without handle types", stores_missed(&own, window, own.memory, 8, 1), 0);
    member_deregister(&m, window);
    harness_barrier(team);
    (void)sw_reaper_wait(10000);
    host_raw_free(&raw);
    member_close(&m);
}

int main(int argc, char **argv)
{
    static const char *const switched_off[] = {"SYMWIN_EMU_MULTICAST=0", NULL};
    static const struct without cases[] = {
        {"ranks that share devices", "rank 2 has the device of a lower rank", 0, 2},
        {"ranks that share devices, asked for", "rank 3 has the device of a lower rank",
         SYMWIN_COMM_MULTICAST, 3},
        {"SYMWIN_COMM_NO_MULTICAST", "was created with SYMWIN_COMM_NO_MULTICAST",
         SYMWIN_COMM_NO_MULTICAST, 0},
    };
    static const struct without alone = {"a single rank", "it has one rank", 0, 0};
    static const struct without unsupported = {"devices without multicast",
                                               "the device of rank 0 does not support it",
                                               SYMWIN_COMM_MULTICAST, 0};
    struct harness_leaks before;
    atomic_int told = 0;
    size_t i;

    harness_start();
    before = harness_leaks_now();
    if (child_part(argc, argv) != NULL) {
        harness_run(RANKS, run_without, (void *)(uintptr_t)&unsupported);
        harness_no_leaks("no multicast", &before);
        return tap_done();
    }
    harness_run(RANKS, run_present, NULL);
    harness_no_leaks("multicast", &before);
    harness_run(RANKS, run_later, NULL);
    harness_no_leaks("multicast that comes later", &before);
    plain_unbind = sw_drv.cuMulticastUnbind;
    sw_drv.cuMulticastUnbind = count_unbind;
    harness_run(RANKS, run_teardown, NULL);
    sw_drv.cuMulticastUnbind = refuse_unbind;
    harness_run(RANKS, run_refused_unbind, &told);
    sw_drv.cuMulticastUnbind = plain_unbind;
    TAP_EQ("a refused unbind is told once", atomic_load(&told), 1);
    harness_no_leaks("teardown", &before);
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        harness_run(RANKS, run_without, (void *)(uintptr_t)&cases[i]);
        harness_no_leaks(cases[i].name, &before);
    }
    harness_run(1, run_without, (void *)(uintptr_t)&alone);
    harness_no_leaks("a single rank", &before);
    harness_run(RANKS, run_exhausted, NULL);
    harness_no_leaks("no objects left", &before);
    harness_run(RANKS, run_one_cannot, NULL);
    harness_no_leaks("one rank cannot", &before);
    harness_run(RANKS, run_no_handles, NULL);
    harness_no_leaks("no handle types", &before);
    child_run("a machine without multicast", switched_off);
    return tap_done();
}
