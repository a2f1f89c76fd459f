/* What another process may send in a registration: memory of its own ranks, for this registration,
 * once per rank, no longer than the segment. The test is the other process, at the other end of a
 * peer socket. */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "harness.h"
#include "src/bootstrap/rendezvous.h"
#include "src/control/control.h"

enum { RANKS = 4, SEQUENCE = 7, TIMEOUT_MS = 300, NOTHING = -1 };

/* Ranks 0 and 1 are in this process, 2 and 3 in the other. */
struct receiver {
    struct sw_group group;
    struct sw_peer_socket socket, *sockets[2];
    struct sw_segment *segment;
    struct sw_segment_piece *pieces; /* one per rank */
    int other;                       /* the test's end of the peer socket */
};

static void receiver_open(struct receiver *t)
{
    static int process_of[RANKS] = {0, 0, 1, 1}, host_of[RANKS];
    int sockets[2], r;

    *t = (struct receiver){.group = {.nranks = RANKS,
                                     .nlocal = 2,
                                     .processes = 2,
                                     .hosts = 1,
                                     .process_of = process_of,
                                     .host_of = host_of,
                                     .exchange = sw_exchange_create(RANKS)}};
    t->group.handles = calloc(RANKS, sizeof *t->group.handles);
    t->segment = calloc(1, sizeof *t->segment + RANKS * sizeof t->segment->rank[0]);
    t->pieces = calloc(RANKS, sizeof *t->pieces);
    if (t->group.handles == NULL || t->segment == NULL || t->pieces == NULL ||
        t->group.exchange == NULL || sw_handle_exchange_create(&t->group) != SYMWIN_OK ||
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0 ||
        pthread_cond_init(&t->group.mailbox_changed, NULL) != 0 ||
        pthread_mutex_init(&t->group.mutex, NULL) != 0)
        abort();
    t->group.sockets = t->sockets;
    t->socket = (struct sw_peer_socket){.watch.fd = sockets[0], .group = &t->group, .process = 1};
    t->sockets[1] = &t->socket;
    t->other = sockets[1];
    t->segment->id = SEQUENCE;
    t->segment->bytes = GRANULE;
    for (r = 0; r < RANKS; r++) {
        t->segment->rank[r].stretch = (struct sw_stretch){0, GRANULE, 1};
        t->segment->rank[r].pieces = &t->pieces[r];
    }
    for (r = 0; r < 2; r++) {
        CUmemAllocationProp prop = {
            .type = CU_MEM_ALLOCATION_TYPE_PINNED,
            .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
            .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
        };

        t->pieces[r].bytes = GRANULE;
        host_must_cuda(sw_drv.cuMemCreate(&t->pieces[r].memory, GRANULE, &prop, 0), "cuMemCreate");
    }
}

static void receiver_close(struct receiver *t)
{
    int r;

    for (r = 0; r < 2; r++)
        host_must_cuda(sw_drv.cuMemRelease(t->pieces[r].memory), "cuMemRelease");
    sw_poll_settle();
    close(t->other);
    close(t->socket.watch.fd);
    free(t->group.handle_exchange);
    sw_mailbox_destroy(&t->group);
    sw_exchange_destroy(t->group.exchange);
    pthread_mutex_destroy(&t->group.mutex);
    free(t->pieces);
    free(t->segment);
}

/* One frame of the other process. */
struct frame {
    int rank;
    uint64_t sequence, bytes;
    symwin_status status; /* OK: with a descriptor, which is no memory */
};

