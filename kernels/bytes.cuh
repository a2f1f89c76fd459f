/* Copies of bytes between memory of any alignment, to one rank or several: 16 in a store if source
 * and goal are congruent modulo 16, otherwise as many as they are congruent. */
#ifndef SYMWIN_KERNELS_BYTES_CUH
#define SYMWIN_KERNELS_BYTES_CUH

#include "words.cuh"

#define SW_MOVE_UNROLL 4 /* loads of a thread in flight */

template <int size>
struct sw_move_unit {
    typedef uint64_t type;

    SYMWIN_DEVICE type load(uint64_t address)
    {
        return sw_element_load<size, SW_OWN>(address);
    }

    SYMWIN_DEVICE void store(uint64_t address, type value)
    {
        sw_element_store<size, SW_OWN>(address, value);
    }
};

template <>
struct sw_move_unit<16> {
    typedef symwin_v16 type;

    SYMWIN_DEVICE type load(uint64_t address)
    {
        return symwin_load_v16(address);
    }

    SYMWIN_DEVICE void store(uint64_t address, const type &value)
    {
        symwin_store_v16(address, value);
    }
};

/* Where bytes go: to the same offset at each of the ranks first .. end - 1 steps after this one,
 * but one. */
struct sw_goal {
    symwin_peers peers;
    int32_t first, end;
    int32_t but; /* a step; -1: none */
};

/* This rank's memory alone; offsets are addresses. */
SYMWIN_DEVICE sw_goal sw_goal_here(void)
{
    return {{0, 0, 0, 1}, 0, 1, -1};
}

/* The threads that share a copy: this one is number `index`. */
struct sw_crew {
    uint64_t index, threads;
};

SYMWIN_DEVICE sw_crew sw_crew_of_grid(void)
{
    return {symwin_thread_index(), symwin_thread_count()};
}

/* Of blocks first .. end - 1 of the grid, to which this block belongs. */
SYMWIN_DEVICE sw_crew sw_crew_of_blocks(uint32_t first, uint32_t end)
{
    return {(uint64_t)(blockIdx.x - first) * blockDim.x + threadIdx.x,
            (uint64_t)(end - first) * blockDim.x};
}

SYMWIN_DEVICE sw_crew sw_crew_of_block(void)
{
    return {threadIdx.x, blockDim.x};
}

/* Copies `units` of `size` bytes at `from` to offset `to`. */
template <int size>
SYMWIN_DEVICE void sw_move_units(const sw_goal &goal, const sw_crew &crew, uint64_t from,
                                 uint64_t to, uint64_t units)
{
    const uint64_t threads = crew.threads;

    SYMWIN_NO_UNROLL
    for (uint64_t i = crew.index; i < units; i += SW_MOVE_UNROLL * threads) {
        typename sw_move_unit<size>::type unit[SW_MOVE_UNROLL] = {};

        SYMWIN_UNROLL
        for (int u = 0; u < SW_MOVE_UNROLL; u++)
            if (i + (uint64_t)u * threads < units)
                unit[u] = sw_move_unit<size>::load(from + (i + (uint64_t)u * threads) * size);
        SYMWIN_NO_UNROLL
        for (int32_t step = goal.first; step < goal.end; step++) {
            const int32_t p = goal.peers.rank + step, n = goal.peers.nranks;
            const uint64_t at = symwin_peer_address(goal.peers, p < n ? p : p - n, to);

            SYMWIN_UNROLL
            for (int u = 0; u < SW_MOVE_UNROLL; u++)
                if (step != goal.but && i + (uint64_t)u * threads < units)
                    sw_move_unit<size>::store(at + (i + (uint64_t)u * threads) * size, unit[u]);
        }
    }
}

/* Copies `bytes`: units of `size` bytes, and the bytes before and after them. */
template <int size>
SYMWIN_DEVICE void sw_move_aligned(const sw_goal &goal, const sw_crew &crew, uint64_t from,
                                   uint64_t to, uint64_t bytes)
{
    const uint64_t before = (0 - to) % size, head = before < bytes ? before : bytes;
    const uint64_t units = (bytes - head) / size, end = head + units * size;

    sw_move_units<1>(goal, crew, from, to, head);
    sw_move_units<size>(goal, crew, from + head, to + head, units);
    sw_move_units<1>(goal, crew, from + end, to + end, bytes - end);
}

/* Addresses are aligned as offsets are. */
SYMWIN_DEVICE void sw_move_part(const sw_goal &goal, const sw_crew &crew, uint64_t from,
                                uint64_t to, uint64_t bytes)
{
    const uint64_t apart = from - to;

    if (apart % 16 == 0)
        sw_move_aligned<16>(goal, crew, from, to, bytes);
    else if (apart % 8 == 0)
        sw_move_aligned<8>(goal, crew, from, to, bytes);
    else if (apart % 4 == 0)
        sw_move_aligned<4>(goal, crew, from, to, bytes);
    else if (apart % 2 == 0)
        sw_move_aligned<2>(goal, crew, from, to, bytes);
    else
        sw_move_units<1>(goal, crew, from, to, bytes);
}

#endif
