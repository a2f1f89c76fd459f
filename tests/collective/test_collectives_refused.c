/* Collectives that fail: wrong arguments of each are refused, and calls that differ, ranks that do
 * not come, leave or abort end as they do for all-reduces. Also runs on GPUs
 * (tests/gpu/both.txt). */
#include "collectives.h"
#include "each_call.h"

enum { ALLOCATED = 4096 };

static void refused(const struct rank *r, const char *who, symwin_status status, symwin_status want,
                    const char *words)
{
    if (status != want || !host_error_has(words))
        fprintf(stderr, "%s: %s \"%s\", not %s \"%s\"\n", who, symwin_status_name(status),
                symwin_last_error(), symwin_status_name(want), words);
    must_be(status == want && host_error_has(words), words, r->rank);
}

/* ---- arguments ---- */

/* What is wrong with a call of 16 elements of f32 that would be right. */
static const struct wrong {
    const char *words;
    symwin_status status;
    uint64_t count;    /* 0: 16 */
    int for_one_rank;  /* the largest count that one rank may pass, which several may not */
    symwin_type type;  /* 0: f32 */
    int root_from_end; /* of a collective that has one: 1: the first number that is no rank */
    int root;
    int no_in, no_out, in_off, out_off, in_on_out; /* of a buffer that this rank has */
    int in_host;
    symwin_algo algo;
    size_t less; /* options->size: less than the right one */
} wrongs[] = {
    {.words = "in is NULL; pass device memory of |elements", .status = SYMWIN_INVALID, .no_in = 1},
    {.words = "out is NULL", .status = SYMWIN_INVALID, .no_out = 1},
    {.words = "in is 0x|not aligned to f32's 4 bytes; pass an address that is a multiple of them",
     .status = SYMWIN_INVALID,
     .in_off = 2},
    {.words = "out is 0x|not aligned to f32's 4 bytes", .status = SYMWIN_INVALID, .out_off = 1},
    {.words = "in (0x|is not device memory; allocate it on the device",
     .status = SYMWIN_INVALID,
     .in_host = 1},
    {.words = "overlap in part", .status = SYMWIN_INVALID, .in_on_out = 1},
    {.words = "root is -1 and must be a rank, 0 to ", .status = SYMWIN_INVALID, .root = -1},
    {.words = "and must be a rank, 0 to ", .status = SYMWIN_INVALID, .root_from_end = 1},
    {.words = "there is no type 12", .status = SYMWIN_INVALID, .type = (symwin_type)12},
    {.words = "count is 9223372036854775807, more than any memory holds",
     .status = SYMWIN_INVALID,
     .count = UINT64_MAX / 2},
    {.words = "count is 70368744177665, more than any memory holds",
     .status = SYMWIN_INVALID,
     .count = ((uint64_t)1 << 46) + 1},
    {.words = "count is |, more than any memory holds",
     .status = SYMWIN_INVALID,
     .for_one_rank = 1},
    {.words = "there is no algorithm twoshot_bulk for it; pass auto",
     .status = SYMWIN_UNSUPPORTED,
     .algo = SYMWIN_ALGO_TWOSHOT_BULK},
    {.words = "there is no algorithm 99; see SYMWIN_ALGO_LIST",
     .status = SYMWIN_INVALID,
     .algo = (symwin_algo)99},
    {.words = "options->size is |symwin_collective_options", .status = SYMWIN_INVALID, .less = 1},
};

static int has_root(const struct shape *is)
{
    return is->root_sends || is->root_receives;
}

/* Nothing is launched, so no other rank has to call. */
static void refuse(const struct rank *r, const struct shape *is, const struct wrong *w)
{
    static unsigned char here[256];
    struct job j = {.is = is,
                    .options = {.size = sizeof j.options - w->less, .algo = w->algo},
                    .type = w->type != 0 ? w->type : SYMWIN_F32,
                    .count = w->count != 0 ? w->count : 16,
                    .root = r->rank,
                    .in = GUARD,
                    .out = GUARD};
    unsigned char *in = r->in + GUARD + w->in_off, *out = r->out + GUARD + w->out_off;

    if (!has_root(is) && (w->root != 0 || w->root_from_end != 0))
        return;
    if (w->for_one_rank && r->nranks == 1)
        return;
    if (w->for_one_rank)
        j.count = SW_MOST_BYTES / 4;
    if (w->root != 0 || w->root_from_end != 0)
        j.root = w->root_from_end != 0 ? r->nranks : w->root;
    if (w->in_host)
        in = here;
    if (w->in_on_out)
        in = out + (is->out_each && !is->in_each ? (size_t)r->rank * 64 : 0) + 4;
    refused(r, is->name,
            job_call_on(r, &j, w->no_in ? NULL : in, w->no_out ? NULL : out, r->streams[0]),
            w->status, w->words);
}

