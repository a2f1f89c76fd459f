/* Steps of fuzz/calls.c on windows. */
#ifndef SYMWIN_FUZZ_CALLS_WINDOWS_H
#define SYMWIN_FUZZ_CALLS_WINDOWS_H

#include "calls_agreements.h"

/* ---- registering ---- */

/* What one rank registers. */
struct registration {
    struct memory *memory; /* NULL: not an address of memory */
    char *ptr;
    size_t bytes, offset;
    unsigned flags;
    symwin_status status; /* for this rank alone */
};

static struct registration registrations[RANKS];

static void shape_window(struct registration *r, unsigned shape)
{
    const size_t all = r->memory->bytes;
    const struct {
        size_t offset, bytes;
    } shapes[] = {
        {0, all},
        {0, 64},
        {4096, 4096},
        {GRANULE / 2, GRANULE / 4},
        {1, 7},
        {all - 1, 1},
        {all / 2, all / 2},
        {0, 4096},
        {4, 128},
        {all / 2, 1},
        {64, 8192},
        {0, all - 1},
        {all - 1, 2},
        {0, all + 1},
        {0, 0},
        {16, SIZE_MAX},
        {all / 2, SIZE_MAX - all / 2 + 1},
    };
    const size_t i = shape % (sizeof shapes / sizeof shapes[0]);

    r->offset = shapes[i].offset;
    r->bytes = shapes[i].bytes;
    r->ptr = (char *)((uintptr_t)r->memory->ptr + r->offset);
}

static unsigned window_flags(unsigned selector)
{
    static const unsigned flags[] = {0, 0, 0, 0, 2, 1, 2, 1, 0, 3, 4, 0x80000000u};

    return flags[selector % (sizeof flags / sizeof flags[0])];
}

/* As symwin.h defines it, for this rank alone. */
static symwin_status judge_registration(const struct comm *comm, int rank,
                                        const struct registration *r)
{
    if (r->bytes == 0 || r->flags > 2 || r->memory == NULL ||
        r->memory->device != model.device[rank] || r->bytes > r->memory->bytes - r->offset)
        return SYMWIN_INVALID;
    return (r->flags & SYMWIN_WINDOW_MULTICAST) != 0 && !comm->info.multicast ? SYMWIN_UNSUPPORTED
                                                                              : SYMWIN_OK;
}

static void plan_registration(const struct step *s, int rank)
{
    struct registration *r = &registrations[rank];
    unsigned slot = s->b, shape = s->c, flags = s->b / MEMORIES;
    int owner = rank;

    if (rank == s->odd && s->twist % 8 == 1)
        shape++;
    if (rank == s->odd && s->twist % 8 == 2)
        flags = flags < 4 ? 4 : 0;
    if (rank == s->odd && s->twist % 8 == 3)
        slot++;
    if (rank == s->odd && s->twist % 8 == 4) /* another rank's, maybe on another device */
        owner = (rank + 1) % model.nranks;
    *r = (struct registration){.memory = &model.memory[owner][slot % MEMORIES],
                               .flags = window_flags(flags)};
    shape_window(r, shape);
    if (r->memory->owner == NOBODY || (rank == s->odd && s->twist % 8 == 5)) {
        r->memory = NULL;
        r->ptr = (s->twist & 8) != 0 ? host_memory : NULL;
        r->offset = 0;
    }
}

/* The result for all ranks' arguments. */
static symwin_status judge_all(const struct comm *comm)
{
    const struct registration *first = &registrations[0];
    struct shown on[RANKS];
    struct segment segment;
    int known, r;

    for (r = 0; r < model.nranks; r++)
        if (registrations[r].status != SYMWIN_OK)
            return registrations[r].status;
    for (r = 1; r < model.nranks; r++)
        if (registrations[r].bytes != first->bytes || registrations[r].flags != first->flags ||
            registrations[r].offset % GRANULE != first->offset % GRANULE)
            return SYMWIN_MISMATCH;
    for (r = 0; r < model.nranks; r++)
        on[r] = (struct shown){registrations[r].memory, registrations[r].offset};
    known = common_segment(comm, on);
    segment = known >= 0 ? comm->segments[known] : segment_of_all(on);
    if (known < 0 && segment_room(comm, segment.bytes) == 0)
        return SYMWIN_NO_MEMORY;
    return (first->flags & SYMWIN_WINDOW_MULTICAST) != 0 && segment.uneven ? SYMWIN_UNSUPPORTED
                                                                           : SYMWIN_OK;
}

