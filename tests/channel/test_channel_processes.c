/* Channels between processes, on one host and on several: deaths, descriptors that run out, false
 * messages. */
#include <sys/resource.h>

#include "device_member.h"
#include "processes.h"
#include "src/channel/channel.h"

#if defined(__SANITIZE_THREAD__)
enum { AT_ONCE_MS = 5000 };
#else
enum { AT_ONCE_MS = 1000 };
#endif

enum { PATIENCE_MS = 20000 };

static void open_process(struct ends_member *m, struct processes *p, int rank)
{
    ends_open_with(m, processes_id(p, rank), p->count, rank, PATIENCE_MS);
}

static int peer_of(int rank)
{
    return rank ^ 1;
}

static void must_fail(symwin_status got, symwin_status want, const char *words, const char *what,
                      int rank)
{
    if (got == want && host_error_has(words))
        return;
    fprintf(stderr, "rank %d: %s: %s, not %s with \"%s\": %s\n", rank, what,
            symwin_status_name(got), symwin_status_name(want), words, symwin_last_error());
    tap_failures++;
}

/* ---- channels that work, also between hosts ---- */

/* Each pair connects through a window and through memory that is no window. `arg`: the hosts. */
static void play(struct processes *p, int rank)
{
    const int peer = peer_of(rank);
    symwin_window *window = NULL;
    symwin_channel_end *ends[2];
    symwin_channel channels[2];
    struct ends_member m;
    void *memory[2];
    int i;

    processes_on_host(p->arg, rank);
    open_process(&m, p, rank);
    for (i = 0; i < 2; i++)
        memory[i] = ends_alloc(&m, 2 * ENDS_BYTES);
    host_must(symwin_window_register(m.comm, memory[0], 2 * ENDS_BYTES, 0, &window), "register");
    for (i = 0; i < 2; i++)
        ends[i] = ends_offer(&m, peer, host_at(memory[i], rank % 2 * ENDS_BYTES), ENDS_BYTES, 0);
    for (i = 1; i >= 0; i--)
        channels[i] = ends_connect(&m, ends[i]);
    processes_barrier(p);
    for (i = 0; i < 2; i++) {
        must_be(ends_play(&m, peer, &channels[i], "ends_lanes", 1), "put, signal and wait", rank);
        processes_barrier(p);
        must_be(ends_play(&m, peer, &channels[i], "ends_packed", 1), "packets", rank);
        processes_barrier(p);
    }
    ends_destroy(&m, ends[0]);
    ends[0] = ends_offer(&m, peer, NULL, 0, 0);
    (void)ends_connect(&m, ends[0]);
    processes_barrier(p);
    ends_close(&m);
    for (i = 0; i < 2; i++)
        host_must(symwin_mem_free(memory[i]), "symwin_mem_free");
}

/* ---- one rank gives up ---- */

static void given_up(struct processes *p, int rank)
{
    symwin_window *window = NULL;
    symwin_channel_end *end;
    symwin_channel channel;
    struct ends_member m;
    void *memory;

    open_process(&m, p, rank);
    memory = ends_alloc(&m, GRANULE);
    host_must(symwin_window_register(m.comm, memory, GRANULE, 0, &window), "register");
    processes_barrier(p);
    if (rank == 1)
        host_must(symwin_window_deregister(m.comm, window), "deregister");
    processes_barrier(p);
    end = ends_offer(&m, peer_of(rank), rank == 0 ? memory : NULL, rank == 0 ? 64 : 0, 0);
    must_fail(symwin_channel_connect(m.comm, end, &channel), SYMWIN_MISMATCH,
              "rank 1: |window that rank 1 has deregistered", "a window that the peer has given up",
              rank);
    processes_barrier(p);
    ends_close(&m);
    host_must(symwin_mem_free(memory), "symwin_mem_free");
}

/* Rank 0 has no free number for the descriptor that it receives. */
static void no_descriptor(struct processes *p, int rank)
{
    symwin_channel_end *end, *next;
    symwin_channel channel;
    struct ends_member m;
    struct rlimit was, tight;
    void *memory;
    int fd;

    open_process(&m, p, rank);
    memory = ends_alloc(&m, GRANULE);
    processes_barrier(p);
    getrlimit(RLIMIT_NOFILE, &was);
    tight = was;
    fd = dup(0); /* the lowest free number */
    close(fd);
    tight.rlim_cur = (rlim_t)fd;
    if (rank == 0)
        setrlimit(RLIMIT_NOFILE, &tight);
    processes_barrier(p);
    end = ends_offer(&m, peer_of(rank), rank == 1 ? memory : NULL, rank == 1 ? 64 : 0, 0);
    must_fail(symwin_channel_connect(m.comm, end, &channel), SYMWIN_NO_MEMORY,
              "rank 0: |no file descriptor is left|ulimit -n", "no descriptor", rank);
    processes_barrier(p);
    setrlimit(RLIMIT_NOFILE, &was);
    processes_barrier(p);
    next = ends_offer(&m, peer_of(rank), memory, 64, 0);
    must_be(symwin_channel_connect(m.comm, next, &channel) == SYMWIN_OK, "it works again", rank);
    processes_barrier(p);
    ends_close(&m);
    host_must(symwin_mem_free(memory), "symwin_mem_free");
}

