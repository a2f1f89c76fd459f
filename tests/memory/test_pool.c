/* The pool: which allocations are suballocated, offsets, kept memory and trim, threads that end,
 * accounts, windows in chunks. test_pool_settings.c tests the settings, and test_alloc.c what every
 * allocation guarantees. On GPUs everything runs except failing calls. */
#include "pool_memory.h"

enum { CHUNK_NCCL = 16 * MIB };

static size_t offset_of(const void *ptr)
{
    return (size_t)((const char *)ptr - (const char *)described(ptr).base);
}

/* ---- suballocated memory ---- */

static void suballocated(unsigned flags, size_t unit, size_t chunk)
{
    static const size_t sizes[] = {1, 511, 512, 513, 4096, 4097, 100 << 10, MIB, GRANULE - 1};
    enum { COUNT = sizeof sizes / sizeof sizes[0] };
    const struct harness_leaks before = harness_leaks_now();
    void *ptrs[COUNT];
    int together = 1, right = 1, apart = 1, i, k;

    for (i = 0; i < COUNT; i++) {
        ptrs[i] = alloc_with(1, sizes[i], flags);
        host_put_u32(on(1), host_at(ptrs[i], described(ptrs[i]).size - 4), (uint32_t)i);
    }
    for (i = 0; i < COUNT; i++) {
        const symwin_mem_info info = described(ptrs[i]);
        const symwin_mem_info inside = described(host_at(ptrs[i], sizes[i] - 1));

        together = together && info.base == described(ptrs[0]).base && info.bytes == chunk;
        right = right && info.ptr == ptrs[i] && info.size == (sizes[i] + unit - 1) / unit * unit &&
                (uintptr_t)ptrs[i] % unit == 0 && info.owned == 1 &&
                memcmp(&info, &inside, sizeof info) == 0 &&
                host_get_u32(on(1), host_at(ptrs[i], info.size - 4)) == (uint32_t)i;
        for (k = 0; k < i; k++)
            apart = apart && ((char *)ptrs[k] + described(ptrs[k]).size <= (char *)ptrs[i] ||
                              (char *)ptrs[i] + info.size <= (char *)ptrs[k]);
    }
    tap_ok(together, "flags %u: small ones share a chunk of %zu MiB", flags, chunk / MIB);
    tap_ok(right, "flags %u: each is rounded up to %zu, and usable to its end", flags, unit);
    tap_ok(apart, "flags %u: none overlaps another", flags);
    host_expect("free inside", symwin_mem_free(host_at(ptrs[6], unit)), SYMWIN_INVALID,
                "symwin_mem_free|not an address");
    host_must(symwin_mem_free(ptrs[3]), "symwin_mem_free");
    host_expect("free twice", symwin_mem_free(ptrs[3]), SYMWIN_INVALID, "freed before");
    tap_ok(symwin_mem_query(ptrs[3], &(symwin_mem_info){0}) == SYMWIN_INVALID &&
               host_error_has("symwin_mem_query|freed"),
           "what was freed is nothing, though its chunk is there");
    ptrs[3] = NULL;
    free_all(ptrs, COUNT);
    harness_no_leaks("suballocated", &before);
}

static void own(void)
{
    const struct harness_leaks before = harness_leaks_now();
    void *small = alloc_with(0, 1, 0);
    void *mine = alloc_with(0, 1, SYMWIN_MEM_OWN);
    void *large = alloc_with(0, GRANULE, 0);
    void *nccl = alloc_with(0, 5, SYMWIN_MEM_NCCL);
    void *peers = alloc_with(0, 5, SYMWIN_MEM_PEERS);

    tap_ok(described(mine).base == mine && described(mine).bytes == GRANULE,
           "SYMWIN_MEM_OWN: memory of its own");
    tap_ok(described(large).base == large && described(large).bytes == GRANULE,
           "and so from the granularity on");
    tap_ok(described(small).buffer_id != described(nccl).buffer_id &&
               described(small).buffer_id != described(peers).buffer_id &&
               described(nccl).buffer_id != described(peers).buffer_id,
           "kinds of memory do not mix");
    free_all((void *[]){small, mine, large, nccl, peers}, 5);
    harness_no_leaks("own", &before);
}

