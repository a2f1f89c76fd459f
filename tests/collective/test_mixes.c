/* Mixes of collectives under way on several communicators whose ranks overlap: splits, splits of
 * splits, and parts that some ranks are not in. Random calls of all kinds are made alone and in
 * groups, in one order on all ranks, on two streams; beside them graphs of other communicators are
 * launched, in another order on each rank. Streams of one rank are held up meanwhile. All outputs
 * are compared with the plain reference. */
#define TEST_SLOT_BYTES 8192
#include "parts.h"

#if defined(__SANITIZE_THREAD__)
/* An emulated device has two multiprocessors then: one for a graph, and one beside it. */
enum { TURNS = 2, MOST_RANKS = 4, ONE_GRAPH = 1 };
#elif defined(__SANITIZE_ADDRESS__)
enum { TURNS = 4, MOST_RANKS = 5, ONE_GRAPH = 0 };
#else
enum { TURNS = 16, MOST_RANKS = 8, ONE_GRAPH = 0 };
#endif

enum { CALLS = 16, PITCH = ROOM / CALLS, COMMS = 6 };

/* The communicators, in the order in which they are made: splits of an earlier one. */
static const struct part {
    const char *name;
    int of;      /* an index of this table */
    int divisor; /* ranks of a part are neighbours; 0: all ranks */
    int modulus; /* ranks of a part are as far from each other; 0: all ranks */
    int without; /* the first ranks, which are in no part */
    int reverse;
} parts[COMMS] = {
    {.name = "all"},
    {.name = "all in reverse", .reverse = 1},
    {.name = "neighbours", .divisor = 2},
    {.name = "every other one, of the reverse", .of = 1, .modulus = 2},
    {.name = "all but the first", .without = 1},
    {.name = "neighbours among these", .of = 4, .divisor = 2, .reverse = 1},
};

enum kind { COLLECTIVE, PARTS, MESSAGE };

/* One call. */
struct act {
    int comm;
    enum kind kind;
    int stream;
    struct job job;
    struct parts_job parts;
    struct arrays arrays;
};

/* What a rank has: itself in each communicator (without one where it is not in it), and its calls
 * of a turn. */
struct member {
    struct rank in[COMMS];
    struct act acts[CALLS];
    unsigned char *arrays;              /* device memory */
    uint32_t *gate;                     /* a word in device memory, which streams wait for */
    struct CUstream_st *streams[COMMS]; /* each for the graph of a communicator */
    CUgraphExec graphs[COMMS];          /* NULL: the communicator has none in this turn */
};

/* ---- communicators ---- */

static void split(struct member *m, int i)
{
    const symwin_comm_options options = {
        .size = sizeof options, .timeout_ms = WAIT_MS, .slot_bytes = SLOT};
    const struct part *is = &parts[i];
    const struct rank *of = &m->in[is->of];
    const int color = of->rank < is->without ? SYMWIN_SPLIT_NONE
                      : is->divisor > 0      ? of->rank / is->divisor
                      : is->modulus > 0      ? of->rank % is->modulus
                                             : 0;
    symwin_comm_info info;
    struct rank *r = &m->in[i];

    *r = *of;
    r->comm = NULL;
    if (of->comm == NULL)
        return;
    host_must(
        symwin_comm_split(of->comm, color, is->reverse ? -of->rank : of->rank, &options, &r->comm),
        is->name);
    if (r->comm == NULL)
        return;
    host_must(symwin_comm_query(r->comm, &info), "symwin_comm_query");
    r->rank = info.rank;
    r->nranks = info.nranks;
}

/* ---- calls ---- */

static void plan(struct member *m, unsigned turn, int k)
{
    const uint32_t all = mix(turn * 977u + (uint32_t)k * 31u + 5);
    struct act *a = &m->acts[k];
    const struct rank *r;
    unsigned char *place;

    memset(a, 0, sizeof *a);
    a->comm = (int)(all % COMMS);
    r = &m->in[a->comm];
    a->kind = all / 64 % 4 == 0 ? PARTS : all / 64 % 8 == 1 ? MESSAGE : COLLECTIVE;
    a->stream = (int)(mix(all + (uint32_t)m->in[0].rank) % 2);
    if (r->comm == NULL)
        return;
    switch (a->kind) {
    case COLLECTIVE:
        a->job = job_any(r, 5000 + turn, k, (size_t)k * PITCH, PITCH);
        if (all / 1024 % 3 == 0)
            a->job.is = &shapes[all / 4096 % SHAPES]; /* as many of those that reduce */
        job_prepare(r, &a->job);
        break;
    case PARTS:
        a->arrays.device = m->arrays + (size_t)k * ARRAYS_BYTES;
        a->parts = parts_job_of(r, turn * CALLS + (unsigned)k, (size_t)k * PITCH, PITCH);
        parts_prepare(r, &a->parts, &a->arrays);
        break;
    case MESSAGE:
        place = r->in + (size_t)k * PITCH;
        host_put_u32(r->device, place, (uint32_t)(turn * 1000) + (uint32_t)r->rank);
        host_put_u32(r->device, place + 4, ~0u);
        break;
    }
}

