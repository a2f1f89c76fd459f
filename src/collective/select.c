/* Selects the algorithm and the grid of a call: from a table of measured choices, otherwise by a
 * model of latency and bandwidth. docs/tuning.md describes both.
 */
#include "src/collective/select.h"

enum {
    ITEM_BYTES = 16, /* of a message, handled by one thread at a time */
    WORD_BYTES = 8,  /* the same in a short message */
    WARP = 32,
    BUNDLE_BYTES = 7 * ITEM_BYTES, /* of a part: what a thread sends at a time; and what the */
    GROUP_BYTES = 4096,            /* threads of a warp take of a slot (bundles.cuh) */
    /* threads of a block that do no part of the message, if the block has more */
    CONTROL_THREADS = 32,
    LEAST_WORKERS = 64,    /* of a block on a GPU; more if there would be too many blocks */
    COPIES_STREAMS = 3,    /* the caller's and the communicator's two */
    LEAST_MOVERS = 128,    /* the same of one over windows that has VECTORS (table.c) */
    ENOUGH_BLOCKS = 64,    /* more make no algorithm much faster */
    LARGE_BYTES = 1 << 20, /* a message of this size is slower with fewer blocks */
    /* a message up to this size is faster with entries of one word (H200s), */
    SHORT_BYTES = 64 << 10,
    SHORT_BLOCK_BYTES = 4 << 10, /* if there are enough blocks for about one word a thread */
    /* per rank: a message of this size is faster if its stages overlap (H200s) */
    LONG_SHARE = 2 << 20,
    /* what a rank sends to all is faster in bundles from this size on (2, 4 and 8 ranks on one
     * H200, and two H200s) */
    BUNDLES_BYTES = 256 << 10,
    /* for each multiprocessor: more threads with bundles are slower (two and four H100s, 4 MiB and
     * more: by a third, and by half). Ranks that share a device have fewer blocks each, and as much
     * more threads in them; but not where a message goes in shares (four ranks on one H200, 1 MiB:
     * 6.1 us with 160 workers in a block, 6.7 with 288, 10.5 with 608) */
    BUNDLE_WORKERS = 192,
    EMULATED_BUNDLES = 16 << 10,
    EMULATED_SHORT = 4 << 10, /* on the emulated driver, whose threads soon have several entries */
    EMULATED_LONG = EMULATED_SHORT + ITEM_BYTES,
    IN_PLACE_BYTES = 256 << 20,  /* copies may serve a message of this size in place (H200s) */
    IN_PLACE_BYTES_2 = 512 << 20 /* the same with two ranks */
};

/* ---- which algorithm ---- */

/* The size of a call as used by tables and symwin-perf: bytes of the larger buffer. */
static size_t size_of(const struct sw_query *q)
{
    return sw_collective_size(q->collective, q->comm->nranks, q->bytes);
}

/* Bytes of the largest message that pushes send in one round. Half of an entry is flags where a
 * type has no spare pattern; the slots of those that have flags for any type are counted so. */
static uint64_t round_bytes(const struct sw_query *q, const struct sw_algorithm *a)
{
    const int slots = a->shares                        ? q->comm->nranks - 1
                      : a->round_slots == SW_ANY_RANKS ? q->comm->nranks
                                                       : a->round_slots;
    const uint64_t slot = a->shares && a->bundles
                              ? q->comm->slot_bytes / GROUP_BYTES * (WARP * BUNDLE_BYTES)
                              : q->comm->slot_bytes;
    const uint64_t bytes = slot * (uint64_t)slots;

    if (slots == 0)
        return UINT64_MAX;
    return a->flags || sw_type_is_float(q->type) ? bytes : bytes / 2;
}

/* Whether the root's message is divided among the other ranks: if there are several, a slot holds
 * what is sent in one piece, and a few launches hold the message. */
static int divides(const struct sw_query *q, const struct sw_algorithm *a)
{
    const uint64_t round = round_bytes(q, a);

    return q->comm->nranks > 2 && round > 0 && round / WORD_BYTES < (uint64_t)1 << 31 &&
           (q->bytes - 1) / round < (uint64_t)a->launches;
}

static const struct sw_algorithm *algorithm_of(const struct sw_query *q, symwin_algo algo)
{
    const struct sw_algorithm *a = sw_algorithm(q->collective,
                                                sw_kernels_algo(q->collective, algo, q->type));

    return a->shares && !divides(q, a) ? sw_algorithm(q->collective, a->shares) : a;
}

