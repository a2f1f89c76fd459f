/* All collectives on as many ranks as an NVLink domain has GPUs, by the public calls: AUTO, and
 * each algorithm for any memory and over windows. */
#define TEST_ROOM (1 << 16)
#include "collectives.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { RANKS = 24 }; /* the others need minutes, and test nothing more */
#else
enum { RANKS = 72 };
#endif

static void run(const struct rank *r, const struct shape *is, symwin_algo algo, uint64_t count,
                int in_place)
{
    const struct job j = {
        .is = is,
        .options = {.size = sizeof j.options, .algo = algo, .blocks = 1, .threads = 32},
        .type = SYMWIN_F32,
        .op = SYMWIN_SUM,
        .count = count,
        .root = r->nranks - 2,
        .in_place = in_place,
        .in = GUARD,
        .out = GUARD,
        .seed = (unsigned)count + (unsigned)algo};

    job_run(r, &j);
}

static void body(struct processes *p, int rank)
{
    struct rank r = {.nranks = p->count, .rank = rank, .device = rank % harness_device_count()};
    symwin_window *windows[2];
    int s, a;

    open_rank(p, &r, WAIT_MS);
    for (s = 0; s < SHAPES; s++) {
        run(&r, &shapes[s], SYMWIN_ALGO_AUTO, 1, 0);
        run(&r, &shapes[s], SYMWIN_ALGO_AUTO, 67, s % 2);
        if (shapes[s].shares != SYMWIN_ALGO_AUTO)
            run(&r, &shapes[s], shapes[s].shares, 67, s % 2);
    }
    host_must(symwin_window_register(r.comm, r.in, ROOM, 0, &windows[0]), "register");
    host_must(symwin_window_register(r.comm, r.out, ROOM, 0, &windows[1]), "register");
    for (s = 0; s < SHAPES; s++)
        for (a = 1; a < ALGOS && shapes[s].algos[a] != SYMWIN_ALGO_AUTO; a++)
            if (shapes[s].algos[a] != SYMWIN_ALGO_COPIES) /* three streams a rank, of 32 */
                run(&r, &shapes[s], shapes[s].algos[a], 67, 0);
    host_must(symwin_barrier(r.comm, r.streams[0]), "symwin_barrier");
    job_wait(&r, 0);
    processes_barrier(p); /* unmapping a window may wait for kernels */
    for (s = 0; s < 2; s++)
        host_must(symwin_window_deregister(r.comm, windows[s]), "deregister");
    close_rank(p, &r);
}

int main(void)
{
    struct processes *p;

    setenv("SYMWIN_EMU_MULTICAST", "0", 1);
    tap_ok(places_run(&places_all[0], RANKS, body, NULL, &p), "%d ranks of a process", RANKS);
    processes_free(p);
    return tap_done();
}
