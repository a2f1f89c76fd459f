/* What windows share: one mapping for all windows on the same allocations, references released in
 * any order, handles that stay invalid, communicators side by side, and the end of the flat
 * range. */
#include "windows.h"

#define SENTINEL ((symwin_window *)(uintptr_t)0x5e5e5e5e)

enum { RANKS = 4 };

/* Counts what is mapped while no rank does anything. */
static struct sw_emu_live counted(struct member *m)
{
    struct sw_emu_live live;

    harness_barrier(m->team);
    (void)sw_reaper_wait(10000);
    sw_emu_live_count(&live);
    harness_barrier(m->team);
    return live;
}

static int maps_more(const struct sw_emu_live *a, const struct sw_emu_live *b)
{
    return (int)(b->mappings - a->mappings);
}

/* ---- windows on the same allocations ---- */

static unsigned calls_of_register(struct member *m, size_t offset, symwin_window **window)
{
    unsigned calls;

    sw_emu_fail_nth(1000000, CUDA_ERROR_UNKNOWN, 0, 0); /* counts, fails nothing */
    *window = member_window(m, offset, 1000);
    calls = sw_emu_calls();
    sw_emu_fail_nth(0, CUDA_SUCCESS, 0, 0);
    return calls;
}

static void run_same(struct harness_team *team, int rank, void *arg)
{
    enum { MOST = 20 };
    struct sw_emu_live none, first, later;
    symwin_window *windows[MOST];
    unsigned calls = 0;
    size_t distinct = 1;
    struct member m;
    int i;

    (void)arg;
    member_open(&m, team, rank, GRANULE);
    none = counted(&m);
    windows[0] = member_window(&m, 0, GRANULE);
    first = counted(&m);
    /* Every rank's part of the flat range, and the multicast mapping. */
    TAP_EQ("the first window maps the allocations", maps_more(&none, &first), RANKS + 1);
    for (i = 1; i < MOST; i++) {
        const unsigned now = calls_of_register(&m, (size_t)i * 11, &windows[i]);

        distinct += member_query(&m, windows[i]).offset ==
                    member_query(&m, windows[0]).offset + (size_t)i * 11;
        calls = now > calls ? now : calls;
    }
    later = counted(&m);
    TAP_EQ("later ones map nothing", maps_more(&first, &later), 0);
    TAP_EQ("nor keep another handle", later.handle_refs - first.handle_refs, 0);
    tap_ok(calls <= 8, "nor make many driver calls (%u)", calls);
    TAP_EQ("each has its own place in the one mapping", distinct, MOST);
    TAP_EQ("one allocation", member_allocations(&m), 1);
    for (i = 0; i < MOST; i++)
        member_deregister(&m, windows[(i * 7 + rank) % MOST]);
    later = counted(&m);
    TAP_EQ("the last of all ranks unmaps", maps_more(&none, &later), 1); /* not multicast */
    TAP_EQ("no allocation", member_allocations(&m), 0);
    harness_barrier(team);
    member_close(&m);
}

/* Pairs other allocations than the earlier windows do, so it cannot share their offset. */
static void run_permuted(struct harness_team *team, int rank, void *arg)
{
    symwin_window *both[2], *crossed, *again;
    struct sw_emu_live before, after;
    struct member m, other;

    (void)arg;
    member_open(&m, team, rank, GRANULE);
    other = m;
    other.memory = host_alloc(m.device, GRANULE);
    both[0] = member_window(&m, 0, 4096);
    both[1] = member_window(&other, 0, 4096);
    before = counted(&m);
    TAP_EQ("two sets of allocations", member_allocations(&m), 2);
    crossed = member_window(rank % 2 == 0 ? &m : &other, 0, 4096);
    after = counted(&m);
    TAP_EQ("a window across the sets needs another", member_allocations(&m), 3);
    TAP_EQ("mapped for itself", maps_more(&before, &after), RANKS);
    TAP_EQ("it shows the right memory of every rank",
           member_exchange(&m, crossed, rank % 2 == 0 ? m.memory : other.memory, 16, 70), 0);
    TAP_EQ("which the first window shows as well",
           host_get_u32(m.device, member_peer(&m, both[0], 0, 16)), 70);
    TAP_EQ("and the second", host_get_u32(m.device, member_peer(&m, both[1], 1, 16)), 71);
    again = member_window(&m, 64, 4096);
    TAP_EQ("the sets of before are still shared", member_allocations(&m), 3);
    harness_barrier(team);
    member_deregister(&m, crossed);
    member_deregister(&m, both[1]);
    member_deregister(&m, again);
    member_deregister(&m, both[0]);
    harness_barrier(team);
    TAP_EQ("nothing stays", member_allocations(&m), 0);
    harness_barrier(team);
    host_must(symwin_mem_free(other.memory), "symwin_mem_free");
    member_close(&m);
}

