/* What the host passes to every collective kernel, and the layout of a communicator's own device
 * memory. Shared by collective.c, nvcc and the emulated driver's compiler; plain C99.
 *
 * The flat range: byte o of rank r is at base + r * stride + o. Multicast addresses, if the
 * communicator has them, are those of an imaginary rank nranks: base + nranks * stride + o.
 *
 * A communicator's own memory is at offset `state` of each rank's stride:
 *
 *  struct sw_comm_state          words of the owner's kernels; peers access the last ones, and only
 *                                after failures
 *  uint64_t header[2][nranks]    written by peer p at [epoch & 1][p]: epoch << 32 | digest
 *  uint64_t finish[nranks]       written by peer p at [p]: the epoch whose stores have all arrived.
 *                                Calls that push refresh one word each with their epoch, so that no
 *                                word gets 2^32 calls old
 *  uint64_t copies[5][nranks]    written by peer p at [which][p]: the latest call by copies that
 *                                has come so far there (copies.cu), as sw_comm_state.copies counts
 *  uint64_t counts[2][2][nranks] written by peer p at [epoch & 1][0][p], in calls by table: 1 + the
 *                                elements that it sends here, at [1]: that it receives from here;
 *                                zero once read (table.cuh)
 *  entries  slot[2][nranks][...] receive slots for what each rank pushes (push.cuh), 2 * slot_bytes
 *                                each; zero except for entries in transit
 *  uint64_t lane[...][2]         channels with peers (channel.c): the peer's signals, and the
 *                                signals already waited for
 *  packets offer[nranks]         written by peer p at [p], with its header: the offset of its
 *                                buffer, if offsets differ. Zero once this rank has finished
 *  uint64_t scalar[nranks]       written by peer p at [p]: its scalar, in calls where this rank
 *                                multiplies what it reads of p (scalar.cuh)
 *  struct sw_landing landing[nranks]  of large parts of unequal lengths, which go straight into
 *                                windows or from there: what this rank has with peer p, at [p]
 *                                (table_parts.cuh)
 *  struct sw_pair pair[nranks]   of sends and receives: what this rank has with each peer
 *  entries  ring[nranks][SW_PAIR_SLOTS][...] of sends and receives: what peer p sends, at [p];
 *                                zero except for entries in transit
 *  uint64_t row[2][2][nranks]    of this rank's calls by table whose rows are too many for their
 *                                arguments (table_layout.h): of `in`, then of `out`, counts, then
 *                                places
 *
 * The epoch counts collective calls of this communicator on the device, so graphs can be replayed.
 * Rounds count uses of the slots: a call has several if its message is larger than the slots.
 */
#ifndef SYMWIN_KERNEL_ARGS_H
#define SYMWIN_KERNEL_ARGS_H

#include <stdint.h>

/* Why a kernel gave up; SW_KERNEL_OK: it did not. */
enum sw_kernel_code {
    SW_KERNEL_OK = 0,
    SW_KERNEL_MISMATCH = 1, /* the ranks' calls differ */
    SW_KERNEL_TIMEOUT = 2,  /* `rank` did not arrive within timeout_ns */
    SW_KERNEL_ABORTED = 3,  /* the host set abort */
    SW_KERNEL_LEFT = 4,     /* `rank` destroyed its communicator before this call */
    SW_KERNEL_COUNTS = 5,   /* `rank` sends another count to `other` than that receives from it */
    SW_KERNEL_ROOM = 6,     /* the part that `rank` has for `other` passes the end of its buffer */
    SW_KERNEL_NULL = 7,     /* ... has elements, and its buffer is NULL */
    SW_KERNEL_TYPES = 8     /* `rank` sends another type to `other` than that receives from it */
};

/* sw_comm_state.failed: the reason, the culprit, and the call (16 bits of its epoch). */
#define SW_FAILED(code, peer, epoch)                                                               \
    ((uint32_t)(code) | ((uint32_t)(peer)&0xfffu) << 4 | (uint32_t)(epoch) << 16)
#define SW_FAILED_CODE(word) ((word)&0xfu)
#define SW_FAILED_PEER(word) ((word) >> 4 & 0xfffu)

