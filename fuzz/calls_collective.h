/* The collectives as steps of fuzz/calls.c: only calls that all ranks make alike, that fail on all,
 * or whose arguments differ so that all ranks learn of it. */
#ifndef SYMWIN_FUZZ_CALLS_COLLECTIVE_H
#define SYMWIN_FUZZ_CALLS_COLLECTIVE_H

#include "calls_plan.h"

/* Sets an argument that is wrong for any buffers. */
static int is_wrong(const struct step *s, struct call *c)
{
    switch (s->twist / 4 % 16) {
    case 1:
        if (!shape_of(c->collective)->no_data)
            c->type = 12 + s->c;
        return !shape_of(c->collective)->no_data;
    case 2:
        c->op = 5 + s->c;
        return shape_of(c->collective)->reduces;
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
    case 7:
        if (has_root(shape_of(c->collective)))
            c->root = (s->c & 1) != 0 ? -1 : model.nranks + (int)s->c;
        return has_root(shape_of(c->collective)) &&
               model.comm[s->a % COMMS].ended == SYMWIN_OK; /* which comes first */
    }
    return 0;
}

/* How many calls a capture makes: one if in place, since a second call would add up the first's
 * results. */
static int captures_of(const struct step *s)
{
    int r;

    for (r = 0; r < model.nranks; r++)
        if (is_in_place(&planned[r], r) || s->how == APART_IN_A_GROUP)
            return 1;
    return 1 + (int)(s->a >> 5 & 1);
}

/* The buffers of a rank's call. If both are chosen alike, it is in place where it fits. */
static void choose_buffers(const struct step *s, int rank, const struct call *c)
{
    /* One rank's buffer may lie elsewhere in its memory. */
    const unsigned shift = rank == s->odd && s->twist / 4 % 16 > 11 ? 2 : 0;
    const struct sw_collective *is = shape_of(c->collective);
    const size_t count = c->bytes < SIZE_MAX ? c->bytes : 0;
    const size_t size = symwin_type_bytes((symwin_type)c->type);
    struct planned *p = &planned[rank];
    size_t least;

    *p = (struct planned){.is = is,
                          .count = count,
                          .root = c->root,
                          .bytes = count * size,
                          .in_bytes = in_count(is, count, rank, c->root) * size,
                          .out_bytes = out_count(is, count, rank, c->root) * size,
                          .in = choose_buffer(rank, s->b, s->c % 16 ^ shift),
                          .out = choose_buffer(rank, s->b / MEMORIES, s->c / 16)};
    p->algo = chosen_algo(is, c);
    p->table = choose_table(s, rank, p);
    least = own_offset(p, rank, 0) + own_offset(p, rank, 1) + p->bytes;
    if (p->in.memory != NULL && p->in.ptr == p->out.ptr &&
        least <= (size_t)(p->in.memory->ptr + p->in.memory->bytes - p->in.ptr)) {
        p->in.ptr += own_offset(p, rank, 1);
        p->out.ptr += own_offset(p, rank, 0);
    }
}

/* Whether the ranks meet in a call without elements. */
static int meets_empty(const struct call *c)
{
    const struct sw_collective *is = shape_of(c->collective);

    return is->no_data || is->by_parts || is_pairs(is);
}

static symwin_algo choose_algo(const struct step *s)
{
    static const symwin_algo moves[] = {SYMWIN_ALGO_AUTO, SYMWIN_ALGO_ONESHOT, SYMWIN_ALGO_TWOSHOT,
                                        SYMWIN_ALGO_PUT, SYMWIN_ALGO_AUTO};

    if (s->how == BY_COPIES || s->how == COPIES_IN_A_GROUP)
        return SYMWIN_ALGO_COPIES;
    if (s->collective == PAIRS) /* others are refused before wrong arguments are */
        return (symwin_algo)(s->a / COMMS % 2);
    if ((s->collective == SYMWIN_BROADCAST || s->collective == SYMWIN_REDUCE) &&
        s->a / COMMS % 5 == 4)
        return SYMWIN_ALGO_TWOSHOT_PUSH;
    return s->collective == SYMWIN_ALLREDUCE ? (symwin_algo)(s->a / COMMS % 5)
                                             : moves[s->a / COMMS % 5];
}