static void arguments(const struct rank *r)
{
    size_t i;
    int s;

    for (s = 0; s < SHAPES; s++)
        for (i = 0; i < sizeof wrongs / sizeof wrongs[0]; i++)
            refuse(r, &shapes[s], &wrongs[i]);
}

/* A pre-multiplied sum of four f32 by whatever the options say. */
static symwin_status premultiply(const struct rank *r, symwin_op op, const void *scalar,
                                 int on_device)
{
    const symwin_collective_options options = {
        .size = sizeof options, .scalar = scalar, .scalar_on_device = on_device};

    return symwin_reduce_scatter_with(r->comm, r->in, r->out, 4, SYMWIN_F32, op, &options,
                                      r->streams[0]);
}

/* Scalars that are missing, somewhere else, or of no use. */
static void scalars(const struct rank *r)
{
    const symwin_op op = SYMWIN_PREMUL_SUM;
    const float half = 0.5f;
    symwin_collective_options options = {.size = sizeof options, .scalar = &half};
    symwin_collective_info info = {.blocks = -1};
    symwin_comm *const c = r->comm;
    void *far = NULL, *freed = NULL;

    refused(r, "allreduce", symwin_allreduce(c, r->in, r->out, 4, SYMWIN_F32, op, r->streams[0]),
            SYMWIN_INVALID,
            "symwin_allreduce: SYMWIN_PREMUL_SUM multiplies by a scalar; pass its address in "
            "options->scalar of symwin_allreduce_with");
    refused(r, "reduce", symwin_reduce(c, r->in, r->out, 4, SYMWIN_F32, op, 0, r->streams[0]),
            SYMWIN_INVALID, "options->scalar of symwin_reduce_with");
    refused(r, "query", symwin_allreduce_query(c, r->in, r->out, 4, SYMWIN_F32, op, NULL, &info),
            SYMWIN_INVALID, "symwin_allreduce_query: SYMWIN_PREMUL_SUM multiplies by a scalar");
    refused(r, "no scalar", premultiply(r, op, NULL, 0), SYMWIN_INVALID,
            "symwin_reduce_scatter_with: SYMWIN_PREMUL_SUM multiplies by a scalar; pass its "
            "address in options->scalar");
    refused(r, "no scalar", premultiply(r, op, NULL, 1), SYMWIN_INVALID,
            "SYMWIN_PREMUL_SUM multiplies by a scalar");
    refused(r, "host memory", premultiply(r, op, &half, 1), SYMWIN_INVALID,
            "options->scalar (0x|is not device memory");
    if (r->rank == 0) { /* others might get that memory */
        host_must(symwin_mem_alloc(r->device, ALLOCATED, 0, &freed), "symwin_mem_alloc");
        host_must(symwin_mem_free(freed), "symwin_mem_free");
        refused(r, "freed memory", premultiply(r, op, freed, 1), SYMWIN_INVALID,
                "options->scalar (0x|was freed");
    }
    refused(r, "device memory", premultiply(r, op, r->scalars, 0), SYMWIN_INVALID,
            "symwin_reduce_scatter_with: options->scalar (0x|) is device memory; set "
            "options->scalar_on_device, or pass host memory");
    refused(r, "half an element", premultiply(r, op, (const char *)(void *)r->scalars + 2, 1),
            SYMWIN_INVALID, "options->scalar (0x|is not aligned to 4 bytes; pass an address that");
    refused(r, "another operation", premultiply(r, SYMWIN_SUM, &half, 0), SYMWIN_INVALID,
            "options->scalar is set, which only SYMWIN_PREMUL_SUM uses; pass NULL");
    refused(r, "another operation", premultiply(r, SYMWIN_MAX, NULL, 1), SYMWIN_INVALID,
            "options->scalar_on_device is set, which only SYMWIN_PREMUL_SUM uses; pass 0");
    refused(r, "allgather",
            symwin_allgather_with(c, r->in, r->out, 4, SYMWIN_F32, &options, r->streams[0]),
            SYMWIN_INVALID, "symwin_allgather_with: options->scalar is set");
    refused(r, "send",
            symwin_send_with(c, r->in, 4, SYMWIN_F32, (r->rank + 1) % r->nranks, &options,
                             r->streams[0]),
            SYMWIN_INVALID, "symwin_send_with: options->scalar is set");
    refused(r, "no operation", premultiply(r, (symwin_op)6, &half, 0), SYMWIN_INVALID,
            "there is no operation 6");
    must_be(info.blocks == -1, "nothing is written", r->rank);
    if (harness_device_count() == 1)
        return;
    far = host_alloc((r->device + 1) % harness_device_count(), 8);
    refused(
        r, "another device", premultiply(r, op, far, 1), SYMWIN_INVALID,
        "symwin_reduce_scatter_with: options->scalar (0x|is memory of device|; pass memory of ");
    host_must(symwin_mem_free(far), "symwin_mem_free");
}

