/* More than 2^32 elements on real GPUs: 2^32 + 17 bytes are summed as u8, by the two-shot out of
 * place and in place and by the one-shot in place. Every byte is checked. SYMWIN_TEST_RANKS: number
 * of ranks, default 2; each needs 9 GiB.
 */
#include "harness.h"

enum { CHUNK = 256 << 20, MARKS = 1000 };

static const uint64_t count = ((uint64_t)1 << 32) + 17;

/* Where the input differs from the rank's plain value: at the limits of 32-bit arithmetic, and
 * elsewhere. */
static uint64_t mark(int i)
{
    static const uint64_t edges[] = {0,
                                     ((uint64_t)1 << 31) - 1,
                                     (uint64_t)1 << 31,
                                     ((uint64_t)1 << 32) - 1,
                                     (uint64_t)1 << 32,
                                     ((uint64_t)1 << 32) + 16};
    const int known = (int)(sizeof edges / sizeof edges[0]);

    return i < known ? edges[i] : ((uint64_t)i * 0x9e3779b97f4a7c15u >> 8) % count;
}

static unsigned char plain_value(int rank)
{
    return (unsigned char)(rank * 3 + 1);
}

static unsigned char mark_value(int rank, int i)
{
    return (unsigned char)(rank * 7 + i * 13 + 2);
}

struct rank {
    int device, nranks, rank;
    struct CUstream_st *stream;
    unsigned char *in, *out, *host; /* host: pinned, CHUNK bytes */
};

static int fill(const struct rank *r)
{
    const CUdeviceptr in = (CUdeviceptr)(uintptr_t)r->in;
    CUresult result = sw_drv.cuMemsetD8Async(in, plain_value(r->rank), count, r->stream);
    int i;

    for (i = 0; i < MARKS && result == CUDA_SUCCESS; i++)
        result = sw_drv.cuMemsetD8Async(in + mark(i), mark_value(r->rank, i), 1, r->stream);
    return result == CUDA_SUCCESS;
}

/* The first wrong byte of the result; -1: none; -2: a copy failed. */
static int64_t check(const struct rank *r, const unsigned char *result)
{
    unsigned char plain = 0;
    uint64_t at, i;
    int m, p;

    for (p = 0; p < r->nranks; p++)
        plain = (unsigned char)(plain + plain_value(p));
    for (at = 0; at < count; at += CHUNK) {
        const uint64_t bytes = count - at < CHUNK ? count - at : CHUNK;

        if (symwin_memcpy(r->device, r->host, result + at, bytes, r->stream) != SYMWIN_OK ||
            symwin_stream_synchronize(r->device, r->stream) != SYMWIN_OK)
            return -2;
        /* Checks the marks and makes them plain, in order: at one place the last mark counts. */
        for (m = MARKS - 1; m >= 0; m--) {
            unsigned char sum = 0;
            int later;

            if (mark(m) < at || mark(m) >= at + bytes)
                continue;
            for (later = m + 1; later < MARKS && mark(later) != mark(m); later++)
                ;
            for (p = 0; p < r->nranks; p++)
                sum = (unsigned char)(sum + mark_value(p, m));
            if (later == MARKS && r->host[mark(m) - at] != sum)
                return (int64_t)mark(m);
            r->host[mark(m) - at] = plain;
        }
        for (i = 0; i < bytes; i++)
            if (r->host[i] != plain)
                return (int64_t)(at + i);
    }
    return -1;
}

static void one(struct harness_team *team, const struct rank *r, symwin_comm *comm,
                symwin_algo algo, unsigned char *out)
{
    const symwin_allreduce_options options = {.size = sizeof options, .algo = algo};
    int ok = fill(r) && symwin_stream_synchronize(r->device, r->stream) == SYMWIN_OK;
    int64_t wrong;

    harness_barrier(team);
    ok = ok &&
         symwin_allreduce_with(comm, r->in, out, count, SYMWIN_U8, SYMWIN_SUM, &options,
                               r->stream) == SYMWIN_OK &&
         symwin_stream_synchronize(r->device, r->stream) == SYMWIN_OK &&
         symwin_comm_check(comm) == SYMWIN_OK;
    wrong = ok ? check(r, out) : -2;
    tap_ok(wrong == -1, "rank %d: %s of %llu bytes %s (first wrong %lld)%s%s", r->rank,
           symwin_algo_name(algo), (unsigned long long)count,
           out == r->in ? "in place" : "out of place", (long long)wrong, ok ? "" : ": ",
           ok ? "" : symwin_last_error());
    harness_barrier(team);
}

static void body(struct harness_team *team, int rank, void *arg)
{
    struct rank r = {.device = harness_device(rank), .nranks = team->nranks, .rank = rank};
    symwin_window *windows[2];
    symwin_comm *comm = NULL;
    struct sw_scope scope;
    void *in = NULL;
    void *out = NULL;
    void *host = NULL;

    (void)arg;
    if (harness_comm(team, rank, &comm) != SYMWIN_OK ||
        sw_scope_enter(r.device, &scope) != SYMWIN_OK ||
        symwin_stream_create(r.device, &r.stream) != SYMWIN_OK ||
        symwin_mem_alloc(r.device, count, 0, &in) != SYMWIN_OK ||
        symwin_mem_alloc(r.device, count, 0, &out) != SYMWIN_OK ||
        sw_drv.cuMemHostAlloc(&host, CHUNK, CU_MEMHOSTALLOC_PORTABLE) != CUDA_SUCCESS ||
        symwin_window_register(comm, in, count, 0, &windows[0]) != SYMWIN_OK ||
        symwin_window_register(comm, out, count, 0, &windows[1]) != SYMWIN_OK) {
        tap_ok(0, "rank %d is set up: %s", rank, symwin_last_error());
        exit(tap_done());
    }
    r.in = in;
    r.out = out;
    r.host = host;
    one(team, &r, comm, SYMWIN_ALGO_TWOSHOT, r.out);
    one(team, &r, comm, SYMWIN_ALGO_TWOSHOT, r.in);
    one(team, &r, comm, SYMWIN_ALGO_ONESHOT, r.in);
    symwin_comm_destroy(comm);
    symwin_mem_free(in);
    symwin_mem_free(out);
    sw_drop(sw_drv.cuMemFreeHost(host), "cuMemFreeHost");
    symwin_stream_destroy(r.device, r.stream);
    sw_scope_leave(&scope);
}

int main(void)
{
    const char *ranks = getenv("SYMWIN_TEST_RANKS");

    setenv("SYMWIN_DRIVER", "cuda", 0);
    harness_fork();
    harness_start();
    if (sw_driver_is_emulated())
        tap_skip_all("more than the emulated driver's memory");
    if (harness_processes > 0)
        harness_run(harness_processes, body, NULL);
    else
        harness_run(ranks != NULL && atoi(ranks) > 0 ? atoi(ranks) : 2, body, NULL);
    return harness_done();
}
