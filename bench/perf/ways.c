/* The ways that are timed, and their buffers. */
#include <string.h>

#include "perf.h"

/* ---- kinds of memory ---- */

enum memory_source { FROM_SYMWIN, FROM_POOL, FROM_DRIVER, FROM_NCCL };

/* How memory is registered. */
enum purpose { AS_IT_IS, SYMWIN_WINDOW, NCCL_WINDOW, NCCL_REG };

static const struct {
    enum memory_source source;
    enum purpose purpose;
} kinds[MEMORY_KINDS] = {
    [MEMORY_WINDOW] = {FROM_SYMWIN, SYMWIN_WINDOW},
    [MEMORY_PLAIN] = {FROM_DRIVER, AS_IT_IS},
    [MEMORY_NCCL] = {FROM_NCCL, AS_IT_IS},
    [MEMORY_NCCL_WINDOW] = {FROM_NCCL, NCCL_WINDOW},
    [MEMORY_NCCL_REG] = {FROM_NCCL, NCCL_REG},
    [MEMORY_POOL_REG] = {FROM_POOL, NCCL_REG},
    [MEMORY_POOL_WINDOW] = {FROM_POOL, NCCL_WINDOW},
};

/* ---- the list ---- */

static void add(struct ways *ways, const struct way *way)
{
    if (ways->count + ways->limits == MOST_WAYS)
        return;
    ways->list[ways->count + ways->limits] = *way;
    ways->limits += way_is_limit(way);
    ways->count += !way_is_limit(way);
}

/* Adds the kernels of --kernel. A kernel that does not need windows gets plain memory. */
static void add_own(const struct stage_page *page, struct ways *ways)
{
    for (int k = 0; page != NULL && page->stage == STAGE_TIME && k < page->kernels; k++) {
        const struct sw_collective *is = collective_of(page->about[k].collective);
        const struct way way = {.library = "own",
                                .name = page->sources[k].name,
                                .kind = WAY_OWN,
                                .memory = page->about[k].windows || is->no_data ? MEMORY_WINDOW
                                                                                : MEMORY_PLAIN,
                                .optional = 1,
                                .own = k,
                                .collective = page->about[k].collective};

        add(ways, &way);
    }
}

void ways_list(const struct perf_options *options, const struct stage_page *page, struct ways *ways)
{
    const unsigned rivals = options->rivals;
    const unsigned link = options->link != 0, launch = options->launch != 0;
    /* After the library's algorithms and your own kernels. */
    const struct {
        unsigned wanted;
        struct way way;
    } others[] = {
        {rivals & PERF_NCCL, {"nccl", "nccl", WAY_NCCL, .memory = MEMORY_NCCL, .optional = 1}},
        {rivals & PERF_NCCL_WINDOW,
         {"nccl", "nccl-window", WAY_NCCL, .memory = MEMORY_NCCL_WINDOW, .optional = 1}},
        {rivals & PERF_NCCL_PLAIN,
         {"nccl", "nccl-plain", WAY_NCCL, .memory = MEMORY_PLAIN, .optional = 1}},
        {rivals & PERF_NCCL_REG,
         {"nccl", "nccl-reg", WAY_NCCL, .memory = MEMORY_NCCL_REG, .optional = 1}},
        {rivals & PERF_NCCL_REG_OURS,
         {"nccl", "nccl-reg-symwin", WAY_NCCL, .memory = MEMORY_POOL_REG, .optional = 1}},
        {rivals & PERF_NCCL_WINDOW_OURS,
         {"nccl", "nccl-window-symwin", WAY_NCCL, .memory = MEMORY_POOL_WINDOW, .optional = 1}},
        {link, {"link", "link-engine", WAY_LINK_ENGINE, .memory = MEMORY_WINDOW}},
        {link, {"link", "link-stores", WAY_LINK_STORES, .memory = MEMORY_WINDOW, .optional = 1}},
        {link, {"link", "link-spread", WAY_LINK_SPREAD, .memory = MEMORY_WINDOW, .optional = 1}},
        {launch, {"launch", "launch", WAY_LAUNCH, .memory = MEMORY_WINDOW, .optional = 1}},
        {launch,
         {"launch", "launch-early", WAY_LAUNCH_EARLY, .memory = MEMORY_WINDOW, .optional = 1}},
        {launch,
         {"launch", "launch-parts", WAY_LAUNCH_PARTS, .memory = MEMORY_WINDOW, .optional = 1}},
    };
    struct way ours = {.library = "symwin",
                       .kind = WAY_SYMWIN,
                       .memory = options->window ? MEMORY_WINDOW : MEMORY_PLAIN,
                       .optional = options->all_algos,
                       .blocks = options->blocks,
                       .threads = options->block_threads};

    memset(ways, 0, sizeof *ways);
    if (page != NULL && page->stage != STAGE_TIME) /* check and race make their own calls */
        return;
    if (options->tune != NULL) { /* tune() chooses the algorithms */
        ours.memory = MEMORY_WINDOW;
        add(ways, &ours);
        ours.memory = MEMORY_PLAIN;
        add(ways, &ours);
        return;
    }
    for (int i = 0; symwin_algo_name((symwin_algo)i) != NULL; i++) {
        if ((options->algos & 1u << i) == 0)
            continue;
        ours.algo = (symwin_algo)i;
        ours.name = symwin_algo_name(ours.algo);
        add(ways, &ours);
    }
    add_own(page, ways);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (others[i].wanted != 0)
            add(ways, &others[i].way);
}

