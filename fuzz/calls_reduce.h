/* The all-reduce as a step of fuzz/calls.c: only calls that all ranks make alike, or that none can. */
#ifndef SYMWIN_FUZZ_CALLS_REDUCE_H
#define SYMWIN_FUZZ_CALLS_REDUCE_H

#include "calls_model.h"

enum { MOST_ELEMENTS = 600 };

/* One rank's buffer, and what the library must make of it. */
struct buffer {
    char *ptr;
    const struct window *window; /* NULL: in none */
    const struct memory *memory; /* NULL: no memory of this rank's device */
    int skip;                    /* nobody says what comes of it */
    symwin_status status;
};

static struct reduction {
    struct buffer in, out;
    size_t in_offset, out_offset; /* in the flat range, where both are in windows */
    int windows;
    unsigned transports;
    symwin_status status;
} reductions[RANKS];

static struct buffer choose_buffer(const struct comm *comm, int rank, unsigned slot, unsigned place,
                                   size_t bytes, size_t align)
{
    static const size_t offsets[] = {0, 64, 4096, 8192, GRANULE / 2, 4, 1, 128};
    const struct memory *m = &model.memory[rank][slot % MEMORIES];
    struct buffer b = {.status = SYMWIN_OK};
    size_t left;
    enum found found;

    if (m->owner == NOBODY) {
        b.ptr = (place & 1) != 0 ? host_memory : NULL;
        b.status = SYMWIN_INVALID;
        return b;
    }
    b.ptr = m->ptr + offsets[place % 8];
    if (place == 15)
        b.ptr = m->ptr + m->bytes - 64;
    b.memory = m;
    left = (size_t)(m->ptr + m->bytes - b.ptr);
    found = window_of(comm, rank, b.ptr, bytes, &b.window);
    if ((uintptr_t)b.ptr % align != 0 || found == FOUND_PART ||
        (found == FOUND_NONE && m->device != model.device[rank]))
        b.status = SYMWIN_INVALID;
    else
        b.skip = found == FOUND_SEVERAL || (found == FOUND_NONE && bytes > left);
    return b;
}

static void plan_reduction(const struct step *s, int rank, const struct call *c)
{
    const struct comm *comm = &model.comm[s->a % COMMS];
    const size_t size = symwin_type_bytes((symwin_type)c->type);
    const size_t bytes = c->bytes * size;
    struct reduction *r = &reductions[rank];

    *r = (struct reduction){.status = SYMWIN_OK};
    r->in = choose_buffer(comm, rank, s->b, s->c, bytes, size);
    r->out = choose_buffer(comm, rank, s->b / MEMORIES, s->c / 16, bytes, size);
    if (r->in.status != SYMWIN_OK || r->out.status != SYMWIN_OK ||
        (r->in.ptr != r->out.ptr && r->in.ptr < r->out.ptr + bytes &&
         r->out.ptr < r->in.ptr + bytes)) {
        r->status = SYMWIN_INVALID;
        return;
    }
    r->windows = r->in.window != NULL && r->out.window != NULL;
    if (r->windows) {
        r->in_offset = r->in.window->offset + (size_t)(r->in.ptr - r->in.window->begin);
        r->out_offset = r->out.window->offset + (size_t)(r->out.ptr - r->out.window->begin);
        r->transports = r->in.window->transports & r->out.window->transports;
    }
    if (c->how.algo == SYMWIN_ALGO_AUTO || c->how.algo == SYMWIN_ALGO_ONESHOT)
        return;
    if (!r->windows ||
        (c->how.algo != SYMWIN_ALGO_TWOSHOT &&
         ((r->transports & SYMWIN_TRANSPORT_MULTICAST) == 0 || c->type != SYMWIN_U32 ||
          (c->how.algo == SYMWIN_ALGO_ONESHOT_MC && r->in.ptr == r->out.ptr))))
        r->status = SYMWIN_UNSUPPORTED;
}

/* Whether the ranks' calls fit together, or all fail alone: else ranks would wait for others. */
static int agree_on_reduction(void)
{
    const struct reduction *first = &reductions[0];
    int failed = 0;
    int r;

    for (r = 0; r < model.nranks; r++) {
        failed += reductions[r].status != SYMWIN_OK;
        if (reductions[r].in.skip || reductions[r].out.skip)
            return 0;
    }
    if (failed > 0)
        return failed == model.nranks;
    for (r = 1; r < model.nranks; r++)
        if (reductions[r].windows != first->windows ||
            reductions[r].in_offset != first->in_offset ||
            reductions[r].out_offset != first->out_offset ||
            reductions[r].transports != first->transports ||
            (reductions[r].in.ptr == reductions[r].out.ptr) != (first->in.ptr == first->out.ptr))
            return 0;
    return 1;
}

/* Arguments that are wrong whatever the buffers are. */
static int reduce_wrongly(const struct step *s, struct call *c)
{
    switch (s->twist / 4 % 16) {
    case 1:
        c->type = 12 + s->c;
        return 1;
    case 2:
        c->op = 5 + s->c;
        return 1;
    case 3:
        c->how.size--;
        return 1;
    case 4:
        c->how.algo = (symwin_algo)(SW_ALGOS + s->c);
        return 1;
    case 5:
        c->how.blocks = -1;
        return 1;
    case 6:
        c->how.threads = -1;
        return 1;
    }
    return 0;
}

