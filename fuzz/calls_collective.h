/* The collectives as steps of fuzz/calls.c: only calls that all ranks make alike, that fail on all,
 * or whose arguments differ so that all ranks learn of it. */
#ifndef SYMWIN_FUZZ_CALLS_COLLECTIVE_H
#define SYMWIN_FUZZ_CALLS_COLLECTIVE_H

#include "calls_groups.h"

static struct comm after; /* the communicator after the calls */
static int is_planned;    /* the calls may change it */

/* The graph of capture `number` holds the connection that serves a buffer. */
static void hold(struct comm *comm, int rank, const struct buffer *b, unsigned number)
{
    struct connected *c = b->place != NOTHING ? &comm->connected[rank][b->place] : NULL;

    if (c == NULL || c->refused || (c->graphs > 0 && c->capture == number))
        return;
    c->graphs++;
    c->capture = number;
}

static int is_settled(const struct buffer *b)
{
    return b->is_public || b->place != NOTHING;
}

/* Whether the ranks may agree on a buffer. */
static int is_agreed_on(const struct planned *r, enum sw_lies lies)
{
    return r->is->registers != SW_CONNECTS_NEVER && lies == SW_AT_ONE_OFFSET;
}

static struct part part_of(const struct planned *r, enum sw_lies lies, const struct buffer *b)
{
    const int registered = b->registered && !b->is_public;

    if (!is_agreed_on(r, lies))
        return (struct part){.none = 1};
    return (struct part){b->memory,
                         b->ptr,
                         0,
                         is_settled(b),
                         registered,
                         registered ? b->span : b->ptr,
                         registered ? b->before : 0,
                         registered ? b->after : 0};
}

static int is_lacking(const struct planned *r, enum sw_lies lies, const struct buffer *b)
{
    return is_agreed_on(r, lies) && !b->nowhere && !is_settled(b);
}

static int is_ready(const struct planned *r, enum sw_lies lies, const struct buffer *b)
{
    return !is_agreed_on(r, lies) || is_settled(b);
}

static int is_known(const struct planned *r, enum sw_lies lies, const struct buffer *b)
{
    return is_ready(r, lies, b) || b->registered;
}

/* Whether windows make a difference. These calls are too small for AUTO. */
static int is_worth_it(const struct planned *r, const struct call *c)
{
    return r->is->registers == SW_CONNECTS_ALWAYS ||
           (r->is->algos[c->how.algo].needs & SW_NEEDS_WINDOWS) != 0;
}

/* Whether a rank joins an agreement before its call, which may be captured, or may have failed
 * already. */
static int rank_meets(const struct comm *comm, const struct planned *r, const struct call *c,
                      unsigned capture)
{
    const int known = is_known(r, r->is->in, &r->in) && is_known(r, r->is->out, &r->out);

    return (is_lacking(r, r->is->in, &r->in) || is_lacking(r, r->is->out, &r->out)) &&
           is_worth_it(r, c) && (known || (capture != 0 && comm->graph_register));
}

/* Whether the ranks' calls fit together, or all fail, alone or in an agreement; otherwise ranks
 * would wait for others. If so, sets their results. */
