/* Windows on several adjacent physical allocations: split alike and differently on the ranks,
 * shared, remapped, mapped twice, and refused. Ranks are threads. */
#include "user_memory.h"

static void span_meet(void *team)
{
    harness_barrier(team);
}

static struct span_rank join(struct harness_team *team, int rank)
{
    struct span_rank r = {rank, team->nranks, harness_device(rank), NULL, span_meet, team};

    host_must(harness_comm(team, rank, &r.comm), "symwin_comm_create");
    return r;
}

static void span_leave(struct span_rank *r)
{
    harness_barrier(r->others);
    symwin_comm_destroy(r->comm);
}

static void run_row(struct harness_team *team, int rank, void *arg)
{
    const struct span_row *row = arg;
    struct span_rank r = join(team, rank);
    const char *fault;
    struct span s;

    span_make(&s, r.device, span_cuts_of(row, rank));
    fault = span_fault(&r, row, &s);
    tap_ok(fault == NULL, "%s: rank %d of %d%s%s", row->name, rank, row->nranks,
           fault != NULL ? ": " : "", fault != NULL ? fault : "");
    span_leave(&r);
    span_free(&s);
}

/* ---- sharing, and memory that is replaced ---- */

static symwin_window *window_at(const struct span_rank *r, const struct span *s, size_t at,
                                size_t bytes)
{
    symwin_window *window = NULL;

    host_must(symwin_window_register(r->comm, span_at(s, at), bytes, 0, &window),
              "symwin_window_register");
    return window;
}

/* On purpose: see docs/design.md, "Windows over several allocations". */
static void expect_unicast(const struct span_rank *r, const symwin_window *window)
{
    symwin_window_info info = {0};

    host_must(symwin_window_query(r->comm, window, &info), "symwin_window_query");
    tap_ok(info.transports == SYMWIN_TRANSPORT_PEER &&
               strstr(info.multicast_reason, sw_driver_is_emulated()
                                                 ? "on several physical allocations"
                                                 : "no multicast") != NULL,
           "no multicast, and why: %s", info.multicast_reason);
}

static void let_go(const struct span_rank *r, symwin_window *window)
{
    host_must(symwin_window_deregister(r->comm, window), "symwin_window_deregister");
}

static int mapped(const struct span_rank *r)
{
    symwin_comm_info info;

    host_must(symwin_comm_query(r->comm, &info), "symwin_comm_query");
    return info.allocations;
}

static void run_shared(struct harness_team *team, int rank, void *unused)
{
    static const struct span_cuts cuts = {{{6, 1}}, 0};
    const size_t g = GRANULE;
    /* `mapped`: how many sets of allocations are mapped after the step. */
    static const struct {
        size_t first, count;
        int mapped;
    } steps[] = {
        {1, 3, 1}, /* the second to the fourth */
        {1, 1, 1}, /* one of these */
        {2, 2, 1}, /* two of these */
        {0, 2, 2}, /* one of these, and one more */
        {0, 6, 3}, /* all */
        {4, 2, 3}, /* among the mapped ones */
        {0, 1, 3},
    };
    enum { STEPS = sizeof steps / sizeof steps[0] };
    struct span_rank r = join(team, rank);
    symwin_window *windows[STEPS];
    struct span s;
    size_t i;

    (void)unused;
    span_make(&s, r.device, &cuts);
    for (i = 0; i < STEPS; i++) {
        windows[i] = window_at(&r, &s, steps[i].first * g + 20, steps[i].count * g - 40);
        TAP_EQ("sets of allocations that are mapped", mapped(&r), steps[i].mapped);
        expect_unicast(&r, windows[i]);
    }
    for (i = 0; i < STEPS; i++)
        TAP_EQ("words that are wrong",
               span_wrong_words(&r, windows[i], span_at(&s, steps[i].first * g + 20),
                                steps[i].first * g + 20, steps[i].count * g - 40,
                                (uint32_t)i * 9000000),
               0);
    for (i = 0; i < STEPS; i++) {
        let_go(&r, windows[i]);
        harness_barrier(team);
    }
    TAP_EQ("sets that stay mapped", mapped(&r), 0);
    span_leave(&r);
    span_free(&s);
}