/* Tensors of 100 KiB take little more memory than their own size. */
static void many_small(void)
{
    enum { COUNT = 10000, BYTES = 100 << 10 };
    const struct harness_leaks before = harness_leaks_now();
    void **ptrs = calloc(COUNT, sizeof *ptrs);
    symwin_mem_usage usage;
    int i;

    for (i = 0; i < COUNT; i++)
        ptrs[i] = alloc_with(2, BYTES, 0);
    usage = usage_of(2);
    tap_ok(usage.allocations == COUNT && usage.asked_bytes == (uint64_t)COUNT * BYTES &&
               (double)usage.reserved_bytes <= 1.05 * COUNT * BYTES,
           "%d of 100 KiB take %.3f times their bytes", COUNT,
           (double)usage.reserved_bytes / ((double)COUNT * BYTES));
    free_all(ptrs, COUNT);
    free(ptrs);
    harness_no_leaks("many small ones", &before);
}

/* ---- offsets ---- */

enum { STEPS = 400 };

struct sequence {
    size_t offsets[STEPS];
    int device;
    atomic_int *stop; /* NULL: a sequence; else random calls until it is set */
};

static void *run_sequence(void *arg)
{
    struct sequence *s = arg;
    void *live[64] = {NULL};
    uint64_t state = s->stop != NULL ? 99 + (uintptr_t)s : 5;
    int i;

    for (i = 0; s->stop != NULL ? !*s->stop : i < STEPS; i++) {
        const size_t slot = host_random(&state) % 64;

        if (live[slot] != NULL) {
            host_must(symwin_mem_free(live[slot]), "symwin_mem_free");
            live[slot] = NULL;
        } else {
            live[slot] = alloc_with(s->device, 1 + host_random(&state) % (3 * MIB), 0);
            if (s->stop == NULL)
                s->offsets[i] = offset_of(live[slot]);
        }
    }
    free_all(live, 64);
    return NULL;
}

static void offsets(void)
{
    enum { RANKS = 4, NOISE = 2 };
    static struct sequence s[RANKS + NOISE];
    const struct harness_leaks before = harness_leaks_now();
    pthread_t threads[RANKS + NOISE];
    atomic_int stop = 0;
    int round, i, equal;

    /* Later rounds adopt arenas that ended threads have left. */
    for (round = 0; round < 3; round++) {
        stop = 0;
        for (i = 0; i < RANKS + NOISE; i++) {
            s[i] = (struct sequence){.device = i / 2, .stop = i < RANKS ? NULL : &stop};
            pthread_create(&threads[i], NULL, run_sequence, &s[i]);
        }
        for (i = 0; i < RANKS + NOISE; i++) {
            stop = i >= RANKS - 1;
            pthread_join(threads[i], NULL);
        }
        for (i = 1, equal = 1; i < RANKS; i++)
            equal = equal && memcmp(s[i].offsets, s[0].offsets, sizeof s[0].offsets) == 0;
        tap_ok(equal,
               "round %d: the same calls give the same offsets on all ranks, two to a device",
               round);
    }
    harness_no_leaks("offsets", &before);
}

/* ---- kept memory ---- */

static unsigned calls_of(size_t bytes, int times)
{
    unsigned calls;
    int i;

    sw_emu_fail_nth(1000000, CUDA_ERROR_UNKNOWN, 0, 1); /* counts calls, fails none */
    for (i = 0; i < times; i++)
        host_must(symwin_mem_free(alloc_with(0, bytes, 0)), "symwin_mem_free");
    calls = sw_emu_calls();
    sw_emu_fail_nth(0, CUDA_SUCCESS, 0, 0);
    return calls;
}

