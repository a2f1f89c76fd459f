/* Handle exchange: memory of one process shown in another, by descriptors over the peer sockets.
 *
 * Each process sends the memory of its ranks to all others without being asked. So no process can
 * ask for memory outside the current registration, and only processes of the communicator have a
 * peer socket. If a rank's memory cannot be exported, its frame carries the error in place of a
 * descriptor, so nobody waits for it. Descriptors are imported and closed as they arrive. After a
 * failure all expected frames are still received: the next registration finds no old handles in
 * the sockets, only messages from one rank to another (mailbox.c).
 *
 * The leader's thread runs an exchange; the poll thread leaves the peer sockets alone meanwhile.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "src/window/window.h"

enum { SLICE_MS = 20 }; /* interval of checks whether the exchange has ended */

/* What is still to be sent and received on one peer socket. */
struct errand {
    int to_send;    /* the next rank of this process whose memory is sent; nranks: none */
    int to_receive; /* number of frames */
};

struct sw_handle_exchange {
    struct sw_group *group;
    struct sw_segment *segment;
    int piece; /* which piece of each rank; ranks with fewer pieces take no part */
    const char *call;
    int64_t deadline;
    int *fds;                /* owned, nranks: this process's exported memory, -1: none */
    symwin_status *exported; /* owned, nranks */
    unsigned char *came;     /* owned, nranks: ranks whose frame was received */
    struct errand *errands;  /* owned, processes */
    struct pollfd *polls;    /* owned, processes: the sockets waited for */
    int *polled;             /* owned, processes: the process of each of them */
    symwin_status status;    /* the first failure; its text is the thread's last error */
};

/* Keeps the first failure: records `status` if there is none yet, else restores `text`, the error
 * of the first. */
static void note(struct sw_handle_exchange *t, symwin_status status, const char *text)
{
    if (t->status == SYMWIN_OK)
        t->status = status;
    else
        sw_error_restore(text);
}

static int has_piece(const struct sw_handle_exchange *t, int rank)
{
    return t->piece < t->segment->rank[rank].stretch.pieces;
}

static int next_local(const struct sw_handle_exchange *t, int rank)
{
    while (rank < t->group->nranks && !(sw_group_is_local(t->group, rank) && has_piece(t, rank)))
        rank++;
    return rank;
}

/* A descriptor keeps the memory alive, so a forked child must never have one: it joins the
 * close-on-fork set under the lock that created it. */