/* What a query is asked without. */
static void queries(const struct rank *r)
{
    struct job j = {.options = {.size = sizeof j.options}, .in = GUARD, .out = GUARD};
    symwin_collective_info info = {.blocks = -1};
    int s;

    for (s = 0; s < SHAPES; s++) {
        j.is = &shapes[s];
        j.count = 0;
        refused(r, j.is->name, job_query(r, &j, &info), SYMWIN_INVALID, "_query: count is 0");
        j.count = 1;
        refused(r, j.is->name, job_query(r, &j, NULL), SYMWIN_INVALID, "_query: info is NULL");
        j.root = r->nranks;
        if (has_root(j.is))
            refused(r, j.is->name, job_query(r, &j, &info), SYMWIN_INVALID,
                    "and must be a rank, 0 to ");
        j.root = 0;
        must_be(info.blocks == -1, "nothing is written", r->rank);
    }
}

static void barriers(const struct rank *r)
{
    symwin_collective_options options = {.size = sizeof options, .algo = SYMWIN_ALGO_TWOSHOT};

    refused(r, "barrier", symwin_barrier(NULL, r->streams[0]), SYMWIN_INVALID,
            "symwin_barrier: comm is NULL");
    refused(r, "barrier", symwin_barrier_query(r->comm, NULL, NULL), SYMWIN_INVALID,
            "symwin_barrier_query: info is NULL");
    refused(r, "barrier", symwin_barrier_with(r->comm, &options, r->streams[0]), SYMWIN_UNSUPPORTED,
            "symwin_barrier_with: there is no algorithm twoshot for it; pass auto");
}

static void needs_windows(const struct rank *r, const struct shape *is, symwin_algo algo)
{
    const struct job j = {.is = is,
                          .options = {.size = sizeof j.options, .algo = algo},
                          .count = 16,
                          .root = r->rank,
                          .in = GUARD,
                          .out = GUARD};
    char words[200];

    snprintf(words, sizeof words,
             "%s needs %s to be in a window of this communicator; register memory by "
             "symwin_window_register() on every rank, or pass auto",
             symwin_algo_name(algo), is->decides == OUT ? "out" : "in");
    refused(r, is->name, job_call(r, &j, 0), SYMWIN_UNSUPPORTED, words);
}

static void needs_two_buffers(const struct rank *r, symwin_algo algo)
{
    const struct job j = {.is = &shapes[1],
                          .options = {.size = sizeof j.options, .algo = algo},
                          .count = 16,
                          .out = GUARD,
                          .in_place = 1};
    char words[100];

    snprintf(words, sizeof words,
             "symwin_alltoall_with: %s reads inputs while other ranks write outputs",
             symwin_algo_name(algo));
    refused(r, j.is->name, job_call(r, &j, 0), SYMWIN_UNSUPPORTED, words);
}

static void needs_multicast(struct processes *p, const struct rank *r)
{
    symwin_window *windows[2];
    int s, b;

    for (b = 0; b < 2; b++)
        host_must(symwin_window_register(r->comm, b == 0 ? r->in : r->out, ROOM,
                                         SYMWIN_WINDOW_NO_MULTICAST, &windows[b]),
                  "register");
    for (s = 0; s < SHAPES; s++) {
        const struct job j = {.is = &shapes[s],
                              .options = {.size = sizeof j.options, .algo = shapes[s].multicast},
                              .count = 16,
                              .root = r->rank,
                              .in = GUARD,
                              .out = GUARD};

        if (j.options.algo != SYMWIN_ALGO_AUTO)
            refused(r, j.is->name, job_call(r, &j, 0), SYMWIN_UNSUPPORTED,
                    "_mc needs windows with multicast");
    }
    for (b = 0; b < 2; b++)
        host_must(symwin_window_deregister(r->comm, windows[b]), "deregister");
    processes_barrier(p);
}

