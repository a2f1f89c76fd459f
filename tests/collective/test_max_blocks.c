/* max_blocks holds for every launch: of each collective by each algorithm, of parts of unequal
 * lengths, of sends and receives, and of groups. Results are right with it. */
#include "collectives.h"
#include "src/driver/driver.h"

enum { RANKS = 2, MOST_BLOCKS = 3, ELEMENTS = 3000 };

/* There the emulated driver has as few blocks as the limit. */
#if defined(__SANITIZE_THREAD__)
enum { HAS_MORE = 0 };
#else
enum { HAS_MORE = 1 };
#endif

static CUresult (*plain_launch)(const CUlaunchConfig *, CUfunction, void **, void **);
static _Thread_local unsigned most; /* blocks of a launch since take_most() */

static CUresult note_launch(const CUlaunchConfig *config, CUfunction function, void **params,
                            void **extra)
{
    if (most < config->gridDimX)
        most = config->gridDimX;
    return plain_launch(config, function, params, extra);
}

/* What a limit changes: without one, a call with so much to do has more blocks. */
static void check(const struct rank *r, const char *name, int has_many)
{
    char what[120];

    snprintf(what, sizeof what, "%s: %u blocks, and %d are allowed", name, most, r->max_blocks);
    must_be(most > 0 && (r->max_blocks > 0 ? most <= (unsigned)r->max_blocks
                                           : !has_many || !HAS_MORE || most > MOST_BLOCKS),
            what, r->rank);
    most = 0;
}

static void run(const struct rank *r, int shape, symwin_algo algo)
{
    const struct job j = {.is = &shapes[shape],
                          .options = {.size = sizeof j.options, .algo = algo},
                          .type = SYMWIN_F32,
                          .count = ELEMENTS,
                          .root = r->nranks - 1,
                          .in = GUARD,
                          .out = GUARD,
                          .seed = (unsigned)(shape * 16 + (int)algo)};
    char name[80];

    job_run(r, &j);
    snprintf(name, sizeof name, "%s, %s", j.is->name, symwin_algo_name(algo));
    check(r, name, algo != SYMWIN_ALGO_COPIES); /* a block of those exchanges words only */
}

static void every_algorithm(struct processes *p, const struct rank *r)
{
    static const symwin_algo reduces[] = {SYMWIN_ALGO_ONESHOT,          SYMWIN_ALGO_TWOSHOT,
                                          SYMWIN_ALGO_ONESHOT_SENTINEL, SYMWIN_ALGO_TWOSHOT_PUSH,
                                          SYMWIN_ALGO_TWOSHOT_PUT,      SYMWIN_ALGO_COPIES,
                                          SYMWIN_ALGO_TWOSHOT_BULK};
    static const struct shape allreduce = {
        .name = "allreduce", .collective = SYMWIN_ALLREDUCE, .reduces = 1};
    symwin_window *windows[2];
    size_t i;
    int s, a;

    for (s = 0; s < SHAPES; s++)
        run(r, s, SYMWIN_ALGO_AUTO);
    host_must(symwin_window_register(r->comm, r->in, ROOM, 0, &windows[0]), "register");
    host_must(symwin_window_register(r->comm, r->out, ROOM, 0, &windows[1]), "register");
    for (s = 0; s < SHAPES; s++)
        for (a = 0; a < ALGOS && shapes[s].algos[a] != SYMWIN_ALGO_AUTO; a++)
            run(r, s, shapes[s].algos[a]);
    for (s = 0; s < SHAPES; s++)
        if (shapes[s].shares != SYMWIN_ALGO_AUTO)
            run(r, s, shapes[s].shares);
    for (i = 0; i < sizeof reduces / sizeof reduces[0]; i++) {
        const struct job j = {.is = &allreduce,
                              .options = {.size = sizeof j.options, .algo = reduces[i]},
                              .type = SYMWIN_F32,
                              .count = 4 * ELEMENTS,
                              .in = GUARD,
                              .out = GUARD,
                              .seed = (unsigned)i};

        job_run(r, &j);
        check(r, symwin_algo_name(reduces[i]), 1);
    }
    processes_barrier(p);
    for (i = 0; i < 2; i++)
        host_must(symwin_window_deregister(r->comm, windows[i]), "deregister");
}