static const struct lie {
    const char *name;
    struct frame frames[2]; /* the first rank NOTHING: none is sent */
    symwin_status status;   /* of the handle exchange */
    const char *words;
    int ends; /* whether it ends the communicator, blaming rank 2 */
} lies[] = {
    {"memory that cannot be exported",
     {{2, SEQUENCE, GRANULE, SYMWIN_UNSUPPORTED}, {3, SEQUENCE, GRANULE, SYMWIN_UNSUPPORTED}},
     SYMWIN_OK,
     "",
     0},
    {"what is no memory",
     {{2, SEQUENCE, GRANULE, SYMWIN_OK}, {3, SEQUENCE, GRANULE, SYMWIN_UNSUPPORTED}},
     SYMWIN_DRIVER,
     "cuMemImportFromShareableHandle|rank 2",
     0},
    {"memory longer than the segment",
     {{2, SEQUENCE, GRANULE + 1, SYMWIN_OK}, {3, SEQUENCE, GRANULE, SYMWIN_UNSUPPORTED}},
     SYMWIN_MISMATCH,
     "rank 2 sent 2097153 bytes",
     0},
    {"memory shorter than the segment",
     {{2, SEQUENCE, GRANULE / 2, SYMWIN_OK}, {3, SEQUENCE, GRANULE, SYMWIN_UNSUPPORTED}},
     SYMWIN_MISMATCH,
     "rank 2 sent 1048576 bytes",
     0},
    {"memory of no bytes",
     {{3, SEQUENCE, 0, SYMWIN_OK}, {2, SEQUENCE, GRANULE, SYMWIN_UNSUPPORTED}},
     SYMWIN_MISMATCH,
     "rank 3 sent 0 bytes",
     0},
    {"a rank's memory twice",
     {{2, SEQUENCE, GRANULE, SYMWIN_UNSUPPORTED}, {2, SEQUENCE, GRANULE, SYMWIN_UNSUPPORTED}},
     SYMWIN_MISMATCH,
     "rank 2 has sent what no process",
     1},
    {"memory of a rank of this process",
     {{2, SEQUENCE, GRANULE, SYMWIN_UNSUPPORTED}, {1, SEQUENCE, GRANULE, SYMWIN_UNSUPPORTED}},
     SYMWIN_MISMATCH,
     "rank 2 has sent what no process",
     1},
    {"memory of a rank that there is not",
     {{4, SEQUENCE, GRANULE, SYMWIN_UNSUPPORTED}, {3, SEQUENCE, GRANULE, SYMWIN_UNSUPPORTED}},
     SYMWIN_MISMATCH,
     "rank 2 has sent what no process",
     1},
    {"memory of another registration",
     {{2, SEQUENCE + 1, GRANULE, SYMWIN_UNSUPPORTED}, {3, SEQUENCE, GRANULE, SYMWIN_OK}},
     SYMWIN_MISMATCH,
     "rank 2 has sent what no process",
     1},
    {"nothing", {{.rank = NOTHING}}, SYMWIN_TIMEOUT, "rank 2", 1},
};

static void send_with(const struct receiver *t, const struct frame *f, int fd)
{
    union sw_frame frame;

    memset(&frame, 0, sizeof frame);
    frame.handle.rank = f->rank;
    frame.handle.sequence = f->sequence;
    frame.handle.bytes = f->bytes;
    frame.handle.status = (int32_t)f->status;
    sw_frame_seal(&frame, SW_FRAME_HANDLE);
    if (sw_frame_send_now(t->other, &frame, fd) != 0)
        abort();
    if (fd >= 0)
        close(fd);
}

static void send_frame(const struct receiver *t, const struct frame *f)
{
    send_with(t, f, f->status == SYMWIN_OK ? open("/dev/null", O_RDWR | O_CLOEXEC) : -1);
}

/* Whether the exchange has taken the memory of a rank. */
static int was_taken(struct receiver *t, int rank)
{
    struct pollfd p = {.fd = t->socket.watch.fd, .events = POLLIN};
    int taken;

    sw_poll_lock();
    taken = poll(&p, 1, 0) == 0 && !t->group.handles[rank].waits;
    sw_poll_unlock();
    return taken;
}

/* The same frame again, when the first has been taken. */
static void *send_again(void *arg)
{
    static const struct frame frame = {2, SEQUENCE, GRANULE, SYMWIN_UNSUPPORTED};
    struct receiver *t = arg;

    send_frame(t, &frame);
    while (!was_taken(t, frame.rank))
        usleep(1000);
    send_frame(t, &frame);
    return NULL;
}