/* Bytes of a call's launch; the last one may have fewer. */
static uint64_t launch_bytes(const struct sw_query *q, const struct sw_algorithm *a)
{
    const uint64_t round = round_bytes(q, a);

    return q->bytes > round && (q->bytes - 1) / round < (uint64_t)a->launches ? round : q->bytes;
}

/* The limit on the blocks if it slows this message; 0: it does not. Tables are measured without a
 * limit. */
static int few_blocks(const struct sw_query *q)
{
    const int most = q->comm->max_blocks;

    return most < ENOUGH_BLOCKS && q->bytes >= LARGE_BYTES ? most : 0;
}

/* Some algorithms have their own kernels for long messages, in which threads have several entries.
 * With few blocks, shorter messages are long. Such blocks have half again as many threads. */
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

/* One-shots have their own kernels for short messages of whole entries. Where half of an entry is
 * flags, an entry has a word in every kernel, and these are the fastest for any message of one
 * round. */
static int is_short(const struct sw_query *q, const struct sw_algorithm *a)
{
    const uint64_t blocks = (uint64_t)q->comm->max_blocks; /* 0: no limit */
    const uint64_t most = sw_driver_is_emulated() ? EMULATED_SHORT
                          : a->flags              ? UINT64_MAX
                                                  : SHORT_BYTES;

    return a->words && q->bytes <= most && (blocks == 0 || q->bytes <= blocks * SHORT_BLOCK_BYTES);
}

static uint64_t bytes_to_all(const struct sw_query *q)
{
    return q->bytes * (uint64_t)q->comm->nranks;
}

/* Whether all ranks send bundles. What one rank alone knows has no part in it. */
static int has_bundles(const struct sw_query *q, const struct sw_algorithm *a)
{
    const uint64_t least = sw_driver_is_emulated() ? EMULATED_BUNDLES : BUNDLES_BYTES;

    if (a->shares)
        return a->bundles;
    return a->bundles && bytes_to_all(q) >= least && 2 * q->comm->slot_bytes >= GROUP_BYTES;
}

/* Bundles that a rank sends or receives at most. */
static uint64_t bundles_of(const struct sw_query *q, const struct sw_algorithm *a)
{
    return (a->shares ? q->bytes : bytes_to_all(q)) / BUNDLE_BYTES;
}

/* Whether a part is one round of them. */
static int is_one_round(const struct sw_query *q)
{
    const uint64_t data = WARP * BUNDLE_BYTES;

    return (q->bytes + data - 1) / data <= 2 * q->comm->slot_bytes / GROUP_BYTES;
}

/* Bytes of the message in an entry of a push. */
static uint64_t entry_bytes(const struct sw_query *q, const struct sw_algorithm *a)
{
    return a->flags || !sw_type_is_float(q->type) ? WORD_BYTES : ITEM_BYTES;
}

static const struct sw_kernel *find(const struct sw_query *q, symwin_algo algo,
                                    enum sw_kernel_shape shape)
{
    return sw_kernels_get(q->comm->kernels, q->collective, algo, q->type, q->op, shape);
}

static enum sw_kernel_shape shape_of(const struct sw_query *q, symwin_algo algo)
{
    const struct sw_algorithm *a = algorithm_of(q, algo);
    const int flows = a->long_ranks == SW_ANY_RANKS || a->long_ranks == q->comm->nranks;
    const struct sw_kernel *reads = q->reads_parts ? find(q, algo, SW_SHAPE_read) : NULL;

    if (reads != NULL && reads->shape == SW_SHAPE_read)
        return SW_SHAPE_read;
    if ((flows && is_long(q)) || q->large_parts)
        return SW_SHAPE_long;
    if (q->short_parts)
        return SW_SHAPE_short;
    if (a->any || (a->shares && !a->bundles))
        return SW_SHAPE_any;
    if (a->shares)
        return q->aligned && q->bytes % ITEM_BYTES == 0 ? SW_SHAPE_long : SW_SHAPE_any;
    if (has_bundles(q, a))
        return q->aligned && q->bytes % ITEM_BYTES == 0 && is_one_round(q) ? SW_SHAPE_long
                                                                           : SW_SHAPE_any;
    if (!q->aligned || launch_bytes(q, a) > round_bytes(q, a))
        return SW_SHAPE_any;
    if (a->words && a->flags && (q->bytes == 1 || q->bytes == 2 || q->bytes == 4))
        return SW_SHAPE_tiny;
    if (q->bytes % (a->flags ? WORD_BYTES : ITEM_BYTES) != 0)
        return SW_SHAPE_aligned;
    return is_short(q, a) ? SW_SHAPE_short : SW_SHAPE_whole;
}