/* Algorithms over windows want windows, and some of them two buffers. */
static void windows(struct processes *p, const struct rank *r)
{
    symwin_window *window = NULL;
    int s, a;

    for (s = 0; s < SHAPES; s++)
        for (a = 1; a < ALGOS && shapes[s].algos[a] != SYMWIN_ALGO_AUTO; a++)
            needs_windows(r, &shapes[s], shapes[s].algos[a]);
    host_must(symwin_window_register(r->comm, r->out, ROOM, 0, &window), "register");
    needs_two_buffers(r, SYMWIN_ALGO_PUT);
    needs_two_buffers(r, SYMWIN_ALGO_COPIES);
    host_must(symwin_window_deregister(r->comm, window), "deregister");
    processes_barrier(p);
}

/* A buffer has to fit in its window with the parts of all ranks. */
static void past_a_window(const struct rank *r)
{
    symwin_window *window;
    char words[256];
    int s, side;

    host_must(symwin_window_register(r->comm, r->out, 4096, 0, &window), "register");
    for (s = 0; s < SHAPES; s++)
        for (side = 0; side < 2; side++) {
            const struct shape *is = &shapes[s];
            const uint64_t parts = (side == 0 ? is->in_each : is->out_each) ? (uint64_t)r->nranks
                                                                            : 1;
            const struct job j = {.is = is,
                                  .options = {.size = sizeof j.options},
                                  .type = SYMWIN_U8,
                                  .count = 4096 / parts + 1,
                                  .root = r->rank};

            snprintf(words, sizeof words,
                     "symwin_%s_with: rank %d's %llu elements (%llu bytes) at %s (0x%llx) pass the "
                     "end of its window, which has 4096 bytes from there; pass fewer, or a buffer "
                     "in a larger window",
                     is->name, r->rank, (unsigned long long)(j.count * parts),
                     (unsigned long long)(j.count * parts), side == 0 ? "in" : "out",
                     (unsigned long long)(uintptr_t)r->out);
            refused(r, is->name,
                    job_call_on(r, &j, side == 0 ? r->out : r->in, side == 0 ? r->in : r->out,
                                r->streams[0]),
                    SYMWIN_INVALID, words);
        }
    host_must(symwin_window_deregister(r->comm, window), "deregister");
}

/* Two allocations side by side, of which the second holds a pattern that has to stay. */
struct neighbours {
    char *small, *next;
    unsigned char pattern[ALLOCATED];
};

static void open_neighbours(const struct rank *r, struct neighbours *n)
{
    void *first, *second;

    host_must(symwin_mem_alloc(r->device, ALLOCATED, 0, &first), "symwin_mem_alloc");
    host_must(symwin_mem_alloc(r->device, ALLOCATED, 0, &second), "symwin_mem_alloc");
    n->small = first < second ? first : second;
    n->next = first < second ? second : first;
    memset(n->pattern, 0x5a, sizeof n->pattern);
    host_must(host_copy(r->device, n->next, n->pattern, sizeof n->pattern), "copy");
}

static void close_neighbours(const struct rank *r, struct neighbours *n)
{
    unsigned char now[ALLOCATED];

    host_must(symwin_stream_synchronize(r->device, r->streams[0]), "synchronize");
    host_must(host_copy(r->device, now, n->next, sizeof now), "copy");
    must_be(memcmp(now, n->pattern, sizeof now) == 0, "the buffer behind it is as it was", r->rank);
    host_must(symwin_mem_free(n->small), "symwin_mem_free");
    host_must(symwin_mem_free(n->next), "symwin_mem_free");
}

/* One shape, with a buffer that has too few bytes `from` one of its bytes on, by one element. */
static void past_memory(const struct rank *r, const struct shape *is, int side, char *small,
                        size_t from)
{
    const size_t room = ALLOCATED - from;
    const uint64_t parts = (side == 0 ? is->in_each : is->out_each) ? (uint64_t)r->nranks : 1;
    const struct job j = {.is = is,
                          .options = {.size = sizeof j.options},
                          .type = SYMWIN_U8,
                          .count = room / parts + 1,
                          .root = r->rank};
    char words[256];

    snprintf(words, sizeof words,
             "symwin_%s_with: rank %d's %llu elements (%llu bytes) at %s (0x%llx) pass the end of "
             "its allocation, which has %zu bytes from there; pass fewer, or a larger buffer",
             is->name, r->rank, (unsigned long long)(j.count * parts),
             (unsigned long long)(j.count * parts), side == 0 ? "in" : "out",
             (unsigned long long)(uintptr_t)(small + from), room);
    refused(r, is->name,
            job_call_on(r, &j, side == 0 ? small + from : (char *)r->in,
                        side == 0 ? (char *)r->out : small + from, r->streams[0]),
            SYMWIN_INVALID, words);
}

/* A buffer has to fit in its allocation with the parts of all ranks, also if it begins in the
 * middle of that, if both allocations are registered, and in a group. Nothing is launched. */
