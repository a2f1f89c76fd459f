/* Bytes over windows: from and to the ranks that the pattern in the arguments names (pattern.cuh).
 *
 *   put        all-gather, all-to-all, broadcast and scatter: every rank stores its parts straight
 *              into the outputs of the ranks it sends to, itself included. Of a scatter, each rank
 *              tells the root where its output is
 *   twoshot    gather: the root loads the parts of all ranks, which tell it where their inputs are.
 *              Broadcast: each rank but the root loads its share of the root's part, and stores it
 *              to all ranks but the root. So each link carries every byte once. If the root's input
 *              is in no window, the root first copies it to its output, and the others load that
 *
 *   in         this rank's device memory, any alignment: a part for each rank, or one part. In a
 *              window at in_offset for a gather; for a broadcast that is the root's alone, or
 *              SW_NO_OFFSET
 *   out        a window at out_offset, any alignment, but for a gather. Equal on all ranks, but for
 *              a scatter. A part of `in` may be where it is to be, but no other part of `out`
 *   grid       any; ranks' grids may differ; all blocks must be resident together with the peers'
 *   types      none: bytes are moved, 16 in a store if input and output are congruent modulo 16,
 *              otherwise as many as they are congruent
 *
 * Order. As in twoshot.cu: before the first store every block acquires every peer's header, and the
 * end barrier makes all stores visible.
 */
#include "bytes.cuh"
#include "pattern.cuh"
#include "window.cuh"

#define SW_PUT_LINES 256 /* bytes; shares of a broadcast are multiples of them */

/* ---- a part of each rank --------------------------------------------------------------------- */

/* The steps from this rank whose parts this block moves, and with which blocks. */
struct sw_own_steps {
    int32_t first, end;
    sw_crew crew;
};

/* If links move the others' parts, an eighth of the blocks moves this rank's own at the same time:
 * a gather of 64 MiB takes two H100s 98 us, and 116 by all blocks one after the other. */
SYMWIN_DEVICE sw_own_steps sw_own_steps_of(const struct sw_kernel_args &args, bool in_place)
{
    const uint32_t own = (args.stage & SW_PUT_BESIDE) != 0 ? gridDim.x / 8 : 0;

    if (in_place || own == 0)
        return {in_place ? 1 : 0, args.nranks, sw_crew_of_grid()};
    if (blockIdx.x < own)
        return {0, 1, sw_crew_of_blocks(0, own)};
    return {1, args.nranks, sw_crew_of_blocks(own, gridDim.x)};
}

/* ---- put ------------------------------------------------------------------------------------- */

/* A part for each rank, each at a place of its own. */
SYMWIN_DEVICE void sw_put_each(const struct sw_kernel_args &args, sw_call &call, bool in_place,
                               uint64_t to)
{
    const sw_own_steps steps = sw_own_steps_of(args, in_place);

    SYMWIN_NO_UNROLL
    for (int32_t step = steps.first; step < steps.end; step++) {
        const int32_t p = sw_rank_after<0>(args, step);
        const bool offered = (args.stage & SW_PUT_OFFERED) != 0 && p != args.rank;
        const uint64_t at = offered ? sw_offer_of(args, call, p) : to;

        if (call.failed)
            return;
        sw_move_part({call.peers, step, step + 1, -1}, steps.crew,
                     args.in + (uint32_t)p * args.in_step, at, args.bytes);
    }
}

SYMWIN_DEVICE void sw_put_parts(const struct sw_kernel_args &args, sw_call &call)
{
    const uint64_t part = (uint32_t)args.rank * args.out_step;
    const bool in_place = args.in + (uint32_t)args.rank * args.in_step == args.out + part;

    if (args.to != SW_EVERY_RANK)
        return;
    if (args.in_step == 0)
        sw_move_part({call.peers, in_place ? 1 : 0, args.nranks, -1}, sw_crew_of_grid(), args.in,
                     args.out_offset + part, args.bytes);
    else
        sw_put_each(args, call, in_place, args.out_offset + part);
}

SYMWIN_DEVICE void sw_run_put(const struct sw_kernel_args &args)
{
    sw_call call = sw_call_begin(args);

    if ((args.stage & SW_PUT_OFFERED) != 0)
        sw_offer_post(args, call, args.from, args.out_offset);
    sw_start_barrier(args, call, SW_HEADER_STREAM);
    if (!call.failed)
        sw_put_parts(args, call);
    sw_call_end(args, call, 0, (args.stage & SW_PUT_OFFERED) != 0);
}

