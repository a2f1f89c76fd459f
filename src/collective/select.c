/* Which algorithm serves a call, and by which grid: what a table of measured choices says, or else what a
 * model of latency and bandwidth does. docs/tuning.md describes both.
 */
#include "src/collective/select.h"

enum {
    ONESHOT_MC_BYTES = 64 << 10,
    ITEM_BYTES = 16, /* what a thread handles at a time, */
    WORD_BYTES = 8,  /* and of a short message */
    WARP = 32,
    CONTROL_WARPS = 32, /* threads of a block that do no part of the message, if there are more */
    LEAST_WORKERS = 64, /* of a block on a GPU; more where there would be too many blocks */
    BULK_BLOCKS = 8,    /* with bulk copies; more are slower (H200s) */
    LOADS_BLOCKS = 8,   /* of the two-shot over windows by its own kernels: as quick as any more, */
    LOADS_MORE = 24,    /* up to these (H200s) */
    COPIES_BLOCKS = 64, /* that sum beside copies; more are no quicker (H200s) */
    COPIES_STREAMS = 3, /* the caller's and the communicator's two */
    ENOUGH_BLOCKS = 64, /* more make no algorithm much quicker */
    LARGE_BYTES = 1 << 20,       /* of a message that feels it when there are fewer */
    SHORT_BYTES = 64 << 10,      /* of a message that is quicker by words (H200s), */
    SHORT_BLOCK_BYTES = 4 << 10, /* where blocks are not too few for a word a thread */
    LONG_SHARE = 2 << 20,        /* of a rank, of one whose stages overlap (H200s) */
    EMULATED_SHORT = 4 << 10, /* on the emulated driver, whose threads have several entries soon, */
    EMULATED_LONG = EMULATED_SHORT + ITEM_BYTES,
    IN_PLACE_BYTES = 256 << 20,  /* of one that copies may serve in place (H200s), */
    IN_PLACE_BYTES_2 = 512 << 20 /* and by two ranks */
};

static const char allreduce_call[] = "symwin_allreduce";

/* ---- which algorithm ---- */

/* Bytes of the largest message that pushes send in one round. */
static uint64_t round_bytes(const symwin_comm *comm, symwin_algo algo)
{
    switch (algo) {
    case SYMWIN_ALGO_ONESHOT_SENTINEL:
        return 2 * comm->slot_bytes;
    case SYMWIN_ALGO_TWOSHOT_PUSH:
        return comm->slot_bytes * (uint64_t)comm->nranks;
    default:
        return UINT64_MAX; /* no matter */
    }
}

/* The limit to the blocks, where a large message feels it: 0, there is none. Tables are measured without. */
static int few_blocks(const struct sw_query *q)
{
    const int most = q->comm->max_blocks;

    return most < ENOUGH_BLOCKS && q->bytes >= LARGE_BYTES ? most : 0;
}

/* Long messages have kernels of their own for some algorithms: where threads have several entries, so with few
 * blocks, of half again as many threads, shorter ones are long. */
static int is_long(const struct sw_query *q)
{
    const uint64_t blocks = (uint64_t)few_blocks(q);
    uint64_t least = LONG_SHARE * (uint64_t)q->comm->nranks;

    if (sw_driver_is_emulated())
        least = EMULATED_LONG;
    else if (blocks > 0)
        least = least * blocks * 3 / 2 / (uint64_t)sw_kernels_multiprocessors(q->comm->kernels);
    return q->aligned && q->bytes >= least && q->bytes % ITEM_BYTES == 0;
}

/* Short messages of whole entries have kernels of their own for the one-shot. */
static int is_short(const struct sw_query *q, symwin_algo algo)
{
    const uint64_t blocks = (uint64_t)q->comm->max_blocks; /* 0: as many as there are */
    const uint64_t most = sw_driver_is_emulated() ? EMULATED_SHORT : SHORT_BYTES;

    return algo == SYMWIN_ALGO_ONESHOT_SENTINEL && q->bytes <= most &&
           (blocks == 0 || q->bytes <= blocks * SHORT_BLOCK_BYTES);
}

static enum sw_kernel_shape shape_of(const struct sw_query *q, symwin_algo algo)
{
    const int flows = algo == SYMWIN_ALGO_TWOSHOT_PUSH ||
                      (algo == SYMWIN_ALGO_ONESHOT_SENTINEL && q->comm->nranks == 2);

    if (flows && is_long(q))
        return SW_SHAPE_long;
    if (!q->aligned || q->bytes > round_bytes(q->comm, algo))
        return SW_SHAPE_any;
    if (q->bytes % ITEM_BYTES != 0)
        return SW_SHAPE_aligned;
    return is_short(q, algo) ? SW_SHAPE_short : SW_SHAPE_whole;
}