static void past_an_allocation(const struct rank *r)
{
    const uint32_t launches = job_launches(r);
    symwin_registration *handles[2];
    symwin_collective_info info;
    struct neighbours n;
    int s, side, turn;

    open_neighbours(r, &n);
    for (turn = 0; turn < 2; turn++) {
        for (s = 0; s < SHAPES; s++)
            for (side = 0; side < 2; side++) {
                past_memory(r, &shapes[s], side, n.small, 0);
                past_memory(r, &shapes[s], side, n.small, 1003);
            }
        refused(
            r, "a query",
            symwin_allgather_query(r->comm, r->in, n.small, ALLOCATED + 1, SYMWIN_U8, NULL, &info),
            SYMWIN_INVALID, "symwin_allgather_query: rank |at out (0x|pass the end");
        host_must(symwin_allreduce_query(r->comm, n.small, r->out, ALLOCATED, SYMWIN_U8, SYMWIN_SUM,
                                         NULL, &info),
                  "all of it");
        host_must(symwin_group_begin(), "symwin_group_begin");
        host_must(symwin_barrier(r->comm, r->streams[0]), "symwin_barrier");
        refused(r, "in a group",
                symwin_allreduce(r->comm, r->in, n.small, ALLOCATED + 1, SYMWIN_U8, SYMWIN_SUM,
                                 r->streams[0]),
                SYMWIN_INVALID, "4097 elements (4097 bytes) at out (0x|which has 4096 bytes");
        refused(r, "at its end", symwin_group_end(), SYMWIN_INVALID,
                "symwin_allreduce: rank |4097 elements (4097 bytes) at out (0x|which has 4096");
        if (turn == 0) {
            host_must(symwin_register(r->comm, n.small, ALLOCATED, &handles[0]), "register");
            host_must(symwin_register(r->comm, n.next, ALLOCATED, &handles[1]), "register");
        }
    }
    for (s = 0; s < 2; s++)
        host_must(symwin_deregister(r->comm, handles[s]), "deregister");
    must_equal(job_launches(r), launches, "launches", r->rank);
    close_neighbours(r, &n);
}

/* The driver may give one rank's freed address to another rank of the process. */
static pthread_mutex_t allocating = PTHREAD_MUTEX_INITIALIZER;

/* Memory of the driver, or of the pool, which keeps it. */
static void *take(const struct rank *r, int of_driver)
{
    CUdeviceptr at = 0;
    void *memory = NULL;

    if (!of_driver)
        host_must(symwin_mem_alloc(r->device, ALLOCATED, 0, &memory), "symwin_mem_alloc");
    else
        host_must_cuda(sw_drv.cuMemAlloc(&at, ALLOCATED), "cuMemAlloc");
    return of_driver ? (void *)(uintptr_t)at : memory;
}

static void give(void *memory, int of_driver)
{
    if (!of_driver)
        host_must(symwin_mem_free(memory), "symwin_mem_free");
    else
        host_must_cuda(sw_drv.cuMemFree((CUdeviceptr)(uintptr_t)memory), "cuMemFree");
}

/* A buffer that was freed: before the call, or in a group, which is refused at its end then.
 * Nothing is launched. */
static void freed(const struct rank *r, int in_group, int of_driver)
{
    const uint32_t launches = job_launches(r);
    struct neighbours n; /* they keep the chunk */
    symwin_status status;
    char words[128];
    struct sw_scope scope;
    void *memory;
    int s, side;

    pthread_mutex_lock(&allocating);
    open_neighbours(r, &n);
    host_must(sw_scope_enter(r->device, &scope), "sw_scope_enter");
    for (s = 0; s < SHAPES; s++)
        for (side = 0; side < 2; side++) {
            const struct job j = {.is = &shapes[s],
                                  .options = {.size = sizeof j.options},
                                  .type = SYMWIN_U8,
                                  .count = 1,
                                  .root = r->rank};

            memory = take(r, of_driver);
            if (in_group) {
                host_must(symwin_group_begin(), "symwin_group_begin");
                host_must(symwin_barrier(r->comm, r->streams[0]), "symwin_barrier");
            } else {
                give(memory, of_driver);
            }
            status = job_call_on(r, &j, side == 0 ? memory : r->in, side == 0 ? r->out : memory,
                                 r->streams[0]);
            if (in_group) {
                host_must(status, j.is->name);
                give(memory, of_driver);
                status = symwin_group_end();
            }
            snprintf(words, sizeof words, "symwin_%s_with: %s (0x%llx) was freed; pass memory that",
                     j.is->name, side == 0 ? "in" : "out", (unsigned long long)(uintptr_t)memory);
            refused(r, j.is->name, status, SYMWIN_INVALID, words);
        }
    sw_scope_leave(&scope);
    must_equal(job_launches(r), launches, "launches", r->rank);
    close_neighbours(r, &n);
    pthread_mutex_unlock(&allocating);
}

