/* Communicators whose ranks are in several domains, on the emulated driver without fabric handles:
 * every collective, sends and receives against a plain reference, groups, graphs, windows, ends.
 * The engine between domains is the stand-in for NCCL (tests/nccl/stand_in). */
#define TEST_ROOM (1 << 19)
#include "collectives.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { RANDOM = 40, REPLAYS = 2 };
#else
enum { RANDOM = 150, REPLAYS = 3 };
#endif

/* A letter for each rank: the host that it is on. */
static const struct place places[] = {
    {"2 x 2", 0, "aabb"},         {"in turn", 0, "abab"}, {"2 x 4", 0, "aaaabbbb"},
    {"4 x 2", 0, "aabbccdd"},     {"3 + 1", 0, "aaab"},   {"3 + 2 + 1", 0, "aaabbc"},
    {"one on each", 0, "abcd"},
};

static void engine_set(void)
{
    char path[4096];
    const char *build = getenv("SYMWIN_BUILD");

    snprintf(path, sizeof path, "%s/tests/nccl/stand_in/libnccl.so.2",
             build != NULL ? build : "build");
    setenv("SYMWIN_NCCL", path, 1);
    setenv("STAND_IN_DRIVER", "symwin", 1);
    setenv("SYMWIN_EMU_FABRIC", "1", 1); /* claimed, and refused: hosts are domains */
}

/* Any collective. Sums of floats are in no fixed order: whole numbers, whose sums are exact. */
static struct job any(const struct rank *r, unsigned number)
{
    static const uint64_t counts[] = {0, 1, 3, 8, 33, 100, 1000, 4099, 20000, 33000};
    const uint32_t all = mix(number * 2654435761u + 17u), own = mix(all + (unsigned)r->rank + 1);
    struct job j = {.is = &shapes[all % SHAPES],
                    .options = {.size = sizeof j.options},
                    .type = (symwin_type)(mix(all + 1) % 12),
                    .op = (symwin_op)(mix(all + 2) % 4),
                    .root = (int)(mix(all + 3) % (uint32_t)r->nranks),
                    .in_place = mix(own + 4) % 3 == 0,
                    .seed = number * 2,
                    .whole = 1,
                    .scalars = number % SCALARS};
    const size_t element = symwin_type_bytes(j.type);
    const uint64_t most = (ROOM - 2 * GUARD - 72) / element /
                          (j.is->in_each || j.is->out_each ? (uint64_t)r->nranks : 1);

    if (j.is->reduces && (j.type == SYMWIN_F8E4M3 || j.type == SYMWIN_F8E5M2))
        j.type = SYMWIN_I8;
    if (j.is->reduces && j.type > SYMWIN_F8E5M2 && mix(all + 5) % 5 == 0)
        j.op = SYMWIN_PREMUL_SUM;
    if (j.is->reduces && j.type <= SYMWIN_BF16 && j.op == SYMWIN_PROD)
        j.op = SYMWIN_SUM;
    j.count = counts[mix(all + 6) % (sizeof counts / sizeof counts[0])];
    if (j.count > most)
        j.count = most;
    j.in = GUARD + mix(own + 7) % 3 * element;
    j.out = GUARD + mix(own + 8) % 3 * element;
    return j;
}

static void run_any(const struct rank *r)
{
    struct job j;
    unsigned i;

    for (i = 0; i < RANDOM; i++) {
        j = any(r, i);
        job_run(r, &j);
    }
}

static void body(struct processes *p, int rank)
{
    struct rank r = {.nranks = p->count, .rank = rank, .device = rank % harness_device_count()};

    open_rank(p, &r, WAIT_MS);
    run_any(&r);
    close_rank(p, &r);
}

static void main_of(struct processes *p, int rank)
{
    engine_set();
    body(p, rank);
}

int main(int argc, char **argv)
{
    struct processes *p;
    size_t i;

    for (i = 0; i < sizeof places / sizeof places[0]; i++) {
        if (argc > 1 && strcmp(argv[1], places[i].hosts) != 0)
            continue;
        tap_ok(places_run(&places[i], (int)strlen(places[i].hosts), main_of, NULL, &p), "%s",
               places[i].name);
        processes_free(p);
    }
    return tap_done();
}
