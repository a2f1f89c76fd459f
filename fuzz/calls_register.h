/* Steps of fuzz/calls.c on registered buffers: each rank registers locally, and calls connect
 * (calls_collective.h). */
#ifndef SYMWIN_FUZZ_CALLS_REGISTER_H
#define SYMWIN_FUZZ_CALLS_REGISTER_H

#include "calls_windows.h"

/* ---- registering ---- */

/* The second half of a range that one rank registers in two parts, others in one. */
static struct rest {
    unsigned comm_serial; /* 0: none */
    struct registration r;
} rests[RANKS];

/* What a rank registers now: a place and a shape, as for a window. 0: nothing. */
static int plan_cut(const struct step *s, int rank)
{
    struct comm *comm = &model.comm[s->a % COMMS];
    struct registration *r = &registrations[rank];
    struct rest *rest = &rests[rank];

    if (rest->comm_serial != 0 && rest->comm_serial == comm->serial &&
        on_memory(rest->r.memory, rest->r.ptr)) {
        *r = rest->r;
        rest->comm_serial = 0;
        return 1;
    }
    rest->comm_serial = 0;
    plan_registration(s, rank);
    if (rank != s->odd || s->twist % 8 < 6)
        return 1;
    if (s->twist % 8 == 6 || r->memory == NULL || r->bytes < 2 ||
        r->bytes > r->memory->bytes - r->offset)
        return s->twist % 8 != 6;
    *rest = (struct rest){comm->serial, *r};
    r->bytes /= 2;
    rest->r.ptr += r->bytes;
    rest->r.offset += r->bytes;
    rest->r.bytes -= r->bytes;
    return 1;
}

static void step_enter(const struct step *s, int rank, struct call *c)
{
    struct comm *comm = &model.comm[s->a % COMMS];
    struct registration *r = &registrations[rank];
    static int only_rests; /* only second halves are registered in this step */
    const int rest = rests[rank].comm_serial != 0;
    int i;

    for (i = 0; i < model.nranks && rank == 0; i++)
        only_rests = i == 0 ? rests[i].comm_serial != 0 : only_rests || rests[i].comm_serial != 0;
    if (only_rests && !rest)
        return;
    if (!plan_cut(s, rank))
        return;
    c->kind = CALL_ENTER;
    c->comm = comm->ptr[rank];
    c->ptr = r->ptr;
    c->bytes = r->bytes;
    c->no_result = s->a / COMMS == 1;
    if (c->comm == NULL || c->ptr == NULL || c->no_result || c->bytes == 0 ||
        c->bytes > UINTPTR_MAX - (uintptr_t)c->ptr)
        c->want = INVALID_ONLY;
    else if (comm->ended != SYMWIN_OK)
        c->want = ONLY(comm->ended);
    else if (r->memory == NULL || r->memory->device != model.device[rank] ||
             r->bytes > r->memory->bytes - r->offset)
        c->want = INVALID_ONLY;
    else if (!has_room_for_ranges(comm, rank, 1))
        c->kind = CALL_NONE;
    else
        c->want = OK_ONLY;
    /* A call with invalid arguments checks nothing else. */
    c->settles = c->comm != NULL && c->ptr != NULL && !c->no_result && c->bytes > 0 &&
                 c->bytes <= UINTPTR_MAX - (uintptr_t)c->ptr && comm->ended == SYMWIN_OK;
}

/* Checks the library's report of a range. */
static void check_range(const struct comm *comm, int rank, const struct range *r,
                        const symwin_registration_info *info)
{
    const char *end = r->begin + 1;
    const int place = served_at(comm, rank, r->begin, &end);
    const struct connected *c = place != NOTHING ? &comm->connected[rank][place] : NULL;
    unsigned graphs = 0;
    int i;

    for (i = 0; i < CONNECTED; i++) {
        const struct connected *one = &comm->connected[rank][i];

        if (one->number != 0 && one->id == r->id && one->begin < r->end &&
            r->begin < one->begin + one->bytes)
            graphs += one->graphs;
    }
    fuzz_must(info->ptr == r->begin && info->bytes == (size_t)(r->end - r->begin) &&
                  info->buffer_id == r->id,
              "a range of %zu bytes at %p is %zu at %p", (size_t)(r->end - r->begin),
              (void *)r->begin, info->bytes, info->ptr);
    fuzz_must(info->local_references == r->refs && info->graph_references == graphs,
              "%u and %u references, not %u and %u", info->local_references, info->graph_references,
              r->refs, graphs);
    fuzz_must((info->refused[0] != '\0') == (c != NULL && c->refused), "refused: \"%s\"",
              info->refused);
    fuzz_must(info->transports == (c != NULL ? c->transports : 0),
              "a range has transports %u, not %u", info->transports, c != NULL ? c->transports : 0);
}

