/* Steps of fuzz/calls.c on communicators. */
#ifndef SYMWIN_FUZZ_CALLS_COMMS_H
#define SYMWIN_FUZZ_CALLS_COMMS_H

#include "calls_model.h"

/* ---- steps: communicators ---- */

enum create_shape {
    FULL,
    WITHOUT_MULTICAST,
    ODD_SIZE,
    ODD_DEVICE,
    ODD_SLOTS,
    ODD_FLAGS,
    ODD_TIMEOUT,
    ODD_NRANKS,
    TWICE,
    NO_RANKS,
    NO_RANK,
    NO_ID,
    NO_COMM,
    RELEASED_ID,
    SERVED_ID,
    SPOILT_ID,
    CREATE_SHAPES
};

static symwin_unique_id shared_id, served_id;
static unsigned served_want; /* for ranks that come with served_id; 0: none */

static const symwin_comm_options plain_options = {.size = sizeof plain_options, .slot_bytes = 8192};

/* An argument that differs on one rank: all ranks get the same status. */
static void create_oddly(enum create_shape shape, struct call *c, unsigned *want)
{
    switch (shape) {
    case ODD_SIZE:
        c->options.size--;
        *want = INVALID_ONLY;
        break;
    case ODD_DEVICE:
        c->device = NO_DEVICE;
        *want = INVALID_ONLY;
        break;
    case ODD_TIMEOUT:
        c->options.timeout_ms = -1;
        *want = INVALID_ONLY;
        break;
    case ODD_SLOTS:
        c->options.slot_bytes = 16384;
        *want = model.nranks > 1 ? ONLY(SYMWIN_MISMATCH) : OK_ONLY;
        break;
    case ODD_FLAGS:
        c->options.flags = SYMWIN_COMM_MULTICAST;
        *want = model.nranks > 1 ? ONLY(SYMWIN_MISMATCH) : OK_ONLY;
        break;
    case ODD_NRANKS:
        c->nranks++;
        *want = ONLY(SYMWIN_MISMATCH);
        break;
    case TWICE:
        c->rank = c->rank == 0 ? 1 : 0;
        *want = INVALID_ONLY;
        break;
    default:
        break;
    }
}

/* An argument that is wrong on all ranks alike. */
static unsigned create_wrongly(enum create_shape shape, struct call *c)
{
    switch (shape) {
    case NO_RANKS:
        c->nranks = 0;
        return INVALID_ONLY;
    case NO_RANK:
        c->rank += c->nranks;
        return INVALID_ONLY;
    case NO_ID:
        c->no_id = 1;
        return INVALID_ONLY;
    case NO_COMM:
        c->no_result = 1;
        return INVALID_ONLY;
    case RELEASED_ID:
        return ONLY(SYMWIN_ABORTED);
    case SERVED_ID:
        c->id = served_id;
        return served_want;
    case SPOILT_ID:
        c->id.bytes[c->bytes % 40] ^= 1; /* its magic or its secret */
        return INVALID_ONLY;
    case WITHOUT_MULTICAST:
        c->options.flags = SYMWIN_COMM_NO_MULTICAST;
        return OK_ONLY;
    default:
        return OK_ONLY;
    }
}

/* Whether every device has room for its ranks' own memory. */
static int comm_fits(void)
{
    int r;

    for (r = 0; r < model.nranks; r++) {
        const int device = model.device[r];

        if (memory_left(device) < (size_t)(ranks_on(device) + !has_counts(device)) * GRANULE)
            return 0;
    }
    return 1;
}

static enum create_shape create_shape(const struct step *s)
{
    enum create_shape shape = s->b < 128 ? FULL : (enum create_shape)(s->b % CREATE_SHAPES);

    if ((model.nranks == 1 && (shape == ODD_NRANKS || shape == TWICE)) ||
        (shape == SERVED_ID && served_want == 0))
        shape = FULL;
    return shape;
}

