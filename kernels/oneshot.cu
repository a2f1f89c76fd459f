/* All-reduce, one-shot push: every rank sends its whole message to every peer and reduces what it
 * receives. No barrier: a packet carries its own arrival flag.
 *
 *   in, out    any device memory of this rank, `count` elements, any element alignment, out == in
 *              allowed; accessed in 8-byte words where aligned
 *   slots      SW_STATE_SLOT: slot[parity][source] of slot_bytes / 8 packets in every rank's memory
 *   grid       any; ranks' grids may differ; all blocks must be resident together with the peers'
 *   result     reduced in rank order, so all ranks get the same bits
 *
 * Rounds. The message is P = ceil(bytes / 8) packets. One slot holds S; so it goes in
 * k = ceil(P / S) rounds of extent = ceil(P / k) packets each, the last filled up with dummies.
 * Round c of a call has packet epoch q + c, uses the slots of parity (q + c) & 1, and flags its
 * packets with q + c. A thread takes entries i, i + threads, ... of every round: it sends its
 * entries of round c to all peers, receives them from all peers, and only then goes on to c + 1.
 *
 * Why two parities are enough: when rank r stores entry i of packet epoch e into peer p's slot, p
 * has read what r put there before, at e - 2 or earlier. Let A be the call of epoch e - 1.
 *   e in A too: the thread that stores has received entry i of e - 1 from p. It was sent by p's
 *     thread for entry i, which first had received entry i of e - 2, if that is in A. If e - 2 is
 *     of an earlier call, p ended that call before it sent anything in A.
 *   e in the next call: r's kernel A has ended, so r has received all `extent` >= 1 entries of
 *     e - 1 from p, so p was in A and had ended all calls before A: if k = 1, e - 2 is one of
 *     those. If k > 1, e - 2 is in A: for i < extent p sent entry i of e - 1 after it received
 *     entry i of e - 2, and for i >= extent A has no such packet, the last one is of before A.
 * Calls without rounds (two-shots) in between change nothing: they end on r only after p has begun
 * them. Round extents are equal within a call since otherwise "received entry i of e - 1" would be
 * missing where the last round is short.
 *
 * Why 32 bits of flag are enough: a flag that has lain in a slot for 2^32 rounds would pass for a
 * new one. So each round sends one packet more, a scrub, to entry (e / 2) mod S when that is beyond
 * its extent; nobody waits for it. The thread of entry 0 sends it, along with entry 0, so the proof
 * above covers it: in the second round of A that thread has heard from p in A, so p has ended the
 * calls that had packets at that entry. Every entry of either parity is rewritten at least once in
 * 2 S rounds. Memory starts as zero and epochs at 1, so when the flags first come round to 0 no
 * entry has its first zero left.
 */
#include "call.cuh"
#include "reduce.cuh"
#include "words.cuh"

/* Packets of peers that a thread polls together: their loads overlap. */
#define SW_ONESHOT_BATCH 8

struct sw_rounds {
    uint64_t packets; /* of the message */
    uint64_t extent;  /* of a round */
    uint64_t slot;    /* packets that a slot holds */
    uint32_t count;
};

SYMWIN_DEVICE sw_rounds sw_rounds_of(const struct sw_kernel_args &args, uint32_t element_bytes)
{
    sw_rounds rounds;

    rounds.packets = (args.count * element_bytes + 7) / 8;
    rounds.slot = args.slot_bytes / 8;
    rounds.count = (uint32_t)((rounds.packets + rounds.slot - 1) / rounds.slot);
    rounds.extent = (rounds.packets + rounds.count - 1) / rounds.count;
    return rounds;
}

/* ---- the two halves of a round --------------------------------------------------------------- */

/* Sends entry `entry` of a round to every peer, beginning with the next rank, so that the ranks do
 * not all knock at one door. */
SYMWIN_DEVICE void sw_oneshot_push(const struct sw_kernel_args &args, const sw_call &call,
                                   uint32_t epoch, uint64_t entry, uint64_t payload)
{
    const uint64_t place = SW_STATE_SLOT(args.nranks, args.slot_bytes, epoch & 1, args.rank) +
                           entry * 16;

    for (int32_t step = 1; step < args.nranks; step++) {
        const int32_t p = args.rank + step;

        symwin_packet_store(
            sw_state_address(args, call, p < args.nranks ? p : p - args.nranks, place), payload,
            epoch);
    }
}

/* Waits for entry `entry` of the peers among ranks first .. first + SW_ONESHOT_BATCH - 1. False
 * when the wait was given up. */