static int before(const struct rank *r)
{
    return (r->rank + r->nranks - 1) % r->nranks;
}

static void make(struct member *m, int k, int stream)
{
    struct act *a = &m->acts[k]; /* its arrays stay until the end of a group */
    const struct rank *r = &m->in[a->comm];
    symwin_parts in, out;
    unsigned char *place;

    if (r->comm == NULL)
        return;
    switch (a->kind) {
    case COLLECTIVE:
        host_must(job_call(r, &a->job, stream), a->job.is->name);
        break;
    case PARTS:
        parts_fill_arrays(r, &a->parts, &a->arrays);
        in = parts_of(&a->parts, &a->arrays, 0);
        out = parts_of(&a->parts, &a->arrays, 1);
        host_must(parts_call_with(r, &a->parts, &in, &out, stream), "a call with parts");
        break;
    case MESSAGE:
        place = r->in + (size_t)k * PITCH;
        host_must(symwin_group_begin(), "symwin_group_begin");
        host_must(symwin_recv(r->comm, place + 4, 1, SYMWIN_U32, before(r), r->streams[stream]),
                  "symwin_recv");
        host_must(symwin_send(r->comm, place, 1, SYMWIN_U32, (r->rank + 1) % r->nranks,
                              r->streams[stream]),
                  "symwin_send");
        host_must(symwin_group_end(), "symwin_group_end");
        break;
    }
}

static void check(const struct member *m, unsigned turn, int k)
{
    const struct act *a = &m->acts[k];
    const struct rank *r = &m->in[a->comm];

    if (r->comm == NULL)
        return;
    switch (a->kind) {
    case COLLECTIVE:
        must_be(job_is_right(r, &a->job), parts[a->comm].name, r->rank);
        break;
    case PARTS:
        must_be(parts_right(r, &a->parts), parts[a->comm].name, r->rank);
        break;
    case MESSAGE:
        must_be(host_get_u32(r->device, r->in + (size_t)k * PITCH + 4) ==
                    (uint32_t)(turn * 1000) + (uint32_t)before(r),
                "a message", r->rank);
        break;
    }
}

/* ---- turns ---- */

/* In a turn all calls of a communicator are in one graph, or none is: the library orders calls
 * outside graphs among themselves only. */
static int is_captured(unsigned turn, int comm)
{
    return ONE_GRAPH ? (int)(turn % COMMS) == comm : mix(turn * 7u + (unsigned)comm + 3) % 3 == 0;
}

static CUgraphExec capture(struct member *m, unsigned turn, int comm)
{
    const int group = (turn + (unsigned)comm) % 2 == 0;
    CUstream stream = m->in[0].streams[0];
    int k;

    host_must_cuda(sw_drv.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                   "cuStreamBeginCapture");
    if (group)
        host_must(symwin_group_begin(), "symwin_group_begin");
    for (k = 0; k < CALLS; k++)
        if (m->acts[k].comm == comm)
            make(m, k, 0);
    if (group)
        host_must(symwin_group_end(), "symwin_group_end");
    return host_end_capture(stream, NULL);
}

/* Each graph has a stream, and they are launched in another order on each rank, before the calls
 * outside graphs or after them. */
static void launch(const struct member *m, unsigned turn, int after)
{
    const int rank = m->in[0].rank;
    int i;

    for (i = 0; i < COMMS; i++) {
        const int c = (i + rank) % COMMS;

        if (m->graphs[c] != NULL && (int)(mix(turn + (uint32_t)(c * 8 + rank)) % 2) == after)
            host_must_cuda(sw_drv.cuGraphLaunch(m->graphs[c], m->streams[c]), "cuGraphLaunch");
    }
}