/* Each call is refused in a capture that has been invalidated, by all ranks. */
static void in_an_invalid_capture(struct processes *p, const struct rank *r)
{
    static const char words[] = "the capture of the stream is invalid; end it, and capture again";
    struct CUstream_st *const stream = r->streams[0];
    const struct each e = {r->comm, r->rank, r->nranks, r->device, (uint32_t *)(void *)r->in,
                           stream,  0};
    symwin_window *window;
    CUgraph graph = NULL;
    int i;

    host_must(symwin_window_register(r->comm, r->in, ROOM, 0, &window), "register");
    host_must_cuda(sw_drv.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), "begin");
    must_be(sw_drv.cuStreamSynchronize(stream) != CUDA_SUCCESS, "it is invalid", r->rank);
    for (i = 0; i < EACH_CALLS; i++)
        refused(r, each_calls[i].name, each_make(&e, &each_calls[i], e.memory + EACH_WORDS),
                SYMWIN_INVALID, words);
    refused(r, "an all-reduce",
            symwin_allreduce(r->comm, r->in, r->in, 4, SYMWIN_U32, SYMWIN_SUM, stream),
            SYMWIN_INVALID, words);
    refused(r, "a barrier", symwin_barrier(r->comm, stream), SYMWIN_INVALID, words);
    refused(r, "follow", symwin_comm_follow(r->comm, stream), SYMWIN_INVALID, words);
    must_be(sw_drv.cuStreamEndCapture(stream, &graph) != CUDA_SUCCESS, "no graph", r->rank);
    processes_barrier(p);
    host_must(symwin_window_deregister(r->comm, window), "deregister");
}

/* ---- calls that differ, and ranks that are late ---------------------------------------------- */

enum oddity { SAME, COLLECTIVE, COUNT, TYPE, ROOT, OFFSET, LATE, LEAVES, ABORTS };

struct row {
    enum oddity oddity;
    int shape;
    int odd; /* the rank that is odd */
    symwin_algo algo;
};

/* No failure stops copies, and two ranks' overwrite each other if counts or roots differ. */
#if defined(__SANITIZE_THREAD__)
enum { UNLIKE_COPIES = 0 };
#else
enum { UNLIKE_COPIES = 1 };
#endif

static const struct oddity_text {
    const char *name, *words;
    symwin_status status;
} texts[] = {
    [SAME] = {"nothing", "", SYMWIN_OK},
    [COLLECTIVE] = {"a rank that calls another", "", SYMWIN_MISMATCH},
    [COUNT] = {"another count", "count differs: rank %d passed 99, rank %d passed 100",
               SYMWIN_MISMATCH},
    [TYPE] = {"another type of that size", "type differs: rank %d passed f32, rank %d passed u32",
              SYMWIN_MISMATCH},
    [ROOT] = {"another root", "root differs: rank %d passed 0, rank %d passed 2", SYMWIN_MISMATCH},
    [OFFSET] = {"another offset", "the offset of |differs: rank %d passed |rank %d passed",
                SYMWIN_MISMATCH},
    [LATE] = {"a late rank", "waited 100 ms for rank %d", SYMWIN_TIMEOUT},
    [LEAVES] = {"a rank that leaves",
                "rank %d has destroyed its communicator|waited for it in "
                "collective 1",
                SYMWIN_PEER_LOST},
    [ABORTS] = {"a rank that aborts", "rank %d", SYMWIN_ABORTED},
};

/* The collective with the same arguments, algorithm included, that the odd rank calls. */
static const struct shape *sibling(const struct row *row)
{
    static const struct shape allreduce = {.name = "allreduce", .collective = SYMWIN_ALLREDUCE};
    static const int siblings[] = {1, 0, 4, 6, 2, -1, 3, -1};

    return row->algo != SYMWIN_ALGO_AUTO || siblings[row->shape] < 0
               ? &allreduce
               : &shapes[siblings[row->shape]];
}

