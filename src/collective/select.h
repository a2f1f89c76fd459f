/* Selects the algorithm and the grid of a call: by tables of measured choices, or by a model. */
#ifndef SYMWIN_SELECT_H
#define SYMWIN_SELECT_H

#include "src/collective/table.h"

/* ---- tuning.c: tables of measured choices ---------------------------------------------------- */

/* Whether a communicator over several domains has it. */
static inline int sw_way_is_there(symwin_collective collective, symwin_algo algo)
{
    return algo > SYMWIN_ALGO_AUTO && algo < SW_ALGOS &&
           (sw_collectives[collective].ways >> algo & 1) != 0;
}

/* Whether a way's `blocks` are pieces. */
static inline int sw_way_has_pieces(symwin_algo algo)
{
    return algo == SYMWIN_ALGO_RAILS || algo == SYMWIN_ALGO_TWOSHOT_PUSH;
}

/* Whether a row of measured choices for one domain may name it. */
static inline int sw_algo_is_inside(symwin_collective collective, symwin_algo algo)
{
    return sw_algo_is_there(collective, algo) ||
           (sw_collectives[collective].by_parts && algo == SYMWIN_ALGO_PUT);
}

struct sw_tuning_row {
    uint64_t bytes;           /* the largest call that the row serves: sw_collective_size() */
    symwin_algo algo;         /* not AUTO */
    uint32_t blocks, threads; /* 0: the library's default */
};

/* The rows for one kind of GPU and one number of ranks; constant. */
struct sw_tuning;

/* From the file that SYMWIN_TUNING names, otherwise from the library's own tables. *out is NULL if
 * there are no rows. */
symwin_status sw_tuning_open(const char *call, const char *gpu, int nranks, struct sw_tuning **out);
symwin_status sw_tuning_parse(const char *call, const char *name, const char *text, size_t bytes,
                              const char *gpu, int nranks, struct sw_tuning **out);
void sw_tuning_close(struct sw_tuning *tuning); /* NULL is allowed */

/* When a communicator is created. sw_tuning_introduce() opens comm->tuning, of so many domains, in
 * place of what was open, and returns the values
 * that this rank puts on its ballot. When the ballots of all ranks are there, sw_tuning_agree()
 * checks whether the values, from value `at` on, agree. */
#define SW_TUNING_VALUES 2
#define SW_TUNING_DOMAINS " in %d domains" /* behind a GPU's name, in tables of several */
symwin_status sw_tuning_introduce(symwin_comm *comm, const char *call, int domains,
                                  uint64_t values[SW_TUNING_VALUES]);
symwin_status sw_tuning_agree(symwin_comm *comm, const char *call, int at);
/* When comm->sharers is known: the library's own tables are of ranks with a device each, and go
 * where ranks share one. All ranks know both. */
void sw_tuning_for_sharers(symwin_comm *comm);

/* Equal for equal rows; 0: there are no rows. */
uint64_t sw_tuning_hash(const struct sw_tuning *tuning);

/* The row for a message; NULL: there is none. `registered`: the buffers that the algorithms over
 * windows need are in some. */
const struct sw_tuning_row *sw_tuning_find(const struct sw_tuning *tuning,
                                           symwin_collective collective, symwin_type type,
                                           int registered, size_t bytes);

/* Of a collective by parts: whether a table says which parts go straight. These are
 * those of more than *bytes: of the last row for windows that is no put. */
int sw_tuning_straight(const struct sw_tuning *tuning, symwin_collective collective,
                       symwin_type type, uint64_t *bytes);

/* ---- select.c: which algorithm, which grid --------------------------------------------------- */

