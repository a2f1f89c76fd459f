/* Memory: sizes, flags, queries of addresses, free, exhaustion. test_share.c tests export and
 * import. */
#include "child.h"
#include "harness.h"

#define SENTINEL ((void *)(uintptr_t)0x5e5e5e5e)

/* ---- sizes and addresses ---- */

static void sizes(void)
{
    static const struct {
        size_t bytes;
        unsigned flags;
        size_t rounded;
    } cases[] = {
        {1, SYMWIN_MEM_OWN, GRANULE},
        {GRANULE - 1, SYMWIN_MEM_OWN, GRANULE},
        {GRANULE, 0, GRANULE},
        {GRANULE + 1, 0, 2 * GRANULE},
        {3 * GRANULE - 1, 0, 3 * GRANULE},
        {64 * MIB + 1, SYMWIN_MEM_NCCL, 66 * MIB},
    };
    const struct harness_leaks before = harness_leaks_now();
    uint64_t last_id = 0;
    size_t i;

    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const size_t bytes = cases[i].bytes;
        symwin_mem_info info = {0};
        void *ptr = NULL;

        host_must(symwin_mem_alloc(1, bytes, cases[i].flags, &ptr), "symwin_mem_alloc");
        host_must(symwin_mem_query(ptr, &info), "symwin_mem_query");
        tap_ok(info.base == ptr && info.bytes == cases[i].rounded && info.device == 1 &&
                   info.owned == 1 && info.registrations == 0 && info.ptr == ptr &&
                   info.size == cases[i].rounded,
               "%zu bytes are an allocation of %zu", bytes, cases[i].rounded);
        tap_ok((uintptr_t)ptr % GRANULE == 0, "%zu bytes: the head is aligned", bytes);
        tap_ok((info.handle_types & SYMWIN_HANDLE_POSIX_FD) != 0, "%zu bytes: exportable", bytes);
        tap_ok(info.buffer_id != 0 && info.buffer_id != last_id, "%zu bytes: an id of its own",
               bytes);
        last_id = info.buffer_id;
        host_put_u32(1, ptr, 7);
        host_put_u32(1, host_at(ptr, cases[i].rounded - 4), 8);
        tap_ok(host_get_u32(1, ptr) == 7 &&
                   host_get_u32(1, host_at(ptr, cases[i].rounded - 4)) == 8,
               "%zu bytes: usable from the first byte to the last", bytes);
        host_must(symwin_mem_free(ptr), "symwin_mem_free");
        host_must(symwin_mem_trim(1, 0), "symwin_mem_trim");
    }
    harness_no_leaks("sizes", &before);
}

static void wrong_sizes(void)
{
    static const struct {
        const char *name;
        int device;
        size_t bytes;
        unsigned flags;
        symwin_status want;
        const char *words;
    } cases[] = {
        {"no bytes", 0, 0, 0, SYMWIN_INVALID, "symwin_mem_alloc|bytes is 0"},
        {"all bytes there are", 0, SIZE_MAX, 0, SYMWIN_INVALID, "symwin_mem_alloc|address space"},
        {"one that rounds up to 0", 0, SIZE_MAX - 1, 0, SYMWIN_INVALID, "symwin_mem_alloc"},
        {"half the address space", 0, SIZE_MAX / 2, 0, SYMWIN_INVALID, "symwin_mem_alloc"},
        {"a quarter and one", 0, SIZE_MAX / 4 + 1, 0, SYMWIN_INVALID, "symwin_mem_alloc"},
        {"a quarter", 0, SIZE_MAX / 4, 0, SYMWIN_NO_MEMORY,
         "symwin_mem_alloc|device 0|free memory of"},
        {"an unknown flag", 0, 1, 8, SYMWIN_INVALID, "symwin_mem_alloc|0x8"},
        {"a known and an unknown flag", 0, 1, 0x80000001u, SYMWIN_INVALID, "0x80000000"},
        {"no such device", 99, 1, 0, SYMWIN_INVALID, "symwin_mem_alloc|no device 99"},
        {"a negative device", -2, 1, 0, SYMWIN_INVALID, "symwin_mem_alloc|no device -2"},
        {"no current context", SYMWIN_DEVICE_CURRENT, 1, 0, SYMWIN_INVALID, "current CUDA context"},
    };
    const struct harness_leaks before = harness_leaks_now();
    symwin_device_info device;
    void *ptr = SENTINEL;
    size_t i;

    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        host_expect(cases[i].name,
                    symwin_mem_alloc(cases[i].device, cases[i].bytes, cases[i].flags, &ptr),
                    cases[i].want, cases[i].words);
        tap_ok(ptr == SENTINEL, "%s: the out-pointer is untouched", cases[i].name);
    }
    host_must(symwin_device_query(0, &device), "symwin_device_query");
    host_expect("a byte more than the device has",
                symwin_mem_alloc(0, device.total_bytes + 1, 0, &ptr), SYMWIN_NO_MEMORY,
                "symwin_mem_alloc|CUDA_ERROR_OUT_OF_MEMORY");
    host_expect("nowhere to put the address", symwin_mem_alloc(0, 1, 0, NULL), SYMWIN_INVALID,
                "symwin_mem_alloc|ptr is NULL");
    harness_no_leaks("wrong sizes", &before);
}

