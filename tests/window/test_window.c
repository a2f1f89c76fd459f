/* Windows: what can be registered and what cannot; all ranks get the same answer. Sharing, lookup
 * and multicast have their own files. */
#include "windows.h"

#define SENTINEL ((symwin_window *)(uintptr_t)0x5e5e5e5e)

enum { RANKS = 4, BYTES = 2 * GRANULE };

/* ---- one table, the same for all ranks ---- */

static const struct alike {
    const char *name;
    size_t offset, bytes;
    unsigned flags;
    symwin_status want;
    const char *words;
} alike[] = {
    {"whole", 0, BYTES, 0, SYMWIN_OK, ""},
    {"one byte", 0, 1, 0, SYMWIN_OK, ""},
    {"the last byte", BYTES - 1, 1, 0, SYMWIN_OK, ""},
    {"in the middle of nowhere", 12345, 6789, 0, SYMWIN_OK, ""},
    {"across granules", GRANULE - 3, 7, 0, SYMWIN_OK, ""},
    {"from an odd byte to the end", 777, BYTES - 777, 0, SYMWIN_OK, ""},
    {"without multicast", 64, 64, SYMWIN_WINDOW_NO_MULTICAST, SYMWIN_OK, ""},
    {"one past the end", 1, BYTES, 0, SYMWIN_INVALID, "rank 0|passes the end|by 1 bytes"},
    {"two bytes at the last", BYTES - 1, 2, 0, SYMWIN_INVALID, "rank 0|by 1 bytes"},
    {"all bytes there are", 8, SIZE_MAX, 0, SYMWIN_INVALID, "rank 0|passes the end"},
    /* Another rank's memory may be there. */
    {"from past the end", BYTES, 1, 0, SYMWIN_INVALID, "rank "},
    {"no bytes", 0, 0, 0, SYMWIN_INVALID, "rank 0|bytes is 0"},
    {"an unknown flag", 0, 64, 4, SYMWIN_INVALID, "rank 0|flags has 0x4, which"},
    {"flags that exclude each other", 0, 64, 3, SYMWIN_INVALID,
     "rank 0|flags has SYMWIN_WINDOW_MULTICAST and"},
};

static size_t offsets[RANKS]; /* from each rank's query */

static void check_window(struct member *m, const struct alike *row, symwin_window *window)
{
    void *const ptr = host_at(m->memory, row->offset);
    const symwin_window_info info = member_query(m, window);
    symwin_window *found = NULL;
    symwin_comm_info comm;
    void *peer = NULL;
    int wrong;

    host_must(symwin_comm_query(m->comm, &comm), "symwin_comm_query");
    tap_ok(info.ptr == ptr && info.bytes == row->bytes && info.rank == m->rank &&
               info.nranks == RANKS && info.base == comm.base && info.stride == comm.stride &&
               (info.transports & SYMWIN_TRANSPORT_PEER) != 0 && comm.windows == 1,
           "%s: rank %d: described as it is", row->name, m->rank);
    offsets[m->rank] = info.offset;
    harness_barrier(m->team);
    tap_ok(offsets[m->rank] == offsets[0] && info.offset + info.bytes <= info.stride,
           "%s: rank %d: at the offset of rank 0", row->name, m->rank);
    host_must(symwin_window_find(m->comm, ptr, row->bytes, &found), "symwin_window_find");
    tap_ok(found == window, "%s: rank %d: found by address", row->name, m->rank);
    peer = member_peer(m, window, RANKS - 1, row->bytes - 1);
    tap_ok(peer == host_at(info.base, (RANKS - 1) * info.stride + info.offset + row->bytes - 1),
           "%s: rank %d: a peer's address is arithmetic", row->name, m->rank);
    if (row->bytes < 4)
        return;
    wrong = member_exchange(m, window, ptr, 0, 100) +
            member_exchange(m, window, ptr, row->bytes - 4, 200);
    TAP_EQ("every rank reads what every rank wrote", wrong, 0);
}