/* Rank 0's poll thread cannot poll. The waiting thread reads the messages itself, and nobody is
 * blamed. */
static void no_poll(struct processes *p, int rank)
{
    symwin_channel_end *end;
    struct ends_member m;
    struct rlimit was, tight;

    ends_open_with(&m, processes_id(p, rank), 2, rank, AT_ONCE_MS);
    getrlimit(RLIMIT_NOFILE, &was);
    tight = was;
    tight.rlim_cur = 1; /* fewer than it polls: EINVAL */
    if (rank == 0) {
        setrlimit(RLIMIT_NOFILE, &tight);
        sw_poll_lock();
        sw_poll_changed();
        sw_poll_unlock();
        host_pause_ms(20);
    }
    processes_barrier(p);
    end = ends_offer(&m, peer_of(rank), NULL, 0, 0);
    (void)ends_connect(&m, end);
    processes_barrier(p);
    setrlimit(RLIMIT_NOFILE, &was);
    ends_close(&m);
}

/* ---- deaths ---- */

enum death { IN_CONNECT, IN_KERNEL, STOPPED };

/* Rank 1 ends while rank 0 waits for its end or for its kernel. */
static void die(struct processes *p, int rank)
{
    const enum death how = *(const enum death *)p->arg;
    symwin_channel channel = {0};
    symwin_channel_end *end;
    symwin_status status;
    struct ends_member m;
    struct ends_args args;
    int64_t start, took;
    void *memory;

    ends_open_with(&m, processes_id(p, rank), 2, rank, how == STOPPED ? 500 : PATIENCE_MS);
    memory = ends_alloc(&m, ENDS_BYTES);
    processes_barrier(p);
    end = NULL;
    if (rank == 0 || how == IN_KERNEL)
        end = ends_offer(&m, peer_of(rank), memory, ENDS_BYTES, 0);
    if (how == IN_KERNEL)
        channel = ends_connect(&m, end);
    processes_barrier(p);
    if (rank == 1) {
        host_pause_ms(30);
        p->rank[1].at_us = processes_now_us();
        if (how == STOPPED)
            raise(SIGSTOP);
        _exit(0);
    }
    start = host_now_ms();
    if (how == IN_KERNEL) {
        args = ends_args_of(&m, 1, &channel);
        args.limit.timeout_ns = 0;
        ends_launch(&m, "ends_lanes", 1, &args);
        host_must(symwin_stream_synchronize(m.device, m.stream), "synchronize");
        status = symwin_comm_check(m.comm);
    } else {
        status = symwin_channel_connect(m.comm, end, &channel);
    }
    took = host_now_ms() - start;
    must_fail(status, how == STOPPED ? SYMWIN_TIMEOUT : SYMWIN_PEER_LOST, "rank 1",
              "the peer has ended", rank);
    must_be(took < AT_ONCE_MS + (how == STOPPED ? 500 : 30), "at once", rank);
    if (how == STOPPED)
        kill(p->pids[1], SIGKILL);
    must_be(symwin_channel_destroy(m.comm, end) == SYMWIN_OK, "it is destroyed all the same", rank);
    ends_close(&m);
    host_must(symwin_mem_free(memory), "symwin_mem_free");
}

static void death(const char *name, enum death how)
{
    struct processes *p = processes_new(2, &how);
    int statuses[2];

    processes_fork(p, 1, die); /* rank 0 has to know its process id */
    processes_fork(p, 0, die);
    statuses[0] = processes_wait(p, 0);
    statuses[1] = processes_wait(p, 1);
    tap_ok(statuses[0] == 0 && (how == STOPPED ? WIFSIGNALED(statuses[1]) : statuses[1] == 0),
           "%s (wait statuses 0x%x, 0x%x)", name, (unsigned)statuses[0], (unsigned)statuses[1]);
    processes_free(p);
}

/* ---- a peer that does not read ---- */