static void current_device(void)
{
    const struct harness_leaks before = harness_leaks_now();
    CUcontext now = NULL;
    symwin_mem_info info = {0};
    struct sw_scope scope;
    CUcontext context;
    void *ptr = NULL;

    host_must(sw_scope_enter(3, &scope), "sw_scope_enter");
    host_must_cuda(sw_drv.cuCtxGetCurrent(&context), "cuCtxGetCurrent");
    host_expect("the current device", symwin_mem_alloc(SYMWIN_DEVICE_CURRENT, 1, 0, &ptr),
                SYMWIN_OK, "");
    host_must(symwin_mem_query(ptr, &info), "symwin_mem_query");
    TAP_EQ("the current device is the context's", info.device, 3);
    host_must_cuda(sw_drv.cuCtxGetCurrent(&now), "cuCtxGetCurrent");
    tap_ok(now == context, "and stays current");
    host_must(symwin_mem_free(ptr), "symwin_mem_free");
    sw_scope_leave(&scope);
    harness_no_leaks("the current device", &before);
}

static unsigned long long rights(const void *ptr, int device)
{
    CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
    unsigned long long flags = 99;

    host_must_cuda(sw_drv.cuMemGetAccess(&flags, &location, (CUdeviceptr)(uintptr_t)ptr),
                   "cuMemGetAccess");
    return flags;
}

static void peers(void)
{
    const struct harness_leaks before = harness_leaks_now();
    const int devices = harness_device_count();
    void *with = NULL;
    void *without = NULL;
    int all = 1;
    int only_one = 1;
    int d;

    host_must(symwin_mem_alloc(2, 1, SYMWIN_MEM_PEERS, &with), "symwin_mem_alloc with peers");
    host_must(symwin_mem_alloc(2, 1, 0, &without), "symwin_mem_alloc");
    for (d = 0; d < devices; d++) {
        all = all && rights(with, d) == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        only_one = only_one && rights(without, d) == (d == 2 ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                                             : CU_MEM_ACCESS_FLAGS_PROT_NONE);
    }
    tap_ok(all, "with SYMWIN_MEM_PEERS all %d devices may use the address", devices);
    tap_ok(only_one, "without it only its own device may");
    host_put_u32(5, with, 55);
    TAP_EQ("a peer writes, the owner reads", host_get_u32(2, with), 55);
    host_must(symwin_mem_free(with), "symwin_mem_free");
    host_must(symwin_mem_free(without), "symwin_mem_free");
    harness_no_leaks("peers", &before);
}

/* ---- queries of addresses ---- */

static void expect_unknown(const char *name, const void *ptr)
{
    symwin_mem_info info, untouched;

    memset(&info, 0x5e, sizeof info);
    untouched = info;
    host_expect(name, symwin_mem_query(ptr, &info), SYMWIN_INVALID, "symwin_mem_query|VMM");
    tap_ok(memcmp(&info, &untouched, sizeof info) == 0, "%s: the result is untouched", name);
}

static void queries(void)
{
    const struct harness_leaks before = harness_leaks_now();
    void *ptr = host_alloc(0, 3 * GRANULE);
    struct host_raw raw = host_raw_alloc(1, 2 * GRANULE, 0);
    symwin_mem_info head = {0}, inside = {0}, foreign = {0};
    CUdeviceptr plain = 0, reserved = 0;
    struct sw_scope scope;
    int on_stack = 0;

    host_must(symwin_mem_query(ptr, &head), "symwin_mem_query");
    host_must(symwin_mem_query(host_at(ptr, 3 * GRANULE - 1), &inside), "symwin_mem_query");
    tap_ok(memcmp(&head, &inside, sizeof head) == 0, "an interior address tells the same");
    host_must(symwin_mem_query((void *)(uintptr_t)(raw.ptr + 5), &foreign), "symwin_mem_query");
    tap_ok(foreign.owned == 0 && foreign.device == 1 && foreign.bytes == 2 * GRANULE &&
               foreign.base == (void *)(uintptr_t)raw.ptr && foreign.handle_types == 0 &&
               foreign.registrations == 0,
           "memory of another allocator is described too");
    tap_ok(foreign.buffer_id != 0 && foreign.buffer_id != head.buffer_id, "and has another id");

    host_must(sw_scope_enter(0, &scope), "sw_scope_enter");
    host_must_cuda(sw_drv.cuMemAlloc(&plain, GRANULE), "cuMemAlloc");
    host_must_cuda(sw_drv.cuMemAddressReserve(&reserved, GRANULE, 0, 0, 0), "cuMemAddressReserve");
    expect_unknown("cuMemAlloc's memory", (void *)(uintptr_t)plain);
    expect_unknown("an address without memory", (void *)(uintptr_t)reserved);
    expect_unknown("a host address", &on_stack);
    expect_unknown("an address of nothing", (void *)(uintptr_t)0x1000);
    host_must_cuda(sw_drv.cuMemFree(plain), "cuMemFree");
    host_must_cuda(sw_drv.cuMemAddressFree(reserved, GRANULE), "cuMemAddressFree");
    sw_scope_leave(&scope);
    host_raw_free(&raw);
    host_must(symwin_mem_free(ptr), "symwin_mem_free");
    expect_unknown("memory that was freed", ptr);
    host_expect("NULL", symwin_mem_query(NULL, &head), SYMWIN_INVALID,
                "symwin_mem_query|ptr is NULL");
    host_expect("no result", symwin_mem_query(ptr, NULL), SYMWIN_INVALID, "info is NULL");
    harness_no_leaks("queries", &before);
}