static uint32_t word_of(const struct span_rank *r, const symwin_window *window, int peer, size_t at)
{
    void *ptr;

    host_must(symwin_window_peer_pointer(r->comm, window, peer, at, &ptr), "peer pointer");
    return host_get_u32(r->device, ptr);
}

/* The allocator unmaps one allocation and maps another in its place, on one rank or on all. */
static void run_remapped(struct harness_team *team, int rank, void *on_all)
{
    static const struct span_cuts cuts = {{{3, 1}}, 0};
    const size_t g = GRANULE, middle = g + 400;
    const int changes = rank == 1 || on_all != NULL;
    struct span_rank r = join(team, rank);
    symwin_window *old, *new;
    struct span s;

    span_make(&s, r.device, &cuts);
    old = window_at(&r, &s, 0, 3 * g);
    host_put_u32(r.device, span_at(&s, middle), 100 + (uint32_t)rank);
    if (changes)
        span_replace(&s, 1);
    host_put_u32(r.device, span_at(&s, middle), 200 + (uint32_t)rank);
    harness_barrier(team);
    TAP_EQ("the window is on what it was made of", word_of(&r, old, 1, middle), 101);
    TAP_EQ("rank 0's, which may be as it was", word_of(&r, old, 0, middle),
           on_all != NULL ? 100 : 200);
    harness_barrier(team);
    new = window_at(&r, &s, 0, 3 * g);
    TAP_EQ("a new window has a set of its own", mapped(&r), 2);
    TAP_EQ("words that are wrong", span_wrong_words(&r, new, span_at(&s, 0), 0, 3 * g, 3000000), 0);
    let_go(&r, old);
    harness_barrier(team);
    TAP_EQ("the old set goes alone", mapped(&r), 1);
    TAP_EQ("words that are wrong", span_wrong_words(&r, new, span_at(&s, 0), 0, 3 * g, 4000000), 0);
    let_go(&r, new);
    span_leave(&r);
    span_free(&s);
}

/* ---- memory with two addresses ---- */

/* An all-reduce of 16 words from one byte of the range to another. */
static void ask(const char *name, const struct span_rank *r, const struct span *s, size_t in,
                size_t out, symwin_status want)
{
    symwin_collective_info info;

    host_expect(name,
                symwin_allreduce_query(r->comm, span_at(s, in), span_at(s, out), 16, SYMWIN_U32,
                                       SYMWIN_SUM, NULL, &info),
                want, want != SYMWIN_OK ? "addresses of the same memory" : "");
}

/* The last of four allocations is the second one again. The first three are shown in one segment,
 * in which the second and the third have windows of their own. */
static void run_mapped_twice(struct harness_team *team, int rank, void *unused)
{
    static const struct span_cuts cuts = {{{4, 1}}, 0};
    const size_t g = GRANULE, one = g + 1024, two = 2 * g + 1024, again = 3 * g + 1024;
    struct span_rank r = join(team, rank);
    CUmemGenericAllocationHandle handle;
    symwin_window *windows[4];
    symwin_mem_info first, second;
    symwin_collective_info info;
    struct span s;
    size_t i;

    (void)unused;
    span_make(&s, r.device, &cuts);
    span_unmap(&s, 3);
    host_must_cuda(sw_drv.cuMemRetainAllocationHandle(&handle, span_at(&s, g)), "retain");
    span_map(&s, 3, handle);
    host_must(symwin_mem_query(span_at(&s, one), &first), "symwin_mem_query");
    host_must(symwin_mem_query(span_at(&s, again), &second), "symwin_mem_query");
    tap_ok(first.buffer_id != second.buffer_id, "each mapping has a buffer id");
    windows[0] = window_at(&r, &s, 0, 3 * g);
    for (i = 1; i < 4; i++)
        windows[i] = window_at(&r, &s, i * g, g);
    TAP_EQ("sets of allocations that are mapped", mapped(&r), 2);
    ask("another allocation of the segment", &r, &s, one, two, SYMWIN_OK);
    ask("the same bytes, mapped twice", &r, &s, one, again, SYMWIN_INVALID);
    ask("bytes that overlap there", &r, &s, again + 60, one, SYMWIN_INVALID);
    ask("bytes that do not", &r, &s, again + 64, one, SYMWIN_OK);
    ask("another allocation", &r, &s, two, again, SYMWIN_OK);
    host_expect("in place there",
                symwin_allgather_query(r.comm, span_at(&s, again + 64 * (size_t)rank),
                                       span_at(&s, one), 16, SYMWIN_U32, NULL, &info),
                SYMWIN_OK, "");
    for (i = 0; i < 4; i++)
        let_go(&r, windows[i]);
    span_leave(&r);
    span_free(&s);
}