static void run_alike(struct harness_team *team, int rank, void *arg)
{
    struct member m;
    size_t i;

    (void)arg;
    member_open(&m, team, rank, BYTES);
    for (i = 0; i < sizeof alike / sizeof alike[0]; i++) {
        const struct alike *row = &alike[i];
        symwin_window *window = SENTINEL;
        symwin_status status = symwin_window_register(m.comm, host_at(m.memory, row->offset),
                                                      row->bytes, row->flags, &window);

        host_expect(row->name, status, row->want, row->words);
        if (status == SYMWIN_OK) {
            check_window(&m, row, window);
            member_deregister(&m, window);
            harness_barrier(team);
        } else {
            tap_ok(window == SENTINEL, "%s: rank %d: the out-pointer is untouched", row->name,
                   rank);
        }
        harness_barrier(team);
        TAP_EQ("nothing stays mapped", member_allocations(&m), 0);
        harness_barrier(team);
    }
    member_close(&m);
}

/* ---- one rank that differs ---- */

enum difference { D_NULL, D_HOST, D_PLAIN, D_DEVICE, D_FREED, D_PTR, D_BYTES, D_FLAGS };

static const struct odd {
    const char *name;
    int culprit;
    enum difference what;
    size_t value;
    symwin_status want;
    const char *words;
} odd[] = {
    {"NULL on one rank", 2, D_NULL, 0, SYMWIN_INVALID, "rank 2|ptr is NULL"},
    {"host memory on one rank", 1, D_HOST, 0, SYMWIN_INVALID, "rank 1|VMM"},
    {"cuMemAlloc's memory on one rank", 3, D_PLAIN, 0, SYMWIN_INVALID, "rank 3|VMM"},
    {"another device's memory on one rank", 0, D_DEVICE, 0, SYMWIN_INVALID,
     "rank 0|memory of device"},
    {"freed memory on one rank", 3, D_FREED, 0, SYMWIN_INVALID, "rank 3|freed"},
    {"past the end on one rank", 2, D_PTR, BYTES - 4095, SYMWIN_INVALID, "rank 2|by 1 bytes"},
    {"no bytes on one rank", 1, D_BYTES, 0, SYMWIN_INVALID, "rank 1|bytes is 0"},
    {"an unknown flag on one rank", 3, D_FLAGS, 16, SYMWIN_INVALID, "rank 3|0x10"},
    {"bytes that differ", 3, D_BYTES, 4097, SYMWIN_MISMATCH,
     "bytes differs|4096 on rank 0|4097 on rank 3"},
    {"bytes that differ on rank 0", 0, D_BYTES, 1, SYMWIN_MISMATCH,
     "bytes differs|1 on rank 0|4096 on rank 1"},
    {"flags that differ", 1, D_FLAGS, SYMWIN_WINDOW_NO_MULTICAST, SYMWIN_MISMATCH,
     "flags differs|0 on rank 0|2 on rank 1"},
    {"offsets that differ", 2, D_PTR, 512, SYMWIN_MISMATCH,
     "the offset in the allocation differs|0 on rank 0|512 on rank 2"},
    {"offsets that differ by a byte", 1, D_PTR, 1, SYMWIN_MISMATCH,
     "the offset in the allocation differs|0 on rank 0|1 on rank 1"},
};

/* One rank's memory that is wrong in some way. */
struct wrong_memory {
    int on_stack;
    CUdeviceptr plain;
    void *elsewhere, *freed;
};

static void wrong_memory_make(struct wrong_memory *w, int device)
{
    struct sw_scope scope;

    host_must(sw_scope_enter(device, &scope), "sw_scope_enter");
    host_must_cuda(sw_drv.cuMemAlloc(&w->plain, 4096), "cuMemAlloc");
    sw_scope_leave(&scope);
    w->elsewhere = host_alloc((device + 1) % harness_device_count(), GRANULE);
}