/* Whether an algorithm can serve the call, and with which kernel; otherwise what the call lacks. */
static enum sw_support support_of(const struct sw_query *q, symwin_algo algo,
                                  const struct sw_kernel **kernel)
{
    const unsigned needs = algorithm_of(q, algo)->needs;

    if (!sw_algo_is_there(q->collective, algo))
        return SW_NEEDS_ALGORITHM;
    if ((needs & SW_NEEDS_WINDOWS) != 0 && !q->windows)
        return SW_NEEDS_WINDOWS;
    if ((needs & SW_NEEDS_MULTICAST) != 0 && (q->transports & SYMWIN_TRANSPORT_MULTICAST) == 0)
        return SW_NEEDS_MULTICAST;
    if ((q->comm->algos & 1u << algo) == 0 || (*kernel = find(q, algo, shape_of(q, algo))) == NULL)
        return SW_NEEDS_KERNEL;
    if ((needs & SW_NEEDS_TWO_BUFFERS) != 0 && q->in_place)
        return SW_NEEDS_TWO_BUFFERS;
    if ((needs & SW_NEEDS_STREAMS) != 0 && q->comm->streams_per_rank < COPIES_STREAMS)
        return SW_NEEDS_STREAMS;
    return SW_SUPPORTED;
}

/* Whether there is a kernel for this number of ranks and for such a message. A buffer in no window
 * may be aligned otherwise on each rank: the answer, which decides, does not depend on it. */
static int has_own(const struct sw_query *q, symwin_algo algo)
{
    struct sw_query alike = *q;
    const struct sw_kernel *kernel;

    alike.aligned = q->windows_aligned;
    kernel = find(q, algo, shape_of(&alike, algo));
    return kernel != NULL && kernel->shape != SW_SHAPE_any;
}

/* Takes an algorithm that the caller has not asked for, if it may serve the call. Copies need
 * hardware queues, which ranks that share a device may not have. In place, reductions by copies are
 * faster than puts for the largest messages only. No rank knows whether all have one offset. */
static int take(const struct sw_query *q, symwin_algo algo, struct sw_plan *plan)
{
    const size_t least = q->comm->nranks == 2 ? IN_PLACE_BYTES_2 : IN_PLACE_BYTES;
    const struct sw_algorithm *a = algorithm_of(q, algo);
    const int reduces = sw_collectives[q->collective].reduces;
    const struct sw_kernel *kernel;

    if ((a->needs & SW_NEEDS_STREAMS) != 0 &&
        (q->comm->sharers > 1 || (reduces && q->in_place && q->bytes < least)))
        return 0;
    if (sw_algorithm(q->collective, algo)->shares && !a->shares)
        return 0; /* another algorithm would serve it */
    if (a->one_offset || support_of(q, algo, &kernel) != SW_SUPPORTED)
        return 0;
    plan->algo = algo;
    plan->kernel = kernel;
    return 1;
}

/* Multicast was never measured: it serves small messages in one shot and large ones in two. The
 * algorithm for small messages serves every call. */
static void by_model(const struct sw_query *q, struct sw_plan *plan)
{
    const struct sw_collective *c = &sw_collectives[q->collective];
    const int blocks = few_blocks(q);
    const struct sw_model m = {.nranks = q->comm->nranks,
                               .bytes = q->bytes,
                               .is_float = sw_type_is_float(q->type),
                               .most_blocks = blocks,
                               .own_loads = (blocks > 0 || c->in_each) &&
                                            has_own(q, SYMWIN_ALGO_TWOSHOT),
                               .bundles = has_bundles(q, &c->algos[c->small]),
                               .one_device = q->comm->sharers == q->comm->nranks};
    double best_us = c->algos[c->small].model_us(&m);
    int i;

    (void)take(q, c->small, plan);
    for (i = 0; i < SW_ALGOS; i++) {
        const enum sw_chosen chosen = c->algos[i].chosen;
        double us;

        if (chosen != SW_CHOSEN && (chosen != SW_CHOSEN_FEW_BLOCKS || blocks == 0))
            continue;
        us = c->algos[i].model_us(&m);
        if (us < best_us && take(q, (symwin_algo)i, plan))
            best_us = us;
    }
    if (plan->algo != c->small)
        (void)take(q, c->large_multicast, plan);
}

