/* Ranks pass different arguments to one call, or come late to it. All ranks, the wrong one
 * included, get the same status and text. The text names the rank against the majority, or a tie,
 * with the argument and both values. */
#include <stddef.h>

#include "kernels/kernel_args.h"
#include "processes.h"

enum { MOST = 4, COUNT = 1024, BYTES = 1 << 16 };

/* A rank that is not late begins within TIMEOUT_MS of the others, on a busy machine too. */
#if defined(__SANITIZE_THREAD__) /* has no room for many threads */
enum { WAIT_MS = 100000, THREADS = 32, TIMEOUT_MS = 500 };
#define WAITED "waited 500 ms for rank "
#else
enum { WAIT_MS = 20000, THREADS = 64, TIMEOUT_MS = 100 };
#define WAITED "waited 100 ms for rank "
#endif

enum oddity {
    O_COUNT,
    O_TYPE,
    O_OP,
    O_ALGO,
    O_WINDOWS,
    O_IN,
    O_OUT,
    O_LATE,
    O_FEW,
    O_SEEMS,
    O_TOLD,
    O_CLAIMED
};

struct row {
    const char *name;
    int nranks;
    unsigned odd; /* bit r: rank r */
    enum oddity oddity;
    symwin_algo algo; /* of all ranks, except for O_ALGO and O_WINDOWS */
    symwin_status status;
    const char *words;
};

static const struct row rows[] = {
    {"count, the last rank", 3, 4, O_COUNT, SYMWIN_ALGO_ONESHOT, SYMWIN_MISMATCH,
     "count differs: rank 2 passed 1000, rank 0 passed 1024|rank 2 differs from ranks 0 and 1"},
    {"count, rank 0", 3, 1, O_COUNT, SYMWIN_ALGO_ONESHOT_SENTINEL, SYMWIN_MISMATCH,
     "count differs: rank 0 passed 1000, rank 1 passed 1024|rank 0 differs from ranks 1 and 2"},
    {"count, two-shot push", 3, 2, O_COUNT, SYMWIN_ALGO_TWOSHOT_PUSH, SYMWIN_MISMATCH,
     "count differs: rank 1 passed 1000, rank 0 passed 1024"},
    {"count, two-shot put", 3, 2, O_COUNT, SYMWIN_ALGO_TWOSHOT_PUT, SYMWIN_MISMATCH,
     "count differs: rank 1 passed 1000, rank 0 passed 1024"},
    {"count, two-shot", 4, 2, O_COUNT, SYMWIN_ALGO_TWOSHOT, SYMWIN_MISMATCH,
     "count differs: rank 1 passed 1000, rank 0 passed 1024|from ranks 0, 2 and 3"},
    {"count, bulk", 3, 2, O_COUNT, SYMWIN_ALGO_TWOSHOT_BULK, SYMWIN_MISMATCH,
     "count differs: rank 1 passed 1000, rank 0 passed 1024"},
    {"count, copies", 3, 2, O_COUNT, SYMWIN_ALGO_COPIES, SYMWIN_MISMATCH,
     "count differs: rank 1 passed 1000, rank 0 passed 1024"},
    {"count, multicast", 3, 2, O_COUNT, SYMWIN_ALGO_TWOSHOT_MC, SYMWIN_MISMATCH,
     "count differs: rank 1 passed 1000, rank 0 passed 1024"},
    {"count, two ranks", 2, 2, O_COUNT, SYMWIN_ALGO_AUTO, SYMWIN_MISMATCH,
     "count differs: rank 1 passed 1000, rank 0 passed 1024|no majority agrees"},
    {"count, two against two", 4, 6, O_COUNT, SYMWIN_ALGO_AUTO, SYMWIN_MISMATCH,
     "rank 1 passed 1000, rank 0 passed 1024|ranks 1 and 2 differ from ranks 0 and 3, and no "
     "majority agrees"},
    {"type", 3, 4, O_TYPE, SYMWIN_ALGO_AUTO, SYMWIN_MISMATCH,
     "type differs: rank 2 passed f32, rank 0 passed u32"},
    {"operation", 3, 1, O_OP, SYMWIN_ALGO_AUTO, SYMWIN_MISMATCH,
     "operation differs: rank 0 passed max, rank 1 passed sum"},
    {"algorithm", 3, 2, O_ALGO, SYMWIN_ALGO_TWOSHOT_PUSH, SYMWIN_MISMATCH,
     "algorithm differs: rank 1 passed oneshot|rank 0 passed twoshot_push"},
    {"algorithm, pushes and windows", 4, 8, O_ALGO, SYMWIN_ALGO_TWOSHOT, SYMWIN_MISMATCH,
     "algorithm differs: rank 3 passed oneshot|rank 0 passed twoshot"},
    {"windows on one rank only", 3, 4, O_WINDOWS, SYMWIN_ALGO_TWOSHOT_PUT, SYMWIN_MISMATCH,
     "rank 2 passed twoshot_push (buffers outside windows), rank 0 passed twoshot_put (buffers in "
     "windows)"},
    {"offset of in", 3, 1, O_IN, SYMWIN_ALGO_TWOSHOT, SYMWIN_MISMATCH,
     "the offset of in differs: rank 0 passed"},
    {"offset of out", 3, 2, O_OUT, SYMWIN_ALGO_TWOSHOT, SYMWIN_MISMATCH,
     "the offset of out differs: rank 1 passed"},
    {"a late rank, pushes", 3, 4, O_LATE, SYMWIN_ALGO_ONESHOT, SYMWIN_TIMEOUT, WAITED "2"},
    {"a late rank 0", 3, 1, O_LATE, SYMWIN_ALGO_TWOSHOT_PUSH, SYMWIN_TIMEOUT, WAITED "0"},
    {"a late rank, windows", 3, 2, O_LATE, SYMWIN_ALGO_TWOSHOT, SYMWIN_TIMEOUT, WAITED "1"},
    {"a late rank, put", 3, 2, O_LATE, SYMWIN_ALGO_TWOSHOT_PUT, SYMWIN_TIMEOUT, WAITED "1"},
    {"a late rank, for which the others' peers wait", 4, 8, O_FEW, SYMWIN_ALGO_TWOSHOT_PUSH,
     SYMWIN_TIMEOUT, WAITED "3"},
    {"a late rank that seems to have been there", 3, 4, O_SEEMS, SYMWIN_ALGO_TWOSHOT,
     SYMWIN_TIMEOUT, WAITED "2"},
    {"a judge that does not come back", 3, 4, O_CLAIMED, SYMWIN_ALGO_ONESHOT, SYMWIN_TIMEOUT,
     "rank 2"},
    {"a rank that comes when all is over", 3, 4, O_TOLD, SYMWIN_ALGO_ONESHOT, SYMWIN_TIMEOUT,
     "rank 2"},
    {"a late rank, copies", 3, 2, O_LATE, SYMWIN_ALGO_COPIES, SYMWIN_TIMEOUT, WAITED "1"},
};