static void wrong_memory_free(struct wrong_memory *w, int device)
{
    struct sw_scope scope;

    host_must(sw_scope_enter(device, &scope), "sw_scope_enter");
    host_must_cuda(sw_drv.cuMemFree(w->plain), "cuMemFree");
    sw_scope_leave(&scope);
    host_must(symwin_mem_free(w->elsewhere), "symwin_mem_free");
}

static void *odd_pointer(const struct odd *row, const struct member *m, struct wrong_memory *w)
{
    switch (row->what) {
    case D_NULL:
        return NULL;
    case D_HOST:
        return &w->on_stack;
    case D_PLAIN:
        return (void *)(uintptr_t)w->plain;
    case D_DEVICE:
        return w->elsewhere;
    case D_FREED:
        w->freed = host_alloc(m->device, GRANULE);
        host_must(symwin_mem_free(w->freed), "symwin_mem_free");
        return w->freed;
    case D_PTR:
        return host_at(m->memory, row->value);
    case D_BYTES:
    case D_FLAGS:
        break;
    }
    return m->memory;
}

static void run_odd(struct harness_team *team, int rank, void *arg)
{
    struct wrong_memory wrong;
    symwin_window *window;
    struct member m;
    size_t i;

    (void)arg;
    member_open(&m, team, rank, BYTES);
    wrong_memory_make(&wrong, m.device);
    for (i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        const struct odd *row = &odd[i];
        const int culprit = rank == row->culprit;
        char name[80];

        /* Meanwhile no other rank may allocate at the freed address. */
        harness_barrier(team);
        snprintf(name, sizeof name, "%s, seen by rank %d", row->name, rank);
        window = SENTINEL;
        host_expect(name,
                    symwin_window_register(
                        m.comm, culprit ? odd_pointer(row, &m, &wrong) : m.memory,
                        culprit && row->what == D_BYTES ? row->value : 4096,
                        culprit && row->what == D_FLAGS ? (unsigned)row->value : 0, &window),
                    row->want, row->words);
        tap_ok(window == SENTINEL, "%s: the out-pointer is untouched", name);
    }
    harness_barrier(team);
    TAP_EQ("nothing is mapped after all that", member_allocations(&m), 0);
    harness_barrier(team);
    window = member_window(&m, 0, BYTES);
    TAP_EQ("and the communicator works", member_exchange(&m, window, m.memory, 8, 1000), 0);
    member_deregister(&m, window);
    wrong_memory_free(&wrong, m.device);
    member_close(&m);
}

/* ---- allocations of different sizes ---- */

static void run_sizes(struct harness_team *team, int rank, void *arg)
{
    symwin_window *window = NULL;
    struct member m;

    (void)arg;
    /* Rank 3's allocation is the smallest. */
    member_open(&m, team, rank, (size_t)(1 + (rank + 1) % RANKS) * GRANULE);
    window = member_window(&m, 0, GRANULE);
    TAP_EQ("windows on allocations of different sizes",
           member_exchange(&m, window, m.memory, GRANULE - 4, 10), 0);
    TAP_EQ("are one allocation", member_allocations(&m), 1);
    host_expect("a window past the smallest",
                symwin_window_register(m.comm, m.memory, GRANULE + 1, 0, &window), SYMWIN_INVALID,
                "rank 3|by 1 bytes");
    member_deregister(&m, window);
    member_close(&m);
}

/* ---- offsets in the flat range ---- */

/* A hole of exactly the right size is reused. Parts of one segment at different offsets on the
 * ranks are no window of that segment. */
