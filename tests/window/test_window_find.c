/* Which window an address belongs to: nested, overlapping and adjacent windows, against a linear
 * search, and while windows come and go. */
#include <stdatomic.h>

#include "windows.h"

#define SENTINEL ((symwin_window *)(uintptr_t)0x5e5e5e5e)

/* ---- a table ---- */

enum { WHOLE, NESTED, ACROSS, NEXT, WINDOWS, NONE = WINDOWS };

static const struct {
    size_t offset, bytes;
} places[WINDOWS] = {
    [WHOLE] = {0, 2 * GRANULE},
    [NESTED] = {1000, 1000},
    [ACROSS] = {1500, 1500}, /* overlaps NESTED's second half */
    [NEXT] = {3000, 1000},   /* begins where ACROSS ends */
};

static const struct {
    size_t offset, bytes;
    int want, without_nested; /* expected window, before and after NESTED is deregistered */
} lookups[] = {
    {0, 1, WHOLE, WHOLE},
    {999, 1, WHOLE, WHOLE},
    {999, 2, WHOLE, WHOLE},
    {1000, 1, NESTED, WHOLE},
    {1000, 1000, NESTED, WHOLE},
    {1000, 1001, WHOLE, WHOLE},
    {1500, 500, NESTED, ACROSS}, /* the smallest of three */
    {1999, 1, NESTED, ACROSS},
    {1999, 2, ACROSS, ACROSS},
    {2000, 1, ACROSS, ACROSS},
    {1500, 1500, ACROSS, ACROSS},
    {2999, 1, ACROSS, ACROSS},
    {2999, 2, WHOLE, WHOLE},
    {3000, 1, NEXT, NEXT},
    {3000, 1000, NEXT, NEXT},
    {3999, 2, WHOLE, WHOLE},
    {4000, 1, WHOLE, WHOLE},
    {2 * GRANULE - 1, 1, WHOLE, WHOLE},
    {0, 2 * GRANULE, WHOLE, WHOLE},
    {0, 2 * GRANULE + 1, NONE, NONE},
    {2 * GRANULE - 1, 2, NONE, NONE},
    {2 * GRANULE, 1, NONE, NONE},
    {1000, SIZE_MAX, NONE, NONE},
    {5, SIZE_MAX - 4, NONE, NONE},
    {(size_t)0 - 1, 1, NONE, NONE},
    {(size_t)0 - 1, 2, NONE, NONE},
};

static void look_up(struct member *m, symwin_window *const windows[WINDOWS], int nested)
{
    size_t i;

    for (i = 0; i < sizeof lookups / sizeof lookups[0]; i++) {
        const int want = nested ? lookups[i].want : lookups[i].without_nested;
        void *const ptr = (void *)((uintptr_t)m->memory + lookups[i].offset);
        symwin_window *found = SENTINEL;
        const symwin_status status = symwin_window_find(m->comm, ptr, lookups[i].bytes, &found);

        if (want == NONE)
            tap_ok(status == SYMWIN_INVALID && found == SENTINEL &&
                       host_error_has("symwin_window_find|no window of rank"),
                   "%zu bytes at %zd: in no window", lookups[i].bytes, (ssize_t)lookups[i].offset);
        else
            tap_ok(status == SYMWIN_OK && found == windows[want], "%zu bytes at %zu: in window %d",
                   lookups[i].bytes, lookups[i].offset, want);
    }
}

static void run_table(struct harness_team *team, int rank, void *arg)
{
    symwin_window *windows[WINDOWS];
    symwin_window *found = SENTINEL;
    struct member m;
    int i;

    (void)arg;
    member_open(&m, team, rank, 2 * GRANULE);
    host_expect("before the first window", symwin_window_find(m.comm, m.memory, 1, &found),
                SYMWIN_INVALID, "symwin_window_find");
    for (i = 0; i < WINDOWS; i++)
        windows[i] = member_window(&m, places[i].offset, places[i].bytes);
    look_up(&m, windows, 1);
    member_deregister(&m, windows[NESTED]);
    look_up(&m, windows, 0);
    host_expect("NULL", symwin_window_find(m.comm, NULL, 1, &found), SYMWIN_INVALID,
                "symwin_window_find");
    for (i = 0; i < WINDOWS; i++)
        if (i != NESTED)
            member_deregister(&m, windows[i]);
    host_expect("after the last window", symwin_window_find(m.comm, m.memory, 1, &found),
                SYMWIN_INVALID, "symwin_window_find");
    tap_ok(found == SENTINEL, "the out-pointer is untouched");
    member_close(&m);
}