/* Which argument differs, in the order in which they are compared. */
enum sw_kernel_argument {
    SW_ARGUMENT_UNKNOWN = 0,
    SW_ARGUMENT_COLLECTIVE = 1,
    SW_ARGUMENT_COUNT = 2,
    SW_ARGUMENT_TYPE = 3,
    SW_ARGUMENT_OP = 4,
    SW_ARGUMENT_ROOT = 5,
    SW_ARGUMENT_ALGO = 6, /* values as in SW_WHAT_ALGO() */
    SW_ARGUMENT_IN = 7,   /* offsets in the flat range */
    SW_ARGUMENT_OUT = 8,
    SW_ARGUMENT_PAIR = 9,  /* not of a collective call, but of a send or receive */
    SW_ARGUMENT_CALLS = 10 /* how many calls of a group are in one launch */
};

/* A failure as all ranks report it. */
struct sw_finding {
    uint32_t code; /* enum sw_kernel_code */
    uint32_t epoch;
    int32_t rank; /* the culprit; of several, the lowest */
    /* MISMATCH: the lowest rank that disagrees with `rank`; otherwise the rank that waited */
    int32_t other;
    uint32_t argument; /* enum sw_kernel_argument; MISMATCH: the one that differs */
    /* MISMATCH: nonzero: no majority agrees, so `rank` may be as right as `other`. TIMEOUT in a
     * send or receive: the rank with which `other` has the message */
    uint32_t tie;
    /* MISMATCH: the argument at `rank`; TIMEOUT: nanoseconds waited; COUNTS and TYPES: what is
     * sent; ROOM: the end */
    uint64_t theirs;
    /* MISMATCH: at `other`; COUNTS and TYPES: received; ROOM: the room; TIMEOUT: SW_PAIR_SAYS() of
     * the message */
    uint64_t others;
    uint64_t differ; /* MISMATCH: bit r: rank r < 64 differs from `other` */
    uint64_t agree;  /* MISMATCH: bit r: rank r < 64 agrees with `other` */
    /* MISMATCH: of the call in its group, from 1 on; 0: in none. TIMEOUT: enum sw_pair_kind of the
     * message, plus one; 0: in none, or in one of several with that rank */
    uint32_t number;
    uint32_t among; /* of TIMEOUT's messages of that kind with that rank in the launch, if several:
                     * how many << 16 | the message's number, from 1 on */
};

/* Calls of a group in one launch, at most. */
#define SW_GROUP_CALLS 16

struct sw_said_call {
    uint64_t count;
    uint32_t what;
    int32_t root;
    uint32_t number; /* in its group, from 1 on; 0: in none */
    uint32_t unused;
};

/* A launch's arguments, for the rank that finds which one differs. */
struct sw_said {
    uint32_t ready; /* written last */
    uint32_t epoch;
    uint32_t calls;  /* in the launch */
    uint32_t listed; /* in `call`: of a group perhaps the one after them, too */
    uint64_t in_offset, out_offset;
    struct sw_said_call call[SW_GROUP_CALLS + 1];
};

struct sw_comm_state {
    uint32_t epoch;   /* calls completed by this rank */
    uint32_t rounds;  /* slot rounds completed by this rank */
    uint32_t arrived; /* blocks of the running call that have been counted */
    uint32_t failed;  /* SW_FAILED(): later kernels leave at once. Peers write it too */
    uint32_t done;    /* counts blocks if no other word does (args.done) */
    uint32_t settled; /* nonzero: a thread reports the failure, or has done so */
    uint64_t copies;  /* calls by copies that have ended here; equal on all ranks */
    /* nonzero: no later call begins. Written by the host that destroys the communicator */
    uint32_t left;
    /* blocks of the running call that have copied (put.cu), or need no more places
     * (table_parts.cuh) */
    uint32_t copied;
    uint32_t awaits;         /* a send or receive waits for this rank, plus one; 0: none does */
    uint32_t awaits_message; /* in the same 8 bytes: which one, SW_PAIR_AWAITS() */
    uint32_t reserved[20];   /* to 128 bytes: a cache line of its own */
    /* Used after a failure only. */
    struct sw_said said;
    uint32_t claimed; /* at rank 0, for all ranks; nonzero: a rank is about to write `found` */
    uint32_t judged;  /* nonzero: that rank has written `found` */
    struct sw_finding found;
    uint64_t pair[2];     /* COUNTS, TYPES, ROOM: what becomes theirs and others of `found` */
    uint32_t pair_taken;  /* nonzero: a thread writes them, or has done so */
    uint32_t pair_is_out; /* of `out`: ROOM; or COUNTS, seen by the receiver */
    uint32_t more[10];    /* to 704 bytes: whole sectors of 64 */
};