static void step_create(const struct step *s, int rank, struct call *c)
{
    const enum create_shape shape = create_shape(s);
    const int odd = (int)(s->twist % (unsigned)model.nranks);
    unsigned want;
    struct call other = {.rank = 0};

    if (model.comm[s->a % COMMS].members > 0 || model.comms_made >= MOST_COMMS)
        return;
    if (rank == 0) {
        fuzz_must(symwin_unique_id_create(&shared_id) == SYMWIN_OK, "%s", symwin_last_error());
        if (shape == RELEASED_ID)
            fuzz_must(symwin_unique_id_release(&shared_id) == SYMWIN_OK, "%s", symwin_last_error());
    }
    c->kind = CALL_COMM_CREATE;
    c->id = shared_id;
    c->nranks = model.nranks;
    c->rank = rank;
    c->device = model.device[rank];
    c->options = plain_options;
    c->bytes = s->c;
    want = create_wrongly(shape, c);
    create_oddly(shape, rank == odd ? c : &other, &want);
    if (shape <= WITHOUT_MULTICAST && (s->twist & 32) != 0)
        c->options.flags |= SYMWIN_COMM_NO_GRAPH_REGISTER;
    if (shape <= WITHOUT_MULTICAST && (s->twist & 16) != 0)
        c->options.flags |= SYMWIN_COMM_GRAPH_LAUNCH;
    c->want = want == OK_ONLY && !comm_fits() ? ONLY(SYMWIN_NO_MEMORY) : want;
}

static int has_multicast(const struct call *c)
{
    int r, q;

    for (r = 0; r < model.nranks; r++)
        for (q = 0; q < r; q++)
            if (model.device[r] == model.device[q])
                return 0;
    return model.multicast && model.nranks > 1 &&
           (c->options.flags & SYMWIN_COMM_NO_MULTICAST) == 0;
}

static void check_about(const struct comm *comm, int rank, const symwin_comm_info *about)
{
    fuzz_must(about->nranks == model.nranks && about->rank == rank &&
                  about->device == model.device[rank] && about->multicast == comm->info.multicast &&
                  about->stride == comm->info.stride && about->base == comm->info.base,
              "rank %d's communicator is not the one that was made", rank);
    fuzz_must(about->windows == window_count(comm, rank) &&
                  about->allocations == segment_count(comm),
              "%d windows of %d allocations, not %d of %d", about->windows, about->allocations,
              window_count(comm, rank), segment_count(comm));
}

static void comm_note(struct comm *comm, int rank, const struct call *c)
{
    symwin_comm_info about;

    comm->ptr[rank] = c->result.comm;
    comm->members++;
    fuzz_must(symwin_comm_query(comm->ptr[rank], &about) == SYMWIN_OK, "%s", symwin_last_error());
    if (rank == 0) {
        comm->info = about;
        comm->info.multicast = has_multicast(c);
        comm->graph_register = (c->options.flags & SYMWIN_COMM_NO_GRAPH_REGISTER) == 0;
        comm->serial = (unsigned)model.comms_made + 1;
        model.comms_made++;
    }
    check_about(comm, rank, &about);
}

/* The id is used up if ranks have met under it, whatever the result. */
static void done_create(const struct step *s, int rank, const struct call *c)
{
    const enum create_shape shape = create_shape(s);
    const int met = shape < NO_RANKS;

    if (c->got == SYMWIN_OK)
        comm_note(&model.comm[s->a % COMMS], rank, c);
    if (rank < model.nranks - 1)
        return;
    fuzz_must(symwin_unique_id_release(&shared_id) ==
                  (met || shape == RELEASED_ID ? SYMWIN_INVALID : SYMWIN_OK),
              "an id %s", met ? "has served and can be released" : "cannot be released");
    if (met) {
        served_id = shared_id; /* late ranks are told how the rendezvous ended */
        served_want = shape == ODD_NRANKS ? ONLY(SYMWIN_MISMATCH) : INVALID_ONLY;
    }
}