/* Those outside graphs, alone or up to five in a group. */
static void make_others(struct member *m, unsigned turn)
{
    int k, last, group;

    for (k = 0; k < CALLS;) {
        const uint32_t random = mix(turn * 131u + (uint32_t)k + 11);

        group = random % 2 == 0;
        last = k + 1 + (int)(random / 8 % 5);
        if (group)
            host_must(symwin_group_begin(), "symwin_group_begin");
        for (; k < last && k < CALLS; k++)
            if (!is_captured(turn, m->acts[k].comm))
                make(m, k, m->acts[k].stream);
        if (group)
            host_must(symwin_group_end(), "symwin_group_end");
    }
}

/* Streams of one rank wait until all ranks have made all calls. */
static void hold(const struct member *m, unsigned turn)
{
    const struct rank *r = &m->in[0];
    const CUstream held[] = {r->streams[turn % 2], m->streams[turn % COMMS]};
    size_t i;

    host_put_u32(r->device, (unsigned char *)m->gate, 0);
    for (i = 0; i < sizeof held / sizeof held[0] && (int)turn % r->nranks == r->rank; i++)
        host_must_cuda(sw_drv.cuStreamWaitValue32(held[i], (CUdeviceptr)(uintptr_t)m->gate, 1,
                                                  CU_STREAM_WAIT_VALUE_GEQ),
                       "cuStreamWaitValue32");
}

static void finish(struct member *m)
{
    const struct rank *r = &m->in[0];
    int i;

    host_put_u32(r->device, (unsigned char *)m->gate, 1);
    job_wait(r, 0);
    job_wait(r, 1);
    for (i = 0; i < COMMS; i++) {
        host_must(symwin_stream_synchronize(r->device, m->streams[i]), "synchronize");
        if (m->graphs[i] != NULL)
            host_must_cuda(sw_drv.cuGraphExecDestroy(m->graphs[i]), "cuGraphExecDestroy");
        m->graphs[i] = NULL;
        if (m->in[i].comm != NULL)
            host_must(symwin_comm_check(m->in[i].comm), parts[i].name);
    }
}

static void run_turn(struct processes *p, struct member *m, unsigned turn)
{
    int i;

    for (i = 0; i < CALLS; i++)
        plan(m, turn, i);
    for (i = 0; i < COMMS; i++)
        if (is_captured(turn, i) && m->in[i].comm != NULL)
            m->graphs[i] = capture(m, turn, i);
    hold(m, turn);
    launch(m, turn, 0);
    make_others(m, turn);
    launch(m, turn, 1);
    processes_barrier(p);
    host_pause_ms(1); /* what need not wait begins */
    finish(m);
    for (i = 0; i < CALLS; i++)
        check(m, turn, i);
}

static void body(struct processes *p, int rank)
{
    struct member *m = calloc(1, sizeof *m);
    struct rank *r = &m->in[0];
    struct sw_scope scope;
    unsigned turn;
    int i;

    if (m == NULL)
        abort();
    *r = (struct rank){.nranks = p->count, .rank = rank, .device = rank % harness_device_count()};
    open_rank(p, r, WAIT_MS);
    m->arrays = host_alloc(r->device, CALLS * ARRAYS_BYTES);
    m->gate = host_alloc(r->device, 4);
    for (i = 0; i < COMMS; i++) {
        if (i > 0)
            split(m, i);
        host_must(symwin_stream_create(r->device, &m->streams[i]), "symwin_stream_create");
        if (m->in[i].comm != NULL) /* before the first capture */
            host_must(symwin_barrier(m->in[i].comm, m->streams[i]), "symwin_barrier");
    }
    finish(m);
    host_must(sw_scope_enter(r->device, &scope), "scope");
    for (turn = 0; turn < TURNS; turn++)
        run_turn(p, m, turn + (unsigned)p->count * 100);
    sw_scope_leave(&scope);
    processes_barrier(p); /* no rank may destroy what others still use */
    for (i = COMMS - 1; i >= 0; i--) {
        host_must(symwin_stream_destroy(r->device, m->streams[i]), "symwin_stream_destroy");
        if (i > 0)
            symwin_comm_destroy(m->in[i].comm);
    }
    host_must(symwin_mem_free(m->arrays), "symwin_mem_free");
    host_must(symwin_mem_free(m->gate), "symwin_mem_free");
    close_rank(p, r);
    free(m);
}

int main(void)
{
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    everywhere(body, MOST_RANKS);
    return tap_done();
}