struct rank {
    symwin_comm *comm;
    symwin_window *window;
    struct CUstream_st *stream;
    unsigned char *memory, *other; /* `other` is in no window */
    int device;
};

static symwin_status call(const struct rank *r, const struct row *row, int odd)
{
    symwin_allreduce_options options = {
        .size = sizeof options, .algo = row->algo, .blocks = 2, .threads = THREADS};
    const unsigned char *in = r->memory;
    unsigned char *out = r->memory + BYTES / 2;
    const enum oddity oddity = odd ? row->oddity : O_LATE;

    if (oddity == O_ALGO)
        options.algo = SYMWIN_ALGO_ONESHOT;
    if (oddity == O_WINDOWS) {
        options.algo = SYMWIN_ALGO_TWOSHOT_PUSH;
        in = r->other;
        out = r->other + BYTES / 2;
    }
    return symwin_allreduce_with(r->comm, in + (oddity == O_IN ? 64 : 0),
                                 out + (oddity == O_OUT ? 64 : 0),
                                 oddity == O_COUNT      ? 1000
                                 : row->oddity == O_FEW ? 4
                                                        : COUNT,
                                 oddity == O_TYPE ? SYMWIN_F32 : SYMWIN_U32,
                                 oddity == O_OP ? SYMWIN_MAX : SYMWIN_SUM, &options, r->stream);
}

/* Writes a word of this rank's state, which kernels read. */
static void write_state(const struct rank *r, size_t at, uint32_t value)
{
    const symwin_comm *comm = r->comm;

    host_put_u32(
        r->device,
        (void *)(uintptr_t)sw_group_address(comm->group, comm->rank, comm->state_offset + at),
        value);
}