/* ---- gather by loads ------------------------------------------------------------------------- */

SYMWIN_DEVICE void sw_get_parts(const struct sw_kernel_args &args, sw_call &call)
{
    const bool in_place = args.in == args.out + (uint32_t)args.rank * args.out_step;
    const sw_own_steps steps = sw_own_steps_of(args, in_place);

    if (args.from != SW_EVERY_RANK)
        return;
    SYMWIN_NO_UNROLL
    for (int32_t step = steps.first; step < steps.end; step++) {
        const int32_t p = sw_rank_after<0>(args, step);
        uint64_t from = args.in;

        if (p != args.rank)
            from = symwin_peer_address(call.peers, p, sw_offer_of(args, call, p));
        if (call.failed)
            return;
        sw_move_part(sw_goal_here(), steps.crew, from, args.out + (uint32_t)p * args.out_step,
                     args.bytes);
    }
}

/* ---- broadcast by shares --------------------------------------------------------------------- */

/* Waits in block 0 until all other blocks have come here too. They wait for nobody. */
SYMWIN_DEVICE void sw_blocks_come(const sw_call &call)
{
    const uint64_t copied = call.state + offsetof(struct sw_comm_state, copied);

    __syncthreads();
    if (threadIdx.x == 0 && blockIdx.x != 0)
        symwin_add_release_u32(copied, 1);
    if (threadIdx.x == 0 && blockIdx.x == 0) {
        while (symwin_load_acquire_u32(copied) != gridDim.x - 1)
            symwin_pause();
        symwin_store_relaxed_u32(copied, 0);
    }
    __syncthreads();
}

/* This rank's share of the root's part, from the root's memory to all but the root. */
SYMWIN_DEVICE void sw_pass_on(const struct sw_kernel_args &args, sw_call &call)
{
    const uint64_t offered = sw_offer_of(args, call, args.root);
    const uint64_t from = symwin_peer_address(call.peers, args.root,
                                              offered == SW_NO_OFFSET ? args.out_offset : offered);
    const int32_t ahead = args.root - args.rank + (args.root < args.rank ? args.nranks : 0);
    const sw_range lines = sw_share((args.bytes + SW_PUT_LINES - 1) / SW_PUT_LINES,
                                    args.nranks - 1 - ahead, args.nranks - 1);
    const uint64_t begin = lines.begin * SW_PUT_LINES, end = lines.end * SW_PUT_LINES;

    if (!call.failed && lines.begin < lines.end)
        sw_move_part({call.peers, 0, args.nranks, ahead}, sw_crew_of_grid(), from + begin,
                     args.out_offset + begin, (end < args.bytes ? end : args.bytes) - begin);
}

SYMWIN_DEVICE void sw_run_twoshot(const struct sw_kernel_args &args)
{
    const bool gathers = args.from < 0, is_root = args.rank == args.root;
    const bool copies = !gathers && is_root && args.in != args.out;
    const bool ahead = copies && args.in_offset == SW_NO_OFFSET; /* of the barrier */
    sw_call call = sw_call_begin(args);

    if (ahead) {
        if (!call.failed)
            sw_move_part(sw_goal_here(), sw_crew_of_grid(), args.in, args.out, args.bytes);
        sw_blocks_come(call);
    }
    if (gathers || is_root)
        sw_offer_post(args, call, gathers ? args.root : SW_EVERY_RANK, args.in_offset);
    sw_start_barrier(args, call, ahead ? SW_HEADER_RELEASE : SW_HEADER_STREAM);
    if (!call.failed) {
        if (gathers)
            sw_get_parts(args, call);
        else if (!is_root)
            sw_pass_on(args, call);
        else if (copies && !ahead)
            sw_move_part(sw_goal_here(), sw_crew_of_grid(), args.in, args.out, args.bytes);
    }
    sw_call_end(args, call, 0, true);
}

#define SW_DEFINE(file, family, algo, type, op, ranks, shape)                                      \
    SW_KERNEL(family, algo, type, op, ranks, shape)                                                \
    {                                                                                              \
        sw_run_##algo(args);                                                                       \
    }
SW_KERNEL_LIST_PUT(SW_DEFINE)
#undef SW_DEFINE
