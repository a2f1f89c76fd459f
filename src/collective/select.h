/* Which algorithm serves a call, and by which grid: by measured tables, or by a model.
 */
#ifndef SYMWIN_SELECT_H
#define SYMWIN_SELECT_H

#include "src/collective/table.h"

/* ---- tuning.c: tables of measured choices ------------------------------------------------------ */

struct sw_tuning_row {
    uint64_t bytes;           /* of the largest message that the row is for */
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
const struct sw_tuning_row *sw_tuning_find(const struct sw_tuning *tuning, symwin_type type,
                                           int registered, size_t bytes);

/* ---- choice.c: which algorithm, which grid ----------------------------------------------------- */

/* What a choice depends on. */
struct sw_query {
    const symwin_comm *comm;
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

/* What an algorithm lacks for a call. */
enum sw_service sw_select_support(const struct sw_query *q, symwin_algo algo);

/* The kernel for the call, NULL: there is none. Ranks may have different ones, which understand each other. */
const struct sw_kernel *sw_select_find(const struct sw_query *q, symwin_algo algo);

/* The two-shot put's, which copies in place begin with. */
const struct sw_kernel *sw_select_find_put(const struct sw_query *q);

struct sw_grid {
    unsigned blocks, threads; /* of a block; 0: no matter */
};

struct sw_selection {
    symwin_algo algo;
    struct sw_grid grid; /* what was measured to be best, 0: nothing was */
    int measured;        /* by a table, not by the model */
};

/* The same on all ranks whose questions are, less the grid. */
void sw_select_make(const struct sw_query *q, struct sw_selection *out);

/* The model's time for an algorithm of the all-reduce, less what all have in common; none for those through multicast. `most_blocks`: a
 * limit that the message feels, 0 for none; with one it matters whether the two-shot over windows goes by a kernel for
 * that number of ranks (`own_loads`). */
double sw_select_model_us(symwin_algo algo, int nranks, size_t bytes, int is_float, int most_blocks,
                          int own_loads);

/* `asked` are the caller's limits, 0: none. Ranks may have grids of their own. Copies have that of their sums, and in
 * place one for the put. */
symwin_status sw_select_grid(const struct sw_query *q, const struct sw_selection *choice,
                             const struct sw_grid *asked, struct sw_grid *grid);
symwin_status sw_select_put_grid(const struct sw_query *q, const struct sw_grid *asked,
                                 struct sw_grid *grid);

#endif
