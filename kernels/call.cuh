/* One collective call as every kernel sees it: epochs, headers, waiting, giving up, leaving.
 *
 * A kernel over windows runs sw_call_begin(), sw_start_barrier(), its work, sw_call_end(). A kernel
 * that pushes is described in push.cuh. Every thread of every block makes these calls, because they
 * contain block barriers. A thread without work skips only the work.
 *
 * Epochs. state.epoch counts finished calls. The running call is E = epoch + 1. Every thread reads
 * it before its block counts itself in `arrived`; the last block to do so stores E. A kernel may
 * begin before the kernel ahead of it has ended, but it reads and writes nothing before that end
 * (symwin_launch_wait()), so E is the same in all threads of a kernel. Epochs are only compared for
 * equality, so 32 bits may wrap.
 *
 * Headers. Block 0 tells every peer "my call E has this digest" in header[E & 1][rank]. Two
 * parities are enough: a peer posts E + 2 after its call E + 1. In that call it saw our header E +
 * 1, which we posted after our call E, in which we read its header E.
 *
 * Failure. A thread that sees a reason to give up sets state.failed. All threads poll state.failed
 * at the clock interval below, kernels that start later see it at once, and no epoch advances any
 * more. Nothing traps, and no loop length comes from a peer. The first thread that gives up
 * determines what is reported: failure.cuh.
 */
#ifndef SYMWIN_KERNELS_CALL_CUH
#define SYMWIN_KERNELS_CALL_CUH

#include "../symwin/packet.cuh"
#include "group_layout.h"
#include "kernel_list.h"
#include "pair_layout.h"
#include "table_layout.h"

/* Turns of a poll loop between looks at the clock and at `failed`: tens of microseconds on a GPU,
 * where one turn is one load from memory. On the emulated driver one turn can sleep for 0.2 ms.
 * SW_ABORT_LOOK_NS is the time between looks at the host's abort word, which is across PCIe: tens
 * of thousands of threads that read it every turn would occupy PCIe for milliseconds. */
#if SYMWIN_EMULATED
#define SW_WAIT_GATE 8
#define SW_ABORT_LOOK_NS 0
#else
#define SW_WAIT_GATE 64
#define SW_ABORT_LOOK_NS 200000
#define SW_LEFT_GATE 2048 /* turns between looks at whether the peer has left: about 1 ms */
#endif

struct sw_call {
    struct symwin_peers peers;
    uint64_t state; /* address of this rank's sw_comm_state */
    uint32_t epoch; /* of this call */
    uint32_t round; /* of this call's first round */
    bool failed;    /* this thread knows of a failure */
};

SYMWIN_DEVICE uint64_t sw_failed_address(const sw_call &call)
{
    return call.state + offsetof(struct sw_comm_state, failed);
}

/* Address of the word or slot at `place` (an SW_STATE_ offset) in rank p's communicator memory. */
SYMWIN_DEVICE uint64_t sw_state_address(const struct sw_kernel_args &args, const sw_call &call,
                                        int32_t p, uint64_t place)
{
    return symwin_peer_address(call.peers, p, args.state + place);
}

/* Called first: waits for the kernel ahead, then allows the next kernel to start. */
SYMWIN_DEVICE void sw_call_order(void)
{
    symwin_launch_wait();
    symwin_launch_next();
}

SYMWIN_DEVICE bool sw_has_failed(const sw_call &call)
{
    return symwin_load_relaxed_u32(sw_failed_address(call)) != 0;
}

/* The call before its words are read. */
SYMWIN_DEVICE sw_call sw_call_of(const struct sw_kernel_args &args)
{
    sw_call call = {{args.base, args.stride, args.rank, args.nranks}, 0, 0, 0, false};

    call.state = symwin_own_address(call.peers, args.state);
    return call;
}

/* `word`: the first four of the state. */
SYMWIN_DEVICE void sw_call_take(sw_call &call, const uint32_t word[4])
{
    static_assert(offsetof(struct sw_comm_state, epoch) < 16 &&
                      offsetof(struct sw_comm_state, rounds) < 16 &&
                      offsetof(struct sw_comm_state, failed) < 16,
                  "read in one access");
    call.epoch = 1 + word[offsetof(struct sw_comm_state, epoch) / 4];
    call.round = 1 + word[offsetof(struct sw_comm_state, rounds) / 4];
    call.failed = word[offsetof(struct sw_comm_state, failed) / 4] != 0;
}

