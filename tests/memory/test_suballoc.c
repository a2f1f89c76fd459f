/* Suballocation: random takes and gives against a plain model, placement that depends on the calls
 * alone, coalescing. */
#include "src/memory/suballoc.h"

#include "harness.h"

enum { UNITS = 4096, MOST = 700, LONGEST = 300 };

struct taken {
    uint32_t block, chunk, begin, units;
};

struct model {
    struct sw_suballoc suballoc;
    unsigned char *used[64]; /* of each chunk, one byte per unit */
    struct taken live[MOST];
    int count;
    int wrong;
};

static void mark(struct model *m, const struct taken *t, unsigned char from, unsigned char to)
{
    uint32_t i;

    for (i = t->begin; i < t->begin + t->units; i++) {
        m->wrong += m->used[t->chunk][i] != from;
        m->used[t->chunk][i] = to;
    }
}

/* Takes units; adds a chunk if none has room. */
static struct taken take(struct sw_suballoc *suballoc, uint32_t units)
{
    struct taken t = {.units = units};

    while (sw_suballoc_take(suballoc, units, &t.block) != SW_SUBALLOC_DONE)
        if (sw_suballoc_add(suballoc, NULL) == SW_SUBALLOC_NONE)
            abort();
    t.chunk = suballoc->blocks[t.block].chunk;
    t.begin = suballoc->blocks[t.block].begin;
    return t;
}

static void model_take(struct model *m, uint32_t units)
{
    struct taken t = take(&m->suballoc, units);

    if (m->used[t.chunk] == NULL)
        m->used[t.chunk] = calloc(UNITS, 1);
    m->wrong += t.begin + units > UNITS || m->suballoc.blocks[t.block].units != units;
    mark(m, &t, 0, 1);
    m->live[m->count++] = t;
}

static int is_empty(const struct model *m, uint32_t chunk)
{
    uint32_t i = 0;

    while (i < UNITS && m->used[chunk][i] == 0)
        i++;
    return i == UNITS;
}

static void model_give(struct model *m, int i)
{
    const struct taken t = m->live[i];
    int whole;

    m->live[i] = m->live[--m->count];
    mark(m, &t, 1, 0);
    whole = sw_suballoc_give(&m->suballoc, t.block);
    m->wrong += whole != is_empty(m, t.chunk);
    if (whole && t.begin % 2 == 0) /* some empty chunks are removed at once */
        sw_suballoc_remove(&m->suballoc, t.chunk);
}

/* Longest run of free units in chunks that are partly in use. */
static uint32_t longest_free(const struct model *m)
{
    uint32_t longest = 0, run, i, c;

    for (c = 0; c < 64 && m->used[c] != NULL; c++) {
        if (is_empty(m, c))
            continue;
        for (i = 0, run = 0; i < UNITS; i++) {
            run = m->used[c][i] ? 0 : run + 1;
            longest = run > longest ? run : longest;
        }
    }
    return longest;
}

static void against_a_model(uint64_t seed)
{
    struct model m = {.wrong = 0};
    uint64_t state = seed;
    uint32_t c;
    int turn;

    sw_suballoc_init(&m.suballoc, UNITS);
    for (turn = 0; turn < 20000; turn++) {
        const uint32_t most = host_random(&state) % 4 == 0 ? LONGEST : 24;
        const int phase = turn / 2000 % 2; /* grows, then shrinks */

        if (m.count < MOST && (m.count == 0 || host_random(&state) % 16 < (phase ? 6 : 10)))
            model_take(&m, 1 + (uint32_t)(host_random(&state) % most));
        else
            model_give(&m, (int)(host_random(&state) % (uint64_t)m.count));
        if (turn % 500 == 0 && m.count > 0) {
            const struct taken *t = &m.live[host_random(&state) % (uint64_t)m.count];
            uint32_t u;

            for (u = 0; u < t->units; u++)
                m.wrong += sw_suballoc_find(&m.suballoc, t->chunk, t->begin + u, LONGEST) !=
                           t->block;
            m.wrong += sw_suballoc_largest(&m.suballoc) != longest_free(&m);
        }
    }
    while (m.count > 0)
        model_give(&m, m.count - 1);
    tap_ok(m.wrong == 0, "20,000 random takes and gives by seed %llu: %d wrong",
           (unsigned long long)seed, m.wrong);
    for (c = 0; c < 64; c++)
        free(m.used[c]);
    sw_suballoc_clear(&m.suballoc);
}

