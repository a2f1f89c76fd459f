/* Checks your own kernel: a line for each property. A failure is described by the first case that
 * fails; cases come in the order of their size.
 *
 * Each line is independent: what a failure leaves behind is cleared. If a kernel crashes or does
 * not end, the parent of this process runs the next line in a new one.
 */
#include <stdio.h>

#include "bursts.h"

enum {
    EMULATED_ROOM = 512 << 10,
    GPU_ROOM = 96 << 20,
    EMULATED_PITCH = 16 << 10,
    GPU_PITCH = 1 << 20
};
enum { LATE_MS = 300, LATE_CALLS = 24, LATE_COUNT = 16 };

/* One rank's check of a kernel. */
struct check {
    struct rank *r;
    struct subject subject;
    struct room room;
    int cases, failed;
    char text[4 * CASE_TEXT]; /* describes the failure */
};

/* ---- cases ----------------------------------------------------------------------------------- */

/* Whether the case fits into the buffers and the kernel supports it. */
static int is_served(const struct check *c, const struct own_case *of)
{
    return case_bytes(c->r, of) + 256 <= c->room.bytes &&
           own_refusal(c->subject.about, c->r->job->nranks, of->type, of->op, of->count,
                       of->in_place, 256) == NULL;
}

/* Makes one call, if the kernel supports it, and describes the first wrong one. Each has another
 * root, or is another one of sends and receives or of unequal parts. */
static int try(struct check *c, struct own_case of)
{
    char call[CASE_TEXT], came[CASE_TEXT];
    struct outcome outcome;
    int good;

    of.collective = c->subject.about->collective;
    of.which = c->cases % layout_kinds(of.collective, c->r->job->nranks);
    if (c->failed || !is_served(c, &of))
        return 1;
    if (of.blocks == 0)
        own_grid(c->r, c->subject.own, case_bytes(c->r, &of), &of.blocks, &of.threads);
    c->cases++;
    good = case_try(c->r, &c->subject, &c->room, &of, (uint32_t)c->cases, &outcome);
    if (!good || (outcome.wrong == RIGHT && outcome.gave_up == 0))
        return good;
    c->failed = 1;
    case_print(&of, call);
    outcome_print(&outcome, &of, came);
    snprintf(c->text, sizeof c->text, "%s: %s", call, came);
    return 1;
}

static int first_bit(unsigned bits)
{
    int i = 0;

    while ((bits & 1u << i) == 0)
        i++;
    return i;
}

static struct own_case simplest(const struct check *c)
{
    return (struct own_case){.collective = c->subject.about->collective,
                             .type = (symwin_type)first_bit(c->subject.about->types),
                             .op = (symwin_op)first_bit(c->subject.about->ops)};
}

/* ---- lines: single calls --------------------------------------------------------------------- */

/* Small numbers, and numbers around powers of two and ten. */
static int counts(struct check *c)
{
    static const uint64_t more[] = {
        63,    64,     65,     127,     128,     129,     255,     256,      257,     511,  512,
        513,   1023,   1024,   1025,    2047,    2048,    2049,    4095,     4096,    4097, 10007,
        50021, 131071, 262145, 1000003, 1048577, 4194303, 4194305, 16777215, 16777217};
    struct own_case of = simplest(c);
    int good = 1;

    for (uint64_t n = 1; n <= 33 && good; n++) {
        of.count = n * c->subject.about->multiple;
        good = try(c, of);
    }
    for (size_t i = 0; i < sizeof more / sizeof more[0] && good; i++) {
        of.count = more[i] * c->subject.about->multiple;
        good = try(c, of);
    }
    return good;
}

/* Barriers to which each rank in turn comes late. */
static int late_ranks(struct check *c)
{
    struct own_case of = simplest(c);
    int good = 1;

    of.count = LATE_COUNT;
    for (int i = 0; i < LATE_CALLS && good; i++)
        good = try(c, of);
    return good;
}

static int types(struct check *c)
{
    static const uint64_t some[] = {1, 5, 64, 1000, 4099};
    int good = 1;

    for (size_t i = 0; i < sizeof some / sizeof some[0]; i++)
        for (int type = 0; type < SW_TYPES; type++)
            for (int op = 0; op < SW_OPS && good; op++) {
                const struct own_case of = {.type = (symwin_type)type,
                                            .op = (symwin_op)op,
                                            .count = some[i] * c->subject.about->multiple};

                if ((c->subject.about->ops & 1u << op) != 0)
                    good = try(c, of);
            }
    return good;
}

