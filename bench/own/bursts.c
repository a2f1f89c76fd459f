/* Many calls in a row without a wait between them. For each call of a burst, a rank's stream gets
 *
 *     fill the input, spoil the output | wait | the call | copy the output | overwrite both
 *
 * on the same buffers each time. So if a peer still reads after the call has ended, the data is
 * gone; and if a peer writes after that, the copy lacks it. In a graph each call has its own part
 * of the buffers, filled with new data before each replay; the rest is the same. At the end all
 * copies are compared.
 */
#include <stdio.h>

#include "bursts.h"

enum {
    REPORTS = BURST_CALLS * BURST_REPLAYS,
    OVERWRITE = 0xa5,
    TURN_MS = 200,
    AROUND_A_CALL = 512
};

/* ---- the calls of a burst -------------------------------------------------------------------- */

static uint64_t at_most(uint64_t count, uint64_t most)
{
    return count > most ? most : count;
}

/* Small numbers are as likely as large ones. */
static uint64_t random_count(uint64_t *state, uint64_t most)
{
    const uint32_t magnitude = random_next(state) % 16;

    return 1 + random_next(state) % at_most(UINT64_C(1) << magnitude, most);
}

static int random_bit(uint64_t *state, unsigned bits, int length)
{
    int i;

    do
        i = (int)(random_next(state) % (unsigned)length);
    while ((bits & 1u << i) == 0);
    return i;
}

/* Mostly few blocks: they are delayed one by one, and each is a thread on the emulated driver. */
static void random_grid(const struct rank *r, uint64_t *state, const struct subject *subject,
                        struct own_case *c)
{
    const struct own_kernel *k = subject->own;
    const int most = k == NULL ? 4 : k->most_blocks, few = most < 4 ? most : 4;
    const int all = !r->job->emulated && random_next(state) % 4 == 0 ? most : few;
    const int warps = k == NULL ? 0 : k->about.threads / 32;

    c->blocks = 1 + (int)(random_next(state) % (unsigned)all);
    c->threads = warps > 0 ? 32 * (1 + (int)(random_next(state) % (unsigned)warps)) : 0;
    if (k != NULL && (k->about.fixed || warps == 0)) {
        c->blocks = k->about.fixed ? k->about.blocks : c->blocks;
        c->threads = k->about.threads;
    }
}

/* All ranks draw the same cases. */
static void draw(const struct rank *r, struct bursts *bursts, uint64_t *state)
{
    const struct own_about *about = bursts->subject->about;
    const int kinds = layout_kinds(about->collective, r->job->nranks);

    for (int i = 0; i < bursts->burst.calls; i++) {
        struct own_case *c = &bursts->cases[i];
        struct own_case one;
        uint64_t most, step;

        *c = bursts->cases[i > 0 ? i - 1 : 0];
        c->collective = about->collective;
        if (kinds > 1)
            c->which = (int)(random_next(state) % (unsigned)kinds);
        if (i == 0 || (bursts->burst.vary & VARY_TYPE) != 0) {
            c->type = (symwin_type)random_bit(state, about->types, SW_TYPES);
            c->op = (symwin_op)random_bit(state, about->ops, SW_OPS);
        }
        one = *c;
        one.count = 1;
        most = (bursts->pitch - AROUND_A_CALL) / case_bytes(r, &one);
        if (about->bytes > 0)
            most = at_most(most, about->bytes / case_bytes(r, &one));
        most = most / about->multiple > 0 ? most / about->multiple : 1;
        if (i == 0 || (bursts->burst.vary & (VARY_SIZE | VARY_TYPE)) != 0)
            c->count = random_count(state, most) * about->multiple;
        if (i == 0 || (bursts->burst.vary & VARY_GRID) != 0)
            random_grid(r, state, bursts->subject, c);
        step = symwin_type_bytes(c->type) > about->align ? symwin_type_bytes(c->type)
                                                         : about->align;
        c->in_place = (bursts->burst.vary & VARY_PLACE) != 0 && !about->out_of_place &&
                      random_next(state) % 3 == 0 &&
                      own_refusal(about, r->job->nranks, c->type, c->op, c->count, 1, 256) == NULL;
        c->in_shift = (bursts->burst.vary & VARY_PLACE) != 0 && random_next(state) % 2
                          ? (unsigned)(random_next(state) % 16 / step * step)
                          : 0;
        c->out_shift = (bursts->burst.vary & VARY_PLACE) != 0 && random_next(state) % 2
                           ? (unsigned)(random_next(state) % 16 / step * step)
                           : 0;
        if (c->in_place)
            c->in_shift = c->out_shift;
    }
}