symwin_status sw_handle_exchange_export(CUmemGenericAllocationHandle memory, int rank, int *out)
{
    CUresult result;
    int fd = -1;
    int kept;

    sw_poll_lock();
    result = sw_drv.cuMemExportToShareableHandle(&fd, memory,
                                                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    kept = result == CUDA_SUCCESS && sw_fork_set_add(fd);
    sw_poll_unlock();
    if (kept) {
        *out = fd;
        return SYMWIN_OK;
    }
    if (result == CUDA_SUCCESS) {
        close(fd);
        return sw_fail(SYMWIN_NO_MEMORY,
                       "rank %d's memory cannot be shown to other processes: descriptor %d is "
                       "beyond what the library can use; close some",
                       rank, fd);
    }
    if (result == CUDA_ERROR_INVALID_VALUE)
        return sw_fail(SYMWIN_UNSUPPORTED,
                       "rank %d's memory cannot be shown to other processes: it was not "
                       "created for export as a file descriptor, or was itself imported",
                       rank);
    return sw_check(result, "cuMemExportToShareableHandle of rank %d's memory", rank);
}

static void export_all(struct sw_handle_exchange *t)
{
    int r;

    for (r = next_local(t, 0); r < t->group->nranks; r = next_local(t, r + 1)) {
        t->exported[r] = sw_handle_exchange_export(t->segment->rank[r].pieces[t->piece].memory, r,
                                                   &t->fds[r]);
        if (t->status == SYMWIN_OK)
            t->status = t->exported[r];
    }
}

/* The connection to a process has failed, which ends the communicator. */
static void lost(struct sw_handle_exchange *t, int process, symwin_status why)
{
    sw_exchange_fail(t->group->exchange, why, sw_group_leader_of(t->group, process));
}

/* This process has no resources to use its peer sockets, which ends the communicator. */
static void stuck(struct sw_handle_exchange *t)
{
    sw_exchange_fail(t->group->exchange, SYMWIN_NO_MEMORY, t->group->leader);
}

static void send_one(struct sw_handle_exchange *t, int process)
{
    const struct timespec moment = {.tv_nsec = 1000000};
    struct errand *e = &t->errands[process];
    const int r = e->to_send;
    union sw_frame frame;
    int error;

    memset(&frame, 0, sizeof frame.handle); /* not the whole union: other frames are larger */
    frame.handle.sequence = t->segment->id;
    frame.handle.bytes = t->segment->rank[r].pieces[t->piece].bytes;
    frame.handle.rank = r;
    frame.handle.status = (int32_t)t->exported[r];
    sw_frame_seal(&frame, SW_FRAME_HANDLE);
    error = sw_frame_send_now(t->group->sockets[process].watch.fd, &frame, t->fds[r]);
    if (error == 0)
        e->to_send = next_local(t, r + 1);
    else if (error == ETOOMANYREFS && sw_now_ms() < t->deadline - SLICE_MS)
        nanosleep(&moment, NULL); /* too many descriptors in flight: until others receive */
    else if (error == EPIPE || error == ECONNRESET)
        lost(t, process, SYMWIN_PEER_LOST);
    else if (error != EAGAIN)
        stuck(t);
}

static symwin_status import_one(struct sw_handle_exchange *t, const struct sw_frame_handle *handle,
                                int fd)
{
    CUmemGenericAllocationHandle memory = 0;
    symwin_status status = sw_segment_expects(t->segment, handle->rank, handle->bytes);

    if (status != SYMWIN_OK)
        return status;
    status = sw_check(sw_drv.cuMemImportFromShareableHandle(
                          &memory, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                      "cuMemImportFromShareableHandle of rank %d's memory", handle->rank);
    if (status != SYMWIN_OK)
        return status;
    return sw_segment_map(t->group, t->segment, handle->rank, memory, (size_t)handle->bytes, 0);
}

/* Whether the frame belongs to this exchange and comes from its rank's process. `lost`: its
 * descriptor could not be received. */
static int fits(const struct sw_handle_exchange *t, int process, const union sw_frame *frame,
                int fd, int lost)
{
    const struct sw_frame_handle *h = &frame->handle;

    return frame->header.type == SW_FRAME_HANDLE && h->rank < t->group->nranks &&
           t->group->process_of[h->rank] == process && h->sequence == t->segment->id &&
           has_piece(t, h->rank) && !t->came[h->rank] &&
           (fd >= 0 || lost) == (h->status == SYMWIN_OK);
}

static void receive_one(struct sw_handle_exchange *t, int process)
{
    char text[SW_TEXT_BYTES];
    union sw_frame frame;
    int fd = -1;
    int error;

    memcpy(text, symwin_last_error(), sizeof text);
    error = sw_mailbox_next_handle(&t->group->sockets[process], &frame, &fd);
    if (error == EAGAIN)
        return;
    if (error == EPIPE) {
        lost(t, process, SYMWIN_PEER_LOST);
        return;
    }
    if (error == EMFILE && fits(t, process, &frame, -1, 1)) {
        t->errands[process].to_receive--;
        t->came[frame.handle.rank] = 1;
        note(t,
             sw_fail(SYMWIN_NO_MEMORY,
                     "no descriptor is left to take in another process's memory; raise ulimit -n"),
             text);
        return;
    }
    if (error != 0 && error != EPROTO && error != EMFILE) {
        stuck(t);
        return;
    }
    if (error != 0 || !fits(t, process, &frame, fd, 0)) {
        sw_closer_close(fd);
        lost(t, process, SYMWIN_MISMATCH);
        return;
    }
    t->errands[process].to_receive--;
    t->came[frame.handle.rank] = 1;
    if (fd >= 0 && t->status == SYMWIN_OK)
        note(t, import_one(t, &frame.handle, fd), text);
    /* A descriptor that the driver accepted is memory, and closing it does not block. */
    if (fd >= 0 && t->status == SYMWIN_OK)
        sw_fork_set_close(fd);
    else
        sw_closer_close(fd);
}

/* Lists the sockets with something left to send or receive, and returns how many; 0: done. Only
 * these: poll() accepts at most as many entries as the process may have descriptors, and there may
 * be more processes than that on other hosts. */
static int fill_polls(struct sw_handle_exchange *t)
{
    int count = 0;
    int p;

    for (p = 0; p < t->group->processes; p++) {
        const struct errand *e = &t->errands[p];
        const int fd = t->group->sockets[p].watch.fd;

        if (fd < 0 || (e->to_send == t->group->nranks && e->to_receive == 0))
            continue;
        t->polled[count] = p;
        t->polls[count++] = (struct pollfd){
            .fd = fd,
            .events = (short)((e->to_send < t->group->nranks ? POLLOUT : 0) |
                              (e->to_receive > 0 ? POLLIN : 0)),
        };
    }
    return count;
}

static symwin_status exchange_all(struct sw_handle_exchange *t)
{
    struct sw_group *group = t->group;
    int count, ready;
    int i;

    for (i = 0; i < group->processes; i++) /* handles that came before this process began */
        while (group->sockets[i].early != NULL && t->errands[i].to_receive > 0)
            receive_one(t, i);
    while ((count = fill_polls(t)) > 0) {
        if (sw_exchange_ended(group->exchange))
            return sw_exchange_settled(group->exchange, t->call);
        if (sw_now_ms() >= t->deadline) {
            lost(t, t->polled[0], SYMWIN_TIMEOUT);
            continue;
        }
        sw_exchange_waits_for(group->exchange, group->leader,
                              sw_group_leader_of(group, t->polled[0]));
        ready = poll(t->polls, (nfds_t)count, SLICE_MS);
        if (ready < 0 && errno != EINTR)
            stuck(t);
        if (ready <= 0)
            continue;
        for (i = 0; i < count; i++) {
            if ((t->polls[i].revents & POLLOUT) != 0)
                send_one(t, t->polled[i]);
            if ((t->polls[i].revents & (POLLIN | POLLHUP | POLLERR)) != 0)
                receive_one(t, t->polled[i]);
        }
    }
    return t->status;
}

static void trade_free(struct sw_handle_exchange *t)
{
    free(t->fds);
    free(t->exported);
    free(t->came);
    free(t->errands);
    free(t->polls);
    free(t->polled);
    free(t);
}

symwin_status sw_handle_exchange_create(struct sw_group *group)
{
    const size_t nranks = (size_t)group->nranks;
    const size_t processes = (size_t)group->processes;
    struct sw_handle_exchange *t = calloc(1, sizeof *t);

    if (t == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "no host memory for %d ranks", group->nranks);
    group->handle_exchange = t;
    group->trade_free = trade_free;
    t->group = group;
    t->fds = malloc(nranks * sizeof *t->fds);
    t->exported = malloc(nranks * sizeof *t->exported);
    t->came = malloc(nranks);
    t->errands = malloc(processes * sizeof *t->errands);
    t->polls = malloc(processes * sizeof *t->polls);
    t->polled = malloc(processes * sizeof *t->polled);
    if (t->fds != NULL && t->exported != NULL && t->came != NULL && t->errands != NULL &&
        t->polls != NULL && t->polled != NULL)
        return SYMWIN_OK;
    return sw_fail(SYMWIN_NO_MEMORY, "no host memory for %d ranks", group->nranks);
}

static void prepare(struct sw_handle_exchange *t)
{
    int r, p;

    t->status = SYMWIN_OK;
    for (p = 0; p < t->group->processes; p++)
        t->errands[p] = (struct errand){.to_send = next_local(t, 0)};
    for (r = 0; r < t->group->nranks; r++) {
        t->fds[r] = -1;
        t->exported[r] = SYMWIN_OK;
        t->came[r] = 0;
        t->errands[t->group->process_of[r]].to_receive += t->group->host_of[r] == t->group->host &&
                                                          has_piece(t, r);
    }
}

symwin_status sw_handle_exchange_run(struct sw_group *group, struct sw_segment *segment, int piece,
                                     int timeout_ms, const char *call)
{
    struct sw_handle_exchange *t = group->handle_exchange;
    symwin_status status;
    int r;

    t->segment = segment;
    t->piece = piece;
    t->call = call;
    t->deadline = sw_now_ms() + timeout_ms;
    prepare(t);
    sw_mailbox_trade(group, 1);
    export_all(t);
    status = exchange_all(t);
    sw_mailbox_trade(group, 0);
    sw_exchange_waits_for(group->exchange, group->leader, -1);
    for (r = 0; r < group->nranks; r++)
        if (t->fds[r] >= 0)
            sw_fork_set_close(t->fds[r]);
    return status;
}

/* ---- between hosts ---- */

symwin_status sw_handle_exchange_export_fabric(CUmemGenericAllocationHandle memory,
                                               CUmemFabricHandle *handle)
{
    const CUresult result = sw_drv.cuMemExportToShareableHandle(handle, memory,
                                                                CU_MEM_HANDLE_TYPE_FABRIC, 0);

    if (result == CUDA_ERROR_INVALID_VALUE)
        return sw_fail(
            SYMWIN_UNSUPPORTED,
            "the memory cannot be shown to other hosts: it was not created for fabric "
            "handles (which need NVLink between the hosts and a common IMEX channel), or "
            "was itself imported");
    return sw_check(result, "cuMemExportToShareableHandle as a fabric handle");
}

symwin_status sw_handle_exchange_fabric(const struct sw_segment *segment, int rank, int piece,
                                        uint64_t words[SW_FABRIC_WORDS])
{
    const struct sw_segment_piece *own = &segment->rank[rank].pieces[piece];
    CUmemFabricHandle handle;
    const symwin_status status = sw_handle_exchange_export_fabric(own->memory, &handle);

    if (status != SYMWIN_OK)
        return status;
    memcpy(words, &handle, sizeof handle);
    words[SW_FABRIC_WORDS - 1] = own->bytes;
    return SYMWIN_OK;
}

symwin_status sw_handle_exchange_import(struct sw_group *group, struct sw_segment *segment,
                                        int rank, const uint64_t words[SW_FABRIC_WORDS])
{
    const uint64_t bytes = words[SW_FABRIC_WORDS - 1];
    CUmemGenericAllocationHandle memory = 0;
    CUmemFabricHandle handle;
    symwin_status status = sw_segment_expects(segment, rank, bytes);

    if (status != SYMWIN_OK)
        return status;
    memcpy(&handle, words, sizeof handle);
    status = sw_check(
        sw_drv.cuMemImportFromShareableHandle(&memory, &handle, CU_MEM_HANDLE_TYPE_FABRIC),
        "cuMemImportFromShareableHandle of rank %d's memory, on another host", rank);
    if (status != SYMWIN_OK)
        return status;
    return sw_segment_map(group, segment, rank, memory, (size_t)bytes, 0);
}