/* Whether the rank passes no place for the window: one rank does, or all. */
static int lacks_result(const struct step *s, int rank)
{
    return s->a / COMMS == 1 && (s->twist % 2 == 0 || rank == s->odd);
}

static void step_register(const struct step *s, int rank, struct call *c)
{
    struct comm *comm = &model.comm[s->a % COMMS];
    int r;

    if (window_place(comm) == WINDOWS)
        return;
    for (r = 0; r < model.nranks && rank == 0; r++) {
        plan_registration(s, r);
        registrations[r].status = lacks_result(s, r)
                                      ? SYMWIN_INVALID
                                      : judge_registration(comm, r, &registrations[r]);
    }
    c->kind = CALL_REGISTER;
    c->comm = comm->ptr[rank];
    c->ptr = registrations[rank].ptr;
    c->bytes = registrations[rank].bytes;
    c->flags = registrations[rank].flags;
    c->no_result = lacks_result(s, rank);
    if (c->comm == NULL)
        c->want = INVALID_ONLY;
    else
        c->want = ONLY(collective(comm, judge_all(comm)));
}

/* Two threads make one rank's registration while the others wait. */
static void step_register_twice(const struct step *s, int rank, struct call *c)
{
    struct comm *comm = &model.comm[s->a % COMMS];

    if (model.nranks == 1 || comm->members < model.nranks || comm->ended != SYMWIN_OK)
        return;
    step_register(s, rank, c);
    if (c->kind == CALL_NONE || s->a / COMMS == 1)
        return;
    twice = (int)(s->twist >> 3) % model.nranks;
    tried = (struct call){.kind = CALL_COLLECTIVE,
                          .want = ONLY(SYMWIN_BUSY),
                          .asks = ONLY(SYMWIN_BUSY),
                          .comm = comm->ptr[twice],
                          .bytes = 1};
    tried.how.size = sizeof tried.how;
    if (s->a / COMMS % 4 == 2)
        tried.kind = CALL_COMM_SPLIT;
    if (s->a / COMMS % 4 == 3)
        tried.kind = CALL_REGISTER;
    if (s->a / COMMS % 4 == 0 && s->a >= 8) {
        tried.kind = CALL_COMM_CHECK; /* always allowed */
        tried.want = OK_ONLY;
    }
}

static void window_note(struct comm *comm, int rank, struct window *w, const struct call *c)
{
    const struct registration *r = &registrations[rank];
    symwin_window_info info;

    fuzz_must(symwin_window_query(c->comm, c->result.window, &info) == SYMWIN_OK, "%s",
              symwin_last_error());
    fuzz_must(info.ptr == r->ptr && info.bytes == r->bytes && info.base == comm->info.base &&
                  info.stride == comm->info.stride && info.rank == rank &&
                  info.nranks == model.nranks && info.buffer_id == r->memory->id,
              "a new window is not what was registered");
    handle_note(c->result.window);
    *w = (struct window){.live = 1,
                         .handle = c->result.window,
                         .begin = r->ptr,
                         .bytes = r->bytes,
                         .offset = info.offset,
                         .memory = r->memory,
                         .transports = info.transports,
                         .id = r->memory->id};
}

static void done_register(const struct step *s, int rank, const struct call *c)
{
    struct comm *comm = &model.comm[s->a % COMMS];
    struct shown on[RANKS];
    int r, segment, is_new;
    static int place; /* the same for all ranks */
    unsigned transports;

    if (c->got != SYMWIN_OK)
        return;
    if (rank == 0)
        place = window_place(comm);
    window_note(comm, rank, &comm->windows[rank][place], c);
    if (rank < model.nranks - 1)
        return;
    for (r = 0; r < model.nranks; r++)
        on[r] = (struct shown){registrations[r].memory, registrations[r].offset};
    segment = common_segment(comm, on);
    is_new = segment < 0;
    if (is_new)
        segment = segment_make(comm,
                               comm->windows[0][place].offset - registrations[0].offset -
                                   segment_of_all(on).begin[0],
                               on);
    transports = SYMWIN_TRANSPORT_PEER;
    if (gets_multicast(comm, &comm->segments[segment], c->flags, is_new))
        transports |= SYMWIN_TRANSPORT_MULTICAST;
    for (r = 0; r < model.nranks; r++) {
        struct window *w = &comm->windows[r][place];

        fuzz_must(w->offset == comm->segments[segment].offset + comm->segments[segment].begin[0] +
                                   registrations[0].offset,
                  "rank %d's window lies at %zu, its segment at %zu", r, w->offset,
                  comm->segments[segment].offset);
        fuzz_must(w->transports == transports, "transports %u, not %u", w->transports, transports);
        w->segment = segment;
        comm->segments[segment].holders++;
    }
}