/* By each thread. All warps of all blocks read one sector then, so in one access: with three, two
 * ranks on one H200 took 7.8 us for an all-reduce of 2 MiB, and not 6.6. */
SYMWIN_DEVICE sw_call sw_call_read(const struct sw_kernel_args &args)
{
    sw_call call = sw_call_of(args);
    uint32_t word[4];

    symwin_load_relaxed_v4_u32(call.state, word);
    sw_call_take(call, word);
    return call;
}

/* By all threads of a block, of which one reads: where a barrier of the block follows anyway, that
 * is 3 % quicker from 1 MiB on. Elsewhere sw_call_order() and sw_call_read() are. */
SYMWIN_DEVICE sw_call sw_call_begin(const struct sw_kernel_args &args)
{
    __shared__ uint32_t word[4];
    sw_call call = sw_call_of(args);

    sw_call_order();
    if (threadIdx.x == 0)
        symwin_load_relaxed_v4_u32(call.state, word);
    __syncthreads();
    sw_call_take(call, word);
    return call;
}

/* Begins the definition of a kernel of kernel_list.h. */
#define SW_KERNEL(family, algo, type, op, ranks, shape)                                            \
    SW_KERNEL_NAMED(SW_KERNEL_NAME(family, algo, type, op, ranks, shape), SW_KERNEL_ARGS_##family, \
                    SW_SHAPE_##shape == SW_SHAPE_read ? SW_KERNEL_THREADS_n                        \
                                                      : SW_KERNEL_THREADS_##ranks)
#define SW_KERNEL_NAMED(name, type, threads) SYMWIN_KERNEL(name, type, args, threads)

/* ---- ranks ---------------------------------------------------------------------------------- */

/* N is the number of ranks if it is a constant, otherwise 0. */
template <int N>
SYMWIN_DEVICE int32_t sw_ranks(const struct sw_kernel_args &args)
{
    return N > 0 ? N : args.nranks;
}

/* The rank `step` after this one, modulo the number of ranks. */
template <int N>
SYMWIN_DEVICE int32_t sw_rank_after(const struct sw_kernel_args &args, int32_t step)
{
    const int32_t p = args.rank + step;

    return p < sw_ranks<N>(args) ? p : p - sw_ranks<N>(args);
}

/* ---- waiting and giving up ------------------------------------------------------------------- */

#include "failure.cuh"

/* Every thread that has given up, or has seen that another has, calls sw_call_report() before it
 * leaves: at that point few registers are live. */
SYMWIN_DEVICE void sw_give_up(sw_call &call, enum sw_kernel_code code, int32_t peer)
{
    call.failed = true;
    (void)symwin_atomic_cas_u32(sw_failed_address(call), 0, SW_FAILED(code, peer, call.epoch));
}

/* Gives up because of what this rank and rank p say of their message. */
SYMWIN_DEVICE void sw_counts_differ(sw_call &call, enum sw_kernel_code code, int32_t p,
                                    uint64_t theirs, uint64_t others, uint32_t is_out)
{
    call.failed = true;
    if (symwin_atomic_cas_u32(SW_STATE_AT(call.state, pair_taken), 0, 1) != 0)
        return; /* another thread says what differs */
    symwin_store_relaxed_u64(SW_STATE_AT(call.state, pair), theirs);
    symwin_store_relaxed_u64(SW_STATE_AT(call.state, pair) + 8, others);
    symwin_store_relaxed_u32(SW_STATE_AT(call.state, pair_is_out), is_out);
    symwin_fence();
    sw_give_up(call, code, p);
}

/* One wait for one or more peers; initialized to {0, 0, 0}. */
struct sw_wait {
    uint64_t since;  /* the clock at the first look; 0 before it */
    uint64_t looked; /* when this thread last read the host's abort word */
    uint32_t turns;
};

/* In each turn of a poll loop. True: call sw_wait_look() now. */
SYMWIN_DEVICE bool sw_wait_turn(sw_wait &wait)
{
    symwin_pause();
    return ++wait.turns % SW_WAIT_GATE == 0;
}

/* False: give up on `peer`; call.failed is then set. */
SYMWIN_DEVICE bool sw_wait_look(const struct sw_kernel_args &args, sw_call &call, sw_wait &wait,
                                int32_t peer)
{
    uint64_t now;

    call.failed = sw_has_failed(call);
    if (call.failed)
        return false;
    now = symwin_clock_ns();
    if (wait.since == 0)
        wait.since = wait.looked = now;
    if (now - wait.looked > SW_ABORT_LOOK_NS && symwin_is_first_of_warp()) {
        wait.looked = now;
        if (symwin_load_relaxed_u32(args.report + offsetof(struct sw_kernel_report, abort)) != 0) {
            sw_give_up(call, SW_KERNEL_ABORTED, peer);
            return false;
        }
    }
    if (args.timeout_ns != 0 && now - wait.since > args.timeout_ns) {
        sw_give_up(call, SW_KERNEL_TIMEOUT, peer);
        return false;
    }
    return true;
}

/* sw_wait_turn() and, when due, sw_wait_look(): the body of most poll loops. */
SYMWIN_DEVICE bool sw_wait_on(const struct sw_kernel_args &args, sw_call &call, sw_wait &wait,
                              int32_t peer)
{
    return !sw_wait_turn(wait) || sw_wait_look(args, call, wait, peer);
}

/* ---- headers --------------------------------------------------------------------------------- */

/* What a header that a rank has posted tells its peers, after sw_headers_check(). A system fence
 * takes 1.5 us on an H100, even if nothing is to be waited for.
 *
 *   RELAXED  that the call has come; for calls that push
 *   STREAM   what this rank's earlier kernels and copies wrote to its own memory is visible, and
 *            they have read what they read. They have ended, so no fence is needed: all that is in
 *            the device's memory, where peers access it too. The emulated driver releases it and
 *            FENCED, for sanitizers
 *   FENCED   also what they wrote to other ranks' memory: the posting threads have fenced
 *   RELEASE  also what this thread wrote */
enum sw_header_order { SW_HEADER_RELAXED, SW_HEADER_STREAM, SW_HEADER_FENCED, SW_HEADER_RELEASE };

/* By threads 0 .. count - 1 of a part of block 0, before any wait. */
SYMWIN_DEVICE void sw_headers_post(const struct sw_kernel_args &args, const sw_call &call,
                                   enum sw_header_order order, int32_t thread, int32_t count)
{
    const uint64_t header = (uint64_t)call.epoch << 32 | args.digest;
    const uint64_t place = SW_STATE_HEADER(args.nranks, call.epoch & 1, args.rank);

    for (int32_t p = thread; p < args.nranks; p += count) {
        if (p == args.rank)
            continue;
        if (order == SW_HEADER_RELAXED || (order != SW_HEADER_RELEASE && !SYMWIN_EMULATED))
            symwin_store_relaxed_u64(sw_state_address(args, call, p, place), header);
        else
            symwin_store_release_u64(sw_state_address(args, call, p, place), header);
    }
}

/* Whether rank p has destroyed its communicator and its last call came before this one. Its host
 * writes `left` after its calls have ended. */
SYMWIN_DEVICE bool sw_has_left(const struct sw_kernel_args &args, const sw_call &call, int32_t p)
{
    const uint64_t state = sw_state_address(args, call, p, 0);

    return symwin_load_acquire_u32(state + offsetof(struct sw_comm_state, left)) != 0 &&
           (int32_t)(symwin_load_relaxed_u32(state + offsetof(struct sw_comm_state, epoch)) -
                     call.epoch) < 0;
}

/* By threads 0 .. count - 1 of a part of a block: waits for every peer's header of this call and
 * compares digests. Blocks other than 0 do not publish a mismatch: block 0 may not have posted our
 * header yet, and it finds the mismatch too. */
SYMWIN_DEVICE void sw_headers_check(const struct sw_kernel_args &args, sw_call &call,
                                    enum sw_header_order order, int32_t thread, int32_t count)
{
    for (int32_t p = thread; p < args.nranks && !call.failed; p += count) {
        const uint64_t address = sw_state_address(args, call, args.rank,
                                                  SW_STATE_HEADER(args.nranks, call.epoch & 1, p));
        sw_wait wait = {0, 0, 0};

        if (p == args.rank)
            continue;
        for (;;) {
            const uint64_t header = order == SW_HEADER_RELAXED ? symwin_load_relaxed_u64(address)
                                                               : symwin_load_acquire_u64(address);

            if ((uint32_t)(header >> 32) == call.epoch) {
                if ((uint32_t)header == args.digest)
                    break;
                call.failed = true;
                if (blockIdx.x == 0)
                    sw_give_up(call, SW_KERNEL_MISMATCH, p);
                break;
            }
            if (!sw_wait_turn(wait))
                continue;
            if (!sw_wait_look(args, call, wait, p))
                break;
            if (sw_has_left(args, call, p)) {
                sw_give_up(call, SW_KERNEL_LEFT, p);
                break;
            }
        }
    }
}

/* The start barrier of kernels that access peers' memory: afterwards the whole block may, unless
 * call.failed. A mismatch that any thread of the block saw stops the whole block. The first
 * block-wide vote gives all threads of the block the same `failed` before any of them can give up.
 * Otherwise a fast thread's mismatch could keep slower threads from posting the headers that tell
 * the peers of this call. */
SYMWIN_DEVICE void sw_start_barrier(const struct sw_kernel_args &args, sw_call &call,
                                    enum sw_header_order order)
{
    const int32_t thread = (int32_t)threadIdx.x, threads = (int32_t)blockDim.x;

    call.failed = symwin_block_any(call.failed);
    if (blockIdx.x == 0 && !call.failed)
        sw_headers_post(args, call, order, thread, threads);
    sw_headers_check(args, call, order, thread, threads);
    call.failed = symwin_block_any(call.failed);
}

/* ---- offers ---------------------------------------------------------------------------------- */

/* An offer is a packet whose flag is that of the call. It shows its own arrival, so it needs no
 * order with the header that follows it: a reader waits for the offer itself. It may be written
 * again when its reader has finished its call, which the end barrier of that call has said.
 *
 * The reader's last block empties it, when all blocks have read it and before that barrier's
 * release: else it would look new in the call of the same flag, 2^32 later. */

/* The flag of this call, which no empty word has. */
SYMWIN_DEVICE uint32_t sw_call_flag(const sw_call &call)
{
    return call.epoch != 0 ? call.epoch : 1;
}

/* Tells the ranks `to` the offset of this rank's buffer. By all threads, before sw_start_barrier().
 */
SYMWIN_DEVICE void sw_offer_post(const struct sw_kernel_args &args, const sw_call &call, int32_t to,
                                 uint64_t offset)
{
    const uint64_t place = SW_STATE_OFFER(args.nranks, args.slot_bytes, args.rank);

    for (int32_t p = (int32_t)threadIdx.x; p < args.nranks; p += (int32_t)blockDim.x)
        if (blockIdx.x == 0 && !call.failed && p != args.rank && (to == SW_EVERY_RANK || to == p))
            symwin_packet_store(sw_state_address(args, call, p, place), offset, sw_call_flag(call));
}

/* What rank p, a peer, has offered. By any thread, after sw_start_barrier(). With call.failed: the
 * wait for it was given up. */
SYMWIN_DEVICE uint64_t sw_offer_of(const struct sw_kernel_args &args, sw_call &call, int32_t p)
{
    const uint64_t at = call.state + SW_STATE_OFFER(args.nranks, args.slot_bytes, p);
    sw_wait wait = {0, 0, 0};
    uint64_t offset;

    while (!symwin_packet_load(at, sw_call_flag(call), &offset))
        if (!sw_wait_on(args, call, wait, p))
            return SW_NO_OFFSET;
    return offset;
}

/* By the last block, before sw_finish_barrier(), in which the same thread releases to rank p. */
SYMWIN_DEVICE void sw_offers_empty(const struct sw_kernel_args &args, const sw_call &call)
{
    for (int32_t p = (int32_t)threadIdx.x; p < args.nranks; p += (int32_t)blockDim.x)
        symwin_store_relaxed_v16(call.state + SW_STATE_OFFER(args.nranks, args.slot_bytes, p),
                                 {0, 0});
}

/* ---- the end --------------------------------------------------------------------------------- */

/* By all threads of all blocks, which a word at offset `word` of the state counts: whether this
 * block is the last one to come here. What the others have done happens before what it does, and is
 * part of what it releases to peers. */
SYMWIN_DEVICE bool sw_is_last_of(const sw_call &call, uint64_t word)
{
    __shared__ uint32_t before;

    __syncthreads();
    if (gridDim.x == 1)
        return true;
    if (threadIdx.x == 0)
        before = symwin_add_acq_rel_u32(call.state + word, 1);
    __syncthreads();
    return before == gridDim.x - 1;
}

/* In `arrived`, which sw_call_count() makes zero. */
SYMWIN_DEVICE bool sw_is_last_block(const sw_call &call)
{
    return sw_is_last_of(call, offsetof(struct sw_comm_state, arrived));
}

/* By the last block of a grid: tells every peer that
 * this rank has finished its reads and writes, and waits until all peers have said the same. After
 * a failure the peers are told nothing. */
SYMWIN_DEVICE void sw_finish_barrier(const struct sw_kernel_args &args, sw_call &call)
{
    call.failed = symwin_block_any(sw_has_failed(call));
    for (int32_t p = (int32_t)threadIdx.x; p < args.nranks && !call.failed;
         p += (int32_t)blockDim.x) {
        if (p != args.rank)
            symwin_store_release_u64(
                sw_state_address(args, call, p, SW_STATE_FINISH(args.nranks, args.rank)),
                call.epoch);
    }
    for (int32_t p = (int32_t)threadIdx.x; p < args.nranks && !call.failed;
         p += (int32_t)blockDim.x) {
        const uint64_t address = sw_state_address(args, call, args.rank,
                                                  SW_STATE_FINISH(args.nranks, p));
        sw_wait wait = {0, 0, 0};

        if (p == args.rank)
            continue;
        while (symwin_load_acquire_u64(address) != call.epoch) {
            if (!sw_wait_on(args, call, wait, p))
                break;
        }
        if (call.failed)
            sw_call_report(args, call.epoch);
    }
    __syncthreads();
}

/* By one thread of a call that does not use the finish words. Without calls over windows they would
 * keep an old epoch, which 2^32 calls later would look current. So such a call refreshes one. */
SYMWIN_DEVICE void sw_finish_refresh(const struct sw_kernel_args &args, const sw_call &call)
{
    symwin_store_relaxed_u64(
        call.state + SW_STATE_FINISH(args.nranks, call.epoch % (uint32_t)args.nranks), call.epoch);
}

/* By one thread, when all threads of the grid have read the epoch and the rounds: advances both,
 * unless it knows of a failure. After a failure they have no meaning. */
SYMWIN_DEVICE void sw_call_count(const sw_call &call, uint32_t rounds)
{
    symwin_store_relaxed_u32(call.state + offsetof(struct sw_comm_state, arrived), 0);
    if (call.failed)
        return;
    symwin_store_relaxed_u32(call.state + offsetof(struct sw_comm_state, rounds),
                             call.round - 1 + rounds);
    symwin_store_relaxed_u32(call.state + offsetof(struct sw_comm_state, epoch), call.epoch);
}

/* By all threads, last: counts the block as ended, and releases what it wrote to later work on this
 * device. Peers do not depend on this release. At system scope it would wait until peers have
 * received the stores to them: 0.8 us at 1 KiB on two H200s, in every call outside a graph. */
SYMWIN_DEVICE void sw_call_done(const struct sw_kernel_args &args)
{
    if (args.done == 0)
        return;
    __syncthreads();
    if (threadIdx.x == 0)
        symwin_add_release_u32(args.done, 1);
}

/* The end of a kernel over windows, by all threads of all blocks. `rounds`: slot rounds that it
 * used; `offers`: ranks have offered buffers in it. */
SYMWIN_DEVICE void sw_call_end(const struct sw_kernel_args &args, sw_call &call, uint32_t rounds,
                               bool offers = false)
{
    if (call.failed)
        sw_call_report(args, call.epoch);
    if (sw_is_last_block(call)) {
        if (offers)
            sw_offers_empty(args, call);
        sw_finish_barrier(args, call);
        if (threadIdx.x == 0)
            sw_call_count(call, rounds);
    }
    sw_call_done(args);
}

#endif