/* Whether each replay of a graph has other parts: in place they decide where a buffer is. */
static int has_new_parts(const struct own_case *c)
{
    return collective_of(c->collective)->by_parts && !c->in_place;
}

/* Call `i`. In a graph each has its own part of the buffers. */
static struct own_case placed(const struct bursts *bursts, int i, int replay)
{
    const unsigned at = bursts->burst.replays > 0 ? (unsigned)(bursts->pitch * (size_t)i) : 0;
    struct own_case moved = bursts->cases[i];

    moved.slot = i;
    if (has_new_parts(&moved) && bursts->subject->own != NULL)
        moved.which = (moved.which + replay) % MOST_PARTS;
    moved.in_shift += at;
    moved.out_shift += at;
    return moved;
}

static uint32_t data_seed(const struct burst *burst, int replay, int i)
{
    return (uint32_t)(burst->seed * 2654435761u) ^
           (uint32_t)(replay * BURST_CALLS + i) * 0x9e3779b9u;
}

/* ---- memory ---------------------------------------------------------------------------------- */

int bursts_open(struct rank *r, const struct subject *subject, size_t pitch, struct bursts *bursts)
{
    const struct own_case longest = {.collective = subject->about->collective,
                                     .type = SYMWIN_F64,
                                     .count = subject->about->multiple};
    const size_t least = case_bytes(r, &longest) + AROUND_A_CALL;
    int good;

    pitch = pitch < least ? (least + AROUND_A_CALL - 1) / AROUND_A_CALL * AROUND_A_CALL : pitch;
    *bursts = (struct bursts){.subject = subject, .pitch = pitch};
    good = room_open(r, subject, pitch * BURST_CALLS, &bursts->room) &&
           ok(sw_check(sw_drv.cuMemAlloc(&bursts->logs, pitch * BURST_CALLS),
                       "cuMemAlloc of %zu bytes", pitch * BURST_CALLS)) &&
           ok(sw_check(sw_drv.cuMemAlloc(&bursts->reports, REPORTS * sizeof(struct perf_report)),
                       "cuMemAlloc for reports"));
    return meet(r, good, NULL, 0);
}

void bursts_close(struct rank *r, struct bursts *bursts)
{
    room_close(r, &bursts->room);
    DROP(cuMemFree, bursts->logs);
    DROP(cuMemFree, bursts->reports);
    *bursts = (struct bursts){0};
}

/* ---- turns ----------------------------------------------------------------------------------- */

/* The calls that the ranks of this process have queued. */
static _Atomic uint64_t queued;

/* Waits for this rank's turn to queue call `i`, for at most TURN_MS. */
static void take_turn(const struct rank *r, const struct burst *burst, int i, uint64_t *state)
{
    const int n = r->job->nranks;
    const int64_t begun = sw_now_ms();
    int order[PERF_MOST_RANKS], place = 0;

    for (int k = 0; k < n; k++)
        order[k] = k;
    for (int k = n - 1; k > 0; k--) {
        const int other = (int)(random_next(state) % (unsigned)(k + 1)), kept = order[k];

        order[k] = order[other];
        order[other] = kept;
    }
    while (order[place] != r->rank)
        place++;
    while (burst->shuffled && atomic_load(&queued) < (uint64_t)(i * n + place) &&
           sw_now_ms() - begun < TURN_MS)
        perf_nap(20000);
}

/* ---- the stream ------------------------------------------------------------------------------ */

static int overwrite(struct rank *r, void *at, size_t bytes)
{
    return bytes == 0 ||
           CUDA(cuMemsetD8Async, ((CUdeviceptr)(uintptr_t)at, OVERWRITE, bytes, r->stream));
}