/* ---- deregistration ---- */

enum { SETS = 3, EACH = 4, WINDOWS = SETS * EACH };

static void run_orders(struct harness_team *team, int rank, void *arg)
{
    uint64_t state = 7 + (uint64_t)rank;
    symwin_window *windows[WINDOWS];
    void *memory[SETS];
    struct member m;
    int round, i;

    (void)arg;
    member_open(&m, team, rank, GRANULE);
    for (i = 0; i < SETS; i++)
        memory[i] = host_alloc(m.device, GRANULE);
    for (round = 0; round < 10; round++) {
        for (i = 0; i < WINDOWS; i++)
            host_must(symwin_window_register(m.comm, host_at(memory[i % SETS], (size_t)i * 8), 8, 0,
                                             &windows[i]),
                      "symwin_window_register");
        for (i = WINDOWS; i > 0; i--) { /* each rank in its own order */
            const size_t at = host_random(&state) % (size_t)i;

            member_deregister(&m, windows[at]);
            windows[at] = windows[i - 1];
        }
    }
    harness_barrier(team);
    TAP_EQ("ranks deregister in any order", member_allocations(&m), 0);
    harness_barrier(team);
    for (i = 0; i < SETS; i++)
        host_must(symwin_mem_free(memory[i]), "symwin_mem_free");
    member_close(&m);
}

/* Ranks register the next window while some ranks still have the previous one. */
static void run_races(struct harness_team *team, int rank, void *arg)
{
    enum { TURNS = 200 };
    uint64_t own = 100 + (uint64_t)rank, common = 5;
    symwin_window *last = NULL, *next;
    void *memory[2];
    struct member m;
    int wrong = 0;
    int i;

    (void)arg;
    member_open(&m, team, rank, GRANULE);
    memory[0] = m.memory;
    memory[1] = host_alloc(m.device, GRANULE);
    for (i = 0; i < TURNS; i++) {
        void *const ptr = memory[host_random(&common) % 4 == 0];
        const int first = host_random(&own) % 2 == 0;

        if (first && last != NULL)
            member_deregister(&m, last);
        host_must(symwin_window_register(m.comm, ptr, 64, 0, &next), "symwin_window_register");
        if (!first && last != NULL)
            member_deregister(&m, last);
        if (i % 20 == 0)
            wrong += member_exchange(&m, next, ptr, 4, (uint32_t)i * 16);
        last = next;
    }
    TAP_EQ("re-registration while others deregister", wrong, 0);
    member_deregister(&m, last);
    harness_barrier(team);
    TAP_EQ("nothing stays", member_allocations(&m), 0);
    harness_barrier(team);
    host_must(symwin_mem_free(memory[1]), "symwin_mem_free");
    member_close(&m);
}

/* A rank that deregistered its window and registers again holds the segment like any other. */
static void run_return(struct harness_team *team, int rank, void *arg)
{
    symwin_window *first, *second;
    struct member m;

    (void)arg;
    member_open(&m, team, rank, GRANULE);
    first = member_window(&m, 0, 64);
    host_put_u32(m.device, m.memory, 5);
    if (rank == 0)
        member_deregister(&m, first);
    harness_barrier(team);
    second = member_window(&m, 0, 64);
    if (rank != 0) {
        member_deregister(&m, first);
        member_deregister(&m, second);
    }
    harness_barrier(team);
    TAP_EQ("the rank that came back is the last to hold it", member_allocations(&m), 1);
    harness_barrier(team);
    if (rank == 0) {
        TAP_EQ("and sees it", host_get_u32(m.device, member_peer(&m, second, 3, 0)), 5);
        member_deregister(&m, second);
    }
    harness_barrier(team);
    TAP_EQ("nothing stays", member_allocations(&m), 0);
    harness_barrier(team);
    member_close(&m);
}

/* ---- handles ---- */

static void expect_dead(const char *name, symwin_comm *comm, symwin_window *window)
{
    symwin_window_info info;
    void *ptr = NULL;

    memset(&info, 0x5e, sizeof info);
    host_expect(name, symwin_window_deregister(comm, window), SYMWIN_INVALID,
                "symwin_window_deregister|no live window");
    host_expect(name, symwin_window_query(comm, window, &info), SYMWIN_INVALID,
                "symwin_window_query|no live window");
    host_expect(name, symwin_window_peer_pointer(comm, window, 0, 0, &ptr), SYMWIN_INVALID,
                "symwin_window_peer_pointer|no live window");
    host_expect(name, symwin_window_multicast_pointer(comm, window, 0, &ptr), SYMWIN_INVALID,
                "symwin_window_multicast_pointer|no live window");
    tap_ok(ptr == NULL, "%s: the out-pointer is untouched", name);
}