static int plan_once(struct comm *comm, const struct call *c, unsigned capture, int first)
{
    static struct part parts[2][RANKS];
    int failed = 0, meets = 0, places[2] = {NOTHING, NOTHING}, r;

    for (r = 0; r < model.nranks; r++) {
        judge_buffers(&after, r, c);
        if (first && !planned[r].in.skip && !planned[r].out.skip)
            judge_query(r, c);
        failed += planned[r].status != SYMWIN_OK;
        if (planned[r].in.skip || planned[r].out.skip)
            return 0;
        planned[r].meets = rank_meets(&after, &planned[r], c, capture);
        meets += planned[r].meets;
        parts[0][r] = part_of(&planned[r], planned[r].is->in, &planned[r].in);
        parts[1][r] = part_of(&planned[r], planned[r].is->out, &planned[r].out);
    }
    if (failed > 0 && meets == 0)
        return failed == model.nranks;
    if (meets > 0) {
        if (meets < model.nranks || comm->left > 0 || comm->members < model.nranks)
            return 0;
        for (r = 0; r < model.nranks; r++)
            settle(&after, r);
        if (failed == 0 &&
            !meet(&after, parts, parts[0]->none ? planned[0].out_bytes : planned[0].in_bytes,
                  places))
            return 0;
    }
    if (failed > 0) {
        find_over(&after);
        for (r = 0; r < model.nranks; r++)
            planned[r].status = SYMWIN_INVALID;
        return 1;
    }
    for (r = 0; r < model.nranks; r++) {
        struct planned *one = &planned[r];

        if (places[0] != NOTHING)
            place_buffer(&after, r, &one->in, places[0]);
        if (places[1] != NOTHING)
            place_buffer(&after, r, &one->out, places[1]);
        judge_windows(one);
        if (capture != 0 && one->is->registers != SW_CONNECTS_NEVER &&
            (one->meets ||
             (is_ready(one, one->is->in, &one->in) && is_ready(one, one->is->out, &one->out)))) {
            if (one->is->in != SW_ANYWHERE)
                hold(&after, r, &one->in, capture);
            if (one->is->out != SW_ANYWHERE)
                hold(&after, r, &one->out, capture);
        }
        judge_call(r, c);
    }
    return 1;
}

/* Plans the calls that each rank makes one after the other. */
static int plan_all(struct comm *comm, const struct call *c, unsigned capture, int count)
{
    int i, fit = 1;

    if (comm->left == 0 && comm->members == model.nranks)
        look_at_devices(comm);
    for (i = 0; i < count && fit; i++) {
        fit = plan_once(comm, c, capture, i == 0);
        if (planned[0].status != SYMWIN_OK)
            break;
    }
    return fit;
}

/* Whether alignments differ that must be equal. */
static int alignments_differ(const char *a, const char *b)
{
    return ((uintptr_t)a ^ (uintptr_t)b) % 16 != 0;
}

/* Whether the offset of a buffer must be equal on all ranks, and is not. */
static int offsets_differ(const struct sw_algorithm *algorithm, enum sw_lies lies,
                          const struct buffer *a, const struct buffer *b)
{
    return (lies == SW_AT_ONE_OFFSET || (lies == SW_AT_ANY_OFFSET && algorithm->one_offset)) &&
           a->offset != b->offset;
}

/* For all collectives but the all-reduce: whether the ranks launch one call. *differ is set if they
 * name an algorithm over windows, and their offsets differ. */
static int agree_on_moves(const struct call *c, int *differ)
{
    const struct planned *first = &planned[0];
    const struct sw_algorithm *algorithm = &first->is->algos[c->how.algo];
    const int by_windows = (algorithm->needs & SW_NEEDS_WINDOWS) != 0;
    int r;

    for (r = 1; r < model.nranks; r++) {
        const struct planned *other = &planned[r];
        const int apart = offsets_differ(algorithm, first->is->in, &other->in, &first->in) ||
                          offsets_differ(algorithm, first->is->out, &other->out, &first->out);

        if (by_windows)
            *differ |= apart;
        else if (c->how.algo == SYMWIN_ALGO_AUTO &&
                 (other->windows != first->windows || (first->windows && apart) ||
                  (first->windows && is_one_buffer(other, r) != is_one_buffer(first, 0))))
            return 0;
    }
    return 1;
}

