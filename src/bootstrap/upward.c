/* What the rendezvous of a host says to the creator of the id, on another host, and hears from it;
 * and the link to the host above. Under the poll lock. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "src/bootstrap/rendezvous.h"

static const char call[] = "symwin_comm_create";

enum {
    SEND_MS = 100, /* for a frame: only a creator that reads nothing has no room */
    SLACK_MS = 100 /* a timeout that is shorter by at most this counts as unchanged */
};

static int send_join(struct rendezvous *m, struct sw_frame_join *join)
{
    union sw_frame frame = {.join = *join};

    sw_frame_seal(&frame, SW_FRAME_JOIN);
    return sw_connection_send(&m->up, &frame, -1, sw_now_ms() + SEND_MS);
}

int sw_up_join(struct rendezvous *m, int rank)
{
    const struct slot *s = &m->slots[rank];
    const int64_t left = s->deadline - sw_now_ms();
    struct sw_frame_join join = {.protocol = SW_FRAME_PROTOCOL,
                                 .rank = rank,
                                 .nranks = m->nranks,
                                 .timeout_ms = s->timeout_ms};

    if (left + SLACK_MS < join.timeout_ms)
        join.timeout_ms = left > 1 ? (int)left : 1;
    memcpy(join.process, s->process, sizeof join.process);
    sw_host_name(join.host);
    return send_join(m, &join);
}

int sw_up_strange(struct rendezvous *m)
{
    return send_join(m, &m->strange);
}

void sw_up_refuse(struct rendezvous *m, struct sw_connection *up)
{
    union sw_frame frame;

    memset(&frame, 0, sizeof frame.refusal);
    frame.refusal.status = (int32_t)m->status;
    frame.refusal.rank = m->culprit;
    snprintf(frame.refusal.text, sizeof frame.refusal.text, "%s", m->text);
    sw_frame_seal(&frame, SW_FRAME_REFUSAL);
    sw_connection_send(up, &frame, -1, sw_now_ms() + SEND_MS); /* may fail: it may be the cause */
}

symwin_status sw_up_take_table(struct rendezvous *m, const struct sw_frame_table *part)
{
    const int error = part->nranks == m->nranks ? sw_rank_table_take(&m->table, part) : EPROTO;

    if (error == 0)
        return SYMWIN_OK;
    if (error == ENOMEM)
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for %d ranks", call, part->nranks);
    return sw_fail(SYMWIN_DENIED, "%s: the process that made the id sent a wrong table", call);
}

/* Whether a rank is in one process, by the table, with the same ranks as here. */
static int is_placed(const struct rendezvous *m, int rank)
{
    const struct sw_frame_location *at = m->table.locations;
    int r;

    for (r = 0; r < m->nranks && m->slots[rank].taken; r++)
        if ((memcmp(m->slots[r].process, m->slots[rank].process, SW_NAME_BYTES) == 0) !=
            (at[r].process == at[rank].process))
            return 0;
    return 1;
}

int sw_up_host(const struct rendezvous *m)
{
    int host = -1, r;

    if (m->table.nranks == 0 || m->table.have != m->nranks)
        return -1;
    for (r = 0; r < m->nranks && host < 0; r++)
        host = m->slots[r].taken ? (int)m->table.locations[r].host : -1;
    for (r = 0; r < m->nranks; r++)
        if (m->slots[r].taken != ((int)m->table.locations[r].host == host) || !is_placed(m, r))
            return -1;
    return host > 0 ? host : -1;
}

void sw_up_drop(struct rendezvous *m)
{
    sw_poll_remove(&m->watch);
    sw_connection_drop(&m->up);
}

void sw_up_leave_above(struct rendezvous *m)
{
    if (m->above_watch.id == 0)
        return;
    sw_poll_remove(&m->above_watch);
    sw_fork_set_add(m->above.fd); /* the watch kept it from forked children */
}