/* Whether no rank's input or output is written by another. */
static int all_apart(void)
{
    int r, q;

    for (r = 0; r < model.nranks; r++)
        if ((planned[r].in_bytes > 0 && planned[r].in.memory == NULL) ||
            (planned[r].out_bytes > 0 && planned[r].out.memory == NULL))
            return 0;
    for (r = 0; r < model.nranks; r++)
        for (q = 0; q < model.nranks; q++) {
            const struct planned *a = &planned[r], *b = &planned[q];

            if (r != q && (!apart(&a->in, a->in_bytes, &b->in, b->in_bytes) ||
                           !apart(&a->out, a->out_bytes, &b->out, b->out_bytes)))
                return 0;
            if (!(r == q && is_in_place(a, r) && (!is_pairs(a->is) || a->root == 0)) &&
                !apart(&a->in, a->in_bytes, &b->out, b->out_bytes))
                return 0;
        }
    return 1;
}

static int any_in_place(void)
{
    int r;

    for (r = 0; r < model.nranks; r++)
        if (is_in_place(&planned[r], r))
            return 1;
    return 0;
}

/* The call of each rank, alone or in capture number `capture`. */
static void plan_collective(const struct step *s, int rank, struct call *c, unsigned capture)
{
    static const size_t counts[] = {1, 3, 16, MOST_ELEMENTS, 0, 5, 64, SIZE_MAX};
    struct comm *comm = &model.comm[s->a % COMMS];
    const int registers = capture != 0 && comm->graph_register;
    static int fits, differ;
    int wrong, r;

    c->kind = capture != 0 ? CALL_CAPTURE : CALL_COLLECTIVE;
    c->collective = s->collective;
    c->root = (int)((s->a >> 4) % (unsigned)model.nranks);
    c->rank = rank;
    c->nranks = model.nranks;
    c->comm = comm->ptr[rank];
    c->device = model.device[rank];
    c->bytes = counts[s->twist % 8];
    if (c->bytes == MOST_ELEMENTS && s->collective == PAIRS)
        c->bytes *= 2;                                /* then messages are large */
    c->no_result = s->b / (MEMORIES * MEMORIES) == 1; /* of queries */
    c->type = (s->a & 64) != 0 ? SYMWIN_I8 : SYMWIN_U32;
    c->op = SYMWIN_SUM;
    c->how = (symwin_collective_options){.size = sizeof c->how, .algo = choose_algo(s)};
    if (s->how == WITH_ONE_APART || (s->how == APART_IN_A_GROUP && what_of(s) == PLANNED))
        c->how.algo = SYMWIN_ALGO_ONESHOT;
    if (rank == 0) {
        differ = 0;
        for (r = 0; r < model.nranks; r++)
            choose_buffers(s, r, c);
        after = *comm;
        is_planned = c->bytes > 0;
        choose_group(s, c, capture, all_apart() && !any_in_place());
        fits = c->bytes > 0 && c->bytes < SIZE_MAX &&
               plan_all(comm, c, capture, capture != 0 ? captures_of(s) : 1, &differ);
        mismatch = 0;
        choose_apart(s, c, differ, registers,
                     fits && planned[0].status == SYMWIN_OK && group.refused == SYMWIN_OK &&
                         comm->members == model.nranks && comm->ended == SYMWIN_OK &&
                         (capture == 0 || (s->how == APART_IN_A_GROUP && !differ)));
    }
    c->ptr = planned[rank].in.ptr;
    c->out = planned[rank].out.ptr;
    set_parts(c, rank);
    c->grouped = s->collective == PAIRS || ((s->a & 128) != 0 && fits);
    wrong = s->how != WITH_ONE_APART && s->how != APART_IN_A_GROUP && is_wrong(s, c);
    if (wrong || c->comm == NULL) {
        c->want = INVALID_ONLY;
    } else if (comm->ended != SYMWIN_OK) {
        c->want = ONLY(comm->ended);
    } else if (s->how == WITH_ONE_APART || s->how == APART_IN_A_GROUP || differ) {
        if (odd_one.is_possible)
            plan_mismatch(s, rank, c, registers);
        else
            c->kind = CALL_NONE;
    } else if ((c->bytes == 0 || c->bytes == SIZE_MAX) && !meets_empty(c)) {
        c->want = c->bytes == 0 ? OK_ONLY : INVALID_ONLY;
        c->ptr = c->out = NULL;
    } else if (c->bytes == SIZE_MAX && !shape_of(c->collective)->no_data) {
        c->want = INVALID_ONLY;
        c->ptr = c->out = NULL;
    } else if (c->bytes == 0 || shape_of(c->collective)->no_data) {
        c->want = ONLY(shape_of(c->collective)->algos[c->how.algo].chosen == SW_ABSENT &&
                               c->how.algo != SYMWIN_ALGO_AUTO
                           ? SYMWIN_UNSUPPORTED
                           : SYMWIN_OK);
        c->ptr = c->out = NULL;
        if (comm->left > 0 && c->want == OK_ONLY)
            c->kind = CALL_NONE;
    } else if (fits &&
               (planned[0].status != SYMWIN_OK || group.refused != SYMWIN_OK || comm->left == 0)) {
        c->want = ONLY(group.refused != SYMWIN_OK ? group.refused : planned[rank].status);
        if (group.count > 0)
            join_group(rank, c);
        c->asks = ONLY(planned[rank].asked);
    } else {
        c->kind = CALL_NONE;
    }
    if (wrong || comm->ended != SYMWIN_OK || c->kind == CALL_NONE)
        is_planned = 0; /* the calls do not get that far */
    if (c->kind == CALL_NONE)
        return;
    if (c->asks == 0)
        c->asks = c->bytes == 0 && !meets_empty(c) ? INVALID_ONLY : c->want;
    make_stream(rank);
    c->stream = model.stream[rank];
}

