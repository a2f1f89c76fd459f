/* The hunt for missing synchronisation: bursts of calls. A random rank, block or warp is delayed,
 * or all are now and then. The ranks queue their calls in a different order each time; grids and
 * sizes change, slots are overwritten between bursts, and graphs are replayed. The hunt ends at a
 * wrong result, a wait that reaches its limit, or two accesses that ThreadSanitizer finds
 * unordered. One number determines a burst, so a burst can be repeated.
 */
#include <stdio.h>
#include <string.h>

#include "bursts.h"

enum { EMULATED_PITCH = 8 << 10, GPU_PITCH = 256 << 10 };

/* What multicast adds. */
#define MC_TYPES                                                                                   \
    (1u << SYMWIN_F64 | 1u << SYMWIN_F32 | 1u << SYMWIN_F16 | 1u << SYMWIN_BF16 |                  \
     1u << SYMWIN_I32 | 1u << SYMWIN_U32 | 1u << SYMWIN_I64 | 1u << SYMWIN_U64)

/* The description of the library's algorithms. */
static const struct own_about of_library = {
    .types = (1u << SW_TYPES) - 1, .ops = OWN_OPS, .multiple = 1, .align = 1, .windows = 1};

/* ---- a burst --------------------------------------------------------------------------------- */

/* Chooses what is delayed: nothing, a rank, a block, a warp, or all of them now and then. */
static struct sw_emu_race draw_race(const struct rank *r, uint64_t *state)
{
    static const unsigned ones[] = {3, 8, 32, 128}, ns[] = {20000, 100000, 400000, 2000000};
    const uint32_t who = random_next(state) % 8;
    struct sw_emu_race race = {.seed = (uint64_t)random_next(state) << 32 | random_next(state),
                               .device = -1,
                               .block = -1,
                               .warp = -1};
    const uint32_t how = random_next(state) % 4;

    if (who == 0)
        return race;
    if (who <= 4)
        race.device = (int)(random_next(state) % (unsigned)r->job->nranks);
    if (who == 2 || who == 3)
        race.block = (int)(random_next(state) % 3);
    if (who == 3 || who == 4)
        race.warp = (int)(random_next(state) % 2);
    race.one_in = ones[how];
    race.most_ns = ns[how]; /* rare delays are long */
    return race;
}

static struct burst draw_burst(const struct rank *r, uint64_t seed)
{
    uint64_t state = seed * 0xd1b54a32d192ed03u + 7;
    struct burst burst = {.seed = seed, .vary = VARY_SIZE | VARY_PLACE | VARY_TYPE};

    (void)random_next(&state);
    burst.calls = 2 + (int)(random_next(&state) % (BURST_CALLS - 1));
    if (random_next(&state) % 3 == 0) {
        burst.calls = 1 + (int)(random_next(&state) % 3);
        burst.replays = 3 + (int)(random_next(&state) % (BURST_REPLAYS - 2));
    }
    if (random_next(&state) % 2 == 0)
        burst.vary |= VARY_GRID;
    burst.shuffled = random_next(&state) % 4 != 0;
    burst.poison = random_next(&state) % 2 == 0;
    burst.wait_ns = random_next(&state) % 3 == 0 ? 0 : 1u << (14 + random_next(&state) % 7);
    burst.race = draw_race(r, &state);
    return burst;
}

static void describe(const struct burst *burst, char text[CASE_TEXT])
{
    char held[96] = "no delays";
    char who[64] = "all", replays[64] = "";

    if (burst->race.one_in > 0) {
        if (burst->race.device >= 0)
            snprintf(who, sizeof who, "rank %d", burst->race.device);
        if (burst->race.block >= 0)
            snprintf(who + strlen(who), sizeof who - strlen(who), " block %d", burst->race.block);
        if (burst->race.warp >= 0)
            snprintf(who + strlen(who), sizeof who - strlen(who), " warp %d", burst->race.warp);
        snprintf(held, sizeof held, "%s delayed before 1 access in %u", who, burst->race.one_in);
    }
    if (burst->replays > 0)
        snprintf(replays, sizeof replays, " in a graph, %d replays", burst->replays);
    snprintf(text, CASE_TEXT, "%d call%s%s, %s", burst->calls, burst->calls > 1 ? "s" : "", replays,
             held);
}