/* The same calls on two suballocators: one keeps spare chunks, the other removes all empty ones. */
static void places_depend_on_calls(void)
{
    struct sw_suballoc a, b;
    struct taken live_a[200], live_b[200];
    uint64_t state = 7;
    int count = 0, equal = 1, turn, i;

    sw_suballoc_init(&a, UNITS);
    sw_suballoc_init(&b, UNITS);
    for (i = 0; i < 9; i++)
        sw_suballoc_add(&a, NULL);
    for (turn = 0; turn < 5000; turn++) {
        if (count < 200 && host_random(&state) % 2 == 0) {
            const uint32_t units = 1 + (uint32_t)(host_random(&state) % LONGEST);

            live_a[count] = take(&a, units);
            live_b[count] = take(&b, units);
            equal = equal && live_a[count].begin == live_b[count].begin;
            count++;
        } else if (count > 0) {
            i = (int)(host_random(&state) % (uint64_t)count);
            sw_suballoc_give(&a, live_a[i].block);
            if (sw_suballoc_give(&b, live_b[i].block))
                sw_suballoc_remove(&b, live_b[i].chunk);
            live_a[i] = live_a[--count];
            live_b[i] = live_b[count];
        }
    }
    tap_ok(equal, "the same calls take the same offsets, whatever empty chunks there are");
    sw_suballoc_clear(&a);
    sw_suballoc_clear(&b);
}

static void joins(void)
{
    struct taken t[UNITS / 16];
    struct sw_suballoc suballoc;
    uint32_t again;
    int i, whole = 0;

    sw_suballoc_init(&suballoc, UNITS);
    for (i = 0; i < UNITS / 16; i++)
        t[i] = take(&suballoc, 16);
    TAP_EQ("blocks of a chunk fill it", suballoc.chunk_count, 1);
    TAP_EQ("and then it has none", sw_suballoc_take(&suballoc, 1, &again), SW_SUBALLOC_FULL);
    TAP_EQ("nor a free one", sw_suballoc_largest(&suballoc), 0);
    for (i = 0; i < UNITS / 16; i += 2)
        sw_suballoc_give(&suballoc, t[i].block);
    TAP_EQ("every other one is free", sw_suballoc_largest(&suballoc), 16);
    TAP_EQ("which is too short for more", sw_suballoc_take(&suballoc, 17, &again),
           SW_SUBALLOC_FULL);
    TAP_EQ("a free one is no allocation", sw_suballoc_find(&suballoc, 0, t[2].begin + 3, 16),
           SW_SUBALLOC_NONE);
    sw_suballoc_take(&suballoc, 16, &again);
    TAP_EQ("what was freed last serves its size first", suballoc.blocks[again].begin,
           t[UNITS / 16 - 2].begin);
    sw_suballoc_give(&suballoc, again);
    for (i = 1; i < UNITS / 16; i += 2)
        whole += sw_suballoc_give(&suballoc, t[i].block);
    TAP_EQ("the last one makes the chunk whole, and none before", whole, 1);
    sw_suballoc_take(&suballoc, UNITS, &again);
    TAP_EQ("which can be taken whole", suballoc.blocks[again].units, UNITS);
    sw_suballoc_clear(&suballoc);
}

/* A freed block is found by the next request of its size, so the suballocator does not grow. */
static void same_sizes(void)
{
    static const uint32_t sizes[] = {1, 31, 33, 100, 200, 201, 207, 255, 257, 1000};
    size_t i, k;

    for (i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct taken t[4];
        struct sw_suballoc suballoc;
        int same = 1;

        sw_suballoc_init(&suballoc, UNITS);
        for (k = 0; k < 4; k++)
            t[k] = take(&suballoc, sizes[i]);
        for (k = 0; k < 100; k++) {
            const struct taken before = t[k % 3];

            sw_suballoc_give(&suballoc, before.block);
            t[k % 3] = take(&suballoc, sizes[i]);
            same = same && t[k % 3].begin == before.begin;
        }
        tap_ok(same, "%u units: freed and taken again, they are where they were", sizes[i]);
        sw_suballoc_clear(&suballoc);
    }
}

int main(void)
{
    uint64_t seed;

    for (seed = 1; seed <= 5; seed++)
        against_a_model(seed);
    places_depend_on_calls();
    joins();
    same_sizes();
    return tap_done();
}