/* In pinned host memory: words from the host, and the report of the device, which writes `code`
 * last, with release order at system scope. */
struct sw_kernel_report {
    uint32_t abort; /* host: nonzero asks every waiting kernel of the library to leave */
    /* host: the same for the caller's own kernels, which get its address in their limit */
    uint32_t ended;
    uint32_t code; /* device: enum sw_kernel_code */
    uint32_t done; /* copied here at times: the word of sw_kernel_args.done (register_agree.c) */
    struct sw_finding found; /* device */
    uint32_t last_done;      /* copied here: the same word, for a rank that leaves (comm.c) */
    uint32_t unused;
};

enum sw_kernel_op { /* same values as symwin_op */
                    SW_KERNEL_SUM = 0,
                    SW_KERNEL_PROD = 1,
                    SW_KERNEL_MIN = 2,
                    SW_KERNEL_MAX = 3,
                    SW_KERNEL_AVERAGE = 4,    /* the sum divided by nranks */
                    SW_KERNEL_PREMUL_SUM = 5, /* of products with the ranks' scalars */
                    /* added to MIN, MAX and AVERAGE of signed integers by the kernel of the
                       unsigned type */
                    SW_KERNEL_SIGNED = 8,
                    /* the sum of integers, by a kernel that is for all other operations */
                    SW_KERNEL_PLAIN_SUM = SW_KERNEL_AVERAGE | 32,
                    /* added to PREMUL_SUM: args.scalar is an address in device memory */
                    SW_KERNEL_SCALAR_AT = 16
};

enum sw_kernel_type { /* same values as symwin_type */
                      SW_KERNEL_F64 = 0,
                      SW_KERNEL_F32 = 1,
                      SW_KERNEL_F16 = 2,
                      SW_KERNEL_BF16 = 3,
                      SW_KERNEL_F8E4M3 = 4,
                      SW_KERNEL_F8E5M2 = 5,
                      SW_KERNEL_I8 = 6,
                      SW_KERNEL_U8 = 7,
                      SW_KERNEL_I32 = 8,
                      SW_KERNEL_U32 = 9,
                      SW_KERNEL_I64 = 10,
                      SW_KERNEL_U64 = 11
};

/* args.stage of the two-shot over windows, and of that by multicast. */
enum sw_loads_stage {
    SW_LOADS_SHARE = 0, /* reduces this rank's share of the message, for all ranks */
    SW_LOADS_PART = 1,  /* reduces this rank's part of every input, for itself: reduce-scatter */
    SW_LOADS_ROOT = 2   /* reduces this rank's share of the message, for the root: reduce */
};

/* args.stage of a push by a pattern. */
enum sw_move_stage {
    SW_MOVE_FLAGS = 0,
    SW_MOVE_BUNDLES = 1, /* parts are large: all ranks send bundles (bundles.cuh) */
    SW_MOVE_SHARES = 2   /* of the root's message, each other rank passes a share on (shares.cuh) */
};

/* Bits of args.stage of the put, and of the gather by loads. */
enum sw_put_place {
    SW_PUT_OFFERED = 1, /* each rank tells the root its output's offset: scatter */
    SW_PUT_BESIDE = 2   /* some blocks move a rank's own part beside the others, which use links */
};

/* The offset of a buffer that is in no window, if its rank alone has to know. */
#define SW_NO_OFFSET UINT64_MAX

/* Ranks that a call's pattern names, if not one rank. */
enum { SW_EVERY_RANK = -1, SW_NO_RANK = -2 };

