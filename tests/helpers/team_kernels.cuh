/* Kernels for tests/device/test_team.c: calls of symwin/team.cuh. Compiled as those of channel_kernels.cuh are. */
#ifndef SYMWIN_TESTS_TEAM_KERNELS_CUH
#define SYMWIN_TESTS_TEAM_KERNELS_CUH

#include "channel_args.h"
#include "symwin/team.cuh"

SYMWIN_DEVICE symwin_span span_of(const team_args &args)
{
    return {{args.base, args.stride, args.rank, args.nranks}, args.offset, args.bytes, 0, 0};
}

SYMWIN_DEVICE symwin_team team_of(const symwin_peers &peers, uint32_t team, int32_t size)
{
    return team == TEAM_ALL    ? symwin_team_all(peers)
           : team == TEAM_NEAR ? symwin_team_near(peers, size)
                               : symwin_team_across(peers, size);
}

/* What is wrong with a team: who is in it has one place, from which all others are reached. */
SYMWIN_DEVICE uint32_t team_faults(const symwin_team &team)
{
    uint32_t wrong = 0;
    int32_t members = 0;

    for (int32_t i = 0; i < team.count; i++) {
        const int32_t rank = symwin_team_rank(team, i);
        const int32_t me = symwin_team_index(team, team.peers.rank);

        wrong += rank < 0 || rank >= team.peers.nranks || symwin_team_index(team, rank) != i;
        wrong += symwin_team_after(team, i) != symwin_team_rank(team, (me + i) % team.count);
    }
    for (int32_t r = -3; r < team.peers.nranks + 3; r++)
        members += symwin_team_index(team, r) >= 0;
    return wrong + (members != team.count) + (symwin_team_after(team, 0) != team.peers.rank);
}

/* Every rank of up to 12, in teams of every size: each pair of ranks is in one near team, or in one across it, as it should. */
SYMWIN_KERNEL(team_check, team_args, args, CHANNEL_THREADS)
{
    uint32_t wrong = 0;

    for (int32_t nranks = 1; nranks <= 12; nranks++)
        for (int32_t rank = 0; rank < nranks; rank++)
            for (int32_t size = 1; size <= nranks; size++) {
                const symwin_peers peers = {0, 0, rank, nranks};
                const symwin_team all = symwin_team_all(peers);
                const symwin_team near = symwin_team_near(peers, size);
                const symwin_team across = symwin_team_across(peers, size);

                wrong += team_faults(all) + team_faults(near) + team_faults(across);
                for (int32_t r = 0; r < nranks; r++)
                    wrong += (symwin_team_index(near, r) >= 0) != (r / size == rank / size) ||
                             (symwin_team_index(across, r) >= 0) != (r % size == rank % size) ||
                             symwin_team_index(all, r) != r;
            }
    symwin_store_u32(symwin_span_own(span_of(args), args.wrong), wrong);
}

/* How many bytes of words the barriers of a grid of `size` blocks need. */
SYMWIN_KERNEL(team_bytes, team_args, args, CHANNEL_THREADS)
{
    const symwin_span span = span_of(args);

    symwin_store_u64(symwin_span_own(span, args.words),
                     symwin_barrier_bytes(span.peers, (uint32_t)args.size));
}

/* `turns` times: each thread writes the turn's number into its word, and after a barrier looks at the words of all ranks of
 * the team: those of its own block, or of all blocks. A second barrier lets nobody go on before all have looked. */
SYMWIN_DEVICE void meet(const team_args &args, bool whole_grid)
{
    const symwin_span span = span_of(args);
    const symwin_team team = team_of(span.peers, args.team, args.size);
    const symwin_limit limit = {args.timeout_ns, args.abort};
    const uint64_t threads = symwin_thread_count();
    uint32_t wrong = 0;
    bool right = true;

    for (uint64_t turn = 1; turn <= args.turns && right; turn++) {
        symwin_store_u64(symwin_span_own(span, args.words + 8 * symwin_thread_index()),
                         args.launched + turn);
        right = whole_grid ? symwin_barrier_grid(team, args.barrier, limit)
                           : symwin_barrier_block(team, args.barrier, limit);
        for (int32_t i = 0; i < team.count && right; i++) {
            const uint64_t from = symwin_span_peer(span, symwin_team_rank(team, i), args.words);
            const uint64_t begin = whole_grid ? 0 : (uint64_t)blockIdx.x * blockDim.x;
            const uint64_t end = whole_grid ? threads : begin + blockDim.x;

            for (uint64_t w = begin; w < end; w++)
                wrong += symwin_load_u64(from + 8 * w) != args.launched + turn;
        }
        if (right)
            right = whole_grid ? symwin_barrier_grid(team, args.barrier, limit)
                               : symwin_barrier_block(team, args.barrier, limit);
    }
    if (wrong != 0)
        symwin_atomic_add_u32(symwin_span_own(span, args.wrong), wrong);
    if (!right)
        symwin_atomic_add_u32(symwin_span_own(span, args.wrong + 4), 1);
}

SYMWIN_KERNEL(team_blocks, team_args, args, CHANNEL_THREADS)
{
    meet(args, false);
}

SYMWIN_KERNEL(team_grids, team_args, args, CHANNEL_THREADS)
{
    meet(args, true);
}

#endif