/* Offsets of input and output from a multiple of 16 bytes that an element permits, for one type of
 * each size. */
static int shifts(struct check *c, int in_place)
{
    static const uint64_t some[] = {1, 3, 17, 100, 1001};
    const struct own_about *about = c->subject.about;
    int good = 1;
    unsigned sizes = 0;

    for (int type = 0; type < SW_TYPES; type++) {
        const unsigned size = (unsigned)symwin_type_bytes((symwin_type)type);
        const unsigned step = size > about->align ? size : (unsigned)about->align;
        const unsigned coarse = step < 4 ? 3 * step : step; /* otherwise there are hundreds */

        if ((about->types & 1u << type) == 0 || (sizes & size) != 0)
            continue;
        sizes |= size;
        for (size_t i = 0; i < sizeof some / sizeof some[0]; i++)
            for (unsigned in = 0; in < 16; in += coarse)
                for (unsigned out = in_place ? in : 0; out < (in_place ? in + 1 : 16) && good;
                     out += coarse) {
                    struct own_case of = simplest(c);

                    of.type = (symwin_type)type;
                    of.count = some[i] * about->multiple;
                    of.in_shift = in;
                    of.out_shift = out;
                    of.in_place = in_place;
                    good = try(c, of);
                }
    }
    return good;
}

static int alignment(struct check *c)
{
    return shifts(c, 0);
}

static int in_place(struct check *c)
{
    static const uint64_t some[] = {4096, 50021};
    struct own_case of = simplest(c);
    int good = shifts(c, 1);

    of.in_place = 1;
    for (size_t i = 0; i < sizeof some / sizeof some[0] && good; i++) {
        of.count = some[i] * c->subject.about->multiple;
        good = try(c, of);
    }
    return good;
}

static int grids(struct check *c)
{
    static const uint64_t some[] = {1, 100, 5003};
    const struct own_kernel *k = c->subject.own;
    const int blocks[] = {1, 2, 3, 5, k->most_blocks}, threads[] = {32, 64, 96, k->about.threads};
    int good = 1;

    for (size_t i = 0; i < sizeof some / sizeof some[0] && !k->about.fixed; i++)
        for (size_t b = 0; b < sizeof blocks / sizeof blocks[0]; b++)
            for (size_t t = 0; t < sizeof threads / sizeof threads[0] && good; t++) {
                struct own_case of = simplest(c);

                if (blocks[b] > k->most_blocks || threads[t] > k->about.threads)
                    continue;
                of.count = some[i] * c->subject.about->multiple;
                of.blocks = blocks[b];
                of.threads = threads[t];
                good = try(c, of);
            }
    return good;
}

/* ---- lines: many calls ----------------------------------------------------------------------- */

static int bursts(struct check *c, int count, struct burst burst)
{
    const size_t pitch = c->r->job->emulated ? EMULATED_PITCH : GPU_PITCH;
    struct bursts made;
    int good = bursts_open(c->r, &c->subject, pitch, &made);

    for (int i = 0; i < count && good && !c->failed; i++) {
        struct burst_wrong wrong;

        if (tsan_is_there() && i % 4 != 0)
            continue;
        burst.seed = 1 + (uint64_t)i;
        burst.poison = i % 8 == 4;
        c->cases += burst.calls * (burst.replays > 0 ? burst.replays : 1);
        if (c->r->rank == 0)
            stage_says("calls in a row, %d", i + 1);
        good = burst_run(c->r, &made, &burst, &wrong);
        if (!good || (wrong.outcome.wrong == RIGHT && wrong.outcome.gave_up == 0))
            continue;
        c->failed = 1;
        burst_print(&burst, &wrong, c->text);
    }
    bursts_close(c->r, &made);
    return good;
}

static int changing_sizes(struct check *c)
{
    return bursts(c, 24, (struct burst){.calls = 5, .vary = VARY_SIZE | VARY_PLACE | VARY_TYPE});
}