/* If another rank's failure has ended the communicator, the kernel was perhaps not launched. */
static symwin_status outcome(const struct rank *r)
{
    host_must(symwin_stream_synchronize(r->device, r->stream), "symwin_stream_synchronize");
    return symwin_comm_check(r->comm);
}

/* Comes after the others' kernels have given this rank up and told it so. A time would not do: on
 * a busy machine their kernels may begin late. */
static void be_late(const struct rank *r)
{
    const symwin_comm *comm = r->comm;
    const void *failed = (const void *)(uintptr_t)sw_group_address(
        comm->group, comm->rank, comm->state_offset + offsetof(struct sw_comm_state, failed));
    int ms;

    for (ms = 0; ms < WAIT_MS && host_get_u32(r->device, failed) == 0; ms++)
        usleep(1000);
}

static void body(struct processes *p, int rank)
{
    const struct row *row = places_arg(p);
    const int odd = (row->odd >> rank & 1) != 0, late = row->oddity >= O_LATE;
    const symwin_comm_options options = {.size = sizeof options,
                                         .timeout_ms = WAIT_MS,
                                         .kernel_timeout_ms = late ? TIMEOUT_MS : WAIT_MS,
                                         .slot_bytes = 8192};
    struct rank r = {.device = rank % harness_device_count()};
    symwin_status status;

    r.memory = host_alloc(r.device, BYTES);
    r.other = host_alloc(r.device, BYTES);
    host_must(symwin_stream_create(r.device, &r.stream), "symwin_stream_create");
    host_must(
        symwin_comm_create(processes_id(p, rank), p->count, rank, r.device, &options, &r.comm),
        "symwin_comm_create");
    host_must(symwin_window_register(r.comm, r.memory, BYTES, 0, &r.window), "register");
    if (row->oddity == O_CLAIMED && rank == 0)
        write_state(&r, offsetof(struct sw_comm_state, claimed), 1);
    /* Plays a rank that left after this call and whose header is not visible yet. */
    if (row->oddity == O_SEEMS && odd) {
        write_state(&r, offsetof(struct sw_comm_state, epoch), 5);
        write_state(&r, offsetof(struct sw_comm_state, left), 1);
    }
    processes_barrier(p);
    if (row->oddity >= O_TOLD && odd) { /* until the other ranks' hosts have checked */
        while (symwin_comm_check(r.comm) == SYMWIN_OK)
            usleep(1000);
    } else {
        if (late && odd)
            be_late(&r);
        host_must(call(&r, row, odd), "symwin_allreduce");
    }
    if (row->oddity < O_TOLD)
        processes_barrier(p); /* a check ends it for all ranks, and then no kernel is launched */
    status = processes_note(p, rank, outcome(&r));
    must_be(status == row->status && host_error_has(row->words), symwin_status_name(status), rank);
    must_be(call(&r, row, 0) == row->status && host_error_has(row->words), "a later call", rank);
    processes_barrier(p);
    symwin_comm_destroy(r.comm);
    processes_barrier(p);
    host_must(symwin_stream_destroy(r.device, r.stream), "symwin_stream_destroy");
    host_must(symwin_mem_free(r.memory), "symwin_mem_free");
    host_must(symwin_mem_free(r.other), "symwin_mem_free");
}

int main(void)
{
    size_t place, i;
    int r;

    for (place = 0; place < places_count(); place++)
        for (i = 0; i < sizeof rows / sizeof rows[0]; i++) {
            struct processes *p;
            int right;

            if (rows[i].algo == SYMWIN_ALGO_TWOSHOT_MC &&
                (!places_one(&places_all[place]) || processes_use_gpus()))
                continue;
            if (rows[i].oddity == O_CLAIMED && !places_one(&places_all[place])) /* slow */
                continue;
            right = places_run(&places_all[place], rows[i].nranks, body,
                               (void *)(uintptr_t)&rows[i], &p);
            for (r = 1; r < rows[i].nranks && rows[i].oddity < O_TOLD; r++)
                right &= strcmp(p->rank[r].text, p->rank[0].text) == 0;
            tap_ok(right, "%s: %s: %s", places_all[place].name, rows[i].name, p->rank[0].text);
            processes_free(p);
        }
    return tap_done();
}