static symwin_status odd_call(const struct rank *r, const struct row *row, int odd)
{
    const int asked = row->algo != SYMWIN_ALGO_AUTO; /* over windows */
    const int another = odd && row->oddity == COLLECTIVE;
    const struct job j = {.is = another ? sibling(row) : &shapes[row->shape],
                          .options = {.size = sizeof j.options,
                                      .algo = !asked    ? SYMWIN_ALGO_ONESHOT
                                              : another ? SYMWIN_ALGO_AUTO
                                                        : row->algo},
                          .type = odd && row->oddity == TYPE ? SYMWIN_F32 : SYMWIN_U32,
                          .count = odd && row->oddity == COUNT ? 99 : 100,
                          .root = odd && row->oddity == ROOT ? 0 : 2,
                          .in = odd && row->oddity == OFFSET ? 8192 : 4096,
                          .out = odd && row->oddity == OFFSET ? 8192 : 4096};

    return job_call(r, &j, 0);
}

static void differs(struct processes *p, struct rank *r, const struct row *row)
{
    const struct oddity_text *is = &texts[row->oddity];
    const int odd = r->rank == row->odd;
    symwin_window *windows[2];
    char words[224];
    symwin_status status;

    snprintf(words, sizeof words, is->words, row->odd, row->odd == 0 ? 1 : 0,
             shapes[row->shape].name);
    if (row->oddity == COLLECTIVE)
        snprintf(words, sizeof words,
                 "the call differs: rank %d called symwin_%s(), rank %d called symwin_%s()",
                 row->odd, sibling(row)->name, row->odd == 0 ? 1 : 0, shapes[row->shape].name);
    if (row->oddity == OFFSET && row->algo == SYMWIN_ALGO_PUT) /* the root alone has an `in` */
        snprintf(words, sizeof words, "the offset of out differs: rank %d passed ", row->odd);
    if (row->algo != SYMWIN_ALGO_AUTO) {
        host_must(symwin_window_register(r->comm, r->in, ROOM, 0, &windows[0]), "register");
        host_must(symwin_window_register(r->comm, r->out, ROOM, 0, &windows[1]), "register");
    }
    processes_barrier(p);
    if (odd && row->oddity == LEAVES) {
        symwin_comm_destroy(r->comm);
        r->comm = NULL;
        processes_barrier(p);
        processes_barrier(p);
        return;
    }
    if (row->oddity == LATE && !odd) {
        host_must(odd_call(r, row, 0), "a call");
        job_wait(r, 0);
    }
    if (row->oddity == LATE)
        processes_barrier(p);
    if (odd && row->oddity == ABORTS) {
        host_pause_ms(20); /* the others are in the call by then, or come to it later */
        host_must(symwin_comm_abort(r->comm), "symwin_comm_abort");
    } else if (row->oddity == ABORTS) {
        (void)odd_call(r, row, 0);
    } else if (odd || row->oddity != LATE) {
        host_must(odd_call(r, row, odd), "a call");
    }
    processes_barrier(p);
    job_wait(r, 0);
    status = processes_note(p, r->rank, symwin_comm_check(r->comm));
#if defined(__SANITIZE_THREAD__)
    /* On a busy machine ranks may take longer than a judge waits for their arguments. */
    if (host_error_has("the arguments differ"))
        words[0] = '\0';
#endif
    refused(r, shapes[row->shape].name, status, is->status, words);
    processes_barrier(p);
}

static void body(struct processes *p, int rank)
{
    const struct row *row = places_arg(p);
    struct rank r = {.nranks = p->count, .rank = rank, .device = rank % harness_device_count()};
    const symwin_algo cast = shapes[row->shape].multicast;
    int s;

    if (cast != SYMWIN_ALGO_AUTO && row->algo == cast)
        r.flags = SYMWIN_COMM_MULTICAST;
    if (r.flags != 0 && skips_multicast(p, rank))
        return;
    open_rank(p, &r, row->oddity == LATE ? 100 : WAIT_MS);
    if (row->oddity != SAME) {
        differs(p, &r, row);
    } else {
        arguments(&r);
        scalars(&r);
        queries(&r);
        barriers(&r);
        windows(p, &r);
        needs_multicast(p, &r);
        past_a_window(&r);
        past_an_allocation(&r);
        freed(&r, 0, 0);
        freed(&r, 1, 0);
        processes_barrier(p); /* nobody else allocates */
        freed(&r, 1, 1);
        in_an_invalid_capture(p, &r);
        processes_barrier(p);          /* unmapping a window may wait for kernels */
        for (s = 0; s < SHAPES; s++) { /* the communicator still works */
            const struct job j = {.is = &shapes[s],
                                  .options = {.size = sizeof j.options},
                                  .count = 100,
                                  .root = r.nranks - 1,
                                  .in = GUARD,
                                  .out = GUARD};

            job_run(&r, &j);
        }
    }
    close_rank(p, &r);
}

