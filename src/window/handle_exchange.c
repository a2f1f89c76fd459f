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
struct pending {
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
    struct pending *pending; /* owned, processes */
    struct pollfd *polls;    /* owned, processes: the sockets waited for */
    int *polled;             /* owned, processes: the process of each of them */
    symwin_status status;    /* the first failure; its text is the thread's last error */
};

/* Keeps the first failure: records `status` if there is none yet, else restores `text`, the error
 * of the first. */
static void keep_first(struct sw_handle_exchange *x, symwin_status status, const char *text)
{
    if (x->status == SYMWIN_OK)
        x->status = status;
    else
        sw_error_restore(text);
}

static int has_piece(const struct sw_handle_exchange *x, int rank)
{
    return x->piece < x->segment->rank[rank].stretch.pieces;
}

static int next_local(const struct sw_handle_exchange *x, int rank)
{
    while (rank < x->group->nranks && !(sw_group_is_local(x->group, rank) && has_piece(x, rank)))
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
                       "rank %d's memory cannot be shared with other processes: file descriptor "
                       "%d is above the library's limit; close some",
                       rank, fd);
    }
    if (result == CUDA_ERROR_INVALID_VALUE)
        return sw_fail(SYMWIN_UNSUPPORTED,
                       "rank %d's memory cannot be shared with other processes: it was not "
                       "created for export as a file descriptor, or was itself imported",
                       rank);
    return sw_check(result, "cuMemExportToShareableHandle of rank %d's memory", rank);
}

static void export_all(struct sw_handle_exchange *x)
{
    int r;

    for (r = next_local(x, 0); r < x->group->nranks; r = next_local(x, r + 1)) {
        x->exported[r] = sw_handle_exchange_export(x->segment->rank[r].pieces[x->piece].memory, r,
                                                   &x->fds[r]);
        if (x->status == SYMWIN_OK)
            x->status = x->exported[r];
    }
}

/* The connection to a process has failed, which ends the communicator. */
static void fail_connection(struct sw_handle_exchange *x, int process, symwin_status why)
{
    sw_exchange_fail(x->group->exchange, why, sw_group_leader_of(x->group, process));
}

/* This process has no resources to use its peer sockets, which ends the communicator. */
static void fail_resources(struct sw_handle_exchange *x)
{
    sw_exchange_fail(x->group->exchange, SYMWIN_NO_MEMORY, x->group->leader);
}

static void send_one(struct sw_handle_exchange *x, int process)
{
    const struct timespec moment = {.tv_nsec = 1000000};
    struct pending *e = &x->pending[process];
    const int r = e->to_send;
    union sw_frame frame;
    int error;

    memset(&frame, 0, sizeof frame.handle); /* not the whole union: other frames are larger */
    frame.handle.sequence = x->segment->id;
    frame.handle.bytes = x->segment->rank[r].pieces[x->piece].bytes;
    frame.handle.rank = r;
    frame.handle.status = (int32_t)x->exported[r];
    sw_frame_seal(&frame, SW_FRAME_HANDLE);
    error = sw_frame_send_now(x->group->sockets[process].watch.fd, &frame, x->fds[r]);
    if (error == 0)
        e->to_send = next_local(x, r + 1);
    else if (error == ETOOMANYREFS && sw_now_ms() < x->deadline - SLICE_MS)
        nanosleep(&moment, NULL); /* too many descriptors in flight: until others receive */
    else if (error == EPIPE || error == ECONNRESET)
        fail_connection(x, process, SYMWIN_PEER_LOST);
    else if (error != EAGAIN)
        fail_resources(x);
}