static void test_again(void)
{
    struct receiver t;
    pthread_t thread;

    receiver_open(&t);
    if (pthread_create(&thread, NULL, send_again, &t) != 0)
        abort();
    host_expect("a rank's memory again, when it was taken",
                sw_handle_exchange_run(&t.group, t.segment, 0, 5000, "test"), SYMWIN_MISMATCH,
                "rank 2");
    pthread_join(thread, NULL);
    receiver_close(&t);
}

/* A multicast object in place of memory. The driver would wait for its devices to map it. */
static void test_object(void)
{
    static const struct frame frames[] = {{2, SEQUENCE, GRANULE, SYMWIN_OK},
                                          {3, SEQUENCE, GRANULE, SYMWIN_UNSUPPORTED}};
    const CUmulticastObjectProp prop = {
        .numDevices = 2, .size = GRANULE, .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
    CUmemGenericAllocationHandle object;
    struct receiver t;
    int fd;

    receiver_open(&t);
    host_must_cuda(sw_drv.cuMulticastCreate(&object, &prop), "cuMulticastCreate");
    host_must_cuda(sw_drv.cuMemExportToShareableHandle(&fd, object,
                                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                   "cuMemExportToShareableHandle");
    send_with(&t, &frames[0], fd);
    send_frame(&t, &frames[1]);
    host_expect("a multicast object",
                sw_handle_exchange_run(&t.group, t.segment, 0, TIMEOUT_MS, "test"), SYMWIN_MISMATCH,
                "rank 2 sent an object that is no memory");
    host_must_cuda(sw_drv.cuMemRelease(object), "cuMemRelease");
    receiver_close(&t);
}

/* Both ranks of this process fail to export, each for a reason of its own. The first one's counts,
 * with its text. */
static void test_two_reasons(void)
{
    static const struct frame none[] = {{2, SEQUENCE, GRANULE, SYMWIN_UNSUPPORTED},
                                        {3, SEQUENCE, GRANULE, SYMWIN_UNSUPPORTED}};
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    struct receiver t;
    symwin_status status;
    int i;

    receiver_open(&t);
    host_must_cuda(sw_drv.cuMemRelease(t.pieces[0].memory), "cuMemRelease");
    host_must_cuda(sw_drv.cuMemCreate(&t.pieces[0].memory, GRANULE, &prop, 0), "cuMemCreate");
    for (i = 0; i < 2; i++)
        send_frame(&t, &none[i]);
    sw_emu_fail_nth(2, CUDA_ERROR_OUT_OF_MEMORY, 0, 0);
    status = sw_handle_exchange_run(&t.group, t.segment, 0, TIMEOUT_MS, "test");
    TAP_EQ("the second export fails too", sw_emu_fault_fired(), 1);
    sw_emu_fail_nth(0, CUDA_SUCCESS, 0, 0);
    host_expect("two exports that fail", status, SYMWIN_UNSUPPORTED,
                "rank 0's memory cannot be shared|not created for export");
    receiver_close(&t);
}

static void test_lie(const struct lie *lie)
{
    struct receiver t;
    symwin_status status, end;
    int ended, culprit = -1, i;

    receiver_open(&t);
    for (i = 0; i < 2 && lie->frames[0].rank != NOTHING; i++)
        send_frame(&t, &lie->frames[i]);
    status = sw_handle_exchange_run(&t.group, t.segment, 0, TIMEOUT_MS, "test");
    if (lie->status == SYMWIN_OK)
        TAP_EQ(lie->name, status, SYMWIN_OK);
    else
        host_expect(lie->name, status, lie->status, lie->words);
    ended = sw_exchange_outcome(t.group.exchange, &end, &culprit);
    tap_ok(ended == lie->ends && (!ended || culprit == 2), "%s: the communicator %s", lie->name,
           ended ? "ends" : "goes on");
    receiver_close(&t);
}

int main(void)
{
    struct harness_leaks before;
    size_t i;

    harness_start();
    before = harness_leaks_now();
    for (i = 0; i < sizeof lies / sizeof lies[0]; i++)
        test_lie(&lies[i]);
    test_again();
    test_object();
    test_two_reasons();
    harness_no_leaks("handle exchanges", &before);
    return tap_done();
}
