/* Calls that some ranks make in a group and others in none: a call that no other shares a launch
 * with is the same in both. Also runs on GPUs (tests/gpu/both.txt). */
#define TEST_SLOT_BYTES 8192
#include "collectives.h"

enum { MOST_RANKS = 4 };

static int is_grouped(const struct rank *r)
{
    return r->rank % 2 == 0;
}

/* After a call, an all-reduce that shares its launch with none; where they are grouped, the end. */
static void end_grouped_by_some(const struct rank *r, void *in, float *out)
{
    const symwin_collective_options twoshot = {.size = sizeof twoshot,
                                               .algo = SYMWIN_ALGO_TWOSHOT_PUSH};

    host_must(
        symwin_allreduce_with(r->comm, in, out, 2, SYMWIN_F32, SYMWIN_SUM, &twoshot, r->streams[0]),
        "2");
    if (is_grouped(r))
        host_must(symwin_group_end(), "symwin_group_end");
    job_wait(r, 0);
    host_must(symwin_comm_check(r->comm), "symwin_comm_check");
}

/* A call that no other shares a launch with is the same in a group and in none. */
static void grouped_by_some(const struct rank *r)
{
    float *const in = (float *)(void *)r->in, *const out = (float *)(void *)r->out;
    const float all = (float)(r->nranks * (r->nranks + 1) / 2);
    const float words[4] = {(float)(r->rank + 1), (float)(r->rank + 1)};
    float found[2][2];
    int i;

    host_must(host_copy(r->device, in, words, sizeof words), "fill");
    if (is_grouped(r))
        host_must(symwin_group_begin(), "symwin_group_begin");
    host_must(symwin_allreduce(r->comm, in, out, 2, SYMWIN_F32, SYMWIN_SUM, r->streams[0]), "1");
    end_grouped_by_some(r, in, out + 64);
    for (i = 0; i < 2; i++) {
        host_must(host_copy(r->device, found[i], out + 64 * i, sizeof found[i]), "read");
        must_be(found[i][0] == all && found[i][1] == all, "grouped by some ranks", r->rank);
    }
}

/* The same of a call whose own kernel sends bundles, on the emulated driver. */
static void bundles_by_some(const struct rank *r)
{
    enum { BYTES = SLOT };
    float *const sums = (float *)(void *)(r->out + (size_t)r->nranks * BYTES);
    unsigned char part[BYTES];
    size_t i;
    int p;

    memset(part, r->rank + 1, sizeof part);
    host_must(host_copy(r->device, r->in, part, sizeof part), "fill");
    if (is_grouped(r))
        host_must(symwin_group_begin(), "symwin_group_begin");
    host_must(symwin_allgather(r->comm, r->in, r->out, BYTES, SYMWIN_U8, r->streams[0]), "1");
    end_grouped_by_some(r, r->in, sums);
    for (p = 0; p < r->nranks; p++) {
        unsigned char found[BYTES];

        host_must(host_copy(r->device, found, r->out + (size_t)p * BYTES, BYTES), "read");
        for (i = 0; i < BYTES && found[i] == p + 1; i++)
            ;
        must_be(i == BYTES, "bundles, grouped by some ranks", r->rank);
    }
}

/* The same of small calls that only move bytes: in a group they go by the kernel for several, and
 * alone by kernels for their length and alignment. */
static void moves_by_some(const struct rank *r)
{
    static const size_t lengths[] = {1, 2, 3, 4, 8, 9, 16, 100, 1000};
    float *const sums = (float *)(void *)(r->out + ROOM / 2);
    unsigned char part[1000], found;
    size_t i, k, at;
    int p;

    for (i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
        for (at = 0; at < 2; at++) {
            const size_t bytes = lengths[i];
            unsigned char *const in = r->in + 1024 + at;

            memset(part, (int)(i * 16 + at * 8) + r->rank + 1, sizeof part);
            host_must(host_copy(r->device, in, part, bytes), "fill");
            if (is_grouped(r))
                host_must(symwin_group_begin(), "symwin_group_begin");
            host_must(symwin_allgather(r->comm, in, r->out, bytes, SYMWIN_U8, r->streams[0]), "1");
            end_grouped_by_some(r, r->in, sums);
            for (p = 0; p < r->nranks; p++)
                for (k = 0; k<bytes; k += bytes> 1 ? bytes - 1 : 1) {
                    host_must(host_copy(r->device, &found, r->out + (size_t)p * bytes + k, 1),
                              "read");
                    must_be(found == (int)(i * 16 + at * 8) + p + 1,
                            "moved bytes, grouped by some ranks", r->rank);
                }
        }
}

static void body(struct processes *p, int rank)
{
    struct rank r = {.nranks = p->count, .rank = rank, .device = rank % harness_device_count()};

    open_rank(p, &r, WAIT_MS);
    grouped_by_some(&r);
    bundles_by_some(&r);
    moves_by_some(&r);
    close_rank(p, &r);
}

int main(void)
{
    /* For ranks that share a GPU: the most that CUDA takes. */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    everywhere(body, MOST_RANKS);
    return tap_done();
}
