/* Whether a rank that joins contradicts the ranks before it. Under the poll lock. */
#include <string.h>

#include "src/bootstrap/rendezvous.h"

static const char call[] = "symwin_comm_create";

/* With two earlier ranks or more, this one is wrong; with one, either may be. */
static symwin_status fail_nranks(const struct rendezvous *m, const struct sw_frame_join *join)
{
    int first = 0;

    while (first < m->nranks - 1 && !m->slots[first].taken)
        first++;
    if (m->joined < 2)
        return sw_fail(SYMWIN_MISMATCH,
                       "%s: nranks differ: rank %d passed %d, rank %d passed %d; pass the same on "
                       "every rank",
                       call, first, m->nranks, join->rank, join->nranks);
    return sw_fail(SYMWIN_MISMATCH,
                   "%s: nranks differ: rank %d passed %d, the %d ranks before it passed %d; pass "
                   "the same on every rank",
                   call, join->rank, join->nranks, m->joined, m->nranks);
}

/* Whether a rank can be in the process that it names. The name of the creator's process is in the
 * id, so any member knows it. Ranks of one process come the same way, from one pid or host. */
static int is_of_process(const struct rendezvous *m, const struct sw_frame_join *join,
                         const struct sw_accepted *accepted)
{
    int r;

    if (accepted == NULL)
        return 1;
    if (memcmp(join->process, m->id.creator, sizeof join->process) == 0)
        return 0;
    for (r = 0; r < m->nranks; r++) {
        const struct slot *s = &m->slots[r];

        if (!s->taken || memcmp(s->process, join->process, sizeof s->process) != 0)
            continue;
        if (s->remote != accepted->connection.stream ||
            (s->remote && memcmp(s->host, join->host, sizeof s->host) != 0) ||
            (!s->remote && s->accepted->pid != accepted->pid))
            return 0;
    }
    return 1;
}

/* For a host only one process joins: another rank of that host, by another connection; -1: none. */
static int other_of_host(const struct rendezvous *m, const struct sw_frame_join *join,
                         const struct sw_accepted *accepted)
{
    int r = 0;

    while (r < m->nranks && (!m->slots[r].remote || m->slots[r].accepted == NULL ||
                             m->slots[r].accepted == accepted ||
                             memcmp(m->slots[r].host, join->host, sizeof join->host) != 0))
        r++;
    return r < m->nranks ? r : -1;
}

symwin_status sw_join_check(struct rendezvous *m, const struct sw_frame_join *join,
                            const struct sw_accepted *accepted)
{
    int other;

    if (join->protocol != SW_FRAME_PROTOCOL)
        return sw_fail(
            SYMWIN_MISMATCH,
            "%s: rank %d's symwin uses protocol %u, the process that made the id uses %u; use one "
            "version of symwin on every rank",
            call, join->rank, join->protocol, SW_FRAME_PROTOCOL);
    if (m->nranks != 0 && join->nranks != m->nranks)
        return fail_nranks(m, join);
    if (join->nranks < 1 || join->nranks > SW_MAX_RANKS || join->rank < 0 ||
        join->rank >= join->nranks)
        return sw_fail(SYMWIN_INVALID, "%s: there is no rank %d of %d", call, join->rank,
                       join->nranks);
    if (m->nranks != 0 && m->slots[join->rank].taken)
        return sw_fail(SYMWIN_INVALID, "%s: rank %d joined twice with one id; pass each rank once",
                       call, join->rank);
    if (!is_of_process(m, join, accepted))
        return sw_fail(SYMWIN_DENIED, "%s: rank %d gives the name of a process that it is not in",
                       call, join->rank);
    if (accepted == NULL || !accepted->connection.stream)
        return SYMWIN_OK;
    other = other_of_host(m, join, accepted);
    if (other >= 0)
        return sw_fail(SYMWIN_INVALID,
                       "%s: rank %d did not find rank %d, on the same host; all ranks of a host "
                       "need the same TMPDIR",
                       call, join->rank, other);
    return SYMWIN_OK;
}
