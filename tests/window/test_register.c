/* Registered buffers: references, how buffers become windows, refusals, and captures. Ranks are
 * threads, or processes with SYMWIN_TEST_PROCESSES. */
#include <dlfcn.h>

#include "user_memory.h"

struct nccl_id {
    char internal[128];
};

/* ---- the life of a buffer ---- */

static void life(struct harness_team *team, int rank, void *arg)
{
    symwin_registration *first, *second, *again;
    symwin_registration_info info;
    symwin_comm_info comm;
    symwin_window *window;
    struct member m;
    unsigned char *in, *out;
    int before;

    (void)arg;
    open_member(&m, team, rank, 0, 20000);
    in = host_alloc(m.device, BYTES);
    out = host_alloc(m.device, BYTES);
    before = allocations(&m);
    first = enter(&m, in, BYTES);
    info = query(&m, first);
    tap_ok(info.local_references == 1 && info.graph_references == 0 && info.transports == 0 &&
               info.refused[0] == '\0' && info.ptr == in && info.bytes == BYTES &&
               info.buffer_id != 0,
           "registered and not connected");
    expect_sum(&m, "one of two registered", in, out, 1);
    tap_ok(query(&m, first).transports == 0, "which connects nothing");
    second = enter(&m, out, BYTES);
    tap_ok(!is_connected(&m, in, out), "no window before the first call");
    expect_sum(&m, "the first call", in, out, 2);
    harness_barrier(team);
    tap_ok(is_connected(&m, in, out), "windows after it");
    tap_ok((query(&m, first).transports & SYMWIN_TRANSPORT_PEER) != 0 &&
               (query(&m, second).transports & SYMWIN_TRANSPORT_PEER) != 0,
           "which the query says");
    host_must(symwin_comm_query(m.comm, &comm), "symwin_comm_query");
    TAP_EQ("by multicast too where the communicator has it",
           (query(&m, first).transports & SYMWIN_TRANSPORT_MULTICAST) != 0, comm.multicast);
    tap_ok(allocations(&m) > before, "and memory is mapped");
    expect_sum(&m, "the second call", in, out, 3);
    expect_sum(&m, "in place", in, in, 4);
    host_expect("they are not public windows", symwin_window_find(m.comm, in, 1, &window),
                SYMWIN_INVALID, "no window");
    again = enter(&m, in, BYTES);
    tap_ok(again == first && query(&m, first).local_references == 2, "known: one more reference");
    host_expect("free of what is registered", symwin_mem_free(in), SYMWIN_BUSY, "deregister");
    leave(&m, first);
    tap_ok(is_connected(&m, in, out), "one reference is left");
    leave(&m, first);
    harness_barrier(team);
    tap_ok(!is_connected(&m, in, out), "disconnected with the last reference");
    host_expect("a third time", symwin_deregister(m.comm, first), SYMWIN_INVALID,
                "no live registration");
    leave(&m, second);
    host_expect("free of what is connected and not registered", symwin_mem_free(in), SYMWIN_OK, "");
    in = host_alloc(m.device, BYTES);
    meet(&m);
    tap_ok(allocations(&m) == before, "nothing is mapped any more");
    again = enter(&m, in, BYTES);
    tap_ok(again != first, "a handle is never used again");
    leave(&m, again);
    host_expect("free", symwin_mem_free(in), SYMWIN_OK, "");
    host_expect("free", symwin_mem_free(out), SYMWIN_OK, "");
    in = host_alloc(m.device, BYTES);
    enter(&m, in, BYTES);
    enter(&m, in, BYTES);
    expect_sum(&m, "registered twice and left so", in, in, 5);
    close_member(&m);
    host_expect("the communicator has let go of it", symwin_mem_free(in), SYMWIN_OK, "");
}

/* ---- ranges ---- */