static void run_handles(struct harness_team *team, int rank, void *arg)
{
    symwin_window *first, *second;
    struct member m;

    (void)arg;
    member_open(&m, team, rank, GRANULE);
    expect_dead("no window", m.comm, NULL);
    expect_dead("a number", m.comm, (symwin_window *)(uintptr_t)1);
    expect_dead("an address", m.comm, (symwin_window *)(uintptr_t)&m);
    expect_dead("all ones", m.comm, (symwin_window *)UINTPTR_MAX);
    first = member_window(&m, 0, 64);
    expect_dead("a handle that is off by one slot", m.comm,
                (symwin_window *)((uintptr_t)first + 1));
    member_deregister(&m, first);
    expect_dead("a window that was deregistered", m.comm, first);
    second = member_window(&m, 0, 64);
    tap_ok(second != first, "the same memory again gets another handle");
    expect_dead("a handle whose slot is in use again", m.comm, first);
    TAP_EQ("the new one is not harmed", member_query(&m, second).bytes, 64);
    member_deregister(&m, second);
    member_close(&m);
}

/* ---- communicators ---- */

static void run_two_comms(struct harness_team *team, int rank, void *arg)
{
    const symwin_unique_id *id = arg;
    symwin_window *mine, *theirs = NULL;
    symwin_mem_info info = {0};
    symwin_comm *second = NULL;
    struct member m, other;

    member_open(&m, team, rank, GRANULE);
    host_must(symwin_comm_create(id, RANKS, rank, m.device, NULL, &second), "symwin_comm_create");
    other = m;
    other.comm = second;
    mine = member_window(&m, 0, 4096);
    host_must(symwin_window_register(second, m.memory, 4096, 0, &theirs), "symwin_window_register");
    host_must(symwin_mem_query(m.memory, &info), "symwin_mem_query");
    TAP_EQ("both communicators' windows are registrations", info.registrations, 2);
    tap_ok(member_peer(&m, mine, 1, 0) != member_peer(&other, theirs, 1, 0),
           "each has a flat range of its own");
    TAP_EQ("on one memory", member_exchange(&m, mine, m.memory, 0, 30), 0);
    TAP_EQ("that the other shows", host_get_u32(m.device, member_peer(&other, theirs, 3, 0)), 33);
    expect_dead("a window of another communicator", m.comm, theirs);
    expect_dead("and the other way round", second, mine);
    harness_barrier(team);
    member_deregister(&m, mine);
    host_expect("one communicator still holds it", symwin_mem_free(m.memory), SYMWIN_BUSY,
                "by 1 in all");
    harness_barrier(team);
    TAP_EQ("its window is not harmed", member_exchange(&other, theirs, m.memory, 0, 90), 0);
    symwin_comm_destroy(second);
    member_close(&m);
}

static void run_destroy_alive(struct harness_team *team, int rank, void *arg)
{
    struct member m;

    (void)arg;
    member_open(&m, team, rank, GRANULE);
    member_window(&m, 0, GRANULE);
    member_window(&m, 8, 8);
    symwin_comm_destroy(m.comm);
    host_expect("windows go with their communicator", symwin_mem_free(m.memory), SYMWIN_OK, "");
}

static void run_lost_peer(struct harness_team *team, int rank, void *arg)
{
    symwin_window *window = SENTINEL;
    struct member m;

    (void)arg;
    member_open(&m, team, rank, GRANULE);
    member_window(&m, 0, GRANULE);
    if (rank == 1) {
        host_expect("a window with ranks that are gone",
                    symwin_window_register(m.comm, m.memory, 1, 0, &window), SYMWIN_PEER_LOST,
                    "symwin_window_register|has destroyed its communicator");
        tap_ok(window == SENTINEL, "the out-pointer is untouched");
    }
    member_close(&m);
}

/* ---- a segment that is being destroyed ---- */

static struct late {
    CUresult (*unmap)(CUdeviceptr ptr, size_t size);
    struct sw_group *group;
    size_t offset;
    struct sw_segment *joined;
} late;

static const struct sw_stretch late_stretches[4] = {
    {0, GRANULE, 1}, {0, GRANULE, 1}, {0, GRANULE, 1}, {0, GRANULE, 1}};

