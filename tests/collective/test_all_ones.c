/* Words of 64 ones. A floating-point entry of that pattern is a NaN. Inverted, it would look like
 * an empty slot, so pushes send another NaN instead (kernels/push.cuh). Here every rank has such
 * words, at every position of a message, in every kernel that pushes. All ranks must get the same
 * bits. */
#include "allreduce_member.h"
#include "harness.h"
#include "reference.h"

static const symwin_algo algos[] = {SYMWIN_ALGO_ONESHOT, SYMWIN_ALGO_ONESHOT_SENTINEL,
                                    SYMWIN_ALGO_TWOSHOT_PUSH, SYMWIN_ALGO_TWOSHOT_PUT};
static const symwin_type types[] = {SYMWIN_F64,    SYMWIN_F32,    SYMWIN_F16, SYMWIN_BF16,
                                    SYMWIN_F8E4M3, SYMWIN_F8E5M2, SYMWIN_U64};

/* Single words; whole entries in one round; a remainder; kernels for long messages; several rounds
 * of slots. */
static const size_t sizes[] = {8, 64, 1032, 4096, 4112, 4352, 20488};

enum {
    ALGOS = sizeof algos / sizeof algos[0],
    TYPES = sizeof types / sizeof types[0],
    SIZES = sizeof sizes / sizeof sizes[0],
    RUN_BYTES = 24, /* of ones: contains a whole word, wherever the message begins */
    MOST_BYTES = 20488,
    SLOT_BYTES = 2048,
#if defined(__SANITIZE_THREAD__)
    THIN = 11 /* one of so many calls is made */
#elif defined(__SANITIZE_ADDRESS__)
    THIN = 5
#else
    THIN = 1
#endif
};

static unsigned char *outputs[MOST_RANKS];

/* Puts ones into those runs of this rank's input whose turn it is. One run of nranks + 1 gets none.
 * Where the next rank has ones, half of each word is another NaN. The sum takes the first NaN, so
 * it is not a word of ones, but has half of theirs. */
static void put_ones(struct member *m, size_t bytes, int shift)
{
    static const unsigned char other[4] = {1, 0, 0xc0, 0x7f};
    const int turns = m->team->nranks + 1;
    unsigned char *input = m->shared->inputs[m->rank];
    size_t at;

    for (at = 0; at < bytes; at += 8) {
        const int turn = (int)((at / RUN_BYTES + (size_t)shift) % (size_t)turns);
        const size_t left = bytes - at;

        if (turn == m->rank)
            memset(input + at, 0xff, left < 8 ? left : 8);
        else if (turn == m->rank + 1 && left >= sizeof other)
            memcpy(input + at, other, sizeof other);
    }
}

static void expect(struct member *m, symwin_type type, symwin_op op, size_t count)
{
    const void *inputs[MOST_RANKS];
    int r;

    for (r = 0; r < m->team->nranks; r++)
        inputs[r] = m->shared->inputs[r];
    reference_allreduce(type, op, m->team->nranks, inputs, m->shared->expected, count);
}

/* All ranks have the same bits. The reference does not check that: it accepts any NaN for a NaN. */
static void compare_ranks(struct member *m, const struct placement *p, size_t bytes)
{
    const size_t at = MEMBER_GUARD + (p->in_place ? p->in_offset : p->out_offset);

    outputs[m->rank] = m->host + at;
    harness_barrier(m->team);
    if (memcmp(outputs[m->rank], outputs[0], bytes) != 0) {
        printf("# rank %d has other bits than rank 0: %s, %zu bytes\n", m->rank,
               symwin_algo_name(p->algo), bytes);
        (*m->wrong)++;
    }
    harness_barrier(m->team);
}

/* In the smallest message one rank has ones, each in turn. In the others all ranks have ones, once
 * aligned and once not. */
static int one_call(struct member *m, symwin_type type, symwin_algo algo, int size, int shift)
{
    const size_t unit = symwin_type_bytes(type), bytes = sizes[size];
    const size_t offset = size > 0 && shift == 1 ? unit : 0;
    const symwin_op op = size == 1 ? SYMWIN_MAX : SYMWIN_SUM;
    const struct placement p = {.algo = algo,
                                .count = bytes / unit,
                                .in_offset = offset,
                                .out_offset = offset,
                                .in_place = size % 2 == 1};

    member_prepare(m, type, op, 0, (unsigned)shift, p.count);
    put_ones(m, bytes, shift);
    harness_barrier(m->team);
    if (m->rank == 0)
        expect(m, type, op, p.count);
    harness_barrier(m->team);
    if (!member_call(m, type, op, &p))
        return 0;
    compare_ranks(m, &p, bytes);
    return 1;
}

static void body(struct harness_team *team, int rank, void *arg)
{
    const int n = team->nranks;
    int type, algo, size, shift, turn = 0, total = 0;
    struct member m;

    (void)arg;
    if (member_create(&m, team, rank))
        for (type = 0; type < TYPES; type++)
            for (algo = 0; algo < ALGOS; algo++) {
                int calls = 0;

                for (size = 0; size < SIZES && *m.wrong == 0; size++)
                    for (shift = 0; shift < (size == 0 ? n : 2) && *m.wrong == 0; shift++)
                        if (turn++ % m.shared->thin == 0)
                            calls += one_call(&m, types[type], algos[algo], size, shift);
                harness_barrier(team);
                if (rank == 0 && (calls > 0 || *m.wrong != 0))
                    tap_ok(*m.wrong == 0, "%d ranks, %s, %s: %d calls with ones", n,
                           symwin_type_name(types[type]), symwin_algo_name(algos[algo]), calls);
                total += calls;
                harness_barrier(team);
            }
    if (rank == 0)
        tap_ok(total > 0, "%d ranks: %d calls in all", n, total);
    member_destroy(&m);
}

/* `thin` is coprime to the number of calls of an algorithm. */
static void run(int nranks, int thin)
{
    const struct harness_leaks before = harness_leaks_now();
    struct member_shared s = {
        .bytes = MOST_BYTES + 64, .slot_bytes = SLOT_BYTES, .thin = thin * THIN};

    s.expected = malloc(s.bytes);
    harness_run(nranks, body, &s);
    free(s.expected);
    harness_no_leaks("ones", &before);
}

int main(void)
{
    harness_start();
    run(2, 1);
    run(3, 2);
    run(4, 3);
    run(8, 7);
    return tap_done();
}