static void step_collective(const struct step *s, int rank, struct call *c)
{
    plan_collective(s, rank, c, 0);
}

enum { GUARD = 64 };

/* Bytes behind a rank's output that nobody may write: 0, or GUARD. */
static size_t guarded(int rank)
{
    const struct planned *p = &planned[rank];
    struct buffer behind = p->out;
    int r;

    if (p->out_bytes == 0 ||
        p->out.ptr + p->out_bytes + GUARD > p->out.memory->ptr + p->out.memory->bytes - TABLES)
        return 0;
    behind.ptr += p->out_bytes;
    for (r = 0; r < model.nranks; r++)
        if (!apart(&behind, GUARD, &planned[r].in, planned[r].in_bytes) ||
            !apart(&behind, GUARD, &planned[r].out, planned[r].out_bytes))
            return 0;
    return GUARD;
}

static void fill_input(int rank, const struct call *c)
{
    const struct planned *p = &planned[rank];
    uint32_t data[MOST_PARTS + GUARD];

    memset(data, UNWRITTEN, sizeof data);
    fuzz_must(p->out_bytes == 0 ||
                  symwin_memcpy(model.device[rank], p->out.ptr, data, p->out_bytes + guarded(rank),
                                c->stream) == SYMWIN_OK,
              "%s", symwin_last_error());
    make_input(rank, data);
    fuzz_must(c->table == NULL || symwin_memcpy(model.device[rank], c->table, c->parts,
                                                sizeof c->parts, c->stream) == SYMWIN_OK,
              "%s", symwin_last_error());
    fill_members(rank, c);
    if (p->in_bytes == 0)
        return;
    fuzz_must(symwin_memcpy(model.device[rank], c->ptr, data, planned[rank].in_bytes, c->stream) ==
                  SYMWIN_OK,
              "%s", symwin_last_error());
}

/* Fills the inputs before the calls, and makes every byte of the outputs wrong. */
static void fill_inputs(void)
{
    int r;

    for (r = 0; r < model.nranks; r++)
        if (calls[r].kind == CALL_COLLECTIVE && (calls[r].want & OK_ONLY) != 0 &&
            calls[r].bytes > 0)
            fill_input(r, &calls[r]);
}

static void check_output(int rank, const struct call *c)
{
    static uint32_t inputs[RANKS][MOST_PARTS];
    uint32_t want[MOST_PARTS], got[MOST_PARTS];
    const struct planned *p = &planned[rank];
    size_t i;
    int r;

    if (p->out_bytes == 0)
        return;
    for (r = 0; r < model.nranks; r++)
        make_input(r, inputs[r]);
    make_output(p->is, p->count, p->bytes / p->count, rank, p->root, inputs, want);
    fuzz_must(symwin_memcpy(model.device[rank], got, c->out, p->out_bytes, c->stream) == SYMWIN_OK,
              "%s", symwin_last_error());
    for (i = 0; i < p->out_bytes; i++)
        fuzz_must(((char *)got)[i] == ((char *)want)[i],
                  "byte %zu of rank %d's output of %s is wrong", i, rank, p->is->call);
}