struct sw_kernel_args {
    uint64_t base;
    uint64_t stride;
    uint64_t state; /* offset of the communicator's own memory */
    int32_t rank;
    int32_t nranks;
    uint64_t in;         /* address of the input; aligned to an element only */
    uint64_t out;        /* address of the output; may equal `in` */
    uint64_t in_offset;  /* of `in` in the flat range, for the algorithms over windows */
    uint64_t out_offset; /* of `out`; equal on all ranks if not offered */
    uint64_t count;      /* elements, > 0 */
    /* of collective, count, type, operation, algorithm, offsets; must be equal on all ranks */
    uint32_t digest;
    uint32_t op;   /* enum sw_kernel_op; each kernel supports some of them (kernel_list.h) */
    uint64_t done; /* address of a 32-bit word to which each block adds one when it ends, or 0 */
    /* of a call by copies, a put, loads or a push by a pattern (copies_layout.h, put_layout.h,
     * sw_loads_stage, sw_move_stage); otherwise 0 */
    uint32_t stage;
    uint32_t what;       /* SW_WHAT(): for comparison of calls whose digests differ */
    uint64_t slot_bytes; /* half of a receive slot, a multiple of 16 */
    uint64_t report;     /* device address of the struct sw_kernel_report */
    uint64_t timeout_ns; /* longest wait for a peer; 0: no limit (abort still ends it) */
    uint64_t bytes;      /* of this launch, of `count` elements or a piece; for patterns */
    /* The pattern (pattern.cuh): the ranks that this rank sends to and receives from, itself
     * included; and the bytes from one rank's part of `in` or `out` to the next, 0 if all ranks
     * have the same part. */
    int32_t to, from;
    uint64_t in_step, out_step;
    int32_t root; /* of the call; SW_NO_RANK: it has none */
    /* of a group in this launch, whose arguments are a struct sw_group_args; 0: one call */
    uint32_t calls;
    uint64_t scalar; /* of PREMUL_SUM: an element, or its address; may differ between ranks */
};

/* Type, operation and algorithm with symwin.h's values, whether both buffers are in windows, and
 * the collective. */
#define SW_WHAT(collective, type, op, algo, windows)                                               \
    ((uint32_t)(type) | (uint32_t)(op) << 8 | (uint32_t)(algo) << 16 | (uint32_t)(windows) << 24 | \
     (uint32_t)(collective) << 25)
#define SW_WHAT_TYPE(what) ((what)&0xffu)
#define SW_WHAT_OP(what) ((what) >> 8 & 0xffu)
#define SW_WHAT_ALGO(what) ((what) >> 16 & 0x1ffu) /* bit 8: in windows */
#define SW_WHAT_COLLECTIVE(what) ((what) >> 25)
#define SW_WHAT_PAIRS (127u << 25) /* of sends and receives, which are no collective */

/* Offsets from `state`. */
#define SW_STATE_HEADER(nranks, parity, src)                                                       \
    (sizeof(struct sw_comm_state) + ((uint64_t)(parity) * (uint64_t)(nranks) + (uint64_t)(src)) * 8)
#define SW_STATE_FINISH(nranks, src)                                                               \
    (sizeof(struct sw_comm_state) + (2 * (uint64_t)(nranks) + (uint64_t)(src)) * 8)
#define SW_STATE_COPIES(nranks, which, src)                                                        \
    (sizeof(struct sw_comm_state) +                                                                \
     ((3 + (uint64_t)(which)) * (uint64_t)(nranks) + (uint64_t)(src)) * 8)
#define SW_STATE_COUNTS(nranks, parity, which, src)                                                \
    SW_STATE_COPIES(nranks, 5 + 2 * (parity) + (which), src)
/* The slots begin at a multiple of 512 bytes, so that a warp's stores of 16 bytes per thread do not
 * straddle two blocks of 512 bytes. On one H200, 16 MiB of four ranks took 12 % longer when the
 * slots began 128 bytes earlier. */
#define SW_STATE_SLOTS(nranks)                                                                     \
    ((sizeof(struct sw_comm_state) + 12 * (uint64_t)(nranks)*8 + 511) & ~(uint64_t)511)
#define SW_STATE_SLOT(nranks, slot_bytes, parity, src)                                             \
    (SW_STATE_SLOTS(nranks) +                                                                      \
     ((uint64_t)(parity) * (uint64_t)(nranks) + (uint64_t)(src)) * 2 * (uint64_t)(slot_bytes))
#define SW_STATE_CHANNELS(nranks, slot_bytes)                                                      \
    ((SW_STATE_SLOT(nranks, slot_bytes, 2, 0) + 127) & ~(uint64_t)127)
#define SW_STATE_LANES 16384
#define SW_STATE_LANE_BYTES 16
#define SW_STATE_OFFER(nranks, slot_bytes, src)                                                    \
    (SW_STATE_CHANNELS(nranks, slot_bytes) + (uint64_t)SW_STATE_LANES * SW_STATE_LANE_BYTES +      \
     (uint64_t)(src)*16)