/* Parts that a row has go straight belong to a one-shot all the same (parts.c). */
static symwin_algo algo_of(const struct sw_query *q, const struct sw_tuning_row *row)
{
    return sw_collectives[q->collective].by_parts ? SYMWIN_ALGO_ONESHOT : row->algo;
}

/* Tables are measured without multicast: if multicast could serve a call, only a row that names it
 * applies. Tables also do not apply to large messages with few blocks in windows. */
static int by_row(const struct sw_query *q, const struct sw_tuning_row *row, struct sw_plan *plan)
{
    const struct sw_kernel *multicast;

    if (row == NULL || (q->windows && few_blocks(q) > 0))
        return 0;
    if (!sw_algo_needs(q->collective, row->algo, SW_NEEDS_MULTICAST) &&
        support_of(q, sw_collectives[q->collective].large_multicast, &multicast) == SW_SUPPORTED)
        return 0;
    return take(q, algo_of(q, row), plan);
}

/* ---- unsupported calls ---- */

/* Of the buffers that decide, a registered one that was refused may be the reason. */
static symwin_status refuse_windows(const struct sw_query *q, const char *name)
{
    const struct sw_collective *c = &sw_collectives[q->collective];
    const enum sw_lies lies[2] = {c->in, c->out};
    const char *needs = !sw_decides(c->in)    ? "out to be in a window"
                        : !sw_decides(c->out) ? "in to be in a window"
                                              : "both buffers in windows";
    char why[SW_REFUSED_BYTES] = "";
    int b;

    for (b = 0; b < 2 && why[0] == '\0'; b++)
        if (q->buffers != NULL && sw_decides(lies[b]))
            sw_registered_refusal(q->comm, q->buffers[b].address, why);
    if (why[0] != '\0')
        return sw_fail(
            SYMWIN_UNSUPPORTED,
            "%s: %s needs %s of this communicator, and the registered %s does not become "
            "one: %s; or pass auto",
            q->call, name, needs, b == 1 ? "in" : "out", why);
    return sw_fail(SYMWIN_UNSUPPORTED,
                   "%s: %s needs %s of this communicator; register memory by "
                   "symwin_window_register() on every rank, or pass auto",
                   q->call, name, needs);
}

static symwin_status refuse(const struct sw_query *q, symwin_algo algo, enum sw_support lacking)
{
    const char *call = q->call, *name = symwin_algo_name(algo);

    switch (lacking) {
    case SW_NEEDS_ALGORITHM:
        return sw_fail(SYMWIN_UNSUPPORTED, "%s: there is no algorithm %s for it; pass auto", call,
                       name);
    case SW_NEEDS_WINDOWS:
        return refuse_windows(q, name);
    case SW_NEEDS_MULTICAST:
        return sw_fail(SYMWIN_UNSUPPORTED,
                       "%s: %s needs windows with multicast (see "
                       "symwin_window_info.transports)",
                       call, name);
    case SW_NEEDS_KERNEL:
        if (!sw_algo_needs(q->collective, algo, SW_NEEDS_MULTICAST))
            return sw_fail(
                SYMWIN_UNSUPPORTED,
                "%s: %s needs sm_90, and a device of this communicator is older, or its kernels "
                "were built for older ones (make help: ARCH)",
                call, name);
        return sw_fail(SYMWIN_UNSUPPORTED, "%s: multicast cannot reduce %s by %s", call,
                       symwin_type_name(q->type), symwin_op_name(q->op));
    case SW_NEEDS_TWO_BUFFERS:
        return sw_fail(SYMWIN_UNSUPPORTED,
                       "%s: %s reads inputs while other ranks write outputs and cannot work in "
                       "place; pass two buffers, or auto",
                       call, name);
    case SW_NEEDS_STREAMS:
        return sw_fail(
            SYMWIN_UNSUPPORTED,
            "%s: copies needs three streams a rank, and ranks that share a device have %d of "
            "them; set CUDA_DEVICE_MAX_CONNECTIONS to three times the number of ranks "
            "(32 at most) before CUDA starts, or use fewer ranks per device",
            call, q->comm->streams_per_rank);
    case SW_SUPPORTED:
        break;
    }
    return SYMWIN_OK;
}