enum { ENDS = 600 }; /* more than a socket has room for messages */

static void wait_for_messages(const struct ends_member *m, int from, int count)
{
    const int64_t end = host_now_ms() + PATIENCE_MS;

    while (m->comm->group->waiting[from] < count && host_now_ms() < end)
        host_pause_ms(1);
}

/* Rank 0 destroys all its ends while rank 1 is stopped. Later both have all their lanes again. */
static void stopped(struct processes *p, int rank)
{
    symwin_channel_end *ends[ENDS], *all;
    struct ends_member m;
    int64_t start;
    int i;

    open_process(&m, p, rank);
    for (i = 0; i < ENDS; i++)
        ends[i] = ends_offer(&m, peer_of(rank), NULL, 0, 0);
    for (i = 0; i < ENDS; i++)
        (void)ends_connect(&m, ends[i]);
    processes_barrier(p);
    if (rank == 0) {
        kill(p->pids[1], SIGSTOP);
        host_pause_ms(30);
        start = host_now_ms();
        for (i = 0; i < ENDS; i++)
            ends_destroy(&m, ends[i]);
        must_be(host_now_ms() - start < AT_ONCE_MS, "who destroys does not wait", rank);
        must_be(m.comm->group->queued[0] > 0, "messages wait", rank);
        kill(p->pids[1], SIGCONT);
    } else {
        wait_for_messages(&m, 0, ENDS);
        for (i = 0; i < ENDS; i++)
            ends_destroy(&m, ends[i]);
    }
    if (rank == 0)
        wait_for_messages(&m, 1, ENDS);
    processes_barrier(p);
    all = ends_offer(&m, peer_of(rank), NULL, 0, SYMWIN_CHANNEL_LANES);
    (void)ends_connect(&m, all);
    processes_barrier(p);
    ends_close(&m);
}

static void stopped_peer(void)
{
    struct processes *p = processes_new(2, NULL);
    int statuses[2];

    processes_fork(p, 1, stopped); /* rank 0 has to know its process id */
    processes_fork(p, 0, stopped);
    statuses[0] = processes_wait(p, 0);
    statuses[1] = processes_wait(p, 1);
    tap_ok(statuses[0] == 0 && statuses[1] == 0,
           "a peer that is stopped gets its lanes back (wait statuses 0x%x, 0x%x)",
           (unsigned)statuses[0], (unsigned)statuses[1]);
    processes_free(p);
}

/* Ranks 2 and 3 connect from one host to the other. A process that links the hosts has left, so no
 * message gets through. */
struct leaving {
    char hosts[5];
    int rank;
};

static void leave(struct processes *p, int rank)
{
    const struct leaving *leaving = p->arg;
    char words[16];
    symwin_channel_end *end;
    symwin_channel channel;
    struct ends_member m;
    int64_t start;

    processes_on_host(leaving->hosts, rank);
    open_process(&m, p, rank);
    processes_barrier(p);
    if (rank == leaving->rank)
        ends_close(&m);
    processes_barrier(p);
    snprintf(words, sizeof words, "rank %d has", leaving->rank);
    if (rank > 1) {
        end = ends_offer(&m, peer_of(rank), NULL, 0, 0);
        start = host_now_ms();
        must_fail(symwin_channel_connect(m.comm, end, &channel), SYMWIN_PEER_LOST, words,
                  "who links the hosts has left", rank);
        must_be(host_now_ms() - start < AT_ONCE_MS, "at once", rank);
    }
    processes_barrier(p);
    if (rank != leaving->rank)
        ends_close(&m);
}

/* ---- false messages ---- */

enum lie { WORDS, UNALIGNED, MANY_LANES, PLACE, LONG, NOTHING, OBJECT, WINDOW, LIES };

/* What rank 0 sends instead of a right offer. */
static void lie(enum lie which, const struct ends_member *m, struct sw_frame_message *w)
{
    const uint64_t first = sw_lanes_offset(m->comm, 0);

    w->words = first;
    w->lanes = 1;
    switch (which) {
    case WORDS:
        w->words = first - 16;
        break;
    case UNALIGNED:
        w->words = first + 8;
        break;
    case MANY_LANES:
        w->words = sw_lanes_offset(m->comm, SW_STATE_LANES - 1) + 16;
        break;
    case PLACE:
        w->memory = SW_MESSAGE_OTHER;
        w->allocation = w->place = 4096;
        w->bytes = 1;
        break;
    case LONG:
        w->memory = SW_MESSAGE_OTHER;
        w->allocation = 4096;
        w->place = 64;
        w->bytes = UINT64_MAX - 32;
        break;
    case NOTHING: /* no handle to import */
        w->memory = SW_MESSAGE_OTHER;
        w->allocation = GRANULE;
        w->bytes = 64;
        break;
    case OBJECT:
        w->memory = SW_MESSAGE_OTHER;
        w->allocation = GRANULE;
        w->bytes = 64;
        break;
    case WINDOW:
        w->memory = SW_MESSAGE_WINDOW;
        w->place = UINT64_MAX - 32;
        w->bytes = 64;
        break;
    case LIES:
        break;
    }
}