/* ---- one window ---- */

/* A handle, valid or not; *live is its window. NULL: the communicator must reject the handle. */
static symwin_window *choose_handle(const struct step *s, int rank, struct window **live)
{
    struct comm *comm = &model.comm[s->a % COMMS];
    struct window *w = &comm->windows[rank][s->b % WINDOWS];
    const struct window *other = w;

    *live = NULL;
    switch (s->c % 16) {
    case 1: /* another rank's */
        other = &comm->windows[(rank + 1) % model.nranks][s->b % WINDOWS];
        break;
    case 2: /* another communicator's */
        other = &model.comm[(s->a + 1) % COMMS].windows[rank][s->b % WINDOWS];
        break;
    case 3:
        return NULL;
    case 4:
        return (symwin_window *)(void *)host_memory;
    case 5: /* the right slot, a wrong number */
        return (symwin_window *)((uintptr_t)w->handle ^ (uintptr_t)1 << (20 + s->twist % 40));
    case 6:
        return (symwin_window *)((uintptr_t)w->handle ^ (uintptr_t)1 << s->twist % 20);
    }
    if (other == w && w->live)
        *live = w;
    if (other != w && other->handle == w->handle)
        return NULL; /* only one rank, or both never existed */
    return other->handle;
}

static void step_deregister(const struct step *s, int rank, struct call *c)
{
    struct window *live;

    if (rank == s->odd && s->twist % 8 == 1)
        return;
    c->kind = CALL_DEREGISTER;
    c->comm = model.comm[s->a % COMMS].ptr[rank];
    c->window = choose_handle(s, rank, &live);
    c->want = c->comm != NULL && live != NULL ? OK_ONLY : INVALID_ONLY;
}

static void done_deregister(const struct step *s, int rank, const struct call *c)
{
    struct window *live;

    choose_handle(s, rank, &live);
    if (c->got == SYMWIN_OK)
        window_close(&model.comm[s->a % COMMS], live);
}

static void step_window_query(const struct step *s, int rank, struct call *c)
{
    struct window *live;

    c->kind = CALL_WINDOW_QUERY;
    c->comm = model.comm[s->a % COMMS].ptr[rank];
    c->window = choose_handle(s, rank, &live);
    c->no_result = s->a / COMMS == 1;
    c->want = c->comm != NULL && live != NULL && !c->no_result ? OK_ONLY : INVALID_ONLY;
}

static void done_window_query(const struct step *s, int rank, const struct call *c)
{
    const symwin_window_info *info = &c->result.view;
    struct window *w;

    choose_handle(s, rank, &w);
    if (c->got == SYMWIN_OK)
        fuzz_must(info->ptr == w->begin && info->bytes == w->bytes && info->offset == w->offset &&
                      info->transports == w->transports && info->buffer_id == w->id,
                  "a window is not what was registered");
}

static size_t offset_in(const struct step *s, const struct window *w)
{
    const size_t bytes = w != NULL ? w->bytes : 64;
    const size_t offsets[] = {0, 1, bytes / 2, bytes - 1, bytes, bytes + 1, SIZE_MAX, GRANULE};

    return offsets[s->twist / 4 % 8];
}

static void step_peer(const struct step *s, int rank, struct call *c)
{
    struct window *live;

    c->kind = CALL_PEER_POINTER;
    c->comm = model.comm[s->a % COMMS].ptr[rank];
    c->window = choose_handle(s, rank, &live);
    c->rank = (int)(s->twist % 8) - 2;
    c->offset = offset_in(s, live);
    c->no_result = s->a / COMMS == 1;
    c->want = c->comm != NULL && live != NULL && !c->no_result && c->rank >= 0 &&
                      c->rank < model.nranks && c->offset < live->bytes
                  ? OK_ONLY
                  : INVALID_ONLY;
}

