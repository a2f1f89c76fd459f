/* The window index against a plain list: random windows that nest, overlap and repeat, searched
 * after every change; and readers that search while a writer changes the index.
 */
#include "harness.h"

enum { MOST = 300, STEPS = 4000, SPAN = 4000, READERS = 4 };

struct model {
    struct sw_window_index_entry entries[MOST];
    int count;
};

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Linear search for what the header promises: the best kind of hit, and the size of the smallest
 * window. */
static enum sw_found model_find(const struct model *m, uintptr_t begin, size_t bytes, size_t *size)
{
    enum sw_found found = SW_FOUND_NONE;
    int i;

    *size = 0;
    for (i = 0; i < m->count; i++) {
        const struct sw_window_index_entry *e = &m->entries[i];
        enum sw_found here = SW_FOUND_NONE;

        if (begin >= e->begin && begin < e->end)
            here = begin + bytes <= e->end ? SW_FOUND_ALL : SW_FOUND_PART;
        if (here == SW_FOUND_NONE || here < found)
            continue;
        if (here > found || e->end - e->begin < *size)
            *size = e->end - e->begin;
        found = here;
    }
    return found;
}

static int agree(struct sw_window_index *index, const struct model *m, uintptr_t begin,
                 size_t bytes)
{
    struct sw_window_index_entry got = {0};
    const enum sw_found found = sw_window_index_find(index, begin, bytes, &got);
    size_t size;

    if (found != model_find(m, begin, bytes, &size))
        return 0;
    return found == SW_FOUND_NONE || (got.end - got.begin == size && got.begin <= begin &&
                                      got.end > begin && got.offset == got.window * 3);
}

static void add(struct sw_window_index *index, struct model *m, uint64_t *random, uintptr_t id)
{
    struct sw_window_index_entry *e = &m->entries[m->count++];

    e->begin = 1000 + next_random(random) % SPAN;
    e->end = e->begin + 1 + next_random(random) % (next_random(random) % 4 == 0 ? SPAN : 50);
    e->window = id;
    e->offset = id * 3;
    if (sw_window_index_reserve(index, 1) != SYMWIN_OK)
        exit(1);
    sw_window_index_insert(index, e);
}

static void test_model(void)
{
    struct sw_window_index *index = sw_window_index_create();
    struct model m = {.count = 0};
    uint64_t random = 12345;
    int wrong = 0;
    int step, i;

    for (step = 1; step <= STEPS; step++) {
        if (m.count == 0 || (m.count < MOST && next_random(&random) % 2 == 0)) {
            add(index, &m, &random, (uintptr_t)step);
        } else {
            i = (int)(next_random(&random) % (uint64_t)m.count);
            sw_window_index_remove(index, m.entries[i].window);
            m.entries[i] = m.entries[--m.count];
        }
        for (i = 0; i < 20; i++)
            wrong += !agree(index, &m, 900 + next_random(&random) % (SPAN + 300),
                            next_random(&random) % 60);
        /* Tests a window's ends to the byte. */
        if (m.count > 0) {
            const struct sw_window_index_entry *e =
                &m.entries[next_random(&random) % (uint64_t)m.count];

            wrong += !agree(index, &m, e->begin, e->end - e->begin);
            wrong += !agree(index, &m, e->begin, e->end - e->begin + 1);
            wrong += !agree(index, &m, e->end - 1, 1);
            wrong += !agree(index, &m, e->end, 1);
            wrong += !agree(index, &m, e->begin - 1, 1);
        }
    }
    TAP_EQ("random windows are found as in a plain list", wrong, 0);
    sw_window_index_destroy(index);
}

static void test_empty(void)
{
    struct sw_window_index *index = sw_window_index_create();
    struct sw_window_index_entry got;

    TAP_EQ("an empty registry has nothing", sw_window_index_find(index, 1000, 1, &got),
           SW_FOUND_NONE);
    sw_window_index_remove(index, 77);
    TAP_EQ("removing what is not there changes nothing", sw_window_index_find(index, 1000, 1, &got),
           SW_FOUND_NONE);
    sw_window_index_destroy(index);
    sw_window_index_destroy(NULL);
}

/* ---- readers and a writer ---- */

struct traffic {
    struct sw_window_index *index;
    _Atomic int done;
    _Atomic long wrong;
};

/* Window 1 is always there. All others lie inside it. */
static void *read_all(void *arg)
{
    struct traffic *t = arg;
    uint64_t random = (uint64_t)(uintptr_t)&random | 1;

    while (!t->done) {
        const uintptr_t at = 1000 + next_random(&random) % 1000;
        struct sw_window_index_entry got = {0};

        if (sw_window_index_find(t->index, at, 1, &got) != SW_FOUND_ALL || at < got.begin ||
            at >= got.end || got.offset != got.window * 3)
            t->wrong++;
    }
    return NULL;
}

static void test_readers(void)
{
    struct traffic t = {.index = sw_window_index_create()};
    const struct sw_window_index_entry whole = {
        .begin = 1000, .end = 2000, .window = 1, .offset = 3};
    pthread_t threads[READERS];
    int i;

    if (sw_window_index_reserve(t.index, 1) != SYMWIN_OK)
        exit(1);
    sw_window_index_insert(t.index, &whole);
    for (i = 0; i < READERS; i++)
        pthread_create(&threads[i], NULL, read_all, &t);
    for (i = 2; i < 500; i++) {
        const struct sw_window_index_entry e = {.begin = 1000 + (uintptr_t)i % 900,
                                                .end = 1050 + (uintptr_t)i % 900,
                                                .window = (uintptr_t)i,
                                                .offset = (size_t)i * 3};

        if (sw_window_index_reserve(t.index, 1) != SYMWIN_OK)
            exit(1);
        sw_window_index_insert(t.index, &e);
        if (i > 40)
            sw_window_index_remove(t.index, (uintptr_t)i - 37);
    }
    t.done = 1;
    for (i = 0; i < READERS; i++)
        pthread_join(threads[i], NULL);
    TAP_EQ("readers never see a half-made change", t.wrong, 0);
    sw_window_index_destroy(t.index);
}

int main(void)
{
    setenv("SYMWIN_DRIVER", "emu", 1);
    harness_start();
    test_empty();
    test_model();
    test_readers();
    return tap_done();
}