static symwin_status import_one(struct sw_handle_exchange *x, const struct sw_frame_handle *handle,
                                int fd)
{
    CUmemGenericAllocationHandle memory = 0;
    symwin_status status = sw_segment_expects(x->segment, handle->rank, handle->bytes);

    if (status != SYMWIN_OK)
        return status;
    status = sw_check(sw_drv.cuMemImportFromShareableHandle(
                          &memory, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                      "cuMemImportFromShareableHandle of rank %d's memory", handle->rank);
    if (status != SYMWIN_OK)
        return status;
    return sw_segment_map(x->group, x->segment, handle->rank, memory, (size_t)handle->bytes, 0);
}

/* Whether the frame belongs to this exchange and comes from its rank's process.
 * `descriptor_lost`: its descriptor could not be received. */
static int is_expected(const struct sw_handle_exchange *x, int process, const union sw_frame *frame,
                       int fd, int descriptor_lost)
{
    const struct sw_frame_handle *h = &frame->handle;

    return frame->header.type == SW_FRAME_HANDLE && h->rank < x->group->nranks &&
           x->group->process_of[h->rank] == process && h->sequence == x->segment->id &&
           has_piece(x, h->rank) && !x->came[h->rank] &&
           (fd >= 0 || descriptor_lost) == (h->status == SYMWIN_OK);
}

static void receive_one(struct sw_handle_exchange *x, int process)
{
    char text[SW_TEXT_BYTES];
    union sw_frame frame;
    int fd = -1;
    int error;

    memcpy(text, symwin_last_error(), sizeof text);
    error = sw_mailbox_next_handle(&x->group->sockets[process], &frame, &fd);
    if (error == EAGAIN)
        return;
    if (error == EPIPE) {
        fail_connection(x, process, SYMWIN_PEER_LOST);
        return;
    }
    if (error == EMFILE && is_expected(x, process, &frame, -1, 1)) {
        x->pending[process].to_receive--;
        x->came[frame.handle.rank] = 1;
        keep_first(
            x,
            sw_fail(SYMWIN_NO_MEMORY,
                    "no file descriptor is left for another process's memory; raise ulimit -n"),
            text);
        return;
    }
    if (error != 0 && error != EPROTO && error != EMFILE) {
        fail_resources(x);
        return;
    }
    if (error != 0 || !is_expected(x, process, &frame, fd, 0)) {
        sw_closer_close(fd);
        fail_connection(x, process, SYMWIN_MISMATCH);
        return;
    }
    x->pending[process].to_receive--;
    x->came[frame.handle.rank] = 1;
    if (fd >= 0 && x->status == SYMWIN_OK)
        keep_first(x, import_one(x, &frame.handle, fd), text);
    /* A descriptor that the driver accepted is memory, and closing it does not block. */
    if (fd >= 0 && x->status == SYMWIN_OK)
        sw_fork_set_close(fd);
    else
        sw_closer_close(fd);
}

/* Lists the sockets with something left to send or receive, and returns how many; 0: done. Only
 * these: poll() accepts at most as many entries as the process may have descriptors, and there may
 * be more processes than that on other hosts. */
static int fill_polls(struct sw_handle_exchange *x)
{
    int count = 0;
    int p;

    for (p = 0; p < x->group->processes; p++) {
        const struct pending *e = &x->pending[p];
        const int fd = x->group->sockets[p].watch.fd;

        if (fd < 0 || (e->to_send == x->group->nranks && e->to_receive == 0))
            continue;
        x->polled[count] = p;
        x->polls[count++] = (struct pollfd){
            .fd = fd,
            .events = (short)((e->to_send < x->group->nranks ? POLLOUT : 0) |
                              (e->to_receive > 0 ? POLLIN : 0)),
        };
    }
    return count;
}

static symwin_status exchange_all(struct sw_handle_exchange *x)
{
    struct sw_group *group = x->group;
    int count, ready;
    int i;

    for (i = 0; i < group->processes; i++) /* handles that came before this process began */
        while (group->sockets[i].early != NULL && x->pending[i].to_receive > 0)
            receive_one(x, i);
    while ((count = fill_polls(x)) > 0) {
        if (sw_exchange_ended(group->exchange))
            return sw_exchange_settled(group->exchange, x->call);
        if (sw_now_ms() >= x->deadline) {
            fail_connection(x, x->polled[0], SYMWIN_TIMEOUT);
            continue;
        }
        sw_exchange_waits_for(group->exchange, group->leader,
                              sw_group_leader_of(group, x->polled[0]));
        ready = poll(x->polls, (nfds_t)count, SLICE_MS);
        if (ready < 0 && errno != EINTR)
            fail_resources(x);
        if (ready <= 0)
            continue;
        for (i = 0; i < count; i++) {
            if ((x->polls[i].revents & POLLOUT) != 0)
                send_one(x, x->polled[i]);
            if ((x->polls[i].revents & (POLLIN | POLLHUP | POLLERR)) != 0)
                receive_one(x, x->polled[i]);
        }
    }
    return x->status;
}

static void exchange_free(struct sw_handle_exchange *x)
{
    free(x->fds);
    free(x->exported);
    free(x->came);
    free(x->pending);
    free(x->polls);
    free(x->polled);
    free(x);
}

symwin_status sw_handle_exchange_create(struct sw_group *group)
{
    const size_t nranks = (size_t)group->nranks;
    const size_t processes = (size_t)group->processes;
    struct sw_handle_exchange *x = calloc(1, sizeof *x);

    if (x == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "no host memory for %d ranks", group->nranks);
    group->handle_exchange = x;
    group->handle_exchange_free = exchange_free;
    x->group = group;
    x->fds = malloc(nranks * sizeof *x->fds);
    x->exported = malloc(nranks * sizeof *x->exported);
    x->came = malloc(nranks);
    x->pending = malloc(processes * sizeof *x->pending);
    x->polls = malloc(processes * sizeof *x->polls);
    x->polled = malloc(processes * sizeof *x->polled);
    if (x->fds != NULL && x->exported != NULL && x->came != NULL && x->pending != NULL &&
        x->polls != NULL && x->polled != NULL)
        return SYMWIN_OK;
    return sw_fail(SYMWIN_NO_MEMORY, "no host memory for %d ranks", group->nranks);
}

static void prepare(struct sw_handle_exchange *x)
{
    int r, p;

    x->status = SYMWIN_OK;
    for (p = 0; p < x->group->processes; p++)
        x->pending[p] = (struct pending){.to_send = next_local(x, 0)};
    for (r = 0; r < x->group->nranks; r++) {
        x->fds[r] = -1;
        x->exported[r] = SYMWIN_OK;
        x->came[r] = 0;
        x->pending[x->group->process_of[r]].to_receive += x->group->host_of[r] == x->group->host &&
                                                          has_piece(x, r);
    }
}

symwin_status sw_handle_exchange_run(struct sw_group *group, struct sw_segment *segment, int piece,
                                     int timeout_ms, const char *call)
{
    struct sw_handle_exchange *x = group->handle_exchange;
    symwin_status status;
    int r;

    x->segment = segment;
    x->piece = piece;
    x->call = call;
    x->deadline = sw_now_ms() + timeout_ms;
    prepare(x);
    sw_mailbox_exchange_handles(group, 1);
    export_all(x);
    status = exchange_all(x);
    sw_mailbox_exchange_handles(group, 0);
    sw_exchange_waits_for(group->exchange, group->leader, -1);
    for (r = 0; r < group->nranks; r++)
        if (x->fds[r] >= 0)
            sw_fork_set_close(x->fds[r]);
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
            "the memory cannot be shared with other hosts: it was not created for fabric handles "
            "(which need NVLink between the hosts and a common IMEX channel), or was itself "
            "imported");
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