int way_serves(const struct way *way, symwin_collective collective)
{
    switch (way->kind) {
    case WAY_SYMWIN:
        if ((int)collective == PERF_SENDRECV)
            return way->algo == SYMWIN_ALGO_AUTO || way->algo == SYMWIN_ALGO_ONESHOT;
        return way->algo == SYMWIN_ALGO_AUTO ||
               collective_of(collective)->algos[way->algo].chosen != SW_ABSENT ||
               (collective_of(collective)->ways >> way->algo & 1) != 0;
    case WAY_OWN:
        return way->collective == collective;
    case WAY_NCCL:
        return rival_serves(collective, kinds[way->memory].purpose == NCCL_WINDOW);
    default:
        return collective == SYMWIN_ALLREDUCE;
    }
}

int ways_check(const struct perf_options *options, const struct ways *ways)
{
    for (int i = 0; i < ways->count && options->tune == NULL; i++) {
        const struct way *way = &ways->list[i];
        int serves = way->kind != WAY_NCCL && way->optional;

        for (int c = 0; c < PERF_COLLECTIVES; c++)
            serves |= (options->collectives & 1u << c) != 0 &&
                      way_serves(way, (symwin_collective)c);
        if (!serves)
            return fail(SYMWIN_INVALID,
                        "no collective that was selected has %s: leave it out, or name others by "
                        "--collective",
                        way->name);
    }
    return 1;
}

/* ---- buffers ---- */

static int memory_alloc(struct rank *r, enum memory_source source, size_t bytes, void **out)
{
    CUdeviceptr plain = 0;
    int good;

    switch (source) {
    case FROM_SYMWIN:
        return ok(symwin_mem_alloc(r->device, bytes, 0, out));
    case FROM_POOL: /* like libsymwin-nccl.so */
        return ok(symwin_mem_alloc(r->device, bytes, SYMWIN_MEM_NCCL | SYMWIN_MEM_PEERS, out));
    case FROM_DRIVER:
        good = ok(sw_check(sw_drv.cuMemAlloc(&plain, bytes), "cuMemAlloc of %zu bytes", bytes));
        *out = (void *)(uintptr_t)plain;
        return good;
    case FROM_NCCL:
        break;
    }
    return rival_alloc(r, bytes, out);
}

static void memory_free(enum memory_source source, void *memory)
{
    if (memory == NULL)
        return;
    if (source == FROM_DRIVER)
        sw_drop(sw_drv.cuMemFree((CUdeviceptr)(uintptr_t)memory), "cuMemFree");
    else if (source == FROM_NCCL)
        rival_free(memory);
    else
        symwin_mem_free(memory);
}

int memory_window(struct rank *r, void *memory, size_t bytes, symwin_window **window,
                  uint64_t *offset)
{
    symwin_window_info info;
    const unsigned flags = r->job->multicast ? 0 : SYMWIN_WINDOW_NO_MULTICAST;
    int good = ok(symwin_window_register(r->comm, memory, bytes, flags, window)) &&
               ok(symwin_window_query(r->comm, *window, &info));

    if (good)
        *offset = info.offset;
    return good;
}

int memory_pinned(const char *what, uint32_t **word, CUdeviceptr *address)
{
    void *memory = NULL;

    if (!ok(sw_check(sw_drv.cuMemHostAlloc(&memory, 64, CU_MEMHOSTALLOC_PORTABLE),
                     "cuMemHostAlloc%s", what)))
        return 0;
    *word = memset(memory, 0, 64);
    return ok(sw_check(sw_drv.cuMemHostGetDevicePointer(address, memory, 0),
                       "cuMemHostGetDevicePointer%s", what));
}

