/* The table of collectives: see table.h. */
#include "src/collective/table.h"

#include "kernels/kernel_args.h"
#include "src/collective/copies.h"

#define MULTICAST(more)                                                                            \
    .chosen = SW_NEVER_CHOSEN,                                                                     \
    .needs = SW_NEEDS_WINDOWS | SW_NEEDS_MULTICAST | SW_NEEDS_KERNEL | (more)

static const struct sw_algorithm allreduce[SW_ALGOS] = {
    [SYMWIN_ALGO_ONESHOT] = {.chosen = SW_NEVER_CHOSEN,
                             .model_us = sw_model_flags,
                             .wide_floats = SYMWIN_ALGO_ONESHOT_SENTINEL,
                             .control_warps = 1,
                             .flags = 1},
    [SYMWIN_ALGO_TWOSHOT] = {.chosen = SW_CHOSEN,
                             .needs = SW_NEEDS_WINDOWS,
                             .model_us = sw_model_loads,
                             /* As fast as any number between these two (H200s). */
                             .own_blocks = 8,
                             .own_below = 24},
    [SYMWIN_ALGO_ONESHOT_MC] = {MULTICAST(SW_NEEDS_TWO_BUFFERS)},
    [SYMWIN_ALGO_TWOSHOT_MC] = {MULTICAST(0)},
    [SYMWIN_ALGO_ONESHOT_SENTINEL] = {.chosen = SW_CHOSEN,
                                      .model_us = sw_model_sentinel,
                                      .integers = SYMWIN_ALGO_ONESHOT,
                                      .control_warps = 1,
                                      .round_slots = 2,
                                      .words = 1,
                                      .long_ranks = 2},
    [SYMWIN_ALGO_TWOSHOT_PUSH] = {.chosen = SW_CHOSEN,
                                  .model_us = sw_model_push,
                                  .control_warps = 1,
                                  .round_slots = SW_ANY_RANKS,
                                  .long_ranks = SW_ANY_RANKS},
    [SYMWIN_ALGO_TWOSHOT_PUT] = {.needs = SW_NEEDS_WINDOWS,
                                 .chosen = SW_CHOSEN,
                                 .model_us = sw_model_put,
                                 .control_warps = 1},
    [SYMWIN_ALGO_COPIES] = {.needs = SW_NEEDS_WINDOWS | SW_NEEDS_STREAMS,
                            .chosen = SW_CHOSEN,
                            .model_us = sw_model_copies,
                            .most_blocks = 64, /* for the sums between copies (H200s) */
                            .queue = sw_copies_queue},
    [SYMWIN_ALGO_TWOSHOT_BULK] = {.needs = SW_NEEDS_WINDOWS | SW_NEEDS_KERNEL,
                                  .chosen = SW_CHOSEN_FEW_BLOCKS,
                                  .model_us = sw_model_bulk,
                                  .shared = 1,
                                  .most_blocks = 8}, /* more are slower (H200s) */
};

/* Of the collectives that move bytes. */
#define CAST [SYMWIN_ALGO_ONESHOT_MC] = {MULTICAST(0), .family = SW_FAMILY_move}
#define MOVE(us)                                                                                   \
    [SYMWIN_ALGO_ONESHOT] = {.chosen = SW_CHOSEN,                                                  \
                             .model_us = us,                                                       \
                             .family = SW_FAMILY_move,                                             \
                             .control_warps = 1,                                                   \
                             .round_slots = 1,                                                     \
                             .words = 1,                                                           \
                             .bundles = 1,                                                         \
                             .flags = 1}
#define PUT(us, more, where)                                                                       \
    [SYMWIN_ALGO_PUT] = {.chosen = SW_CHOSEN,                                                      \
                         .needs = SW_NEEDS_WINDOWS | (more),                                       \
                         .model_us = us,                                                           \
                         .family = SW_FAMILY_move,                                                 \
                         .stage = where,                                                           \
                         .vectors = VECTORS}

/* With what says how many threads a block has. */
#define GET(us, ...)                                                                               \
    [SYMWIN_ALGO_TWOSHOT] = {.chosen = SW_CHOSEN,                                                  \
                             .needs = SW_NEEDS_WINDOWS,                                            \
                             .model_us = us,                                                       \
                             .family = SW_FAMILY_move,                                             \
                             __VA_ARGS__}

/* From 4 MiB on. Four H100s took 14.8 us for an all-gather of 4 MiB by blocks of 160 threads, and
 * 17.1 by 640; 64 MiB 151 us with both. */
#define VECTORS 16
/* More loads at the same time from ranks that load from each other slow all of them. On four H100s
 * a broadcast of 16 MiB took 53.6 us with 96 threads and 74.9 with 640; two ranks gain nothing. */
#define LOADS .threads = 96, .threads_ranks = 3

/* `one`: hosts do not know other ranks' offsets, so all have to be the same, and copies are made if
 * asked for. The kernels around the copies are the all-reduce's. */
