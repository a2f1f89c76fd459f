/* From the public calls (calls.c) to what runs them (collective.c). */
#ifndef SYMWIN_CALLS_H
#define SYMWIN_CALLS_H

#include "kernels/group_layout.h"
#include "kernels/table_layout.h"
#include "src/collective/table.h"

/* What the caller of a collective passes. */
struct sw_request {
    symwin_collective collective;
    const char *name; /* of the public call, for texts */
    symwin_comm *comm;
    const void *in, *out;
    uint64_t count;
    symwin_type type;
    symwin_op op;                             /* if the collective reduces */
    int root;                                 /* if it has one */
    const symwin_collective_options *options; /* NULL: the defaults; otherwise checked */
    CUstream stream;
    const struct sw_stream_seen *seen; /* NULL, or whether it is captured */
    enum sw_checked checked; /* whether sw_request_check_grouped() has found the buffers */
    uint64_t scalar;   /* of a pre-multiplied sum: an element, or its address in device memory */
    int scalar_unread; /* it is an address there, though the options say that the host has it */
    /* Of a collective by parts: those of `in` and `out`, and the arguments of the kernel, which are
     * too large for other calls to carry; otherwise NULL. */
    const symwin_parts *parts[2];
    struct sw_table_args *table;
};

/* The name of the public call: the one with options, or the plain one. */
static inline const char *sw_request_name(symwin_collective collective,
                                          const symwin_collective_options *options)
{
    return options != NULL ? sw_collectives[collective].with : sw_collectives[collective].call;
}

/* Checks the arguments that need no communicator. */
symwin_status sw_request_check(const struct sw_request *r);

/* Of a pre-multiplied sum. The host's memory is read here: in a group, the launch comes later. */
void sw_request_read_scalar(struct sw_request *r);

/* Launches the call, or with `info` reports what would be launched. */
symwin_status sw_request_run(const struct sw_request *r, symwin_collective_info *info);

/* A query: checks the arguments, and reports what would be launched. */
symwin_status sw_request_query(struct sw_request *r, symwin_collective_info *info);

/* Checks a call of a group, which is launched later. If its ranks are to agree on its buffers
 * first, what depends on that is left out, and a buffer that is wrong fails there, on all ranks.
 * *is_checked: for the request, later. */
symwin_status sw_request_check_grouped(const struct sw_request *r, int *is_checked);

/* ---- parts.c --------------------------------------------------------------------------------- */

/* What is found of the parts of a request; to be zeroed. Sizes are in bytes. */
struct sw_parts_found {
    size_t reach[2];  /* how far parts reach in each buffer */
    size_t part;      /* of a part, for the grid */
    size_t most;      /* no part has more */
    int goes_back[2]; /* on the host: a part of a buffer begins before the end of another one */
    /* Those on the host are of whole aligned words, in one round: what the kernel for short calls
     * serves (kernels/table_short.cuh). Other ranks need not know. */
    int is_short;
    struct sw_there there; /* see sw_is_known() */
};

/* The name of a buffer's parts in the public call; 0: of `in`, 1: of `out`. */
const char *sw_parts_name(const struct sw_request *r, int b);

/* What the host can say of the room of a buffer that has parts, and of one part. */
symwin_status sw_parts_check_room(const struct sw_request *r, int b);
symwin_status sw_parts_check_part(const struct sw_request *r, int b, int rank, uint64_t count,
                                  uint64_t place);

/* Whether two of `n` parts overlap. *pair: the first that does, and the lowest before it. `sorted`:
 * NULL, or room for as many rows, by which many parts take n log n comparisons if none do. */
int sw_parts_meet(const struct sw_table_row *rows, int n, struct sw_table_row *sorted, int pair[2]);

/* Checks the parts of a request and writes r->table, but for its place. */
symwin_status sw_parts_find(const struct sw_request *r, struct sw_parts_found *found);

/* Writes the place: whether peers may store straight into `out`, or load from `in`. Afterwards,
 * with the buffers that were found. */
struct sw_buffer;
void sw_parts_place(const struct sw_request *r, const struct sw_buffer buffers[2], int in_place);

/* With arrays in device memory, the other buffer has this rank's part alone, which may be longer
 * than that buffer: the kernel is told its room, if that was found. */
void sw_parts_limit(const struct sw_request *r, const struct sw_buffer buffers[2]);

/* If the buffers lie in windows on one memory and overlap there, but have addresses that do not say
 * so: writes a request that names both by addresses of one window. Whether that is so. */
int sw_parts_by_one_window(const struct sw_request *r, const struct sw_buffer buffers[2],
                           struct sw_request *by_one);

/* Whether `in` and `out` of a request whose parts were found may be the same memory. */
int sw_parts_in_place(const struct sw_request *r);

#endif