/* Queues the call and then what a caller does next: copy the output, reuse the buffers. */
static int queue_call(struct rank *r, const struct bursts *bursts, const struct own_case *c, int i)
{
    struct spot spot = case_spot(r, &bursts->room, c);

    if (has_new_parts(c))
        spot.in_bytes = spot.out_bytes = spot.whole_bytes = case_bytes(r, c);
    return case_call(r, bursts->subject, &bursts->room, c) &&
           (spot.out_bytes == 0 ||
            ok(sw_check(sw_drv.cuMemcpyAsync(bursts->logs + bursts->pitch * (size_t)i,
                                             (CUdeviceptr)(uintptr_t)spot.out, spot.out_bytes,
                                             r->stream),
                        "cuMemcpyAsync of an output"))) &&
           overwrite(r, spot.whole, spot.whole_bytes) &&
           (c->in_place || overwrite(r, spot.in, spot.in_bytes));
}

static int queue_compare(struct rank *r, const struct bursts *bursts, int replay)
{
    int good = 1;

    for (int i = 0; i < bursts->burst.calls && good; i++) {
        const struct own_case c = placed(bursts, i, replay);
        const struct layout is = case_spot(r, &bursts->room, &c).is;
        const struct perf_data data = layout_data(
            &is, case_data(r, &c, data_seed(&bursts->burst, replay, i)));

        good = compare_queue(r, &data, is.who, is.receives ? is.out : 0,
                             (void *)(uintptr_t)(bursts->logs + bursts->pitch * (size_t)i),
                             bursts->reports +
                                 (size_t)(replay * BURST_CALLS + i) * sizeof(struct perf_report));
    }
    return good;
}

/* Queues a delay of this rank, up to wait_ns; half of the calls have none. */
static int queue_wait(struct rank *r, const struct burst *burst, int i)
{
    uint64_t mine = burst->seed ^ (uint64_t)(r->rank + 1) * 0xd1b54a32d192ed03u ^ (uint64_t)i << 40;
    uint32_t random;

    (void)random_next(&mine);
    random = random_next(&mine);
    return burst->wait_ns == 0 || random % 2 == 0 ||
           launch_delay(r, (uint64_t)(random >> 8) % burst->wait_ns + 1);
}

static int run_stream(struct rank *r, struct bursts *bursts, uint64_t *state)
{
    int good = 1;

    for (int i = 0; i < bursts->burst.calls && good; i++) {
        const struct perf_data data = case_data(r, &bursts->cases[i],
                                                data_seed(&bursts->burst, 0, i));

        take_turn(r, &bursts->burst, i, state);
        good = case_fill(r, &bursts->room, &bursts->cases[i], &data) &&
               queue_wait(r, &bursts->burst, i) && queue_call(r, bursts, &bursts->cases[i], i);
        atomic_fetch_add(&queued, 1);
    }
    return good && queue_compare(r, bursts, 0);
}

static int queue_all(struct rank *r, void *context)
{
    struct bursts *bursts = context;
    int good = 1;

    for (int i = 0; i < bursts->burst.calls && good; i++) {
        const struct own_case c = placed(bursts, i, 0);

        good = queue_wait(r, &bursts->burst, i) && queue_call(r, bursts, &c, i);
    }
    return good;
}

static int run_graph(struct rank *r, struct bursts *bursts, uint64_t *state)
{
    int good = meet(r, captured(r, queue_all, bursts, &bursts->graph), NULL, 0);

    for (int replay = 0; replay < bursts->burst.replays && good; replay++) {
        for (int i = 0; i < bursts->burst.calls && good; i++) {
            const struct own_case c = placed(bursts, i, replay);
            const struct perf_data data = case_data(r, &c, data_seed(&bursts->burst, replay, i));

            good = case_fill(r, &bursts->room, &c, &data);
        }
        take_turn(r, &bursts->burst, replay, state);
        good = good && queue_wait(r, &bursts->burst, BURST_CALLS + replay) &&
               CUDA(cuGraphLaunch, (bursts->graph, r->stream));
        atomic_fetch_add(&queued, 1);
        good = good && queue_compare(r, bursts, replay);
    }
    return good;
}

/* ---- outcome --------------------------------------------------------------------------------- */