static CUmemGenericAllocationHandle lent; /* of rank 0's process */

/* What a lie brings: a multicast object in place of memory, or -1. */
static int lie_brings(enum lie which)
{
    const CUmulticastObjectProp prop = {
        .numDevices = 2, .size = GRANULE, .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
    int fd = -1, device;

    if (which != OBJECT)
        return -1;
    host_must_cuda(sw_drv.cuMulticastCreate(&lent, &prop), "cuMulticastCreate");
    for (device = 0; device < 2; device++) /* else who maps it waits for ever */
        host_must_cuda(sw_drv.cuMulticastAddDevice(lent, device), "cuMulticastAddDevice");
    host_must_cuda(
        sw_drv.cuMemExportToShareableHandle(&fd, lent, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        "cuMemExportToShareableHandle");
    return fd;
}

/* Rank `liar` sends a message to `to` in the name of `from`, which is another rank. That ends the
 * communicator, and every rank is told that `liar` did it. */
static void must_catch(struct ends_member *m, int liar, int from, int to)
{
    struct sw_frame_message message;
    char words[16];
    int i;

    if (m->rank == liar) {
        sw_message_fill(m->comm, to, SW_MESSAGE_GONE, 1, SYMWIN_OK, "", &message);
        message.from = (int32_t)from;
        (void)sw_mailbox_try(m->comm->group, &message, -1, 0, sw_now_ms() + 1000);
    }
    for (i = 0; i < 5000 && symwin_comm_check(m->comm) == SYMWIN_OK; i++)
        host_pause_ms(1);
    snprintf(words, sizeof words, "rank %d", liar);
    must_fail(symwin_comm_check(m->comm), SYMWIN_MISMATCH, words, "another rank's name", m->rank);
}

static void lies(struct processes *p, int rank)
{
    static const struct {
        symwin_status status;
        const char *words;
    } want[] = {
        [WORDS] = {SYMWIN_MISMATCH, "rank 1: |counters"},
        [UNALIGNED] = {SYMWIN_MISMATCH, "counters"},
        [MANY_LANES] = {SYMWIN_MISMATCH, "counters"},
        [PLACE] = {SYMWIN_MISMATCH, "1 bytes at byte 4096 of an allocation of 4096"},
        [LONG] = {SYMWIN_MISMATCH, "at byte 64 of an allocation of 4096"},
        [NOTHING] = {SYMWIN_NO_MEMORY, "no file descriptor is left"},
        [OBJECT] = {SYMWIN_MISMATCH, "rank 0 sent an object that is no memory"},
        [WINDOW] = {SYMWIN_MISMATCH, "has deregistered"},
    };
    struct sw_frame_message message;
    symwin_channel_end *end;
    symwin_channel channel;
    struct ends_member m;
    int i, fd;

    open_process(&m, p, rank);
    for (i = 0; i < LIES; i++) {
        if (rank == 1) {
            end = ends_offer(&m, 0, NULL, 0, 0);
            must_fail(symwin_channel_connect(m.comm, end, &channel), want[i].status, want[i].words,
                      "a message that lies", rank);
            ends_destroy(&m, end);
            continue;
        }
        sw_message_fill(m.comm, 1, SW_MESSAGE_OFFER, (uint64_t)i + 1, SYMWIN_OK, "", &message);
        lie((enum lie)i, &m, &message);
        fd = lie_brings((enum lie)i);
        host_must(sw_mailbox_send(m.comm->group, &message, fd, 0, sw_now_ms() + 1000, "a lie"),
                  "a lie");
        if (fd >= 0)
            close(fd);
        sw_message_fill(m.comm, 1, SW_MESSAGE_VERDICT, (uint64_t)i + 1, SYMWIN_OK, "", &message);
        host_must(sw_mailbox_send(m.comm->group, &message, -1, 0, sw_now_ms() + 1000, "a lie"),
                  "a lie");
    }
    processes_barrier(p);
    if (rank == 0)
        host_must_cuda(sw_drv.cuMemRelease(lent), "cuMemRelease");
    must_catch(&m, 0, 1, 1);
    ends_close(&m);
}

/* Rank 1 links its host. It sends rank 3, on the same host, a message in rank 3's name. It must be
 * named for that and not be reported as lost, which no other host could decide. */
static void lie_of_who_links(struct processes *p, int rank)
{
    struct ends_member m;

    processes_on_host(p->arg, rank);
    open_process(&m, p, rank);
    processes_barrier(p);
    must_catch(&m, 1, 3, 3);
    processes_barrier(p);
    ends_close(&m);
}

/* The message in which rank 0's destroy says that its end is gone. */
static symwin_status said_at_destroy(struct ends_member *m, char text[SW_MESSAGE_TEXT])
{
    symwin_status status = SYMWIN_OK;
    struct sw_message *message;
    int i, came = 0;

    for (i = 0; i < 5000 && !came; i++) {
        sw_mailbox_collect(m->comm->group, sw_now_ms() + 1000);
        message = sw_mailbox_take(m->comm->group, m->comm->rank);
        if (message == NULL) {
            host_pause_ms(1);
            continue;
        }
        came = message->words.kind == SW_MESSAGE_GONE;
        status = (symwin_status)message->words.status;
        snprintf(text, SW_MESSAGE_TEXT, "%s", message->words.text);
        sw_message_free(message);
    }
    return status;
}

/* A rank destroys its end because the communicator has failed, and says so: a peer on another host
 * may learn of the failure later. */
static void failed_first(struct processes *p, int rank)
{
    static const char lost[] = "the process of rank 7 has ended";
    char text[SW_MESSAGE_TEXT] = "";
    struct sw_frame_message message;
    symwin_channel_end *end;
    symwin_channel channel;
    struct ends_member m;

    processes_on_host(p->arg, rank);
    open_process(&m, p, rank);
    if (rank == 1) {
        end = ends_offer(&m, 0, NULL, 0, 0);
        must_fail(symwin_channel_connect(m.comm, end, &channel), SYMWIN_PEER_LOST,
                  "rank 0: the process of rank 7 has ended", "an end given up after a loss", rank);
        ends_destroy(&m, end);
    } else {
        sw_message_fill(m.comm, 1, SW_MESSAGE_GONE, 1, SYMWIN_PEER_LOST, lost, &message);
        host_must(sw_mailbox_send(m.comm->group, &message, -1, 0, sw_now_ms() + 1000, "gone"),
                  "gone");
    }
    processes_barrier(p);
    if (rank == 0) {
        end = ends_offer(&m, 1, NULL, 0, 0);
        host_must(symwin_comm_abort(m.comm), "symwin_comm_abort");
        must_fail(symwin_comm_check(m.comm), SYMWIN_ABORTED, "abort", "an abort", rank);
        ends_destroy(&m, end);
        must_fail(SYMWIN_ABORTED, SYMWIN_ABORTED, "symwin_comm_check", "the text after a destroy",
                  rank);
    } else {
        const symwin_status said = said_at_destroy(&m, text);

        if (said != SYMWIN_ABORTED || strstr(text, "abort") == NULL) {
            fprintf(stderr, "rank 1: rank 0's end went with %s: %s\n", symwin_status_name(said),
                    text);
            tap_failures++;
        }
    }
    processes_barrier(p);
    ends_close(&m);
}

int main(void)
{
    static char two[] = "ab", four[] = "aabb", mixed[] = "abba", turns[] = "abab",
                three[] = "abcabc";

    processes_run("channels of two", 2, play, NULL);
    processes_run("of six", 6, play, NULL);
    processes_run("on two hosts", 2, play, two);
    processes_run("on two hosts, beside each other", 4, play, four);
    processes_run("on two hosts, across", 4, play, mixed);
    processes_run("on three hosts", 6, play, three);
    processes_run("a window that is given up", 2, given_up, NULL);
    processes_run("no descriptor", 2, no_descriptor, NULL);
    processes_run("a service thread that cannot poll", 2, no_poll, NULL);
    death("a peer that ends instead of coming", IN_CONNECT);
    death("a peer that ends while a kernel waits for it", IN_KERNEL);
    death("a peer that is stopped", STOPPED);
    stopped_peer();
    processes_run("who links a host leaves", 4, leave, &(struct leaving){"abab", 1});
    processes_run("who links the first host leaves", 4, leave, &(struct leaving){"abab", 0});
    processes_run("messages that lie", 2, lies, NULL);
    processes_run("a message that lies, of who links a host", 4, lie_of_who_links, turns);
    processes_run("an end given up after a failure", 2, failed_first, two);
    return tap_done();
}