/* ---- against a linear search ---- */

enum { MANY = 300, SPACE = 20000, LOOKUPS = 4000 };

struct interval {
    size_t begin, end;
    symwin_window *window; /* NULL: deregistered */
};

/* Length of the smallest interval that contains the whole range; 0: there is none. */
static size_t smallest(const struct interval *all, size_t begin, size_t end)
{
    size_t best = 0;
    int i;

    for (i = 0; i < MANY; i++)
        if (all[i].window != NULL && all[i].begin <= begin && end <= all[i].end &&
            (best == 0 || all[i].end - all[i].begin < best))
            best = all[i].end - all[i].begin;
    return best;
}

static int disagreements(struct member *m, const struct interval *all, uint64_t *state)
{
    int wrong = 0;
    int i;

    for (i = 0; i < LOOKUPS; i++) {
        const size_t begin = host_random(state) % SPACE;
        const size_t bytes = 1 + host_random(state) % (host_random(state) % 2 == 0 ? 10 : SPACE);
        const size_t want = smallest(all, begin, begin + bytes);
        symwin_window *found = NULL;
        symwin_window_info info;

        if (symwin_window_find(m->comm, host_at(m->memory, begin), bytes, &found) != SYMWIN_OK) {
            wrong += want != 0;
            continue;
        }
        info = member_query(m, found);
        wrong += info.bytes != want ||
                 (unsigned char *)info.ptr > (unsigned char *)m->memory + begin ||
                 (unsigned char *)info.ptr + info.bytes <
                     (unsigned char *)m->memory + begin + bytes;
    }
    return wrong;
}

static void run_random(struct harness_team *team, int rank, void *arg)
{
    struct interval all[MANY];
    uint64_t state = 11;
    struct member m;
    int i;

    (void)arg;
    member_open(&m, team, rank, GRANULE);
    for (i = 0; i < MANY; i++) {
        all[i].begin = host_random(&state) % (SPACE - 1);
        all[i].end = all[i].begin + 1 +
                     host_random(&state) % (i % 3 == 0 ? SPACE - all[i].begin : 50);
        all[i].window = member_window(&m, all[i].begin, all[i].end - all[i].begin);
    }
    TAP_EQ("300 windows, as a plain search finds them", disagreements(&m, all, &state), 0);
    for (i = 0; i < MANY; i++)
        if (host_random(&state) % 2 == 0) {
            member_deregister(&m, all[i].window);
            all[i].window = NULL;
        }
    TAP_EQ("and half of them", disagreements(&m, all, &state), 0);
    for (i = 0; i < MANY; i++)
        if (all[i].window != NULL)
            member_deregister(&m, all[i].window);
    member_close(&m);
}

/* ---- while windows come and go ---- */

enum { READERS = 4, COMING = 1000, STAYING = 16, STEP = 64 };

struct hunt {
    struct member *m;
    symwin_window *staying[STAYING]; /* every other STEP bytes */
    atomic_int over;
};

struct reader {
    struct hunt *hunt;
    uint64_t state;
    int lookups, found, wrong;
};

static void *reader_main(void *arg)
{
    struct reader *r = arg;
    struct member *m = r->hunt->m;

    do {
        const size_t slot = host_random(&r->state) % (STAYING * 2);
        void *const ptr = host_at(m->memory, slot * STEP + host_random(&r->state) % 32);
        symwin_window *window = NULL;
        symwin_window_info info;
        const symwin_status status = symwin_window_find(m->comm, ptr, 32, &window);

        r->lookups++;
        if (slot % 2 == 0) {
            r->wrong += status != SYMWIN_OK || window != r->hunt->staying[slot / 2];
        } else if (status == SYMWIN_OK) {
            /* It may have been deregistered meanwhile. */
            r->found++;
            if (symwin_window_query(m->comm, window, &info) == SYMWIN_OK)
                r->wrong += (unsigned char *)info.ptr > (unsigned char *)ptr ||
                            (unsigned char *)info.ptr + info.bytes < (unsigned char *)ptr + 32;
        } else {
            r->wrong += status != SYMWIN_INVALID;
        }
    } while (!atomic_load(&r->hunt->over));
    return NULL;
}

