/* symwin/reduce.cuh and, on the emulated driver, symwin/multicast.cuh: every type and operation, by
 * all groups, over all ranks and over teams, of all lengths and alignments, against the plain
 * reference. Nothing beside the result changes. Ranks as threads, on windows. */
#include "device_member.h"
#include "reference.h"

enum { BYTES = 1 << 18, MOST = 3000, ROOM = 8 * MOST + 256, GUARD = 64, RANKS = 4 };

#if defined(__SANITIZE_THREAD__)
enum { ROUNDS = 4 };
#else
enum { ROUNDS = 12 };
#endif

#define TYPE_NAME(name, value, text, bytes) #text,
static const char *const type_names[] = {SYMWIN_TYPE_LIST(TYPE_NAME)};
#define OP_NAME(name, value, text) #text,
static const char *const op_names[] = {SYMWIN_OP_LIST(OP_NAME)};

/* One message, the same on all ranks. */
struct message {
    symwin_type type;
    symwin_op op;
    uint32_t team, group, reach;
    int size;
    size_t count, from, to; /* elements; bytes from the two bases */
    unsigned blocks, threads;
    uint64_t seed;
};

struct flat {
    symwin_window_info info;
    const char *kernel; /* "reduce" or "multicast" */
    unsigned ulps;      /* multicast: the order of the sum is not fixed */
};

/* Rank `rank`'s elements. For multicast they are whole numbers, whose sum is the same in any
 * order. */
static void message_fill(const struct message *x, const struct flat *flat, int rank, void *out)
{
    size_t i;

    reference_fill(x->type, x->op, x->seed, rank, 0, x->count, out);
    for (i = 0; i < x->count && flat->ulps > 0; i++) {
        const double whole = (double)((x->seed + 77 * i + 1000 * (unsigned)rank) % 1001) - 500;

        if (x->type == SYMWIN_F64)
            ((double *)out)[i] = whole;
        if (x->type == SYMWIN_F32)
            ((float *)out)[i] = (float)whole;
    }
}

static void message_random(struct message *x, uint64_t *state)
{
    static const unsigned threads[] = {1, 31, 32, 33, 64};
    const size_t bytes = reference_bytes(x->type);

    x->team = host_random(state) % 3;
    x->size = 1 + (int)(host_random(state) % RANKS);
    x->group = host_random(state) % CHANNEL_GROUPS;
    x->count = host_random(state) % (host_random(state) % 4 == 0 ? MOST : 70);
    x->from = bytes * (host_random(state) % 16);
    x->to = host_random(state) % 2 ? x->from : bytes * (host_random(state) % 16);
    x->blocks = x->group == CHANNEL_GRID ? 3 : 1;
    x->threads = threads[host_random(state) % 5];
    x->seed = host_random(state);
}

static int is_member(const struct message *x, int rank, int other)
{
    return x->team == TEAM_ALL || (x->team == TEAM_NEAR ? rank / x->size == other / x->size
                                                        : rank % x->size == other % x->size);
}

/* The result that this rank's team should get. */
static void message_want(const struct member *m, const struct flat *flat, const struct message *x,
                         void *want)
{
    const size_t bytes = x->count * reference_bytes(x->type);
    unsigned char *inputs = malloc(RANKS * (bytes + 1));
    const void *of[RANKS];
    int n = 0, r;

    for (r = 0; r < m->team->nranks; r++)
        if (is_member(x, m->rank, r)) {
            of[n] = inputs + (size_t)n * bytes;
            message_fill(x, flat, r, inputs + (size_t)n * bytes);
            n++;
        }
    reference_allreduce(x->type, x->op, n, of, want, x->count);
    free(inputs);
}

/* Runs it on all ranks. Returns 1 if this rank's result or something beside it is wrong. The first
 * half of the window is the input, the second half the output. */
