/* Copies between this rank's memory and a peer's, of any number of bytes at any alignment.
 *
 *   groups        who takes part in a call: a thread, a warp, a block, the grid
 *   copies        put and get by loads and stores of the group's threads
 *   bulk copies   put and get of whole blocks, of which one thread has pieces moved through shared memory (sm_90)
 *
 * Addresses are those of windows: symwin_peer_address(), or symwin_window_peer_pointer() on the host. Like all of the
 * device API this is compiled by nvcc and for the emulated driver. symwin/device.cuh says what memory order means.
 */
#ifndef SYMWIN_COPY_CUH
#define SYMWIN_COPY_CUH

#include "symwin/bulk.cuh"

/* ---- groups ---------------------------------------------------------------------------------- */

/* This thread is `index` of `count` that make one call together. */
struct symwin_group {
    uint64_t index, count;
};

SYMWIN_DEVICE symwin_group symwin_group_thread(void)
{
    return {0, 1};
}

/* Of the 32 consecutive threads of a block; the last one of a block may have less. */
SYMWIN_DEVICE symwin_group symwin_group_warp(void)
{
    const uint32_t first = threadIdx.x / 32 * 32, left = blockDim.x - first;

    return {threadIdx.x - first, left < 32 ? left : 32};
}

SYMWIN_DEVICE symwin_group symwin_group_block(void)
{
    return {threadIdx.x, blockDim.x};
}

SYMWIN_DEVICE symwin_group symwin_group_grid(void)
{
    return {symwin_thread_index(), symwin_thread_count()};
}

/* ---- copies ---------------------------------------------------------------------------------- */

template <uint32_t BYTES>
struct sw_unit;

#define SYMWIN_UNIT(bytes, word, suffix)                                                           \
    template <>                                                                                    \
    struct sw_unit<bytes> {                                                                        \
        typedef word type;                                                                         \
        static SYMWIN_MEMBER type load(uint64_t addr)                                              \
        {                                                                                          \
            return symwin_load_##suffix(addr);                                                     \
        }                                                                                          \
        static SYMWIN_MEMBER void store(uint64_t addr, type value)                                 \
        {                                                                                          \
            symwin_store_##suffix(addr, value);                                                    \
        }                                                                                          \
    };
SYMWIN_UNIT(1, uint8_t, u8)
SYMWIN_UNIT(2, uint16_t, u16)
SYMWIN_UNIT(4, uint32_t, u32)
SYMWIN_UNIT(8, uint64_t, u64)
SYMWIN_UNIT(16, symwin_v16, v16)
#undef SYMWIN_UNIT

/* Several loads of a thread are under way before its first store: a peer's memory is a microsecond away. */
template <uint32_t BYTES>
SYMWIN_DEVICE void symwin_copy_units(symwin_group group, uint64_t to, uint64_t from, uint64_t units)
{
    enum { AT_ONCE = 8 };
    typedef sw_unit<BYTES> unit;
    typename unit::type value[AT_ONCE];
    uint64_t i = group.index;

    for (; i + (AT_ONCE - 1) * group.count < units; i += AT_ONCE * group.count) {
        SYMWIN_UNROLL
        for (uint32_t k = 0; k < AT_ONCE; k++)
            value[k] = unit::load(from + (i + k * group.count) * BYTES);
        SYMWIN_UNROLL
        for (uint32_t k = 0; k < AT_ONCE; k++)
            unit::store(to + (i + k * group.count) * BYTES, value[k]);
    }
    for (; i < units; i += group.count)
        unit::store(to + i * BYTES, unit::load(from + i * BYTES));
}

/* In units of BYTES, and what is before the first and behind the last aligned one byte by byte. Both addresses have the
 * same rest by BYTES. */
template <uint32_t BYTES>
SYMWIN_DEVICE void symwin_copy_by(symwin_group group, uint64_t to, uint64_t from, uint64_t bytes)
{
    const uint64_t ahead = (BYTES - to % BYTES) % BYTES, head = ahead < bytes ? ahead : bytes;
    const uint64_t units = (bytes - head) / BYTES, done = head + units * BYTES;

    symwin_copy_units<1>(group, to, from, head);
    symwin_copy_units<BYTES>(group, to + head, from + head, units);
    symwin_copy_units<1>(group, to + done, from + done, bytes - done);
}

