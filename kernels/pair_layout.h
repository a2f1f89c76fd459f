/* Arguments of the kernels of sends and receives (pairs.cu, pairs_few.cuh). Shared by the host,
 * nvcc and the emulated driver's compiler; plain C99. */
#ifndef SYMWIN_PAIR_LAYOUT_H
#define SYMWIN_PAIR_LAYOUT_H

#include "kernel_args.h"

#define SW_PAIR_ITEMS 64 /* in a launch: what arguments of 4 KiB hold */
#define SW_PAIR_FEW 8    /* in a launch of the kernel for few */
/* A message of more chunks with flags is large: it waits for its receiver's offer, and has no
 * flags. Both ranks know it from the message's bytes. */
#define SW_PAIR_EAGER (SW_PAIR_SLOTS / 4)
#define SW_PAIR_EAGER_BYTES(slot_bytes) (SW_PAIR_EAGER * SW_PAIR_SLOT_BYTES(slot_bytes) / 2)

enum sw_pair_kind {
    SW_PAIR_SEND = 0,
    SW_PAIR_RECEIVE = 1,
    SW_PAIR_COPY = 2 /* a send to this rank itself with its receive */
};

/* Count and type of a message in one word. */
#define SW_PAIR_SAYS(count, type) ((uint64_t)(count) | (uint64_t)(type) << 56)
#define SW_PAIR_COUNT(says) ((says) & ~((uint64_t)255 << 56))
#define SW_PAIR_TYPE(says) ((says) >> 56)

/* Which message of a launch with one rank a wait is for: the items of a kind differ in `before`. */
#define SW_PAIR_AWAITS(item) ((uint32_t)(item).kind + 1 + ((item).before << 8))

/* The upper half of both words of an entry, or header, of chunk `number`. */
#define SW_PAIR_FLAG(number) (((uint64_t)(number)&0x7fffffffu) | 0x80000000u)

struct sw_pair_item {
    uint64_t address; /* of the buffer; COPY: from there */
    /* RECEIVE: the buffer's offset, or SW_NO_OFFSET. COPY: the address to copy to */
    uint64_t place;
    uint64_t says;   /* SW_PAIR_SAYS() */
    uint64_t bytes;  /* of the message */
    uint64_t chunks; /* of it: at least 1; more than SW_PAIR_EAGER if it is large */
    uint32_t before; /* chunks of the items before it of the same peer and kind */
    uint32_t extent; /* bytes of a chunk, but of the last one */
    int32_t peer;
    uint16_t kind;
    uint16_t last; /* no later item has the same peer and kind. A large one is always the last */
};

struct sw_pair_args {
    struct sw_kernel_args call; /* in, out, count and pattern are not used */
    uint32_t items;
    uint32_t large; /* some items are: has more than SW_PAIR_EAGER chunks */
    struct sw_pair_item item[SW_PAIR_ITEMS];
};

/* The beginning of the struct above, for few sends and receives. */
struct sw_few_args {
    struct sw_kernel_args call;
    uint32_t items; /* at least 1 */
    uint32_t large;
    struct sw_pair_item item[SW_PAIR_FEW];
};

#endif
