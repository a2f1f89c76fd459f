/* The table of public handles against a plain list: entries are added and removed in random
 * order. */
#include "harness.h"

enum { MOST = 500, STEPS = 20000 };

struct thing {
    uintptr_t handle; /* 0: not in the table */
    int seen;
};

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Whether the table has exactly the listed things, by iteration and by lookup. */
static int agrees(const struct sw_handle_table *t, struct thing *things)
{
    size_t at = 0, in = 0;
    struct thing *thing;
    int ok = 1, i;

    while ((thing = sw_handle_table_next(t, &at)) != NULL)
        thing->seen++;
    for (i = 0; i < MOST; i++) {
        thing = &things[i];
        in += thing->handle != 0;
        ok &= thing->seen == (thing->handle != 0);
        ok &= thing->handle == 0 || sw_handle_table_find(t, thing->handle) == thing;
        thing->seen = 0;
    }
    return ok && t->count == in;
}

static void model(void)
{
    static struct thing things[MOST];
    static uintptr_t gone[STEPS];
    struct sw_handle_table t = {0};
    uint64_t random = 777;
    size_t ended = 0, i;
    int wrong = 0, step;

    for (step = 0; step < STEPS; step++) {
        /* Phases with many and with few handles in turn. */
        const uint64_t among = step / 1000 % 2 == 0 ? MOST : 20;
        struct thing *thing = &things[next_random(&random) % among];

        if (thing->handle == 0) {
            wrong += !sw_handle_table_reserve(&t);
            thing->handle = sw_handle_table_add(&t, thing);
            wrong += thing->handle == 0;
        } else {
            sw_handle_table_remove(&t, thing->handle);
            sw_handle_table_remove(&t, thing->handle);
            gone[ended++] = thing->handle;
            thing->handle = 0;
        }
        if (step % 97 == 0)
            wrong += !agrees(&t, things);
    }
    for (i = 0; i < ended; i++)
        wrong += sw_handle_table_find(&t, gone[i]) != NULL;
    TAP_EQ("things come and go: wrong", wrong, 0);
    tap_ok(ended > 1000, "%zu handles are gone and name nothing, whatever has their slots", ended);
    tap_ok(t.room == 512, "slots are used again");
    sw_handle_table_release(&t);
    tap_ok(t.count == 0 && sw_handle_table_find(&t, gone[0]) == NULL, "a released table is empty");
}

static void tables(void)
{
    struct sw_handle_table a = {0}, b = {0};
    int thing = 0;
    uintptr_t in_a, in_b;

    tap_ok(sw_handle_table_find(&a, 0) == NULL && sw_handle_table_find(&a, 5) == NULL,
           "an empty table has nothing");
    if (!sw_handle_table_reserve(&a) || !sw_handle_table_reserve(&b))
        exit(1);
    tap_ok(sw_handle_table_find(&a, 0) == NULL && sw_handle_table_find(&a, 1) == NULL,
           "nor has one with room");
    in_a = sw_handle_table_add(&a, &thing);
    in_b = sw_handle_table_add(&b, &thing);
    tap_ok(in_a != in_b && sw_handle_table_find(&a, in_b) == NULL &&
               sw_handle_table_find(&b, in_a) == NULL,
           "a handle of one table is none of another");
    sw_handle_table_remove(&a, in_b);
    tap_ok(sw_handle_table_find(&a, in_a) == &thing, "and takes nothing out there");
    sw_handle_table_release(&a);
    sw_handle_table_release(&b);
}

static void all(void)
{
    struct sw_handle_table t = {0};
    uintptr_t last = 0;
    int thing = 0, count = 0;

    while (sw_handle_table_reserve(&t)) {
        last = sw_handle_table_add(&t, &thing);
        count++;
    }
    TAP_EQ("a table has an end", count, SW_HANDLES_MOST);
    tap_ok(sw_handle_table_find(&t, last) == &thing, "and what is in it stays");
    sw_handle_table_remove(&t, last);
    tap_ok(sw_handle_table_reserve(&t), "until something goes, which makes room");
    sw_handle_table_release(&t);
}

int main(void)
{
    model();
    tables();
    all();
    return tap_done();
}