static int make_window(struct rank *r, enum purpose purpose, void *memory, size_t bytes,
                       symwin_window **window, uint64_t *offset, void **handle)
{
    switch (purpose) {
    case SYMWIN_WINDOW:
        return memory_window(r, memory, bytes, window, offset);
    case NCCL_WINDOW:
    case NCCL_REG:
        return rival_register(r, memory, bytes, purpose == NCCL_WINDOW, handle);
    case AS_IT_IS:
        break;
    }
    return 1;
}

/* Replaces the driver's error by one that says what was requested and what is free. */
static int no_room(const struct rank *r, int buffers, size_t bytes)
{
    size_t free_bytes = 0, total = 0;

    return ok(sw_check(sw_drv.cuMemGetInfo(&free_bytes, &total), "cuMemGetInfo for the buffers")) &&
           fail(SYMWIN_NO_MEMORY,
                "device %d has no room for %d buffers of %zu bytes: it has %zu bytes, of which %zu "
                "are still free; give a smaller -e, or fewer ranks",
                r->device, buffers, bytes, total, free_bytes);
}

int pair_open(struct rank *r, enum memory_kind kind, size_t bytes, int pairs, struct pair *pair)
{
    const enum memory_source source = kinds[kind].source;
    const enum purpose purpose = kinds[kind].purpose;
    int good = memory_alloc(r, source, bytes, &pair->in) &&
               memory_alloc(r, source, bytes, &pair->out);

    if (!good && failure() == SYMWIN_NO_MEMORY)
        good = no_room(r, 2 * pairs, bytes);
    if (!meet(r, good, NULL, 0))
        return 0;
    good = make_window(r, purpose, pair->in, bytes, &pair->in_window, &pair->in_offset,
                       &pair->nccl_in) &&
           make_window(r, purpose, pair->out, bytes, &pair->out_window, &pair->out_offset,
                       &pair->nccl_out);
    return meet(r, good, NULL, 0);
}

void pair_close(struct rank *r, enum memory_kind kind, struct pair *pair)
{
    const int as_window = kinds[kind].purpose == NCCL_WINDOW;

    if (pair->in_window != NULL)
        symwin_window_deregister(r->comm, pair->in_window);
    if (pair->out_window != NULL)
        symwin_window_deregister(r->comm, pair->out_window);
    if (pair->nccl_in != NULL)
        rival_deregister(r, as_window, pair->nccl_in);
    if (pair->nccl_out != NULL)
        rival_deregister(r, as_window, pair->nccl_out);
    memory_free(kinds[kind].source, pair->in);
    memory_free(kinds[kind].source, pair->out);
    *pair = (struct pair){0};
}

int ways_open(struct rank *r)
{
    const struct ways *ways = &r->job->ways;
    const int rotate = r->job->options.rotate;
    const size_t bytes = (r->job->options.end + 255) / 256 * 256;
    int needed[MEMORY_KINDS] = {0};
    int pairs = 0, good = 1;

    for (int i = 0; i < ways->count + ways->limits; i++)
        needed[ways->list[i].memory] = 1;
    for (int kind = 0; kind < MEMORY_KINDS; kind++)
        pairs += needed[kind] * rotate;
    for (int kind = 0; kind < MEMORY_KINDS; kind++)
        for (int i = 0; i < rotate && needed[kind] && good; i++)
            good = pair_open(r, (enum memory_kind)kind, bytes, pairs, &r->memory[kind][i]);
    return good;
}

/* Called before the communicators are destroyed, which own the windows. After a failure, what NCCL
 * holds stays until the process ends, since NCCL's calls could wait for ranks that have left. */
void ways_close(struct rank *r, int failed)
{
    for (int kind = 0; kind < MEMORY_KINDS; kind++)
        for (int i = 0; i < PERF_MOST_ROTATE; i++)
            if (!failed || (kinds[kind].source != FROM_NCCL && r->memory[kind][i].nccl_in == NULL))
                pair_close(r, (enum memory_kind)kind, &r->memory[kind][i]);
}

/* ---- calls ---- */

