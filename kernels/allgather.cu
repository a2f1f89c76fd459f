/* All-gather, one-shot push: every rank sends its whole input to every peer and stores each rank's
 * part, as it arrives, at its place in the output (push.cuh, stages.cuh).
 *
 *   in         args.bytes of this rank's device memory, any alignment
 *   out        args.bytes for each rank, any alignment; in place `in` is this rank's part of it
 *   slots      2 * slot_bytes for each source
 *   grid       any; ranks' grids may differ; all blocks must be resident together with the peers'
 *   entries    eight bytes with flags, because the bytes may have any value
 *   types      none: bytes are moved
 *
 * Entry i of a round is both sent and received by the thread i mod workers, so the condition of
 * push.cuh holds, as in oneshot.cu. There is no circular wait: a thread sends all its entries of a
 * round before it waits for any of them. In place, what a rank sends is in its own part, where no
 * peer's entry is stored.
 */
#include "stages.cuh"

/* A byte as an element type for stages.cuh. */
struct sw_byte {
    enum { bytes = 1 };
};

typedef sw_wire_flags sw_gather_wire;

/* Receives entry i of round c from each peer of the batch that begins at rank `first`: from the
 * slots at `from` to the peers' parts of the output. False: the wait was given up. */
template <int N>
SYMWIN_DEVICE bool sw_gather_entry(const struct sw_kernel_args &args, sw_call &call,
                                   const sw_rounds &rounds, uint32_t c, uint32_t i, int32_t first,
                                   uint64_t from)
{
    typedef sw_gather_wire W;
    typename W::entry entry[sw_batch<N>::ranks];

    if (!sw_entries_await<N, W>(args, call, from, first, entry))
        return false;
    SYMWIN_UNROLL
    for (int j = 0; j < sw_batch<N>::ranks; j++) {
        const uint64_t part = args.out + (uint32_t)(first + j) * args.bytes;
        uint64_t word[W::words];

        if (!sw_is_peer<N>(args, first + j))
            continue;
        W::decode(entry[j], word);
        sw_entry_store<sw_byte, W>(sw_part_of<W>(part, rounds, c), i, word);
    }
    return true;
}

/* Receives a round, and copies this rank's own part of it. */
template <int N>
SYMWIN_DEVICE void sw_gather_receive(const struct sw_kernel_args &args, sw_call &call,
                                     const sw_role &role, const sw_rounds &rounds,
                                     const sw_push_round<sw_gather_wire> &round)
{
    typedef sw_gather_wire W;
    const uint64_t slots = call.state + sw_slot_place<N>(args, call.round + round.number, 0, 0);
    const uint64_t own = args.out + (uint32_t)args.rank * args.bytes;

    SYMWIN_NO_UNROLL
    for (uint32_t i = role.index; i < round.extent; i += role.workers) {
        const uint64_t at = slots + (uint64_t)i * W::bytes;
        uint64_t word[W::words];

        if (own != args.in) {
            sw_entry_load<sw_byte, W>(round.in, i, word);
            sw_entry_store<sw_byte, W>(sw_part_of<W>(own, rounds, round.number), i, word);
        }
        SYMWIN_NO_UNROLL
        for (int32_t first = 0; first < sw_ranks<N>(args); first += sw_batch<N>::ranks)
            if (!sw_gather_entry<N>(args, call, rounds, round.number, i, first,
                                    at + (uint64_t)(uint32_t)first * 2 * args.slot_bytes))
                return;
        sw_entries_empty<N, W>(args, at);
    }
}

template <int N>
SYMWIN_DEVICE void sw_gather(const struct sw_kernel_args &args)
{
    typedef sw_gather_wire W;
    const sw_rounds rounds = sw_rounds_of_bytes<W>(args.bytes, 2 * args.slot_bytes / W::bytes);
    const sw_role role = sw_role_of_thread();
    sw_push_round<W> round;
    sw_peer_states<N> states;
    sw_call call;

    sw_call_order();
    round = sw_push_begin<sw_byte, W>(args, role, rounds, 0);
    call = sw_call_read(args);
    states.find(args);
    SYMWIN_NO_UNROLL
    for (uint32_t c = 0;;) {
        if (role.works && !call.failed)
            sw_push_send<N, sw_byte, W>(args, call, role, states, round);
        if (!sw_push_goes_on<W>(args, call, role, rounds, c))
            break;
        sw_gather_receive<N>(args, call, role, rounds, round);
        if (call.failed || ++c == rounds.count)
            break;
        symwin_fence();
        round = sw_push_begin<sw_byte, W>(args, role, rounds, c);
    }
    sw_push_end<W>(args, call);
}

#define SW_DEFINE(file, collective, algo, type, op, ranks, shape)                                  \
    SW_KERNEL(collective, algo, type, op, ranks, shape)                                            \
    {                                                                                              \
        sw_gather<SW_RANKS_##ranks>(args);                                                         \
    }
SW_KERNEL_LIST_ALLGATHER(SW_DEFINE)
#undef SW_DEFINE