/* ---- freeing ---- */

static void frees(void)
{
    const struct harness_leaks before = harness_leaks_now();
    void *ptr = host_alloc(0, 2 * GRANULE);
    struct host_raw raw = host_raw_alloc(0, GRANULE, 0);
    CUdeviceptr plain = 0;
    struct sw_scope scope;
    int on_stack = 0;

    host_must(sw_scope_enter(0, &scope), "sw_scope_enter");
    host_must_cuda(sw_drv.cuMemAlloc(&plain, 64), "cuMemAlloc");
    host_expect("free nothing", symwin_mem_free(NULL), SYMWIN_OK, "");
    host_expect("free inside", symwin_mem_free(host_at(ptr, GRANULE)), SYMWIN_INVALID,
                "symwin_mem_free|not an address");
    host_expect("free one byte in", symwin_mem_free(host_at(ptr, 1)), SYMWIN_INVALID,
                "symwin_mem_free");
    host_expect("free another allocator's", symwin_mem_free((void *)(uintptr_t)raw.ptr),
                SYMWIN_INVALID, "symwin_mem_free");
    host_expect("free cuMemAlloc's", symwin_mem_free((void *)(uintptr_t)plain), SYMWIN_INVALID,
                "symwin_mem_free");
    host_expect("free host memory", symwin_mem_free(&on_stack), SYMWIN_INVALID, "symwin_mem_free");
    host_put_u32(0, ptr, 1);
    TAP_EQ("none of them did any harm", host_get_u32(0, ptr), 1);
    host_expect("free", symwin_mem_free(ptr), SYMWIN_OK, "");
    host_expect("free twice", symwin_mem_free(ptr), SYMWIN_INVALID, "symwin_mem_free|freed before");
    host_must_cuda(sw_drv.cuMemFree(plain), "cuMemFree");
    host_raw_free(&raw);
    sw_scope_leave(&scope);
    harness_no_leaks("frees", &before);
}

static int registrations(const void *ptr)
{
    symwin_mem_info info = {0};

    host_must(symwin_mem_query(ptr, &info), "symwin_mem_query");
    return info.registrations;
}

static void free_under_window(void)
{
    const struct harness_leaks before = harness_leaks_now();
    symwin_window *first = NULL, *second = NULL;
    void *ptr = host_alloc(0, GRANULE);
    symwin_unique_id id;
    symwin_comm *comm = NULL;

    host_must(symwin_unique_id_create(&id), "symwin_unique_id_create");
    host_must(symwin_comm_create(&id, 1, 0, 0, NULL, &comm), "symwin_comm_create");
    host_must(symwin_window_register(comm, ptr, GRANULE, 0, &first), "symwin_window_register");
    host_must(symwin_window_register(comm, ptr, 4, 0, &second), "symwin_window_register");
    TAP_EQ("two windows are two registrations", registrations(ptr), 2);
    host_expect("free under two windows", symwin_mem_free(ptr), SYMWIN_BUSY,
                "symwin_mem_free|by 2 in all|deregister");
    host_must(symwin_window_deregister(comm, first), "symwin_window_deregister");
    host_expect("free under one window", symwin_mem_free(ptr), SYMWIN_BUSY,
                "symwin_mem_free|by 1 in all");
    host_put_u32(0, ptr, 42);
    TAP_EQ("nothing was freed", host_get_u32(0, ptr), 42);
    host_must(symwin_window_deregister(comm, second), "symwin_window_deregister");
    TAP_EQ("no window is no registration", registrations(ptr), 0);
    host_expect("free after the last window", symwin_mem_free(ptr), SYMWIN_OK, "");
    symwin_comm_destroy(comm);
    harness_no_leaks("free under a window", &before);
}

