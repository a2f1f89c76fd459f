/* Copies between this rank's memory and a peer's, of any number of bytes at any alignment.
 *
 *   groups        the threads that make a call together: one thread, a warp, a block or the grid
 *   copies        put and get by loads and stores of the group's threads
 *   bulk copies   put and get by whole blocks: one thread moves pieces through shared memory
 *                 (sm_90)
 *
 * Addresses are those of windows: symwin_peer_address(), or symwin_window_peer_pointer() on the
 * host. Compiled by nvcc and for the emulated driver, as all of the device API. symwin/device.cuh
 * explains memory order.
 */
#ifndef SYMWIN_COPY_CUH
#define SYMWIN_COPY_CUH

#include "symwin/bulk.cuh"

/* ---- groups ---------------------------------------------------------------------------------- */

/* This thread is number `index` of `count` threads that make one call together. */
struct symwin_group {
    uint64_t index, count;
};

/* Groups of this thread alone, its warp, its block and its grid. */
SYMWIN_DEVICE symwin_group symwin_group_thread(void)
{
    return {0, 1};
}

/* 32 consecutive threads of a block; the block's last warp may have fewer. */
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

/* Copies `units` aligned units of BYTES bytes. A thread has several loads in flight before its
 * first store, because a peer's memory is about 1 us away. */
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

/* Copies by aligned units of BYTES bytes; head and tail byte by byte. Both addresses must be equal
 * modulo BYTES. */
template <uint32_t BYTES>
SYMWIN_DEVICE void symwin_copy_by(symwin_group group, uint64_t to, uint64_t from, uint64_t bytes)
{
    const uint64_t ahead = (BYTES - to % BYTES) % BYTES, head = ahead < bytes ? ahead : bytes;
    const uint64_t units = (bytes - head) / BYTES, done = head + units * BYTES;

    symwin_copy_units<1>(group, to, from, head);
    symwin_copy_units<BYTES>(group, to + head, from + head, units);
    symwin_copy_units<1>(group, to + done, from + done, bytes - done);
}

/* Copies `bytes` bytes at any alignment: a put if `to` is a peer's, a get if `from` is. Fastest if
 * both addresses are equal modulo 16. The ranges must not overlap. All threads of the group call
 * it; each copies its part and waits for nobody.
 *
 * Weak accesses. After a put, the group's threads must release the data for its readers (a barrier
 * of the group, then symwin_signal()). Before a get, the data must have been acquired. */
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

/* Pieces of a block's shared memory through which bulk copies go. Made once per kernel, for any
 * number of copies. */
struct symwin_bulk_ring {
    unsigned char *pieces;
    uint64_t *arrived; /* a barrier per piece */
    uint32_t count, piece_bytes;
    uint32_t next, phase; /* of the copying thread: the next copy's first piece and phase */
};

/* Bytes of shared memory of a ring. It has at least two pieces; a piece is a multiple of 128
 * bytes. */
#define SYMWIN_BULK_RING_BYTES(count, piece_bytes) ((count) * ((piece_bytes) + 8))

/* Makes a ring in `shared`, which is aligned to 128 bytes (symwin_shared() is). By all threads of
 * the block. */
SYMWIN_DEVICE symwin_bulk_ring symwin_bulk_ring_make(void *shared, uint32_t count,
                                                     uint32_t piece_bytes)
{
    unsigned char *const pieces = (unsigned char *)shared;
    const symwin_bulk_ring ring = {
        pieces, (uint64_t *)(void *)(pieces + count * piece_bytes), count, piece_bytes, 0, 0};

#if SYMWIN_HAS_BULK
    symwin_bulk_fence_shared(); /* orders the block's earlier use of the memory */
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

/* Releases the ring's shared memory for other uses, such as another ring. By all threads of the
 * block. */
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

/* Copies a few bytes, one by one. */
SYMWIN_DEVICE void sw_copy_bytes(symwin_group group, uint64_t to, uint64_t from, uint64_t bytes)
{
    SYMWIN_NO_UNROLL
    for (uint64_t i = group.index; i < bytes; i += group.count)
        symwin_store_u8(to + i, symwin_load_u8(from + i));
}

/* One block's part of a copy. */
struct sw_ring_part {
    uint64_t to, from, bytes;
};

/* Part `index` of `count`. All parts but the last are whole lines of 128 bytes. */
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

/* Starts as many loads as the ring has pieces, before the first wait. Returns the bytes started. */
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

/* Stores each piece when it has arrived, and starts the remaining loads. After a piece's store is
 * committed, it waits until the store of the piece before has read its memory, which then takes the
 * next load. */
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

/* symwin_copy() for large messages, by all threads of the block or of the grid: `group` must be
 * symwin_group_block() or symwin_group_grid(). Whole vectors of 16 bytes go through the ring,
 * divided among the group's blocks, with few registers and instructions; threads copy the bytes
 * before and behind. Below sm_90, or if the addresses differ modulo 16, it is symwin_copy().
 *
 * Weak accesses, as symwin_copy(). The call includes barriers of the block and the fences for the
 * async proxy at both ends. So it copies what any thread of the block acquired or wrote before, and
 * any thread of the block may release what it wrote (symwin_signal()). */
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