static void run_places(struct harness_team *team, int rank, void *arg)
{
    symwin_window *windows[3], *part = NULL;
    void *memory[3];
    struct member m;
    size_t hole;
    int i;

    (void)arg;
    member_open(&m, team, rank, GRANULE);
    for (i = 0; i < 3; i++) {
        host_must(symwin_mem_alloc(m.device, 3 * GRANULE, SYMWIN_MEM_OWN, &memory[i]), "alloc");
        host_must(symwin_window_register(m.comm, memory[i], 3 * GRANULE, 0, &windows[i]),
                  "register");
    }
    hole = member_query(&m, windows[1]).offset;
    member_deregister(&m, windows[1]);
    harness_barrier(team);
    host_must(symwin_window_register(m.comm, memory[1], 3 * GRANULE, 0, &windows[1]), "register");
    tap_ok(member_query(&m, windows[1]).offset == hole, "rank %d: in the hole", rank);
    host_must(symwin_window_register(m.comm, host_at(memory[2], (size_t)(rank % 3) * GRANULE),
                                     GRANULE, 0, &part),
              "a part");
    offsets[rank] = member_query(&m, part).offset;
    harness_barrier(team);
    tap_ok(offsets[rank] == offsets[0], "rank %d: parts at other places are at one offset", rank);
    TAP_EQ("and all see each other",
           member_exchange(&m, part, host_at(memory[2], (size_t)(rank % 3) * GRANULE), 64, 100), 0);
    member_close(&m);
    for (i = 0; i < 3; i++)
        host_must(symwin_mem_free(memory[i]), "symwin_mem_free");
}

static struct sw_group dying;
static struct sw_segment *joined;
static CUresult (*plain_release)(CUmemGenericAllocationHandle);
static const struct sw_stretch one_stretch = {0, GRANULE, 1};

static CUresult release_and_join(CUmemGenericAllocationHandle handle)
{
    (void)handle;
    sw_drv.cuMemRelease = plain_release;
    host_must(sw_segment_join(&dying, 0, 7, GRANULE, &one_stretch, &joined), "sw_segment_join");
    return CUDA_SUCCESS;
}

/* A registration has failed on the other ranks. A rank that joins late creates its own segment,
 * while theirs is being destroyed. */
static void late_segment(void)
{
    struct sw_segment *first = NULL;

    dying = (struct sw_group){.nranks = 1, .granularity = GRANULE, .limit = 4 * GRANULE};
    if (pthread_mutex_init(&dying.mutex, NULL) != 0)
        abort();
    host_must(sw_segment_join(&dying, 0, 7, 0, &one_stretch, &first), "sw_segment_join");
    first->rank[0].pieces[0].memory = 1;
    plain_release = sw_drv.cuMemRelease;
    sw_drv.cuMemRelease = release_and_join;
    sw_segment_release(&dying, first, 0);
    (void)sw_reaper_wait(10000);
    tap_ok(joined != NULL && joined->offset == GRANULE && sw_segment_count(&dying) == 1,
           "a segment that is taken down is not joined");
    sw_segment_release(&dying, joined, 0);
    (void)sw_reaper_wait(10000);
    TAP_EQ("nor does the other stay", sw_segment_count(&dying), 0);
    pthread_mutex_destroy(&dying.mutex);
}

/* ---- memory of another allocator ---- */

enum raw_way { RAW_HANDLE_KEPT, RAW_HANDLE_RELEASED, RAW_FREED_WHILE_REGISTERED };

