/* Registered buffers on several adjacent physical allocations: split alike and differently on the
 * ranks, overlapping, captured, and remapped. Ranks are threads. */
#include "user_memory.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { MOST_WORDS = 30000 };
#else
enum { MOST_WORDS = 300000 };
#endif

/* Reduces `count` words in place, at each rank's own address. Returns how many are wrong. */
static int wrong_sums(struct member *m, void *at, size_t count, uint32_t salt)
{
    uint32_t *words = malloc(4 * count);
    int wrong = 0;
    size_t i;

    for (i = 0; i < count; i++)
        words[i] = ((uint32_t)i + salt) * (uint32_t)(m->rank + 1);
    host_must(host_copy(m->device, at, words, 4 * count), "copy");
    host_must(symwin_allreduce(m->comm, at, at, count, SYMWIN_U32, SYMWIN_SUM, m->stream),
              "symwin_allreduce");
    host_must(symwin_stream_synchronize(m->device, m->stream), "synchronize");
    host_must(symwin_comm_check(m->comm), "symwin_comm_check");
    host_must(host_copy(m->device, words, at, 4 * count), "copy");
    for (i = 0; i < count; i++)
        wrong += words[i] != ((uint32_t)i + salt) * (uint32_t)(m->nranks * (m->nranks + 1) / 2);
    free(words);
    return wrong;
}

static int connected(const struct member *m, const void *at, size_t count)
{
    const symwin_allreduce_options options = {.size = sizeof options, .algo = SYMWIN_ALGO_TWOSHOT};
    symwin_allreduce_info info;

    return symwin_allreduce_query(m->comm, at, at, count, SYMWIN_U32, SYMWIN_SUM, &options,
                                  &info) == SYMWIN_OK;
}

/* Calls on parts of a registered range. The parts begin in different allocations on different
 * ranks. */
static void run_row(struct harness_team *team, int rank, void *arg)
{
    const struct span_row *row = arg;
    const size_t at = span_cuts_of(row, rank)->at / 4 * 4;
    const size_t all = (row->bytes - 8) / 4, count = all < MOST_WORDS ? all : MOST_WORDS;
    symwin_registration *registration;
    symwin_registration_info info;
    const size_t places[] = {0, (all - count) / 2, all - count,
                             all / 2 - (all / 2 < count ? all / 2 : count) / 2};
    struct member m;
    struct span s;
    size_t i;

    open_member(&m, team, rank, 0, 20000);
    span_make(&s, m.device, span_cuts_of(row, rank));
    registration = enter(&m, span_at(&s, at), all * 4);
    for (i = 0; i < 3; i++) {
        char *const from = (char *)span_at(&s, at) + 4 * places[i];

        tap_ok(wrong_sums(&m, from, count, (uint32_t)i) == 0 && connected(&m, from, count),
               "%s: rank %d: words from %zu on, by windows", row->name, rank, places[i]);
    }
    info = query(&m, registration);
    tap_ok(info.refused[0] == '\0' && (info.transports & SYMWIN_TRANSPORT_PEER) != 0 &&
               allocations(&m) == 1,
           "%s: rank %d: connected, in one piece: %s", row->name, rank, info.refused);
    harness_barrier(team);
    tap_ok(enter(&m, span_at(&s, at), all * 4) == registration, "%s: it is known", row->name);
    leave(&m, registration);
    leave(&m, registration);
    harness_barrier(team);
    close_member(&m);
    span_free(&s);
}

/* Two overlapping ranges, each on allocations that the other lacks, are used as one. */
static void run_overlapping(struct harness_team *team, int rank, void *unused)
{
    static const struct span_cuts cuts[2] = {{{{4, 1}}, 0}, {{{2, 2}}, 0}};
    const size_t g = GRANULE;
    symwin_registration *low, *high;
    struct member m;
    struct span s;
    char *at;

    (void)unused;
    open_member(&m, team, rank, 0, 20000);
    span_make(&s, m.device, &cuts[rank]);
    at = span_at(&s, 0);
    low = enter(&m, at, 3 * g - 4096);
    high = enter(&m, at + g + 4096, 3 * g - 4096);
    TAP_EQ("wrong sums, across both", wrong_sums(&m, at + g / 2, 3 * g / 4, 1), 0);
    tap_ok(connected(&m, at, 4 * g / 4), "both as one");
    leave(&m, low);
    TAP_EQ("wrong sums, in what is left", wrong_sums(&m, at + 2 * g, g / 4, 2), 0);
    tap_ok(connected(&m, at + 2 * g, 2 * g / 4), "what is left stays connected");
    harness_barrier(team);
    leave(&m, high);
    close_member(&m);
    span_free(&s);
}