/* ---- the hunt -------------------------------------------------------------------------------- */

struct hunt {
    struct rank *r;
    struct subject subject;
    const char *name;
    struct bursts bursts;
    uint64_t seed;
    int count, found;
    char text[6 * CASE_TEXT];
};

static void name_memory(const struct hunt *h)
{
    const struct rank *r = h->r;
    const size_t bytes = h->bursts.room.bytes;

    tsan_name(r, h->bursts.room.pair.in, bytes, "input");
    tsan_name(r, h->bursts.room.pair.out, bytes, "output");
    if (h->subject.own == NULL)
        return;
    tsan_name(r, h->subject.own->scratch, h->subject.own->scratch_bytes, "scratch");
    if (h->subject.own->room > h->subject.own->scratch_bytes)
        tsan_name(r, (char *)h->subject.own->scratch + h->subject.own->scratch_bytes,
                  h->subject.own->room - h->subject.own->scratch_bytes, "slots");
}

/* The first burst has no delays: a failure there does not depend on timing. */
static struct burst quiet(uint64_t seed)
{
    return (struct burst){.seed = seed, .calls = 1, .vary = VARY_SIZE};
}

static int one_burst(struct hunt *h)
{
    const struct burst burst = h->count == 0 ? quiet(h->seed) : draw_burst(h->r, h->seed);
    char what[CASE_TEXT], came[BURST_TEXT], reported[BURST_TEXT] = "";
    struct burst_wrong wrong;
    uint64_t found;

    describe(&burst, what);
    if (h->r->rank == 0) {
        h->r->job->page->bursts++;
        snprintf(h->r->job->page->burst, sizeof h->r->job->page->burst,
                 "burst %d: %s; to repeat: --race --seed %llu", h->count, what,
                 (unsigned long long)h->seed);
        stage_says("%s: burst %d (--seed %llu): %s", h->name, h->count, (unsigned long long)h->seed,
                   what);
    }
    if (!burst_run(h->r, &h->bursts, &burst, &wrong))
        return 0;
    found = h->r->rank == 0 && tsan_found(reported, sizeof reported) > 0;
    if (!meet(h->r, 1, &found, 1))
        return 0;
    burst_print(&burst, &wrong, came);
    h->found = met(h->r, 0, 0) != 0 || wrong.outcome.wrong != RIGHT || wrong.outcome.gave_up != 0;
    if (!h->found)
        return 1;
    if (met(h->r, 0, 0) != 0)
        snprintf(h->text, sizeof h->text, "%s", reported);
    else
        snprintf(h->text, sizeof h->text, "%s%s", h->count == 0 ? "wrong without delays: " : "",
                 came);
    snprintf(h->text + strlen(h->text), sizeof h->text - strlen(h->text), "\n        %s",
             h->r->job->page->burst);
    return 1;
}

/* Runs bursts until the time is over or something is found. The ranks end together. */
static int hunt(struct hunt *h, int64_t until)
{
    const size_t pitch = h->r->job->emulated ? EMULATED_PITCH : GPU_PITCH;
    int good = bursts_open(h->r, &h->subject, pitch, &h->bursts);
    uint64_t over = 0;

    h->count = h->found = 0;
    if (h->r->rank == 0)
        snprintf(h->r->job->page->line_name, sizeof h->r->job->page->line_name, "%s", h->name);
    if (good)
        name_memory(h);
    while (good && !h->found && over == 0) {
        good = one_burst(h);
        if (h->count++ >
            0) /* the seed that was given is that of the first burst after the quiet one */
            h->seed = (h->seed * 0x9e3779b1u + 12345) % INT32_MAX;
        over = sw_now_ms() > until;
        good = good && meet(h->r, 1, &over, 1);
        if (good)
            over = met(h->r, 0, 0);
    }
    bursts_close(h->r, &h->bursts);
    return good;
}