/* ---- which grid ---- */

unsigned sw_select_workers(const struct sw_algorithm *a, const symwin_comm *comm, uint64_t items,
                           uint64_t most_blocks, unsigned most)
{
    const int many = comm->sharers == 1 && most_blocks >= ENOUGH_BLOCKS;
    uint64_t per_thread = 1, workers = most;

    if (a->control_warps) {
        workers = LEAST_WORKERS;
    } else if (many && a->threads > 0 && comm->nranks >= a->threads_ranks) {
        per_thread = UINT64_MAX;
        workers = a->threads;
    } else if (many && a->vectors > 0) {
        per_thread = a->vectors;
        workers = LEAST_MOVERS;
    }
    while (workers < most && (items / per_thread + workers - 1) / workers > most_blocks)
        workers *= 2;
    return workers < most ? (unsigned)workers : most;
}

/* Threads of a block for a bundle each, if all blocks are there: as few as can be. */
static uint64_t bundle_workers(const struct sw_query *q, const struct sw_algorithm *a,
                               uint64_t bundles, uint64_t blocks, uint64_t most)
{
    const uint64_t processors = (uint64_t)sw_kernels_multiprocessors(q->comm->kernels);
    const uint64_t each = (bundles + blocks - 1) / blocks;
    const uint64_t warps = (each + WARP - 1) / WARP * WARP;
    const uint64_t whole = a->shares ? blocks : processors;
    const uint64_t enough = BUNDLE_WORKERS * whole / blocks / WARP * WARP;
    const uint64_t room = enough < most ? enough : most;
    const uint64_t workers = warps < LEAST_WORKERS ? LEAST_WORKERS : warps;

    return workers < room ? workers : room;
}

/* Threads for the work: in small blocks if there are enough multiprocessors for them, or in blocks
 * of `asked_threads` if not 0. */
static struct sw_grid spread(const struct sw_query *q, const struct sw_algorithm *a,
                             const struct sw_kernel *kernel, uint64_t most_blocks,
                             uint64_t asked_threads, int bundles)
{
    const uint64_t room = (uint64_t)kernel->threads;
    const uint64_t whole = (asked_threads + WARP - 1) / WARP * WARP;
    const uint64_t most = whole > 0 && whole < room ? whole : room;
    const uint64_t control = a->control_warps && most > CONTROL_THREADS ? CONTROL_THREADS : 0;
    const uint64_t size = kernel->shape == SW_SHAPE_short ? WORD_BYTES
                          : a->control_warps              ? entry_bytes(q, a)
                                                          : ITEM_BYTES;
    const int all = (a->needs & SW_NEEDS_WINDOWS) != 0; /* a push handles all parts together */
    const uint64_t items = bundles ? bundles_of(q, a)
                                   : ((all ? size_of(q) : q->bytes) + size - 1) / size;
    const uint64_t workers = whole > 0 ? most - control
                             : bundles ? bundle_workers(q, a, items, most_blocks, most - control)
                                       : sw_select_workers(a, q->comm, items, most_blocks,
                                                           (unsigned)(most - control));
    uint64_t blocks = (items + workers - 1) / workers;

    if (blocks < 1)
        blocks = 1; /* a call without data */
    return (struct sw_grid){.blocks = (unsigned)(blocks < most_blocks ? blocks : most_blocks),
                            .threads = (unsigned)(workers + control)};
}

/* What the stream's part of the device takes of a kernel. */
struct room {
    unsigned part;     /* multiprocessors */
    unsigned resident; /* blocks on them at a time, */
    unsigned blocks;   /* and this rank's share of them */
    unsigned threads;  /* of a block */
};

static struct room room_of(const struct sw_query *q, const struct sw_kernel *kernel)
{
    const unsigned whole = (unsigned)sw_kernels_multiprocessors(q->comm->kernels);
    const unsigned part = q->multiprocessors > 0 ? q->multiprocessors : whole;
    const unsigned resident = (unsigned)kernel->resident / whole * part;

