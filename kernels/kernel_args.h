/* What the host hands to every collective kernel, and how a communicator's own device memory is
 * laid out. Shared by collective.c, nvcc and the emulated driver's compiler; plain C99.
 *
 * The flat range: byte o of rank r is at base + r * stride + o. Multicast addresses, where the
 * communicator has them, are those of an imaginary rank nranks: base + nranks * stride + o.
 *
 * A communicator's own memory lies at offset `state` of each rank's stride:
 *
 *   struct sw_comm_state          words that only the owner's kernels touch
 *   uint64_t header[2][nranks]    written by peer p at [epoch & 1][p]: epoch << 32 | digest
 *   uint64_t finish[nranks]       written by peer p at [p]: the epoch whose stores have all landed;
 *                                 calls that push refresh one word each with their epoch, so that
 *                                 none grows 2^32 calls old
 *   uint64_t copies[5][nranks]    written by peer p at [which][p]: the call by copies that has come so far there
 *                                 (copies.cu), as counted in sw_comm_state.copies
 *   entries  slot[2][nranks][...] receive slots of what each rank pushes (push.cuh), 2 * slot_bytes each; zero
 *                                 but for what is under way
 *   uint64_t lane[...][2]         of channels with peers (channel.c): signals of the peer, and those waited for
 *
 * The epoch counts collective calls on this communicator, on the device, so that graphs replay. Rounds are
 * those of the slots: several a call when the message exceeds them.
 */
#ifndef SYMWIN_KERNEL_ARGS_H
#define SYMWIN_KERNEL_ARGS_H

#include <stdint.h>

struct sw_comm_state {
    uint32_t epoch;   /* calls completed by this rank */
    uint32_t rounds;  /* rounds of its slots */
    uint32_t arrived; /* blocks of the running call that have been counted */
    uint32_t failed;  /* nonzero: a kernel gave up; every later kernel leaves at once */
    uint32_t done;    /* blocks that have ended, of all calls with args.done */
    uint32_t spare;
    uint64_t copies;       /* calls by copies that have ended here; all ranks make the same */
    uint32_t reserved[24]; /* to 128 bytes: a line of its own */
};

/* Why a kernel gave up; SW_KERNEL_OK while nothing happened. */
enum sw_kernel_code {
    SW_KERNEL_OK = 0,
    SW_KERNEL_MISMATCH = 1, /* `rank`'s call differs from ours: digests in ours and theirs */
    SW_KERNEL_TIMEOUT = 2,  /* `rank` did not arrive within timeout_ns */
    SW_KERNEL_ABORTED = 3   /* the host set abort */
};

/* In pinned host memory: one word from the host, the rest from the device. `code` is written last,
 * with release order at system scope. */
struct sw_kernel_report {
    uint32_t abort; /* host: nonzero asks every waiting kernel to leave */
    uint32_t code;  /* device: enum sw_kernel_code */
    int32_t rank;   /* device: the peer that it waited for */
    uint32_t epoch; /* device: the call */
    uint32_t ours;
    uint32_t theirs;
};

enum sw_kernel_op { /* as symwin_op has them */
                    SW_KERNEL_SUM = 0,
                    SW_KERNEL_PROD = 1,
                    SW_KERNEL_MIN = 2,
                    SW_KERNEL_MAX = 3,
                    SW_KERNEL_AVERAGE = 4 /* the sum divided by nranks */
};

struct sw_kernel_args {
    uint64_t base;
    uint64_t stride;
    uint64_t state; /* offset of the communicator's own memory */
    int32_t rank;
    int32_t nranks;
    uint64_t in;         /* address of the input, any alignment of the element */
    uint64_t out;        /* address of the output; may equal in */
    uint64_t in_offset;  /* the same in the flat range, for the algorithms over windows */
    uint64_t out_offset; /* equal on all ranks */
    uint64_t count;      /* elements, > 0 */
    uint32_t digest;     /* of count, type, operation, algorithm, offsets: must agree */
    uint32_t op;         /* enum sw_kernel_op; a kernel is for some of them (kernel_list.h) */
    uint32_t done;       /* nonzero: each block adds one to sw_comm_state.done when it ends */
    uint32_t stage;      /* of a call by copies (copies_layout.h); else 0 */
    uint64_t slot_bytes; /* half of a receive slot, a multiple of 16 */
    uint64_t report;     /* device address of the struct sw_kernel_report */
    uint64_t timeout_ns; /* longest wait for a peer; 0: for ever (but for abort) */
};

/* Offsets from `state`. */
#define SW_STATE_HEADER(nranks, parity, src)                                                       \
    (sizeof(struct sw_comm_state) + ((uint64_t)(parity) * (uint64_t)(nranks) + (uint64_t)(src)) * 8)
#define SW_STATE_FINISH(nranks, src)                                                               \
    (sizeof(struct sw_comm_state) + (2 * (uint64_t)(nranks) + (uint64_t)(src)) * 8)
#define SW_STATE_COPIES(nranks, which, src)                                                        \
    (sizeof(struct sw_comm_state) +                                                                \
     ((3 + (uint64_t)(which)) * (uint64_t)(nranks) + (uint64_t)(src)) * 8)
#define SW_STATE_SLOTS(nranks)                                                                     \
    ((sizeof(struct sw_comm_state) + 8 * (uint64_t)(nranks)*8 + 127) & ~(uint64_t)127)
#define SW_STATE_SLOT(nranks, slot_bytes, parity, src)                                             \
    (SW_STATE_SLOTS(nranks) +                                                                      \
     ((uint64_t)(parity) * (uint64_t)(nranks) + (uint64_t)(src)) * 2 * (uint64_t)(slot_bytes))
#define SW_STATE_CHANNELS(nranks, slot_bytes)                                                      \
    ((SW_STATE_SLOT(nranks, slot_bytes, 2, 0) + 127) & ~(uint64_t)127)
#define SW_STATE_LANES 16384
#define SW_STATE_LANE_BYTES 16
#define SW_STATE_BYTES(nranks, slot_bytes)                                                         \
    (SW_STATE_CHANNELS(nranks, slot_bytes) + (uint64_t)SW_STATE_LANES * SW_STATE_LANE_BYTES)

#endif