static int message_goes_wrong(const struct member *m, const struct flat *flat,
                              const struct message *x)
{
    const size_t bytes = x->count * reference_bytes(x->type), half = BYTES / 2;
    unsigned char *input = malloc(ROOM), *got = malloc(ROOM), *want = malloc(ROOM);
    struct reduce_args args = {.base = (uint64_t)(uintptr_t)flat->info.base,
                               .stride = flat->info.stride,
                               .rank = m->rank,
                               .nranks = m->team->nranks,
                               .team = x->team,
                               .size = x->size,
                               .offset = flat->info.offset + x->from,
                               .count = x->count,
                               .op = (uint32_t)x->op,
                               .group = x->group,
                               .reach = x->reach};
    char kernel[64];
    int wrong;

    snprintf(kernel, sizeof kernel, "%s_%s", flat->kernel, type_names[x->type]);
    message_fill(x, flat, m->rank, input);
    memset(want, 0xa5, ROOM);
    if (bytes > 0)
        host_must(host_copy(m->device, m->memory + x->from, input, bytes), "fill");
    host_must(host_copy(m->device, m->memory + half, want, ROOM), "fill");
    message_want(m, flat, x, want + GUARD + x->to);
    args.to = member_at(m->memory, half + GUARD + x->to);
    if (x->reach == REDUCE_TO_ALL)
        args.to = flat->info.offset + half + GUARD + x->to;
    harness_barrier(m->team);
    if (x->reach == REDUCE_TO_SELF || m->rank == (int)(x->seed % (unsigned)m->team->nranks))
        member_launch(m, kernel, x->blocks, x->threads, 0, &args);
    harness_barrier(m->team);
    host_must(host_copy(m->device, got, m->memory + half, ROOM), "read");
    wrong = flat->ulps == 0
                ? reference_compare(x->type, got + GUARD + x->to, want + GUARD + x->to, x->count) >=
                      0
                : reference_compare_ulps(x->type, got + GUARD + x->to, want + GUARD + x->to,
                                         x->count, flat->ulps) >= 0;
    memset(got + GUARD + x->to, 0, bytes);
    memset(want + GUARD + x->to, 0, bytes);
    wrong = wrong || memcmp(got, want, ROOM) != 0;
    if (wrong)
        printf("# rank %d: %s %s of %zu, team %u by %d, group %u of %u threads, from %zu to %zu\n",
               m->rank, kernel, op_names[x->op], x->count, x->team, x->size, x->group, x->threads,
               x->from, x->to);
    free(input);
    free(got);
    free(want);
    return wrong;
}

static void peers(struct harness_team *team, int rank, void *unused)
{
    struct flat flat = {.kernel = "reduce"};
    struct message x = {.reach = REDUCE_TO_SELF};
    uint64_t state = 3;
    struct member m;
    int wrong, i;

    (void)unused;
    member_open(&m, team, rank, BYTES);
    host_must(symwin_window_query(m.comm, m.window, &flat.info), "query");
    for (x.type = 0; x.type <= SYMWIN_U64; x.type++) {
        wrong = 0;
        for (i = 0; i < 5 * ROUNDS; i++) {
            x.op = (symwin_op)(i % 5);
            message_random(&x, &state);
            wrong += message_goes_wrong(&m, &flat, &x);
        }
        tap_ok(wrong == 0, "rank %d: %s from the ranks of a team, wrong %d times", rank,
               type_names[x.type], wrong);
    }
    member_close(&m);
}

/* The result may overwrite this rank's own elements. */
static void in_place(struct harness_team *team, int rank, void *unused)
{
    enum { COUNT = 1001 };
    struct message x = {.type = SYMWIN_BF16, .op = SYMWIN_SUM, .count = COUNT, .seed = 5};
    uint16_t input[COUNT], want[COUNT];
    struct flat flat = {.kernel = "reduce"};
    struct member m;

    (void)unused;
    member_open(&m, team, rank, BYTES);
    host_must(symwin_window_query(m.comm, m.window, &flat.info), "query");
    reference_fill(x.type, x.op, x.seed, rank, 0, COUNT, input);
    host_must(host_copy(m.device, m.memory + 6, input, sizeof input), "fill");
    harness_barrier(team);
    if (rank == 1) {
        struct reduce_args args = {.base = (uint64_t)(uintptr_t)flat.info.base,
                                   .stride = flat.info.stride,
                                   .rank = rank,
                                   .nranks = team->nranks,
                                   .size = 1,
                                   .to = member_at(m.memory, 6),
                                   .offset = flat.info.offset + 6,
                                   .count = COUNT,
                                   .group = CHANNEL_GRID};

        member_launch(&m, "reduce_bf16", 2, 64, 0, &args);
        host_must(host_copy(m.device, input, m.memory + 6, sizeof input), "read");
        message_want(&m, &flat, &x, want);
        tap_ok(reference_compare(x.type, input, want, COUNT) < 0, "in place");
    }
    member_close(&m);
}

