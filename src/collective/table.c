/* The table of collectives: see table.h. */
#include "src/collective/table.h"

#include "src/collective/copies.h"

static const struct sw_algorithm allreduce[SW_ALGOS] = {
    [SYMWIN_ALGO_ONESHOT] = {.chosen = SW_NEVER_CHOSEN,
                             .model_us = sw_model_flags,
                             .control_warps = 1},
    [SYMWIN_ALGO_TWOSHOT] = {.chosen = SW_CHOSEN,
                             .needs = SW_NEEDS_WINDOWS,
                             .model_us = sw_model_loads,
                             /* As fast as any number between these two (H200s). */
                             .own_blocks = 8,
                             .own_below = 24},
    [SYMWIN_ALGO_ONESHOT_MC] = {.chosen = SW_NEVER_CHOSEN,
                                .needs = SW_NEEDS_WINDOWS | SW_NEEDS_MULTICAST | SW_NEEDS_KERNEL |
                                         SW_NEEDS_TWO_BUFFERS},
    [SYMWIN_ALGO_TWOSHOT_MC] = {.chosen = SW_NEVER_CHOSEN,
                                .needs = SW_NEEDS_WINDOWS | SW_NEEDS_MULTICAST | SW_NEEDS_KERNEL},
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
#define MOVE                                                                                       \
    [SYMWIN_ALGO_ONESHOT] = {.chosen = SW_CHOSEN,                                                  \
                             .model_us = sw_model_flags,                                           \
                             .family = SW_FAMILY_move,                                             \
                             .control_warps = 1}
#define PUT(more)                                                                                  \
    [SYMWIN_ALGO_PUT] = {.chosen = SW_CHOSEN,                                                      \
                         .needs = SW_NEEDS_WINDOWS | (more),                                       \
                         .model_us = sw_model_move,                                                \
                         .family = SW_FAMILY_move}

static const struct sw_algorithm move[SW_ALGOS] = {MOVE};
static const struct sw_algorithm spread[SW_ALGOS] = {MOVE, PUT(0)};
static const struct sw_algorithm exchange[SW_ALGOS] = {MOVE, PUT(SW_NEEDS_TWO_BUFFERS)};

/* Of those that reduce, each part for one rank. */
#define PARTS                                                                                      \
    [SYMWIN_ALGO_ONESHOT] = {.chosen = SW_CHOSEN,                                                  \
                             .model_us = sw_model_sentinel,                                        \
                             .family = SW_FAMILY_parts,                                            \
                             .control_warps = 1}

static const struct sw_algorithm parts[SW_ALGOS] = {PARTS};
static const struct sw_algorithm parts_of_all[SW_ALGOS] = {
    PARTS,
    [SYMWIN_ALGO_TWOSHOT] = {.chosen = SW_CHOSEN,
                             .needs = SW_NEEDS_WINDOWS,
                             .model_us = sw_model_parts,
                             .stage = SW_LOADS_PART,
                             .own_blocks = 8,
                             .own_below = 24},
};

static const struct sw_algorithm barrier[SW_ALGOS] = {
    [SYMWIN_ALGO_ONESHOT] = {.chosen = SW_CHOSEN,
                             .model_us = sw_model_flags,
                             .family = SW_FAMILY_barrier},
};

/* Of those whose parts have unequal lengths. */
static const struct sw_algorithm by_parts[SW_ALGOS] = {
    [SYMWIN_ALGO_ONESHOT] = {.chosen = SW_CHOSEN,
                             .model_us = sw_model_flags,
                             .family = SW_FAMILY_table,
                             .control_warps = 1},
};

#define CALLS(name) .call = "symwin_" #name, .query = "symwin_" #name "_query"

const struct sw_collective sw_collectives[SW_COLLECTIVES] = {
    [SYMWIN_ALLREDUCE] = {CALLS(allreduce), .reduces = 1, .crossings = 2, .window_in = 1,
                          .window_out = 1, .registers = 1, .small = SYMWIN_ALGO_ONESHOT_SENTINEL,
                          .small_multicast = SYMWIN_ALGO_ONESHOT_MC,
                          .large_multicast = SYMWIN_ALGO_TWOSHOT_MC, .algos = allreduce},
    [SYMWIN_ALLGATHER] = {CALLS(allgather), .out_each = 1, .crossings = 1,
                          .small = SYMWIN_ALGO_ONESHOT, .window_out = 1, .algos = spread},
    [SYMWIN_ALLTOALL] = {CALLS(alltoall), .in_each = 1, .out_each = 1, .crossings = 1,
                         .small = SYMWIN_ALGO_ONESHOT, .window_out = 1, .algos = exchange},
    [SYMWIN_BROADCAST] = {CALLS(broadcast), .root_sends = 1, .crossings = 0,
                          .small = SYMWIN_ALGO_ONESHOT, .window_out = 1, .algos = spread},
    [SYMWIN_GATHER] = {CALLS(gather), .out_each = 1, .root_receives = 1, .crossings = 1,
                       .small = SYMWIN_ALGO_ONESHOT, .algos = move},
    [SYMWIN_SCATTER] = {CALLS(scatter), .in_each = 1, .root_sends = 1, .crossings = 1,
                        .small = SYMWIN_ALGO_ONESHOT, .algos = move},
    [SYMWIN_REDUCE_SCATTER] = {CALLS(reduce_scatter), .reduces = 1, .in_each = 1, .crossings = 1,
                               .small = SYMWIN_ALGO_ONESHOT, .window_in = 1, .algos = parts_of_all},
    [SYMWIN_REDUCE] = {CALLS(reduce), .reduces = 1, .root_receives = 1, .crossings = 0,
                       .small = SYMWIN_ALGO_ONESHOT, .algos = parts},
    [SYMWIN_BARRIER] = {CALLS(barrier), .no_data = 1, .small = SYMWIN_ALGO_ONESHOT,
                        .algos = barrier},
    [SYMWIN_ALLTOALLV] = {CALLS(alltoallv), .by_parts = 1, .crossings = 1,
                          .small = SYMWIN_ALGO_ONESHOT, .algos = by_parts},
    [SYMWIN_ALLGATHERV] = {CALLS(allgatherv), .by_parts = 1, .crossings = 1,
                           .small = SYMWIN_ALGO_ONESHOT, .algos = by_parts},
};