static void ranges(struct harness_team *team, int rank, void *arg)
{
    const size_t half = (size_t)2 << 20;
    symwin_registration *low, *high, *small[2];
    unsigned char *memory, *buffers[2];
    struct member m;
    int i;

    (void)arg;
    open_member(&m, team, rank, 0, 20000);
    memory = host_alloc(m.device, 2 * half);
    low = enter(&m, memory + 64, half - 64);
    tap_ok(query(&m, low).ptr == memory + 64 && query(&m, low).bytes == half - 64, "byte for byte");
    expect_sum(&m, "in the first half", memory + 256, memory + 256, 1);
    tap_ok(is_connected(&m, memory + half - BYTES, memory + 64), "all of the range was connected");
    tap_ok(!is_connected(&m, memory, memory), "and nothing beside it");
    high = enter(&m, memory + half, half);
    tap_ok(!is_connected(&m, memory + half - 512, memory + 64), "across two ranges: not yet");
    expect_sum(&m, "across two ranges that adjoin", memory + half - 512, memory + half - 512, 2);
    tap_ok(is_connected(&m, memory + half - 512, memory + half - 512), "they are one");
    tap_ok(is_connected(&m, memory + 2 * half - BYTES, memory + 64), "all of both");
    leave(&m, low);
    tap_ok(is_connected(&m, memory + half, memory + half), "the second stays without the first");
    leave(&m, high);
    harness_barrier(team);
    tap_ok(!is_connected(&m, memory + half, memory + half), "nothing stays without both");
    host_must(symwin_mem_free(memory), "symwin_mem_free");

    for (i = 0; i < 2; i++) {
        buffers[i] = host_alloc(m.device, 1000);
        small[i] = enter(&m, buffers[i], 1000);
    }
    tap_ok(small[0] != small[1], "two allocations in a page are two ranges");
    leave(&m, small[0]);
    host_expect("one is freed", symwin_mem_free(buffers[0]), SYMWIN_OK, "");
    host_expect("the other one not", symwin_mem_free(buffers[1]), SYMWIN_BUSY, "deregister");
    leave(&m, small[1]);
    host_must(symwin_mem_free(buffers[1]), "symwin_mem_free");
    close_member(&m);
}

/* ---- buffers that cannot be connected ---- */

/* By an algorithm that needs windows: the call says why the buffer is none. */
static void says_why(const struct member *m, void *other, void *buffer, const char *side)
{
    const symwin_allreduce_options options = {.size = sizeof options, .algo = SYMWIN_ALGO_TWOSHOT};
    void *const in = strcmp(side, "in") == 0 ? buffer : other;
    void *const out = in == buffer ? other : buffer;
    symwin_allreduce_info info;
    char words[160];

    snprintf(words, sizeof words,
             "twoshot needs both buffers in windows of this communicator, and the registered %s "
             "does not become one: rank |VMM memory|; or pass auto",
             side);
    host_expect(
        "a call that needs a window",
        symwin_allreduce_with(m->comm, in, out, COUNT, SYMWIN_F32, SYMWIN_SUM, &options, m->stream),
        SYMWIN_UNSUPPORTED, words);
    host_expect(
        "its query",
        symwin_allreduce_query(m->comm, in, out, COUNT, SYMWIN_F32, SYMWIN_SUM, &options, &info),
        SYMWIN_UNSUPPORTED, words);
}

static void refusals(struct harness_team *team, int rank, void *arg)
{
    symwin_registration *registration, *plain;
    const int odd = team->nranks - 1;
    symwin_registration_info info;
    CUdeviceptr memory = 0;
    struct member m;
    unsigned char *own;
    void *other, *buffer;
    uint64_t sequence;

    (void)arg;
    open_member(&m, team, rank, 0, 20000);
    own = host_alloc(m.device, 8 * BYTES);
    registration = enter(&m, own, 8 * BYTES);
    /* On one rank the buffer has another offset in its allocation. */
    expect_sum(&m, "offsets differ", own + (rank == odd ? BYTES : 0), own + 4 * BYTES, 1);
    info = query(&m, registration);
    tap_ok(info.transports == (m.nranks == 1 ? SYMWIN_TRANSPORT_PEER : 0) &&
               (m.nranks == 1 || rank == odd ||
                strstr(info.refused, "make the same allocations on all ranks") != NULL),
           "the query says why: %s", info.refused);
    sequence = m.comm->sequence;
    expect_sum(&m, "and again", own + (rank == odd ? BYTES : 0), own + 4 * BYTES, 2);
    tap_ok(m.comm->sequence == sequence, "nobody asks twice");
    tap_ok(!is_connected(&m, own, own + 4 * BYTES) || m.nranks == 1,
           "what was refused is no window");
    leave(&m, registration);
    host_must(symwin_mem_free(own), "symwin_mem_free");

    /* One rank's memory cannot be shared. */
    own = host_alloc(m.device, BYTES);
    host_must_cuda(sw_drv.cuMemAlloc(&memory, BYTES), "cuMemAlloc");
    plain = enter(&m, rank == odd ? (void *)(uintptr_t)memory : own, BYTES);
    expect_sum(&m, "one rank has no VMM memory", rank == odd ? (void *)(uintptr_t)memory : own,
               rank == odd ? (void *)(uintptr_t)memory : own, 3);
    info = query(&m, plain);
    tap_ok(info.transports == 0 && strstr(info.refused, "VMM memory") != NULL,
           "all ranks hear of it: %s", info.refused);
    buffer = rank == odd ? (void *)(uintptr_t)memory : own;
    other = host_alloc(m.device, BYTES);
    says_why(&m, buffer, buffer, "in");
    says_why(&m, other, buffer, "in");
    says_why(&m, other, buffer, "out");
    leave(&m, plain);
    host_must(symwin_mem_free(other), "symwin_mem_free");
    host_must_cuda(sw_drv.cuMemFree(memory), "cuMemFree");
    host_must(symwin_mem_free(own), "symwin_mem_free");
    close_member(&m);
}