    return (struct room){part, resident, resident / (unsigned)q->comm->ranks_on_device,
                         (unsigned)kernel->threads};
}

symwin_status sw_select_check(const struct sw_query *q, const struct sw_kernel *kernel,
                              const struct sw_grid *asked)
{
    const struct room room = room_of(q, kernel);

    if (room.blocks < 1)
        return sw_fail(
            SYMWIN_UNSUPPORTED,
            "%s: %d ranks share device %d, and the %u multiprocessors of the stream's context hold "
            "%u blocks of this kernel at a time; use fewer ranks per device, or a larger context",
            q->call, q->comm->ranks_on_device, q->comm->device, room.part, room.resident);
    if (asked->blocks > room.blocks)
        return sw_fail(SYMWIN_UNSUPPORTED,
                       "%s: %u blocks were asked for and %u fit on device %d beside the other "
                       "ranks', on the %u multiprocessors of the stream's context; pass no more, "
                       "or 0 for the default",
                       q->call, asked->blocks, room.blocks, q->comm->device, room.part);
    if (asked->threads > room.threads)
        return sw_fail(SYMWIN_UNSUPPORTED,
                       "%s: %u threads were asked for and a block takes %u on device %d; pass no "
                       "more, or 0 for the default",
                       q->call, asked->threads, room.threads, q->comm->device);
    return SYMWIN_OK;
}

