/* Arguments of the kernel that makes several small calls of a group at once (move.cu). Shared by
 * collective.c, nvcc and the emulated driver's compiler; plain C99. */
#ifndef SYMWIN_GROUP_LAYOUT_H
#define SYMWIN_GROUP_LAYOUT_H

#include "kernel_args.h"

#define SW_GROUP_ENTRY_BYTES 16 /* of which so many are of the message: */
#define SW_GROUP_WORD_BYTES 8
/* A call begins at a multiple of so many entries, so that a warp's entries are of one call. */
#define SW_GROUP_ENTRIES 32
/* Entries of a launch: more bytes gain little by being sent together. */
#define SW_GROUP_MOST_ENTRIES (16 << 10)

/* Whether a call uses what calls before it write, or the other way round: these end first on this
 * rank. _ALIAS: the calls may know that memory by two addresses. Then a fence comes between them,
 * which takes 3 us on an H200, longer than a launch: most calls do without. */
enum sw_group_waits { SW_GROUP_WAITS_NOT, SW_GROUP_WAITS, SW_GROUP_WAITS_ALIAS };

struct sw_group_item {
    uint64_t in, out; /* as in sw_kernel_args, like `to` and the other three of the pattern */
    uint64_t in_step, out_step;
    uint64_t bytes; /* of a part; 0: the call is listed and not made */
    int32_t to, from;
    struct sw_said_call says;
    uint32_t begin; /* entries of the calls before it, in each slot */
    uint32_t waits; /* enum sw_group_waits */
    uint32_t op;    /* if it reduces, as in sw_kernel_args */
    uint32_t reduces;
    uint64_t scalar;
};

struct sw_group_args {
    /* `calls` is not 0. Elements, bytes and pattern are not used. */
    struct sw_kernel_args call;
    uint32_t listed;  /* items: the calls, and perhaps the one after them, to tell what differs */
    uint32_t entries; /* of all calls */
    struct sw_group_item item[SW_GROUP_CALLS + 1];
};

#endif