/* What a selection depends on. */
struct sw_query {
    const char *call; /* the public call, for texts */
    symwin_comm *comm;
    symwin_collective collective;
    symwin_type type;
    symwin_op op;
    size_t bytes; /* of the message that one rank passes; > 0 */
    int in_place;
    int aligned;         /* both buffers are aligned to 16 bytes */
    int windows_aligned; /* so is what is used of windows: equal on all ranks */
    int windows;         /* both buffers are in windows */
    unsigned transports; /* of both windows */
    int large_parts; /* of a collective by parts: one may go straight into a window, or from it */
    int short_parts; /* of one: this rank's are what the kernel for short calls handles */
    int by_window;   /* of one: what others access for that is in one. Only for the grid */
    int reads_parts; /* of one: the kernel reads in device memory where they are */
    const struct sw_buffer *buffers; /* only for texts: in and out, found; NULL: unknown */

    /* Only for the grid; 0: the whole device, and no limit. */
    unsigned multiprocessors; /* of the stream's part of the device */
    unsigned most_blocks;
};

struct sw_grid {
    unsigned blocks, threads; /* per block; 0: any number */
};

enum { SW_FLAG_THREADS = 64 }; /* of a kernel that only exchanges words with peers */

/* The result of a selection. */
struct sw_plan {
    symwin_algo algo;
    const struct sw_algorithm *algorithm;
    const struct sw_kernel *kernel;
    struct sw_grid grid;
    uint32_t stage; /* args.stage of the kernel */
    uint64_t bytes; /* of each launch; the last one may have fewer */
    const struct sw_kernel
        *put; /* reductions by copies in place begin with this two-shot put; otherwise NULL */
    struct sw_grid put_grid;
    int measured; /* selected by a table, not by the model */
};

/* The plan of a call. `algo`: what the caller wants; AUTO: the fastest. `asked`: the caller's
 * limits; 0: none. Ranks with equal queries get the same algorithm. Kernels and grids may differ
 * between ranks; they are compatible. */
symwin_status sw_select_plan(const struct sw_query *q, symwin_algo algo,
                             const struct sw_grid *asked, struct sw_plan *out);
/* The same, of none of the plans that the communicator's calls have had (plans.c). */
symwin_status sw_select_new_plan(const struct sw_query *q, symwin_algo algo,
                                 const struct sw_grid *asked, struct sw_plan *out);
struct sw_plans *sw_plans_create(void); /* NULL: no memory */
void sw_plans_destroy(struct sw_plans *plans);

/* Whether such a call by `algo` would go over windows if its buffers were in some: the answer is
 * the same on all ranks. Of the query only the call counts, not where the buffers lie. */
int sw_select_wants_windows(const struct sw_query *q, symwin_algo algo);

/* Refuses blocks and threads that do not fit, and a device on which no block fits. Only the call,
 * the communicator and the last two members of the query count, here and in the next. */
symwin_status sw_select_check(const struct sw_query *q, const struct sw_kernel *kernel,
                              const struct sw_grid *asked);

/* The limits of a grid of `kernel`, for sends and receives: blocks, and threads of a block if the
 * caller asks for them. A launch for several calls takes as much of `asked` as fits, here and in
 * the next: which kernel it is depends on what else this rank has in the group, and a refusal would
 * leave the other ranks waiting. */
symwin_status sw_select_pairs(const struct sw_query *q, const struct sw_kernel *kernel,
                              const struct sw_grid *asked, struct sw_grid *limits);

/* The grid of `kernel` for small calls of a group: equally many blocks for each of `parts` parts of
 * at most q->bytes; none if there cannot be so many. */
symwin_status sw_select_group(const struct sw_query *q, const struct sw_kernel *kernel,
                              unsigned parts, const struct sw_grid *asked, struct sw_grid *grid);

/* Threads of a block that do a part of the message, of `most` there can be, for `items` of it in
 * `most_blocks` at most. */
unsigned sw_select_workers(const struct sw_algorithm *a, const symwin_comm *comm, uint64_t items,
                           uint64_t most_blocks, unsigned most);

/* A plan that is being queued: the argument of sw_algorithm.queue. */
struct sw_call {
    const struct sw_query *query;
    const struct sw_plan *plan;
    const struct sw_kernel_args *args; /* done is 0 if the stream is in a capture */
    CUstream stream;
    int early; /* the first kernel may begin before the kernel ahead of it has ended */
};

#endif
