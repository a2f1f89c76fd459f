/* Which algorithm serves a call, and by which grid: by measured tables, or by a model.
 */
#ifndef SYMWIN_SELECT_H
#define SYMWIN_SELECT_H

#include "src/collective/table.h"

/* ---- tuning.c: tables of measured choices ------------------------------------------------------ */

struct sw_tuning_row {
    uint64_t bytes;           /* of the largest call that the row is for: sw_collective_size() */
    symwin_algo algo;         /* not AUTO */
    uint32_t blocks, threads; /* 0: the library's own */
};

/* The rows for one kind of GPU and one number of ranks; constant. */
struct sw_tuning;

/* From the file that SYMWIN_TUNING names, or else from the library's own tables. *out is NULL where
 * there are no rows. */
symwin_status sw_tuning_open(const char *call, const char *gpu, int nranks, struct sw_tuning **out);
symwin_status sw_tuning_parse(const char *call, const char *name, const char *text, size_t bytes,
                              const char *gpu, int nranks, struct sw_tuning **out);
void sw_tuning_close(struct sw_tuning *tuning); /* NULL is fine */

/* When a communicator is created: opens comm->tuning and gives what the other ranks must know of it; and
 * when all ranks' are in their votes, from value `at` on: whether they agree. */
#define SW_TUNING_VALUES 2
symwin_status sw_tuning_introduce(symwin_comm *comm, const char *call,
                                  uint64_t values[SW_TUNING_VALUES]);
symwin_status sw_tuning_agree(symwin_comm *comm, const char *call, int at);

/* Equal for equal rows; 0: none. */
uint64_t sw_tuning_hash(const struct sw_tuning *tuning);

/* The row for a message, NULL: there is none. `registered`: both buffers lie in windows. */
const struct sw_tuning_row *sw_tuning_find(const struct sw_tuning *tuning,
                                           symwin_collective collective, symwin_type type,
                                           int registered, size_t bytes);

/* ---- choice.c: which algorithm, which grid ----------------------------------------------------- */

/* What a choice depends on. */
struct sw_query {
    symwin_comm *comm;
    symwin_collective collective;
    symwin_type type;
    symwin_op op;
    size_t bytes; /* of the message, which is what a rank passes; > 0 */
    int in_place;
    int aligned;         /* so are both buffers, to 16 bytes */
    int windows;         /* both buffers lie in windows */
    unsigned transports; /* that both windows have */

    /* Of the grid alone; 0: those of the whole device, and no limit. */
    unsigned multiprocessors; /* of the stream's part of the device */
    unsigned most_blocks;
};

struct sw_grid {
    unsigned blocks, threads; /* of a block; 0: no matter */
};

/* What a call comes to. */
struct sw_plan {
    symwin_algo algo;
    const struct sw_algorithm *algorithm;
    const struct sw_kernel *kernel;
    struct sw_grid grid;
    const struct sw_kernel *put; /* copies in place begin with the two-shot put's; else NULL */
    struct sw_grid put_grid;
    int measured; /* by a table, not by the model */
};

/* The plan of a call. `algo`: what the caller wants, AUTO: what is quickest; `asked`: the
 * caller's limits, 0: none. The algorithm is the same on all ranks whose questions are; kernels
 * and grids may differ, and understand each other. */
symwin_status sw_select_plan(const struct sw_query *q, symwin_algo algo,
                             const struct sw_grid *asked, struct sw_plan *out);

/* A plan on its way to the device: what sw_algorithm.queue gets. */
struct sw_call {
    const struct sw_query *query;
    const struct sw_plan *plan;
    const struct sw_kernel_args *args; /* done 0: the stream is in a capture */
    CUstream stream;
    int early; /* the first kernel may begin before the one ahead of it has ended */
};

/* The model's time for an algorithm of the all-reduce, less what all have in common; none for
 * those through multicast. `most_blocks`: a limit that the message feels, 0 for none; with one
 * it matters whether the two-shot over windows goes by a kernel for that number of ranks
 * (`own_loads`). */
double sw_select_model_us(symwin_algo algo, int nranks, size_t bytes, int is_float, int most_blocks,
                          int own_loads);

#endif
