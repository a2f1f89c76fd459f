/* What the ranks of a meeting get once all have come: which rank is where, the control page, a line between
 * each two processes of this host, and the connections to the other hosts. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "src/bootstrap/meeting.h"

static const char call[] = "symwin_comm_create";

static int same(const unsigned char *a, const unsigned char *b)
{
    return memcmp(a, b, SW_NAME_BYTES) == 0;
}

/* Numbers processes and hosts in the order of their lowest ranks, but for this host, which is 0. */
static symwin_status make_place(const struct meeting *m, struct sw_place *place)
{
    struct sw_wire_seat *seats = calloc((size_t)m->nranks, sizeof *seats);
    int processes = 0, hosts = 1;
    symwin_status status;
    int r, q;

    if (seats == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for %d ranks", call, m->nranks);
    for (r = 0; r < m->nranks; r++) {
        for (q = 0; q < r && !same(m->seats[q].process, m->seats[r].process); q++)
            ;
        seats[r].process = q < r ? seats[q].process : (uint16_t)processes++;
        for (q = 0; q < r && !same(m->seats[q].host, m->seats[r].host); q++)
            ;
        if (!m->seats[r].far)
            seats[r].host = 0;
        else
            seats[r].host = q < r ? seats[q].host : (uint16_t)hosts++;
    }
    status = sw_place_make(place, m->nranks, processes, hosts);
    if (status == SYMWIN_OK)
        memcpy(place->seats, seats, (size_t)m->nranks * sizeof *seats);
    free(seats);
    place->process = -1;
    for (r = 0; r < m->nranks && status == SYMWIN_OK; r++)
        if (m->seats[r].visitor == NULL)
            place->process = place->seats[r].process;
    return status;
}

static int is_here(const struct sw_place *place, int process)
{
    return place->seats[sw_place_leader(place, process)].host == 0;
}

static int lowest_of_host(const struct sw_place *place, int host)
{
    int r = 0;

    while (r < place->nranks && place->seats[r].host != host)
        r++;
    return r;
}

static symwin_status send_tables(struct meeting *m, const struct sw_place *place)
{
    union sw_wire_frame frame;
    symwin_status status = SYMWIN_OK;
    int r;

    memset(&frame, 0, sizeof frame);
    frame.table.nranks = m->nranks;
    frame.table.processes = place->processes;
    frame.table.hosts = place->hosts;
    memcpy(frame.table.seats, place->seats, (size_t)m->nranks * sizeof *place->seats);
    for (r = 0; r < m->nranks && status == SYMWIN_OK; r++)
        if (m->seats[r].visitor != NULL)
            status = sw_meeting_tell(m, r, &frame, SW_WIRE_TABLE, -1);
    return status;
}

/* Gives one end of a line to process `to`, whose other end is process `from`'s. Takes `fd`. */
static symwin_status give_line(struct meeting *m, struct sw_place *place, int to, int from, int fd)
{
    union sw_wire_frame frame = {.pass = {.process = from}};
    symwin_status status;

    if (to == place->process) {
        place->lines[from] = fd;
        return SYMWIN_OK;
    }
    status = sw_meeting_tell(m, sw_place_leader(place, to), &frame, SW_WIRE_LINE, fd);
    close(fd);
    return status;
}

static symwin_status send_lines(struct meeting *m, struct sw_place *place)
{
    symwin_status status = SYMWIN_OK;
    int p, q;

    for (p = 0; p < place->processes; p++)
        for (q = p + 1; q < place->processes; q++) {
            int ends[2];

            if (!is_here(place, p) || !is_here(place, q))
                continue;
            if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
                return sw_meeting_own(
                    m,
                    sw_fail(SYMWIN_NO_MEMORY, "socketpair: %s; raise ulimit -n", strerror(errno)));
            status = give_line(m, place, p, q, ends[0]);
            if (status != SYMWIN_OK) {
                close(ends[1]);
                return status;
            }
            status = give_line(m, place, q, p, ends[1]);
            if (status != SYMWIN_OK)
                return status;
        }
    return status;
}

/* The connection to a host goes to the process that links it with this one. */
static symwin_status give_link(struct meeting *m, struct sw_place *place, int host)
{
    struct sw_channel *channel = &m->seats[lowest_of_host(place, host)].visitor->channel;
    const int linking = lowest_of_host(place, 0);
    union sw_wire_frame frame;
    symwin_status status;

    m->seats[lowest_of_host(place, host)].linked = 1;
    sw_service_remove(&m->seats[lowest_of_host(place, host)].visitor->watch); /* who links reads */
    if (place->seats[linking].process == place->process) {
        place->channels[host] = *channel;
        *channel = (struct sw_channel){.fd = -1};
        return SYMWIN_OK;
    }
    memset(&frame, 0, sizeof frame.link);
    frame.link.host = host;
    frame.link.sent = channel->sent;
    frame.link.received = channel->received;
    memcpy(frame.link.key, channel->key, sizeof frame.link.key);
    status = sw_meeting_tell(m, linking, &frame, SW_WIRE_LINK, channel->fd);
    sw_wipe(&frame.link, sizeof frame.link);
    return status;
}

/* Every process gets all that it needs. */
static symwin_status hand_out(struct meeting *m, struct sw_place *place)
{
    union sw_wire_frame frame = {.pass = {.process = place->process}};
    symwin_status status = sw_exchange_page(m->posts, &place->page);
    int p, h;

    if (status != SYMWIN_OK)
        return sw_meeting_own(m, status);
    status = send_tables(m, place);
    for (p = 0; p < place->processes && status == SYMWIN_OK; p++)
        if (p != place->process && is_here(place, p))
            status = sw_meeting_tell(m, sw_place_leader(place, p), &frame, SW_WIRE_PAGE,
                                     place->page);
    if (status == SYMWIN_OK)
        status = send_lines(m, place);
    for (h = 1; h < place->hosts && status == SYMWIN_OK; h++) {
        status = sw_meeting_tell(m, lowest_of_host(place, h), &frame, SW_WIRE_GO, -1);
        if (status == SYMWIN_OK)
            status = give_link(m, place, h);
    }
    return status;
}

static void await(struct meeting *m, int rank)
{
    m->seats[rank].awaited = 1;
    m->unready++;
}

/* From now on each of the other processes here has to say that it is ready, and each rank of another host that
 * it has found the others there: until then its end is seen here. */
static void await_ready(struct meeting *m, const struct sw_place *place)
{
    int p, r;

    for (p = 0; p < place->processes; p++)
        if (p != place->process && is_here(place, p))
            await(m, sw_place_leader(place, p));
    for (r = 0; r < m->nranks; r++)
        if (m->seats[r].far && !m->seats[r].linked)
            await(m, r);
}

symwin_status sw_meeting_hand_out(struct meeting *m)
{
    struct sw_place place;
    symwin_status status = make_place(m, &place);

    if (status != SYMWIN_OK)
        return sw_meeting_own(m, status);
    if (place.hosts > 1 && lowest_of_host(&place, 0) == place.nranks)
        status = sw_fail(SYMWIN_UNSUPPORTED,
                         "%s: the id was made on a host that has none of the ranks; make it on one "
                         "that has",
                         call);
    if (status == SYMWIN_OK && (place.processes > 1 || place.process < 0 || m->table != NULL))
        status = hand_out(m, &place);
    if (status == SYMWIN_OK)
        await_ready(m, &place);
    if (status == SYMWIN_OK && m->table != NULL &&
        sw_place_widen(&place, m->table, m->host) != SYMWIN_OK)
        status = sw_meeting_own(m, SYMWIN_NO_MEMORY);
    if (status != SYMWIN_OK)
        sw_place_end(&place, status, m->culprit);
    if (status != SYMWIN_OK || place.process < 0) {
        sw_place_release(&place);
        return status;
    }
    if (m->channel.fd >= 0) {
        sw_service_remove(&m->link);
        place.channels[0] = m->channel;
        m->channel = (struct sw_channel){.fd = -1};
    }
    status = sw_group_create(&place, &m->group);
    if (status != SYMWIN_OK)
        return sw_meeting_own(m, status);
    m->group->on_far_end = sw_root_ended;
    return SYMWIN_OK;
}
