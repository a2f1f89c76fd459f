/* The cache of registered ranges against a plain model: page by page, who has registered it, and whose it is. */
#include "../cache.h"

#include "host_cases.h"

enum { PAGE = 4096, REGIONS = 10, REGION_PAGES = 40, PAGES = REGIONS * REGION_PAGES, MOST = 300 };

struct live {
    struct sw_range *range;
    uintptr_t first, end; /* pages */
    uint64_t id;
};

static struct model {
    struct sw_cache cache;
    struct live live[MOST];
    int count;
    uint64_t ids[REGIONS]; /* whose a region is now */
    uint64_t last_id;
    int wrong;
} model;

static uintptr_t address(uintptr_t page, uintptr_t offset)
{
    return (page + 1) * PAGE + offset;
}

/* Registers some bytes in pages [first, end) of a region, which is one allocation. */
static void add(uint64_t *random, int region)
{
    const uintptr_t low = (uintptr_t)region * REGION_PAGES;
    const uintptr_t first = low + host_random(random) % REGION_PAGES;
    const uintptr_t left = low + REGION_PAGES - first;
    const uintptr_t end = first + 1 + host_random(random) % (left < 6 ? left : 6);
    const uintptr_t begin = address(first, host_random(random) % 100);
    const uintptr_t stop = address(end - 1, 200 + host_random(random) % 3000);
    struct sw_range *range = sw_cache_known(&model.cache, begin, stop);
    int i;

    for (i = 0; i < model.count && (model.live[i].first != first || model.live[i].end != end ||
                                    model.live[i].id != model.ids[region]);
         i++)
        ;
    if (range != NULL) { /* of the region's buffer, or of one that nobody has noticed to be gone */
        model.wrong += range->begin != address(first, 0) || range->end != address(end, 0);
        if (range->buffer_id != model.ids[region]) {
            sw_cache_forget(&model.cache, range->span);
            range = NULL;
        }
    }
    model.wrong += range != NULL ? i == model.count || model.live[i].range != range
                                 : i < model.count && model.live[i].range->span != NULL;
    if (range != NULL || model.count == MOST)
        return;
    range = sw_cache_add(&model.cache, begin, stop, address(low, 0), address(low + REGION_PAGES, 0),
                         model.ids[region]);
    model.live[model.count++] = (struct live){range, first, end, model.ids[region]};
}

static void drop(uint64_t *random)
{
    struct live *l = &model.live[host_random(random) % (unsigned)model.count];

    sw_cache_remove(&model.cache, l->range);
    free(l->range);
    *l = model.live[--model.count];
}

/* Whether some range that is not stale has the page, and of which buffer. */
static uint64_t covered_by(uintptr_t page)
{
    int i;

    for (i = 0; i < model.count; i++)
        if (model.live[i].first <= page && page < model.live[i].end &&
            model.live[i].range->span != NULL)
            return model.live[i].id;
    return 0;
}

static void look(uint64_t *random)
{
    const uintptr_t first = host_random(random) % PAGES;
    const uintptr_t end = first + 1 + host_random(random) % 8;
    const struct sw_span *span = sw_cache_find(&model.cache, address(first, 7), address(end, 0));
    const uint64_t id = covered_by(first);
    int whole = id != 0, touched = 0;
    uintptr_t page;

    for (page = first; page < end; page++) {
        whole = whole && covered_by(page) == id;
        touched = touched || covered_by(page) == model.ids[first / REGION_PAGES];
    }
    model.wrong += whole != (span != NULL);
    if (span != NULL)
        model.wrong += span->buffer_id != id || span->begin > address(first, 7) ||
                       span->end < address(end, 0);
    model.wrong += touched != sw_cache_touches(&model.cache, address(first, 7), address(end, 0),
                                               model.ids[first / REGION_PAGES]);
}

static void against_model(void)
{
    uint64_t random = 1;
    int turn, i;

    for (i = 0; i < REGIONS; i++)
        model.ids[i] = ++model.last_id;
    for (turn = 0; turn < 400000; turn++) {
        const uint64_t what = host_random(&random) % 200;

        if (what == 0) /* the memory is freed, and the addresses are another buffer's */
            model.ids[host_random(&random) % REGIONS] = ++model.last_id;
        else if (what < 100)
            add(&random, (int)(host_random(&random) % REGIONS));
        else if (what < 180 && model.count > 0)
            drop(&random);
        else
            look(&random);
    }
    TAP_EQ("answers that are not the model's", model.wrong, 0);
    TAP_EQ("ranges", model.cache.range_count, model.count);
    while (model.count > 0)
        drop(&random);
    TAP_EQ("spans of no ranges", model.cache.span_count, 0);
    sw_cache_clear(&model.cache);
}

/* Ranges end where their allocation does, though it shares its pages. */
static void shared_page(void)
{
    struct sw_cache cache = {0};
    struct sw_range *a = sw_cache_add(&cache, 8192 + 512, 8192 + 1000, 8192 + 512, 8192 + 1024, 5);
    struct sw_range *b = sw_cache_add(&cache, 8192 + 2048, 8192 + 2100, 8192 + 2048, 8192 + 2560,
                                      5);

    tap_ok(a->begin == 8192 + 512 && a->end == 8192 + 1024, "a range within its allocation");
    tap_ok(b->begin == 8192 + 2048 && b->end == 8192 + 2560, "another one in the same page");
    tap_ok(sw_cache_known(&cache, 8192 + 600, 8192 + 700) == a &&
               sw_cache_known(&cache, 8192 + 2048, 8192 + 2560) == b &&
               sw_cache_known(&cache, 8192 + 1000, 8192 + 1100) == NULL,
           "each is known by its own bytes");
    tap_ok(sw_cache_find(&cache, 8192 + 600, 8192 + 2100) == NULL, "they are two spans");
    sw_cache_remove(&cache, a);
    free(a);
    tap_ok(sw_cache_known(&cache, 8192 + 600, 8192 + 700) == NULL &&
               sw_cache_known(&cache, 8192 + 2048, 8192 + 2560) == b,
           "one goes, and the other stays");
    sw_cache_clear(&cache);
}

int main(void)
{
    against_model();
    shared_page();
    return tap_done();
}