/* Rank 1 joins the segment while rank 0, its only holder, destroys it. */
static CUresult join_late(CUdeviceptr ptr, size_t size)
{
    if (late.joined == NULL)
        host_must(sw_segment_join(late.group, 1, 77, late.offset, late_stretches, &late.joined),
                  "join");
    return late.unmap(ptr, size);
}

static void run_late(struct harness_team *team, int rank, void *arg)
{
    CUmemGenericAllocationHandle memory = 0;
    struct sw_segment *first = NULL;
    struct member m;

    (void)arg;
    member_open(&m, team, rank, GRANULE);
    harness_barrier(team);
    if (rank == 0) {
        late = (struct late){sw_drv.cuMemUnmap, m.comm->group, 0, NULL};
        host_must_cuda(sw_drv.cuMemRetainAllocationHandle(&memory, m.memory), "retain");
        host_must(sw_segment_room(late.group, GRANULE, 0, &late.offset), "room");
        host_must(sw_segment_join(late.group, 0, 77, late.offset, late_stretches, &first), "join");
        host_must(sw_segment_map(late.group, first, 0, memory, GRANULE, 7), "map");
        sw_drv.cuMemUnmap = join_late;
        sw_segment_release(late.group, first, 0);
        (void)sw_reaper_wait(10000);
        sw_drv.cuMemUnmap = late.unmap;
        tap_ok(late.joined != NULL && late.joined != first,
               "who comes while a segment is destroyed gets another one");
        if (late.joined != first)
            sw_segment_release(late.group, late.joined, 1);
    }
    harness_barrier(team);
    member_close(&m);
}

/* ---- the end of the flat range ---- */

static void run_full(struct harness_team *team, int rank, void *arg)
{
    struct member large, small;
    symwin_window *first, *second = SENTINEL;

    (void)arg;
    /* A stride is as long as the device's memory. A window that pairs a large allocation with small
     * ones takes as much room as the large one. */
    member_open(&large, team, rank, (size_t)320 * GRANULE);
    small = large;
    small.memory = host_alloc(large.device, GRANULE);
    first = member_window(rank == 0 ? &large : &small, 0, 4096);
    host_expect("no room in the flat range",
                symwin_window_register(large.comm, rank == 0 ? small.memory : large.memory, 4096, 0,
                                       &second),
                SYMWIN_NO_MEMORY, "symwin_window_register|rank 0|flat range");
    tap_ok(second == SENTINEL, "the out-pointer is untouched");
    TAP_EQ("the window of before works",
           member_exchange(&large, first, rank == 0 ? large.memory : small.memory, 0, 20), 0);
    member_deregister(&large, first);
    harness_barrier(team);
    second = member_window(rank == 0 ? &small : &large, 0, 4096);
    TAP_EQ("there is room after it was deregistered",
           member_exchange(&large, second, rank == 0 ? small.memory : large.memory, 0, 60), 0);
    member_deregister(&large, second);
    harness_barrier(team);
    host_must(symwin_mem_free(small.memory), "symwin_mem_free");
    member_close(&large);
}

static void full_range(void)
{
    struct sw_emu_machine usual, tight;

    sw_emu_machine(&usual);
    tight = usual;
    tight.mem_bytes = (size_t)1 << 30;
    host_must_cuda(sw_emu_configure(&tight), "sw_emu_configure");
    harness_run(2, run_full, NULL);
    (void)sw_reaper_wait(10000); /* nothing is alive then */
    host_must_cuda(sw_emu_configure(&usual), "sw_emu_configure");
}

int main(void)
{
    static const struct {
        const char *name;
        void (*body)(struct harness_team *team, int rank, void *arg);
    } cases[] = {
        {"the same allocations", run_same},
        {"allocations paired anew", run_permuted},
        {"orders of deregistration", run_orders},
        {"races of registration", run_races},
        {"a rank that comes back", run_return},
        {"handles", run_handles},
        {"two communicators", run_two_comms},
        {"destroyed with live windows", run_destroy_alive},
        {"a lost peer", run_lost_peer},
        {"a rank that is late", run_late},
    };
    struct harness_leaks before;
    symwin_unique_id id;
    size_t i;

    harness_start();
    before = harness_leaks_now();
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        host_must(symwin_unique_id_create(&id), "symwin_unique_id_create");
        harness_run(RANKS, cases[i].body, &id);
        symwin_unique_id_release(&id); /* most cases do not use it */
        harness_no_leaks(cases[i].name, &before);
    }
    full_range();
    harness_no_leaks("a full range", &before);
    return tap_done();
}