/* Whether a rank can be odd so. Without windows offsets do not count. */
static int can_be(const struct row *row)
{
    const struct shape *is = &shapes[row->shape];

    if (row->algo != SYMWIN_ALGO_AUTO && row->algo != is->multicast && !shape_has(is, row->algo))
        return 0;
    switch (row->oddity) {
    case COUNT:
        return row->shape != BARRIER && (row->algo != SYMWIN_ALGO_COPIES || UNLIKE_COPIES);
    case TYPE:
        return row->shape != BARRIER;
    case ROOT:
        return has_root(is) && (row->algo != SYMWIN_ALGO_COPIES || UNLIKE_COPIES);
    case OFFSET:
        return row->algo == SYMWIN_ALGO_COPIES ||
               (row->algo != SYMWIN_ALGO_AUTO && row->algo == is->multicast) ||
               (row->algo == SYMWIN_ALGO_PUT && is->collective == SYMWIN_BROADCAST);
    default:
        return row->algo != SYMWIN_ALGO_PUT;
    }
}

/* All rows of one shape by one algorithm. */
static void rows(int shape, symwin_algo algo)
{
    struct row row = {.shape = shape, .algo = algo};
    struct processes *p;
    int r, right;

    for (row.oddity = COLLECTIVE; row.oddity <= ABORTS; row.oddity++) {
        row.odd = row.oddity == OFFSET ? 2 /* the root */ : (shape + (int)row.oddity) % 3;
        if (!can_be(&row))
            continue;
        right = places_run(&places_all[0], 3, body, &row, &p);
        for (r = 1; r < 3 && row.oddity < LEAVES; r++)
            right &= strcmp(p->rank[r].text, p->rank[0].text) == 0;
        tap_ok(right, "%s by %s, %s: %s", shapes[shape].name, symwin_algo_name(algo),
               texts[row.oddity].name, p->rank[0].text);
        processes_free(p);
    }
}

/* A reduction of three launches, of which one fails on rank 0: after the first one its peers have
 * begun with the call, and are told. */
static void half_launched(struct processes *p, int rank)
{
    enum { ELEMENTS = 10000, MOST_CALLS = 100 }; /* rounds have 4,096 elements */
    int told = 0, fired = 1, failed;
    symwin_status status;
    symwin_comm *comm;
    unsigned nth;
    float *in;

    for (nth = 1; fired && nth < MOST_CALLS; nth++) {
        host_must(processes_comm(p, rank, 10000, &comm), "symwin_comm_create");
        in = host_alloc(rank, ELEMENTS * 2 * sizeof *in);
        processes_barrier(p);
        if (rank == 0)
            sw_emu_fail_nth(nth, CUDA_ERROR_INVALID_VALUE, 0, 0);
        status = symwin_reduce(comm, in, in + ELEMENTS, ELEMENTS, SYMWIN_F32, SYMWIN_SUM, 1, NULL);
        if (rank == 0) {
            fired = sw_emu_fault_fired();
            sw_emu_fail_nth(0, CUDA_SUCCESS, 0, 0);
            failed = status != SYMWIN_OK;
            told += failed && symwin_comm_check(comm) == SYMWIN_ABORTED;
            p->rank[0].number = fired;
            if (failed)
                (void)symwin_comm_abort(comm);
        }
        processes_barrier(p);
        fired = (int)p->rank[0].number;
        processes_barrier(p);
        symwin_comm_destroy(comm);
        host_must(symwin_mem_free(in), "symwin_mem_free");
        p->id_made = 0;
        processes_barrier(p);
    }
    must_be(nth > 3 && nth < MOST_CALLS, "each call failed once", rank);
    if (rank == 0)
        must_equal(told, 2, "a second and a third launch that failed", rank);
}

int main(void)
{
    struct row row = {.oddity = SAME};
    struct processes *p;
    size_t place;
    int right;

    for (place = 0; place < places_count(); place++) {
        right = places_run(&places_all[place], 3, body, &row, &p);
        tap_ok(right, "arguments that are wrong, %s", places_all[place].name);
        processes_free(p);
    }
    if (!processes_use_gpus()) {
        tap_ok(places_run(&places_all[0], 2, half_launched, NULL, &p), "half of a call");
        processes_free(p);
    }
    places_stay();
    tap_ok(places_run(&places_all[0], 1, body, &row, &p), "and on one rank alone");
    processes_free(p);
    for (row.shape = 0; row.shape <= BARRIER; row.shape++) {
        rows(row.shape, SYMWIN_ALGO_AUTO);
        rows(row.shape, SYMWIN_ALGO_PUT);
        rows(row.shape, SYMWIN_ALGO_COPIES);
        if (shapes[row.shape].multicast != SYMWIN_ALGO_AUTO)
            rows(row.shape, shapes[row.shape].multicast);
    }
    return tap_done();
}