/* Copies `bytes` bytes, at any alignment; quickest where both addresses have the same rest by 16. A put where `to` is a
 * peer's, a get where `from` is. The two do not overlap. By all threads of the group, each of which does its part and
 * waits for nobody.
 *
 * Weak accesses: who is to see what was put needs a release of this group's threads behind it (symwin_signal() behind a
 * barrier of the group), and what is got must have been acquired before. */
SYMWIN_DEVICE void symwin_copy(symwin_group group, uint64_t to, uint64_t from, uint64_t bytes)
{
    const uint64_t differ = to ^ from;

    if (differ % 16 == 0)
        symwin_copy_by<16>(group, to, from, bytes);
    else if (differ % 8 == 0)
        symwin_copy_by<8>(group, to, from, bytes);
    else if (differ % 4 == 0)
        symwin_copy_by<4>(group, to, from, bytes);
    else if (differ % 2 == 0)
        symwin_copy_by<2>(group, to, from, bytes);
    else
        symwin_copy_by<1>(group, to, from, bytes);
}

/* ---- bulk copies ----------------------------------------------------------------------------- */

/* Pieces of a block's shared memory that copies go through; made once a kernel, for any number of copies. */
struct symwin_bulk_ring {
    unsigned char *pieces;
    uint64_t *arrived; /* a barrier for each piece */
    uint32_t count, piece_bytes;
    uint32_t next, phase; /* of the thread that asks: where the next copy begins, its phase */
};

/* Bytes of shared memory that a ring takes. A ring has at least two pieces; a piece is a multiple of 128 bytes. */
#define SYMWIN_BULK_RING_BYTES(count, piece_bytes) ((count) * ((piece_bytes) + 8))

/* Makes a ring in `shared`, which is aligned to 128 bytes, as symwin_shared() is. By all threads of the block. */
SYMWIN_DEVICE symwin_bulk_ring symwin_bulk_ring_make(void *shared, uint32_t count,
                                                     uint32_t piece_bytes)
{
    unsigned char *const pieces = (unsigned char *)shared;
    const symwin_bulk_ring ring = {
        pieces, (uint64_t *)(void *)(pieces + count * piece_bytes), count, piece_bytes, 0, 0};

#if SYMWIN_HAS_BULK
    symwin_bulk_fence_shared(); /* what the block had there before */
    __syncthreads();
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < count; i++)
            symwin_bulk_init(&ring.arrived[i]);
        symwin_bulk_fence();
    }
    __syncthreads();
#endif
    return ring;
}

/* After it the shared memory is free for something else, another ring too. By all threads of the block. */
SYMWIN_DEVICE void symwin_bulk_ring_end(const symwin_bulk_ring &ring)
{
#if SYMWIN_HAS_BULK
    __syncthreads();
    if (threadIdx.x == 0)
        for (uint32_t i = 0; i < ring.count; i++)
            symwin_bulk_end(&ring.arrived[i]);
    __syncthreads();
#else
    (void)ring;
#endif
}

#if SYMWIN_HAS_BULK

/* A few bytes. */
SYMWIN_DEVICE void sw_copy_bytes(symwin_group group, uint64_t to, uint64_t from, uint64_t bytes)
{
    SYMWIN_NO_UNROLL
    for (uint64_t i = group.index; i < bytes; i += group.count)
        symwin_store_u8(to + i, symwin_load_u8(from + i));
}

/* What a block copies by pieces: the last one may be shorter. */
struct sw_ring_part {
    uint64_t to, from, bytes;
};

/* Part `index` of `count`: of whole lines of 128 bytes, all but the last one. */
SYMWIN_DEVICE sw_ring_part sw_ring_part_of(uint64_t to, uint64_t from, uint64_t bytes,
                                           uint64_t index, uint64_t count)
{
    const uint64_t lines = (bytes + 127) / 128, share = (lines + count - 1) / count * 128;
    const uint64_t begin = index * share < bytes ? index * share : bytes;

    return {to + begin, from + begin, bytes - begin < share ? bytes - begin : share};
}