static const struct sw_kernel *find(const struct sw_query *q, symwin_algo algo,
                                    enum sw_kernel_shape shape)
{
    return sw_kernels_get(q->comm->kernels, algo, q->type, q->op, shape);
}

const struct sw_kernel *sw_select_find(const struct sw_query *q, symwin_algo algo)
{
    return find(q, algo, shape_of(q, algo));
}

const struct sw_kernel *sw_select_find_put(const struct sw_query *q)
{
    const symwin_algo put = SYMWIN_ALGO_TWOSHOT_PUT;

    return find(q, put, is_long(q) ? SW_SHAPE_long : shape_of(q, put));
}

enum sw_service sw_select_support(const struct sw_query *q, symwin_algo algo)
{
    if (sw_algo_needs_windows(algo) && !q->windows)
        return SW_NEEDS_WINDOWS;
    if (sw_algo_needs_multicast(algo) && (q->transports & SYMWIN_TRANSPORT_MULTICAST) == 0)
        return SW_NEEDS_MULTICAST;
    if ((q->comm->algos & 1u << algo) == 0 || sw_select_find(q, algo) == NULL)
        return SW_NEEDS_KERNEL;
    if (algo == SYMWIN_ALGO_ONESHOT_MC && q->in_place)
        return SW_NEEDS_TWO_BUFFERS;
    if (algo == SYMWIN_ALGO_COPIES && q->comm->streams_per_rank < COPIES_STREAMS)
        return SW_NEEDS_STREAMS;
    return SW_SERVES;
}

/* Of the model, fitted to H200s with 2 and 4 ranks. A GB/s is a thousand bytes a microsecond. */
#define HOP_US 1.3  /* from a rank's memory to a peer's, until the peer has seen it */
#define PUT_US 5.0  /* of the two-shot put: its barriers */
#define PEER_US 8.0 /* of the two-shot over windows for each peer: barriers, and loads that meet; */
#define PEERS_US 6.0   /* for all of them, by kernels for the number of ranks */
#define COPIES_US 12.0 /* of the copies: events and flags */
#define COPY_US 7.0    /* and of each of them */
#define COPY_BYTES_US 392e3
#define LINK_BYTES_US 340e3    /* what a rank sends, or receives, in a microsecond */
#define BULK_BYTES_US 300e3    /* by bulk copies */
#define LOCAL_BYTES_US 1300e3  /* what it handles after that, */
#define BESIDE_BYTES_US 3000e3 /* and meanwhile, where it does both at once */
#define PUSH_BLOCK_US 16e3     /* and what a block of few does: of all that pushes, */
#define PUSH_FEW_US 280e3      /* but all of them no more than this, */
#define LOAD_BLOCK_US 66e3     /* the two-shot over windows, of what it reads and writes, */
#define OWN_LOAD_BLOCK_US 92e3 /* the same by kernels for the number of ranks, */
#define BULK_BLOCK_US 74e3     /* that by bulk copies, */
#define SUM_BLOCK_US 63e3      /* and the sum between copies */
#define BESIDE_BYTES (4 << 20) /* from which message on stages of pushes go on at once */

static double least(double a, double b)
{
    return a < b ? a : b;
}

static double most(double a, double b)
{
    return a > b ? a : b;
}

/* Two chunks, the sums of which go beside a copy of one to one peer. */
static double copies_us(double n, double message, double blocks)
{
    const double chunk = message / n / 2;
    const double copy = chunk / COPY_BYTES_US;
    const double sum = (n + 1) * chunk / (blocks * SUM_BLOCK_US);

    return COPIES_US + COPY_US * 2 * n + 4 * (n - 1) * copy + 2 * most(sum - copy, 0);
}

double sw_select_model_us(symwin_algo algo, int nranks, size_t bytes, int is_float, int most_blocks,
                          int own_loads)
{
    const double n = nranks;
    const double message = (double)bytes;
    const double pushed = is_float && algo != SYMWIN_ALGO_ONESHOT ? message : 2 * message;
    const double both_ways = 2 * (n - 1) / n * message;
    const double blocks = most_blocks > 0 ? most_blocks : 1e6;
    const double push_rate = most_blocks > 0 ? least(PUSH_FEW_US, blocks * PUSH_BLOCK_US)
                                             : LINK_BYTES_US;
    const double load_block = own_loads ? OWN_LOAD_BLOCK_US : LOAD_BLOCK_US;
    const double barriers = own_loads ? PEERS_US : PEER_US * (n - 1);
    const double local = is_float && bytes >= BESIDE_BYTES ? BESIDE_BYTES_US : LOCAL_BYTES_US;

    switch (algo) {
    case SYMWIN_ALGO_ONESHOT:
    case SYMWIN_ALGO_ONESHOT_SENTINEL:
        return HOP_US + (n - 1) * pushed / push_rate + n * pushed / local;
    case SYMWIN_ALGO_TWOSHOT_PUSH:
        return 2 * HOP_US + 2 * (n - 1) / n * pushed / push_rate + (n - 1) / n * pushed / local;
    case SYMWIN_ALGO_TWOSHOT_PUT:
        return 2 * HOP_US + PUT_US + (n - 1) / n * (pushed + message) / push_rate +
               (n - 1) / n * pushed / 2 / BESIDE_BYTES_US;
    case SYMWIN_ALGO_TWOSHOT_BULK:
        return 2 * HOP_US + PEER_US * (n - 1) +
               most(both_ways / BULK_BYTES_US, 2 * message / (blocks * BULK_BLOCK_US));
    case SYMWIN_ALGO_COPIES:
        return copies_us(n, message, blocks);
    default: /* loads over windows */
        return 2 * HOP_US + barriers +
               most(both_ways / LINK_BYTES_US, 2 * message / (blocks * load_block)) +
               both_ways / 2 / BESIDE_BYTES_US;
    }
}

