/* The range cache against a plain model. The model keeps for each unit how many ranges cover it,
 * which buffer it belongs to and which use serves it. */
#include "src/window/range_cache.h"

#include "harness.h"

enum { UNIT = 16, REGIONS = 10, REGION_UNITS = 60, UNITS = REGIONS * REGION_UNITS };
enum { MOST = 300, USES = 6, BASE = 4096 };

struct live {
    struct sw_range *range;
    uintptr_t first, end; /* units */
    uint64_t id;
};

struct unit {
    int ranges;
    uint64_t id, born;
    int use; /* -1: none */
};

static struct model {
    struct sw_range_cache cache;
    struct live live[MOST];
    int count;
    struct unit units[UNITS];
    struct sw_use uses[USES];
    uint64_t ids[REGIONS]; /* the region's current buffer */
    uint64_t last_id, births;
    int wrong;
} model;

static uintptr_t address(uintptr_t unit)
{
    return BASE + unit * UNIT;
}

/* Picks some units of a region. A region is one allocation. */
static void choose(uint64_t *random, int region, uintptr_t *first, uintptr_t *end)
{
    const uintptr_t low = (uintptr_t)region * REGION_UNITS;

    *first = low + host_random(random) % REGION_UNITS;
    *end = *first + 1 + host_random(random) % 8;
    *end = *end < low + REGION_UNITS ? *end : low + REGION_UNITS;
}

static void uncover(const struct live *l)
{
    uintptr_t u;

    for (u = l->first; u < l->end; u++)
        if (--model.units[u].ranges == 0)
            model.units[u].use = -1;
}

/* Another buffer now has these units: the old buffer's ranges there become stale. */
static void displace(uintptr_t first, uintptr_t end, uint64_t id)
{
    int i;

    for (i = 0; i < model.count; i++) {
        struct live *l = &model.live[i];

        if (l->id != id || l->first >= end || l->end <= first)
            continue;
        uncover(l);
        l->id = 0; /* stale */
    }
}

static void cover(uintptr_t first, uintptr_t end, uint64_t id)
{
    uintptr_t u;

    for (u = first; u < end; u++)
        if (model.units[u].ranges > 0 && model.units[u].id != id)
            displace(first, end, model.units[u].id);
    model.births++;
    for (u = first; u < end; u++)
        if (model.units[u].ranges++ == 0)
            model.units[u] = (struct unit){1, id, model.births, -1};
}

static void add(uint64_t *random)
{
    const int region = (int)(host_random(random) % REGIONS);
    struct sw_range *range;
    uintptr_t first, end;
    int i = 0;

    choose(random, region, &first, &end);
    range = sw_range_cache_known(&model.cache, address(first), address(end));
    while (i < model.count &&
           (model.live[i].id == 0 || model.live[i].first != first || model.live[i].end != end))
        i++;
    model.wrong += range != (i < model.count ? model.live[i].range : NULL);
    if (model.count == MOST || (range != NULL && range->buffer_id == model.ids[region]))
        return;
    cover(first, end, model.ids[region]);
    range = sw_range_cache_add(&model.cache, address(first), address(end), model.ids[region], 0);
    model.live[model.count++] = (struct live){range, first, end, model.ids[region]};
}

static void drop(uint64_t *random)
{
    struct live *l = &model.live[host_random(random) % (unsigned)model.count];

    model.wrong += (l->id == 0) != l->range->stale;
    if (l->id != 0)
        uncover(l);
    sw_range_cache_remove(&model.cache, l->range);
    free(l->range);
    *l = model.live[--model.count];
}

static void forget(uint64_t *random)
{
    uintptr_t first, end;

    choose(random, (int)(host_random(random) % REGIONS), &first, &end);
    if (model.units[first].ranges == 0)
        return;
    sw_range_cache_forget(&model.cache, address(first), address(end), model.units[first].id);
    displace(first, end, model.units[first].id);
}

/* Use 1 is firm: unless `all` is set, it neither replaces another use nor is replaced. */
static void serve(uint64_t *random)
{
    const int use = (int)(host_random(random) % USES), all = (int)(host_random(random) % 2);
    const uint64_t births = model.births - host_random(random) % (model.births + 1) % 40;
    uintptr_t first, end, u;
    uint64_t id;

    choose(random, (int)(host_random(random) % REGIONS), &first, &end);
    id = model.units[first].id;
    if (!sw_range_cache_reserve(&model.cache, 1))
        abort();
    sw_range_cache_serve(&model.cache, address(first), address(end), id, births, all,
                         &model.uses[use]);
    sw_range_cache_reserve(&model.cache, 0);
    for (u = first; u < end; u++) {
        struct unit *m = &model.units[u];
        const int firm = m->use >= 0 && (m->use == 1 || use == 1);

        if (m->ranges > 0 && m->id == id && m->born <= births && (all || !firm))
            m->use = use;
    }
}

static void look(uint64_t *random)
{
    const uintptr_t first = host_random(random) % UNITS;
    const uintptr_t end = first + 1 + host_random(random) % 8 % (UNITS - first);
    struct sw_use *use = NULL;
    const struct sw_piece *piece = sw_range_cache_find(&model.cache, address(first) + 7,
                                                       address(end), &use);
    const struct unit *f = &model.units[first];
    uintptr_t begin = 0, stop = 0, u;
    int whole = 1, served = f->use;

    for (u = first; u < end; u++) {
        whole = whole && model.units[u].ranges > 0 && model.units[u].id == f->id;
        served = model.units[u].use == served ? served : -1;
    }
    model.wrong += whole != (piece != NULL);
    if (piece == NULL || !whole)
        return;
    model.wrong += piece->buffer_id != f->id || use != (served >= 0 ? &model.uses[served] : NULL);
    sw_range_cache_span(&model.cache, address(first), &begin, &stop);
    for (u = first; u > 0 && model.units[u - 1].ranges > 0 && model.units[u - 1].id == f->id; u--)
        ;
    model.wrong += begin != address(u);
    for (u = first; u < UNITS && model.units[u].ranges > 0 && model.units[u].id == f->id; u++)
        ;
    model.wrong += stop != address(u);
}