static void kept(void)
{
    static const size_t sizes[] = {64 << 10, GRANULE, 64 * MIB};
    const struct harness_leaks before = harness_leaks_now();
    symwin_mem_usage usage;
    size_t i;
    void *a, *b;

    for (i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        calls_of(sizes[i], 1);
        TAP_EQ("what was freed serves again without the driver", calls_of(sizes[i], 20), 0);
    }
    a = alloc_with(0, 4 * MIB, 0);
    b = alloc_with(0, 4 * MIB, 0);
    host_must(symwin_mem_free(a), "symwin_mem_free");
    TAP_EQ("again", alloc_with(0, 4 * MIB, 0) == a, 1);
    host_must(symwin_mem_free(a), "symwin_mem_free");
    a = alloc_with(0, 132 * MIB, 0);
    TAP_EQ("more has more", described(a).bytes, 132 * (size_t)MIB);
    host_must(symwin_mem_free(a), "symwin_mem_free");
    a = alloc_with(0, 4 * MIB, 0);
    TAP_EQ("of its size only", described(a).bytes, 4 * MIB);
    host_must(symwin_mem_free(a), "symwin_mem_free");
    host_must(symwin_mem_trim(0, 0), "symwin_mem_trim");
    for (i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        calls_of(sizes[i], 1);
    host_must(symwin_mem_free(alloc_with(0, 4 * MIB, 0)), "symwin_mem_free");
    usage = usage_of(0);
    TAP_EQ("kept: 64 KiB's chunk, 2, 64 and 4 MiB", usage.kept_bytes, CHUNK + 70 * (size_t)MIB);
    host_must(symwin_mem_trim(0, 68 * (size_t)MIB), "symwin_mem_trim");
    usage = usage_of(0);
    TAP_EQ("trimmed to what was freed last", usage.kept_bytes, 68 * (size_t)MIB);
    host_must(symwin_mem_trim(0, 0), "symwin_mem_trim");
    usage = usage_of(0);
    tap_ok(usage.kept_bytes == 0 && usage.reserved_bytes == 4 * (size_t)MIB && usage.chunks == 1,
           "trimmed to what is in use");
    host_must(symwin_mem_free(b), "symwin_mem_free");
    host_expect("no such device", symwin_mem_trim(99, 0), SYMWIN_INVALID, "symwin_mem_trim|99");
    harness_no_leaks("kept", &before);
}

/* Queries a freed address while the driver unmaps another chunk of the same trim. */
static struct {
    CUresult (*unmap)(CUdeviceptr ptr, size_t size);
    void *freed;
    symwin_status asked, again;
} trimmed;

static CUresult ask_late(CUdeviceptr ptr, size_t size)
{
    symwin_mem_info info;

    if (trimmed.freed != NULL) {
        trimmed.asked = symwin_mem_query(trimmed.freed, &info);
        trimmed.again = symwin_mem_free(trimmed.freed);
        trimmed.freed = NULL;
    }
    return trimmed.unmap(ptr, size);
}

static void trim_while_asked(void)
{
    enum { COUNT = CHUNK / MIB + 1 };
    const struct harness_leaks before = harness_leaks_now();
    void *ptrs[COUNT];
    int i;

    host_must(symwin_mem_trim(0, 0), "symwin_mem_trim");
    for (i = 0; i < COUNT; i++)
        ptrs[i] = alloc_with(0, MIB, 0);
    free_all(ptrs, COUNT);
    TAP_EQ("two chunks are kept", usage_of(0).kept_bytes, 2 * (size_t)CHUNK);
    trimmed.freed = ptrs[0];
    trimmed.unmap = sw_drv.cuMemUnmap;
    sw_drv.cuMemUnmap = ask_late;
    host_must(symwin_mem_trim(0, 0), "symwin_mem_trim");
    sw_drv.cuMemUnmap = trimmed.unmap;
    TAP_EQ("a query of what is being given back", trimmed.asked, SYMWIN_INVALID);
    TAP_EQ("and a free of it", trimmed.again, SYMWIN_INVALID);
    harness_no_leaks("trimmed while asked", &before);
}

/* ---- threads ---- */

static void *alloc_some(void *arg)
{
    void **ptrs = arg;

    ptrs[0] = alloc_with(0, 100, 0);
    ptrs[1] = alloc_with(0, 200, 0);
    ptrs[2] = alloc_with(0, 4 * MIB, 0);
    return NULL;
}

static void run_thread(void *(*body)(void *), void *arg)
{
    pthread_t id;

    if (pthread_create(&id, NULL, body, arg) != 0 || pthread_join(id, NULL) != 0)
        abort();
}

static void threads_that_end(void)
{
    const struct harness_leaks before = harness_leaks_now();
    void *first[3], *second[3], *third[3];

    run_thread(alloc_some, first);
    run_thread(alloc_some, second);
    tap_ok(described(first[0]).base != described(second[0]).base &&
               offset_of(first[1]) == offset_of(second[1]),
           "a thread suballocates apart from another one's memory, and has its offsets");
    free_all(first, 3);
    run_thread(alloc_some, third);
    tap_ok(memcmp(first, third, sizeof first) == 0,
           "what a thread has left is taken over once all of it is free");
    free_all(second, 3);
    free_all(third, 3);
    harness_no_leaks("threads that end", &before);
}

/* ---- accounts ---- */

static void accounts(void)
{
    const struct harness_leaks before = harness_leaks_now();
    const symwin_mem_usage start = usage_of(3);
    symwin_mem_usage usage;
    void *ptrs[4];

    ptrs[0] = alloc_with(3, 1000, 0);
    ptrs[1] = alloc_with(3, 2000, 0);
    ptrs[2] = alloc_with(3, 3000, 0);
    ptrs[3] = alloc_with(3, 3 * MIB, 0);
    host_must(symwin_mem_free(ptrs[1]), "symwin_mem_free");
    usage = usage_of(3);
    TAP_EQ("asked for", usage.asked_bytes, 4000 + 3 * (size_t)MIB);
    TAP_EQ("rounded up", usage.used_bytes, 1024 + 3072 + 4 * (size_t)MIB);
    TAP_EQ("most at once", usage.peak_used_bytes, 1024 + 2048 + 3072 + 4 * (size_t)MIB);
    TAP_EQ("of the device", usage.reserved_bytes, CHUNK + 4 * (size_t)MIB);
    TAP_EQ("the most of it", usage.peak_reserved_bytes, CHUNK + 4 * (size_t)MIB);
    TAP_EQ("the longest free part", usage.largest_free_bytes, CHUNK - 1024 - 2048 - 3072);
    tap_ok(usage.kept_bytes == 0 && usage.allocations == 3 && usage.chunks == 2 &&
               usage.allocs - start.allocs == 4 && usage.frees - start.frees == 1 &&
               usage.creates - start.creates == 2 && usage.releases == start.releases,
           "calls are counted");
    ptrs[1] = NULL;
    free_all(ptrs, 4);
    usage = usage_of(3);
    tap_ok(usage.asked_bytes == 0 && usage.used_bytes == 0 && usage.allocations == 0 &&
               usage.kept_bytes == usage.reserved_bytes,
           "what is freed is kept");
    host_expect("no such device", symwin_mem_stats(99, &usage), SYMWIN_INVALID,
                "symwin_mem_stats|99");
    host_expect("nowhere to put it", symwin_mem_stats(0, NULL), SYMWIN_INVALID, "usage is NULL");
    harness_no_leaks("accounts", &before);
}

/* ---- windows ---- */

static void windows(struct harness_team *team, int rank, void *arg)
{
    const int device = on(*(const int *)arg > 1 ? rank : 0);
    symwin_window *first = NULL, *second = NULL, *none = NULL;
    float *a = alloc_with(device, 4000, 0), *b = alloc_with(device, 4000, 0);
    struct CUstream_st *stream = NULL;
    symwin_window_info info = {0};
    symwin_comm *comm = NULL;
    size_t objects;
    float value = (float)(rank + 1);

    host_must(symwin_comm_create(&team->id, team->nranks, rank, device, NULL, &comm),
              "symwin_comm_create");
    host_must(symwin_stream_create(device, &stream), "symwin_stream_create");
    host_must(symwin_window_register(comm, a, 4000, 0, &first), "symwin_window_register");
    harness_barrier(team);
    objects = sw_emu_live_objects();
    harness_barrier(team);
    host_must(symwin_window_register(comm, b, 4000, 0, &second), "symwin_window_register");
    harness_barrier(team);
    TAP_EQ("a second window in a chunk makes nothing", sw_emu_live_objects(), objects);
    harness_barrier(team); /* a query holds a handle for a moment */
    host_must(symwin_window_query(comm, second, &info), "symwin_window_query");
    tap_ok((size_t)((char *)b - (char *)described(b).base) % 4096 == info.offset % 4096,
           "its offset is that in the chunk");
    host_expect("a window past its allocation",
                symwin_window_register(comm, a, described(a).size + 1, 0, &none), SYMWIN_INVALID,
                "rank 0|passes the end of its allocation by 1 bytes");
    host_expect("free under a window", symwin_mem_free(a), SYMWIN_BUSY, "by 1 in all");
    TAP_EQ("registrations are the allocation's own", described(b).registrations, 1);
    host_must(host_copy(device, a, &value, sizeof value), "copy");
    host_must(symwin_allreduce(comm, a, b, 1, SYMWIN_F32, SYMWIN_SUM, stream), "symwin_allreduce");
    host_must(symwin_stream_synchronize(device, stream), "symwin_stream_synchronize");
    host_must(host_copy(device, &value, b, sizeof value), "copy");
    TAP_EQ("the sum", (int)value, team->nranks * (team->nranks + 1) / 2);
    host_must(symwin_window_deregister(comm, first), "symwin_window_deregister");
    host_must(symwin_mem_free(a), "symwin_mem_free");
    host_expect("a window on what was freed", symwin_window_register(comm, a, 4, 0, &none),
                SYMWIN_INVALID, "rank 0|freed");
    host_must(symwin_window_deregister(comm, second), "symwin_window_deregister");
    host_must(symwin_mem_free(b), "symwin_mem_free");
    host_must(symwin_stream_destroy(device, stream), "symwin_stream_destroy");
    symwin_comm_destroy(comm);
}

static void team_windows(int apart)
{
    const struct harness_leaks before = harness_leaks_now();

    harness_run(3, windows, &apart);
    harness_no_leaks(apart > 1 ? "windows in chunks" : "windows in chunks of one device", &before);
}

/* A communicator's own memory is not from the pool and is released with it: peers may write there
 * until the end. */
static void communicators(void)
{
    const struct harness_leaks before = harness_leaks_now();
    const symwin_mem_usage start = usage_of(0);
    symwin_mem_usage with;
    symwin_comm *comm = NULL;
    symwin_unique_id id;

    host_must(symwin_unique_id_create(&id), "symwin_unique_id_create");
    host_must(symwin_comm_create(&id, 1, 0, 0, NULL, &comm), "symwin_comm_create");
    with = usage_of(0);
    tap_ok(memcmp(&start, &with, sizeof start) == 0, "a communicator takes nothing of the pools");
    symwin_comm_destroy(comm);
    with = usage_of(0);
    tap_ok(memcmp(&start, &with, sizeof start) == 0, "and leaves nothing there");
    harness_no_leaks("a communicator's memory", &before);
}

/* ---- export ---- */

static void export_of_a_part(void)
{
    const struct harness_leaks before = harness_leaks_now();
    void *first = alloc_with(0, 700, 0), *ptr = alloc_with(0, 700, 0), *copy = NULL;
    symwin_mem_handle handle;

    host_must(symwin_mem_export(ptr, SYMWIN_HANDLE_POSIX_FD, &handle), "symwin_mem_export");
    tap_ok(handle.bytes == CHUNK && handle.offset == offset_of(ptr), "an export says where it is");
    host_must(symwin_mem_import(0, &handle, &copy), "symwin_mem_import");
    host_put_u32(0, ptr, 77);
    TAP_EQ("and the import is there", host_get_u32(0, copy), 77);
    tap_ok(described(copy).owned == 2 && described(copy).ptr == copy, "and says so");
    handle.offset = handle.bytes;
    host_expect("an offset past the end", symwin_mem_import(0, &handle, &(void *){NULL}),
                SYMWIN_INVALID, "symwin_mem_import|offset 67108864|size, 67108864 bytes");
    close(handle.fd);
    free_all((void *[]){first, ptr, copy}, 3);
    host_expect("an export of what was freed",
                symwin_mem_export(ptr, SYMWIN_HANDLE_POSIX_FD, &handle), SYMWIN_INVALID,
                "symwin_mem_export|freed");
    harness_no_leaks("an export of a part", &before);
}

/* ---- faults ---- */

/* Suballocated memory and allocations with their own chunk, kept and trimmed; the n-th driver call
 * returns `code`. Returns whether it did. */
static int life_with_fault(unsigned nth, CUresult code, int persistent, int *wrong)
{
    void *ptrs[4] = {NULL};
    symwin_status status = SYMWIN_OK;
    int i, fired;

    sw_emu_fail_nth(nth, code, persistent, 0);
    for (i = 0; i < 4 && status == SYMWIN_OK; i++) {
        void *ptr = SENTINEL;

        status = symwin_mem_alloc(on(1), i % 2 == 0 ? 1000 : 3 * MIB, i > 1 ? SYMWIN_MEM_PEERS : 0,
                                  &ptr);
        *wrong += status == SYMWIN_OK ? ptr == SENTINEL : ptr != SENTINEL;
        if (status == SYMWIN_OK)
            ptrs[i] = ptr;
    }
    fired = sw_emu_calls() >= nth;
    sw_emu_fail_nth(0, CUDA_SUCCESS, 0, 0);
    /* An allocation recovers from two faults: no memory for a chunk, and no fabric handle. */
    *wrong += status != SYMWIN_OK && !fired;
    *wrong += status != SYMWIN_OK && strstr(symwin_last_error(), "symwin_mem_alloc: ") == NULL;
    for (i = 0; i < 4; i++)
        *wrong += symwin_mem_free(ptrs[i]) != SYMWIN_OK;
    host_must(symwin_mem_trim(on(1), 0), "symwin_mem_trim");
    return fired;
}

static void *sweep(void *arg)
{
    static const CUresult codes[] = {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN,
                                     CUDA_ERROR_INVALID_VALUE};
    int *wrong = arg;
    size_t c;
    int persistent;
    unsigned nth;

    for (c = 0; c < sizeof codes / sizeof codes[0]; c++)
        for (persistent = 0; persistent < 2; persistent++)
            for (nth = 1; nth < 500; nth++) {
                const size_t objects = sw_emu_live_objects();
                const int fired = life_with_fault(nth, codes[c], persistent, wrong);

                *wrong += sw_emu_live_objects() != objects;
                if (!fired)
                    break;
            }
    return NULL;
}

static void faults(void)
{
    const struct harness_leaks before = harness_leaks_now();
    int wrong = 0;

    run_thread(sweep, &wrong);
    TAP_EQ("every driver call fails once and for good: wrong", wrong, 0);
    harness_no_leaks("faults", &before);
}

int main(void)
{
    harness_start();
    devices = harness_device_count();
    suballocated(0, 512, CHUNK);
    suballocated(SYMWIN_MEM_NCCL, 4096, CHUNK_NCCL);
    suballocated(SYMWIN_MEM_PEERS, 512, CHUNK);
    own();
    many_small();
    offsets();
    kept();
    trim_while_asked();
    threads_that_end();
    if (devices > 3)
        accounts(); /* on a device that nothing else has used */
    team_windows(3);
    team_windows(1);
    communicators();
    export_of_a_part();
    if (sw_driver_is_emulated())
        faults();
    return tap_done();
}