static void report(struct hunt *h)
{
    struct stage_page *page = h->r->job->page;

    if (h->r->rank != 0)
        return;
    page->failed += h->found;
    stage_line(h->found, h->count, h->text);
}

/* What the library has: each algorithm of each collective, sends and receives, and unequal parts
 * with arrays in device memory too. */
enum { TURNS = PERF_COLLECTIVES * SW_ALGOS };

static symwin_collective turn_collective(int turn)
{
    return (symwin_collective)(turn / SW_ALGOS);
}

static symwin_algo turn_algo(int turn)
{
    return (symwin_algo)(turn % SW_ALGOS);
}

static int is_sendrecv(int turn)
{
    return (int)turn_collective(turn) == PERF_SENDRECV;
}

/* The library's number of the collective, which sends and receives have not. */
static symwin_collective turn_base(int turn)
{
    return (symwin_collective)(collective_of(turn_collective(turn)) - sw_collectives);
}

/* Whether the options select it. On GPUs communicators have no multicast (rank.c); sends and
 * receives have no choice. */
static int is_raced(const struct rank *r, int turn)
{
    const symwin_algo algo = turn_algo(turn);

    if ((r->job->options.collectives & 1u << turn_collective(turn)) == 0)
        return 0;
    if (is_sendrecv(turn))
        return algo == SYMWIN_ALGO_AUTO;
    return (r->job->options.algos & r->comm->algos & 1u << algo) != 0 &&
           sw_algo_is_there(turn_base(turn), algo);
}

/* The algorithm as a kernel that is checked. */
static void describe_algo(int turn, struct own_about *about, char *name, size_t bytes)
{
    const symwin_collective collective = turn_collective(turn);
    const symwin_algo algo = turn_algo(turn);

    *about = of_library;
    about->collective = collective;
    about->out_of_place = !collective_in_place(collective) ||
                          (int)collective == PERF_ALLTOALLV_DEVICE || /* its tables differ */
                          sw_algo_needs(turn_base(turn), algo, SW_NEEDS_TWO_BUFFERS) ||
                          sw_algorithm(turn_base(turn), algo)->one_offset;
    if (!collective_of(collective)->reduces) {
        about->ops = 1u << SYMWIN_MAX; /* its test data has the most values */
    } else if (sw_algo_needs(turn_base(turn), algo, SW_NEEDS_MULTICAST)) {
        about->ops = 1u << SYMWIN_SUM;
        about->types = MC_TYPES;
    }
    if (is_sendrecv(turn))
        snprintf(name, bytes, "%s", collective_name(collective));
    else
        snprintf(name, bytes, "%s%s%s", symwin_algo_name(algo),
                 collective == SYMWIN_ALLREDUCE ? "" : " of ",
                 collective == SYMWIN_ALLREDUCE ? "" : collective_name(collective));
}

int race_all(struct rank *r)
{
    struct stage_page *page = r->job->page;
    const int64_t begun = sw_now_ms(), all = (int64_t)page->seconds * 1000;
    struct hunt h = {.r = r, .seed = page->seed};
    struct own_about about = of_library;
    char name[64];
    int good = 1;
    int count = 0, done = 0;

    if (page->kernel >= 0) {
        h.subject = (struct subject){.own = &r->own[page->kernel],
                                     .about = &r->own[page->kernel].about};
        h.name = h.subject.own->name;
        if (h.subject.about->ranks > 0 && r->job->nranks > h.subject.about->ranks) {
            page->fewer = h.subject.about->ranks;
            return 1;
        }
        stage_about(r, h.subject.own);
        good = hunt(&h, begun + all);
        if (good)
            report(&h);
        return good;
    }
    for (int i = 0; i < TURNS; i++)
        count += is_raced(r, i);
    for (int i = page->from; i < TURNS && good; i++) {
        if (!is_raced(r, i))
            continue;
        if (r->rank == 0)
            page->line = i;
        describe_algo(i, &about, name, sizeof name);
        h.subject = (struct subject){.algo = turn_algo(i), .about = &about};
        h.name = name;
        good = hunt(&h, begun + all * ++done / count);
        if (good)
            report(&h);
    }
    return good;
}
