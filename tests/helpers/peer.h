/* A communicator of two processes, this one and one that the test plays: it has the other end of
 * the peer socket, and sends frames by hand. */
#ifndef SYMWIN_TESTS_PEER_H
#define SYMWIN_TESTS_PEER_H

#include <sys/socket.h>

#include "harness.h"
#include "src/bootstrap/rendezvous.h"
#include "src/control/control.h"

/* Rank `theirs` is the other process's. */
HARNESS_UNUSED struct sw_group *peer_group(int ranks, int theirs, int *other)
{
    struct sw_topology t;
    struct sw_group *group;
    int fds[2];

    host_must(sw_topology_make(&t, ranks, 2, 1), "sw_topology_make");
    t.locations[theirs].process = 1;
    host_must(sw_exchange_page(ranks, &t.page), "sw_exchange_page");
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) != 0)
        abort();
    t.sockets[1] = fds[0];
    *other = fds[1];
    sw_poll_lock();
    host_must(sw_group_create(&t, &group), "sw_group_create");
    sw_poll_unlock();
    return group;
}

#endif