/* Whether there is a kernel for this number of ranks and such a message. */
static int has_own(const struct sw_query *q, symwin_algo algo)
{
    return sw_select_find(q, algo) != find(q, algo, SW_SHAPE_any);
}

/* Whether what the caller has not asked for may serve the call: copies want hardware queues, which ranks that share a
 * device may not have, and in place they are ahead of puts for the largest messages only. */
static int may_serve(const struct sw_query *q, symwin_algo algo)
{
    const size_t least = q->comm->nranks == 2 ? IN_PLACE_BYTES_2 : IN_PLACE_BYTES;

    if (algo == SYMWIN_ALGO_COPIES &&
        (q->comm->shares_devices || (q->in_place && q->bytes < least)))
        return 0;
    return sw_select_support(q, algo) == SW_SERVES;
}

/* Multicast was never measured: small messages that it serves go by it in one shot, large ones in two. */
static symwin_algo by_model(const struct sw_query *q)
{
    static const symwin_algo algos[6] = {SYMWIN_ALGO_ONESHOT_SENTINEL, SYMWIN_ALGO_TWOSHOT_PUSH,
                                         SYMWIN_ALGO_TWOSHOT_PUT,      SYMWIN_ALGO_COPIES,
                                         SYMWIN_ALGO_TWOSHOT,          SYMWIN_ALGO_TWOSHOT_BULK};
    const int is_float = sw_type_is_float(q->type), blocks = few_blocks(q);
    const int own_loads = blocks > 0 && has_own(q, SYMWIN_ALGO_TWOSHOT);
    symwin_algo best = algos[0];
    double best_us = 0;
    int i;

    if (q->bytes <= ONESHOT_MC_BYTES && sw_select_support(q, SYMWIN_ALGO_ONESHOT_MC) == SW_SERVES)
        return SYMWIN_ALGO_ONESHOT_MC;
    for (i = 0; i < (blocks > 0 ? 6 : 5); i++) {
        const double us = sw_select_model_us(algos[i], q->comm->nranks, q->bytes, is_float, blocks,
                                             own_loads);

        if (i == 0 || (us < best_us && may_serve(q, algos[i]))) {
            best = algos[i];
            best_us = us;
        }
    }
    if (best != algos[0] && sw_select_support(q, SYMWIN_ALGO_TWOSHOT_MC) == SW_SERVES)
        return SYMWIN_ALGO_TWOSHOT_MC;
    return best;
}

/* Tables are measured without multicast: where a call could go by it, only a row that says so is for it. Nor are they
 * for large messages of few blocks in windows. */
static int applies(const struct sw_query *q, const struct sw_tuning_row *row)
{
    if (!may_serve(q, row->algo) || (q->windows && few_blocks(q) > 0))
        return 0;
    return sw_algo_needs_multicast(row->algo) ||
           sw_select_support(q, SYMWIN_ALGO_TWOSHOT_MC) != SW_SERVES;
}

void sw_select_make(const struct sw_query *q, struct sw_selection *out)
{
    const struct sw_tuning_row *row = sw_tuning_find(q->comm->tuning, q->type, q->windows,
                                                     q->bytes);

    if (row != NULL && applies(q, row))
        *out = (struct sw_selection){row->algo, {row->blocks, row->threads}, 1};
    else
        *out = (struct sw_selection){.algo = by_model(q)};
}

/* ---- which grid ---- */

static uint64_t item_bytes(const struct sw_query *q, symwin_algo algo)
{
    return shape_of(q, algo) == SW_SHAPE_short && has_own(q, algo) ? WORD_BYTES : ITEM_BYTES;
}

/* Threads for the work, in small blocks where there are enough multiprocessors for them; or in blocks of
 * `asked_threads`, if not 0. `room`: what a block takes. */