static void add_in_group(const struct member *m, char *at, size_t bytes)
{
    const symwin_allreduce_options options = {.size = sizeof options, .algo = SYMWIN_ALGO_TWOSHOT};

    host_must(symwin_allreduce_with(m->comm, at, at, bytes / 4, SYMWIN_U32, SYMWIN_SUM, &options,
                                    m->stream),
              "symwin_allreduce_with");
}

/* The connection of a group's first call makes way for those of the next two, each of which takes a
 * half of it. It stays until the group has been launched, whatever else the group agrees on. */
static void run_makes_way(struct harness_team *team, int rank, void *unused)
{
    static const struct span_cuts cuts = {{{4, 1}}, 0};
    const size_t g = GRANULE, some = 4096;
    symwin_registration *of[8];
    struct member m;
    struct span s;
    uint32_t *const ones = malloc(4 * g);
    char *at, *more;
    size_t k;
    int i;

    (void)unused;
    open_member(&m, team, rank, 0, 20000);
    span_make(&s, m.device, &cuts);
    more = host_alloc(m.device, 8 * some);
    at = span_at(&s, 0);
    for (k = 0; k < g; k++)
        ones[k] = 1;
    host_must(host_copy(m.device, at, ones, 4 * g), "fill");
    free(ones);
    of[0] = enter(&m, at + g, g + g / 2);
    of[1] = enter(&m, at + 2 * g + g / 2, g / 2);
    add_in_group(&m, at + g, some); /* connects both */
    host_must(symwin_stream_synchronize(m.device, m.stream), "synchronize");
    if (rank == 0) { /* bytes that no call has used */
        leave(&m, of[1]);
        of[1] = enter(&m, at + 2 * g + g / 2, g / 2);
    }
    of[2] = enter(&m, at + g / 2, g / 2);
    of[3] = enter(&m, at + 3 * g, g / 2);
    for (i = 0; i < 4; i++)
        of[4 + i] = enter(&m, more + (size_t)(2 * i) * some, some);
    host_must(symwin_group_begin(), "symwin_group_begin");
    add_in_group(&m, at + 2 * g - some, 2 * some);
    add_in_group(&m, at + g - some, g + some);
    add_in_group(&m, at + 2 * g, g + some);
    for (i = 0; i < 4; i++)
        add_in_group(&m, more + (size_t)(2 * i) * some, some);
    host_must(symwin_group_end(), "symwin_group_end");
    host_must(symwin_stream_synchronize(m.device, m.stream), "synchronize");
    host_must(symwin_comm_check(m.comm), "symwin_comm_check");
    TAP_EQ("before", host_get_u32(m.device, at + 2 * g - some - 4), 2);
    TAP_EQ("the first call", host_get_u32(m.device, at + 2 * g - some), 4);
    TAP_EQ("its end", host_get_u32(m.device, at + 2 * g + some - 4), 4);
    harness_barrier(team);
    for (i = 0; i < 8; i++)
        leave(&m, of[i]);
    meet(&m);
    TAP_EQ("after the group, connections go", allocations(&m), 0);
    close_member(&m);
    host_must(symwin_mem_free(more), "free");
    span_free(&s);
}

/* Captures a buffer across the border of two allocations, without registering it. */
static void run_captured(struct harness_team *team, int rank, void *unused)
{
    static const struct span_cuts cuts[2] = {{{{3, 1}}, 0}, {{{1, 3}}, 0}};
    CUgraph graph = NULL;
    CUgraphExec exec;
    struct member m;
    struct span s;
    char *at;
    int i;

    (void)unused;
    open_member(&m, team, rank, 0, 20000);
    span_make(&s, m.device, &cuts[rank]);
    at = (char *)span_at(&s, 0) + GRANULE - BYTES / 2;
    exec = capture(&m, at, at, &graph);
    TAP_EQ("captured on several allocations: they are mapped", allocations(&m), 1);
    for (i = 0; i < 3; i++) {
        put(&m, at, (float)i);
        harness_barrier(team);
        host_must_cuda(sw_drv.cuGraphLaunch(exec, m.stream), "cuGraphLaunch");
        host_must(symwin_stream_synchronize(m.device, m.stream), "synchronize");
        host_must(symwin_comm_check(m.comm), "symwin_comm_check");
    }
    harness_barrier(team);
    host_must_cuda(sw_drv.cuGraphExecDestroy(exec), "cuGraphExecDestroy");
    host_must_cuda(sw_drv.cuGraphDestroy(graph), "cuGraphDestroy");
    harness_barrier(team);
    close_member(&m);
    span_free(&s);
}

