/* A rank with a communicator and memory of its own: what the tests of windows begin with. */
#ifndef SYMWIN_TESTS_WINDOW_CASES_H
#define SYMWIN_TESTS_WINDOW_CASES_H

#include "harness.h"

struct member {
    struct harness_team *team;
    int rank, device;
    symwin_comm *comm;
    void *memory; /* `bytes` on this rank's device */
    size_t bytes;
};

/* Joins the team's communicator and allocates. */
HARNESS_UNUSED void member_open(struct member *m, struct harness_team *team, int rank, size_t bytes)
{
    *m = (struct member){team, rank, harness_device(rank), NULL, NULL, bytes};
    host_must(harness_comm(team, rank, &m->comm), "symwin_comm_create");
    m->memory = host_alloc(m->device, bytes);
}

/* Ranks that share nothing any more leave in any order; memory under no window can go. */
HARNESS_UNUSED void member_close(struct member *m)
{
    symwin_comm_destroy(m->comm);
    host_must(symwin_mem_free(m->memory), "symwin_mem_free");
}

HARNESS_UNUSED symwin_window *member_window(struct member *m, size_t offset, size_t bytes)
{
    symwin_window *window = NULL;

    host_must(symwin_window_register(m->comm, host_at(m->memory, offset), bytes, 0, &window),
              "symwin_window_register");
    return window;
}

HARNESS_UNUSED void member_deregister(struct member *m, symwin_window *window)
{
    host_must(symwin_window_deregister(m->comm, window), "symwin_window_deregister");
}

HARNESS_UNUSED symwin_window_info member_query(struct member *m, const symwin_window *window)
{
    symwin_window_info info = {0};

    host_must(symwin_window_query(m->comm, window, &info), "symwin_window_query");
    return info;
}

/* How many physical allocations the communicator's windows hold mapped. */
HARNESS_UNUSED int member_allocations(struct member *m)
{
    symwin_comm_info info = {0};

    host_must(symwin_comm_query(m->comm, &info), "symwin_comm_query");
    return info.allocations;
}

HARNESS_UNUSED void *member_peer(struct member *m, const symwin_window *window, int peer,
                                 size_t offset)
{
    void *ptr = NULL;

    host_must(symwin_window_peer_pointer(m->comm, window, peer, offset, &ptr),
              "symwin_window_peer_pointer");
    return ptr;
}

/* How many ranks' words at `offset` of the window this rank does not see as the owner wrote them.
 * Collective: the ranks write by their own pointers and read by the flat range's. */
HARNESS_UNUSED int member_exchange(struct member *m, const symwin_window *window, void *own,
                                   size_t offset, uint32_t salt)
{
    int wrong = 0;
    int peer;

    host_put_u32(m->device, host_at(own, offset), salt + (uint32_t)m->rank);
    harness_barrier(m->team);
    for (peer = 0; peer < m->team->nranks; peer++)
        wrong += host_get_u32(m->device, member_peer(m, window, peer, offset)) !=
                 salt + (uint32_t)peer;
    harness_barrier(m->team);
    return wrong;
}

#endif