/* Pieces are in order, and each use counts the pieces that it serves. */
static void check_pieces(void)
{
    size_t counts[USES] = {0}, i;

    for (i = 0; i < model.cache.piece_count; i++) {
        const struct sw_piece *p = &model.cache.pieces[i];

        model.wrong += p->begin >= p->end || (i > 0 && p[-1].end > p->begin) || p->ranges == 0;
        if (p->use != NULL)
            counts[p->use - model.uses]++;
    }
    for (i = 0; i < USES; i++)
        model.wrong += counts[i] != model.uses[i].pieces;
}

static void against_model(void)
{
    uint64_t random = 1;
    size_t most = 0;
    int turn, i;

    model.uses[1].firm = 1;
    for (i = 0; i < UNITS; i++)
        model.units[i].use = -1;
    for (i = 0; i < REGIONS; i++)
        model.ids[i] = ++model.last_id;
    for (turn = 0; turn < 400000; turn++) {
        const uint64_t what = host_random(&random) % 200;

        if (what == 0) /* freed; another buffer gets the addresses */
            model.ids[host_random(&random) % REGIONS] = ++model.last_id;
        else if (what == 1)
            forget(&random);
        else if (what < 80)
            add(&random);
        else if (what < 150 && model.count > 0)
            drop(&random);
        else if (what < 160)
            serve(&random);
        else
            look(&random);
        if (turn % 100 == 0)
            check_pieces();
        most = model.cache.piece_count > most ? model.cache.piece_count : most;
    }
    TAP_EQ("answers that are not the model's", model.wrong, 0);
    TAP_EQ("ranges", model.cache.range_count, model.count);
    printf("# at most %zu pieces\n", most);
    while (model.count > 0)
        drop(&random);
    TAP_EQ("pieces of no ranges", model.cache.piece_count, 0);
    check_pieces();
    TAP_EQ("counts of no pieces", model.wrong, 0);
    sw_range_cache_clear(&model.cache);
}

/* Ranges that come and go inside a range that stays leave no extra pieces. */
static void no_crumbs(void)
{
    struct sw_range_cache cache = {0};
    uint64_t random = 1;
    int i;

    sw_range_cache_add(&cache, 0x10000, 0x20000, 5, 0);
    for (i = 0; i < 1000; i++) {
        const uintptr_t begin = 0x10000 + host_random(&random) % 0x8000;
        struct sw_range *r = sw_range_cache_add(&cache, begin,
                                                begin + 1 + host_random(&random) % 0x7000, 5, 0);

        sw_range_cache_remove(&cache, r);
        free(r);
    }
    TAP_EQ("pieces of one range", cache.piece_count, 1);
    sw_range_cache_clear(&cache);
}

/* Two allocations can share a page and belong to one buffer, as suballocations of a chunk do. */
static void shared_page(void)
{
    struct sw_range_cache cache = {0};
    struct sw_range *a = sw_range_cache_add(&cache, 8192 + 512, 8192 + 1000, 5, 0);
    struct sw_range *b = sw_range_cache_add(&cache, 8192 + 2048, 8192 + 2100, 5, 0);
    struct sw_use *use;

    tap_ok(sw_range_cache_known(&cache, 8192 + 512, 8192 + 1000) == a &&
               sw_range_cache_known(&cache, 8192 + 2048, 8192 + 2100) == b &&
               sw_range_cache_known(&cache, 8192 + 512, 8192 + 999) == NULL,
           "each is known by its own bytes");
    tap_ok(sw_range_cache_find(&cache, 8192 + 600, 8192 + 1001, &use) == NULL &&
               sw_range_cache_find(&cache, 8192 + 511, 8192 + 600, &use) == NULL &&
               sw_range_cache_find(&cache, 8192 + 512, 8192 + 1000, &use) != NULL,
           "a range ends at its last byte");
    sw_range_cache_remove(&cache, a);
    free(a);
    tap_ok(sw_range_cache_find(&cache, 8192 + 600, 8192 + 700, &use) == NULL &&
               sw_range_cache_find(&cache, 8192 + 2048, 8192 + 2100, &use) != NULL,
           "one goes, and the other stays");
    sw_range_cache_clear(&cache);
}

/* Ranges that begin at one address differ by their ends, also where their hashes collide. */
static void one_begin(void)
{
    enum { RANGES = 200 };
    struct sw_range_cache cache = {0};
    struct sw_range *ranges[RANGES];
    int i, wrong = 0;

    for (i = 0; i < RANGES; i++)
        ranges[i] = sw_range_cache_add(&cache, 8192, 8192 + 1 + 2 * (uintptr_t)i, 5, 0);
    for (i = 0; i < RANGES; i++)
        wrong += sw_range_cache_known(&cache, 8192, 8192 + 1 + 2 * (uintptr_t)i) != ranges[i] ||
                 sw_range_cache_known(&cache, 8192, 8192 + 2 + 2 * (uintptr_t)i) != NULL;
    TAP_EQ("ranges of one begin that are taken for others", wrong, 0);
    sw_range_cache_clear(&cache);
}

int main(void)
{
    against_model();
    one_begin();
    no_crumbs();
    shared_page();
    return tap_done();
}