static void parts(const struct rank *r)
{
    const uint64_t counts[RANKS] = {ELEMENTS, ELEMENTS};
    const symwin_parts is = {counts, NULL, 0, 0};

    host_must(symwin_alltoallv(r->comm, r->in, &is, r->out, &is, SYMWIN_F32, r->streams[0]),
              "symwin_alltoallv");
    check(r, "alltoallv", 1);
    host_must(symwin_allgatherv(r->comm, r->in, r->out, &is, SYMWIN_F32, r->streams[0]),
              "symwin_allgatherv");
    check(r, "allgatherv", 1);
    host_must(
        symwin_reduce_scatterv(r->comm, r->in, &is, r->out, SYMWIN_F32, SYMWIN_SUM, r->streams[0]),
        "symwin_reduce_scatterv");
    check(r, "reduce_scatterv", 1);
    host_must(symwin_barrier(r->comm, r->streams[0]), "symwin_barrier");
    check(r, "barrier", 0);
}

/* A ring of messages, large and small; and a group of small calls. */
static void groups(const struct rank *r)
{
    static const uint64_t counts[] = {3, ELEMENTS};
    const int next = (r->rank + 1) % r->nranks, before = (r->rank + r->nranks - 1) % r->nranks;
    size_t i, k;

    for (i = 0; i < sizeof counts / sizeof counts[0]; i++)
        for (k = 1; k <= 9; k += 8) { /* few items, and many */
            size_t m;

            host_must(symwin_group_begin(), "symwin_group_begin");
            for (m = 0; m < k; m++) {
                unsigned char *const in = r->in + m * 4 * ELEMENTS;
                unsigned char *const out = r->out + m * 4 * ELEMENTS;

                host_must(symwin_send(r->comm, in, counts[i], SYMWIN_F32, next, r->streams[0]),
                          "symwin_send");
                host_must(symwin_recv(r->comm, out, counts[i], SYMWIN_F32, before, r->streams[0]),
                          "symwin_recv");
            }
            host_must(symwin_group_end(), "symwin_group_end");
            check(r, "messages", i == 1);
        }
    host_must(symwin_group_begin(), "symwin_group_begin");
    for (k = 0; k < 8; k++)
        host_must(symwin_allgather(r->comm, r->in + k * 1024, r->out + k * 4096, 1024, SYMWIN_U8,
                                   r->streams[0]),
                  "symwin_allgather");
    host_must(symwin_group_end(), "symwin_group_end");
    check(r, "a group", 1);
    job_wait(r, 0);
    host_must(symwin_comm_check(r->comm), "symwin_comm_check");
}

static void note_launches(void)
{
    host_must(sw_driver_load(), "sw_driver_load");
    plain_launch = sw_drv.cuLaunchKernelEx;
    sw_drv.cuLaunchKernelEx = note_launch;
}

static void body(struct processes *p, int rank)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const int *max_blocks = places_arg(p);
    struct rank r = {.nranks = p->count,
                     .rank = rank,
                     .device = rank % harness_device_count(),
                     .max_blocks = *max_blocks};

    pthread_once(&once, note_launches);
    open_rank(p, &r, WAIT_MS);
    every_algorithm(p, &r);
    parts(&r);
    groups(&r);
    close_rank(p, &r);
}

int main(void)
{
    static const int most_blocks[] = {0, MOST_BLOCKS, 1};
    struct processes *p;
    size_t i;

    setenv("SYMWIN_EMU_MULTICAST", "0", 1); /* otherwise AUTO could choose it */
    for (i = 0; i < sizeof most_blocks / sizeof most_blocks[0]; i++) {
        int max_blocks = most_blocks[i];

        tap_ok(places_run(&places_all[0], RANKS, body, &max_blocks, &p),
               "no launch has more blocks than max_blocks %d", max_blocks);
        processes_free(p);
    }
    return tap_done();
}
