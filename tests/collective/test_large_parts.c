/* Large parts of bytes, which travel in bundles (kernels/bundles.cuh): in one round and in several,
 * where each rank has its own alignments, grid and place of its input. */
#define TEST_SLOT_BYTES 8192
#define TEST_ROOM (1 << 22)
#include "collectives.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { CALLS = 18 };
#else
enum { CALLS = 120 };
#endif

/* Bundles begin where all parts together have 256 KiB, on the emulated driver 16. */
static struct job large_job(const struct rank *r, unsigned number)
{
    const uint32_t all = mix(number * 2654435761u + 17);
    const uint32_t own = mix(all + (uint32_t)r->rank * 7919u + 1);
    const size_t least = (size_t)(sw_driver_is_emulated() ? 16 : 256) << 10;
    size_t bytes = (least - 64 + all / 8 % (2 * least)) / (size_t)r->nranks;
    struct job j = {.options = {.size = sizeof j.options,
                                .algo = SYMWIN_ALGO_ONESHOT,
                                .blocks = own % 3 == 0 ? 1 + (int)(own / 3 % 3) : 0,
                                .threads = own % 5 == 0 ? 1 + (int)(own / 5 % 40) : 0},
                    .type = SYMWIN_U8,
                    .root = (int)(mix(all + 3) % (uint32_t)r->nranks),
                    .in = GUARD,
                    .out = GUARD,
                    .in_place = mix(own + 4) % 3 == 0,
                    .seed = number,
                    .scalars = number};

    do
        j.is = &shapes[mix(all + number++) % SHAPES];
    while (j.is->reduces && j.is->shares == SYMWIN_ALGO_AUTO);
    if (j.is->reduces || (j.is->shares != SYMWIN_ALGO_AUTO && all / 64 % 3 != 0))
        j.options.algo = j.is->shares;
    if (j.options.algo != SYMWIN_ALGO_ONESHOT)
        bytes *= 1 + all / 1024 % 5; /* several launches */
    if (j.is->reduces && all / 256 % 3 != 0)
        j.type = all / 256 % 3 == 1 ? SYMWIN_BF16 : SYMWIN_F32;
    if (all % 2 == 0)
        bytes = bytes / 16 * 16; /* whole items, */
    j.count = bytes / symwin_type_bytes(j.type);
    if (all % 4 != 0) { /* which are aligned on some ranks */
        j.in += own / 16 % 3 * 8 + own / 64 % 2 * symwin_type_bytes(j.type);
        j.out += own / 128 % 3 * 8 + own / 512 % 2 * symwin_type_bytes(j.type);
    }
    return j;
}

/* As many launches as a message in shares may have; and one element more, which is not sent so. */
static void most_launches(const struct rank *r)
{
    enum { LAUNCHES = 16, GROUP = 4096, GROUP_DATA = 3584 };
    int i;

    for (i = 0; i < 2 * SHAPES; i++) {
        struct job j = {.is = &shapes[i / 2], .in = GUARD, .out = GUARD, .seed = (unsigned)i};
        const size_t share = j.is->reduces ? SLOT : SLOT / GROUP * GROUP_DATA;

        if (j.is->shares == SYMWIN_ALGO_AUTO)
            continue;
        j.options = (symwin_collective_options){.size = sizeof j.options, .algo = j.is->shares};
        j.type = j.is->reduces ? SYMWIN_F32 : SYMWIN_U8;
        j.count = LAUNCHES * share * (size_t)(r->nranks - 1) / symwin_type_bytes(j.type) +
                  (size_t)i % 2;
        job_run(r, &j);
    }
}

static void body(struct processes *p, int rank)
{
    struct rank r = {.nranks = p->count, .rank = rank, .device = rank % harness_device_count()};
    unsigned i;

    open_rank(p, &r, WAIT_MS);
    for (i = 0; i < CALLS; i++) {
        const struct job j = large_job(&r, i);

        job_run(&r, &j);
    }
    if (rank_slot_bytes == SLOT && r.nranks > 2)
        most_launches(&r);
    close_rank(p, &r);
}

int main(void)
{
    static const size_t slots[] = {SLOT, (size_t)1 << 20};
    struct processes *p;
    int i, nranks, right;

    for (i = 0; i < 2; i++) {
        rank_slot_bytes = slots[i];
        for (nranks = 1; nranks <= 5; nranks++) {
            right = places_run(&places_all[0], nranks, body, NULL, &p);
            tap_ok(right, "%d ranks, slots of %zu bytes", nranks, slots[i]);
            processes_free(p);
        }
    }
    return tap_done();
}