static int link_call(struct rank *r, const struct way *way, const struct pair *pair, size_t bytes)
{
    const int spreads = way->kind == WAY_LINK_SPREAD;
    const int next = spreads ? 0 : (r->rank + 1) % r->job->nranks;
    void *to = NULL;

    if (!ok(symwin_window_peer_pointer(r->comm, pair->out_window, next, 0, &to)))
        return 0;
    if (spreads)
        return store_to_all(r, to, pair->in, bytes / (size_t)(r->job->nranks - 1));
    if (way->kind == WAY_LINK_STORES)
        return copy(r, to, pair->in, bytes);
    return ok(sw_check(sw_drv.cuMemcpyAsync((CUdeviceptr)(uintptr_t)to,
                                            (CUdeviceptr)(uintptr_t)pair->in, bytes, r->stream),
                       "cuMemcpyAsync to rank %d", next));
}

/* The offset in the address map of a buffer, or of a part of it. */
static uint64_t offset_of(const void *at, const void *buffer, uint64_t offset)
{
    return offset + (uint64_t)((const char *)at - (const char *)buffer);
}

static int own_way_call(struct rank *r, const struct result *result, const struct pair *pair,
                        const void *in, const void *out)
{
    struct own_kernel *k = &r->own[result->way->own];
    const struct sw_collective *is = collective_of(result->collective);
    const struct layout layout = result_layout(r, result);
    struct own_call call = {.in_offset = SYMWIN_NO_OFFSET,
                            .out_offset = SYMWIN_NO_OFFSET,
                            .count = result->count,
                            .type = result->type,
                            .op = result->op,
                            .root = r->job->options.root,
                            .to = layout.send_to,
                            .from = layout.recv_from};
    const char *refused = own_refusal(&k->about, r->job->nranks, result->type, result->op,
                                      result->count, result->in_place, 256);

    if (refused != NULL)
        return fail(SYMWIN_UNSUPPORTED, "%s does not support %s (SYMWIN_KERNEL_ABOUT)", k->name,
                    refused);
    if (!is->no_data) {
        call.in = (uint64_t)(uintptr_t)in;
        call.out = (uint64_t)(uintptr_t)out;
        call.in_offset = result->in_place ? offset_of(in, pair->out, pair->out_offset)
                                          : offset_of(in, pair->in, pair->in_offset);
        call.out_offset = offset_of(out, pair->out, pair->out_offset);
    }
    own_set_parts(&call, is, r->device_counts, r->device_counts);
    own_grid(r, k, result->bytes, &call.blocks, &call.threads);
    return own_launch(r, k, &call);
}

/* ---- the collectives ---- */

/* The two functions of a collective; the arguments are those before the options. */
#define COLLECTIVE(name, ...)                                                                      \
    static symwin_status name##_call(const struct perf_call *c, CUstream stream)                   \
    {                                                                                              \
        return symwin_##name##_with(__VA_ARGS__, &c->options, stream);                             \
    }                                                                                              \
    static symwin_status name##_query(const struct perf_call *c, symwin_collective_info *info)     \
    {                                                                                              \
        return symwin_##name##_query(__VA_ARGS__, &c->options, info);                              \
    }
#define DATA c->comm, c->in, c->out, c->count, c->type

COLLECTIVE(allreduce, DATA, c->op)
COLLECTIVE(allgather, DATA)
COLLECTIVE(alltoall, DATA)
COLLECTIVE(broadcast, DATA, c->root)
COLLECTIVE(gather, DATA, c->root)
COLLECTIVE(scatter, DATA, c->root)
COLLECTIVE(reduce_scatter, DATA, c->op)
COLLECTIVE(reduce, DATA, c->op, c->root)
COLLECTIVE(barrier, c->comm)
COLLECTIVE(alltoallv, c->comm, c->in, &c->in_parts, c->out, &c->out_parts, c->type)
COLLECTIVE(allgatherv, c->comm, c->in, c->out, &c->out_parts, c->type)
COLLECTIVE(reduce_scatterv, c->comm, c->in, &c->in_parts, c->out, c->type, c->op)

static symwin_status sendrecv_call(const struct perf_call *c, CUstream stream)
{
    symwin_status status = symwin_group_begin(), ended;

    if (status != SYMWIN_OK)
        return status;
    if (c->to != SYMWIN_NO_RANK)
        status = symwin_send_with(c->comm, c->in, c->count, c->type, c->to, &c->options, stream);
    if (status == SYMWIN_OK && c->from != SYMWIN_NO_RANK)
        status = symwin_recv_with(c->comm, c->out, c->count, c->type, c->from, &c->options, stream);
    ended = symwin_group_end();
    return status != SYMWIN_OK ? status : ended;
}

/* The library does not tell. */
static symwin_status sendrecv_query(const struct perf_call *c, symwin_collective_info *info)
{
    (void)c;
    *info = (symwin_collective_info){0};
    return SYMWIN_OK;
}

