/* NCCL fails in each of its functions, at each call of it, on one rank of a communicator over two
 * domains, in a life that makes each collective call. Every rank returns soon, and says which rank
 * has failed; the rank itself says in which function. Nothing of NCCL or of the driver is left.
 * (What ncclCommDestroy or ncclCommAbort leave when they fail is NCCL's: they are not tried.)
 *
 *     test_rails_faults [FUNCTION [CALL [RANK]]]      one function, or one run
 */
#include "life.h"
#include "rails.h"
#include "tests/nccl/stand_in/stand_in.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { SLOWER = 8, CALLS = 2 };
#else
enum { SLOWER = 1, CALLS = 24 };
#endif

enum { RANKS = LIFE_RANKS, WAIT_MS = 10000 * SLOWER, SOON_MS = 9000 * SLOWER };

static const struct function {
    const char *name;
    enum { ENDS_ALL, UNNOTICED, ANY_TIME } what;
} functions[] = {
    {"ncclGetVersion", ENDS_ALL},
    {"ncclGetUniqueId", ENDS_ALL},
    {"ncclCommInitRankConfig", ENDS_ALL},
    {"ncclGroupStart", ENDS_ALL},
    {"ncclGroupEnd", ENDS_ALL},
    {"ncclAllReduce", ENDS_ALL},
    {"ncclReduceScatter", ENDS_ALL},
    {"ncclReduce", ENDS_ALL},
    {"ncclBroadcast", ENDS_ALL},
    {"ncclSend", ENDS_ALL},
    {"ncclRecv", ENDS_ALL},
    {"ncclCommFinalize", UNNOTICED},     /* the communicator is aborted then */
    {"ncclCommGetAsyncError", ANY_TIME}, /* also when a rank needs nothing more of the others */
};

struct fault {
    const struct function *function;
    int call, rank;
};

/* The counts of the stand-in that this process has loaded. */
static const struct stand_in *counts(void)
{
    void *const symbol = rails_find("stand_in");
    const struct stand_in *(*of)(void);

    memcpy(&of, &symbol, sizeof of);
    return of != NULL ? of() : NULL;
}

static long long calls_of(const struct stand_in *s, const char *name)
{
    size_t i;

    for (i = 0; s != NULL && i < sizeof s->functions / sizeof s->functions[0]; i++)
        if (strcmp(s->functions[i].name, name) == 0)
            return atomic_load(&s->functions[i].calls);
    return 0;
}

static void body(struct processes *p, int rank)
{
    const struct fault *f = places_arg(p);
    const struct stand_in *s;
    int64_t ended;
    char text[64];

    rails_set_engine(rank);
    snprintf(text, sizeof text, "%s:%d:2", f->function->name, f->call);
    if (rank == f->rank)
        setenv("STAND_IN_FAIL", text, 1);
    life(p, rank,
         &(struct life){.timeout_ms = WAIT_MS, .bootstrap_ms = WAIT_MS, .over_domains = 1});
    ended = host_now_ms();
    s = counts();
    p->rank[rank].number = s != NULL ? calls_of(s, f->function->name)
                                     : p->rank[rank].status != SYMWIN_OK; /* unloaded */
    while (s != NULL && atomic_load(&s->live) > 0 && host_now_ms() - ended < WAIT_MS)
        host_pause_ms(1); /* NCCL's aborts may outlive the communicator */
    must_be(s == NULL || atomic_load(&s->live) == 0, "no communicator of NCCL's is left", rank);
}

/* The failing rank's own text has the function, if a call of its own has met the failure. */
static int is_named(const struct processes *p, const struct fault *f, int r)
{
    char name[16];

    snprintf(name, sizeof name, "rank %d", f->rank);
    return (r == f->rank && strstr(p->rank[r].text, f->function->name) != NULL) ||
           ((r != f->rank || f->function->what == ANY_TIME) &&
            strstr(p->rank[r].text, name) != NULL);
}

/* A rank that needed nothing more of the others may have ended well. */
static int is_right(const struct processes *p, const struct fault *f, int reached)
{
    const int may_end = reached && f->function->what != UNNOTICED,
              may_pass = !reached || f->function->what != ENDS_ALL;
    int r;

    for (r = 0; r < RANKS; r++)
        if (p->rank[r].status == SYMWIN_OK
                ? !may_pass && (r == f->rank || p->rank[r].step != DESTROY)
                : !may_end || !is_named(p, f, r))
            return 0;
    return 1;
}

/* Whether the rank has made that call. */
static int run(const struct fault *f)
{
    static const struct place two = {"2 x 2", 1, "aabb"};
    const int64_t before = processes_now_us();
    struct processes *p;
    int ended = places_run(&two, RANKS, body, (void *)(uintptr_t)f, &p), reached, right, r;

    reached = p->rank[f->rank].number >= f->call;
    right = ended && is_right(p, f, reached) && processes_now_us() - before < SOON_MS * 1000LL;
    if (reached || !right)
        tap_ok(right, "%s, call %d of rank %d", f->function->name, f->call, f->rank);
    for (r = 0; r < RANKS && !right; r++)
        fprintf(stderr, "# rank %d, in %s: %d, %s\n", r, life_stages[p->rank[r].step],
                p->rank[r].status, p->rank[r].text);
    processes_free(p);
    return reached;
}

/* On one rank that makes the call, if there is one; which one, the turn decides. */
static int run_on_one(struct fault *f, int turn)
{
    int i;

    for (i = 0; i < RANKS; i++) {
        f->rank = (turn + i) % RANKS;
        if (run(f))
            return 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    const int call = argc > 2 ? atoi(argv[2]) : 0, rank = argc > 3 ? atoi(argv[3]) : -1;
    struct fault f;
    size_t i;

    for (i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        f = (struct fault){.function = &functions[i], .call = call, .rank = rank};
        if (argc > 1 && strcmp(argv[1], f.function->name) != 0)
            continue;
        if (rank >= 0)
            (void)run(&f);
        else if (call > 0)
            (void)run_on_one(&f, (int)i);
        else
            for (f.call = 1; f.call <= CALLS && run_on_one(&f, (int)i + f.call); f.call++)
                ;
    }
    return tap_done();
}