static void done_enter(const struct step *s, int rank, const struct call *c)
{
    struct comm *comm = &model.comm[s->a % COMMS];
    symwin_registration_info info;
    struct range *r;

    if (c->got != SYMWIN_OK) {
        if (c->settles)
            settle(comm, rank);
        return;
    }
    r = find_or_make(comm, rank, registrations[rank].memory, c->ptr, c->bytes);
    r->refs++;
    fuzz_must(r->handle == NULL || r->handle == c->result.registration,
              "a range that is known has another handle");
    if (r->handle == NULL)
        handle_note(c->result.registration);
    r->handle = c->result.registration;
    settle(comm, rank);
    fuzz_must(symwin_registration_query(c->comm, r->handle, &info) == SYMWIN_OK, "%s",
              symwin_last_error());
    check_range(comm, rank, r, &info);
}

/* ---- one range ---- */

/* A handle, valid or not; *live is its range. NULL: the communicator must reject the handle. */
static symwin_registration *choose_range(const struct step *s, int rank, struct range **live)
{
    struct comm *comm = &model.comm[s->a % COMMS];
    struct range *r = &comm->ranges[rank][s->b % RANGES];
    const struct range *other = r;

    *live = NULL;
    switch (s->c % 16) {
    case 1: /* another rank's */
        other = &comm->ranges[(rank + 1) % model.nranks][s->b % RANGES];
        break;
    case 2: /* another communicator's */
        other = &model.comm[(s->a + 1) % COMMS].ranges[rank][s->b % RANGES];
        break;
    case 3:
        return NULL;
    case 4:
        return (symwin_registration *)(void *)host_memory;
    case 5: /* the right slot, a wrong number */
        return (symwin_registration *)((uintptr_t)r->handle ^ (uintptr_t)1 << (20 + s->twist % 40));
    case 6:
        return (symwin_registration *)((uintptr_t)r->handle ^ (uintptr_t)1 << s->twist % 20);
    case 7: /* a window's */
        return (symwin_registration *)(void *)comm->windows[rank][s->b % WINDOWS].handle;
    }
    if (other == r && is_live(r) && r->handle != NULL)
        *live = r;
    if (other != r && other->handle == r->handle)
        return NULL; /* only one rank, or both never existed */
    return other->handle;
}

static void step_leave(const struct step *s, int rank, struct call *c)
{
    struct range *live;

    if (rank == s->odd && s->twist % 8 == 1)
        return;
    c->kind = CALL_LEAVE;
    c->comm = model.comm[s->a % COMMS].ptr[rank];
    c->registration = choose_range(s, rank, &live);
    c->want = c->comm != NULL && live != NULL ? OK_ONLY : INVALID_ONLY;
}

static void done_leave(const struct step *s, int rank, const struct call *c)
{
    struct comm *comm = &model.comm[s->a % COMMS];
    struct range *live;

    choose_range(s, rank, &live);
    if (c->got == SYMWIN_OK)
        live->refs--;
    if (c->comm == NULL)
        return;
    trim(comm, rank);
    settle(comm, rank);
}

static void step_range_query(const struct step *s, int rank, struct call *c)
{
    struct comm *comm = &model.comm[s->a % COMMS];
    struct range *live;

    c->kind = CALL_RANGE_QUERY;
    c->comm = comm->ptr[rank];
    c->no_result = s->a / COMMS == 1;
    if (c->comm != NULL && !c->no_result)
        settle(comm, rank); /* before it looks for the range */
    c->registration = choose_range(s, rank, &live);
    c->want = c->comm != NULL && live != NULL && !c->no_result ? OK_ONLY : INVALID_ONLY;
}

static void done_range_query(const struct step *s, int rank, const struct call *c)
{
    struct range *live;

    choose_range(s, rank, &live);
    if (c->got == SYMWIN_OK)
        check_range(&model.comm[s->a % COMMS], rank, live, &c->result.range);
}

#endif