SYMWIN_DEVICE bool sw_oneshot_pull(const struct sw_kernel_args &args, sw_call &call, uint32_t epoch,
                                   uint64_t entry, int32_t first,
                                   symwin_packet packet[SW_ONESHOT_BATCH])
{
    const uint64_t place = SW_STATE_SLOT(args.nranks, args.slot_bytes, epoch & 1, first) +
                           entry * 16;
    const uint64_t address = sw_state_address(args, call, args.rank, place);
    const uint64_t pitch = 2 * args.slot_bytes;
    sw_wait wait = {0, 0};

    for (;;) {
        int32_t missing = -1;

        SYMWIN_UNROLL
        for (int j = 0; j < SW_ONESHOT_BATCH; j++) {
            if (first + j < args.nranks && first + j != args.rank)
                packet[j] = symwin_packet_load(address + (uint64_t)j * pitch);
        }
        SYMWIN_UNROLL
        for (int j = 0; j < SW_ONESHOT_BATCH; j++) {
            if (first + j < args.nranks && first + j != args.rank &&
                !symwin_packet_arrived(packet[j], epoch))
                missing = first + j;
        }
        if (missing < 0)
            return true;
        if (!sw_wait_on(args, call, wait, missing))
            return false;
    }
}

/* Receives one entry from all peers and reduces it with this rank's own word. */
template <class R>
SYMWIN_DEVICE bool sw_oneshot_reduce(const struct sw_kernel_args &args, sw_call &call,
                                     uint32_t epoch, uint64_t entry, uint64_t own, uint64_t *result)
{
    R sum = R();

    for (int32_t first = 0; first < args.nranks; first += SW_ONESHOT_BATCH) {
        symwin_packet packet[SW_ONESHOT_BATCH];

        if (!sw_oneshot_pull(args, call, epoch, entry, first, packet))
            return false;
        SYMWIN_UNROLL
        for (int j = 0; j < SW_ONESHOT_BATCH; j++) {
            if (first + j < args.nranks) {
                const uint64_t word = first + j == args.rank ? own
                                                             : symwin_packet_payload(packet[j]);

                if (first + j == 0)
                    sum.first(word);
                else
                    sum.add(word);
            }
        }
    }
    *result = sum.result(args.average, args.nranks);
    return true;
}

/* ---- the kernel ------------------------------------------------------------------------------ */

template <class R>
SYMWIN_DEVICE void sw_oneshot_round(const struct sw_kernel_args &args, sw_call &call,
                                    const sw_rounds &rounds, uint32_t c)
{
    const uint32_t epoch = call.packet_epoch + c;
    const uint64_t threads = symwin_thread_count(), scrub = (epoch >> 1) % rounds.slot;
    const sw_message in = {args.in, args.count * R::bytes, args.in % 8 == 0};
    const sw_message out = {args.out, args.count * R::bytes, args.out % 8 == 0};

    for (uint64_t i = symwin_thread_index(); i < rounds.extent; i += threads)
        sw_oneshot_push(args, call, epoch, i, sw_word_load<R::bytes>(in, c * rounds.extent + i));
    if (symwin_thread_index() == 0 && scrub >= rounds.extent)
        sw_oneshot_push(args, call, epoch, scrub, 0);
    if (c == 0 && blockIdx.x == 0)
        sw_headers_check(args, call, SW_HEADER_RELAXED);
    for (uint64_t i = symwin_thread_index(); i < rounds.extent && !call.failed; i += threads) {
        const uint64_t own = sw_word_load<R::bytes>(in, c * rounds.extent + i);
        uint64_t word;

        if (sw_oneshot_reduce<R>(args, call, epoch, i, own, &word))
            sw_word_store<R::bytes>(out, c * rounds.extent + i, word);
    }
}

template <class R>
SYMWIN_DEVICE void sw_oneshot(const struct sw_kernel_args &args)
{
    const sw_rounds rounds = sw_rounds_of(args, R::bytes);
    sw_call call = sw_call_begin(args);

    if (blockIdx.x == 0 && !call.failed)
        sw_headers_post(args, call, SW_HEADER_RELAXED);
    for (uint32_t c = 0; c < rounds.count && !call.failed; c++)
        sw_oneshot_round<R>(args, call, rounds, c);
    sw_call_end(args, call, rounds.count, SW_END_LOCAL);
}

#define SW_DEFINE(algo, type, op)                                                                  \
    SYMWIN_KERNEL(sw_allreduce_##algo##_##type##_##op, struct sw_kernel_args, args,                \
                  SW_KERNEL_MAX_THREADS)                                                           \
    {                                                                                              \
        sw_oneshot<sw_reduce<sw_type_##type, sw_op_##op>>(args);                                   \
    }
SW_KERNEL_LIST_ONESHOT(SW_DEFINE)
#undef SW_DEFINE
