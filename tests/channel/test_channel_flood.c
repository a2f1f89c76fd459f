/* Messages without end from another process: about ends that this rank has not created, and about
 * ends that are gone. They count until they are freed, and a call keeps its deadline. The kernel
 * gives rank 0 a frame of rank 1 again and again: recvmsg() leaves it where it is. */
#include <sys/syscall.h>

#include "processes.h"
#include "src/channel/channel.h"

enum { RANKS = 2, MOST = 3 * SW_STATE_LANES, SOON_MS = 20000, TIMEOUT_MS = 300, FLOOD_MS = 6000 };
enum { LATE_MS = 3000, MANY = 45000 };

static const uint64_t never = 1u << 30; /* the number of an end that nobody creates */

static atomic_int flooded = -1; /* this socket's next frame is read again: */
static atomic_llong repeats;    /* this often, */
static atomic_llong flood_end;  /* at most until this time */

/* Replaces the C library's. */
ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    const int again = fd == flooded && repeats > 0 && sw_now_ms() < flood_end;
    const ssize_t got = syscall(SYS_recvmsg, fd, message, flags | (again ? MSG_PEEK : 0));

    repeats -= again && got > 0;
    return got;
}

/* Rank 1 sends a message, which rank 0 gets `times` times. */
static void flood(struct processes *p, symwin_comm *comm, uint64_t number, long long times)
{
    const struct sw_frame_message words = {
        .from = 1, .to = 0, .kind = SW_MESSAGE_GONE, .number = number};

    if (comm->rank == 0) {
        sw_poll_lock();
        flooded = comm->group->sockets[1]->watch.fd;
        flood_end = sw_now_ms() + FLOOD_MS;
        repeats = times - 1;
        sw_poll_unlock();
    }
    processes_barrier(p);
    if (comm->rank == 1)
        (void)sw_mailbox_try(comm->group, &words, -1, 0, sw_now_ms() + SOON_MS);
    processes_barrier(p);
}

static int waiting(symwin_comm *comm)
{
    return comm->group->waiting[1];
}

/* Waits until rank 0 has received that many messages, or the communicator has ended. */
static void await(symwin_comm *comm, int count)
{
    const int64_t end = sw_now_ms() + SOON_MS;

    while (waiting(comm) < count && symwin_comm_check(comm) == SYMWIN_OK && sw_now_ms() < end)
        usleep(1000);
}

static void open_comm(struct processes *p, int rank, symwin_comm **comm)
{
    host_must(processes_comm(p, rank, SOON_MS, comm), "symwin_comm_create");
    processes_barrier(p);
}

static void close_comm(struct processes *p, symwin_comm *comm)
{
    processes_barrier(p);
    symwin_comm_destroy(comm);
}

/* Those that a call has taken and kept count. */
static void kept(struct processes *p, int rank)
{
    enum { PART = 64, BEFORE = MOST - 3 * PART / 2 };
    const int64_t end = sw_now_ms() + SOON_MS;
    symwin_channel_end *channel = NULL;
    symwin_comm *comm;

    open_comm(p, rank, &comm);
    if (rank == 0)
        comm->group->waiting[1] = BEFORE;
    flood(p, comm, never, PART);
    if (rank == 0) {
        await(comm, BEFORE + PART);
        host_must(symwin_channel_create(comm, 1, NULL, 0, NULL, &channel), "a first create");
        must_be(waiting(comm) == BEFORE + PART, "what is kept counts", rank);
    }
    flood(p, comm, never, PART);
    if (rank == 0)
        await(comm, MOST + 1);
    while (symwin_comm_check(comm) == SYMWIN_OK && sw_now_ms() < end)
        usleep(1000);
    must_be(symwin_comm_check(comm) == SYMWIN_MISMATCH &&
                host_error_has("rank 1 has sent what no process"),
            "the sender is named", rank);
    close_comm(p, comm);
}

/* Those that are freed do not. */
static void freed(struct processes *p, int rank)
{
    symwin_channel_end *channel = NULL;
    symwin_comm *comm;

    open_comm(p, rank, &comm);
    flood(p, comm, never, MANY);
    if (rank == 0) {
        await(comm, MANY);
        comm->channels->made[1] = never - 1;
        host_must(symwin_channel_create(comm, 1, NULL, 0, NULL, &channel), "create, of the last");
        must_be(waiting(comm) == MANY, "all messages are kept", rank);
        host_must(symwin_channel_create(comm, 1, NULL, 0, NULL, &channel), "another create");
        must_be(waiting(comm) == 0, "and freed when their end exists", rank);
    }
    close_comm(p, comm);
}

/* Rank 0's peer does nothing but send. */
static void must_be_late(int rank, symwin_comm *comm, symwin_channel_end *end)
{
    const int64_t begin = sw_now_ms();
    symwin_channel channel;

    comm->timeout_ms = TIMEOUT_MS;
    must_be(symwin_channel_connect(comm, end, &channel) == SYMWIN_TIMEOUT &&
                host_error_has("rank 1"),
            "the peer is late", rank);
    must_be(sw_now_ms() - begin < LATE_MS, "it is told soon", rank);
    flooded = -1;
}

static void many(struct processes *p, int rank)
{
    symwin_channel_end *end = NULL;
    symwin_comm *comm;

    open_comm(p, rank, &comm);
    if (rank == 0)
        host_must(symwin_channel_create(comm, 1, NULL, 0, NULL, &end), "symwin_channel_create");
    flood(p, comm, never, MANY);
    if (rank == 0) {
        await(comm, MANY);
        must_be_late(rank, comm, end);
    }
    close_comm(p, comm);
}

static void endless(struct processes *p, int rank)
{
    symwin_channel_end *end = NULL;
    symwin_comm *comm;

    open_comm(p, rank, &comm);
    if (rank == 0) {
        host_must(symwin_channel_create(comm, 1, NULL, 0, NULL, &end), "symwin_channel_create");
        sw_poll_lock();
        sw_poll_remove(&comm->group->sockets[1]->watch); /* only the call reads, so none pile up */
        sw_poll_unlock();
    }
    flood(p, comm, 0, INT64_MAX);
    if (rank == 0)
        must_be_late(rank, comm, end);
    close_comm(p, comm);
}

/* What came in time is read, even if the time is over. */
static void in_time(struct processes *p, int rank)
{
    symwin_channel_end *end = NULL;
    symwin_channel channel;
    symwin_comm *comm;

    open_comm(p, rank, &comm);
    host_must(symwin_channel_create(comm, 1 - rank, NULL, 0, NULL, &end), "symwin_channel_create");
    if (rank == 0) {
        await(comm, 2); /* the offer and the verdict */
        comm->timeout_ms = 0;
    }
    host_must(symwin_channel_connect(comm, end, &channel), "symwin_channel_connect");
    close_comm(p, comm);
}

int main(void)
{
    processes_run("messages that are kept", RANKS, kept, NULL);
    processes_run("messages that are freed", RANKS, freed, NULL);
    processes_run("many about an end to come", RANKS, many, NULL);
    processes_run("without end, about one that is gone", RANKS, endless, NULL);
    processes_run("messages that came in time", RANKS, in_time, NULL);
    return tap_done();
}