/* Whether all ranks launch the same call, or none launches any; or calls that *differ. */
static int agree_on_launch(const struct call *c, int *differ)
{
    const struct planned *first = &planned[0];
    int failed = 0, r;

    for (r = 0; r < model.nranks; r++)
        failed += planned[r].status != SYMWIN_OK;
    if (failed > 0)
        return failed == model.nranks;
    if (!both_decide(first))
        return agree_on_moves(c, differ);
    for (r = 1; r < model.nranks; r++) {
        const struct planned *other = &planned[r];

        if (other->windows != first->windows || other->transports != first->transports ||
            (first->windows &&
             (other->in.offset != first->in.offset || other->out.offset != first->out.offset)) ||
            alignments_differ(other->in.ptr, first->in.ptr) ||
            alignments_differ(other->out.ptr, first->out.ptr) ||
            (other->in.ptr == other->out.ptr) != (first->in.ptr == first->out.ptr))
            return 0;
    }
    return 1;
}

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
        if (is_in_place(&planned[r], r))
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

    if (s->how == BY_COPIES)
        return SYMWIN_ALGO_COPIES;
    if (s->collective == PAIRS) /* others are refused before wrong arguments are */
        return (symwin_algo)(s->a / COMMS % 2);
    return s->collective == SYMWIN_ALLREDUCE ? (symwin_algo)(s->a / COMMS % 5)
                                             : moves[s->a / COMMS % 5];
}

/* Another argument on one rank. Returns whether it differs for the ranks. */
static int set_apart(const struct step *s, struct call *c)
{
    const struct sw_collective *is = shape_of(c->collective);
    const int in_place = is_in_place(&planned[c->rank], c->rank); /* another call would not be */

    if (is->by_parts)
        return set_parts_apart(c) && !in_place;
    switch (s->twist / 4 % 8) {
    case 0:
        c->bytes--;
        return c->bytes > 0 && !in_place;
    case 1:
        c->type = c->type == SYMWIN_I8 ? SYMWIN_U8 : SYMWIN_I32;
        return 1;
    case 2:
        c->op = SYMWIN_MAX;
        return is->reduces;
    default:
        return 0;
    case 3:
        if (has_root(is) && !is_pairs(is) && sends(is, c->rank, c->root) &&
            receives(is, c->rank, c->root)) {
            c->root = (c->root + 1) % model.nranks;
            return 1;
        }
        return 0;
    case 4: /* with the buffers of the planned call, which has both, and no larger ones */
        if (c->collective != SYMWIN_ALLTOALL)
            return 0;
        c->collective = SYMWIN_ALLGATHER;
        return !in_place;
    }
}

static int mismatch; /* the calls of this step must end the communicator so */

/* Calls that are right on each rank, and differ. `fits`: they would succeed otherwise. */
static void plan_mismatch(const struct step *s, int rank, struct call *c, int fits, int differ)
{
    struct call probe = *c;

    probe.rank = (int)(s->twist % (unsigned)model.nranks);
    set_parts(&probe, probe.rank);
    if (!fits || planned[0].status != SYMWIN_OK || model.nranks == 1 || probe.bytes == 0 ||
        shape_of(s->collective)->no_data || (!differ && !set_apart(s, &probe)) ||
        (s->collective == PAIRS && c->root == 0)) {
        c->kind = CALL_NONE;
        return;
    }
    mismatch = 1;
    c->want = OK_ONLY;
    c->asks = ONLY(planned[rank].asked);
    if (!differ && rank == probe.rank)
        (void)set_apart(s, c);
}

