/* A process is stopped in the middle of a registration, when its peer socket is full. The others
 * name it, and not the process that waits for room in that socket and so sends them nothing. */
#include <sys/syscall.h>

#include "processes.h"

/* Rank 0 sends to rank 1 first. Rank 2's time is over first. */
enum { SENDER, STOPPED, WAITING, RANKS };

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { TIMEOUT_MS = 5000 };
#else
enum { TIMEOUT_MS = 1500 };
#endif

static struct processes *shared; /* NULL: ranks send as always */
static int self;

/* Fills a socket with messages. */
static void fill(int fd)
{
    union sw_frame frame;
    int count = 0;

    memset(&frame, 0, sizeof frame.message);
    frame.message.from = SENDER;
    frame.message.to = STOPPED;
    sw_frame_seal(&frame, SW_FRAME_MESSAGE);
    while (syscall(SYS_sendto, fd, &frame, frame.header.bytes, MSG_DONTWAIT, NULL, 0) > 0)
        count++;
    must_be(errno == EAGAIN && count > 0, "the socket gets full", SENDER);
}

/* Before the first handle that a rank sends. */
static void before_handle(int fd)
{
    struct processes *p = shared;

    shared = NULL;
    if (self == STOPPED) {
        p->rank[STOPPED].number = 1;
        raise(SIGSTOP);
    }
    if (self != SENDER)
        return;
    while (!p->rank[STOPPED].number)
        usleep(1000);
    usleep(100000); /* until it is stopped */
    fill(fd);
}

/* Replaces the C library's; the library sends frames over local sockets by it. */
ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    const struct sw_frame_header *header = message->msg_iov->iov_base;

    if (shared != NULL && header->type == SW_FRAME_HANDLE)
        before_handle(fd);
    return (ssize_t)syscall(SYS_sendmsg, fd, message, flags);
}

static void registers(struct processes *p, int rank)
{
    const int timeout_ms = rank == WAITING ? TIMEOUT_MS : 4 * TIMEOUT_MS;
    symwin_window *window = NULL;
    symwin_comm *comm = NULL;
    void *memory;
    int r;

    host_must(processes_comm(p, rank, timeout_ms, &comm), "symwin_comm_create");
    memory = host_alloc(rank, GRANULE);
    processes_barrier(p);
    self = rank;
    shared = p;
    processes_note(p, rank, symwin_window_register(comm, memory, GRANULE, 0, &window));
    must_be(p->rank[rank].status == SYMWIN_TIMEOUT && host_error_has("waited for rank 1 until"),
            "names the process that is stopped", rank);
    for (r = 0; r < RANKS; r++)
        while (r != STOPPED && p->rank[r].status < 0)
            usleep(1000);
    kill(p->pids[STOPPED], SIGKILL); /* it has the others' memory mapped */
    symwin_comm_destroy(comm);
    host_must(symwin_mem_free(memory), "symwin_mem_free");
}

int main(void)
{
    struct processes *p = processes_new(RANKS, NULL);
    int r;

    for (r = 0; r < RANKS; r++)
        processes_fork(p, r, registers);
    for (r = 0; r < RANKS; r++) {
        const int status = processes_wait(p, r);

        if (r == STOPPED)
            TAP_EQ("a process was stopped", WTERMSIG(status), SIGKILL);
        else
            tap_ok(status == 0, "rank %d names it (wait status 0x%x)", r, (unsigned)status);
    }
    processes_free(p);
    return tap_done();
}