#define COPY(us, more, one)                                                                        \
    [SYMWIN_ALGO_COPIES] = {.chosen = SW_CHOSEN,                                                   \
                            .needs = SW_NEEDS_WINDOWS | SW_NEEDS_STREAMS | (more),                 \
                            .model_us = us,                                                        \
                            .one_offset = one,                                                     \
                            .only_words = 1,                                                       \
                            .queue = sw_copies_queue}

/* Of one round each, of a call. More would fill a stream's queue. */
#define LAUNCHES 16

/* By the kernels of the one-shot, in launches of one round. */
#define SHARES(us, kernels)                                                                        \
    [SYMWIN_ALGO_TWOSHOT_PUSH] = {.chosen = SW_CHOSEN,                                             \
                                  .model_us = us,                                                  \
                                  .family = kernels,                                               \
                                  .control_warps = 1,                                              \
                                  .launches = LAUNCHES,                                            \
                                  .shares = SYMWIN_ALGO_ONESHOT,                                   \
                                  .bundles = (kernels) == SW_FAMILY_move,                          \
                                  .flags = (kernels) == SW_FAMILY_move}

static const struct sw_algorithm spread[SW_ALGOS] = {
    MOVE(sw_model_exchange), PUT(sw_model_move, 0, 0), COPY(sw_model_parts_copied, 0, 0), CAST};
static const struct sw_algorithm exchange[SW_ALGOS] = {
    MOVE(sw_model_exchange), PUT(sw_model_move, SW_NEEDS_TWO_BUFFERS, 0),
    COPY(sw_model_parts_copied, SW_NEEDS_TWO_BUFFERS, 0)};
static const struct sw_algorithm broadcast[SW_ALGOS] = {
    MOVE(sw_model_send),       SHARES(sw_model_pass_on, SW_FAMILY_move), PUT(sw_model_store, 0, 0),
    GET(sw_model_pass, LOADS), COPY(sw_model_root_copied, 0, 0),         CAST};
static const struct sw_algorithm gather[SW_ALGOS] = {MOVE(sw_model_send),
                                                     GET(sw_model_offered, .vectors = VECTORS),
                                                     COPY(sw_model_root_copied, 0, 1)};
static const struct sw_algorithm scatter[SW_ALGOS] = {MOVE(sw_model_scatter),
                                                      PUT(sw_model_offered, 0, SW_PUT_OFFERED),
                                                      COPY(sw_model_root_copied, 0, 1)};

/* Of those that reduce, each part for one rank. Two H200s took 974 us to reduce 256 MiB to one rank
 * in four rounds of a launch, and 187 for one round. */
#define PARTS(us, most)                                                                            \
    [SYMWIN_ALGO_ONESHOT] = {.chosen = SW_CHOSEN,                                                  \
                             .model_us = us,                                                       \
                             .family = SW_FAMILY_parts,                                            \
                             .control_warps = 1,                                                   \
                             .round_slots = 2,                                                     \
                             .words = 1,                                                           \
                             .launches = most}

static const struct sw_algorithm reduce[SW_ALGOS] = {
    PARTS(sw_model_collect, LAUNCHES),
    SHARES(sw_model_collect_shares, SW_FAMILY_parts),
    [SYMWIN_ALGO_TWOSHOT] = {.chosen = SW_CHOSEN,
                             .needs = SW_NEEDS_WINDOWS,
                             .model_us = sw_model_root,
                             .stage = SW_LOADS_ROOT,
                             .any = 1,
                             LOADS},
    [SYMWIN_ALGO_TWOSHOT_MC] = {MULTICAST(0), .stage = SW_LOADS_ROOT},
};
static const struct sw_algorithm reduce_scatter[SW_ALGOS] = {
    PARTS(sw_model_parts_pushed, 0),
    [SYMWIN_ALGO_TWOSHOT] = {.chosen = SW_CHOSEN,
                             .needs = SW_NEEDS_WINDOWS,
                             .model_us = sw_model_parts,
                             .stage = SW_LOADS_PART,
                             .threads = 288, /* 2 % quicker than 640 (two H100s and four) */
                             .own_blocks = 8,
                             .own_below = 24},
    [SYMWIN_ALGO_TWOSHOT_MC] = {MULTICAST(0), .stage = SW_LOADS_PART},
};

static const struct sw_algorithm barrier[SW_ALGOS] = {
    [SYMWIN_ALGO_ONESHOT] = {.chosen = SW_CHOSEN,
                             .model_us = sw_model_flags,
                             .only_words = 1,
                             .family = SW_FAMILY_barrier},
};

/* Of those whose parts have unequal lengths. A call of the put is a one-shot whose parts go
 * straight: no caller asks for it, and a rank makes its choice for each part. */