#define SW_STATE_SCALAR(nranks, slot_bytes, src)                                                   \
    (SW_STATE_OFFER(nranks, slot_bytes, nranks) + (uint64_t)(src)*8)

/* Large parts of unequal lengths (table_parts.cuh). The upper half of a word of `place` is the flag
 * of its call; the word is zero once it has been read. */
enum {
    SW_PLACE_DIGEST,
    SW_PLACE_OFFSET,
    SW_PLACE_BYTES = 3,
    SW_PLACE_SCALAR = 5,
    SW_PLACE_WORDS = 7
};
struct sw_landing {
    /* by the peer, at [epoch & 1]: its digest; where the part that the two have lies in its buffer,
     * or SW_NO_OFFSET; the bytes of that part; and its scalar, if it has one. Of the last three
     * halves, the lower one first */
    uint64_t place[2][SW_PLACE_WORDS];
    /* by the blocks of the peer: SW_LANDED more for each part that they have stored or loaded */
    uint32_t landed;
    uint32_t taken; /* of these, by this rank */
    uint64_t unused;
};
#define SW_LANDED 65536u /* more than a grid has blocks */
/* What each of `blocks` blocks adds, one of them the first: SW_LANDED in all. */
#define SW_LANDED_BY(is_first, blocks) ((is_first) ? SW_LANDED - ((blocks)-1) : 1u)
#define SW_STATE_LANDING(nranks, slot_bytes, src)                                                  \
    (((SW_STATE_SCALAR(nranks, slot_bytes, nranks) + 127) & ~(uint64_t)127) +                      \
     (uint64_t)(src) * sizeof(struct sw_landing))

/* What a rank has with one peer for sends and receives (pairs.cu). Chunks and messages have numbers
 * from 1 on. */
#define SW_PAIR_SLOTS 128
struct sw_pair {
    uint64_t sent;     /* chunks so far, counted by this rank */
    uint64_t ended;    /* by the peer: chunks that it took in kernels that have ended */
    uint64_t received; /* as `sent` */
    uint64_t way;      /* the first chunk of the last message that went without the ring */
    uint32_t direct;   /* SW_LANDED for each message that has come without it */
    uint32_t landed;   /* the same, added by the peer */
    uint32_t come[2];  /* blocks of a send, of a receive, that have been counted */
    uint64_t cleared;  /* by the peer: the same as `ended`, with release */
    uint64_t unused;
    uint64_t offer[8]; /* by the peer: its buffer's offset or SW_NO_OFFSET, and count and type, for
                        * the large message that it receives (pairs.cuh) */
    uint64_t taken[SW_PAIR_SLOTS]; /* by the peer: the last chunk that it took from each slot */
    /* By the peer: the last chunk without flags that it stored into each slot. */
    uint64_t filled[SW_PAIR_SLOTS];
    uint64_t header[SW_PAIR_SLOTS * 2]; /* by the peer: entries with the count and type of the
                                         * message that begins with the slot's chunk */
};
#define SW_STATE_PAIR(nranks, slot_bytes, src)                                                     \
    (SW_STATE_LANDING(nranks, slot_bytes, nranks) + (uint64_t)(src) * sizeof(struct sw_pair))
/* Bytes of a slot: half of them are payload, in a chunk without flags all. */
#define SW_PAIR_SLOT_BYTES(slot_bytes)                                                             \
    ((slot_bytes) < 4096       ? (uint64_t)64                                                      \
     : (slot_bytes) > 2u << 20 ? (uint64_t)32 << 10                                                \
                               : ((uint64_t)(slot_bytes) / 64 & ~(uint64_t)15))
#define SW_STATE_RING(nranks, slot_bytes, src, slot)                                               \
    (((SW_STATE_PAIR(nranks, slot_bytes, nranks) + 511) & ~(uint64_t)511) +                        \
     ((uint64_t)(src)*SW_PAIR_SLOTS + (uint64_t)(slot)) * SW_PAIR_SLOT_BYTES(slot_bytes))
#define SW_STATE_ROWS(nranks, slot_bytes) SW_STATE_RING(nranks, slot_bytes, nranks, 0)
#define SW_STATE_BYTES(nranks, slot_bytes)                                                         \
    (SW_STATE_ROWS(nranks, slot_bytes) + (uint64_t)(nranks)*32)

#endif