/* ---- refusals ---- */

enum wrong { W_END, W_BEHIND, W_GAP, W_DEVICE, W_BORDER, W_OFFSET, W_MULTICAST, W_MANY };

static const struct refusal {
    const char *name;
    enum wrong what;
    symwin_status want;
    const char *words;
} refusals[] = {
    {"past the end", W_END, SYMWIN_INVALID, "rank 1|passes the end|by 1 bytes"},
    {"past the end by more than an allocation", W_BEHIND, SYMWIN_INVALID,
     "rank 1|passes the end|by 2097153 bytes"},
    {"over a hole", W_GAP, SYMWIN_INVALID, "rank 1|passes the end|by 2097152 bytes"},
    {"on two devices", W_DEVICE, SYMWIN_INVALID, "rank 1|memory of device 2|on device 1"},
    {"in two reservations", W_BORDER, SYMWIN_INVALID, "rank 1|passes the end|by 4194304 bytes"},
    {"at an offset that differs", W_OFFSET, SYMWIN_MISMATCH,
     "the offset in the allocation differs|0 on rank 0|64 on rank 1"},
    {"with multicast", W_MULTICAST, SYMWIN_UNSUPPORTED,
     "SYMWIN_WINDOW_MULTICAST was asked for|rank 0|3 physical allocations"},
    {"of too many", W_MANY, SYMWIN_INVALID, "rank 1|more than 1024 physical|register parts"},
};