/* ---- out of memory, in its own process ---- */

enum { SMALL_DEVICE_GRANULES = 32 };

static void exhaustion(void)
{
    const struct harness_leaks before = harness_leaks_now();
    void *blocks[SMALL_DEVICE_GRANULES];
    symwin_device_info info;
    void *ptr = SENTINEL;
    int i;

    host_must(symwin_device_query(1, &info), "symwin_device_query");
    TAP_EQ("the device is small", info.total_bytes, SMALL_DEVICE_GRANULES * (size_t)GRANULE);
    for (i = 0; i < SMALL_DEVICE_GRANULES; i++)
        blocks[i] = host_alloc(1, GRANULE);
    host_expect("one more than fits", symwin_mem_alloc(1, 1, 0, &ptr), SYMWIN_NO_MEMORY,
                "symwin_mem_alloc|2097152 bytes|device 1");
    tap_ok(ptr == SENTINEL, "the out-pointer is untouched");
    host_must(symwin_mem_free(blocks[3]), "symwin_mem_free");
    host_expect("too much for what came back", symwin_mem_alloc(1, GRANULE + 1, 0, &ptr),
                SYMWIN_NO_MEMORY, "symwin_mem_alloc");
    host_expect("what came back", symwin_mem_alloc(1, GRANULE, 0, &blocks[3]), SYMWIN_OK, "");
    host_expect("another device",
                symwin_mem_alloc(0, SMALL_DEVICE_GRANULES * (size_t)GRANULE, 0, &ptr), SYMWIN_OK,
                "");
    host_must(symwin_mem_free(ptr), "symwin_mem_free");
    for (i = 0; i < SMALL_DEVICE_GRANULES; i++)
        host_must(symwin_mem_free(blocks[i]), "symwin_mem_free");
    harness_no_leaks("exhaustion", &before);
}

/* ---- many threads ---- */

enum { THREADS = 8, HELD = 12, TURNS = 400 };

struct worker {
    int number;
    int wrong;
};

/* One random step on one of the thread's slots. */
static int step(struct worker *w, void **slot, uint32_t *stamp, uint64_t *state)
{
    const int device = w->number % 4;
    symwin_mem_info info;

    if (*slot == NULL) {
        if (symwin_mem_alloc(device, 1 + host_random(state) % (2 * GRANULE),
                             host_random(state) % 8 == 0 ? SYMWIN_MEM_PEERS : 0, slot) != SYMWIN_OK)
            return 0;
        *stamp = (uint32_t)host_random(state);
        return host_copy(device, *slot, stamp, sizeof *stamp) == SYMWIN_OK;
    }
    if (host_random(state) % 4 == 0)
        return symwin_mem_query(*slot, &info) == SYMWIN_OK && info.ptr == *slot &&
               info.device == device;
    if (host_get_u32(device, *slot) != *stamp || symwin_mem_free(*slot) != SYMWIN_OK)
        return 0;
    *slot = NULL;
    return 1;
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    uint64_t state = (uint64_t)w->number;
    void *slots[HELD] = {NULL};
    uint32_t stamps[HELD];
    int i;

    for (i = 0; i < TURNS; i++) {
        const size_t slot = host_random(&state) % HELD;

        w->wrong += !step(w, &slots[slot], &stamps[slot], &state);
    }
    for (i = 0; i < HELD; i++)
        w->wrong += symwin_mem_free(slots[i]) != SYMWIN_OK;
    return NULL;
}

static void threads(void)
{
    struct worker workers[THREADS];
    pthread_t ids[THREADS];
    struct sw_scope keep[4]; /* so that contexts are not created anew with every copy */
    struct harness_leaks before;
    int i;

    for (i = 0; i < 4; i++)
        host_must(sw_scope_enter(i, &keep[i]), "sw_scope_enter");
    before = harness_leaks_now();
    for (i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.number = i};
        pthread_create(&ids[i], NULL, worker_main, &workers[i]);
    }
    for (i = 0; i < THREADS; i++) {
        pthread_join(ids[i], NULL);
        tap_ok(workers[i].wrong == 0, "thread %d: %d steps, %d of them wrong", i, TURNS,
               workers[i].wrong);
    }
    harness_no_leaks("threads", &before);
    for (i = 3; i >= 0; i--)
        sw_scope_leave(&keep[i]);
}

int main(int argc, char **argv)
{
    static const char *const small[] = {"SYMWIN_EMU_MEM=64M", NULL};

    harness_start();
    if (child_part(argc, argv) != NULL) {
        exhaustion();
        return tap_done();
    }
    sizes();
    wrong_sizes();
    current_device();
    peers();
    queries();
    frees();
    free_under_window();
    threads();
    child_run("a small machine", small);
    return tap_done();
}