/* Finds the first wrong call, of this rank and then of all ranks. */
static int judge(struct rank *r, const struct bursts *bursts, struct burst_wrong *wrong)
{
    const int replays = bursts->burst.replays > 0 ? bursts->burst.replays : 1;
    struct perf_report reports[REPORTS];
    uint64_t first = UINT64_MAX, all = UINT64_MAX;
    int good = ok(symwin_memcpy(r->device, reports, (const void *)(uintptr_t)bursts->reports,
                                sizeof reports, r->stream)) &&
               rank_synchronize(r, "reading the reports");

    for (int n = 0; n < replays * BURST_CALLS && good && first == UINT64_MAX; n++)
        if (n % BURST_CALLS < bursts->burst.calls && reports[n].wrong > 0)
            first = (uint64_t)n;
    good = meet(r, good, &first, 1);
    for (int i = 0; i < r->job->nranks && good; i++)
        all = met(r, i, 0) < all ? met(r, i, 0) : all;
    wrong->outcome = (struct outcome){.gave_up = bursts->subject->own != NULL &&
                                                 own_gave_up(bursts->subject->own)};
    if (all != UINT64_MAX) {
        wrong->call = (int)(all % BURST_CALLS);
        wrong->replay = (int)(all / BURST_CALLS);
        wrong->of = bursts->cases[wrong->call];
        wrong->of.which = placed(bursts, wrong->call, wrong->replay).which;
        wrong->before = bursts->cases[wrong->call > 0 ? wrong->call - 1 : 0];
        if (reports[all].wrong > 0)
            wrong->outcome = (struct outcome){
                WRONG_RESULT,       wrong->outcome.gave_up, 0,
                reports[all].index, reports[all].got,       reports[all].want};
    }
    return good && outcome_meet(r, &wrong->outcome);
}

void burst_print(const struct burst *burst, const struct burst_wrong *wrong, char text[BURST_TEXT])
{
    char of[CASE_TEXT], before[CASE_TEXT] = "", came[CASE_TEXT], replay[32] = "";

    case_print(&wrong->of, of);
    outcome_print(&wrong->outcome, &wrong->of, came);
    if (burst->replays > 0)
        snprintf(replay, sizeof replay, " in replay %d", wrong->replay + 1);
    if (wrong->call > 0 && wrong->outcome.wrong != RIGHT) {
        char call[CASE_TEXT];

        case_print(&wrong->before, call);
        snprintf(before, sizeof before, " (after %.200s)", call);
    }
    if (wrong->outcome.wrong == RIGHT)
        snprintf(text, BURST_TEXT, "%s", came);
    else
        snprintf(text, BURST_TEXT, "call %d of %d%s, %s%s: %s", wrong->call + 1, burst->calls,
                 replay, of, before, came);
}

/* ---- entry points ---------------------------------------------------------------------------- */

/* Sets the delays at memory accesses: once for the emulated driver, by a kernel on each GPU. */
static int set_race(struct rank *r, const struct bursts *bursts, const struct sw_emu_race *race)
{
    struct {
        uint64_t seed;
        uint32_t one_in, most_ns;
        int32_t block, warp;
    } plan = {race->seed, race->device < 0 || race->device == r->rank ? race->one_in : 0,
              race->most_ns, race->block, race->warp};

    if (r->job->emulated) {
        if (r->rank == 0)
            sw_emu_race_set(race);
        return 1;
    }
    return bursts->subject->own == NULL || bursts->subject->own->race == NULL ||
           kernel_launch(r, bursts->subject->own->race, "sw_race_set", 1, 1, 0, &plan);
}

int burst_run(struct rank *r, struct bursts *bursts, const struct burst *burst,
              struct burst_wrong *wrong)
{
    uint64_t state = burst->seed * 0x9e3779b97f4a7c15u + 1;
    int good;

    *wrong = (struct burst_wrong){0};
    bursts->burst = *burst;
    bursts->cases[0] = (struct own_case){0};
    draw(r, bursts, &state);
    good = set_race(r, bursts, &burst->race) &&
           (!burst->poison || bursts->subject->own == NULL ||
            own_poison(r, bursts->subject->own)) &&
           rank_synchronize(r, "preparing a burst");
    if (r->rank == 0)
        atomic_store(&queued, 0);
    good = meet(r, good, NULL, 0) &&
           (burst->replays > 0 ? run_graph(r, bursts, &state) : run_stream(r, bursts, &state)) &&
           rank_synchronize(r, "a burst of calls");
    DROP(cuGraphExecDestroy, bursts->graph);
    bursts->graph = NULL;
    return meet(r, good, NULL, 0) && judge(r, bursts, wrong);
}