/* The call of each rank, alone or in capture number `capture`. */
static void plan_collective(const struct step *s, int rank, struct call *c, unsigned capture)
{
    static const size_t counts[] = {1, 3, 16, MOST_ELEMENTS, 0, 5, 64, SIZE_MAX};
    struct comm *comm = &model.comm[s->a % COMMS];
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
    if (s->how == WITH_ONE_APART)
        c->how.algo = SYMWIN_ALGO_ONESHOT;
    if (rank == 0) {
        differ = 0;
        for (r = 0; r < model.nranks; r++)
            choose_buffers(s, r, c);
        after = *comm;
        is_planned = c->bytes > 0;
        fits = c->bytes > 0 && c->bytes < SIZE_MAX &&
               plan_all(comm, c, capture, capture != 0 ? captures_of(s) : 1) &&
               agree_on_launch(c, &differ);
        mismatch = 0;
    }
    c->ptr = planned[rank].in.ptr;
    c->out = planned[rank].out.ptr;
    set_parts(c, rank);
    c->grouped = s->collective == PAIRS ||
                 ((s->a & 128) != 0 && fits && planned[rank].status == SYMWIN_OK);
    wrong = s->how != WITH_ONE_APART && is_wrong(s, c);
    if (wrong || c->comm == NULL) {
        c->want = INVALID_ONLY;
    } else if (comm->ended != SYMWIN_OK) {
        c->want = ONLY(comm->ended);
    } else if (s->how == WITH_ONE_APART || differ) {
        plan_mismatch(s, rank, c, fits && comm->left == 0 && capture == 0, differ);
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
    } else if (fits && (planned[0].status != SYMWIN_OK || comm->left == 0)) {
        c->want = ONLY(planned[rank].status);
        c->asks = ONLY(planned[rank].asked);
    } else {
        c->kind = CALL_NONE;
    }
    if (wrong || comm->ended != SYMWIN_OK || c->kind == CALL_NONE)
        is_planned = 0; /* the calls do not get that far */
    if (c->kind == CALL_NONE)
        return;
    if (s->how == IN_A_GROUP && c->want == OK_ONLY && fits && !planned[rank].meets &&
        c->bytes > 0 && c->bytes < SIZE_MAX)
        choose_members(s, rank, c);
    if (c->asks == 0)
        c->asks = c->bytes == 0 && !meets_empty(c) ? INVALID_ONLY : c->want;
    if (model.stream[rank] == NULL)
        fuzz_must(symwin_stream_create(model.device[rank], &model.stream[rank]) == SYMWIN_OK, "%s",
                  symwin_last_error());
    c->stream = model.stream[rank];
}

static void step_collective(const struct step *s, int rank, struct call *c)
{
    plan_collective(s, rank, c, 0);
}

/* Whether no rank's input or output is written by another. */
static int all_apart(void)
{
    int r, q;

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

static void fill_input(int rank, const struct call *c)
{
    const struct planned *p = &planned[rank];
    uint32_t data[MOST_PARTS];

    memset(data, 0x5a, sizeof data);
    fuzz_must(p->out_bytes == 0 || symwin_memcpy(model.device[rank], c->out, data, p->out_bytes,
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
        if (calls[r].kind == CALL_COLLECTIVE && calls[r].want == OK_ONLY && calls[r].bytes > 0)
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

/* Waits for the calls, and checks outputs where no rank's writes conflict with another's reads. */
static void check_outputs(const struct call made[RANKS])
{
    int r;

    for (r = 0; r < model.nranks; r++)
        fuzz_must(symwin_stream_synchronize(model.device[r], model.stream[r]) == SYMWIN_OK &&
                      symwin_comm_check(made[r].comm) == SYMWIN_OK,
                  "%s", symwin_last_error());
    check_members(made);
    for (r = 0; r < model.nranks && all_apart(); r++)
        if (made[r].type == SYMWIN_U32 || !planned[r].is->reduces)
            check_output(r, &made[r]);
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

/* All ranks learn that the calls differ; of a send and a receive, when a rank has asked. */
static void check_mismatch(struct comm *comm)
{
    int r;

    for (r = 0; r < model.nranks; r++)
        fuzz_must(symwin_stream_synchronize(model.device[r], model.stream[r]) == SYMWIN_OK, "%s",
                  symwin_last_error());
    for (r = 0; r < model.nranks; r++)
        (void)symwin_comm_check(comm->ptr[r]);
    for (r = 0; r < model.nranks; r++) {
        const symwin_status status = symwin_comm_check(comm->ptr[r]);

        fuzz_must(status == SYMWIN_MISMATCH, "%s: calls that differ end in %s on rank %d: %s",
                  planned[0].is->call, symwin_status_name(status), r, symwin_last_error());
    }
    comm->ended = SYMWIN_MISMATCH;
}

static void done_collective(const struct step *s, int rank, const struct call *c)
{
    collective_note(s, rank, c);
    if (c->got == SYMWIN_OK)
        check_answers(rank, c);
    if (rank < model.nranks - 1 || c->got != SYMWIN_OK)
        return;
    if (mismatch)
        check_mismatch(&model.comm[s->a % COMMS]);
    else if (c->bytes > 0 || meets_empty(c))
        check_outputs(calls);
}

#endif