static const struct sw_algorithm by_parts[SW_ALGOS] = {
    [SYMWIN_ALGO_PUT] = {.chosen = SW_ABSENT, .needs = SW_NEEDS_WINDOWS},
    [SYMWIN_ALGO_ONESHOT] = {.chosen = SW_CHOSEN,
                             .model_us = sw_model_flags,
                             .family = SW_FAMILY_table,
                             .control_warps = 1,
                             .flags = 1},
};

const struct sw_algorithm sw_pairs = {.chosen = SW_CHOSEN, .family = SW_FAMILY_pair};

#define CALLS(name)                                                                                \
    .call = "symwin_" #name, .with = "symwin_" #name "_with", .query = "symwin_" #name "_query"

#define SMALL .small = SYMWIN_ALGO_ONESHOT

/* Over several domains: by NCCL alone; by rails; with one exchange between them; with two. */
#define NCCL .ways = 1u << SYMWIN_ALGO_NCCL
#define RAILS_NCCL NCCL | 1u << SYMWIN_ALGO_RAILS
#define ALL_WAYS RAILS_NCCL | 1u << SYMWIN_ALGO_ONESHOT
#define TWOSHOT_TOO ALL_WAYS | 1u << SYMWIN_ALGO_TWOSHOT_PUSH

const struct sw_collective sw_collectives[SW_COLLECTIVES] = {
    [SYMWIN_ALLREDUCE] = {CALLS(allreduce), TWOSHOT_TOO, .reduces = 1, .crossings = 2,
                          .in = SW_AT_ONE_OFFSET, .out = SW_AT_ONE_OFFSET,
                          .registers = SW_CONNECTS_ALWAYS, .small = SYMWIN_ALGO_ONESHOT_SENTINEL,
                          .large_multicast = SYMWIN_ALGO_TWOSHOT_MC, .algos = allreduce},
    [SYMWIN_ALLGATHER] = {CALLS(allgather), RAILS_NCCL, SMALL, .out_each = 1, .crossings = 1,
                          .out = SW_AT_ONE_OFFSET, .registers = SW_CONNECTS_TO_USE,
                          .large_multicast = SYMWIN_ALGO_ONESHOT_MC, .algos = spread},
    [SYMWIN_ALLTOALL] = {CALLS(alltoall), RAILS_NCCL, SMALL, .in_each = 1, .out_each = 1,
                         .crossings = 1, .out = SW_AT_ONE_OFFSET, .registers = SW_CONNECTS_TO_USE,
                         .algos = exchange},
    [SYMWIN_BROADCAST] = {CALLS(broadcast), ALL_WAYS, SMALL, .root_sends = 1, .crossings = 0,
                          .in = SW_WHERE_ROOT_TELLS, .out = SW_AT_ONE_OFFSET,
                          .registers = SW_CONNECTS_TO_USE,
                          .large_multicast = SYMWIN_ALGO_ONESHOT_MC, .algos = broadcast},
    [SYMWIN_GATHER] = {CALLS(gather), NCCL, SMALL, .out_each = 1, .root_receives = 1,
                       .crossings = 1, .in = SW_AT_ANY_OFFSET, .algos = gather},
    [SYMWIN_SCATTER] = {CALLS(scatter), NCCL, SMALL, .in_each = 1, .root_sends = 1, .crossings = 1,
                        .out = SW_AT_ANY_OFFSET, .algos = scatter},
    [SYMWIN_REDUCE_SCATTER] = {CALLS(reduce_scatter), RAILS_NCCL, SMALL, .reduces = 1, .in_each = 1,
                               .crossings = 1, .in = SW_AT_ONE_OFFSET,
                               .registers = SW_CONNECTS_TO_USE,
                               .large_multicast = SYMWIN_ALGO_TWOSHOT_MC, .algos = reduce_scatter},
    [SYMWIN_REDUCE] = {CALLS(reduce), ALL_WAYS, SMALL, .reduces = 1, .root_receives = 1,
                       .crossings = 0, .in = SW_AT_ONE_OFFSET, .out = SW_WHERE_ROOT_TELLS,
                       .registers = SW_CONNECTS_TO_USE, .large_multicast = SYMWIN_ALGO_TWOSHOT_MC,
                       .algos = reduce},
    [SYMWIN_BARRIER] = {CALLS(barrier), .ways = 1u << SYMWIN_ALGO_RAILS, SMALL, .no_data = 1,
                        .algos = barrier},
    [SYMWIN_ALLTOALLV] = {CALLS(alltoallv), NCCL, SMALL, .by_parts = 1, .crossings = 1,
                          .algos = by_parts},
    [SYMWIN_ALLGATHERV] = {CALLS(allgatherv), NCCL, SMALL, .by_parts = 1, .crossings = 1,
                           .algos = by_parts},
    [SYMWIN_REDUCE_SCATTERV] = {CALLS(reduce_scatterv), .ways = 1u << SYMWIN_ALGO_RAILS, SMALL,
                                .reduces = 1, .by_parts = 1, .crossings = 1, .algos = by_parts},
};