static int changing_grids(struct check *c)
{
    return c->subject.about->fixed ||
           bursts(c, 24, (struct burst){.calls = 6, .vary = VARY_SIZE | VARY_GRID});
}

static int replays(struct check *c)
{
    return bursts(
        c, 12,
        (struct burst){.calls = 3, .replays = 6, .vary = VARY_SIZE | VARY_GRID | VARY_PLACE});
}

/* Rank 0 makes no call. The other ranks must leave at their limit. */
static int late(struct check *c)
{
    struct own_case of = simplest(c);
    int good;

    if (c->subject.about->no_limit || c->r->job->nranks < 2)
        return 1;
    of.count = 100 * c->subject.about->multiple;
    if (!is_served(c, &of))
        of.count = c->subject.about->multiple;
    own_grid(c->r, c->subject.own, case_bytes(c->r, &of), &of.blocks, &of.threads);
    if (c->r->rank == 0)
        stage_says("rank 0 makes no call; the other ranks must leave after %d ms (args.limit)",
                   LATE_MS);
    c->subject.own->limit_ns = LATE_MS * UINT64_C(1000000);
    c->cases++;
    good = (c->r->rank == 0 || case_call(c->r, &c->subject, &c->room, &of)) &&
           rank_synchronize(c->r, "a call without rank 0");
    c->subject.own->limit_ns = (uint64_t)c->r->comm->kernel_timeout_ms * 1000000u;
    good = meet(c->r, good, NULL, 0);
    if (!good && c->r->rank == 0)
        stage_died("the other ranks did not leave (SYMWIN_KERNEL_ABOUT permits that with the word "
                   "no-limit)");
    (void)own_gave_up(c->subject.own);
    return good && own_reset(c->r, c->subject.own);
}

/* ---- entry points ---------------------------------------------------------------------------- */

/* Of what: a barrier has no data. */
enum { OF_DATA = 1, OF_BARRIERS = 2, OF_ALL = 3 };

static const struct {
    const char *name;
    int (*run)(struct check *c);
    int of;
} lines[] = {
    {"element counts", counts, OF_DATA},         {"types and operations", types, OF_DATA},
    {"alignment", alignment, OF_DATA},           {"in place", in_place, OF_DATA},
    {"late ranks", late_ranks, OF_BARRIERS},     {"grids", grids, OF_ALL},
    {"changing sizes", changing_sizes, OF_DATA}, {"changing grids", changing_grids, OF_ALL},
    {"graph replays", replays, OF_ALL},          {"a missing rank", late, OF_ALL},
};

enum { LINES = sizeof lines / sizeof lines[0] };

static int check_line(struct check *c, int i)
{
    struct stage_page *page = c->r->job->page;
    const int no_data = collective_of(c->subject.about->collective)->no_data;

    if ((lines[i].of & (no_data ? OF_BARRIERS : OF_DATA)) == 0)
        return 1;
    c->cases = c->failed = 0;
    if (c->r->rank == 0) {
        page->line = i;
        snprintf(page->line_name, sizeof page->line_name, "%s", lines[i].name);
    }
    if (!lines[i].run(c))
        return 0;
    if (c->r->rank == 0) {
        page->failed += c->failed;
        stage_line(c->failed, c->cases, c->text);
    }
    return !c->failed || own_reset(c->r, c->subject.own);
}

int check_all(struct rank *r)
{
    struct stage_page *page = r->job->page;
    struct own_kernel *k = &r->own[page->kernel];
    struct check c = {.r = r, .subject = {.own = k, .about = &k->about}};
    size_t bytes = r->job->emulated ? EMULATED_ROOM : GPU_ROOM;
    int good;

    if (tsan_is_there()) /* which is slow */
        bytes /= 16;
    if (k->about.bytes > 0 && k->about.bytes + 256 < bytes)
        bytes = (size_t)k->about.bytes + 256;
    if (k->about.ranks > 0 && r->job->nranks > k->about.ranks) {
        if (r->rank == 0)
            page->line = LINES;
        return 1;
    }
    stage_about(r, k);
    good = room_open(r, &c.subject, bytes, &c.room);
    for (int i = page->from; i < LINES && good; i++)
        good = check_line(&c, i);
    if (good && r->rank == 0)
        page->line = LINES;
    room_close(r, &c.room);
    return good;
}
