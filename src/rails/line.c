/* Pieces of a call over several domains on their way: kernels inside begin a piece, NCCL moves it
 * in a lane, and kernels inside end it, while other pieces are in other lanes. A lane has a
 * communicator of NCCL's for each rail, on which calls wait for each other, so all ranks put the
 * same piece into the same lane: they count pieces alike. */
#include "src/rails/wide_call.h"

symwin_status sw_follow_stream(CUevent event, CUstream from, CUstream to)
{
    symwin_status status = sw_check(sw_drv.cuEventRecord(event, from), "cuEventRecord");

    return status == SYMWIN_OK
               ? sw_check(sw_drv.cuStreamWaitEvent(to, event, 0), "cuStreamWaitEvent")
               : status;
}

static char *room_of(const struct sw_wide_call *c, unsigned number)
{
    return c->wide->scratch + number % SW_PARTS * c->wide->part;
}

/* A verdict tells of the step inside before it, to all domains: it has no part in what each of them
 * moves. */
static symwin_status one_batch(const struct sw_wide_call *c, sw_rail_fn *rail,
                               const struct sw_line_piece *p, char *room, CUstream stream, int lane,
                               int has_verdict)
{
    const struct sw_wide *w = c->wide;
    struct sw_batch b;
    symwin_status status = sw_batch_begin_in(&b, c, stream, lane);
    int i;

    if (status != SYMWIN_OK)
        return status;
    for (i = 0; i < w->rail_count && !p->stays; i++)
        rail(c, p, room, stream, i, sw_rails_of(w, lane)[i], &b);
    if (has_verdict)
        sw_batch_verdicts(&b);
    status = sw_batch_end(&b);
    return status == SYMWIN_OK && has_verdict ? sw_batch_hold(&b) : status;
}

static symwin_status on_rails(const struct sw_wide_call *c, const struct sw_flow *f,
                              const struct sw_line_piece *p, char *room, CUstream stream, int lane)
{
    symwin_status status = one_batch(c, f->rail, p, room, stream, lane, f->first != NULL);
    int i;

    for (i = 0; i < c->wide->rail_count && status == SYMWIN_OK && f->between != NULL; i++)
        status = f->between(c, p, room, stream, i);
    return status == SYMWIN_OK && f->again != NULL
               ? one_batch(c, f->again, p, room, stream, lane, 0)
               : status;
}

static int is_on_rails(const struct sw_line *l, const struct sw_line_piece *p)
{
    return !p->stays || l->flow->first != NULL;
}

static symwin_status send_piece(const struct sw_line *l, unsigned k)
{
    const struct sw_wide_call *c = l->call;
    const struct sw_line_piece *p = &l->pieces[k % SW_PARTS];
    const struct sw_wide *w = c->wide;
    const int lane = (int)(k % SW_LANES);
    const CUstream stream = sw_lane_stream(c, lane);
    symwin_status status = SYMWIN_OK;

    if (l->flow->first != NULL)
        status = l->flow->first(c, p, room_of(c, k));
    if (!is_on_rails(l, p))
        return status;
    if (status == SYMWIN_OK && stream != c->stream)
        status = sw_follow_stream(w->ready[k % SW_PARTS], c->stream, stream);
    if (status == SYMWIN_OK)
        status = on_rails(c, l->flow, p, room_of(c, k), stream, lane);
    if (status == SYMWIN_OK && stream != c->stream)
        status = sw_check(sw_drv.cuEventRecord(w->moved[k % SW_PARTS], stream), "cuEventRecord");
    return status;
}

static symwin_status take_piece(const struct sw_line *l, unsigned k)
{
    const struct sw_wide_call *c = l->call;
    const struct sw_line_piece *p = &l->pieces[k % SW_PARTS];
    symwin_status status = SYMWIN_OK;

    if (c->lanes >= 0 && is_on_rails(l, p))
        status = sw_check(sw_drv.cuStreamWaitEvent(c->stream, c->wide->moved[k % SW_PARTS], 0),
                          "cuStreamWaitEvent");
    return status == SYMWIN_OK && l->flow->last != NULL ? l->flow->last(c, p, room_of(c, k))
                                                        : status;
}

/* While NCCL has as many pieces as there are lanes, the next one is begun inside, and the oldest is
 * ended: that one's part of the scratch is the next one's. */
symwin_status sw_line_put(struct sw_line *l, const struct sw_line_piece *p)
{
    symwin_status status;

    l->pieces[l->sent % SW_PARTS] = *p;
    status = send_piece(l, l->sent++);
    if (status == SYMWIN_OK && l->sent - l->taken == SW_PARTS)
        status = take_piece(l, l->taken++);
    return status;
}

symwin_status sw_line_end(struct sw_line *l)
{
    symwin_status status = SYMWIN_OK;

    while (l->taken < l->sent && status == SYMWIN_OK)
        status = take_piece(l, l->taken++);
    return status;
}
