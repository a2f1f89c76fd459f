/* Windows where multicast granules are larger than memory granules. Memory that cannot be bound has
 * no multicast, and a window that requires it is refused, on all ranks alike.
 */
#include "windows.h"

#define UNIT ((size_t)8 << 20)

enum { RANKS = 4 };

/* Whether the window has multicast: the same on all ranks, with an address or an error text. */
static int has_multicast(struct member *m, const char *name, const symwin_window *window)
{
    const int has = (member_query(m, window).transports & SYMWIN_TRANSPORT_MULTICAST) != 0;
    void *ptr = NULL;
    int all;

    if (has)
        host_must(symwin_window_multicast_pointer(m->comm, window, 0, &ptr), name);
    else
        host_expect(name, symwin_window_multicast_pointer(m->comm, window, 0, &ptr),
                    SYMWIN_UNSUPPORTED, "no multicast");
    atomic_fetch_add(harness_count(m->team), has);
    harness_barrier(m->team);
    all = atomic_load(harness_count(m->team));
    harness_barrier(m->team);
    if (m->rank == 0)
        atomic_store(harness_count(m->team), 0);
    harness_barrier(m->team);
    tap_ok(all == has * RANKS, "%s: rank %d: alike on all ranks (%d of them have it)", name,
           m->rank, all);
    return has;
}

/* A window that requires multicast is refused with these words on every rank. */
static void refused(struct member *m, const char *name, void *at, size_t bytes, const char *words)
{
    symwin_window *window = NULL;

    host_expect(name, symwin_window_register(m->comm, at, bytes, SYMWIN_WINDOW_MULTICAST, &window),
                SYMWIN_UNSUPPORTED, words);
}

/* All-reduces on a window with or without multicast. */
static void sums(struct member *m, const char *name, void *memory, symwin_algo algo)
{
    const symwin_allreduce_options options = {.size = sizeof options, .algo = algo};
    uint32_t *const in = memory, sum;

    host_put_u32(m->device, in, (uint32_t)m->rank + 1);
    harness_barrier(m->team);
    host_must(symwin_allreduce_with(m->comm, in, in + 4, 1, SYMWIN_U32, SYMWIN_SUM, &options, NULL),
              symwin_algo_name(algo));
    host_must(symwin_stream_synchronize(m->device, NULL), "symwin_stream_synchronize");
    sum = host_get_u32(m->device, in + 4);
    tap_ok(sum == RANKS * (RANKS + 1) / 2, "%s: rank %d: %s", name, m->rank,
           symwin_algo_name(algo));
    harness_barrier(m->team);
}

/* Allocations shorter than a multicast granule. */
static void run_short(struct harness_team *team, int rank, void *arg)
{
    symwin_window *window;
    struct member m;

    (void)arg;
    member_open(&m, team, rank, UNIT - GRANULE);
    window = member_window(&m, 0, m.bytes);
    TAP_EQ("shorter than a unit: no multicast", has_multicast(&m, "a short one", window), 0);
    TAP_EQ("and all see each other", member_exchange(&m, window, m.memory, 64, 100), 0);
    sums(&m, "a short one", m.memory, SYMWIN_ALGO_TWOSHOT);
    refused(&m, "a short one that insists", m.memory, m.bytes, "units of 8388608 bytes");
    TAP_EQ("the window is as it was", member_exchange(&m, window, m.memory, 64, 200), 0);
    harness_barrier(team);
    member_deregister(&m, window);
    member_close(&m);
}

/* Two and a half multicast granules, on one rank longer by a memory granule, and windows of a
 * memory granule between them. All begin at a multicast granule of the flat range. */
static void run_long(struct harness_team *team, int rank, void *arg)
{
    enum { STEPS = 8 << 20 >> 21 };
    symwin_window *window, *pads[STEPS] = {0};
    void *granules[STEPS] = {0};
    int i, bound = 0;
    struct member m;

    (void)arg;
    member_open(&m, team, rank, UNIT * 5 / 2 + (rank == 1) * GRANULE);
    for (i = 0; i < STEPS; i++) {
        window = member_window(&m, 0, 2 * UNIT);
        if (has_multicast(&m, "a long one", window)) {
            symwin_window *rest = member_window(&m, 2 * UNIT, GRANULE);

            bound++;
            tap_ok(member_query(&m, window).offset % UNIT == 0, "which begins where a unit does");
            TAP_EQ("what is beyond the last unit has none", has_multicast(&m, "a rest", rest), 0);
            refused(&m, "a rest that insists", host_at(m.memory, UNIT), UNIT + GRANULE,
                    "only 16777216 bytes for multicast");
            sums(&m, "with multicast", m.memory, SYMWIN_ALGO_TWOSHOT_MC);
            member_deregister(&m, rest);
        }
        TAP_EQ("all see each other", member_exchange(&m, window, m.memory, 64, 100), 0);
        harness_barrier(team);
        member_deregister(&m, window);
        granules[i] = host_alloc(m.device, GRANULE);
        host_must(symwin_window_register(m.comm, granules[i], GRANULE, 0, &pads[i]), "register");
    }
    TAP_EQ("all are bound", bound, STEPS);
    harness_barrier(team);
    for (i = 0; i < STEPS; i++) {
        member_deregister(&m, pads[i]);
        host_must(symwin_mem_free(granules[i]), "symwin_mem_free");
    }
    member_close(&m);
}

static void run(const char *name, void (*body)(struct harness_team *team, int rank, void *arg))
{
    const struct harness_leaks before = harness_leaks_now();

    harness_run(RANKS, body, NULL);
    harness_no_leaks(name, &before);
}

int main(void)
{
    setenv("SYMWIN_EMU_MULTICAST_UNIT", "8M", 1);
    setenv("SYMWIN_DRIVER", "emu", 1);
    harness_start();
    run("short allocations", run_short);
    run("long allocations", run_long);
    return tap_done();
}