/* On all ranks the allocator maps other memory into the middle of a registered range. */
static void run_remapped(struct harness_team *team, int rank, void *unused)
{
    static const struct span_cuts cuts = {{{3, 1}}, 0};
    const size_t words = (size_t)3 * GRANULE / 4;
    symwin_registration *old, *new;
    struct member m;
    struct span s;
    void *at;

    (void)unused;
    open_member(&m, team, rank, 0, 20000);
    span_make(&s, m.device, &cuts);
    at = span_at(&s, 0);
    old = enter(&m, at, s.bytes);
    TAP_EQ("wrong sums", wrong_sums(&m, at, words, 1), 0);
    tap_ok(connected(&m, at, words), "it connects");
    harness_barrier(team);
    span_replace(&s, 1);
    harness_barrier(team);
    TAP_EQ("wrong sums in other memory", wrong_sums(&m, at, words, 2), 0);
    tap_ok(!connected(&m, at, words), "it is not taken for the old one");
    new = enter(&m, at, s.bytes);
    tap_ok(new != old, "registering it gives a handle of its own");
    TAP_EQ("wrong sums, registered again", wrong_sums(&m, at, words, 3), 0);
    tap_ok(connected(&m, at, words), "it connects");
    leave(&m, old);
    tap_ok(connected(&m, at, words), "the old one's end does not touch it");
    leave(&m, new);
    harness_barrier(team);
    close_member(&m);
    span_free(&s);
}

/* The first call of a group uses a connection on one allocation. That of its second call, on two,
 * takes over. Later calls agree too, so the first connection ends before anything is launched. */
static void run_taken_over(struct harness_team *team, int rank, void *unused)
{
    enum { OTHERS = 8 };
    static const struct span_cuts cuts = {{{2, 1}}, 0};
    void *others[OTHERS];
    struct member m;
    struct span s;
    char *at, *across;
    int i;

    (void)unused;
    open_member(&m, team, rank, 0, 20000);
    span_make(&s, m.device, &cuts);
    at = span_at(&s, 0);
    across = at + GRANULE - BYTES / 2;
    enter(&m, at, GRANULE);
    TAP_EQ("wrong sums", wrong_sums(&m, at, COUNT, 1), 0);
    enter(&m, at + GRANULE, GRANULE);
    put(&m, at, 1);
    put(&m, across, 2);
    for (i = 0; i < OTHERS; i++) {
        host_must(symwin_mem_alloc(m.device, GRANULE, SYMWIN_MEM_OWN, &others[i]), "alloc");
        enter(&m, others[i], GRANULE);
        put(&m, others[i], (float)i);
    }
    harness_barrier(team);
    host_must(symwin_group_begin(), "symwin_group_begin");
    host_must(reduce_in_windows(&m, at, at), "a call of a group");
    host_must(reduce_in_windows(&m, across, across), "a call of a group");
    for (i = 0; i < OTHERS; i++)
        host_must(reduce_in_windows(&m, others[i], others[i]), "a call of a group");
    host_must(symwin_group_end(), "symwin_group_end");
    tap_ok(is_sum(&m, at, 1) && is_sum(&m, across, 2), "taken over in a group: the sums");
    for (i = 0; i < OTHERS; i++)
        tap_ok(is_sum(&m, others[i], (float)i), "taken over in a group: sum %d", i);
    harness_barrier(team);
    close_member(&m);
    for (i = 0; i < OTHERS; i++)
        host_must(symwin_mem_free(others[i]), "free");
    span_free(&s);
}

/* Ranges that pass the end of the memory, and one that does not. */
static void run_ends(struct harness_team *team, int rank, void *unused)
{
    static const struct span_cuts cuts = {{{3, 1}}, 0};
    symwin_registration *registration = NULL;
    struct member m;
    struct span s;

    (void)unused;
    open_member(&m, team, rank, 0, 20000);
    span_make(&s, m.device, &cuts);
    host_expect("past the last allocation",
                symwin_register(m.comm, span_at(&s, 64), s.bytes, &registration), SYMWIN_INVALID,
                "pass the end|by 64");
    span_unmap(&s, 1);
    host_expect("over a hole", symwin_register(m.comm, span_at(&s, 0), s.bytes, &registration),
                SYMWIN_INVALID, "pass the end|by 4194304");
    leave(&m, enter(&m, span_at(&s, 0), GRANULE));
    harness_barrier(team);
    close_member(&m);
    span_free(&s);
}

int main(void)
{
    int i;

    harness_start();
    for (i = 0; i < SPAN_ROW_COUNT; i++)
        run(span_rows[i].name, span_rows[i].nranks, run_row, (void *)(uintptr_t)&span_rows[i]);
    run("ranges that overlap", 2, run_overlapping, NULL);
    run("captured", 2, run_captured, NULL);
    run("remapped", 2, run_remapped, NULL);
    run("taken over", 2, run_taken_over, NULL);
    run("makes way in a group", 2, run_makes_way, NULL);
    run("ends", 2, run_ends, NULL);
    return tap_done();
}