/* All COMING windows exist at the same time, then they are deregistered in another order. */
static void come_and_go(struct member *m)
{
    static symwin_window *windows[COMING];
    uint64_t state = 3;
    int i;

    for (i = 0; i < COMING; i++) {
        const size_t slot = 1 + 2 * (host_random(&state) % STAYING);

        windows[i] = member_window(m, slot * STEP, STEP);
        if (i % 3 == 0) {
            member_deregister(m, windows[i]);
            windows[i] = member_window(m, slot * STEP, STEP);
        }
    }
    for (i = COMING; i > 0; i--) {
        const size_t at = host_random(&state) % (size_t)i;

        member_deregister(m, windows[at]);
        windows[at] = windows[i - 1];
    }
}

static void run_readers(struct harness_team *team, int rank, void *arg)
{
    struct reader readers[READERS];
    pthread_t threads[READERS];
    struct hunt hunt = {0};
    symwin_comm_info info;
    struct member m;
    int i;

    (void)arg;
    member_open(&m, team, rank, GRANULE);
    hunt.m = &m;
    for (i = 0; i < STAYING; i++)
        hunt.staying[i] = member_window(&m, (size_t)i * 2 * STEP, STEP);
    for (i = 0; i < READERS; i++) {
        readers[i] = (struct reader){.hunt = &hunt, .state = (uint64_t)i};
        pthread_create(&threads[i], NULL, reader_main, &readers[i]);
    }
    come_and_go(&m);
    atomic_store(&hunt.over, 1);
    for (i = 0; i < READERS; i++) {
        pthread_join(threads[i], NULL);
        tap_ok(readers[i].lookups > 0 && readers[i].wrong == 0,
               "reader %d: %d lookups, %d of windows that come and go, %d wrong", i,
               readers[i].lookups, readers[i].found, readers[i].wrong);
    }
    host_must(symwin_comm_query(m.comm, &info), "symwin_comm_query");
    TAP_EQ("the windows that stay", info.windows, STAYING);
    symwin_comm_destroy(m.comm);
    host_must(symwin_mem_free(m.memory), "symwin_mem_free");
}

/* ---- an address that is used again ---- */

static void run_reuse(struct harness_team *team, int rank, void *arg)
{
    symwin_window *old = NULL, *new = NULL;
    struct host_raw first, second;
    struct member m;
    uint64_t old_id;

    (void)arg;
    member_open(&m, team, rank, GRANULE);
    first = host_raw_alloc(m.device, GRANULE, SYMWIN_HANDLE_POSIX_FD);
    host_must(symwin_window_register(m.comm, (void *)(uintptr_t)first.ptr, 4096, 0, &old),
              "symwin_window_register");
    host_put_u32(m.device, (void *)(uintptr_t)first.ptr, 1);
    old_id = member_query(&m, old).buffer_id;
    second = first;
    host_raw_free(&first);
    first.ptr = second.ptr;
    second = host_raw_alloc(m.device, GRANULE, SYMWIN_HANDLE_POSIX_FD);
    tap_ok(second.ptr == first.ptr, "another allocation has the address of the one that was freed");
    host_must(symwin_window_register(m.comm, (void *)(uintptr_t)second.ptr, 4096, 0, &new),
              "symwin_window_register");
    tap_ok(member_query(&m, new).buffer_id != old_id, "it is known as another one");
    TAP_EQ("and mapped for itself", member_allocations(&m), 2);
    host_put_u32(m.device, (void *)(uintptr_t)second.ptr, 2);
    TAP_EQ("the new window shows the new memory",
           host_get_u32(m.device, member_peer(&m, new, 0, 0)), 2);
    TAP_EQ("the old window the old", host_get_u32(m.device, member_peer(&m, old, 0, 0)), 1);
    member_deregister(&m, old);
    member_deregister(&m, new);
    host_raw_free(&second);
    member_close(&m);
}

int main(void)
{
    struct harness_leaks before;

    harness_start();
    before = harness_leaks_now();
    harness_run(2, run_table, NULL);
    harness_no_leaks("a table", &before);
    harness_run(1, run_random, NULL);
    harness_no_leaks("against a plain search", &before);
    harness_run(1, run_readers, NULL);
    harness_no_leaks("readers", &before);
    harness_run(1, run_reuse, NULL);
    harness_no_leaks("an address with a second life", &before);
    return tap_done();
}