static struct sw_grid spread(const struct sw_query *q, symwin_algo algo, uint64_t room,
                             uint64_t most_blocks, uint64_t asked_threads)
{
    const uint64_t whole = (asked_threads + WARP - 1) / WARP * WARP;
    const uint64_t most = whole > 0 && whole < room ? whole : room;
    const uint64_t control_warps = sw_algo_has_control_warp(algo) && most > CONTROL_WARPS
                                       ? CONTROL_WARPS
                                       : 0;
    const uint64_t size = item_bytes(q, algo), items = (q->bytes + size - 1) / size;
    uint64_t workers = control_warps > 0 && whole == 0 ? LEAST_WORKERS : most;
    uint64_t blocks;

    while (workers + control_warps < most && (items + workers - 1) / workers > most_blocks)
        workers *= 2;
    if (workers + control_warps > most)
        workers = most - control_warps;
    blocks = (items + workers - 1) / workers;
    return (struct sw_grid){.blocks = (unsigned)(blocks < most_blocks ? blocks : most_blocks),
                            .threads = (unsigned)(workers + control_warps)};
}

/* Enough blocks for the work, at most one a multiprocessor, which is more than the links need, or as a table
 * says; and never more than the device holds beside those of the other ranks on it: blocks that wait for
 * blocks which cannot start would wait for ever. */
static symwin_status grid_of(const struct sw_query *q, symwin_algo algo,
                             const struct sw_kernel *kernel, const struct sw_grid *measured,
                             const struct sw_grid *asked, struct sw_grid *grid)
{
    const symwin_comm *comm = q->comm;
    const unsigned sharers = (unsigned)comm->ranks_on_device;
    const unsigned whole = (unsigned)sw_kernels_multiprocessors(comm->kernels);
    const unsigned part = q->multiprocessors > 0 ? q->multiprocessors : whole;
    const unsigned room = (unsigned)kernel->threads;
    const unsigned resident = (unsigned)kernel->resident / whole * part;
    const unsigned fit = resident / sharers;
    unsigned most = part / sharers;
    unsigned threads = measured->threads < room ? measured->threads : room;

    if (fit < 1)
        return sw_fail(
            SYMWIN_UNSUPPORTED,
            "%s: %u ranks share device %d, and the %u multiprocessors of the stream's context hold "
            "%u blocks of this kernel at a time; use fewer ranks a device, or a larger context",
            allreduce_call, sharers, comm->device, part, resident);
    if (asked->blocks > fit)
        return sw_fail(SYMWIN_UNSUPPORTED,
                       "%s: %u blocks were asked for and %u fit on device %d beside the other "
                       "ranks', on the %u multiprocessors of the stream's context",
                       allreduce_call, asked->blocks, fit, comm->device, part);
    if (asked->threads > room)
        return sw_fail(SYMWIN_UNSUPPORTED,
                       "%s: %u threads were asked for and a block takes %u on device %d",
                       allreduce_call, asked->threads, room, comm->device);
    if (measured->blocks > 0)
        most = measured->blocks;
    else if (algo == SYMWIN_ALGO_TWOSHOT_BULK && most > BULK_BLOCKS)
        most = BULK_BLOCKS;
    else if (algo == SYMWIN_ALGO_COPIES && most > COPIES_BLOCKS)
        most = COPIES_BLOCKS;
    if (most < 1)
        most = 1;
    if (most > fit)
        most = fit;
    if (asked->blocks > 0)
        most = asked->blocks;
    if (comm->max_blocks > 0 && (unsigned)comm->max_blocks < most)
        most = (unsigned)comm->max_blocks;
    if (algo == SYMWIN_ALGO_TWOSHOT && measured->blocks == 0 && asked->blocks == 0 &&
        most > LOADS_BLOCKS && most < LOADS_MORE && has_own(q, SYMWIN_ALGO_TWOSHOT))
        most = LOADS_BLOCKS;
    if (q->most_blocks > 0 && q->most_blocks < most)
        most = q->most_blocks;
    if (asked->threads > 0)
        threads = asked->threads;
    *grid = spread(q, algo, room, most, threads);
    return SYMWIN_OK;
}

symwin_status sw_select_grid(const struct sw_query *q, const struct sw_selection *choice,
                             const struct sw_grid *asked, struct sw_grid *grid)
{
    return grid_of(q, choice->algo, sw_select_find(q, choice->algo), &choice->grid, asked, grid);
}

/* Tables have nothing of it. */
symwin_status sw_select_put_grid(const struct sw_query *q, const struct sw_grid *asked,
                                 struct sw_grid *grid)
{
    return grid_of(q, SYMWIN_ALGO_TWOSHOT_PUT, sw_select_find_put(q), &(struct sw_grid){0, 0},
                   asked, grid);
}
