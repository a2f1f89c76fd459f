/* The second join of a rank of another host than the creator's. By TCP it got the table of all
 * ranks; then the ranks of its host join a host-local rendezvous. Their lowest rank creates its id
 * and writes it to a file, where the others find it.
 *
 * The lowest rank's connection to the first creator links the hosts. The others hold theirs until
 * they have joined. On the thread of the rank that joins, without the poll lock.
 */
#include <stdio.h>
#include <string.h>

#include "src/bootstrap/member.h"

static const char call[] = "symwin_comm_create";

enum {
    LOOK_MS = 2,     /* between looks for the id of the host-local rendezvous */
    REFUSAL_MS = 40, /* for a refusal that should have arrived already */
    ANSWER_MS = 500  /* for the answer of a process that runs */
};

static int host_at(const struct sw_member *all, int rank)
{
    return (int)all->table.locations[rank].host;
}

static int host_of(const struct sw_member *all)
{
    return host_at(all, all->join.rank);
}

static int lowest_of_host(const struct sw_member *all)
{
    return sw_rank_of_host(&all->table, host_of(all), 0);
}

/* The lowest rank of the host: creates the id. After GO its connection links the hosts, and END
 * tells the other end of a failure. */
static symwin_status create_id(struct sw_member *all, const char *tail, struct sw_id *local)
{
    char name[SW_FILE_NAME_BYTES];
    struct sw_id_options options = {
        .file = name, .table = &all->table, .host = host_of(all), .connection = &all->connection};
    union sw_frame frame;
    symwin_status status;

    status = sw_client_recv_frame(&all->connection, &frame, SW_FRAME_GO, NULL, all->deadline);
    if (status == SYMWIN_OK) {
        status = sw_id_file(tail, call, name, all->deadline);
        if (status == SYMWIN_OK)
            status = sw_id_make(local, &options, call);
        if (status != SYMWIN_OK)
            sw_host_link_say_end(&all->connection, status, all->join.rank);
    }
    if (status != SYMWIN_OK)
        sw_connection_close(&all->connection);
    return status;
}

/* Waits where only a refusal may come: no frame has type 0. Never SYMWIN_OK. */
static symwin_status await_refusal(struct sw_connection *connection, union sw_frame *frame,
                                   int64_t deadline)
{
    frame->header.type = 0;
    return sw_client_recv_frame(connection, frame, (enum sw_frame_type)0, NULL, deadline);
}

/* Waits until the lowest rank of the host has written the id, or the creator refuses. */
static symwin_status await_id(struct sw_member *all, const char *tail, struct sw_id *local)
{
    const int64_t deadline = all->deadline - SW_GRACE_MS;
    char text[SW_TEXT_BYTES];
    union sw_frame frame;
    unsigned turn = 0;
    int found;

    snprintf(text, sizeof text, "%s", symwin_last_error());
    while ((found = sw_id_read(tail, turn++, local, sw_id_is_open, deadline)) <= 0) {
        const symwin_status status = await_refusal(&all->connection, &frame, sw_now_ms() + LOOK_MS);

        if (frame.header.type == SW_FRAME_REFUSAL)
            sw_connection_close(&all->connection);
        if (status != SYMWIN_TIMEOUT || frame.header.type == SW_FRAME_REFUSAL)
            return status;
        if (found < 0)
            return sw_id_full(call);
        if (sw_now_ms() >= deadline)
            return sw_fail(
                SYMWIN_TIMEOUT,
                "%s: rank %d, the lowest on this host, did not join the other ranks of the host "
                "in time; all need the same TMPDIR",
                call, lowest_of_host(all));
    }
    sw_error_restore(text); /* looks that fail are no error */
    return SYMWIN_OK;
}

symwin_status sw_host_join_prepare(struct sw_member *local, struct sw_id *id)
{
    struct sw_member *all = local->all;
    const int host = host_of(all);
    const struct sw_part parts[] = {{all->id->secret, sizeof all->id->secret},
                                    {&host, sizeof host}};
    char tail[SW_TAIL_BYTES];
    symwin_status status;
    int64_t left;
    int r;

    sw_id_tail(parts, 2, tail);
    status = lowest_of_host(all) == all->join.rank ? create_id(all, tail, id)
                                                   : await_id(all, tail, id);
    if (status != SYMWIN_OK)
        return status;
    left = all->deadline - SW_GRACE_MS - sw_now_ms();
    local->id = id;
    local->join = all->join;
    local->join.rank = local->join.nranks = 0;
    for (r = 0; r < all->table.nranks; r++) {
        local->join.rank += host_at(all, r) == host && r < all->join.rank;
        local->join.nranks += host_at(all, r) == host;
    }
    local->join.posts = all->table.nranks;
    local->join.timeout_ms = left > 0 ? (int)left : 1;
    return SYMWIN_OK;
}

/* If the first creator has refused, its refusal counts. Otherwise this rank tells it the culprit:
 * itself, or after a timeout the lowest rank of the host. After a timeout it then waits for the
 * first creator's refusal, which may name another: if the first creator does not answer, that may
 * be why the lowest rank was late. */
symwin_status sw_host_join_failed(struct sw_member *all, symwin_status status)
{
    char text[SW_TEXT_BYTES];
    union sw_frame frame;

    snprintf(text, sizeof text, "%s", symwin_last_error());
    await_refusal(&all->connection, &frame, sw_now_ms() + REFUSAL_MS);
    if (frame.header.type == SW_FRAME_REFUSAL)
        return (symwin_status)frame.refusal.status;
    sw_error_restore(text);
    if (status != SYMWIN_TIMEOUT)
        return sw_client_report(&all->connection, all->join.rank, status, sw_now_ms());
    sw_client_refuse(&all->connection, status, lowest_of_host(all), sw_now_ms());
    return await_refusal(&all->connection, &frame, sw_now_ms() + ANSWER_MS);
}