static void step_reduce(const struct step *s, int rank, struct call *c)
{
    static const size_t counts[] = {1, 3, 16, MOST_ELEMENTS, 0, 5, 64, SIZE_MAX};
    struct comm *comm = &model.comm[s->a % COMMS];
    int wrong, r;

    c->kind = CALL_REDUCE;
    c->comm = comm->ptr[rank];
    c->bytes = counts[s->twist % 8];
    c->type = (s->a & 64) != 0 ? SYMWIN_I8 : SYMWIN_U32;
    c->op = SYMWIN_SUM;
    c->how = (symwin_allreduce_options){.size = sizeof c->how,
                                        .algo = (symwin_algo)(s->a / COMMS % 5)};
    for (r = 0; r < model.nranks && rank == 0 && c->bytes != SIZE_MAX; r++)
        plan_reduction(s, r, c);
    c->ptr = reductions[rank].in.ptr;
    c->out = reductions[rank].out.ptr;
    wrong = reduce_wrongly(s, c);
    if (wrong || c->comm == NULL) {
        c->want = INVALID_ONLY;
    } else if (comm->ended != SYMWIN_OK) {
        c->want = ONLY(comm->ended);
    } else if (c->bytes == 0 || c->bytes == SIZE_MAX) {
        c->want = c->bytes == 0 ? OK_ONLY : INVALID_ONLY;
        c->ptr = c->out = NULL;
    } else if (agree_on_reduction() && (reductions[0].status != SYMWIN_OK || comm->left == 0)) {
        c->want = ONLY(reductions[rank].status);
    } else {
        c->kind = CALL_NONE;
    }
    if (c->kind == CALL_NONE)
        return;
    if (model.stream[rank] == NULL)
        fuzz_must(symwin_stream_create(model.device[rank], &model.stream[rank]) == SYMWIN_OK, "%s",
                  symwin_last_error());
    c->stream = model.stream[rank];
}

/* Whether two buffers are apart, also where they are one memory at two addresses. */
static int apart(const struct buffer *a, const struct buffer *b, size_t bytes)
{
    const size_t x = (size_t)(a->ptr - a->memory->ptr);
    const size_t y = (size_t)(b->ptr - b->memory->ptr);

    return a->memory->id != b->memory->id || x + bytes <= y || y + bytes <= x;
}

/* Whether no rank's input is written while another reads it. */
static int all_apart(size_t bytes)
{
    int r, q;

    for (r = 0; r < model.nranks; r++)
        for (q = 0; q < model.nranks; q++) {
            const struct reduction *a = &reductions[r], *b = &reductions[q];

            if (r != q && (!apart(&a->in, &b->in, bytes) || !apart(&a->out, &b->out, bytes)))
                return 0;
            if (!(r == q && a->in.ptr == a->out.ptr) && !apart(&a->in, &b->out, bytes))
                return 0;
        }
    return 1;
}

static uint32_t element(int rank, size_t i)
{
    return (uint32_t)(rank + 1) * 0x9e3779b9u + (uint32_t)i;
}

/* The inputs, before the calls. */
static void fill_inputs(void)
{
    uint32_t data[MOST_ELEMENTS];
    size_t i;
    int r;

    for (r = 0; r < model.nranks; r++) {
        const struct call *c = &calls[r];

        if (c->kind != CALL_REDUCE || c->want != OK_ONLY || c->bytes == 0)
            continue;
        for (i = 0; i < c->bytes; i++)
            data[i] = element(r, i);
        fuzz_must(symwin_memcpy(model.device[r], c->ptr, data,
                                c->bytes * symwin_type_bytes((symwin_type)c->type),
                                c->stream) == SYMWIN_OK,
                  "%s", symwin_last_error());
    }
}

static void check_output(int rank, const struct call *c)
{
    uint32_t data[MOST_ELEMENTS];
    size_t i;
    int r;

    fuzz_must(symwin_memcpy(model.device[rank], data, c->out, c->bytes * sizeof data[0],
                            c->stream) == SYMWIN_OK,
              "%s", symwin_last_error());
    for (i = 0; i < c->bytes; i++) {
        uint32_t want = 0;

        for (r = 0; r < model.nranks; r++)
            want += element(r, i);
        fuzz_must(data[i] == want, "element %zu of rank %d is %u, not %u", i, rank, data[i], want);
    }
}

static void done_reduce(const struct step *s, int rank, const struct call *c)
{
    int r;

    (void)s;
    if (rank < model.nranks - 1 || c->got != SYMWIN_OK || c->bytes == 0)
        return;
    for (r = 0; r < model.nranks; r++)
        fuzz_must(symwin_stream_synchronize(model.device[r], model.stream[r]) == SYMWIN_OK &&
                      symwin_comm_check(calls[r].comm) == SYMWIN_OK,
                  "%s", symwin_last_error());
    for (r = 0; r < model.nranks && c->type == SYMWIN_U32; r++)
        if (all_apart(c->bytes * sizeof(uint32_t)))
            check_output(r, &calls[r]);
}

#endif