/* Another allocator replaces memory that is registered. Then its address is used again: if `*arg`,
 * by a call, and in any case by the next registration. */
static void reused_address(struct harness_team *team, int rank, void *arg)
{
    symwin_registration *old, *new;
    struct host_raw raw, other;
    const int called = *(const int *)arg;
    struct member m;
    void *at;

    open_member(&m, team, rank, 0, 20000);
    raw = host_raw_alloc(m.device, GRANULE, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    other = host_raw_alloc(m.device, GRANULE, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    at = (void *)(uintptr_t)raw.ptr;
    old = enter(&m, at, GRANULE);
    expect_sum(&m, "another allocator's memory", at, at, 1);
    tap_ok(is_connected(&m, at, at), "it connects");
    harness_barrier(team);
    {
        CUmemAccessDesc access = {.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

        access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        access.location.id = m.device;
        host_must_cuda(sw_drv.cuMemUnmap(raw.ptr, raw.bytes), "cuMemUnmap");
        host_must_cuda(sw_drv.cuMemMap(raw.ptr, raw.bytes, 0, other.handle, 0), "cuMemMap");
        host_must_cuda(sw_drv.cuMemSetAccess(raw.ptr, raw.bytes, &access, 1), "cuMemSetAccess");
    }
    harness_barrier(team);
    if (called) {
        expect_sum(&m, "another buffer at its address", at, at, 2);
        tap_ok(!is_connected(&m, at, at), "it is not taken for the old one");
    }
    new = enter(&m, at, GRANULE);
    tap_ok(new != old, "registering it gives a handle of its own");
    expect_sum(&m, "the new buffer", at, at, 3);
    tap_ok(is_connected(&m, at, at), "it connects");
    leave(&m, old);
    tap_ok(is_connected(&m, at, at), "the old one's end does not touch it");
    leave(&m, new);
    close_member(&m);
    host_raw_free(&raw);
    host_raw_free(&other);
}

/* ---- ranks that disagree ---- */

static void alone(struct harness_team *team, int rank, void *arg)
{
    symwin_status status;
    struct member m;
    void *memory;

    (void)arg;
    open_member(&m, team, rank, 0, SHORT_MS);
    memory = host_alloc(m.device, BYTES);
    if (rank == 0)
        enter(&m, memory, BYTES);
    status = rank == 0 ? reduce(&m, memory, memory) : SYMWIN_OK;
    if (rank == 0)
        host_expect("the others have registered nothing", status, SYMWIN_TIMEOUT,
                    "symwin_allreduce: rank 1 did not come to the agreement about registered "
                    "buffers|symwin_register|destroy the communicator");
    harness_barrier(team);
    host_expect("and all know it", symwin_comm_check(m.comm), SYMWIN_TIMEOUT,
                "rank 1 did not come to an agreement about registered buffers in time");
    close_member(&m);
    host_must(symwin_mem_free(memory), "symwin_mem_free");
}

/* One rank waits in the agreement, the other one's kernel for that rank. */
static void unregistered(struct harness_team *team, int rank, void *arg)
{
    const symwin_comm_options options = {
        .size = sizeof options, .timeout_ms = 20000, .kernel_timeout_ms = SHORT_MS};
    symwin_comm *first;
    struct member m;
    void *memory;

    (void)arg;
    open_member(&m, team, rank, 0, 20000);
    first = m.comm;
    host_must(symwin_comm_split(first, 0, rank, &options, &m.comm), "symwin_comm_split");
    memory = host_alloc(m.device, BYTES);
    if (rank == 0) {
        enter(&m, memory, BYTES);
        host_expect("the rank that has registered", reduce(&m, memory, memory), SYMWIN_TIMEOUT,
                    "symwin_allreduce: other ranks waited for rank 0 |, but not in the agreement "
                    "about registered buffers, where it is|symwin_register|destroy");
    } else {
        host_must(reduce(&m, memory, memory), "symwin_allreduce");
        host_must(symwin_stream_synchronize(m.device, m.stream), "synchronize");
        host_expect("the other one", symwin_comm_check(m.comm), SYMWIN_TIMEOUT,
                    " waited | for rank 0");
    }
    symwin_comm_destroy(m.comm);
    m.comm = first;
    close_member(&m);
    host_must(symwin_mem_free(memory), "symwin_mem_free");
}

static void differing_counts(struct harness_team *team, int rank, void *arg)
{
    struct member m;
    void *memory;

    (void)arg;
    open_member(&m, team, rank, 0, 20000);
    memory = host_alloc(m.device, BYTES);
    enter(&m, memory, BYTES);
    host_expect("a rank passes less",
                symwin_allreduce(m.comm, memory, memory, rank == 0 ? COUNT : COUNT / 2, SYMWIN_F32,
                                 SYMWIN_SUM, m.stream),
                SYMWIN_MISMATCH, "rank 0 passes 16384 bytes and rank 1 8192");
    expect_sum(&m, "the next call", memory, memory, 1);
    tap_ok(is_connected(&m, memory, memory), "which connects");
    close_member(&m);
    host_must(symwin_mem_free(memory), "symwin_mem_free");
}

/* ---- captures ---- */

struct graphs_case {
    unsigned flags;
    const char *environment; /* SYMWIN_GRAPH_REGISTER */
    int unasked;             /* captures register buffers that the program has not registered */
};

static void graphs(struct harness_team *team, int rank, void *arg)
{
    const struct graphs_case *c = arg;
    const int unasked = c->unasked;
    symwin_registration *registration = NULL;
    unsigned char *in, *out;
    CUgraphExec exec;
    CUgraph graph;
    struct member m;

    open_member(&m, team, rank, c->flags, 20000);
    in = host_alloc(m.device, BYTES);
    out = host_alloc(m.device, BYTES);
    exec = capture(&m, in, out, &graph);
    tap_ok(!is_connected(&m, in, out), "calls outside do not go by what a graph holds");
    replay(&m, "a graph", exec, in, out, 1);
    host_expect("memory that the graph uses", symwin_mem_free(in),
                unasked ? SYMWIN_BUSY : SYMWIN_OK, "deregister");
    if (!unasked)
        in = host_alloc(m.device, BYTES);
    host_must_cuda(sw_drv.cuGraphDestroy(graph), "cuGraphDestroy");
    if (unasked) {
        host_expect("the graph is gone and not what was made of it", symwin_mem_free(in),
                    SYMWIN_BUSY, "deregister");
        replay(&m, "without its graph", exec, in, out, 2);
    }
    host_must_cuda(sw_drv.cuGraphExecDestroy(exec), "cuGraphExecDestroy");
    expect_free("nothing stays", in);
    in = host_alloc(m.device, BYTES);
    tap_ok(!is_connected(&m, in, out), "and nothing is connected");

    enter(&m, out, BYTES);
    registration = enter(&m, in, BYTES);
    exec = capture(&m, in, out, &graph);
    tap_ok(is_connected(&m, in, out) && query(&m, registration).graph_references == 1 &&
               query(&m, registration).local_references == 1,
           "a capture holds what is registered, once");
    leave(&m, registration);
    host_expect("only the graph has it", symwin_deregister(m.comm, registration), SYMWIN_INVALID,
                "no live registration");
    tap_ok(!is_connected(&m, in, out), "deregistered: calls outside do not go by it");
    host_expect("and the graph keeps it", symwin_mem_free(in), SYMWIN_BUSY,
                "captured graphs|destroy the channel or the graph");
    replay(&m, "deregistered", exec, in, out, 3);
    host_must_cuda(sw_drv.cuGraphDestroy(graph), "cuGraphDestroy");
    host_must_cuda(sw_drv.cuGraphExecDestroy(exec), "cuGraphExecDestroy");
    host_expect("nor when the graph is gone", reduce_in_windows(&m, in, out), SYMWIN_UNSUPPORTED,
                "both buffers in windows");
    harness_barrier(team);
    expect_free("free, when all are gone", in);
    in = host_alloc(m.device, BYTES);
    enter(&m, in, BYTES);
    exec = capture(&m, in, out, &graph);
    harness_barrier(team);
    close_member(&m);
    host_expect("the communicator goes before the graph", symwin_mem_free(in), SYMWIN_OK, "");
    host_must(symwin_mem_free(out), "symwin_mem_free");
    host_must_cuda(sw_drv.cuGraphDestroy(graph), "cuGraphDestroy");
    host_must_cuda(sw_drv.cuGraphExecDestroy(exec), "cuGraphExecDestroy");
}

/* Two graphs hold a connection that an earlier call made. It stays until both are gone. */
static void two_graphs(struct harness_team *team, int rank, void *arg)
{
    CUgraphExec exec[2];
    CUgraph graph[2];
    symwin_registration *r;
    struct member m;
    void *in;
    int i;

    (void)arg;
    open_member(&m, team, rank, 0, 20000);
    in = host_alloc(m.device, BYTES);
    r = enter(&m, in, BYTES);
    expect_sum(&m, "connected", in, in, 1);
    for (i = 0; i < 2; i++)
        exec[i] = capture(&m, in, in, &graph[i]);
    harness_barrier(team);
    leave(&m, r);
    for (i = 0; i < 2; i++) {
        host_expect(i == 0 ? "both graphs hold it" : "the second holds it still",
                    symwin_mem_free(in), SYMWIN_BUSY, "deregister");
        meet(&m);
        host_must_cuda(sw_drv.cuGraphDestroy(graph[i]), "cuGraphDestroy");
        host_must_cuda(sw_drv.cuGraphExecDestroy(exec[i]), "cuGraphExecDestroy");
    }
    harness_barrier(team);
    expect_free("free, when both are gone", in);
    close_member(&m);
}

/* More unused connections than one agreement asks about: the one beyond that limit goes too. */
static void many(struct harness_team *team, int rank, void *arg)
{
    enum { MANY = 70 };
    struct member m;
    unsigned char *own, *last;
    symwin_registration *r;
    int i;

    (void)arg;
    open_member(&m, team, rank, 0, 20000);
    host_must(symwin_mem_alloc(m.device, (size_t)2 * MANY * BYTES, SYMWIN_MEM_OWN, (void **)&own),
              "alloc");
    host_must(symwin_mem_alloc(m.device, GRANULE, SYMWIN_MEM_OWN, (void **)&last), "alloc");
    for (i = 0; i < MANY; i++) {
        enter(&m, own + (size_t)2 * (size_t)i * BYTES, BYTES);
        host_must(
            reduce(&m, own + (size_t)2 * (size_t)i * BYTES, own + (size_t)2 * (size_t)i * BYTES),
            "connected");
    }
    TAP_EQ("one allocation is mapped", allocations(&m), 1);
    r = enter(&m, last, GRANULE);
    host_must(reduce(&m, last, last), "connected");
    TAP_EQ("and another", allocations(&m), 2);
    harness_barrier(team);
    leave(&m, r);
    meet(&m);
    meet(&m);
    TAP_EQ("which goes", allocations(&m), 1);
    harness_barrier(team);
    close_member(&m);
    host_must(symwin_mem_free(own), "free");
    host_must(symwin_mem_free(last), "free");
}

/* ---- arguments ---- */

static void arguments(struct harness_team *team, int rank, void *arg)
{
    symwin_registration *r = NULL;
    symwin_registration_info info;
    int on_host = 0;
    struct member m;
    char *memory;

    (void)arg;
    open_member(&m, team, rank, 0, 20000);
    memory = host_alloc(m.device, BYTES);
    host_expect("comm NULL", symwin_register(NULL, memory, 1, &r), SYMWIN_INVALID, "comm is NULL");
    host_expect("ptr NULL", symwin_register(m.comm, NULL, 1, &r), SYMWIN_INVALID, "ptr is NULL");
    host_expect("no place", symwin_register(m.comm, memory, 1, NULL), SYMWIN_INVALID,
                "registration is NULL");
    host_expect("0 bytes", symwin_register(m.comm, memory, 0, &r), SYMWIN_INVALID, "bytes is 0");
    host_expect("all bytes", symwin_register(m.comm, memory, SIZE_MAX, &r), SYMWIN_INVALID,
                "bytes is");
    host_expect("past the end", symwin_register(m.comm, memory + 1, BYTES, &r), SYMWIN_INVALID,
                "pass the end of their allocation by 1");
    host_expect("the host's memory", symwin_register(m.comm, &on_host, 4, &r), SYMWIN_INVALID,
                "not device memory");
    host_expect("not a handle", symwin_deregister(m.comm, (symwin_registration *)(uintptr_t)4096),
                SYMWIN_INVALID, "no live registration");
    host_expect("NULL", symwin_deregister(m.comm, NULL), SYMWIN_INVALID, "no live registration");
    host_expect("comm NULL", symwin_deregister(NULL, r), SYMWIN_INVALID, "comm is NULL");
    host_expect("query of NULL", symwin_registration_query(m.comm, NULL, &info), SYMWIN_INVALID,
                "no live registration");
    host_expect("query to NULL", symwin_registration_query(m.comm, NULL, NULL), SYMWIN_INVALID,
                "info is NULL");
    host_expect("no NCCL here", symwin_comm_attach_nccl(m.comm, (struct ncclComm *)(uintptr_t)1),
                SYMWIN_UNSUPPORTED, "ncclCommRegister");
    host_expect("none is attached", symwin_comm_attach_nccl(m.comm, NULL), SYMWIN_OK, "");
    if (harness_device_count() > 1) {
        void *far = host_alloc((m.device + 1) % harness_device_count(), BYTES);

        host_expect("another device's", symwin_register(m.comm, far, BYTES, &r), SYMWIN_INVALID,
                    "memory of device");
        host_must(symwin_mem_free(far), "symwin_mem_free");
    }
    host_must(symwin_mem_free(memory), "symwin_mem_free");
    host_expect("freed memory", symwin_register(m.comm, memory, 1, &r), SYMWIN_INVALID, "freed");
    tap_ok(r == NULL, "the out-pointer is untouched");
    close_member(&m);
}

/* ---- NCCL attached to the communicator ---- */

struct nccl {
    int (*create)(struct ncclComm **comm, int nranks, struct nccl_id id, int rank);
    int (*destroy)(struct ncclComm *comm); /* fails while something is registered */
};

/* Loads the fake libnccl.so.2 that lies beside this program. It accepts every registration. */
static int open_nccl(struct nccl *nccl)
{
    char path[4096], *end;
    void *library, *symbol;
    const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 64);

    path[length > 0 ? length : 0] = '\0';
    end = strrchr(path, '/');
    strcpy(end != NULL ? end + 1 : path, "nccl/collectives/libnccl.so.2");
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return 0;
    symbol = dlsym(library, "ncclCommInitRank");
    memcpy(&nccl->create, &symbol, sizeof symbol);
    symbol = dlsym(library, "ncclCommDestroy");
    memcpy(&nccl->destroy, &symbol, sizeof symbol);
    return nccl->create != NULL && nccl->destroy != NULL;
}

static int is_with_nccl(const struct member *m, symwin_registration *registration)
{
    return (query(m, registration).transports & SYMWIN_TRANSPORT_NCCL) != 0;
}

static void attached(struct harness_team *team, int rank, void *arg)
{
    const struct nccl *nccl = arg;
    symwin_registration *small, *large, *kept;
    struct ncclComm *theirs = NULL;
    struct nccl_id id;
    struct member m;
    char *memory;

    memset(&id, 5, sizeof id);
    open_member(&m, team, rank, 0, 20000);
    memory = host_alloc(m.device, 8 * BYTES);
    if (nccl->create(&theirs, 1, id, 0) != 0)
        abort();
    small = enter(&m, memory, BYTES / 2);
    host_expect("attach", symwin_comm_attach_nccl(m.comm, theirs), SYMWIN_OK, "");
    tap_ok(is_with_nccl(&m, small), "what was registered is with NCCL too");
    host_expect("attach twice", symwin_comm_attach_nccl(m.comm, theirs), SYMWIN_INVALID,
                "pass NULL first");
    large = enter(&m, memory + BYTES, 4 * BYTES);
    tap_ok(is_with_nccl(&m, large), "and what is registered later");
    expect_sum(&m, "a call", memory + BYTES, memory + BYTES, 1);
    host_expect("detach", symwin_comm_attach_nccl(m.comm, NULL), SYMWIN_OK, "");
    tap_ok(!is_with_nccl(&m, small) && !is_with_nccl(&m, large), "all is taken back");
    TAP_EQ("NCCL has nothing left", nccl->destroy(theirs), 0);
    leave(&m, large);

    theirs = NULL;
    if (nccl->create(&theirs, 1, id, 0) != 0)
        abort();
    setenv("FAKE_NCCL", "refuse", 1);
    host_expect("attach again", symwin_comm_attach_nccl(m.comm, theirs), SYMWIN_OK, "");
    large = NULL;
    host_expect("NCCL refuses", symwin_register(m.comm, memory + BYTES, 4 * BYTES, &large),
                SYMWIN_DRIVER, "ncclCommRegister of 65536 bytes|gave");
    host_expect("then nothing was registered", symwin_comm_attach_nccl(m.comm, NULL), SYMWIN_OK,
                "");
    tap_ok(large == NULL, "the out-pointer is untouched");
    large = enter(&m, memory + BYTES, 4 * BYTES);
    kept = enter(&m, memory + 6 * BYTES, 100);
    host_expect("NCCL refuses one of three", symwin_comm_attach_nccl(m.comm, theirs), SYMWIN_DRIVER,
                "ncclCommRegister of 65536 bytes");
    tap_ok(!is_with_nccl(&m, small) && !is_with_nccl(&m, large) && !is_with_nccl(&m, kept),
           "then it has none");
    setenv("FAKE_NCCL", "stuck", 1);
    host_expect("attach at last", symwin_comm_attach_nccl(m.comm, theirs), SYMWIN_OK, "");
    expect_sum(&m, "a call", memory + BYTES, memory + BYTES, 2);
    tap_ok(is_connected(&m, memory + BYTES, memory + BYTES), "which connects");
    host_expect("NCCL fails to deregister", symwin_deregister(m.comm, large), SYMWIN_DRIVER,
                "ncclCommDeregister of 65536 bytes");
    harness_barrier(team);
    tap_ok(!is_connected(&m, memory + BYTES, memory + BYTES), "all else is gone");
    host_expect("the handle too", symwin_deregister(m.comm, large), SYMWIN_INVALID,
                "no live registration");
    host_expect("detach names the failure", symwin_comm_attach_nccl(m.comm, NULL), SYMWIN_DRIVER,
                "ncclCommDeregister");
    host_expect("and is done with", symwin_comm_attach_nccl(m.comm, theirs), SYMWIN_OK, "");
    unsetenv("FAKE_NCCL");
    close_member(&m);
    TAP_EQ("the communicator's end takes all back", nccl->destroy(theirs), 0);
    host_expect("free", symwin_mem_free(memory), SYMWIN_OK, "");
}

int main(void)
{
    static struct nccl nccl;
    static struct graphs_case graphs_cases[] = {
        {SYMWIN_COMM_NO_GRAPH_REGISTER, "1", 0}, {0, "0", 0}, {0, "1", 1}};
    int called;
    size_t i;

    harness_fork();
    harness_start();
    run("arguments", 1, arguments, NULL);
    run("life", 4, life, NULL);
    run("life of a lonely rank", 1, life, NULL);
    run("ranges", 2, ranges, NULL);
    run("refusals", 3, refusals, NULL);
    for (called = 0; called < 2; called++)
        run("a reused address", 2, reused_address, &called);
    run("two graphs", 2, two_graphs, NULL);
    run("many connections", 2, many, NULL);
    run("alone", 2, alone, NULL);
    run("unregistered", 2, unregistered, NULL);
    run("differing counts", 2, differing_counts, NULL);
    for (i = 0; i < sizeof graphs_cases / sizeof graphs_cases[0]; i++) {
        setenv("SYMWIN_GRAPH_REGISTER", graphs_cases[i].environment, 1);
        run("graphs", 4, graphs, &graphs_cases[i]);
    }
    if (open_nccl(&nccl))
        run("an attached NCCL", 1, attached, &nccl);
    else
        tap_ok(!sw_driver_is_emulated(),
               "an attached NCCL # SKIP there is none beside this program");
    return harness_done();
}