static void run_raw(struct harness_team *team, int rank, void *arg)
{
    const enum raw_way way = *(const enum raw_way *)arg;
    symwin_window *window = NULL;
    struct host_raw raw;
    struct member m;
    int peer;
    int wrong = 0;

    member_open(&m, team, rank, GRANULE);
    raw = host_raw_alloc(m.device, BYTES, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (way != RAW_HANDLE_KEPT)
        host_raw_release_handle(&raw);
    host_expect(
        "another allocator's memory",
        symwin_window_register(m.comm, (void *)(uintptr_t)(raw.ptr + 100), 1000, 0, &window),
        SYMWIN_OK, "");
    TAP_EQ("is seen by all",
           member_exchange(&m, window, (void *)(uintptr_t)(raw.ptr + 100), 8, 500), 0);
    if (way == RAW_FREED_WHILE_REGISTERED) {
        host_raw_free(&raw);
        harness_barrier(team);
        for (peer = 0; peer < RANKS; peer++)
            wrong += host_get_u32(m.device, member_peer(&m, window, peer, 8)) !=
                     500 + (uint32_t)peer;
        TAP_EQ("and stays while it is registered", wrong, 0);
        harness_barrier(team);
    }
    member_deregister(&m, window);
    harness_barrier(team);
    TAP_EQ("nothing stays mapped", member_allocations(&m), 0);
    if (way != RAW_FREED_WHILE_REGISTERED)
        host_raw_free(&raw);
    member_close(&m);
}

/* Memory without a handle type cannot leave the process. That is no reason to refuse a window. */
static void run_unshareable(struct harness_team *team, int rank, void *arg)
{
    symwin_window *window = NULL;
    struct host_raw raw;
    struct member m;

    (void)arg;
    member_open(&m, team, rank, GRANULE);
    raw = host_raw_alloc(m.device, GRANULE, 0);
    host_expect("memory that cannot be exported",
                symwin_window_register(m.comm, (void *)(uintptr_t)raw.ptr, GRANULE, 0, &window),
                SYMWIN_OK, "");
    TAP_EQ("is seen by all", member_exchange(&m, window, (void *)(uintptr_t)raw.ptr, 0, 40), 0);
    member_deregister(&m, window);
    member_close(&m);
    host_raw_free(&raw);
}

/* ---- queries with wrong arguments on a valid window ---- */

static void run_queries(struct harness_team *team, int rank, void *arg)
{
    symwin_window *window;
    struct member m;
    void *const untouched = &m;
    void *ptr = untouched;

    (void)arg;
    member_open(&m, team, rank, GRANULE);
    window = member_window(&m, 16, 100);
    host_expect("rank -1", symwin_window_peer_pointer(m.comm, window, -1, 0, &ptr), SYMWIN_INVALID,
                "symwin_window_peer_pointer|no rank -1");
    host_expect("rank 4 of 4", symwin_window_peer_pointer(m.comm, window, RANKS, 0, &ptr),
                SYMWIN_INVALID, "no rank 4|0 to 3");
    host_expect("the byte past the window",
                symwin_window_peer_pointer(m.comm, window, 0, 100, &ptr), SYMWIN_INVALID,
                "offset 100|100 bytes");
    host_expect("a byte far off", symwin_window_peer_pointer(m.comm, window, 0, SIZE_MAX, &ptr),
                SYMWIN_INVALID, "past the window");
    tap_ok(ptr == untouched, "the out-pointer is untouched");
    host_expect("the last byte", symwin_window_peer_pointer(m.comm, window, 0, 99, &ptr), SYMWIN_OK,
                "");
    member_deregister(&m, window);
    member_close(&m);
}

int main(void)
{
    static enum raw_way ways[] = {RAW_HANDLE_KEPT, RAW_HANDLE_RELEASED, RAW_FREED_WHILE_REGISTERED};
    struct harness_leaks before;
    size_t i;

    harness_start();
    before = harness_leaks_now();
    harness_run(RANKS, run_alike, NULL);
    harness_no_leaks("all ranks alike", &before);
    harness_run(RANKS, run_odd, NULL);
    harness_no_leaks("one rank differs", &before);
    harness_run(RANKS, run_sizes, NULL);
    harness_no_leaks("different sizes", &before);
    harness_run(RANKS, run_places, NULL);
    harness_no_leaks("places", &before);
    late_segment();
    for (i = 0; i < sizeof ways / sizeof ways[0]; i++)
        harness_run(RANKS, run_raw, &ways[i]);
    harness_run(RANKS, run_unshareable, NULL);
    harness_no_leaks("another allocator", &before);
    harness_run(RANKS, run_queries, NULL);
    harness_no_leaks("queries", &before);
    return tap_done();
}