/* The address must map the peer's memory, as the driver reports it. */
static void done_peer(const struct step *s, int rank, const struct call *c)
{
    const struct comm *comm = &model.comm[s->a % COMMS];
    symwin_mem_info info;
    struct window *w;
    char *want;

    choose_handle(s, rank, &w);
    if (c->got != SYMWIN_OK)
        return;
    want = (char *)comm->info.base + (size_t)c->rank * comm->info.stride + w->offset + c->offset;
    fuzz_must(c->result.pointer == want, "rank %d's byte %zu is at %p, not %p", c->rank, c->offset,
              c->result.pointer, (void *)want);
    fuzz_must(symwin_mem_query(want, &info) == SYMWIN_OK &&
                  handle_at(want) == comm->segments[w->segment].memory[c->rank].handle &&
                  info.device == model.device[c->rank] && info.owned == 0 &&
                  info.registrations == 0,
              "another memory than rank %d's is mapped in its part", c->rank);
}

static void step_multicast(const struct step *s, int rank, struct call *c)
{
    struct window *live;

    c->kind = CALL_MULTICAST_POINTER;
    c->comm = model.comm[s->a % COMMS].ptr[rank];
    c->window = choose_handle(s, rank, &live);
    c->offset = offset_in(s, live);
    c->no_result = s->a / COMMS == 1;
    if (c->comm == NULL || live == NULL || c->no_result)
        c->want = INVALID_ONLY;
    else if ((live->transports & SYMWIN_TRANSPORT_MULTICAST) == 0)
        c->want = ONLY(SYMWIN_UNSUPPORTED);
    else
        c->want = c->offset < live->bytes ? OK_ONLY : INVALID_ONLY;
}

static void done_multicast(const struct step *s, int rank, const struct call *c)
{
    const symwin_comm_info *info = &model.comm[s->a % COMMS].info;
    struct window *w;

    choose_handle(s, rank, &w);
    if (c->got == SYMWIN_OK)
        fuzz_must(c->result.pointer == (char *)info->base + (size_t)model.nranks * info->stride +
                                           w->offset + c->offset,
                  "a multicast address is %p", c->result.pointer);
}

static void step_find(const struct step *s, int rank, struct call *c)
{
    const struct comm *comm = &model.comm[s->a % COMMS];
    const struct window *w = &comm->windows[rank][s->b % WINDOWS];
    const size_t offsets[] = {0, 1, w->bytes / 2, w->bytes - 1, w->bytes, (size_t)0 - 1, 64, 4096};
    const size_t sizes[] = {1, 0, w->bytes, w->bytes / 2, w->bytes + 1, SIZE_MAX, 7, 64};
    const struct window *found;

    c->kind = CALL_FIND;
    c->comm = comm->ptr[rank];
    c->ptr = (void *)((uintptr_t)w->begin + offsets[s->c % 8]);
    c->bytes = sizes[s->c / 8 % 8];
    c->no_result = s->a / COMMS == 1;
    c->want = c->comm != NULL && !c->no_result &&
                      window_of(comm, rank, c->ptr, c->bytes, &found) >= FOUND_ONE
                  ? OK_ONLY
                  : INVALID_ONLY;
}

/* Of several windows of one size, any may be found. */
static void done_find(const struct step *s, int rank, const struct call *c)
{
    const struct comm *comm = &model.comm[s->a % COMMS];
    const struct window *want;
    int i;

    if (c->got != SYMWIN_OK)
        return;
    window_of(comm, rank, c->ptr, c->bytes, &want);
    for (i = 0; i < WINDOWS; i++) {
        const struct window *w = &comm->windows[rank][i];

        if (w->live && w->handle == c->result.window) {
            fuzz_must(w->bytes == want->bytes && (char *)c->ptr >= w->begin &&
                          (size_t)((char *)c->ptr - w->begin) < w->bytes,
                      "the window that was found is not the smallest");
            return;
        }
    }
    fuzz_must(0, "the window that was found is not alive");
}

#endif