static void check_guard(int rank, const struct call *c)
{
    const struct planned *p = &planned[rank];
    const size_t bytes = guarded(rank);
    unsigned char got[GUARD];
    size_t i;

    fuzz_must(bytes == 0 || symwin_memcpy(model.device[rank], got, p->out.ptr + p->out_bytes, bytes,
                                          c->stream) == SYMWIN_OK,
              "%s", symwin_last_error());
    for (i = 0; i < bytes; i++)
        fuzz_must(got[i] == UNWRITTEN, "byte %zu behind rank %d's output of %s is written", i, rank,
                  p->is->call);
}

/* Waits for the calls, and checks outputs where no rank's writes conflict with another's reads. */
static void check_outputs(const struct call made[RANKS])
{
    int r;

    for (r = 0; r < model.nranks; r++)
        fuzz_must(symwin_stream_synchronize(model.device[r], model.stream[r]) == SYMWIN_OK &&
                      symwin_comm_check(made[r].comm) == SYMWIN_OK,
                  "%s", symwin_last_error());
    check_members(made);
    for (r = 0; r < model.nranks; r++)
        check_guard(r, &made[r]);
    for (r = 0; r < model.nranks && all_apart(); r++)
        if (made[r].type == SYMWIN_U32 || !planned[r].is->reduces)
            check_output(r, &made[r]);
}

static int by_copies(const struct call *c)
{
    int i, any = c->how.algo == SYMWIN_ALGO_COPIES;

    for (i = 0; i < c->member_count; i++)
        any |= c->members[i].algo == SYMWIN_ALGO_COPIES;
    return any;
}

/* Calls that differ. Copies are made as each rank wants them, also to its peers. */
static void check_apart(struct comm *comm, const struct call made[RANKS])
{
    int r;

    check_mismatch(comm);
    for (r = 0; r < model.nranks; r++) {
        check_behind(r, &made[r]);
        if (!by_copies(&made[0]) && !odd_one.by_offsets)
            check_guard(r, &made[r]);
    }
}

/* Checks where the library places a buffer; internal for connected buffers. */
static void check_place(const struct comm *comm, int rank, const struct call *c)
{
    const struct planned *p = &planned[rank];
    const int by_in = is_agreed_on(p, p->is->in);
    const size_t bytes = by_in ? p->in_bytes : p->out_bytes;
    const int used = bytes > 0 && p->is->registers != SW_CONNECTS_NEVER;
    char *const ptr = by_in ? c->ptr : c->out;
    const int place = used ? serves(comm, rank, ptr, bytes) : NOTHING;
    const struct connected *connected = NULL;
    struct sw_window_index_entry entry;
    enum sw_found found;

    if (!used)
        return;
    found = sw_registered_find(c->comm, (uintptr_t)ptr, bytes, &entry);
    fuzz_must((found == SW_FOUND_ALL) == (place != NOTHING), "a buffer is settled, or is not");
    if (place == NOTHING)
        return;
    connected = &comm->connected[rank][place];
    fuzz_must(entry.begin == (uintptr_t)connected->begin &&
                  entry.end == entry.begin + connected->bytes &&
                  entry.offset == connected->offset && entry.transports == connected->transports,
              "what was connected lies elsewhere");
}

/* Notes the effect of the calls on the communicator, launched or not. */
static void collective_note(const struct step *s, int rank, const struct call *c)
{
    if (!is_planned)
        return;
    if (rank == model.nranks - 1) {
        model.comm[s->a % COMMS] = after;
        check_connected(&after);
    }
    if (c->got == SYMWIN_OK)
        check_place(&after, rank, c);
}

static void done_collective(const struct step *s, int rank, const struct call *c)
{
    collective_note(s, rank, c);
    if (c->got == SYMWIN_OK)
        check_answers(rank, c);
    if (rank < model.nranks - 1)
        return;
    if (mismatch)
        check_apart(&model.comm[s->a % COMMS], calls);
    else if (c->got == SYMWIN_OK && (c->bytes > 0 || meets_empty(c)))
        check_outputs(calls);
}

#endif