static const struct {
    symwin_status (*call)(const struct perf_call *c, CUstream stream);
    symwin_status (*query)(const struct perf_call *c, symwin_collective_info *info);
} collectives[] = {
    [SYMWIN_ALLREDUCE] = {allreduce_call, allreduce_query},
    [SYMWIN_ALLGATHER] = {allgather_call, allgather_query},
    [SYMWIN_ALLTOALL] = {alltoall_call, alltoall_query},
    [SYMWIN_BROADCAST] = {broadcast_call, broadcast_query},
    [SYMWIN_GATHER] = {gather_call, gather_query},
    [SYMWIN_SCATTER] = {scatter_call, scatter_query},
    [SYMWIN_REDUCE_SCATTER] = {reduce_scatter_call, reduce_scatter_query},
    [SYMWIN_REDUCE] = {reduce_call, reduce_query},
    [SYMWIN_BARRIER] = {barrier_call, barrier_query},
    [SYMWIN_ALLTOALLV] = {alltoallv_call, alltoallv_query},
    [SYMWIN_ALLGATHERV] = {allgatherv_call, allgatherv_query},
    [SYMWIN_REDUCE_SCATTERV] = {reduce_scatterv_call, reduce_scatterv_query},
    [PERF_SENDRECV] = {sendrecv_call, sendrecv_query},
    [PERF_ALLTOALLV_DEVICE] = {alltoallv_call, alltoallv_query},
    [PERF_ALLGATHERV_DEVICE] = {allgatherv_call, allgatherv_query},
    [PERF_REDUCE_SCATTERV_DEVICE] = {reduce_scatterv_call, reduce_scatterv_query},
};

/* This rank's scalar, if the call needs one. */
static const void *scalar_of(struct rank *r, const struct result *result)
{
    if (result->op != SYMWIN_PREMUL_SUM)
        return NULL;
    r->scalar = perf_encode((int32_t)result->type, perf_scalar(r->rank));
    return &r->scalar;
}

static struct perf_call call_of(struct rank *r, const struct result *result,
                                const struct pair *pair)
{
    struct layout is = {.send_to = SYMWIN_NO_RANK, .recv_from = SYMWIN_NO_RANK};

    if ((int)result->collective == PERF_SENDRECV) /* others' calls are timed without it */
        is = result_layout(r, result);
    return (struct perf_call){.comm = r->comm,
                              .in = result_in(r, result, pair),
                              .out = result_out(r, result, pair),
                              .count = result->count,
                              .type = result->type,
                              .op = result->op,
                              .root = r->job->options.root,
                              .to = is.send_to,
                              .from = is.recv_from,
                              .options = {.size = sizeof(symwin_collective_options),
                                          .algo = result->way->algo,
                                          .blocks = result->way->blocks,
                                          .threads = result->way->threads,
                                          .scalar = scalar_of(r, result)}};
}

int collective_call(struct rank *r, symwin_collective collective, const struct perf_call *c)
{
    struct perf_call call = *c;

    if (collective_of(collective)->by_parts && c->in_parts.counts == NULL)
        call.in_parts = call.out_parts = parts_of(r, collective, c->count);
    return ok(collectives[collective].call(&call, r->stream));
}

int way_query(struct rank *r, const struct result *result, symwin_collective_info *info)
{
    struct perf_call call = call_of(r, result, &r->memory[result->way->memory][0]);

    if (collective_of(result->collective)->by_parts)
        call.in_parts = call.out_parts = parts_of(r, result->collective, result->count);
    if (result->way->kind != WAY_OWN)
        return ok(collectives[result->collective].query(&call, info));
    *info = (symwin_collective_info){0};
    own_grid(r, &r->own[result->way->own], result->bytes, &info->blocks, &info->threads);
    return 1;
}

int way_call(struct rank *r, const struct result *result, const struct pair *pair)
{
    const struct way *way = result->way;
    const struct perf_call call = call_of(r, result, pair);

    switch (way->kind) {
    case WAY_SYMWIN:
        return collective_call(r, result->collective, &call);
    case WAY_OWN:
        return own_way_call(r, result, pair, call.in, call.out);
    case WAY_NCCL:
        return rival_call(r, result, call.in, call.out);
    case WAY_LAUNCH:
    case WAY_LAUNCH_EARLY:
    case WAY_LAUNCH_PARTS:
        return launch_nothing(r, way->kind == WAY_LAUNCH_PARTS, way->kind == WAY_LAUNCH_EARLY);
    default:
        return link_call(r, way, pair, result->bytes);
    }
}