static unsigned smaller(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* Of the multiprocessors, those that a rank's calls may take where some are to be left free. */
static unsigned unspared(const symwin_comm *comm, unsigned part)
{
    const unsigned spare = smaller(comm->spare, part / 2);
    const unsigned most = (part - spare) / (unsigned)comm->ranks_on_device;

    return most > 0 ? most : 1;
}

/* The most blocks: at most one per multiprocessor, which is more than the links need, or as many as
 * a table says. Never more than the device can hold together with the other ranks' blocks there:
 * blocks that wait for blocks which cannot start would wait for ever. What was asked for and does
 * not fit is cut: sw_select_check() refuses it where one call alone is launched. */
static struct sw_grid limits_of(const struct sw_query *q, const struct sw_algorithm *a,
                                const struct sw_kernel *kernel, const struct sw_grid *measured,
                                const struct sw_grid *asked)
{
    const struct room room = room_of(q, kernel);
    const symwin_comm *comm = q->comm;
    unsigned most = room.part / (unsigned)comm->ranks_on_device;

    if (measured->blocks > 0)
        most = measured->blocks;
    else if (a->most_blocks > 0 && most > a->most_blocks)
        most = a->most_blocks;
    if (most < 1)
        most = 1;
    if (asked->blocks > 0)
        most = asked->blocks;
    most = smaller(most, room.blocks);
    if (comm->max_blocks > 0)
        most = smaller(most, (unsigned)comm->max_blocks);
    if (comm->spare > 0)
        most = smaller(most, unspared(comm, room.part));
    if (most > a->own_blocks && most < a->own_below && measured->blocks == 0 &&
        asked->blocks == 0 && kernel->shape != SW_SHAPE_any)
        most = a->own_blocks;
    if (q->most_blocks > 0)
        most = smaller(most, q->most_blocks);
    return (struct sw_grid){
        most, smaller(asked->threads > 0 ? asked->threads : measured->threads, room.threads)};
}

/* Enough blocks for the work. */
static symwin_status grid_of(const struct sw_query *q, const struct sw_algorithm *a,
                             const struct sw_kernel *kernel, const struct sw_grid *measured,
                             const struct sw_grid *asked, struct sw_grid *grid)
{
    const symwin_status status = sw_select_check(q, kernel, asked);
    const struct sw_grid limits = limits_of(q, a, kernel, measured, asked);

    if (status != SYMWIN_OK)
        return status;
    *grid = spread(q, a, kernel, limits.blocks, limits.threads, has_bundles(q, a));
    if (a->only_words) {
        grid->blocks = 1;
        grid->threads = smaller(grid->threads, SW_FLAG_THREADS);
    }
    return SYMWIN_OK;
}

symwin_status sw_select_pairs(const struct sw_query *q, const struct sw_kernel *kernel,
                              const struct sw_grid *asked, struct sw_grid *limits)
{
    *limits = limits_of(q, &sw_pairs, kernel, &(struct sw_grid){0, 0}, asked);
    return sw_select_check(q, kernel, &(struct sw_grid){0, 0});
}

symwin_status sw_select_group(const struct sw_query *q, const struct sw_kernel *kernel,
                              unsigned parts, const struct sw_grid *asked, struct sw_grid *grid)
{
    /* whatever the calls are, its entries are those of a call that moves bytes */
    const struct sw_algorithm *a = sw_algorithm(SYMWIN_ALLGATHER, SYMWIN_ALGO_ONESHOT);
    const struct sw_grid limits = limits_of(q, a, kernel, &(struct sw_grid){0, 0}, asked);

    *grid = spread(q, a, kernel, limits.blocks / parts, limits.threads, 0);
    grid->blocks *= parts;
    return sw_select_check(q, kernel, &(struct sw_grid){0, 0});
}

/* Reductions by copies in place begin with a two-shot put. Tables do not cover its grid. */
static symwin_status plan_put(const struct sw_query *q, const struct sw_grid *asked,
                              struct sw_plan *plan)
{
    const symwin_algo put = SYMWIN_ALGO_TWOSHOT_PUT;

    plan->put = find(q, put, is_long(q) ? SW_SHAPE_long : shape_of(q, put));
    return grid_of(q, algorithm_of(q, put), plan->put, &(struct sw_grid){0, 0}, asked,
                   &plan->put_grid);
}

/* Chooses the algorithm: by the row that is returned, or by the model. Where parts have unequal
 * lengths, ranks may have different rows: there is one algorithm, and rows say more of the grid
 * only. */
static const struct sw_tuning_row *choose(const struct sw_query *q, struct sw_plan *out)
{
    const struct sw_tuning_row *row = sw_tuning_find(q->comm->tuning, q->collective, q->type,
                                                     q->windows || q->by_window, size_of(q));

    out->measured = by_row(q, row, out);
    if (!out->measured)
        by_model(q, out);
    return row;
}

int sw_select_wants_windows(const struct sw_query *q, symwin_algo algo)
{
    static const unsigned transports[] = {SYMWIN_TRANSPORT_PEER,
                                          SYMWIN_TRANSPORT_PEER | SYMWIN_TRANSPORT_MULTICAST};
    struct sw_query with = *q;
    int wants = 0, i;

    if (algo != SYMWIN_ALGO_AUTO)
        return sw_algo_needs(q->collective, algo, SW_NEEDS_WINDOWS);
    with.windows = with.aligned = with.windows_aligned = 1;
    with.in_place = 0;
    for (i = 0; i < 2 && !wants; i++) {
        struct sw_plan plan = {.algo = SYMWIN_ALGO_AUTO};

        with.transports = transports[i];
        (void)choose(&with, &plan);
        wants = sw_algo_needs(q->collective, plan.algo, SW_NEEDS_WINDOWS);
    }
    return wants;
}

static uint32_t stage_of(const struct sw_query *q, const struct sw_algorithm *a)
{
    if (a->shares)
        return SW_MOVE_SHARES;
    if (has_bundles(q, a))
        return SW_MOVE_BUNDLES;
    return a->stage | (a->vectors > 0 && q->comm->sharers == 1 ? (uint32_t)SW_PUT_BESIDE : 0);
}

symwin_status sw_select_new_plan(const struct sw_query *q, symwin_algo algo,
                                 const struct sw_grid *asked, struct sw_plan *out)
{
    const struct sw_tuning_row *row = NULL;
    struct sw_grid measured = {0, 0};
    symwin_status status;

    *out = (struct sw_plan){.algo = algo};
    if (algo == SYMWIN_ALGO_AUTO) {
        row = choose(q, out);
    } else {
        const enum sw_support support = support_of(q, algo, &out->kernel);

        if (support != SW_SUPPORTED)
            return refuse(q, algo, support);
    }
    if (out->measured)
        measured = (struct sw_grid){row->blocks, row->threads};
    out->algorithm = algorithm_of(q, out->algo);
    out->stage = stage_of(q, out->algorithm);
    out->bytes = launch_bytes(q, out->algorithm);
    status = grid_of(q, out->algorithm, out->kernel, &measured, asked, &out->grid);
    if (status == SYMWIN_OK && q->in_place && out->algorithm->queue != NULL &&
        sw_collectives[q->collective].reduces)
        status = plan_put(q, asked, out);
    return status;
}