/* ---- multicast: only on the emulated driver ---- */

static int multicast_has(symwin_type type, symwin_op op)
{
    if (op == SYMWIN_PROD || type == SYMWIN_F8E4M3 || type == SYMWIN_F8E5M2 || type == SYMWIN_I8 ||
        type == SYMWIN_U8)
        return 0;
    return (type != SYMWIN_F64 && type != SYMWIN_F32) || op == SYMWIN_SUM || op == SYMWIN_AVG;
}

static void multicast_put(const struct member *m, const struct flat *flat)
{
    static unsigned char bytes[RANKS][ROOM];
    unsigned char got[200 + 32], want[200 + 32];
    uint64_t state = 9;
    int i, wrong = 0;

    for (i = 0; i < 40; i++) {
        const size_t from = host_random(&state) % 16, length = host_random(&state) % 150;
        const size_t to = host_random(&state) % 2 ? from : host_random(&state) % 16;
        const int writer = (int)(host_random(&state) % (unsigned)m->team->nranks);
        struct reduce_args args = {.base = (uint64_t)(uintptr_t)flat->info.base,
                                   .stride = flat->info.stride,
                                   .rank = m->rank,
                                   .nranks = m->team->nranks,
                                   .offset = member_at(m->memory, from),
                                   .to = flat->info.offset + BYTES / 2 + 16 + to,
                                   .count = length,
                                   .group = (uint32_t)(i % CHANNEL_GROUPS)};
        size_t k;

        for (k = 0; k < length; k++)
            bytes[m->rank][k] = (unsigned char)host_random(&state); /* the same on all ranks */
        memset(want, i, sizeof want);
        host_must(host_copy(m->device, m->memory + BYTES / 2, want, sizeof want), "fill");
        if (m->rank == writer && length > 0)
            host_must(host_copy(m->device, m->memory + from, bytes[m->rank], length), "fill");
        memcpy(want + 16 + to, bytes[m->rank], length);
        harness_barrier(m->team);
        if (m->rank == writer)
            member_launch(m, "multicast_put", args.group == CHANNEL_GRID ? 2 : 1, 33, 0, &args);
        harness_barrier(m->team);
        host_must(host_copy(m->device, got, m->memory + BYTES / 2, sizeof got), "read");
        wrong += memcmp(got, want, sizeof got) != 0;
    }
    TAP_EQ("puts to all ranks that went wrong", wrong, 0);
}

static void multicast(struct harness_team *team, int rank, void *unused)
{
    struct flat flat = {.kernel = "multicast", .ulps = 1};
    struct message x = {.op = SYMWIN_SUM};
    uint64_t state = 4;
    struct member m;
    int wrong, i;

    (void)unused;
    member_open(&m, team, rank, BYTES);
    host_must(symwin_window_query(m.comm, m.window, &flat.info), "query");
    tap_ok((flat.info.transports & SYMWIN_TRANSPORT_MULTICAST) != 0, "the window has multicast");
    for (x.type = 0; x.type <= SYMWIN_U64; x.type++) {
        wrong = 0;
        for (i = 0; i < 5 * ROUNDS; i++) {
            x.op = (symwin_op)(i % 5);
            if (!multicast_has(x.type, x.op))
                continue;
            message_random(&x, &state);
            x.team = TEAM_ALL;
            x.reach = i % 2 ? REDUCE_TO_ALL : REDUCE_TO_SELF;
            wrong += message_goes_wrong(&m, &flat, &x);
        }
        if (multicast_has(x.type, SYMWIN_SUM))
            tap_ok(wrong == 0, "rank %d: %s through multicast, wrong %d times", rank,
                   type_names[x.type], wrong);
    }
    multicast_put(&m, &flat);
    member_close(&m);
}

int main(void)
{
    struct harness_leaks before;

    channel_start();
    before = harness_leaks_now();
    harness_run(1, peers, NULL);
    harness_run(RANKS, peers, NULL);
    harness_run(3, in_place, NULL);
    if (sw_driver_is_emulated()) {
        harness_run(2, multicast, NULL);
        harness_run(RANKS, multicast, NULL);
    }
    harness_no_leaks("reductions", &before);
    return tap_done();
}
