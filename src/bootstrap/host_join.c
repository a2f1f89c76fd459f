/* How the ranks of a host that is not the creator's find each other. The first of them opens a
 * rendezvous for its host (rendezvous.c) and writes its id to a file, where the others find it.
 * That rank joins for all at the creator. If its process dies, another rank takes its place, and
 * hears from the creator what has become of the communicator.
 *
 * On the thread of the rank that joins, without the poll lock.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "src/bootstrap/member.h"

static const char call[] = "symwin_comm_create";

enum {
    LONGEST_NAP_MS = 32,
    HEAR_MS = 900 /* between two questions to the creator, which tells late ranks for 1 s */
};

/* This process makes the id, unless another one did before this one had the claim. */
static symwin_status make(const char *tail, const char *name, struct sw_id *local, int *leads,
                          int64_t deadline)
{
    const struct sw_id_options options = {.file = name, .far = 1};
    const int found = sw_id_read(tail, 0, local, sw_id_is_open, deadline);
    symwin_status status = SYMWIN_OK;

    if (found < 0)
        return sw_id_full(call);
    if (found == 0)
        status = sw_id_make(local, &options, call);
    *leads = found == 0 && status == SYMWIN_OK;
    return status;
}

/* Waits a little longer each time: a creator's host may have many ranks. */
static void nap(unsigned turn)
{
    const int ms = turn < 5 ? 1 << turn : LONGEST_NAP_MS;
    const struct timespec moment = {.tv_nsec = ms * 1000000};

    nanosleep(&moment, NULL);
}

/* Waits until the id is there, or this process has the claim to make it. *heard: the creator has
 * told why nobody can join. */
static symwin_status find(const struct sw_member *m, const char *tail, const char *name,
                          struct sw_id *local, struct sw_claim **claim, int *heard)
{
    int64_t hears = sw_now_ms() + HEAR_MS;
    symwin_status status = SYMWIN_OK;
    unsigned turn;

    for (turn = 0; status == SYMWIN_OK; turn++) {
        const int found = sw_id_read(tail, turn, local, sw_id_is_open, m->due);

        if (found != 0)
            return found > 0 ? SYMWIN_OK : sw_id_full(call);
        if (sw_now_ms() < m->due) /* else a stopped process has not answered */
            status = sw_claim_making(name, call, claim);
        if (status != SYMWIN_OK || *claim != NULL)
            break;
        if (sw_now_ms() >= m->due)
            return sw_fail(SYMWIN_TIMEOUT,
                           "%s: another rank of this host joins for all of them, and did not say "
                           "where in time (%s)",
                           call, name);
        if (sw_now_ms() >= hears) {
            status = sw_client_hear(m->id);
            *heard = status != SYMWIN_OK;
            hears = sw_now_ms() + HEAR_MS;
        }
        if (status == SYMWIN_OK)
            nap(turn);
    }
    return status;
}

symwin_status sw_host_join_find(const struct sw_member *m, struct sw_id *local, int *leads)
{
    char tail[SW_TAIL_BYTES], name[SW_FILE_NAME_BYTES];
    unsigned char host[SW_NAME_BYTES];
    const struct sw_part parts[] = {{m->id->secret, sizeof m->id->secret}, {host, sizeof host}};
    struct sw_claim *claim = NULL;
    symwin_status status;
    int heard = 0;

    *leads = 0;
    sw_host_name(host);
    sw_id_tail(parts, 2, tail);
    status = sw_id_file(tail, call, name, m->due);
    if (status == SYMWIN_OK)
        status = find(m, tail, name, local, &claim, &heard);
    if (claim != NULL)
        status = make(tail, name, local, leads, m->due);
    sw_claim_free(claim);
    if (status != SYMWIN_OK && status != SYMWIN_TIMEOUT && !heard)
        sw_client_tell(m->id, m->join.rank, status);
    return status;
}