static void step_split(const struct step *s, int rank, struct call *c)
{
    struct comm *parent = &model.comm[s->a % COMMS];

    if (parent->members == 0 || model.comm[(s->a + 1) % COMMS].members > 0 ||
        model.comms_made >= MOST_COMMS || parent->ptr[rank] == NULL)
        return;
    c->kind = CALL_COMM_SPLIT;
    c->comm = parent->ptr[rank];
    c->options = plain_options;
    c->nranks = s->b % 4 == 0 ? SYMWIN_SPLIT_NONE : (int)s->c;
    c->rank = 0; /* the key */
    c->no_result = s->b % 16 == 1 && (s->twist % 2 == 0 || s->odd < 0 || rank == s->odd);
    if (s->b % 8 == 2 && rank == (int)(s->twist % (unsigned)model.nranks))
        c->nranks = -2;
    c->want = ONLY(
        collective(parent, s->b % 8 == 2 || s->b % 16 == 1 ? SYMWIN_INVALID : SYMWIN_OK));
    if (c->want == OK_ONLY && c->nranks != SYMWIN_SPLIT_NONE && !comm_fits())
        c->want = ONLY(SYMWIN_NO_MEMORY);
}

static void done_split(const struct step *s, int rank, const struct call *c)
{
    if (c->got != SYMWIN_OK)
        return;
    if (c->nranks == SYMWIN_SPLIT_NONE)
        fuzz_must(c->result.comm == NULL, "a rank in no part has a communicator");
    else
        comm_note(&model.comm[(s->a + 1) % COMMS], rank, c);
}

static void step_destroy(const struct step *s, int rank, struct call *c)
{
    const struct comm *comm = &model.comm[s->a % COMMS];

    if (rank == s->odd && s->b % 2 == 1) /* all but one leave */
        return;
    if (s->b % 4 == 2 && rank != s->odd) /* one leaves */
        return;
    c->kind = CALL_COMM_DESTROY;
    c->comm = comm->ptr[rank];
    c->want = OK_ONLY;
}

static void done_destroy(const struct step *s, int rank, const struct call *c)
{
    if (c->comm != NULL)
        comm_leave(&model.comm[s->a % COMMS], rank);
}

static void step_comm_query(const struct step *s, int rank, struct call *c)
{
    c->kind = CALL_COMM_QUERY;
    c->comm = model.comm[s->a % COMMS].ptr[rank];
    c->no_result = s->b == 1;
    c->want = c->comm == NULL || c->no_result ? INVALID_ONLY : OK_ONLY;
}

static void done_comm_query(const struct step *s, int rank, const struct call *c)
{
    if (c->got == SYMWIN_OK)
        check_about(&model.comm[s->a % COMMS], rank, &c->result.about);
}

static void step_check(const struct step *s, int rank, struct call *c)
{
    const struct comm *comm = &model.comm[s->a % COMMS];

    c->kind = CALL_COMM_CHECK;
    c->comm = comm->ptr[rank];
    c->want = c->comm == NULL ? INVALID_ONLY : ONLY(comm->ended);
}

static void step_abort(const struct step *s, int rank, struct call *c)
{
    const struct comm *comm = &model.comm[s->a % COMMS];

    if (s->b < 200 || (s->odd >= 0 && rank != s->odd)) /* rarely, else few would live long */
        return;
    c->kind = CALL_COMM_ABORT;
    c->comm = comm->ptr[rank];
    c->want = c->comm == NULL ? INVALID_ONLY : OK_ONLY;
}

static void done_abort(const struct step *s, int rank, const struct call *c)
{
    struct comm *comm = &model.comm[s->a % COMMS];

    (void)rank;
    if (c->got == SYMWIN_OK && comm->ended == SYMWIN_OK)
        comm->ended = SYMWIN_ABORTED;
}

#endif