/* Reserves an address range and maps memory there. */
static struct host_raw reserve_at(int device, CUdeviceptr at)
{
    CUmemAccessDesc access = {.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    struct host_raw raw = {.bytes = GRANULE};

    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = device;
    host_must_cuda(sw_drv.cuMemAddressReserve(&raw.ptr, raw.bytes, 0, at, 0), "reserve");
    if (raw.ptr != at) {
        printf("Bail out! the driver did not reserve at 0x%llx\n", at);
        exit(1);
    }
    raw.handle = span_create(device, raw.bytes);
    host_must_cuda(sw_drv.cuMemMap(raw.ptr, raw.bytes, 0, raw.handle, 0), "cuMemMap");
    host_must_cuda(sw_drv.cuMemSetAccess(raw.ptr, raw.bytes, &access, 1), "cuMemSetAccess");
    return raw;
}

/* Maps one allocation 1025 times, side by side. */
static CUdeviceptr many_map(int device, CUmemGenericAllocationHandle *handle)
{
    CUdeviceptr at = 0;
    int i;

    *handle = span_create(device, GRANULE);
    host_must_cuda(sw_drv.cuMemAddressReserve(&at, (size_t)1025 * GRANULE, 0, 0, 0), "reserve");
    for (i = 0; i < 1025; i++)
        host_must_cuda(sw_drv.cuMemMap(at + (CUdeviceptr)i * GRANULE, GRANULE, 0, *handle, 0),
                       "cuMemMap");
    return at;
}

static void many_unmap(CUdeviceptr at, CUmemGenericAllocationHandle handle)
{
    int i;

    for (i = 0; i < 1025; i++)
        host_must_cuda(sw_drv.cuMemUnmap(at + (CUdeviceptr)i * GRANULE, GRANULE), "cuMemUnmap");
    host_must_cuda(sw_drv.cuMemAddressFree(at, (size_t)1025 * GRANULE), "cuMemAddressFree");
    host_must_cuda(sw_drv.cuMemRelease(handle), "cuMemRelease");
}

/* Rank 1 registers wrong memory or a wrong range. The other ranks' memory is good. */
static void refuse(const struct span_rank *r, const struct refusal *row)
{
    static const struct span_cuts cuts = {{{3, 1}}, 0};
    const unsigned flags = row->what == W_MULTICAST ? SYMWIN_WINDOW_MULTICAST : 0;
    symwin_window *window = (symwin_window *)(uintptr_t)0x5e5e, *good;
    CUmemGenericAllocationHandle handle = 0;
    size_t bytes = (size_t)3 * GRANULE, at = 0;
    struct host_raw low = {0}, high = {0};
    CUdeviceptr many = 0;
    char name[100];
    struct span s;
    void *ptr;

    span_make(&s, r->device, &cuts);
    ptr = span_at(&s, 0);
    if (r->rank == 1) {
        at = row->what == W_END || row->what == W_OFFSET ? 64 : 0;
        if (row->what == W_GAP)
            span_unmap(&s, 2);
        if (row->what == W_DEVICE) {
            span_unmap(&s, 2);
            span_map(&s, 2, span_create((r->device + 1) % harness_device_count(), GRANULE));
        }
        if (row->what == W_BORDER) {
            low = reserve_at(r->device, s.range + ((CUdeviceptr)256 << 30)); /* unused */
            high = reserve_at(r->device, low.ptr + GRANULE);
            ptr = (void *)(uintptr_t)low.ptr;
        }
        if (row->what == W_MANY) {
            many = many_map(r->device, &handle);
            ptr = (void *)(uintptr_t)many;
        }
    }
    if (row->what == W_END)
        bytes = (size_t)3 * GRANULE - 63;
    else if (row->what == W_BEHIND)
        bytes = r->rank == 1 ? (size_t)4 * GRANULE + 1 : bytes;
    else if (row->what == W_BORDER)
        bytes = (size_t)3 * GRANULE;
    else if (row->what == W_OFFSET)
        bytes = GRANULE;
    else if (row->what == W_MANY)
        bytes = r->rank == 1 ? (size_t)1025 * GRANULE : bytes;
    r->meet(r->others);
    snprintf(name, sizeof name, "%s, seen by rank %d", row->name, r->rank);
    host_expect(name, symwin_window_register(r->comm, (char *)ptr + at, bytes, flags, &window),
                row->want, row->words);
    r->meet(r->others);
    tap_ok(window == (symwin_window *)(uintptr_t)0x5e5e && mapped(r) == 0,
           "%s: nothing is made, nothing stays", name);
    if (many != 0)
        many_unmap(many, handle);
    if (low.ptr != 0) {
        host_raw_free(&low);
        host_raw_free(&high);
    }
    r->meet(r->others);
    good = window_at(r, &s, 0, GRANULE); /* the next registration works */
    let_go(r, good);
    r->meet(r->others);
    span_free(&s);
}

/* On GPUs, leaves out the cases that need the emulated driver's machine. */
static int can_refuse(enum wrong what)
{
    return sw_driver_is_emulated() || (what != W_DEVICE && what != W_BORDER && what != W_MULTICAST);
}

static void run_refusals(struct harness_team *team, int rank, void *unused)
{
    struct span_rank r = join(team, rank);
    size_t i;

    (void)unused;
    for (i = 0; i < sizeof refusals / sizeof refusals[0]; i++)
        if (can_refuse(refusals[i].what))
            refuse(&r, &refusals[i]);
    span_leave(&r);
}

int main(void)
{
    struct harness_leaks before;
    int i;

    harness_start();
    before = harness_leaks_now();
    for (i = 0; i < SPAN_ROW_COUNT; i++) {
        harness_run(span_rows[i].nranks, run_row, (void *)(uintptr_t)&span_rows[i]);
        harness_no_leaks(span_rows[i].name, &before);
    }
    harness_run(2, run_shared, NULL);
    harness_no_leaks("shared", &before);
    harness_run(2, run_remapped, NULL);
    harness_run(2, run_remapped, &before);
    harness_no_leaks("remapped", &before);
    harness_run(2, run_mapped_twice, NULL);
    harness_no_leaks("mapped twice", &before);
    harness_run(2, run_refusals, NULL);
    harness_no_leaks("refused", &before);
    return tap_done();
}