SYMWIN_DEVICE uint32_t sw_ring_piece_bytes(const symwin_bulk_ring &ring, uint64_t left)
{
    return left < ring.piece_bytes ? (uint32_t)left : ring.piece_bytes;
}

SYMWIN_DEVICE void sw_ring_load(const symwin_bulk_ring &ring, uint32_t stage,
                                const sw_ring_part &part, uint64_t at)
{
    const uint32_t bytes = sw_ring_piece_bytes(ring, part.bytes - at);

    symwin_bulk_expect(&ring.arrived[stage], bytes);
    symwin_bulk_load(ring.pieces + stage * ring.piece_bytes, part.from + at, bytes,
                     &ring.arrived[stage]);
}

/* The loads that the ring has room for, before the first one is waited for; returns how many bytes that are. */
SYMWIN_DEVICE uint64_t sw_ring_begin(const symwin_bulk_ring &ring, const sw_ring_part &part)
{
    uint32_t stage = ring.next;
    uint64_t asked = 0;

    for (uint32_t i = 0; i < ring.count && asked < part.bytes; i++) {
        sw_ring_load(ring, stage, part, asked);
        asked += ring.piece_bytes;
        stage = stage + 1 < ring.count ? stage + 1 : 0;
    }
    return asked;
}

/* Piece after piece is waited for and stored. When the next one is being stored, a piece has been read by its own store, and
 * takes the next load. */
SYMWIN_DEVICE void sw_ring_end(symwin_bulk_ring *ring, const sw_ring_part &part, uint64_t asked)
{
    uint32_t before = 0;

    SYMWIN_NO_UNROLL
    for (uint64_t at = 0; at < part.bytes; at += ring->piece_bytes) {
        const uint32_t stage = ring->next;

        while (!symwin_bulk_loaded(&ring->arrived[stage], ring->phase))
            symwin_pause();
        symwin_bulk_store(part.to + at, ring->pieces + stage * ring->piece_bytes,
                          sw_ring_piece_bytes(*ring, part.bytes - at));
        symwin_bulk_commit();
        if (at > 0 && asked < part.bytes) {
            symwin_bulk_wait_read();
            sw_ring_load(*ring, before, part, asked);
            asked += ring->piece_bytes;
        }
        before = stage;
        ring->next = stage + 1 < ring->count ? stage + 1 : 0;
        ring->phase ^= ring->next == 0;
    }
    symwin_bulk_wait_written();
}

#endif

/* symwin_copy() of large messages, by all threads of the block or of the grid: `group` is one of these two. What lies in
 * whole vectors of 16 bytes goes through the ring, divided among the group's blocks, and takes few of the block's
 * registers and instructions; the bytes before and behind it go by threads. Before sm_90, and where the addresses differ by
 * 16, it is symwin_copy().
 *
 * Weak accesses, as those of symwin_copy(), but no barrier of the block is needed at either end: what a thread of the block
 * has acquired or written before the call is copied, and any thread of the block may release what the call has written
 * (symwin_signal()). The fences between these and the proxy of bulk copies are the call's own. */
SYMWIN_DEVICE void symwin_copy_bulk(symwin_bulk_ring *ring, symwin_group group, uint64_t to,
                                    uint64_t from, uint64_t bytes)
{
    __syncthreads();
#if SYMWIN_HAS_BULK
    if ((to ^ from) % 16 == 0 && ring->count > 1) {
        const uint64_t ahead = (128 - to % 128) % 128, head = ahead < bytes ? ahead : bytes;
        const uint64_t whole = (bytes - head) / 16 * 16, done = head + whole;
        const sw_ring_part part = sw_ring_part_of(
            to + head, from + head, whole, group.index / blockDim.x, group.count / blockDim.x);
        uint64_t asked = 0;

        if (threadIdx.x == 0) {
            symwin_bulk_fence();
            asked = sw_ring_begin(*ring, part);
        }
        sw_copy_bytes(group, to, from, head);
        sw_copy_bytes(group, to + done, from + done, bytes - done);
        if (threadIdx.x == 0) {
            sw_ring_end(ring, part, asked);
            symwin_bulk_fence();
        }
        __syncthreads();
        return;
    }
#endif
    symwin_copy(group, to, from, bytes);
    __syncthreads();
}

#endif
