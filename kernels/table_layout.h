/* Arguments of the kernels whose parts have unequal lengths (table.cuh): what each rank's part of
 * a buffer is. Shared by parts.c, nvcc and the emulated driver's compiler; plain C99. */
#ifndef SYMWIN_TABLE_LAYOUT_H
#define SYMWIN_TABLE_LAYOUT_H

#include "kernel_args.h"

/* Ranks whose parts the arguments have room for: a launch carries all of it, however few the ranks
 * are. Those of more ranks are stored ahead, by a kernel of their own. */
#define SW_TABLE_RANKS 16
/* The room of a buffer whose parts the host has checked, or that nobody knows; times the bytes of
 * an element it does not wrap. */
#define SW_TABLE_ANY_ROOM (UINT64_MAX / 16)

struct sw_table_row {
    uint64_t count, place; /* elements; `place` counts from the beginning of the buffer */
};

struct sw_table_side {
    /* Addresses of uint64_t in device memory; counts is 0: rows has both. Rank p's count is at
     * counts + p * step, and its place at places + 8 * p, or it is 0 if places is. `step` is 0 if
     * all ranks' parts are the same; who passes the room then is said of the other side. */
    uint64_t counts, places, step;
    uint64_t room; /* elements of the buffer, or fewer that there are */
    struct sw_table_row rows[SW_TABLE_RANKS];
};

struct sw_table_args {
    struct sw_kernel_args call; /* count, bytes and steps are not used */
    uint64_t element;           /* bytes */
    /* A part of more bytes is large: it goes straight into its receiver's window, or if it is to be
     * added from its sender's, if it lies in one. Equal on all ranks. UINT64_MAX: none is */
    uint64_t large;
    /* Of `out` in the flat range, or of `in` if parts are added; SW_NO_OFFSET: peers are not to
     * access it */
    uint64_t place;
    struct sw_table_side in, out;
};

/* Rows that one launch stores: those of both buffers of 72 ranks, in 2,328 of the 4,096 bytes of
 * arguments that a kernel can have with every driver. */
#define SW_ROWS_MOST 144

/* Of the kernel that stores rows ahead of a call (move_v.cu). */
struct sw_rows_args {
    uint64_t to;                           /* the address that is SW_STATE_ROWS of this rank */
    uint32_t nranks, first, count, unused; /* rows first, ... of `in` and then of `out` */
    struct sw_table_row rows[SW_ROWS_MOST];
};

#endif
